"""In which folder a script was started is not known of files alone: those above it are tried."""

from __future__ import annotations

from dataclasses import replace

from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.template import SubmitContext, TemplateFile
from runbook.model.units import JobId, UserName
from runbook.steps.shared.companion_files import read_companions
from tests.contract.fakes import FakeFiles

JOB = JobRecord(
    JobId("1"), "files", "job", UserName("alice"), JobState("FAILED", JobClass.FAILED), work_dir="/repo/scripts/v1"
)
SCRIPT = TemplateFile("run.sh", "#!/bin/bash\ndeepspeed train.py --deepspeed ./scripts/zero3.json\n")


def _read(there: dict[str, bytes], job: JobRecord = JOB, script: TemplateFile = SCRIPT) -> tuple[list[str], list[str]]:
    found, unread = read_companions(FakeFiles(there), job, script, SubmitContext())
    return [item.source for item in found], list(unread)


def test_the_root_of_the_repository_is_found_by_the_file_that_lies_below_it() -> None:
    there = {"/repo/scripts/zero3.json": b"{}", "/repo/scripts/v1/run.sh": b""}
    assert _read(there) == (["/repo/scripts/zero3.json"], [])


def test_a_scheduler_knows_where_the_job_started_and_no_other_folder_is_tried() -> None:
    there = {"/repo/scripts/zero3.json": b"{}", "/repo/scripts/v1/run.sh": b""}
    found, unread = _read(there, replace(JOB, submit_time_s=5e9))
    assert not found and "no such folder" in unread[0]


def test_two_files_that_differ_are_both_named() -> None:
    there = {
        "/repo/scripts/zero3.json": b"{}", "/repo/scripts/v1/scripts/zero3.json": b'{"zero_optimization": {}}',
        "/repo/scripts/v1/run.sh": b"",
    }
    found, unread = _read(there)
    assert not found
    assert "/repo/scripts/v1/scripts/zero3.json or /repo/scripts/zero3.json" in unread[0]


def test_another_file_of_the_job_tells_the_folder() -> None:
    there = {
        "/repo/train.py": b"", "/repo/scripts/zero3.json": b"{}",
        "/repo/scripts/v1/scripts/zero3.json": b'{"zero_optimization": {}}', "/repo/scripts/v1/run.sh": b"",
    }
    text = "#!/bin/bash\ncd ../..\npython train.py --config scripts/zero3.json\n"
    assert _read(there, script=TemplateFile("run.sh", text))[0] == ["/repo/scripts/zero3.json", "/repo/train.py"]


def test_a_relative_cd_is_followed_for_a_job_of_a_scheduler_too() -> None:
    there = {"/repo/scripts/zero3.json": b"{}", "/repo/scripts/v1/run.sh": b""}
    text = "#!/bin/bash\ncd ../..\ndeepspeed train.py --deepspeed ./scripts/zero3.json\n"
    script = TemplateFile("run.sh", text)
    assert _read(there, replace(JOB, submit_time_s=5e9), script)[0] == ["/repo/scripts/zero3.json"]
