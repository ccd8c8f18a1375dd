"""What a deployment installs: locked with hashes, listed, with licences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPLY = REPOSITORY / "deploy" / "supply"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    program = str(folder / "deploy" / "supply" / "check_lock.py")
    return subprocess.run((sys.executable, program), capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "deploy" / "supply").mkdir(parents=True)
    for path in SUPPLY.iterdir():
        if path.is_file():
            (tmp_path / "deploy" / "supply" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
    return tmp_path


def test_the_lock_fits_what_the_project_needs(copied: Path) -> None:
    done = check(copied)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", '"click>=8.1.7"', '"click>=99"', "click is locked at"),
        ("pyproject.toml", '"click>=8.1.7"', '"nobody-locked-this"', "nobody-locked-this is needed and not locked"),
        ("deploy/supply/requirements.lock", "--hash=sha256:", "--no=", "is locked without a hash"),
        ("deploy/supply/licences.txt", "click ", "klick ", "licences.txt is not what"),
    ],
)
def test_what_does_not_fit_is_said(copied: Path, file: str, old: str, new: str, said: str) -> None:
    path = copied / file
    assert old in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    done = check(copied)
    assert done.returncode == 1 and said in done.stdout and "make lock" in done.stdout


def test_the_bill_of_materials_names_every_direct_dependency() -> None:
    document = json.loads((SUPPLY / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    names = {component["name"].lower() for component in document["components"]}
    assert {"dbos", "pydantic", "paramiko", "psycopg"} <= names
    assert all(component["version"] for component in document["components"])


@pytest.mark.packaging
@pytest.mark.timeout(400)
def test_the_locked_versions_install_by_their_hashes_and_the_product_starts_with_them(tmp_path: Path) -> None:
    subprocess.run((sys.executable, "-m", "venv", str(tmp_path / "venv")), check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    locked = (*pip, "--require-hashes", "--requirement", str(SUPPLY / "requirements.lock"))
    done = subprocess.run(locked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    built = subprocess.run((*pip, str(REPOSITORY)), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    started = subprocess.run(
        (python, "-m", "runbook", "playbooks", "check"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert started.returncode == 0, started.stderr
    checked = subprocess.run((python, "-m", "pip", "check"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
