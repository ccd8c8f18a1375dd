"""Rules on a line that says itself what it is: host memory, shared memory, an engine, a fault, no memory at all.

What a signature means, what kind of it and how firm it is stand in its document; here is what other evidence changes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from runbook.diagnosis.case import LINE_RULES, Case, Conclusion, Vote, line_rule, rule, size
from runbook.diagnosis.co_tenant_rules import UNTOLD
from runbook.diagnosis.growth import host_leaks
from runbook.model.diagnosis import Detail, Died
from runbook.model.log import Event, Finding
from runbook.model.node import NodeVerdict

_COLOCATED = 0.6
_FAULT_UNCONFIRMED = 0.5
"""A fault that the job's own output tells of and the node's own records deny."""
_ADVICE_WITHIN = 16 << 10
_CAPTURE = re.compile(r"Capture (?:CUDA|cuda) graph failed")
_DETAILS = frozenset(detail.value for detail in Detail)
_SETTLES_TENANTS = "nvidia-smi of the node at that moment: who held the card's memory"


@rule
def faulty_node(case: Case) -> Vote | None:
    """The node check found the failing rank's card broken: then figures prove nothing about the job."""
    judgement = case.judgement()
    if judgement is None or judgement.verdict is not NodeVerdict.FAULTY:
        return None
    certain = case.node is not None or len(case.judgements) == 1
    failing, faulty = judgement.failing_gpu, judgement.faulty_gpus
    if failing is not None and faulty and failing not in faulty and case.figures.short_bytes is not None:
        return Vote(
            "node check: another GPU is faulty", Conclusion.HARDWARE_FAULT, 0.3,
            (f"The node check of {judgement.node} found a fault of GPU {', '.join(map(str, faulty))}: "
             f"{'; '.join(judgement.reasons[:3])}.",),
            (f"GPU {failing} ran out of memory, and no fault of it was found.",), decisive=False,
        )
    return Vote(
        "node check: faulty", Conclusion.HARDWARE_FAULT, 0.92 if certain else 0.6,
        (f"The node check of {judgement.node} found a fault"
         + (f" of GPU {', '.join(map(str, judgement.faulty_gpus))}" if judgement.faulty_gpus else "")
         + f": {'; '.join(judgement.reasons[:3]) or 'see its report'}.",),
        () if certain else ("The log does not say on which node the failing rank ran.",),
    )


@rule
def by_signature(case: Case) -> tuple[Vote, ...]:
    """The first failure's own words, and what else bears on them."""
    root = case.root
    if root is None or root.means not in case.kinds or case.meant.by_figures:
        return ()
    meant = case.meant
    detail = Detail(root.detail) if root.detail in _DETAILS else Detail.NONE
    reason = meant.detail(detail).reason or meant.reason
    vote = Vote(
        f"signature {root.signature}", root.means, root.firmness if root.firmness is not None else meant.confidence,
        (f"The first failure is {root.signature}: {said(root.excerpt)}", *((reason,) if reason else ())),
        detail=detail,
    )
    return LINE_RULES[meant.rule](case, root, vote) if meant.rule else (vote,)


@rule
def engine_capture(case: Case) -> Vote | None:
    """SGL-02: the engine ran out while it captured CUDA graphs; here its share has to come down."""
    root = case.root
    if root is None or not case.meant.by_figures:
        return None
    # The engine prints its list of solutions, which speaks of the capture, a few lines below the exception.
    advised = any(
        case.reports(one, Event.CAPTURE_ADVICE)
        and one.file == root.file and 0 <= one.offset - root.offset < _ADVICE_WITHIN
        for one in case.story.harmless
    )
    if not advised and not _CAPTURE.search(root.excerpt):
        return None
    return Vote(
        "SGL-02 graph capture", Conclusion.KV_CACHE_SIZING, 0.75,
        (f"The engine ran out of memory while it captured CUDA graphs: {said(root.excerpt)}",
         case.kinds.of(Conclusion.KV_CACHE_SIZING).entry.detail(Detail.LOWER_SHARE).reason),
        missing=("the engine's share and its largest batch for graphs",), detail=Detail.LOWER_SHARE,
    )


@line_rule
def host_memory(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    steps = case.killed_steps()
    others = [
        one for one in case.story.candidates
        if case.kinds.of(one.means).entry.died is Died.MAIN_MEMORY and one.signature != root.signature
    ]
    reasons, confidence, missing, detail = [*vote.reasons], vote.confidence, [*vote.missing], vote.detail
    pinned = case.reports(root, Event.CARD_OR_PINNED)
    if pinned:
        confidence, detail = min(confidence, 0.6), Detail.PINNED
        reasons.append("The frames of the traceback pin host memory, and CUDA reports that in the card's words (R-21).")
        missing.append("ulimit -l and the node's free memory at that moment")
    if steps:
        confidence = max(confidence, 0.97)
        reasons.append(f"Slurm's accounting says OUT_OF_MEMORY for {', '.join(steps)}.")
    elif others:
        confidence = max(confidence, 0.93)
        reasons.append(f"{others[0].signature} says so too.")
    elif confidence < 0.9:
        missing.append("Slurm's accounting (State, MaxRSS, ReqMem) and the kernel log of the node")
    progress, against = case.story.progress, [*vote.against]
    if progress.last_step is not None and progress.last_step == progress.total_steps:
        confidence = min(confidence, 0.85)
        against.append("The logs reach the last step: the victim may be a helper, and no rank (R-24).")
    if detail is Detail.NONE:
        named = [one.detail for one in others if one.detail in _DETAILS and one.detail]
        detail = Detail(named[0]) if named else Detail.CGROUP if steps else Detail.NONE
    if detail in (Detail.NONE, Detail.CGROUP, Detail.RAY_MONITOR) and host_leaks(case):
        detail = Detail.LEAK
    if root.fields.tried_bytes is not None:
        reasons.append(f"It asked for {size(root.fields.tried_bytes)} of host memory.")
    told = replace(vote, confidence=confidence, reasons=tuple(reasons), against=tuple(against),
                   missing=tuple(missing), detail=detail)
    if not pinned or steps:
        return (told,)
    return (told, Vote(
        "R-21 device or pinned host memory", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.3,
        ("The same words are printed where the card refuses memory outside the allocator.",), decisive=False,
    ))


@line_rule
def broken_card(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    judgement = case.judgement()
    if case.reports(root, Event.NO_KERNEL_STAMP):
        vote = replace(vote, reasons=(
            *vote.reasons,
            "The line stands in the job's own output without the kernel's stamp, and anybody may print it: a hint, "
            "until the node's own records say so.",
        ))
    elif case.reports(root, Event.KERNEL_STAMP):
        vote = replace(vote, reasons=(*vote.reasons, "The kernel's line came through the job's own output."))
    if judgement is None:
        return (replace(vote, missing=("the node's own ECC, row remap and XID records",)),)
    if judgement.verdict is not NodeVerdict.CLEAN:
        return (vote,)
    return (replace(
        vote, confidence=min(vote.confidence, _FAULT_UNCONFIRMED),
        against=(f"The node check of {judgement.node} found no fault, and only the job's own output tells of one.",),
    ),)


@line_rule
def outside_the_allocator(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    """R-19, R-21: a refusal without figures, of a call outside the allocator."""
    against, missing = [], [_SETTLES_TENANTS]
    if vote.confidence < 0.5:
        against.append("The same status comes from a driver mismatch, an earlier fault or an unsupported layout.")
        missing.append("the first CUDA error of the process (CUDA_LAUNCH_BLOCKING=1)")
    pinned = case.reports(root, Event.CARD_OR_PINNED)
    if pinned:
        against.append("Refused pinned host memory prints the same words, and these frames do not tell (R-21).")
        missing.append("the frames of the call: pin_memory or cudaHostAlloc mean host memory")
    told = replace(vote, against=tuple(against), missing=tuple(missing))
    if not pinned:
        return (told,)
    return (told, Vote(
        "R-21 device or pinned host memory", Conclusion.HOST_OOM, 0.15,
        ("Refused pinned host memory is reported in the same words.",), decisive=False, detail=Detail.PINNED,
    ))


@line_rule
def shared_card(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    """An engine found the card occupied: by the job's own trainer, or by somebody else."""
    judgement, fields = case.judgement(), root.fields
    at_start = vote.kind == Conclusion.CO_TENANT or (
        fields.tried_bytes is not None and fields.capacity_bytes is not None and fields.allocated_bytes is None
    )
    figure = (
        f"The engine wants {size(fields.tried_bytes)}, {size(fields.free_bytes)} of {size(fields.capacity_bytes)} "
        "are free.",
    ) if at_start and fields.tried_bytes is not None else ()
    told = replace(vote, reasons=(*vote.reasons[:1], *figure, *vote.reasons[1:]))
    if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED:
        return (replace(told, decisive=False, confidence=min(told.confidence, 0.3)),)
    shared = case.colocation >= _COLOCATED
    engine = replace(
        told, kind=Conclusion.INFERENCE_RESERVATION, detail=Detail.LOWER_SHARE,
        confidence=min(vote.confidence, 0.75) if shared else 0.3 if at_start else min(vote.confidence, 0.65),
        reasons=(*told.reasons, *(
            (f"{case.story.framework or 'This job'} runs its trainer on the same cards, which holds the rest: lower "
             "the engine's share.",) if shared else ()
        )),
        missing=(_SETTLES_TENANTS,), decisive=shared or not at_start,
    )
    stranger = replace(
        told, kind=Conclusion.CO_TENANT, detail=Detail.NONE, missing=(_SETTLES_TENANTS,),
        confidence=0.2 if shared or not at_start else min(vote.confidence, UNTOLD), decisive=at_start and not shared,
        reasons=(*told.reasons[:1], *figure,
                 "Something else holds memory of the card, and the logs do not say what."),
        against=("A trainer of the same job on the same card looks the same.",),
    )
    if stranger.decisive:
        reason = "If a trainer of this job runs on the same card, the memory is its and the engine's share too large."
        return (stranger, replace(engine, reasons=(reason,)))
    other = "Another job's process would hold the card in the same way."
    return (engine, replace(stranger, reasons=(other,), against=()))


@line_rule
def failed_program(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    """An exception that no document knows says that the program failed; beside a kill for memory it may be an echo."""
    steps = case.killed_steps()
    unknown = case.reports(root, Event.EXCEPTION)
    detail = vote.detail if vote.detail is not Detail.NONE or not unknown else Detail.PROGRAM
    if not unknown or not steps:
        firmness = 0.85 if unknown and root.frames else vote.confidence
        return (replace(vote, detail=detail, confidence=firmness),)
    return (replace(
        vote, confidence=0.3, detail=detail, decisive=False,
        against=(f"Slurm's accounting says OUT_OF_MEMORY for {', '.join(steps)}: this may be its echo.",),
    ),)


def said(excerpt: str) -> str:
    """The last line of an excerpt that is not indented: what was said."""
    lines = [line for line in excerpt.splitlines() if line.strip()]
    spoken = [line for line in lines if not line.startswith((" ", "\t", "Traceback"))]
    line = (spoken or lines or [""])[0].strip()
    return f"“{line if len(line) <= 180 else line[:177] + '…'}”"
