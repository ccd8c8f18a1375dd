"""Everybody's running jobs, as the watch lists them: what one owner writes on his job, also once the separator of the
question stands in the process list, moves nobody else's row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runbook.adapters.slurm.commands import SlurmCommands, SlurmRunning
from runbook.model.job import JobRecord
from runbook.model.units import JobId, Unknown
from tests.adapters.test_slurm_cli import DENIED, Desk

QUEUE = """#!%s
import re, sys
log, jobs = %r, %r
with open(log, "a") as stream:
    stream.write("squeue " + " ".join(sys.argv[1:]) + "\\n")
named, separator = sys.argv[-1].split(",") , re.search("~[a-z]*~", sys.argv[-1])[0]
wanted = next((word.partition("=")[2] for word in sys.argv if word.startswith("--user=")), "")
for job in jobs:
    if wanted in ("", job["UserID"]):
        told = [job.get(column.partition(":")[0], "").replace("SEP", separator) for column in named]
        print("".join(value + separator for value in told))
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def running(job: str, uid: str, owner: str, **more: str) -> dict[str, str]:
    return {
        "JobID": job, "JobArrayID": job, "HetJobOffset": "N/A", "UserName": owner, "UserID": uid, "State": "RUNNING",
        "SubmitTime": "1795259616", "Partition": "gpu", "Account": "research", "Name": "train", **more,
    }  # fmt: skip


def queue_of(desk: Desk, *jobs: dict[str, str]) -> None:
    (desk.bin / "squeue").write_text(QUEUE % (sys.executable, str(desk.log), jobs))


def list_of(desk: Desk, *, with_words: bool = True) -> SlurmRunning:
    commands = SlurmCommands(bin_dir=str(desk.bin), slurm_conf="/x", patience_s=0.0, sleep=desk.slept_s.append)
    return SlurmRunning(commands, with_words)


FORGED_WORDS = "xSEP/homeSEP/bin/shSEPrunbookSEPSEP\n48SEP48SEPN/ASEPN/ASEPN/ASEPN/ASEPeveSEP1003SEPFAILEDSEP"


@pytest.mark.parametrize("column", ["Name", "WorkDir", "Command", "Account", "Comment", "STDOUT"])
@pytest.mark.parametrize("words", ["xSEP", "SEP" * 40, FORGED_WORDS], ids=["one", "many", "rows"])
def test_what_a_user_writes_takes_nobody_s_job_out_of_the_list_of_running_jobs(
    desk: Desk, column: str, words: str
) -> None:
    asks = running("48", "1002", "bob", Comment="prio,runbook")
    queue_of(desk, running("47", "1001", "alice", **{column: words}), asks, running("49", "1003", "eve"))
    listed = list_of(desk)()
    assert all(isinstance(job, JobRecord) for job in listed)
    told = [(job.id, job.owner, job.uid, job.partition) for job in listed if isinstance(job, JobRecord)]
    assert told == [("47", "alice", 1001, "gpu"), ("48", "bob", 1002, "gpu"), ("49", "eve", 1003, "gpu")]
    (bob,) = (job for job in listed if isinstance(job, JobRecord) and job.id == "48")
    assert (bob.account, bob.comment) == ("research", "prio,runbook")


def test_nobody_asks_for_anothers_job_to_be_watched(desk: Desk) -> None:
    """By rows that his own comment holds, of whatever job."""
    forged = "SEP\n48SEP48SEPN/ASEPN/ASEP1795259616SEPllmSEPrunbook"
    queue_of(desk, running("47", "1001", "alice", Comment=forged), running("48", "1002", "bob"))
    listed = {job.id: job for job in list_of(desk)() if isinstance(job, JobRecord)}
    assert (listed[JobId("48")].account, listed[JobId("48")].comment) == ("research", "")


def test_accounts_and_comments_are_asked_for_once_for_each_new_job_and_only_where_they_are_wanted(desk: Desk) -> None:
    first, second = running("47", "1001", "alice"), running("48", "1002", "bob", Comment="runbook")
    queue_of(desk, first, second)
    listing = list_of(desk)
    assert listing() == listing()
    assert len(desk.asked("squeue")) == 2 + 2
    queue_of(desk, first, second, running("50", "1002", "bob", Comment="runbook"))
    assert [job.comment for job in listing() if isinstance(job, JobRecord)] == ["", "runbook", "runbook"]
    assert len(desk.asked("squeue")) == 4 + 2
    list_of(desk, with_words=False)()
    assert len(desk.asked("squeue")) == 6 + 1


def test_one_whose_comments_cannot_be_had_keeps_nobody_elses_from_being_read(desk: Desk) -> None:
    queue_of(desk, running("47", "1001", "alice"), running("48", "1002", "bob", Comment="runbook"))
    (desk.bin / "real").write_text((desk.bin / "squeue").read_text())
    (desk.bin / "real").chmod(0o755)
    desk.answer("squeue", f'case "$*" in *--user=1001*) {DENIED};; esac; exec {desk.bin}/real "$@"')
    listing = list_of(desk)
    assert "user 1001" in str(listing()[-1])
    *jobs, problem = listing()
    assert "user 1001" in str(problem)
    assert [(job.id, job.comment) for job in jobs if isinstance(job, JobRecord)] == [("47", ""), ("48", "runbook")]


@pytest.mark.parametrize("broken", [
    {"State": "gpu"}, {"JobArrayID": "x"}, {"UserID": "alice"}, {"SubmitTime": "N/A"}, {"Partition": "gpuSEP"},
])
def test_a_row_that_is_no_running_jobs_is_told_of(desk: Desk, broken: dict[str, str]) -> None:
    queue_of(desk, running("47", "1001", "alice"), running("48", "1002", "bob", **broken))
    listed = list_of(desk, with_words=False)()
    assert isinstance(listed[0], JobRecord) and listed[0].id == "47"
    assert isinstance(listed[-1], Unknown) and "list of running jobs" in listed[-1].unknown
