"""The judgement on a node: faulty, occupied, unknown or clean, and what to do, from its facts alone.

Faulty outweighs occupied, occupied outweighs unknown. Clean means that everything which decides was read, the kernel
log reaches back to the job's start, and nothing was found: "no hardware evidence found", not "the hardware is fine".
Only a rule that says drain sets `drain`; what could not be read never does. The rules stand in `nodes_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from runbook.diagnosis.nodes.hardware import STATE_SOURCE, hidden_bytes, memory_signs, state_signs
from runbook.diagnosis.nodes.job_gpus import counted, job_gpus
from runbook.diagnosis.nodes.signs import JobGpus, NodePolicy, Rule, Sign, Weight, moment, sign, weakened
from runbook.diagnosis.nodes.tenants import LeakContext, tenant_signs
from runbook.diagnosis.nodes.xid_signs import without_window, xid_signs
from runbook.model.catalogues import GpuModels, XidCatalogue
from runbook.model.job import JobClass, JobRecord, JobState, NodeState
from runbook.model.node import GpuFacts, NodeAction, NodeFacts, NodeFinding, NodeJudgement, NodeVerdict, Reach
from runbook.model.units import Bytes, JobId, Unknown, UserName

__all__ = ["NodePolicy", "judge_node", "judge_node_alone"]

_STATE_FIGURES = {
    "row_remap_failed": "failed row remapping",
    "row_remap_pending": "pending row remapping",
    "sram_threshold_exceeded": "SRAM threshold",
    "recovery_action": "recovery action",
    "ecc_uncorrectable_volatile": "ECC counters",
}


_MEMORY_STATE = ("row_remap_failed", "row_remap_pending", "recovery_action")
"""At least one of these must have been read before anything is said of a GPU's memory."""

_OCCUPIED_FIRST = (
    NodeAction.WAIT_FOR_TENANT, NodeAction.EXCLUDE, NodeAction.END_LEAKED_PROCESS, NodeAction.REPORT_TO_OWNER,
    NodeAction.RESET_WHEN_IDLE,
)
_CLEAN_FIRST = (NodeAction.RESET_WHEN_IDLE, NodeAction.WATCH)


def judge_node(
    facts: NodeFacts,
    *,
    job: JobRecord,
    oom_device: int | None,
    xids: XidCatalogue,
    policy: NodePolicy | None = None,
    visible_gpus: tuple[int, ...] | None = None,
    live_jobs: frozenset[JobId] | None = None,
    named_pids: frozenset[int] = frozenset(),
    own_pids: frozenset[int] = frozenset(),
    node_device: str | None = None,
    models: GpuModels | None = None,
    node_state: NodeState | None = None,
    spare_nodes: bool | None = None,
) -> NodeJudgement:
    """Judge one node for one failed job.

    `oom_device` is the index of the failing GPU as the job saw it; `visible_gpus` are the node's indexes of the job's
    GPUs in that order, None where not known (then every GPU of the node counts). `live_jobs`: the ids of all jobs
    that have not ended, None where not asked. `named_pids`: processes that the error message lists on the failing GPU;
    `own_pids`: those that the log says are the job's; `node_device`: the failing GPU by the node's own index or UUID,
    where the log tells it, which outweighs `oom_device`. `node_state`: the node as the scheduler sees it now;
    `spare_nodes`: whether the job could run on other nodes, None where not asked."""
    policy = policy or NodePolicy()
    if facts.reach is not Reach.OK:
        return _not_reached(facts)
    if facts.expected_gpus is None and job.gpus_per_node is not None:
        facts = replace(facts, expected_gpus=job.gpus_per_node)
    gpus = job_gpus(facts, job, oom_device, visible_gpus, named_pids, node_device)
    found = state_signs(facts, policy, xids) + memory_signs(facts, policy, models or GpuModels())
    signs = [_in_scope(one, gpus) for one in found]
    signs += xid_signs(facts, job, gpus, xids, policy)
    around = LeakContext(policy.may_end_leaked_processes, live_jobs, node_state, facts.partial_view)
    tenants, others = tenant_signs(
        facts, job, gpus, policy, around, named_pids=named_pids, own_pids=own_pids, spare_nodes=spare_nodes
    )
    signs += others
    unread, missing = _unread(facts, job, gpus)
    if not gpus.whole_node and gpus.indexes is None:
        missing += (f"which of the node's GPUs the job had: all of them were judged ({gpus.source})",)
    signs.sort(key=lambda one: (-one.weight, one.gpu != gpus.failing, one.gpu if one.gpu is not None else -1))
    held = [one for _, one in tenants]
    judgement = _verdict(facts, signs, held, unread)
    known = () if isinstance(facts.gpus, Unknown) else facts.gpus
    mine = [gpu for gpu in known if gpus.counts(gpu.index) and gpus.failing in (None, gpu.index)]
    return replace(
        judgement,
        missing=tuple(dict.fromkeys((*unread, *missing))),
        tenants=tuple(process for process, _ in tenants),
        findings=_findings(judgement.verdict, signs, held, unread),
        hidden_bytes=Bytes(sum(hidden_bytes(gpu, policy) for gpu in mine)),
        failing_gpu=gpus.failing,
        job_gpus=counted(facts, gpus),
        job_gpus_source=gpus.source,
    )


def judge_node_alone(
    facts: NodeFacts,
    *,
    since_s: float | None,
    xids: XidCatalogue,
    policy: NodePolicy | None = None,
    live_jobs: frozenset[JobId] | None = None,
    models: GpuModels | None = None,
    node_state: NodeState | None = None,
) -> NodeJudgement:
    """Judge a node for nobody's job. Processes of jobs that run are in order, and unknown where `live_jobs` is.

    `since_s`: from when the kernel log counts; None: what would make a node unusable is unknown then, whenever it was,
    since nobody says whether it was mended."""
    policy = policy or NodePolicy()
    if facts.reach is not Reach.OK:
        return _not_reached(facts)
    covers = facts.log_covers_since_s
    start_s = covers if isinstance(covers, float) else since_s
    job = JobRecord(
        JobId(""), "", "", UserName(""), JobState("", JobClass.UNKNOWN), start_time_s=start_s, end_time_s=0.0
    )
    gpus = JobGpus(None, True, None)
    facts = facts if since_s is not None else without_window(facts, xids)
    signs = state_signs(facts, policy, xids) + memory_signs(facts, policy, models or GpuModels())
    signs += xid_signs(facts, job, gpus, xids, policy)
    around = LeakContext(policy.may_end_leaked_processes, live_jobs, node_state, facts.partial_view)
    tenants, others = tenant_signs(facts, job, gpus, policy, around)
    signs += others
    running = [one for _, one in tenants if one.rule is Rule.TENANT_RUNNING]
    weight = Weight.UNDETERMINED if live_jobs is None else Weight.NOTE
    why = "whether it still runs is not known" if live_jobs is None else "a job's own"
    signs += [weakened(one, weight, why) for one in running]
    foreign = [(process, one) for process, one in tenants if one.rule is not Rule.TENANT_RUNNING]
    unread, missing = _unread(facts, job, gpus)
    if since_s is not None and isinstance(covers, float) and covers > since_s:
        unread += (f"the kernel log before {moment(covers)}: it does not reach back to {moment(since_s)}",)
    signs.sort(key=lambda one: (-one.weight, one.gpu if one.gpu is not None else -1))
    held = [one for _, one in foreign]
    judgement = _verdict(facts, signs, held, unread)
    return replace(
        judgement,
        missing=tuple(dict.fromkeys((*unread, *missing))),
        tenants=tuple(process for process, _ in foreign),
        findings=_findings(judgement.verdict, signs, held, unread),
    )


def _not_reached(facts: NodeFacts) -> NodeJudgement:
    text = f"the node was not reached: {facts.reach_detail or facts.reach.value}"
    return NodeJudgement(
        node=facts.node,
        verdict=NodeVerdict.UNKNOWN,
        reasons=(text,),
        missing=("GPU state, kernel log and processes of the node",),
        source="a node that does not answer is unknown, never faulty",
        action=NodeAction.UNKNOWN,
        findings=(sign(Rule.NOT_REACHED, text).finding(),),
    )


def _verdict(facts: NodeFacts, signs: list[Sign], tenants: list[Sign], unread: tuple[str, ...]) -> NodeJudgement:
    by_weight = {weight: [one for one in signs if one.weight is weight] for weight in Weight}
    faults = by_weight[Weight.DRAIN] + by_weight[Weight.ELSEWHERE]
    occupied = tenants + by_weight[Weight.OCCUPIED]
    undetermined = by_weight[Weight.UNDETERMINED]
    notes = _texts(one for one in by_weight[Weight.NOTE] if one.rule is not Rule.KNOWN_HELPER)
    warnings = _texts(by_weight[Weight.WARN])
    if faults:
        return NodeJudgement(
            facts.node, NodeVerdict.FAULTY, _texts(faults) + notes,
            _texts(occupied) + _texts(undetermined) + warnings,
            faulty_gpus=tuple(sorted({one.gpu for one in faults if one.gpu is not None and one.gpu >= 0})),
            drain=bool(by_weight[Weight.DRAIN]), source=faults[0].source,
            action=NodeAction.DRAIN if by_weight[Weight.DRAIN] else NodeAction.EXCLUDE,
        )
    if occupied:
        return NodeJudgement(
            facts.node, NodeVerdict.OCCUPIED, _texts(occupied) + notes, _texts(undetermined) + warnings,
            source="memory of the job's GPUs in other hands", action=_first(_OCCUPIED_FIRST, occupied),
        )
    if undetermined or unread:
        return NodeJudgement(
            facts.node, NodeVerdict.UNKNOWN, _texts(undetermined) + unread + notes, warnings,
            source="what could not be read or judged is unknown, never clean and never faulty",
            action=NodeAction.UNKNOWN,
        )
    return NodeJudgement(
        facts.node, NodeVerdict.CLEAN, ("no hardware evidence found", *notes), warnings, source=STATE_SOURCE,
        action=_first(_CLEAN_FIRST, by_weight[Weight.WARN]),
    )


def _findings(
    verdict: NodeVerdict, signs: list[Sign], tenants: list[Sign], unread: tuple[str, ...]
) -> tuple[NodeFinding, ...]:
    heavier = [one for one in signs if one.weight > Weight.OCCUPIED]
    lighter = [one for one in signs if one.weight <= Weight.OCCUPIED]
    ordered = [*heavier, *tenants, *lighter, *(sign(Rule.NOT_READ, f"not read: {text}") for text in unread)]
    if verdict is NodeVerdict.CLEAN:
        ordered.insert(0, sign(Rule.RULED_OUT, "no hardware evidence found", source=STATE_SOURCE))
    return tuple(one.finding() for one in ordered)


def _first(order: tuple[NodeAction, ...], signs: list[Sign]) -> NodeAction:
    present = {one.action for one in signs}
    return next((action for action in order if action in present), NodeAction.IGNORE)


def _in_scope(one: Sign, gpus: JobGpus) -> Sign:
    if one.weight > Weight.WARN and not gpus.counts(one.gpu):
        return weakened(one, Weight.WARN, "not one of the job's GPUs")
    return one


def _unread(facts: NodeFacts, job: JobRecord, gpus: JobGpus) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what keeps the node from being clean, what else was not seen)."""
    unread: list[str] = []
    missing: list[str] = []
    if isinstance(facts.xids, Unknown):
        unread.append(f"the kernel log: {facts.xids.unknown}")
    else:
        unread += _uncovered(facts, job)
    if isinstance(facts.gpus, Unknown):
        unread.append(f"the GPUs: {facts.gpus.unknown}")
        return tuple(unread), tuple(missing)
    mine = [gpu for gpu in facts.gpus if gpus.counts(gpu.index) and not gpu.lost]
    hidden = [(gpu.processes.unknown, gpu.index) for gpu in mine if isinstance(gpu.processes, Unknown)]
    unread += [f"processes on {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(hidden)]
    blind = [gpu for gpu in mine if all(isinstance(getattr(gpu, name), Unknown) for name in _STATE_FIGURES)]
    reasons = [(_first_reason(gpu), gpu.index) for gpu in blind]
    unread += [f"any health figure of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(reasons)]
    half = [
        gpu for gpu in mine
        if gpu not in blind and all(isinstance(getattr(gpu, name), Unknown) for name in _MEMORY_STATE)
    ]
    reasons = [(_first_reason(gpu), gpu.index) for gpu in half]
    unread += [f"the state of the memory of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(reasons)]
    if facts.expected_gpus is not None and any(gpu.mig_enabled is True for gpu in facts.gpus):
        missing.append("whether a GPU is missing: Slurm counts MIG slices")
    for name, title in _STATE_FIGURES.items():
        gaps = [
            (value.unknown, gpu.index)
            for gpu in mine
            if gpu not in blind and isinstance(value := getattr(gpu, name), Unknown)
        ]
        missing += [f"{title} of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(gaps)]
    return tuple(unread), tuple(missing)


def _uncovered(facts: NodeFacts, job: JobRecord) -> list[str]:
    covers = facts.log_covers_since_s
    if isinstance(covers, Unknown):
        return [f"how far back the kernel log reaches: {covers.unknown}"]
    if covers is None:
        return ["how far back the kernel log reaches"]
    if job.start_time_s is None:
        return ["the job's start, so that the kernel log has no window"]
    if covers > job.start_time_s:
        return [
            f"the kernel log before {moment(covers)}: it does not reach back to the job's start at "
            f"{moment(job.start_time_s)}"
        ]
    return []


def _first_reason(gpu: GpuFacts) -> str:
    values = (getattr(gpu, name) for name in _STATE_FIGURES)
    return next((value.unknown for value in values if isinstance(value, Unknown)), "")


def _grouped(pairs: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    ordered = sorted(pairs)
    return [(reason, [index for _, index in group]) for reason, group in groupby(ordered, key=lambda pair: pair[0])]


def _gpus(indexes: list[int]) -> str:
    if len(indexes) == 1:
        return f"GPU {indexes[0]}"
    in_a_row = indexes == list(range(indexes[0], indexes[-1] + 1)) and len(indexes) > 2
    return f"GPUs {indexes[0]} to {indexes[-1]}" if in_a_row else "GPUs " + ", ".join(map(str, indexes))


def _texts(signs: Iterable[Sign]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.text for one in signs))
