"""Signatures come from the cache as from the documents, and never from what somebody else could have written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid
from runbook.locations import data_folder
from runbook.logs.signatures import load_signatures
from runbook.logs.signatures.signature_document import compile_signatures

SHIPPED = data_folder("playbooks") / "oom" / "signatures"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runbook"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "signatures"
    folder.mkdir()
    for name in ("pytorch.yaml", "nccl.yaml", "phases.yaml"):
        shutil.copy(SHIPPED / name, folder)
    return folder


def remembered(cache: Path) -> Path:
    (only,) = cache.glob("*.json")
    return only


def forge(path: Path) -> None:
    """Make the remembered signatures recognisable."""
    content = json.loads(path.read_text())
    content["content"]["signatures"][0]["title"] = "forged"
    path.write_text(json.dumps(content))


def came_from_the_cache(folder: Path) -> bool:
    return load_signatures(folder).all[0].title == "forged"


def test_what_is_remembered_is_what_the_documents_say(cache: Path, folder: Path) -> None:
    load_signatures(folder)
    assert remembered(cache).stat().st_mode & 0o777 == 0o600
    again = load_signatures(folder)
    made = compile_signatures(folder)
    assert (again.all, again.phases) == (made.all, made.phases)
    forge(remembered(cache))
    assert came_from_the_cache(folder)


def test_a_changed_document_is_read_again(cache: Path, folder: Path) -> None:
    load_signatures(folder)
    forge(remembered(cache))
    with (folder / "pytorch.yaml").open("a") as file:
        file.write("# a remark\n")
    assert not came_from_the_cache(folder)


def test_a_document_that_became_faulty_is_refused_although_the_old_one_is_remembered(
    cache: Path, folder: Path
) -> None:
    load_signatures(folder)
    text = (folder / "nccl.yaml").read_text()
    (folder / "nccl.yaml").write_text(text.replace("means:", "maens:"))
    with pytest.raises(DocumentsInvalid, match="maens"):
        load_signatures(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"key": 1}', "\x00" * 50, "[" * 100_000])
def test_a_damaged_cache_is_read_around_and_mended(cache: Path, folder: Path, content: str) -> None:
    load_signatures(folder)
    remembered(cache).write_text(content)
    assert len(load_signatures(folder).all) == len(compile_signatures(folder).all)
    assert json.loads(remembered(cache).read_text())["content"]["signatures"]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_cache_that_others_may_write_is_not_trusted(cache: Path, folder: Path, mode: int) -> None:
    load_signatures(folder)
    forge(remembered(cache))
    remembered(cache).chmod(mode)
    assert not came_from_the_cache(folder)


def test_a_cache_folder_that_others_may_write_is_not_trusted(cache: Path, folder: Path) -> None:
    load_signatures(folder)
    forge(remembered(cache))
    cache.chmod(0o777)
    assert not came_from_the_cache(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_cache_of_another_user_is_neither_trusted_nor_written(cache: Path, folder: Path) -> None:
    load_signatures(folder)
    forge(remembered(cache))
    os.chown(remembered(cache), 65534, 65534)
    assert not came_from_the_cache(folder)
    shutil.rmtree(cache)
    os.chown(cache.parent, 65534, 65534)
    load_signatures(folder)
    assert not cache.exists()


def test_a_link_in_the_cache_is_not_followed(cache: Path, folder: Path, tmp_path: Path) -> None:
    load_signatures(folder)
    forge(remembered(cache))
    path = remembered(cache)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert not came_from_the_cache(folder)


def test_without_a_place_for_a_cache_signatures_are_read_as_ever(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert load_signatures(folder).all
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_signatures(folder).all


def test_old_results_are_not_kept_for_ever(cache: Path, folder: Path, tmp_path: Path) -> None:
    for number in range(12):
        load_signatures(Path(shutil.copytree(folder, tmp_path / f"folder{number}")))
    assert len(list(cache.iterdir())) <= 8


def test_reading_a_log_needs_no_parser_of_documents(cache: Path, folder: Path) -> None:
    load_signatures(folder)
    program = (
        "import sys\nfrom pathlib import Path\nfrom runbook.logs.reader import LogReader\n"
        "from runbook.logs.signatures import load_signatures\nimport runbook.diagnosis\n"
        f"LogReader(load_signatures(Path({str(folder)!r})))\n"
        "print(sorted({'pydantic', 'ruamel', 'ruamel.yaml', 'runbook.documents', 'zstandard'} & set(sys.modules)))\n"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
