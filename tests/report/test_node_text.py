"""What `runbook node` prints, at every width and whatever a node says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.diagnosis.nodes import NodePolicy, SchedulerView, judge_node_alone
from runbook.locations import data_folder
from runbook.model.catalogues import XidCatalogue, XidClass
from runbook.model.job import NodeClass, NodeState
from runbook.model.node import (
    CheckedNode,
    DaemonProcess,
    FoundJob,
    GpuFacts,
    GpuProcess,
    JobMemory,
    JobStanding,
    NodeAction,
    NodeCheck,
    NodeFacts,
    NodeFinding,
    OomKill,
    Reach,
    XidEvent,
    XidWords,
)
from runbook.model.node_rules import NodeDocuments
from runbook.model.units import GIB, Bytes, JobId, NodeName, Unknown, UserName
from runbook.node.catalogues import load_node_rules
from runbook.report.text import cell_count
from runbook.report.text.incident_text import render_text
from runbook.report.text.node_text import render
from tests.report.sample_incidents import hardware_fault
from tests.report.test_report_page import page_of, words

RULES = load_node_rules(data_folder("playbooks") / "oom" / "node_rules.yaml")
DOCUMENTS = NodeDocuments(RULES, XidCatalogue())
HOSTILE = "\x1b[2J\u202e\x07name\nwith\ta line " + "x" * 300
WIDTHS = (60, 80, 100, 160)


def gpu(index: int, **changes: object) -> GpuFacts:
    healthy = GpuFacts(
        index, f"GPU-{index}", f"0000:1{index}:00", "NVIDIA H100 80GB HBM3", Bytes(80 * GIB), Bytes(0), Bytes(79 * GIB),
        0, 0, False, False, False, "None", False, False, (),
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def checked(*gpus: GpuFacts, state: NodeState | None = None, **changes: object) -> CheckedNode:
    facts = NodeFacts(
        NodeName("gpu-21"), Reach.OK, "answered as root", 5000.0, "570", gpus, xids=(), log_covers_since_s=0.0,
    )
    facts = replace(facts, **changes)  # type: ignore[arg-type]
    return CheckedNode(facts, judge_node_alone(
        facts, DOCUMENTS, NodePolicy(), since_s=None, scheduler=SchedulerView(live_jobs=frozenset())
    ), state)


def check_of(nodes: tuple[CheckedNode, ...], checked_at_s: float, **more: Any) -> NodeCheck:
    return NodeCheck(nodes, checked_at_s, reports=RULES.reports_by_rule, **more)


def text_of(check: NodeCheck, width: int = 100) -> str:
    return "\n".join(line.text for line in render(check, width))


def held(pid: int, job: str | None, **changes: object) -> GpuProcess:
    process = GpuProcess(
        pid, Bytes(20 * GIB), "python3", UserName("alice"), None if job is None else JobId(job), 3700.0
    )
    return replace(process, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_neither_moves_the_cursor_nor_breaks_a_line(width: int) -> None:
    process = held(7, None, name=HOSTILE, owner=UserName(HOSTILE))
    node = checked(
        gpu(0, name=HOSTILE, used_bytes=Bytes(20 * GIB), processes=(process,)), reach_detail=HOSTILE,
        xids=(XidEvent(9999, 10.0, HOSTILE, HOSTILE),), oom_kills=(OomKill(9, 1.0, HOSTILE),),
        mps=(DaemonProcess(4, HOSTILE),),
        state=NodeState(NodeName("gpu-21"), NodeClass.DRAINED, ("IDLE", "DRAIN"), HOSTILE),
    )
    lines = render(check_of((node,), 0.0), width)
    for line in lines:
        assert line.text.isprintable(), line
        longest_word = max(map(cell_count, line.text.split()), default=0)
        assert cell_count(line.text) <= width or longest_word > width - 30, line


@pytest.mark.parametrize(("standing", "words"), [
    (JobStanding.LIVE, "4711, runs"), (JobStanding.ENDED, "4711, ended"), (JobStanding.FORGOTTEN, "4711, long ended"),
    (JobStanding.UNKNOWN, "4711, runs?"),
])
def test_a_process_is_told_with_its_owner_age_and_what_its_job_does(standing: JobStanding, words: str) -> None:
    node = checked(gpu(0, used_bytes=Bytes(20 * GIB), processes=(held(7, "4711"),)), gpu(1), gpu(2), gpu(4))
    shown = text_of(check_of((node,), 0.0, jobs=(FoundJob(JobId("4711"), standing),)))
    (row,) = [line for line in shown.split("\n") if line.endswith("python3")]
    assert row.split()[:6] == ["0", "7", "20.00", "GiB", "alice", "1"] and words in row
    assert "GPUs 1-2, 4: NVIDIA H100 80GB HBM3, 80.00 GiB each; nothing found, no process on them" in shown


def test_main_memory_is_told_of_the_job_that_is_meant_and_of_those_at_their_limit() -> None:
    rows = (
        JobMemory(JobId("1"), Bytes(GIB), Bytes(0), Bytes(0), 0), JobMemory(JobId("2"), None, Bytes(0), Bytes(0), 0),
        JobMemory(JobId("3"), Bytes(GIB), Bytes(0), Bytes(GIB), 0), JobMemory(JobId("4"), None, Bytes(0), Bytes(0), 2),
    )
    shown = text_of(check_of((checked(gpu(0), job_memory=rows),), 0.0, job=JobId("1")))
    assert [number for number in "1234" if f"job {number}: " in shown] == ["1", "3", "4"]
    assert "the kernel killed 2 of its processes" in " ".join(shown.split())


def test_kills_outside_the_window_are_shown_only_where_there_is_none() -> None:
    kills = (
        OomKill(8, 1.0, "old", JobId("3"), False, in_window=False), OomKill(9, 2.0, "new", None, True, in_window=True),
    )
    node = checked(gpu(0), oom_kills=kills)
    windowed = text_of(check_of((node,), 0.0, job=JobId("1"), since_s=1.5))
    assert "process 9 (new) of no Slurm job: the node's main memory was used up" in windowed and "old" not in windowed
    assert "process 8 (old) of job 3: the limit of its cgroup" in text_of(check_of((node,), 0.0))


def test_an_event_has_the_class_of_its_code() -> None:
    event = XidEvent(79, 10.0, "0000:10:00", "NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.", count=3)
    check = check_of((checked(gpu(0), xids=(event,)),), 0.0, xids={79: XidWords(XidClass.DRAIN, "off the bus")})
    (row,) = [line for line in text_of(check).split("\n") if "79 x3" in line]
    assert row.split() == ["0", "79", "x3", "1970-01-01", "00:00:10", "hardware", "off", "the", "bus"]


def test_a_gpu_of_which_nothing_is_known_is_not_among_the_sound_ones() -> None:
    why = Unknown("hung")
    blind = gpu(1, row_remap_failed=why, row_remap_pending=why, recovery_action=why, processes=why)
    shown = text_of(check_of((checked(gpu(0), blind),), 0.0))
    assert "GPU 0: NVIDIA" in shown and "its state is NOT KNOWN" in shown


def test_the_command_to_copy_stands_whole_on_its_line_and_is_safe_in_a_shell() -> None:
    node = checked(gpu(0))
    finding = NodeFinding("x", NodeAction.DRAIN, "it's `broken` $(now) " + "y" * 60)
    judgement = replace(node.judgement, drain=True, findings=(finding,), action=NodeAction.DRAIN)
    shown = text_of(check_of((replace(node, judgement=judgement),), 0.0), 60)
    (line,) = [line for line in shown.split("\n") if "scontrol" in line]
    assert line.endswith("""Reason='it'"'"'s `broken` $(now) """ + "y" * 60 + "'")


def test_the_incidents_report_names_who_was_killed_in_the_jobs_time() -> None:
    incident = hardware_fault()
    assert incident.failure is not None
    kills = (
        OomKill(8, 1.0, "earlier", JobId("3"), False, in_window=False),
        OomKill(9, 2.0, "pt_data_<b>", JobId("884213"), False, in_window=True),
    )
    nodes = tuple(replace(facts, oom_kills=kills) for facts in incident.failure.nodes)
    told = replace(incident, failure=replace(incident.failure, nodes=nodes))
    text = render_text(told)
    assert "process 9 (pt_data_<b>) of job 884213: the limit of its cgroup" in " ".join(text.split())
    assert "process 9 (pt_data_<b>) of job 884213: the limit of its cgroup" in words(page_of(told))
    assert "earlier" not in text
