"""Single figures of Slurm, host lists, states and file name patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.host_lists import expand_hosts, fold_hosts
from runbook.model.job import JobClass, NodeClass
from runbook.model.units import GIB, MIB
from runbook.slurm import fields as fields
from runbook.slurm.controller import wait_status
from runbook.slurm.job_record import PatternValues, expand_pattern
from runbook.slurm.states import JOB_STATES, job_state, node_class, node_states


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("10:30", 630), ("1:00:00", 3600), ("2-01", 176400), ("2-01:30", 178200),
        ("2-01:30:15", 178215), ("UNLIMITED", None), ("Partition_Limit", None), ("", None), (None, None),
        ("1:2:3:4", None), ("-5", None),
    ],
)  # fmt: skip
def test_durations(text: str | None, seconds: float | None) -> None:
    assert fields.duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:2", 2), ("gres:gpu:2", 2), ("gres/gpu=8", 8), ("gpu:a100:4(S:0-1)", 4), ("gpu", 1),
        ("gres:gpu:h100:8(IDX:0-3,5-7)", 8), ("cpu=4,gres/gpu=4,mem=2G", 4), ("gres/gpu:h100=40,gres/gpu=40", 40),
        ("gpu:h100:4,gpu:a100:2", 6), ("cpu=4,mem=2G", None), ("N/A", None), ("(null)", None), ("", None),
        ("mps:100", None),
    ],
)  # fmt: skip
def test_gpu_counts(text: str, count: int | None) -> None:
    assert fields.gpu_count(text) == count


def test_the_gpus_of_an_allocation_outrank_those_of_a_request() -> None:
    """`--gpus-per-node=1 --gres=gpu:2`: one request in two entries, of which Slurm took the second (24.11, 25.11)."""
    assert fields.per_node_gpus("gres/gpu:1,gres/gpu:2", "cpu=4,gres/gpu=4,mem=2G", 2) == 2
    assert fields.per_node_gpus("gres:gpu:2", "", 2) == 2
    assert fields.per_node_gpus("gres:gpu:2", "cpu=4,gres/gpu=3", 2) == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 64 * GIB), ("1000", 1000 * MIB), ("1.50T", 1536 * GIB), ("0", None), ("4Gc", None), ("", None)],
)
def test_memory(text: str, size: int | None) -> None:
    assert fields.memory_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "found"),
    [("2816", (11, 0)), ("15", (0, 15)), ("9", (0, 9)), ("36608", (143, 0)), ("1:0", (1, 0)), ("", (None, None))],
)
def test_exit_codes_of_the_queue(text: str, found: tuple[int | None, int | None]) -> None:
    assert wait_status(text) == found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-[21-23,30]", ("gpu-21", "gpu-22", "gpu-23", "gpu-30")),
        ("gpu-[009-011]", ("gpu-009", "gpu-010", "gpu-011")),
        ("z1,a[1-2]", ("z1", "a1", "a2")),
        ("(null)", ()),
        ("None assigned", ()),
        ("", ()),
        ("@all", ()),
        ("n[1-999999999]", ()),
        ("gpu-[21", ()),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names


def test_host_lists_fold() -> None:
    assert fold_hosts(expand_hosts("gpu-22,gpu-21,gpu-30")) == "gpu-[21-22,30]"


@pytest.mark.parametrize(
    ("text", "name", "job_class", "flags"),
    [
        ("FAILED", "FAILED", JobClass.FAILED, ()),
        ("CANCELLED by 1000", "CANCELLED", JobClass.CANCELLED, ()),
        ("RUNNING,COMPLETING", "RUNNING", JobClass.ACTIVE, ("COMPLETING",)),
        ("COMPLETING", "RUNNING", JobClass.ACTIVE, ("COMPLETING",)),
        (["PREEMPTED", "REQUEUED"], "PREEMPTED", JobClass.STOPPED, ("REQUEUED",)),
        ("REQUEUE_HOLD", "PENDING", JobClass.WAITING, ("REQUEUE_HOLD",)),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", JobClass.FAILED, ()),
        ("HIBERNATING", "HIBERNATING", JobClass.UNKNOWN, ()),
        ("", "UNKNOWN", JobClass.UNKNOWN, ()),
    ],
)
def test_job_states(text: str | list[str], name: str, job_class: JobClass, flags: tuple[str, ...]) -> None:
    state = job_state(text)
    assert (state.name, state.job_class, state.flags) == (name, job_class, flags)


def test_every_state_has_a_class_that_says_whether_it_is_over() -> None:
    over = {name for name, job_class in JOB_STATES.items() if job_class.ended}
    assert over == set(JOB_STATES) - {"PENDING", "RUNNING", "SUSPENDED"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("idle", NodeClass.AVAILABLE),
        ("IDLE+DYNAMIC_NORM", NodeClass.AVAILABLE),
        ("mixed", NodeClass.BUSY),
        ("idle+drain", NodeClass.DRAINED),
        ("DOWN*+DRAIN", NodeClass.DRAINED),
        ("idle+not_responding", NodeClass.DOWN),
        ("mixed*", NodeClass.DOWN),
        ("idle~", NodeClass.AVAILABLE),
        ("IDLE+POWERED_DOWN", NodeClass.DOWN),
        ("IDLE+SULKING", NodeClass.UNKNOWN),
        ("unknown", NodeClass.UNKNOWN),
        ("", NodeClass.UNKNOWN),
    ],
)
def test_node_states(text: str, expected: NodeClass) -> None:
    assert node_class(node_states(text)) is expected


VALUES = PatternValues("117", "llm pre", "alice", "gpu-21.example.org", "115", "4", 2)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("%x-%j.out", "llm pre-117.out"),
        ("%A_%a.out", "115_4.out"),
        ("%6j-%3a", "000117-004"),
        ("%u/%N/%n-%t-%r", "alice/gpu-21/0-0-2"),
        ("100%%-%j", "100%-117"),
        ("%b", "4"),
        ("plain\\%j", "plain%j"),
        ("%Z-%j", "%Z-117"),
    ],
)
def test_file_name_patterns(pattern: str, path: str) -> None:
    assert expand_pattern(pattern, VALUES) == path


def test_a_pattern_that_needs_what_is_not_known() -> None:
    assert expand_pattern("%N.out", PatternValues("1", "x", "alice")) is None


def test_environments_keep_values_of_several_lines() -> None:
    text = "A=1\nBASH_FUNC_module%%=() {  eval `x`;\n    y=2\n}\nB=x=y\n\n"
    assert fields.variables(text) == {"A": "1", "BASH_FUNC_module%%": "() {  eval `x`;\n    y=2\n}", "B": "x=y"}


@pytest.mark.parametrize(
    ("export", "names"),
    [
        (None, {"A", "B", "PATH"}),
        ("ALL", {"A", "B", "PATH"}),
        ("ALL,C=3", {"A", "B", "C", "PATH"}),
        ("NONE", set()),
        ("A,C=a,b,D=4", {"A", "C", "D"}),
    ],
)
def test_export(export: str | None, names: set[str]) -> None:
    assert set(fields.exported({"A": "1", "B": "2", "PATH": "/bin"}, export)) - {"b"} == names


@given(st.text(max_size=60))
def test_no_text_breaks_a_reader(text: str) -> None:
    fields.duration_s(text)
    fields.gpu_count(text)
    fields.memory_bytes(text)
    fields.resident_bytes(text)
    fields.variables(text)
    wait_status(text)
    expand_hosts(text)
    expand_pattern(text, VALUES)
    job_state(text)
    node_class(node_states(text))
