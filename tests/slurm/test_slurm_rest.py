"""What is read of slurmrestd's answers, as a real one gave them (26.05.5, format v0.0.43; simulated GPUs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runbook.model.job import Dependent, GpuIndices, JobClass, NodeClass
from runbook.model.units import JobId, NodeName
from runbook.slurm import rest

FOLDER = Path(__file__).resolve().parents[1] / "recorded" / "slurm" / "rest-26.05.5-v0.0.43"


def answer(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_a_failed_job() -> None:
    (job,) = rest.read_jobs(answer("slurm_failed"))
    assert (job.id, job.owner, job.uid, job.state.job_class) == ("2", "sb-alice", 77001, JobClass.FAILED)
    assert (job.exit_code, job.signal, job.reason, job.comment) == (3, 0, "NonZeroExitCode", "hello")
    assert job.nodes == ("gpu-21", "gpu-22") and (job.num_nodes, job.num_tasks, job.gpus_per_node) == (2, 4, 2)
    assert (job.memory_limit_bytes_per_node, job.time_limit_s) == (300 << 20, 600.0)
    assert (job.stdout_path, job.stderr_path, job.work_dir) == ("/tmp/out-2-name%x-gpu-21.log", "", "/tmp")
    assert (job.submit_time_s, job.start_time_s, job.end_time_s) == (1795525382.0, 1795525382.0, 1795525384.0)
    (kept,) = rest.read_accounted(answer("slurmdb_failed"))
    assert (kept.submit_line, kept.owner, kept.uid) == ("sbatch --parsable /tmp/f.sh", "sb-alice", None)
    assert (kept.submit_time_s, kept.exit_code, kept.comment) == (1795525382.0, 3, "hello")
    assert [step.id for step in kept.steps][:1] == ["2.batch"] and kept.gpus_per_node == 2


def test_a_running_job_has_its_gpus_by_node_and_no_end() -> None:
    (job,) = rest.read_jobs(answer("slurm_running"))
    assert job.state.job_class is JobClass.ACTIVE
    assert (job.exit_code, job.signal, job.end_time_s) == (None, None, None)
    assert job.gpu_indices == (GpuIndices(NodeName("gpu-21"), (2, 3)), GpuIndices(NodeName("gpu-22"), (2, 3)))


def test_tasks_of_an_array_and_those_that_wait_together() -> None:
    waiting, task = rest.read_jobs(answer("slurm_array"))
    assert (waiting.id, task.id, task.array_job_id) == ("4_[2-3%1]", "4_1", "4")
    assert task.stdout_path == "/tmp/a_4_1.log" and waiting.start_time_s is None
    assert [job.id for job in rest.read_accounted(answer("slurmdb_array"))] == ["4_[0xC]", "4_1"]


def test_who_waits_for_a_job() -> None:
    (job,) = rest.read_jobs(answer("slurm_running"))
    assert rest.read_dependents(answer("slurm_waits"), job) == (Dependent(JobId("5"), "wrap", "afterok"),)


def test_a_node() -> None:
    (node,) = rest.read_nodes(answer("node_gpu-21"))
    assert (node.name, node.node_class, node.reason, node.partitions) == ("gpu-21", NodeClass.BUSY, "", ("gpu",))
    assert (node.gpus, node.gpus_allocated) == (8, 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slurm_failed", ()), ("cancelled", ()),
        ("refused_token", ("Protocol authentication error: Unable to query JobId=2",)),
        ("no_such_job", ("Invalid job id specified: Unable to query JobId=999999",)),
        ("no_such_node", ("No error: Failure to query node nosuch",)),
        ("cancel_denied", ("Access/permission denied",)),
        ("cancel_ended", ("Job/step already completing or completed",)),
    ],
)
def test_a_no_is_heard_whatever_its_status_was(name: str, words: tuple[str, ...]) -> None:
    assert rest.complaints_of(answer(name)) == words


@pytest.mark.parametrize(
    ("told", "number"),
    [
        ({"set": True, "infinite": False, "number": 3}, 3), ({"set": False, "infinite": False, "number": 3}, None),
        ({"set": True, "infinite": True, "number": 0}, None), (7, 7), (True, None), ("7", None), (None, None),
    ],
)
def test_a_figure_that_is_not_set_is_not_told(told: object, number: int | None) -> None:
    assert rest.figure(told) == number


def test_strange_answers_name_nobody() -> None:
    """Of nothing comes no owner, no number of a user, no state that decides anything."""
    nothing: tuple[dict[str, Any], ...] = ({}, {"jobs": None}, {"jobs": "x"}, {"jobs": [7, None, []]})
    for strange in nothing:
        assert rest.read_jobs(strange) == rest.read_accounted(strange) == ()
    for job in (*rest.read_jobs({"jobs": [{}]}), *rest.read_accounted({"jobs": [{"state": 3, "time": []}]})):
        assert (job.id, job.owner, job.uid, job.state.job_class) == ("", "", None, JobClass.UNKNOWN)
