"""The wheel, installed somewhere else: documents are found from any directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RUNBOOK"))}
    return subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, timeout=240, check=False, env={**clean, **environment}
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), ".", cwd=REPOSITORY
    )
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_documents_epilog_and_examples(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "runbook/data/playbooks/oom/flow.yaml",
        "runbook/data/playbooks/oom/xid.yaml",
        "runbook/data/playbooks/oom/levers/pytorch.yaml",
        "runbook/data/playbooks/oom/compiled/levers.json",
        "runbook/data/playbooks/oom/compiled/signatures.json",
        "runbook/data/inventories/local.yaml",
        "runbook/data/deploy/slurm/runbook-epilog",
        "runbook/data/deploy/prometheus/runbook.rules.yml",
        "runbook/data/deploy/grafana/runbook.json",
        "runbook/data/docs/alerts.md",
        "runbook/report/html/templates/document.html",
        "runbook/data/examples/train/train.py",
        "runbook/report/html/templates/report.html",
    ):
        assert wanted in names, sorted(name for name in names if "data" in name)[:20]
    assert not [name for name in names if name.startswith(("tests/", "runbook/data/tests"))]


def test_installed_elsewhere_it_finds_its_documents_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    installed = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path
    )
    assert installed.returncode == 0, installed.stderr
    for folder in (tmp_path, Path("/")):
        done = run(
            sys.executable, "-m", "runbook", "playbooks", "check", cwd=folder, PYTHONPATH=str(site), HOME=str(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        assert str(site) in done.stdout
        shown = run(sys.executable, "-m", "runbook", "doctor", cwd=folder, PYTHONPATH=str(site), HOME=str(tmp_path))
        assert str(site / "runbook" / "data" / "inventories" / "local.yaml") in shown.stdout, shown.stderr


def test_installed_elsewhere_it_reads_the_compiled_documents(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "import sys\n"
        "from runbook.kinds import load_kinds\n"
        "from runbook.locations import playbook_folder\n"
        "from runbook.logs.signatures import compiled_signatures\n"
        "form = compiled_signatures(playbook_folder() / 'signatures', load_kinds()).compiled\n"
        "print(len(form.read()['signatures']) > 100 and 'runbook.kinds.kinds_document' not in sys.modules)\n"
    )
    done = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.stdout == "True\n", done.stderr
