"""What must hold of every diagnosis, whatever the figures; and the edges of single rules."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.diagnosis import LOCAL_PROCESSES, diagnose
from runbook.diagnosis.case import allocator_settings, figures_of, print_error
from runbook.model.diagnosis import Diagnosis
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory, MemoryFields, MemorySample, ProcessUse, Progress
from runbook.model.node import GpuFacts, GpuProcess, NodeFacts, NodeJudgement, NodeVerdict, Reach
from runbook.model.units import GIB, MIB, Bytes, JobId, NodeName, UserName
from runbook.report.contract import to_contract
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import MEANINGS, Kind

sizes = st.integers(0, 200 * GIB).map(Bytes)
maybe = st.one_of(st.none(), sizes)
fields_of_messages = st.builds(
    MemoryFields, tried_bytes=sizes, capacity_bytes=sizes, free_bytes=sizes, allocated_bytes=sizes,
    reserved_unallocated_bytes=sizes, process_bytes=maybe, limit_bytes=maybe, private_pool_bytes=maybe,
    other_processes=st.lists(st.builds(ProcessUse, st.integers(1, 9), maybe), max_size=4).map(tuple),
)


def story(fields: MemoryFields, **progress: int | None) -> LogStory:
    root = Finding(
        "PT-CUDA-07", Kind.TRUE_OOM, "train.out", 0, 1, "…", rank=3, node=NodeName("gpu-22"), fields=fields,
        framework_version="2.6.0",
    )
    return LogStory(root, progress=Progress(**progress), world_size=8)  # type: ignore[arg-type]


def message(tried: int, free: int, allocated: int, unallocated: int) -> MemoryFields:
    """A card that holds this process alone, with a context of 1 GiB."""
    process = allocated + unallocated + GIB
    return MemoryFields(
        tried_bytes=Bytes(tried), capacity_bytes=Bytes(process + free), free_bytes=Bytes(free),
        allocated_bytes=Bytes(allocated), reserved_unallocated_bytes=Bytes(unallocated), process_bytes=Bytes(process),
    )


def kind(diagnosis: Diagnosis) -> str:
    return diagnosis.best.kind


@pytest.mark.parametrize(
    ("processes", "others", "own"),
    [(4, (9.7, 10.1, 9.8), True), (2, (9.9,), True), (1, (9.9,), False), (4, (38.0,), False), (2, (9.7, 10.1), False)],
)
def test_processes_of_like_size_are_the_jobs_own_where_it_starts_as_many(
    processes: int, others: tuple[float, ...], own: bool
) -> None:
    held = tuple(ProcessUse(100 + at, Bytes(int(one * GIB))) for at, one in enumerate(others))
    fields = MemoryFields(
        tried_bytes=Bytes(GIB), capacity_bytes=Bytes(int((sum(others) + 10) * GIB)), free_bytes=Bytes(100 * MIB),
        allocated_bytes=Bytes(8 * GIB), reserved_unallocated_bytes=Bytes(400 * MIB), process_bytes=Bytes(9 * GIB),
        other_processes=held,
    )
    found = diagnose(story(fields), job=None, meanings=MEANINGS, settings={LOCAL_PROCESSES: str(processes)})
    assert (kind(found) == Kind.CUDA_CONTEXT_OR_DRIVER) is own


def test_a_process_that_is_known_to_be_no_rank_is_a_stranger_whatever_its_size() -> None:
    fields = MemoryFields(
        tried_bytes=Bytes(GIB), capacity_bytes=Bytes(80 * GIB), free_bytes=Bytes(100 * MIB),
        allocated_bytes=Bytes(37 * GIB), reserved_unallocated_bytes=Bytes(400 * MIB), process_bytes=Bytes(38 * GIB),
        other_processes=(ProcessUse(99_999, Bytes(37 * GIB)),),
    )
    named = replace(story(fields), rank_pids={rank: 4_000 + rank for rank in range(8)})
    settings = {LOCAL_PROCESSES: "8"}
    assert kind(diagnose(named, job=None, meanings=MEANINGS, settings=settings)) == Kind.CO_TENANT
    unnamed = diagnose(story(fields), job=None, meanings=MEANINGS, settings=settings)
    assert kind(unnamed) == Kind.CUDA_CONTEXT_OR_DRIVER


@pytest.mark.parametrize(("processes", "own"), [(1, False), (2, True)])
def test_what_an_older_message_leaves_unexplained_is_a_second_process_of_like_size(processes: int, own: bool) -> None:
    fields = MemoryFields(
        tried_bytes=Bytes(2 * GIB), capacity_bytes=Bytes(48 * GIB), free_bytes=Bytes(GIB),
        allocated_bytes=Bytes(22 * GIB), reserved_bytes=Bytes(23 * GIB),
    )
    found = diagnose(story(fields), job=None, meanings=MEANINGS, settings={LOCAL_PROCESSES: str(processes)})
    assert (kind(found) == Kind.CUDA_CONTEXT_OR_DRIVER) is own


@given(fields_of_messages)
def test_every_diagnosis_keeps_its_promises(fields: MemoryFields) -> None:
    diagnosis = diagnose(story(fields, last_step=10, first_step=1), meanings=MEANINGS, job=None)
    every = (diagnosis.best, *diagnosis.runners_up)
    assert all(0.0 <= one.confidence <= 1.0 for one in every)
    assert sum(one.confidence for one in every) <= 1.0 + 1e-9
    assert len({one.kind for one in every}) == len(every)
    assert diagnosis.best.reasons
    assert diagnosis.rules
    json.dumps(to_contract(story(fields), diagnosis))


@given(fields_of_messages)
def test_fragmentation_is_never_claimed_where_nothing_could_have_fitted(fields: MemoryFields) -> None:
    """R-04, the strongest rule: free plus unallocated below the request."""
    diagnosis = diagnose(story(fields, last_step=10, first_step=1), meanings=MEANINGS, job=None)
    figures = figures_of(fields)
    assert figures.available_bytes is not None
    assert figures.tried is not None
    if figures.available_bytes < figures.tried - figures.available_error_bytes - print_error(figures.tried):
        assert all(one.kind != Kind.FRAGMENTATION for one in (diagnosis.best, *diagnosis.runners_up))


@given(fields_of_messages)
def test_expandable_segments_never_raise_fragmentation(fields: MemoryFields) -> None:
    def share(settings: dict[str, str]) -> float:
        diagnosis = diagnose(story(fields, last_step=10, first_step=1), meanings=MEANINGS, job=None, settings=settings)
        every = (diagnosis.best, *diagnosis.runners_up)
        return next((one.confidence for one in every if one.kind == Kind.FRAGMENTATION), 0.0)

    on = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    off = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"}
    assert share(on) <= max(share(off), 0.15)


def test_the_edge_of_r04_is_the_rounding_of_the_message() -> None:
    """2.00 GiB tried; 1.00 GiB free and 0.99 to 1.01 GiB unallocated: between them nothing can be decided."""
    below = message(2 * GIB, GIB, 70 * GIB, int(0.97 * GIB))
    at = message(2 * GIB, GIB, 70 * GIB, GIB)
    above = message(2 * GIB, GIB, 60 * GIB, 9 * GIB)
    progress = {"last_step": 500, "first_step": 1}
    assert diagnose(story(below, **progress), meanings=MEANINGS, job=None).best.confidence >= 0.9
    assert kind(diagnose(story(below, **progress), meanings=MEANINGS, job=None)) == Kind.TRUE_OOM
    undecided = diagnose(story(at, **progress), meanings=MEANINGS, job=None)
    assert undecided.best.confidence < 0.9
    assert kind(diagnose(story(above, **progress), meanings=MEANINGS, job=None)) == Kind.FRAGMENTATION


@pytest.mark.parametrize(
    ("settings", "version", "expandable", "ignored"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "2.6.0", True, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}, None, True, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "2.6.0", False, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "2.8.0", False, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "2.9.1", False, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "2.10.0", True, False),
        ({"allocator_newer": "expandable_segments:True"}, "2.10.0", True, False),
        ({"allocator_cuda": "expandable_segments:True"}, "2.4-2.9", True, False),
        ({"micro_batch_size": "expandable_segments:True"}, "2.6.0", False, False),
    ],
)
def test_allocator_variables_count_by_version(
    settings: dict[str, str], version: str | None, expandable: bool, ignored: bool
) -> None:
    found = allocator_settings(settings, version)
    assert found.expandable is expandable
    assert bool(found.ignored) is ignored


@pytest.mark.parametrize(
    ("said", "settings", "version", "expandable", "ignored"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {}, None, True, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
         {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "2.6.0", False, False),
        ({"expandable segments mode": ""}, {}, "2.6.0", True, False),
        ({"expandable_segments not supported": ""}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, None,
         False, True),
        ({"PYTORCH_CUDA_ALLOC_CONF is deprecated": ""}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
         "2.9.1", True, False),
    ],
)
def test_what_the_log_shows_of_the_allocator_outweighs_the_template(
    said: dict[str, str], settings: dict[str, str], version: str | None, expandable: bool, ignored: bool
) -> None:
    found = allocator_settings(settings, version, said)
    assert found.expandable is expandable
    assert bool(found.ignored) is ignored


@given(fields_of_messages, st.sampled_from([None, "verl", "megatron"]))
def test_a_message_alone_never_makes_a_stranger_of_a_process(fields: MemoryFields, framework: str | None) -> None:
    """Without the pids of the job's own processes and without a node check (R-17)."""
    told = replace(story(fields, last_step=10, first_step=1), framework=framework)
    best = diagnose(told, meanings=MEANINGS, job=None).best
    assert best.kind != Kind.CO_TENANT or best.confidence < 0.7


def test_the_failing_process_under_its_hosts_pid_is_no_tenant() -> None:
    """R-17 (a): "this process" is missing, and one process has what PyTorch reserved and a context."""
    fields = replace(
        message(2 * GIB, GIB // 2, 76 * GIB, GIB // 2), process_bytes=None,
        other_processes=(ProcessUse(771234, Bytes(77 * GIB + GIB // 2)),),
    )
    figures = figures_of(fields)
    assert figures.self_pid == 771234
    assert figures.self_certain
    assert kind(diagnose(story(fields), meanings=MEANINGS, job=None)) == Kind.TRUE_OOM


def test_processes_that_the_node_knows_as_the_jobs_own_are_no_tenants() -> None:
    fields = replace(
        message(2 * GIB, GIB // 2, 40 * GIB, GIB // 2), process_bytes=Bytes(42 * GIB),
        other_processes=(ProcessUse(4711, Bytes(37 * GIB)),),
    )
    job = JobRecord(JobId("7"), "c", "n", UserName("ada"), JobState("FAILED", JobClass.FAILED))
    process = GpuProcess(4711, Bytes(37 * GIB), job=JobId("7"))
    facts = NodeFacts(NodeName("gpu-22"), Reach.OK, gpus=(GpuFacts(0, processes=(process,)),))
    assert kind(diagnose(story(fields), meanings=MEANINGS, job=job)) == Kind.CO_TENANT
    assert kind(diagnose(story(fields), meanings=MEANINGS, job=job, facts=[facts])) != Kind.CO_TENANT


@pytest.mark.parametrize("verdict", list(NodeVerdict))
def test_an_unknown_node_is_named_as_missing_and_only_then(verdict: NodeVerdict) -> None:
    fields = message(2 * GIB, GIB // 2, 70 * GIB, GIB // 2)
    judgement = NodeJudgement(NodeName("gpu-22"), verdict, ("why",), missing=("ssh timed out",))
    best = diagnose(story(fields), meanings=MEANINGS, job=None, judgements=[judgement]).best
    named = any("gpu-22" in one and "ssh timed out" in one for one in map(in_words, best.missing))
    assert named is (verdict is NodeVerdict.UNKNOWN)
    assert (best.kind == Kind.HARDWARE_FAULT) is (verdict is NodeVerdict.FAULTY)


def test_a_judgement_on_another_node_does_not_count() -> None:
    fields = message(2 * GIB, GIB // 2, 70 * GIB, GIB // 2)
    judgement = NodeJudgement(NodeName("gpu-99"), NodeVerdict.FAULTY, ("GPU 0: row remap failed",))
    assert kind(diagnose(story(fields), meanings=MEANINGS, job=None, judgements=[judgement])) == Kind.TRUE_OOM


def test_memory_that_levels_off_is_no_leak() -> None:
    def diagnosed(values: list[int]) -> str:
        samples = tuple(
            MemorySample(3, step, Bytes(10 * value * MIB), None) for step, value in enumerate(values, start=1)
        )
        fields = message(2 * GIB, GIB // 2, 70 * GIB, GIB // 2)
        told = story(fields, last_step=len(values), first_step=1)
        read = LogStory(told.root_cause, progress=Progress(len(values), memory=samples))
        return kind(diagnose(read, meanings=MEANINGS, job=None))

    assert diagnosed([100, *range(200, 720, 40)]) == Kind.MEMORY_LEAK
    assert diagnosed([100, 200, 400, 400, 401, 400, 400]) == Kind.TRUE_OOM
    assert diagnosed([100, 200]) == Kind.TRUE_OOM


def test_the_contract_has_every_field_even_where_nothing_is_known() -> None:
    nothing = LogStory(None)
    said = to_contract(nothing, diagnose(nothing, meanings=MEANINGS, job=None))
    assert list(said) == ["version", "diagnosis", "runners_up", "root_cause", "first_failed", "fields", "collateral"]
    assert said["root_cause"] is None
    fields = said["fields"]
    assert isinstance(fields, dict)
    assert set(fields) == {
        "tried_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes",
        "reserved_bytes", "process_bytes", "limit_bytes", "private_pool_bytes", "other_processes",
    }
    full = story(message(GIB, 0, 70 * GIB, 0))
    root = to_contract(full, diagnose(full, meanings=MEANINGS, job=None))["root_cause"]
    assert isinstance(root, dict)
    assert set(root) == {
        "signature", "rank", "node", "pid", "device", "node_device", "phase", "step", "time", "file", "line", "offset",
        "excerpt",
    }


def checked(judgement: NodeJudgement, *processes: tuple[int, int]) -> Diagnosis:
    """An error of GPU 3 of which 10 GiB were missing, with a node check. `processes`: GPU and pid of 20 GiB each."""
    gpus = tuple(
        GpuFacts(index, processes=tuple(
            GpuProcess(pid, Bytes(20 * GIB), "python", UserName("bob")) for gpu, pid in processes if gpu == index
        ))
        for index in range(8)
    )
    facts = NodeFacts(NodeName("gpu-22"), Reach.OK, gpus=gpus)
    fields = message(12 * GIB, 2 * GIB, 30 * GIB, 0)
    return diagnose(story(fields), meanings=MEANINGS, job=None, judgements=(judgement,), facts=(facts,))


def test_a_tenant_of_the_failing_gpu_explains_the_error_and_one_of_another_does_not() -> None:
    tenants = (GpuProcess(88, Bytes(20 * GIB), "python", UserName("bob")),)
    judgement = NodeJudgement(
        NodeName("gpu-22"), NodeVerdict.OCCUPIED, ("process 88",), tenants=tenants, failing_gpu=3
    )
    assert kind(checked(judgement, (3, 88))) == Kind.CO_TENANT
    assert kind(checked(judgement, (5, 88))) != Kind.CO_TENANT


def test_hidden_memory_of_the_failing_gpu_explains_the_error_where_it_is_enough() -> None:
    def found(hidden: int) -> str:
        return kind(checked(NodeJudgement(
            NodeName("gpu-22"), NodeVerdict.OCCUPIED, ("hidden memory",), hidden_bytes=Bytes(hidden), failing_gpu=3
        )))

    assert found(30 * GIB) == Kind.CO_TENANT
    assert found(2 * GIB) != Kind.CO_TENANT


def test_a_fault_of_another_gpu_does_not_explain_the_error_of_this_one() -> None:
    def found(faulty: tuple[int, ...]) -> str:
        return kind(checked(NodeJudgement(
            NodeName("gpu-22"), NodeVerdict.FAULTY, ("remapping failed",), faulty_gpus=faulty, drain=True, failing_gpu=3
        )))

    assert found((3,)) == Kind.HARDWARE_FAULT
    assert found((3, 6)) == Kind.HARDWARE_FAULT
    assert found(()) == Kind.HARDWARE_FAULT
    assert found((6,)) != Kind.HARDWARE_FAULT
