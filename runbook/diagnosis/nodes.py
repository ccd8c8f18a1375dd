"""The judgement on a node: faulty, occupied, unknown or clean, from its facts alone.

Faulty outweighs occupied, occupied outweighs unknown. Clean means that everything which decides was read, the kernel
log reaches back to the job's start, and nothing was found: "no hardware evidence found", not "the hardware is fine".
Only a rule that says drain sets `drain`; what could not be read never does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from runbook.diagnosis.nodes_hardware import STATE_SOURCE, state_signs, xid_signs
from runbook.diagnosis.nodes_signs import (
    JobGpus,
    NodePolicy,
    Sign,
    Weight,
    job_gpus,
    moment,
)
from runbook.diagnosis.nodes_tenants import tenant_signs
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, NodeFacts, NodeJudgement, NodeVerdict, Reach
from runbook.model.units import JobId, Unknown
from runbook.model.xid import XidCatalogue

__all__ = ["NodePolicy", "judge_node"]

_STATE_FIGURES = {
    "row_remap_failed": "failed row remapping",
    "row_remap_pending": "pending row remapping",
    "sram_threshold_exceeded": "SRAM threshold",
    "recovery_action": "recovery action",
    "ecc_uncorrectable_volatile": "ECC counters",
}


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
) -> NodeJudgement:
    """Judge one node for one failed job.

    `oom_device` is the index of the failing GPU as the job saw it; `visible_gpus` are the node's indexes of the job's
    GPUs in that order, None where not known (then every GPU of the node counts). `live_jobs`: the ids of all jobs
    that run now, None where not asked. `named_pids`: processes that the error message lists on the failing GPU."""
    policy = policy or NodePolicy()
    if facts.reach is not Reach.OK:
        return NodeJudgement(
            node=facts.node,
            verdict=NodeVerdict.UNKNOWN,
            reasons=(f"the node was not reached: {facts.reach_detail or facts.reach.value}",),
            missing=("GPU state, kernel log and processes of the node",),
            source="a node that does not answer is unknown, never faulty",
        )
    if facts.expected_gpus is None and job.gpus_per_node is not None:
        facts = replace(facts, expected_gpus=job.gpus_per_node)
    gpus = job_gpus(facts, job, oom_device, visible_gpus)
    signs = [_in_scope(sign, gpus) for sign in state_signs(facts, policy)]
    signs += xid_signs(facts, job, gpus, xids, policy)
    tenants, others = tenant_signs(facts, job, gpus, policy, live_jobs, named_pids)
    signs += others
    unread, missing = _unread(facts, job, gpus)
    signs.sort(key=lambda sign: (-sign.weight, sign.gpu != gpus.failing, sign.gpu if sign.gpu is not None else -1))
    by_weight = {weight: [sign for sign in signs if sign.weight is weight] for weight in Weight}
    faults = by_weight[Weight.DRAIN] + by_weight[Weight.ELSEWHERE]
    undetermined = by_weight[Weight.UNDETERMINED]
    notes = _texts(by_weight[Weight.NOTE])
    warnings = _texts(by_weight[Weight.WARN])
    if not gpus.whole_node and gpus.indexes is None:
        missing += ("which of the node's GPUs the job had: all of them were judged",)
    if faults:
        verdict, reasons, source = NodeVerdict.FAULTY, _texts(faults) + notes, faults[0].source
        warnings = _texts([sign for _, sign in tenants]) + _texts(undetermined) + warnings
    elif tenants:
        verdict, reasons = NodeVerdict.OCCUPIED, _texts([sign for _, sign in tenants]) + notes
        source, warnings = "other processes with memory on the job's GPUs", _texts(undetermined) + warnings
    elif undetermined or unread:
        verdict, reasons = NodeVerdict.UNKNOWN, _texts(undetermined) + unread + notes
        source = "what could not be read or judged is unknown, never clean and never faulty"
    else:
        verdict, reasons, source = NodeVerdict.CLEAN, ("no hardware evidence found", *notes), STATE_SOURCE
    return NodeJudgement(
        node=facts.node,
        verdict=verdict,
        reasons=reasons,
        warnings=warnings,
        missing=tuple(dict.fromkeys((*unread, *missing))),
        tenants=tuple(process for process, _ in tenants),
        faulty_gpus=tuple(sorted({sign.gpu for sign in faults if sign.gpu is not None and sign.gpu >= 0})),
        drain=bool(by_weight[Weight.DRAIN]),
        source=source,
    )


def _in_scope(sign: Sign, gpus: JobGpus) -> Sign:
    if sign.weight > Weight.WARN and not gpus.counts(sign.gpu):
        return replace(sign, weight=Weight.WARN, text=f"{sign.text}; not one of the job's GPUs")
    return sign


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


def _texts(signs: list[Sign]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sign.text for sign in signs))
