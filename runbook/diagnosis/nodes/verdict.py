"""The judgement on a node: faulty, occupied, unknown or clean, and what to do, from its facts alone.

Faulty outweighs occupied, occupied outweighs unknown. Clean means that everything which decides was read, the kernel
log reaches back to the job's start, and nothing was found: "no hardware evidence found", not "the hardware is fine".
Only a rule that says drain sets `drain`; what could not be read never does. The rules are a document: node_rules.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from runbook.diagnosis.nodes.hardware import hidden_bytes, memory_signs, state_signs
from runbook.diagnosis.nodes.job_gpus import counted, job_gpus
from runbook.diagnosis.nodes.signs import FailureClues, JobGpus, NodePolicy, Rulebook, SchedulerView, Sign
from runbook.diagnosis.nodes.tenants import tenant_signs
from runbook.diagnosis.nodes.xid_signs import without_window, xid_signs
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import GpuFacts, NodeAction, NodeFacts, NodeFinding, NodeJudgement, NodeVerdict, Reach, Reports
from runbook.model.node_rules import Condition, NodeDocuments, Weight
from runbook.model.units import Bytes, JobId, Unknown, UserName, moment


def judge_node(
    facts: NodeFacts,
    job: JobRecord,
    documents: NodeDocuments,
    policy: NodePolicy,
    clues: FailureClues | None = None,
    scheduler: SchedulerView | None = None,
) -> NodeJudgement:
    """Judge one node for one failed job. Without `clues` every GPU of the node may be the failing one, and all count
    where nothing else tells which the job had."""
    clues, scheduler = clues or FailureClues(), scheduler or SchedulerView()
    book = Rulebook(documents.rules, policy)
    if facts.reach is not Reach.OK:
        return _not_reached(facts, book)
    if facts.expected_gpus is None and job.gpus_per_node is not None:
        facts = replace(facts, expected_gpus=job.gpus_per_node)
    gpus = job_gpus(facts, job, clues)
    found = state_signs(facts, book, documents.xids) + memory_signs(facts, book, documents.gpu_models)
    signs = [_in_scope(one, gpus, book) for one in found]
    signs += xid_signs(facts, job, gpus, book, documents.xids)
    tenants, others = tenant_signs(facts, job, gpus, book, clues, scheduler)
    signs += others
    unread, missing = _unread(facts, job, gpus)
    if not gpus.whole_node and gpus.indexes is None:
        missing += (f"which of the node's GPUs the job had: all of them were judged ({gpus.source})",)
    signs.sort(key=lambda one: (-one.weight, one.gpu != gpus.failing, one.gpu if one.gpu is not None else -1))
    held = [one for _, one in tenants]
    judgement = _verdict(facts, signs, held, unread, book)
    known = () if isinstance(facts.gpus, Unknown) else facts.gpus
    mine = [gpu for gpu in known if gpus.counts(gpu.index) and gpus.failing in (None, gpu.index)]
    return replace(
        judgement,
        missing=tuple(dict.fromkeys((*unread, *missing))),
        tenants=tuple(process for process, _ in tenants),
        findings=_findings(judgement.verdict, signs, held, unread, book),
        hidden_bytes=Bytes(sum(hidden_bytes(gpu, policy) for gpu in mine)),
        failing_gpu=gpus.failing,
        job_gpus=counted(facts, gpus),
        job_gpus_source=gpus.source,
    )


def judge_node_alone(
    facts: NodeFacts,
    documents: NodeDocuments,
    policy: NodePolicy,
    *,
    since_s: float | None,
    scheduler: SchedulerView | None = None,
) -> NodeJudgement:
    """Judge a node for nobody's job. Processes of jobs that run are in order, and unknown where `live_jobs` is.

    `since_s`: from when the kernel log counts; None: what would make a node unusable is unknown then, whenever it was,
    since nobody says whether it was mended."""
    scheduler = scheduler or SchedulerView()
    book = Rulebook(documents.rules, policy)
    if facts.reach is not Reach.OK:
        return _not_reached(facts, book)
    covers = facts.log_covers_since_s
    start_s = covers if isinstance(covers, float) else since_s
    job = JobRecord(
        JobId(""), "", "", UserName(""), JobState("", JobClass.UNKNOWN), start_time_s=start_s, end_time_s=0.0
    )
    gpus = JobGpus(None, True, None)
    facts = facts if since_s is not None else without_window(facts, documents.xids)
    signs = state_signs(facts, book, documents.xids) + memory_signs(facts, book, documents.gpu_models)
    signs += xid_signs(facts, job, gpus, book, documents.xids)
    tenants, others = tenant_signs(facts, job, gpus, book, FailureClues(), scheduler)
    signs += others
    unasked = scheduler.live_jobs is None
    weight = Weight.UNDETERMINED if unasked else Weight.NOTE
    why = "whether it still runs is not known" if unasked else "a job's own"
    signs += [book.weakened(one, weight, why) for _, one in tenants if _of_running_job(one, book)]
    foreign = [(process, one) for process, one in tenants if not _of_running_job(one, book)]
    unread, missing = _unread(facts, job, gpus)
    if since_s is not None and isinstance(covers, float) and covers > since_s:
        unread += (f"the kernel log before {moment(covers)}: it does not reach back to {moment(since_s)}",)
    signs.sort(key=lambda one: (-one.weight, one.gpu if one.gpu is not None else -1))
    held = [one for _, one in foreign]
    judgement = _verdict(facts, signs, held, unread, book)
    return replace(
        judgement,
        missing=tuple(dict.fromkeys((*unread, *missing))),
        tenants=tuple(process for process, _ in foreign),
        findings=_findings(judgement.verdict, signs, held, unread, book),
    )


def _of_running_job(one: Sign, book: Rulebook) -> bool:
    return Reports.TENANT in book.rules.reports(one.rule)


def _not_reached(facts: NodeFacts, book: Rulebook) -> NodeJudgement:
    silent = book.sign(Condition.NODE_SILENT, why=facts.reach_detail or facts.reach.value)
    return NodeJudgement(
        node=facts.node,
        verdict=NodeVerdict.UNKNOWN,
        reasons=(silent.text,),
        missing=("GPU state, kernel log and processes of the node",),
        source=book.rules.source_of_silence,
        action=NodeAction.UNKNOWN,
        findings=(silent.finding(),),
    )


def _verdict(
    facts: NodeFacts, signs: list[Sign], tenants: list[Sign], unread: tuple[str, ...], book: Rulebook
) -> NodeJudgement:
    by_weight = {weight: [one for one in signs if one.weight is weight] for weight in Weight}
    faults = by_weight[Weight.DRAIN] + by_weight[Weight.ELSEWHERE]
    occupied = tenants + by_weight[Weight.OCCUPIED]
    undetermined = by_weight[Weight.UNDETERMINED]
    notes = _texts(
        one for one in by_weight[Weight.NOTE] if Reports.OF_NO_ACCOUNT not in book.rules.reports(one.rule)
    )
    warnings = _texts(by_weight[Weight.WARN])
    meanings = book.rules.verdicts
    if faults:
        return NodeJudgement(
            facts.node, NodeVerdict.FAULTY, _texts(faults) + notes,
            _texts(occupied) + _texts(undetermined) + warnings,
            faulty_gpus=tuple(sorted({one.gpu for one in faults if one.gpu is not None and one.gpu >= 0})),
            drain=bool(by_weight[Weight.DRAIN]), source=faults[0].source,
            action=NodeAction.DRAIN if by_weight[Weight.DRAIN] else NodeAction.EXCLUDE,
        )
    if occupied:
        meaning = meanings[NodeVerdict.OCCUPIED]
        return NodeJudgement(
            facts.node, NodeVerdict.OCCUPIED, _texts(occupied) + notes, _texts(undetermined) + warnings,
            source=meaning.source, action=_first(meaning.actions, occupied),
        )
    if undetermined or unread:
        return NodeJudgement(
            facts.node, NodeVerdict.UNKNOWN, _texts(undetermined) + unread + notes, warnings,
            source=meanings[NodeVerdict.UNKNOWN].source, action=NodeAction.UNKNOWN,
        )
    meaning = meanings[NodeVerdict.CLEAN]
    return NodeJudgement(
        facts.node, NodeVerdict.CLEAN, (book.sign(Condition.NOTHING_FOUND).text, *notes), warnings,
        source=meaning.source, action=_first(meaning.actions, by_weight[Weight.WARN]),
    )


def _findings(
    verdict: NodeVerdict, signs: list[Sign], tenants: list[Sign], unread: tuple[str, ...], book: Rulebook
) -> tuple[NodeFinding, ...]:
    heavier = [one for one in signs if one.weight > Weight.OCCUPIED]
    lighter = [one for one in signs if one.weight <= Weight.OCCUPIED]
    ordered = [*heavier, *tenants, *lighter, *(book.sign(Condition.NOT_SEEN, what=text) for text in unread)]
    if verdict is NodeVerdict.CLEAN:
        ordered.insert(0, book.sign(Condition.NOTHING_FOUND))
    return tuple(one.finding() for one in ordered)


def _first(order: tuple[NodeAction, ...], signs: list[Sign]) -> NodeAction:
    present = {one.action for one in signs}
    return next((action for action in order if action in present), NodeAction.IGNORE)


def _in_scope(one: Sign, gpus: JobGpus, book: Rulebook) -> Sign:
    if one.weight > Weight.WARN and not gpus.counts(one.gpu):
        return book.weakened(one, Weight.WARN, "not one of the job's GPUs")
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
    blind = [gpu for gpu in mine if _none_known(*_health(gpu).values())]
    reasons = [(_first_reason(gpu), gpu.index) for gpu in blind]
    unread += [f"any health figure of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(reasons)]
    seen = [gpu for gpu in mine if gpu not in blind]
    # At least one of these must have been read before anything is said of a GPU's memory.
    half = [gpu for gpu in seen if _none_known(gpu.row_remap_failed, gpu.row_remap_pending, gpu.recovery_action)]
    reasons = [(_first_reason(gpu), gpu.index) for gpu in half]
    unread += [f"the state of the memory of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(reasons)]
    if facts.expected_gpus is not None and any(gpu.mig_enabled is True for gpu in facts.gpus):
        missing.append("whether a GPU is missing: Slurm counts MIG slices")
    gaps: dict[str, list[tuple[str, int]]] = {}
    for gpu in seen:
        for title, value in _health(gpu).items():
            gaps.setdefault(title, []).extend([(value.unknown, gpu.index)] if isinstance(value, Unknown) else [])
    for title, pairs in gaps.items():
        missing += [f"{title} of {_gpus(indexes)}: {reason}" for reason, indexes in _grouped(pairs)]
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


def _health(gpu: GpuFacts) -> dict[str, object]:
    """The figures that tell of a GPU's health, by what they are called."""
    return {
        "failed row remapping": gpu.row_remap_failed,
        "pending row remapping": gpu.row_remap_pending,
        "SRAM threshold": gpu.sram_threshold_exceeded,
        "recovery action": gpu.recovery_action,
        "ECC counters": gpu.ecc_uncorrectable_volatile,
    }


def _none_known(*figures: object) -> bool:
    return all(isinstance(figure, Unknown) for figure in figures)


def _first_reason(gpu: GpuFacts) -> str:
    return next((value.unknown for value in _health(gpu).values() if isinstance(value, Unknown)), "")


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
