"""Documents come from their compiled form as from themselves, and never from one of something else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid, keep_data
from runbook.locations import data_folder
from runbook.logs.signatures import compiled_signatures, load_signatures
from runbook.node.catalogues import load_node_documents
from runbook.remedy import load_levers, load_restarters
from runbook.remedy.loading import compiled_levers, compiled_restarters
from tests.kinds import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = data_folder("playbooks") / "oom"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some signatures with their compiled form."""
    folder = tmp_path / "signatures"
    folder.mkdir()
    for name in ("pytorch.yaml", "nccl.yaml", "phases.yaml"):
        shutil.copy(SHIPPED / "signatures" / name, folder)
    compiled_signatures(folder, KINDS).keep()
    return folder


def compiled(folder: Path) -> Path:
    return folder.parent / "compiled" / "signatures.json"


def forge(path: Path) -> None:
    """Make the compiled signatures recognisable."""
    content = json.loads(path.read_text())
    content["content"]["signatures"][0]["title"] = "forged"
    path.write_text(json.dumps(content))


def came_from_the_compiled_form(folder: Path) -> bool:
    return load_signatures(folder).all[0].title == "forged"


def test_what_is_compiled_is_what_the_documents_say(folder: Path) -> None:
    assert load_signatures(folder) == compiled_signatures(folder, KINDS).read()
    forge(compiled(folder))
    assert came_from_the_compiled_form(folder)


def test_levers_and_restarters_too(tmp_path: Path) -> None:
    playbook = Path(shutil.copytree(SHIPPED, tmp_path / "oom", ignore=shutil.ignore_patterns("compiled")))
    levers, restarters = load_levers(playbook / "levers"), load_restarters(playbook / "restarters.yaml")
    compiled_levers(playbook / "levers", KINDS).keep()
    compiled_restarters(playbook / "restarters.yaml").keep()
    assert load_levers(playbook / "levers") == levers == compiled_levers(playbook / "levers", KINDS).read()
    assert load_restarters(playbook / "restarters.yaml") == restarters
    (playbook / "levers" / "verl.yaml").unlink()
    assert len(load_levers(playbook / "levers")) == len(levers) - 1


def test_node_documents_and_the_flow_come_from_what_their_yaml_says(tmp_path: Path) -> None:
    playbook = Path(shutil.copytree(SHIPPED, tmp_path / "oom", ignore=shutil.ignore_patterns("compiled")))
    documents, names = load_node_documents(playbook), ("node_rules", "xid", "gpu_models", "flow")
    for name in names:
        keep_data(playbook / f"{name}.yaml")
    assert load_node_documents(playbook) == documents
    kept = playbook / "compiled" / "xid_data.json"
    content = json.loads(kept.read_text())
    content["content"]["codes"] = content["content"]["codes"][:1]
    kept.write_text(json.dumps(content))
    assert load_node_documents(playbook) != documents
    with (playbook / "xid.yaml").open("a") as file:
        file.write("# a remark\n")
    assert load_node_documents(playbook) == documents


def test_a_changed_document_is_read_itself(folder: Path) -> None:
    forge(compiled(folder))
    with (folder / "pytorch.yaml").open("a") as file:
        file.write("# a remark\n")
    assert not came_from_the_compiled_form(folder)


def test_a_document_that_is_new_or_gone_counts(folder: Path) -> None:
    forge(compiled(folder))
    before = len(load_signatures(folder).all)
    shutil.copy(SHIPPED / "signatures" / "slurm.yaml", folder)
    assert len(load_signatures(folder).all) > before
    (folder / "slurm.yaml").unlink()
    (folder / "nccl.yaml").unlink()
    assert len(load_signatures(folder).all) < before


def test_a_document_that_became_faulty_is_refused_although_the_old_one_is_compiled(folder: Path) -> None:
    text = (folder / "nccl.yaml").read_text()
    (folder / "nccl.yaml").write_text(text.replace("means:", "maens:"))
    with pytest.raises(DocumentsInvalid, match="maens"):
        load_signatures(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"key": 1}', "\x00" * 50, "[" * 100_000])
def test_a_damaged_form_is_read_around(folder: Path, content: str) -> None:
    compiled(folder).write_text(content)
    assert len(load_signatures(folder).all) == len(compiled_signatures(folder, KINDS).read().all)


def test_another_form_of_the_same_documents_is_read_around(folder: Path) -> None:
    content = json.loads(compiled(folder).read_text())
    del content["content"]["signatures"][0]["title"]
    compiled(folder).write_text(json.dumps(content))
    assert load_signatures(folder).all[0].title


def test_reading_writes_nothing(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder.parent / "compiled")
    home = tmp_path / "home"
    home.mkdir()
    program = (
        "from pathlib import Path\nfrom runbook.logs.signatures import load_signatures\n"
        f"load_signatures(Path({str(folder)!r}))\n"
    )
    subprocess.run((sys.executable, "-c", program), check=True, env={"HOME": str(home), "PYTHONPATH": str(REPOSITORY)})
    assert list(home.rglob("*")) == [] and not (folder.parent / "compiled").exists()


def test_reading_a_log_needs_no_parser_of_documents(folder: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom runbook.logs.reader import LogReader\n"
        "from runbook.logs.signatures import load_signatures\nimport runbook.diagnosis\n"
        f"LogReader(load_signatures(Path({str(folder)!r})))\n"
        "print(sorted({'pydantic', 'ruamel', 'ruamel.yaml', 'runbook.documents', 'zstandard'} & set(sys.modules)))\n"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_same_documents_make_the_same_bytes(tmp_path: Path) -> None:
    """Whatever order a process keeps its sets in: packages are made again from the same commit."""
    made = []
    for seed in ("1", "7"):
        root = tmp_path / seed
        shutil.copytree(SHIPPED, root / "playbooks" / "oom", ignore=shutil.ignore_patterns("compiled"))
        compile_them = f"import pathlib, hatch_build; hatch_build.compile_playbooks(pathlib.Path({str(root)!r}))"
        subprocess.run(
            (sys.executable, "-c", compile_them), cwd=REPOSITORY, env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        )
        forms = sorted((root / "playbooks" / "oom" / "compiled").glob("*.json"))
        made.append({form.name: json.dumps(json.loads(form.read_bytes())["content"]) for form in forms})
    assert len(made[0]) >= 4
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
