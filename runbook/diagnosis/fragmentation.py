"""R-11: fragmentation is possible, never proven, by one message; its confidence is graded by what supports it."""

from __future__ import annotations

import re

from runbook.diagnosis.allocator import newest_minor
from runbook.diagnosis.case import Case, Vote
from runbook.diagnosis.figures import print_error, size
from runbook.diagnosis.growth import reserved_creeps
from runbook.diagnosis.onset import static_or_grown
from runbook.model.diagnosis import Kind

_FLOOR, _CEILING, _CEILING_BLIND = 0.15, 0.88, 0.8
"""The most that one message gives; less where the allocator's settings are not known."""
_STREAMS = re.compile(r"fsdp|all_gather|reduce_scatter|zero/stage", re.IGNORECASE)


def fragmentation(case: Case) -> Vote | None:
    """Claimed only where free plus unallocated would have sufficed (R-04)."""
    figures = case.figures
    tried, available, unallocated = figures.tried, figures.available_bytes, figures.unallocated_bytes
    error = figures.available_error_bytes + print_error(tried)
    if tried is None or available is None or unallocated is None or available < tried - error:
        return None
    if figures.free is not None and figures.free >= tried - error:
        return None
    reserved = figures.reserved_bytes or 0
    reasons = [
        f"Tried {size(tried)}; free {size(figures.free)} + reserved but unallocated {size(unallocated)} = "
        f"{size(available)}: enough in sum, so what is missing is a contiguous piece. Possible, not proven."
    ]
    confidence, against = 0.55, _other_readings(case)
    ratio, share = unallocated / tried, unallocated / reserved if reserved else 0.0
    if available < tried + error:
        confidence -= 0.3
        against.append("The sum exceeds the request by less than the message's rounding.")
    elif ratio >= 2:
        confidence += 0.15
        reasons.append(f"The unallocated part is {ratio:.1f} times what was tried.")
    elif ratio < 1.2:
        confidence -= 0.15
        against.append(f"The unallocated part is only {ratio:.2f} times what was tried.")
    if share >= 0.10:
        confidence += 0.1
        reasons.append(f"{share:.0%} of the reserved memory is unallocated.")
    elif share < 0.05:
        confidence -= 0.2
        against.append(f"Only {share:.1%} of the reserved memory is unallocated.")
    if figures.small_request:
        confidence -= 0.25
        against.append(f"{size(tried)} stands for any small request (R-06): full is as likely as fragmented.")
    done = case.steps_done()
    if done is None or done <= 1:
        confidence -= 0.15
        against.append("No step of the same shape had succeeded before in this run.")
    else:
        confidence += 0.08
        reasons.append(f"{done} steps had succeeded before.")
    retries = any(one.signature == "OK-02" for one in case.story.harmless)
    if retries:
        confidence += 0.1
        reasons.append("The log counts retries of the allocator, a sign of pressure from fragments.")
    creeping = reserved_creeps(case)
    if creeping:
        confidence += 0.1
        reasons.append(creeping)
    if case.allocator.expandable and case.colocation >= 0.8:
        confidence -= 0.3
        against.append("Expandable segments are on, though such frameworks switch them off around the rollout (R-20).")
    elif case.allocator.expandable:
        confidence -= 0.45
        against.append("Expandable segments are already on, so the first allocator lever is spent.")
    elif case.allocator.ignored:
        confidence += 0.05
        reasons.append(f"{case.allocator.ignored}.")
    elif case.allocator.known:
        confidence += 0.05
        reasons.append("Expandable segments are not on.")
    missing = [] if case.allocator.known else ["the allocator settings in the job's environment"]
    missing.append("torch.cuda.memory_summary() or a memory snapshot of this rank, which would prove it")
    newest = newest_minor(case.version)
    if newest is not None and newest < 4 and unallocated > reserved // 4:
        confidence -= 0.05
        missing.append("whether CUDA graphs are captured (this PyTorch counts their pools as unallocated)")
    confidence = round(min(_CEILING if case.allocator.known or retries else _CEILING_BLIND, max(_FLOOR, confidence)), 2)
    return Vote(
        "R-11 fragmentation", Kind.FRAGMENTATION, confidence, tuple(reasons), tuple(against), tuple(missing),
        decisive=confidence >= 0.5,
    )


def _other_readings(case: Case) -> list[str]:
    """What else makes memory unallocated and yet of no use: R-14, R-15, R-16."""
    newest = newest_minor(case.version)
    streams = case.root is not None and _STREAMS.search(case.root.excerpt)
    readings = [
        "Free pieces of another stream count as unallocated too, and cannot serve this one (R-15)"
        + (": sharded training uses several streams." if streams else "."),
        "So do blocks freed on one stream and still awaited by another, where the same request may succeed when tried "
        "again (R-16).",
    ]
    if newest is not None and newest < 4:
        readings.append("Before PyTorch 2.4 the pools of CUDA graphs count as unallocated (R-14).")
    return readings


def not_fragmentation(case: Case) -> Vote | None:
    """What remains where fragmentation is possible and little supports it: a working set at the card's edge."""
    figures = case.figures
    vote = fragmentation(case)
    if vote is None:
        return None
    confidence = round(0.92 - vote.confidence, 2)
    detail, when = static_or_grown(case)
    reasons = [
        f"{size(figures.fields.allocated_bytes)} of {size(figures.fields.capacity_bytes)} are allocated by live "
        "tensors; what is unallocated may be of no use to this request."
    ]
    if case.allocator.expandable:
        reasons.append("Expandable segments are already on, and the request still failed.")
    return Vote(
        "R-15 unallocated is not usable", Kind.TRUE_OOM, confidence, (*reasons, when), (), vote.missing,
        decisive=False, detail=detail,
    )
