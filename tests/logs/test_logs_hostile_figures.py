"""Figures that no job has, in the shape of those that jobs print: read as not known, in no more than ordinary time."""

from __future__ import annotations

import io
import json
import time

import pytest

from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.units import JobId, NodeName, UserName
from runbook.report.contract import story_to_contract, to_contract
from runbook.report.text.diagnosis_text import render_diagnosis
from tests.kinds import MEANINGS

READER = LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))
OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Of the allocated memory 74.00 GiB is allocated by PyTorch, and 100.00 MiB "
    "is reserved by PyTorch but unallocated.\n"
)
JOB = JobRecord(
    JobId("1"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED),
    nodes=(NodeName("gpu-21"), NodeName("gpu-22")), num_nodes=2, num_tasks=8, gpus_per_node=4,
)


def told(log: str, job: JobRecord | None = None, path: str = "train.out") -> LogStory:
    """The story, after everything was made of it that is made of one: each of that may fail on a figure."""
    content = log.encode()
    story = READER.read([(path, io.BytesIO(content), len(content))], job=job)
    diagnosis = diagnose(story, meanings=MEANINGS, job=job)
    assert render_diagnosis(story, diagnosis, MEANINGS)
    json.dumps({**to_contract(story, diagnosis), **story_to_contract(story)}, allow_nan=False)
    return story


@pytest.mark.parametrize("world", ["100000000000", "999999998", "3000", "-8", "0"])
def test_a_number_of_ranks_that_no_job_has_is_not_believed(world: str) -> None:
    story = told(f"rank 1 of {world} on node gpu-21 (pid 77)\n" + OOM, JOB)
    assert story.world_size == 8
    assert len(story.rank_nodes) <= 9


def test_a_large_job_is_believed_where_nothing_speaks_against_it() -> None:
    assert told("rank 1 of 100000 on node gpu-21 (pid 77)\n" + OOM).world_size == 100_000


def test_a_line_with_sixteen_million_tasks_costs_no_more_than_a_long_one() -> None:
    started = time.process_time()
    told("srun: error: gpu-21: tasks " + "0-65535," * 240 + "1: Killed\n" + OOM)
    assert time.process_time() - started < 4.0


@pytest.mark.parametrize("stamp", [
    "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31 23:59:59",
])
def test_a_stamp_beyond_the_calendar_is_no_crash(stamp: str) -> None:
    story = told(f"{stamp} {OOM}")
    assert story.root_cause is not None and story.root_cause.rank == 1


@pytest.mark.parametrize("stamp", ["1e300", "99999999999", "-1e18"])
def test_an_error_file_s_stamp_beyond_the_calendar_is_no_crash(stamp: str) -> None:
    message = {"message": {"message": OOM, "extraInfo": {"py_callstack": OOM, "timestamp": stamp}}}
    assert told(json.dumps(message), path="attempt_0/1/error.json").root_cause is not None


@pytest.mark.parametrize("size", ["٣GiB", "1٣GiB", "1.٣MiB"])
def test_digits_of_another_script_are_no_crash(size: str) -> None:
    told(f"RESOURCE_EXHAUSTED: Out of memory allocating {size}\n")


def test_a_duration_without_end_is_not_known() -> None:
    steps = "".join(
        f" [2026-01-01 00:00:{step:02d}] iteration {step:12d}/      100 | consumed samples:  1 | "
        "elapsed time per iteration (ms): 9e999 | learning rate: 1 |\n" for step in range(1, 10)
    )
    duration = told(steps + OOM).progress.step_duration_s
    assert duration is None or duration < 60


@pytest.mark.parametrize(("identity", "piece"), [
    ("KRN-02", "oom_memcg=oom-kill:constraint=CONSTRAINT_MEMCG,"),
    ("KRN-02", ",oom_memcg=a,task_memcg=oom-kill:constraint=CONSTRAINT_MEMCG,"),
    ("KRN-02N", "task_memcg=oom-kill:constraint=CONSTRAINT_NONE,"),
    ("KRN-02M", "task_memcg=oom-kill:constraint=CONSTRAINT_CPUSET,"),
])
def test_the_kernel_s_words_over_and_over_in_one_line_cost_little(identity: str, piece: str) -> None:
    started = time.process_time()
    load_signatures(data_folder("playbooks") / "oom" / "signatures").by_id[identity].match((piece * 1000)[:16_384])
    assert time.process_time() - started < 0.15
