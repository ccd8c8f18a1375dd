"""A leaked process is ended only where two looks agree and nothing speaks against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.diagnosis.nodes import LeakContext, end_refused, second_look_refused
from runbook.model.job import NodeClass, NodeState
from runbook.model.node import GpuProcess
from runbook.model.units import GIB, Bytes, JobId, NodeName, Unknown, UserName

UNKNOWN = Unknown("not read")
LEAKED = GpuProcess(
    88, Bytes(20 * GIB), "python", UserName("bob"), JobId("99"), 9000.0, start_ticks=123,
    cgroup="0::/system.slice/slurmstepd.scope/job_99/step_0/user/task_0",
)
IDLE = LeakContext(
    True, frozenset(), NodeState(NodeName("gpu-21"), NodeClass.AVAILABLE, ("IDLE",), gpus=8, gpus_allocated=0)
)


@pytest.mark.parametrize("cgroup", [
    "0::/system.slice/slurmstepd.scope/job_99/step_0/user/task_0", "0::/gpu-21_slurmstepd.scope/job_99/step_batch",
    "4:memory:/slurm/uid_1000/job_99/step_12/task_1",
])
def test_a_process_of_a_step_of_an_ended_job_on_an_idle_node(cgroup: str) -> None:
    assert end_refused(replace(LEAKED, cgroup=cgroup), IDLE) == ()


@pytest.mark.parametrize(("change", "words"), [
    ({"owner": UserName("root")}, "root"),
    ({"owner": UNKNOWN}, "not known"),
    ({"start_ticks": UNKNOWN}, "start time"),
    ({"cgroup": UNKNOWN}, "cgroup"),
    ({"cgroup": "0::/user.slice/user-1000.slice/session-4.scope"}, "cgroup"),
    ({"cgroup": "0::/system.slice/slurmstepd.scope/job_99/step_extern/user"}, "cgroup"),
    ({"cgroup": "0::/system.slice/docker-abc.scope"}, "cgroup"),
    ({"cgroup": "0::/user.slice/user-1000.slice/user@1000.service/job_99/step_0"}, "cgroup"),
    ({"cgroup": "0::/system.slice/slurmstepd.scope/job_100/step_0"}, "different jobs"),
    ({"job": None}, "not known"),
    ({"job": UNKNOWN}, "not known"),
    ({"job": JobId("90_9")}, "different jobs"),
])
def test_a_doubt_about_the_process_refuses(change: dict[str, Any], words: str) -> None:
    assert any(words in reason for reason in end_refused(replace(LEAKED, **change), IDLE))


@pytest.mark.parametrize(("change", "words"), [
    ({"allowed": False}, "inventory"),
    ({"live_jobs": None}, "not known"),
    ({"live_jobs": frozenset({JobId("99")})}, "still runs"),
    ({"node_state": None}, "not known"),
    ({"partial_view": "the check ran inside a container"}, "container"),
])
def test_a_doubt_about_the_surroundings_refuses(change: dict[str, Any], words: str) -> None:
    assert any(words in reason for reason in end_refused(LEAKED, replace(IDLE, **change)))


@pytest.mark.parametrize("words", [
    ("MIXED",), ("ALLOCATED",), ("IDLE", "COMPLETING"), ("DOWN", "DRAIN"), ("MIXED", "DRAIN"), ("UNKNOWN",), (),
])
def test_a_node_that_is_not_known_to_be_empty_refuses(words: tuple[str, ...]) -> None:
    state = NodeState(NodeName("gpu-21"), NodeClass.UNKNOWN, words)
    assert end_refused(LEAKED, replace(IDLE, node_state=state))


@pytest.mark.parametrize("words", [("IDLE",), ("IDLE", "DRAIN"), ("DRAINED",)])
def test_an_empty_node_may_be_drained(words: tuple[str, ...]) -> None:
    state = NodeState(NodeName("gpu-21"), NodeClass.DRAINED, words)
    assert end_refused(LEAKED, replace(IDLE, node_state=state)) == ()


def test_gpus_that_are_allocated_refuse() -> None:
    state = NodeState(NodeName("gpu-21"), NodeClass.AVAILABLE, ("IDLE",), gpus=8, gpus_allocated=1)
    assert end_refused(LEAKED, replace(IDLE, node_state=state))


def test_the_second_look_confirms_the_same_process() -> None:
    assert second_look_refused(LEAKED, replace(LEAKED, age_s=9010.0, used_bytes=Bytes(GIB)), 10.0) == ()


@pytest.mark.parametrize(("second", "seconds"), [
    (None, 20.0), (LEAKED, 9.0), (replace(LEAKED, start_ticks=124), 20.0),
    (replace(LEAKED, owner=UserName("eve")), 20.0),
    (replace(LEAKED, start_ticks=UNKNOWN), 20.0), (replace(LEAKED, cgroup=UNKNOWN), 20.0),
    (replace(LEAKED, job=JobId("100")), 20.0),
])
def test_the_second_look_refuses_another_process(second: GpuProcess | None, seconds: float) -> None:
    assert second_look_refused(LEAKED, second, seconds)


def test_two_looks_that_know_nothing_of_the_start_confirm_nothing() -> None:
    blind = replace(LEAKED, start_ticks=UNKNOWN)
    assert second_look_refused(blind, blind, 20.0)
