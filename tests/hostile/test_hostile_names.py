"""Names and files that a job leaves to trip whoever reads them: long ones, bytes that are no UTF-8, and no files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.files import owner_side
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.model.template import TemplateFile
from runbook.model.units import IncidentId, name_within
from runbook.report.json_documents import dump_incident, load_incident
from runbook.report.vocabulary.clean import masked_document
from runbook.steps.patch import copy_name
from runbook.template import CannotEdit
from runbook.template.text_files import language_of
from tests.cli.conftest import Shell
from tests.cli.test_companions import LOG
from tests.hostile.test_private_files import TEMPLATE, run
from tests.report.sample_incidents import just_opened, recovered

LOG_TEXT = LOG.replace("torchtitan", "megatron")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.work.mkdir()
    made.write_inventory()
    return made


@pytest.mark.parametrize("name", ["训" * 80 + ".out", "\N{PILE OF POO}" * 62 + ".out", "x" * 251 + ".out"])
def test_a_name_as_long_as_the_file_system_takes_is_read_like_any_other(shell: Shell, name: str) -> None:
    log, template = shell.work / name, shell.work / f"{name[:-7]}.sh"
    log.write_text(LOG_TEXT)
    template.write_text(TEMPLATE)
    done = run(shell, "oom", "--log", str(log), "--template", str(template), "--output", "out", "--json")
    assert done.stdout, done.stderr
    assert json.loads(done.stdout)["state"] == "planned", done.stderr


@pytest.mark.parametrize("name", ["训" * 80, "a" * 255, "\udce9" * 300, "", "é" * 50 + ".sh"])
def test_a_name_is_cut_between_letters_and_by_its_bytes(name: str) -> None:
    cut = name_within(name, 100)
    assert name.endswith(cut) and len(os.fsencode(cut)) <= 100
    assert cut == name if len(os.fsencode(name)) <= 100 else len(os.fsencode(cut)) > 96


def test_a_name_of_the_store_is_written_whatever_its_letters(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    path = store.write_file(IncidentId("oom-a-1"), f"evidence/{'训' * 66}", b"x")
    assert path.read_bytes() == b"x"


def test_what_a_process_of_the_owner_sends_is_only_read_where_it_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("x")
    opened = [
        os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK), os.open(tmp_path, os.O_RDONLY),
        os.open("/dev/zero", os.O_RDONLY), os.open(tmp_path / "file", os.O_WRONLY),
        os.open(tmp_path / "file", os.O_PATH),
    ]
    for descriptor in opened:
        with pytest.raises(OSError):
            owner_side.must_be_a_file_to_read(descriptor, "given")
        os.close(descriptor)
    good = os.open(tmp_path / "file", os.O_RDONLY | os.O_NONBLOCK)
    owner_side.must_be_a_file_to_read(good, "given")
    assert os.get_blocking(good)
    os.close(good)


LATIN_1 = b"/scratch/donn\xe9es/v\xf6llig"


def test_bytes_that_are_no_utf_8_come_back_in_the_copy_that_is_submitted(shell: Shell) -> None:
    """A path in Latin-1: it has to lead to the same file from the copy, and the report shows it to a person."""
    job = _failed(shell)
    done = run(shell, "oom", "--job", job, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    incident = json.loads(done.stdout)
    assert incident["state"] == "recovered"
    copy = (shell.state / "incidents" / incident["id"] / "attempts" / "1" / "train.sbatch").read_bytes()
    original = (shell.work / "train.sbatch").read_bytes()
    assert copy.count(LATIN_1) == original.count(LATIN_1) == 2
    assert copy.replace(b"micro-batch-size 4", b"micro-batch-size 8").count(b"\n") >= original.count(b"\n")
    assert "\ufffd" not in (shell.state / "incidents" / incident["id"] / "incident.json").read_text()
    assert b"donn\xe9es" not in (shell.state / "incidents" / incident["id"] / "report.html").read_bytes()
    listed, shown = run(shell, "incidents", "--json"), run(shell, "show", incident["id"])
    assert listed.returncode == 0 and shown.returncode == 0, listed.stderr + shown.stderr
    assert run(shell, "promote", incident["id"], "--yes").returncode == 0
    assert (shell.work / "train.sbatch").read_bytes().count(LATIN_1) == 2


def _failed(shell: Shell) -> str:
    shell.failed_job()
    script = shell.work / "train.sbatch"
    lines = script.read_bytes().split(b"\n")
    script.write_bytes(b"\n".join((lines[0], *lines[1:3], b"# " + LATIN_1, b"export DATA=" + LATIN_1, *lines[3:])))
    return run(shell, "submit", "--wait", str(script)).stdout.strip()


def test_a_copy_of_a_template_is_byte_for_byte_what_it_was_made_of(shell: Shell) -> None:
    template = shell.work / "train.sh"
    template.write_bytes(TEMPLATE.encode() + b"echo " + LATIN_1 + b"\n")
    (shell.work / "log.out").write_text(LOG_TEXT)
    done = run(shell, "oom", "--log", "log.out", "--template", "train.sh", "--output", "out", "--json")
    (copy,) = (shell.work / "out").glob("*.sh")
    assert copy.read_bytes().endswith(b"echo " + LATIN_1 + b"\n"), done.stderr


def test_a_configuration_file_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(CannotEdit, match="not UTF-8"):
        language_of(TemplateFile("conf.yaml", "a: caf\udce9\n"))


def test_an_incident_comes_back_with_every_byte_of_its_texts() -> None:
    incident = replace(recovered(), notes=("a \udce9 b", "\ud800", "\N{PILE OF POO}"), conclusion="\udcff")
    data = dump_incident(incident)
    assert load_incident(data) == incident
    assert dump_incident(load_incident(data)) == data
    assert "\ufffd" in masked_document(data).decode() and b"udce9" not in masked_document(data)


def test_the_list_tells_of_an_incident_with_such_texts(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(replace(recovered(), conclusion="a \udce9 b"))
    (row,) = ReadModel(store).rows()
    assert "\udce9" not in repr(row)


@pytest.mark.parametrize("name", ["claim.json", "template.diff"])
def test_a_script_with_the_name_of_a_file_of_ours_lies_beside_it(name: str) -> None:
    incident = replace(just_opened(), templates=(TemplateFile(f"/home/alice/{name}", "#!/bin/sh\n"),))
    assert copy_name(incident) == f"attempts/1/script-{name}"
