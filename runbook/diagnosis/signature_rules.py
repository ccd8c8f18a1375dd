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
from runbook.model.sentences import NOTHING, as_written
from runbook.model.sentences.of_diagnosis import Say
from runbook.model.units import NodeVerdict

_COLOCATED = 0.6
_FAULT_UNCONFIRMED = 0.5
"""A fault that the job's own output tells of and the node's own records deny."""
_ADVICE_WITHIN = 16 << 10
_CAPTURE = re.compile(r"Capture (?:CUDA|cuda) graph failed")
_DETAILS = frozenset(detail.value for detail in Detail)
_SETTLES_TENANTS = Say.WHO_HELD_THE_CARD()


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
            (Say.FAULT_OF_ANOTHER_GPU(
                node=judgement.node, faulty=", ".join(map(str, faulty)), reasons="; ".join(judgement.reasons[:3]),
            ),),
            (Say.ANOTHER_GPU_RAN_OUT(failing=failing),), decisive=False,
        )
    return Vote(
        "node check: faulty", Conclusion.HARDWARE_FAULT, 0.92 if certain else 0.6,
        (Say.NODE_CHECK_FOUND_A_FAULT(
            node=judgement.node,
            of_gpus=Say.OF_GPUS(gpus=judgement.faulty_gpus) if judgement.faulty_gpus else NOTHING,
            reasons="; ".join(judgement.reasons[:3]) or "see its report",
        ),),
        () if certain else (Say.NODE_NOT_IN_THE_LOG(),),
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
        (Say.FIRST_FAILURE(signature=root.signature, excerpt=said(root.excerpt)),
         *((as_written(reason),) if reason else ())),
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
        (Say.ENGINE_RAN_OUT_AT_CAPTURE(excerpt=said(root.excerpt)),
         as_written(case.kinds.of(Conclusion.KV_CACHE_SIZING).entry.detail(Detail.LOWER_SHARE).reason)),
        missing=(Say.ENGINE_SHARE_AND_LARGEST_BATCH(),), detail=Detail.LOWER_SHARE,
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
        reasons.append(Say.FRAMES_PIN_HOST_MEMORY())
        missing.append(Say.ULIMIT_AND_FREE_MEMORY())
    if steps:
        confidence = max(confidence, 0.97)
        reasons.append(Say.STOP(said=Say.ACCOUNTING_SAYS_OUT_OF_MEMORY(steps=tuple(steps))))
    elif others:
        confidence = max(confidence, 0.93)
        reasons.append(Say.SAYS_SO_TOO(signature=others[0].signature))
    elif confidence < 0.9:
        missing.append(Say.ACCOUNTING_AND_KERNEL_LOG())
    progress, against = case.story.progress, [*vote.against]
    if progress.last_step is not None and progress.last_step == progress.total_steps:
        confidence = min(confidence, 0.85)
        against.append(Say.REACHED_LAST_STEP_SO_PERHAPS_A_HELPER())
    if detail is Detail.NONE:
        named = [one.detail for one in others if one.detail in _DETAILS and one.detail]
        detail = Detail(named[0]) if named else Detail.CGROUP if steps else Detail.NONE
    if detail in (Detail.NONE, Detail.CGROUP, Detail.RAY_MONITOR) and host_leaks(case):
        detail = Detail.LEAK
    if root.fields.tried_bytes is not None:
        reasons.append(Say.ASKED_FOR_HOST_MEMORY(tried_bytes=size(root.fields.tried_bytes)))
    told = replace(vote, confidence=confidence, reasons=tuple(reasons), against=tuple(against),
                   missing=tuple(missing), detail=detail)
    if not pinned or steps:
        return (told,)
    return (told, Vote(
        "R-21 device or pinned host memory", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.3,
        (Say.CARD_REFUSES_IN_THE_SAME_WORDS(),), decisive=False,
    ))


@line_rule
def broken_card(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    judgement = case.judgement()
    if case.reports(root, Event.NO_KERNEL_STAMP):
        vote = replace(vote, reasons=(
            *vote.reasons,
            Say.WITHOUT_THE_KERNELS_STAMP(),
        ))
    elif case.reports(root, Event.KERNEL_STAMP):
        vote = replace(vote, reasons=(*vote.reasons, Say.KERNEL_LINE_IN_THE_OUTPUT()))
    if judgement is None:
        return (replace(vote, missing=(Say.NODES_OWN_RECORDS(),)),)
    if judgement.verdict is not NodeVerdict.CLEAN:
        return (vote,)
    return (replace(
        vote, confidence=min(vote.confidence, _FAULT_UNCONFIRMED),
        against=(Say.NODE_CHECK_FOUND_NO_FAULT(node=judgement.node),),
    ),)


@line_rule
def outside_the_allocator(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    """R-19, R-21: a refusal without figures, of a call outside the allocator."""
    against, missing = [], [_SETTLES_TENANTS]
    if vote.confidence < 0.5:
        against.append(Say.SAME_STATUS_FROM_ELSEWHERE())
        missing.append(Say.FIRST_CUDA_ERROR_OF_PROCESS())
    pinned = case.reports(root, Event.CARD_OR_PINNED)
    if pinned:
        against.append(Say.PINNED_MEMORY_PRINTS_THE_SAME())
        missing.append(Say.FRAMES_OF_THE_CALL())
    told = replace(vote, against=tuple(against), missing=tuple(missing))
    if not pinned:
        return (told,)
    return (told, Vote(
        "R-21 device or pinned host memory", Conclusion.HOST_OOM, 0.15,
        (Say.PINNED_MEMORY_IS_REPORTED_ALIKE(),), decisive=False, detail=Detail.PINNED,
    ))


@line_rule
def shared_card(case: Case, root: Finding, vote: Vote) -> tuple[Vote, ...]:
    """An engine found the card occupied: by the job's own trainer, or by somebody else."""
    judgement, fields = case.judgement(), root.fields
    at_start = vote.kind == Conclusion.CO_TENANT or (
        fields.tried_bytes is not None and fields.capacity_bytes is not None and fields.allocated_bytes is None
    )
    figure = (
        Say.ENGINE_WANTS(
            tried_bytes=size(fields.tried_bytes), free_bytes=size(fields.free_bytes),
            capacity_bytes=size(fields.capacity_bytes),
        ),
    ) if at_start and fields.tried_bytes is not None else ()
    told = replace(vote, reasons=(*vote.reasons[:1], *figure, *vote.reasons[1:]))
    if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED:
        return (replace(told, decisive=False, confidence=min(told.confidence, 0.3)),)
    shared = case.colocation >= _COLOCATED
    engine = replace(
        told, kind=Conclusion.INFERENCE_RESERVATION, detail=Detail.LOWER_SHARE,
        confidence=min(vote.confidence, 0.75) if shared else 0.3 if at_start else min(vote.confidence, 0.65),
        reasons=(*told.reasons, *(
            (Say.TRAINER_HOLDS_THE_REST(framework=case.story.framework or "This job"),) if shared else ()
        )),
        missing=(_SETTLES_TENANTS,), decisive=shared or not at_start,
    )
    stranger = replace(
        told, kind=Conclusion.CO_TENANT, detail=Detail.NONE, missing=(_SETTLES_TENANTS,),
        confidence=0.2 if shared or not at_start else min(vote.confidence, UNTOLD), decisive=at_start and not shared,
        reasons=(*told.reasons[:1], *figure,
                 Say.SOMETHING_ELSE_HOLDS_MEMORY()),
        against=(Say.TRAINER_LOOKS_THE_SAME(),),
    )
    if stranger.decisive:
        reason = Say.IF_A_TRAINER_SHARES_THE_CARD()
        return (stranger, replace(engine, reasons=(reason,)))
    other = Say.ANOTHER_JOB_LOOKS_THE_SAME()
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
        against=(Say.MAY_BE_AN_ECHO(told=Say.ACCOUNTING_SAYS_OUT_OF_MEMORY(steps=tuple(steps))),),
    ),)


def said(excerpt: str) -> str:
    """The last line of an excerpt that is not indented: what was said."""
    lines = [line for line in excerpt.splitlines() if line.strip()]
    spoken = [line for line in lines if not line.startswith((" ", "\t", "Traceback"))]
    line = (spoken or lines or [""])[0].strip()
    return f"“{line if len(line) <= 180 else line[:177] + '…'}”"
