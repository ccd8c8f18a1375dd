"""Rules on an out-of-memory message with figures, in the order in which they decide.

Each follows a numbered rule of the facts on PyTorch's allocator: R-04 is the strongest that one line allows.
"""

from __future__ import annotations

import re

from runbook.diagnosis.case import (
    ORDINARY_CONTEXT_BYTES,
    Case,
    Conclusion,
    Figures,
    Vote,
    newest_minor,
    oldest_minor,
    print_error,
    rule,
    size,
)
from runbook.diagnosis.growth import reserved_creeps, static_or_grown
from runbook.model.diagnosis import Detail
from runbook.model.log import Event, FrameworkRole, Phase
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_diagnosis import Say

_ABSURD_BYTES = 1 << 50
_DOUBTFUL_BYTES = 1 << 44
"""16 TiB: a shape can ask for that by mistake, and garbage can too (R-13)."""
_MATERIAL_SHARE = 0.05
_ENGINE_PHASES = frozenset({Phase.ROLLOUT, Phase.WEIGHT_SYNC})


@rule
def absurd_size(case: Case) -> Vote | None:
    """R-13: a request of a petabyte is a corrupted number."""
    tried = case.figures.tried
    if tried is None or tried < _DOUBTFUL_BYTES:
        return None
    certain = tried >= _ABSURD_BYTES
    return Vote(
        "R-13 absurd size", Conclusion.NOT_OOM, 0.9 if certain else 0.3,
        (Say.SIZE_IS_GARBAGE(tried=size(tried)),),
        missing=(Say.WHAT_CORRUPTED_THE_SIZE(),),
        decisive=certain, detail=Detail.PROGRAM,
    )


@rule
def impossible(case: Case) -> Vote | None:
    """R-08: more was asked for than the card has; softer, more than it has besides this process's fixed part."""
    figures, capacity = case.figures, case.figures.fields.capacity_bytes
    tried, outside = figures.tried, figures.outside_bytes
    if tried is None or capacity is None:
        return None
    error = print_error(tried, capacity)
    slice_of = Say.A_MIG_SLICE() if (case.root and (case.root.node_device or "").startswith("MIG-")) else NOTHING
    if tried > capacity + error:
        return Vote(
            "R-08 impossible request", Conclusion.TRUE_OOM, 0.95 if tried < _DOUBTFUL_BYTES else 0.65,
            (
                Say.LARGER_THAN_THE_CARD(tried=size(tried), capacity=size(capacity), slice_of=slice_of),
                Say.NO_SETTING_AND_NO_CARD_HELPS(),
            ), detail=Detail.IMPOSSIBLE_REQUEST,
        )
    if outside is None or not figures.self_certain or outside > 2 * ORDINARY_CONTEXT_BYTES:
        return None
    error += figures.reserved_error_bytes + print_error(figures.process_bytes)
    if tried <= capacity - outside + error:
        return None
    return Vote(
        "R-08 impossible request, softer", Conclusion.TRUE_OOM, 0.88,
        (Say.WOULD_FAIL_ON_AN_EMPTY_CARD(
            tried=size(tried), capacity=size(capacity), slice_of=slice_of, outside=size(outside),
        ),
         Say.NO_SETTING_HELPS()), detail=Detail.IMPOSSIBLE_REQUEST,
    )


@rule
def limit(case: Case) -> Vote | None:
    """R-09: the process may not use what is free. The allocator tests reserved + tried before it asks the driver."""
    figures = case.figures
    allowed, tried, free = figures.fields.limit_bytes, figures.tried, figures.free
    reserved = figures.reserved_bytes if figures.reserved_bytes is not None else figures.fields.allocated_bytes
    if allowed is None or tried is None or free is None or allowed >= _ABSURD_BYTES:
        return None
    if reserved is None:
        return _limit_of_a_cut_message(case, allowed, tried, free)
    error = figures.reserved_error_bytes + print_error(tried, allowed)
    if reserved + tried <= allowed - error:
        return None
    # In the card too full for it the figures are told as they are; else nothing is called over that rounds to equal.
    over = "over" if reserved + tried > allowed or free + print_error(free, tried) < tried else "about"
    figure = Say.RESERVED_AND_TRIED_AGAINST_LIMIT(
        reserved=size(reserved), tried=size(tried), in_all=size(reserved + tried), over=over, allowed=size(allowed),
    )
    against = []
    unallocated = figures.unallocated_bytes or 0
    if unallocated >= tried and unallocated >= _MATERIAL_SHARE * reserved:
        against.append(Say.UNALLOCATED_WITHIN_LIMIT(unallocated=size(unallocated)))
    if free + print_error(free, tried) < tried:
        return Vote(
            "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, 0.75,
            (Say.STOP(said=figure), Say.LIMIT_IS_TESTED_FIRST()),
            (Say.CARD_WAS_FULL_TOO(free=size(free)), *against),
        )
    confidence = 0.96 if not against else 0.85
    if reserved + tried <= allowed + error:
        confidence = min(confidence, 0.9)
        against.append(Say.EXCESS_BELOW_PRINT_ERROR(error=size(error)))
    return Vote(
        "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, confidence,
        (Say.WHILE_THE_CARD_IS_FREE(figure=figure, free=size(free)),
         Say.FRACTION_IS_SET()), tuple(against),
    )


def _limit_of_a_cut_message(case: Case, allowed: int, tried: int, free: int) -> Vote | None:
    """What this process had reserved is lost; that free memory would have sufficed leaves the limit as the reason."""
    capacity = case.figures.fields.capacity_bytes
    if free < tried + print_error(tried, free) or capacity is None or allowed >= capacity - print_error(capacity):
        return None
    return Vote(
        "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, 0.85,
        (Say.LIMIT_REFUSED_IT(
            tried=size(tried), free=size(free), allowed=size(allowed), capacity=size(capacity),
        ),),
        (Say.MESSAGE_IS_CUT(),),
    )


@rule
def free_enough(case: Case) -> Vote | None:
    """R-10: free memory would have sufficed, and no limit explains the refusal."""
    figures = case.figures
    tried, free = figures.tried, figures.free
    if tried is None or free is None or free < tried + print_error(tried, free):
        return None
    said = Say.FREE_WAS_ENOUGH(tried=size(tried), free=size(free))
    if case.root is not None and case.reports(case.root, Event.FREE_ESTIMATED):
        return Vote(
            "R-10 free is an estimate", Conclusion.UNDETERMINED, 0.5,
            (said, Say.FREE_IS_AN_ESTIMATE()),
            missing=(Say.WHO_ELSE_BY_XPU_SMI(),),
        )
    unallocated, reserved = figures.unallocated_bytes or 0, figures.reserved_bytes or 0
    if unallocated >= 2 * tried and 10 * unallocated >= reserved:
        return Vote(
            "R-10 free is enough", Conclusion.FRAGMENTATION, 0.5,
            (said, Say.ONE_PIECE_IS_MISSING(unallocated=size(unallocated))),
            (Say.FREE_MEMORY_READ_AFTER_FAILURE(),),
            (Say.MEMORY_SUMMARY(),),
        )
    newest, oldest = newest_minor(case.version), oldest_minor(case.version)
    hidden = newest is not None and oldest is not None and oldest >= 1 and newest <= 4
    if case.allocator.fraction is not None or any("fraction" in name.lower() for name in case.settings):
        return Vote(
            "R-10 free is enough", Conclusion.PER_PROCESS_LIMIT, 0.75,
            (said, Say.SETTINGS_HOLD_A_FRACTION()),
            missing=(Say.WHETHER_FRACTION_IS_THE_FAILING_PROCESS(),),
        )
    missing = [
        Say.WHETHER_A_FRACTION_IS_SET(
            hidden=Say.LIMIT_IS_NOT_PRINTED() if hidden else NOTHING,
        ),
        Say.WHETHER_ANOTHER_RELEASED_MEMORY(),
        Say.WHETHER_SOMETHING_LIMITS(),
    ]
    if hidden:
        return Vote(
            "R-10 free is enough", Conclusion.PER_PROCESS_LIMIT, 0.5,
            (said, Say.LIMIT_IS_HIDDEN()), missing=tuple(missing),
        )
    return Vote("R-10 free is enough", Conclusion.UNDETERMINED, 0.5, (said,), missing=tuple(missing))


@rule
def private_pools(case: Case) -> Vote | None:
    """R-14: free memory inside CUDA graphs' pools, which only they may use."""
    figures, fields = case.figures, case.figures.fields
    pool, tried, capacity = fields.private_pool_bytes, figures.tried, fields.capacity_bytes
    if pool is None or tried is None or capacity is None or pool < tried or pool < capacity // 10:
        return None
    return Vote(
        "R-14 private pools", Conclusion.TRUE_OOM, 0.75,
        (Say.HELD_BY_PRIVATE_POOLS(pool=size(pool), tried=size(tried)),
         Say.FEWER_GRAPH_CAPTURES()),
        missing=(Say.WHETHER_GRAPHS_ARE_NEEDED(),), detail=Detail.PRIVATE_POOLS,
    )


@rule
def outside_allocator(case: Case) -> tuple[Vote, ...]:
    """R-02, R-19: this process's memory outside PyTorch's allocator is large."""
    figures = case.figures
    outside, tried = figures.outside_bytes, figures.tried
    if outside is None or tried is None:
        return ()
    excess = outside - ORDINARY_CONTEXT_BYTES
    if excess < tried or outside < 2 * ORDINARY_CONTEXT_BYTES:
        return ()
    excerpt = case.root.excerpt.lower() if case.root else ""
    engines = case.programs(FrameworkRole.ENGINE)
    engine = case.colocation > 0 or any(word in excerpt for one in engines for word in one.words)
    phase = case.root.phase if case.root else Phase.UNKNOWN
    starting = phase is Phase.INIT and any(f"{one.folder}/" in excerpt for one in engines if one.folder)
    in_engine = phase in _ENGINE_PHASES or starting
    confidence = 0.75 if engine and in_engine and case.colocation >= 0.6 else 0.65
    reasons = [
        Say.HELD_OUTSIDE_THE_ALLOCATOR(
            outside=size(outside), ordinary_context_bytes=size(ORDINARY_CONTEXT_BYTES), excess=size(excess),
            tried=size(tried),
        ),
        Say.ENGINES_POOL() if engine else Say.BUFFERS_OR_ANOTHER_POOL(),
    ]
    if engine and in_engine:
        reasons.append(Say.ENGINE_STARTS() if phase is Phase.INIT else Say.ENGINE_TAKES_BACK_OR_GENERATES())
    votes = [Vote(
        "R-02 memory outside the allocator", Conclusion.INFERENCE_RESERVATION if engine else Conclusion.NCCL_BUFFERS,
        confidence if figures.self_certain else 0.5, tuple(reasons), (),
        (Say.WHAT_TAKES_IT(),),
        detail=Detail.LOWER_SHARE if engine else Detail.OUTSIDE,
    )]
    if not figures.self_certain:
        votes.append(Vote(
            "R-17 co-tenant", Conclusion.CO_TENANT, 0.35,
            (Say.ONLY_PROCESS_NAMED(
                self_pid=figures.self_pid, process_bytes=size(figures.process_bytes),
            ),), (), (Say.WHICH_PROCESSES_ARE_ON_THE_CARD(),), decisive=False,
        ))
    return tuple(votes)


@rule
def exhausted(case: Case) -> Vote | None:
    """R-04: even perfectly defragmented, the card could not have served the request."""
    figures = case.figures
    tried, available = figures.tried, figures.available_bytes
    if tried is None or available is None:
        return None
    error = figures.available_error_bytes + print_error(tried)
    detail, when = static_or_grown(case)
    sum_of = _sum_of(figures)
    against = _rounded_requests(case)
    rest = figures.unexplained_bytes
    hidden = rest is not None and rest - ORDINARY_CONTEXT_BYTES >= (figures.short_bytes or 0)
    if hidden:
        against = (*against, Say.REST_NOT_RESERVED(rest=size(rest)))
    if available < tried - error:
        return Vote(
            "R-04 perfect defragmentation", Conclusion.TRUE_OOM, 0.75 if hidden else 0.93,
            (Say.SUM_LESS_THAN_TRIED(sum_of=sum_of), when), against, detail=detail,
        )
    if available < tried + error:
        return Vote(
            "R-04 perfect defragmentation", Conclusion.TRUE_OOM, 0.6,
            (Say.SUM_EQUALS_TRIED(sum_of=sum_of, error=size(error)), when), against,
            decisive=False, detail=detail,
        )
    unallocated, reserved = figures.unallocated_bytes or 0, figures.reserved_bytes or 0
    if figures.free is not None and figures.free >= tried - print_error(tried, figures.free):
        return None
    if figures.small_request:
        share = unallocated / reserved if reserved else 0.0
        if share >= 2 * _MATERIAL_SHARE:
            return None
        return Vote(
            "R-06 small request", Conclusion.TRUE_OOM, 0.75,
            (Say.SMALL_REQUEST_ON_A_FULL_CARD(
                tried=size(tried), allocated_bytes=size(figures.fields.allocated_bytes), share=share,
            ),
             when, Say.FAILING_LINE_IS_RANDOM()),
            (Say.SUM_MORE_THAN_TRIED(sum_of=sum_of), *against), detail=detail,
        )
    if unallocated < tried and reserved and unallocated < _MATERIAL_SHARE * reserved:
        return Vote(
            "R-11 unallocated part immaterial", Conclusion.TRUE_OOM, 0.75,
            (Say.LITTLE_UNALLOCATED(
                unallocated=size(unallocated), share=unallocated / reserved,
            ), when),
            (Say.SUM_LITTLE_MORE_THAN_TRIED(sum_of=sum_of), *against), detail=detail,
        )
    return None


@rule
def edge_of_free(case: Case) -> Vote | None:
    """Free equals tried as far as the message prints them: nothing follows from a difference that rounding hides."""
    figures = case.figures
    if figures.tried is None or figures.free is None:
        return None
    error = print_error(figures.tried, figures.free)
    if not figures.tried - error <= figures.free < figures.tried + error:
        return None
    detail, when = static_or_grown(case)
    return Vote(
        "R-10 free equals tried", Conclusion.TRUE_OOM, 0.55,
        (Say.FREE_EQUALS_TRIED(tried=size(figures.tried), free=size(figures.free), error=size(error)), when),
        (Say.IF_MORE_WAS_FREE(),),
        (Say.EXACT_FIGURES(),), detail=detail,
    )


@rule
def without_unallocated(case: Case) -> tuple[Vote, ...]:
    """backend:cudaMallocAsync: what its pool holds unused is not printed, so R-04 cannot be computed."""
    figures, fields = case.figures, case.figures.fields
    tried, short = figures.tried, figures.short_bytes
    allocated, capacity = fields.allocated_bytes, fields.capacity_bytes
    if figures.available_bytes is not None or tried is None or short is None or allocated is None or capacity is None:
        return ()
    detail, when = static_or_grown(case)
    rest = max(0, capacity - (figures.free or 0) - allocated)
    told = Say.TRIED_WITH_FREE(
        tried=size(tried), free=size(figures.free), allocated=size(allocated), capacity=size(capacity),
    )
    if rest - 2 * ORDINARY_CONTEXT_BYTES < short:
        return (Vote(
            "cudaMallocAsync", Conclusion.TRUE_OOM, 0.8, (told, when),
            (Say.CUDAMALLOCASYNC_PRINTS_NO_UNUSED(),), detail=detail,
        ),)
    reason = Say.REST_NOT_ALLOCATED(told=told, rest=size(rest))
    missing = (Say.HOW_MUCH_THIS_PROCESS_HOLDS(),)
    return (
        Vote("cudaMallocAsync", Conclusion.UNDETERMINED, 0.5, (reason,), (), missing),
        Vote("cudaMallocAsync", Conclusion.TRUE_OOM, 0.45, (reason,), (), missing, decisive=False, detail=detail),
        Vote("cudaMallocAsync", Conclusion.CO_TENANT, 0.3, (reason,), (), missing, decisive=False),
    )


def _sum_of(figures: Figures) -> Sentence:
    """R-04, as the rules that follow it say it."""
    return Say.TRIED_AGAINST_AVAILABLE(
        tried=size(figures.tried), free=size(figures.free), unallocated_bytes=size(figures.unallocated_bytes),
        available=size(figures.available_bytes),
    )


def _rounded_requests(case: Case) -> tuple[Sentence, ...]:
    """R-07."""
    if not case.allocator.rounds_up:
        return ()
    return (Say.REQUESTS_ARE_ROUNDED_UP(),)


# fragmentation is possible, never proven, by one message; its confidence is graded by what supports it.

_FLOOR, _CEILING, _CEILING_BLIND = 0.15, 0.88, 0.8
"""The most that one message gives; less where the allocator's settings are not known."""
_STREAMS = re.compile(r"fsdp|all_gather|reduce_scatter|zero/stage", re.IGNORECASE)


@rule
def fragmentation(case: Case) -> Vote | None:
    """Claimed only where free plus unallocated would have sufficed (R-04)."""
    figures = case.figures
    tried, available, unallocated = figures.tried, figures.available_bytes, figures.unallocated_bytes
    error = figures.available_error_bytes + print_error(tried)
    if tried is None or available is None or unallocated is None or available < tried - error:
        return None
    if figures.free is not None and figures.free >= tried - print_error(tried, figures.free):
        return None
    reserved = figures.reserved_bytes or 0
    reasons = [Say.ENOUGH_IN_SUM(sum_of=_sum_of(figures))]
    confidence, against = 0.55, _other_readings(case)
    ratio, share = unallocated / tried, unallocated / reserved if reserved else 0.0
    if available < tried + error:
        confidence -= 0.3
        against.append(Say.SUM_EXCEEDS_BY_ROUNDING())
    elif ratio >= 2:
        confidence += 0.15
        reasons.append(Say.UNALLOCATED_TIMES_TRIED(ratio=ratio))
    elif ratio < 1.2:
        confidence -= 0.15 if ratio >= 1 else 0.3  # in one piece it would still be too small by itself
        against.append(Say.UNALLOCATED_ONLY_TIMES_TRIED(ratio=ratio))
    if share >= 0.10:
        confidence += 0.1
        reasons.append(Say.SHARE_UNALLOCATED(share=share))
    elif share < 0.05:
        confidence -= 0.3
        against.append(Say.SMALL_SHARE_UNALLOCATED(share=share))
    if figures.small_request:
        confidence -= 0.25
        against.append(Say.ANY_SMALL_REQUEST(tried=size(tried)))
    done = case.steps_done()
    if done is None or done <= 1:
        confidence -= 0.15
        against.append(Say.NO_STEP_OF_SAME_SHAPE())
    else:
        confidence += 0.08
        reasons.append(Say.STEPS_HAD_SUCCEEDED_BEFORE(done=done))
    retries = any(case.reports(one, Event.ALLOCATOR_RETRIES) for one in case.story.harmless)
    if retries:
        confidence += 0.1
        reasons.append(Say.ALLOCATOR_RETRIES())
    creeping = reserved_creeps(case)
    if creeping:
        confidence += 0.1
        reasons.append(creeping)
    if case.allocator.expandable and case.colocation >= 0.8:
        confidence -= 0.3
        against.append(Say.EXPANDABLE_SEGMENTS_ON_BUT_AROUND_ROLLOUT())
    elif case.allocator.expandable:
        confidence -= 0.45
        against.append(Say.EXPANDABLE_SEGMENTS_ON_ALREADY())
    elif case.allocator.ignored:
        confidence += 0.05
        reasons.append(Say.STOP(said=case.allocator.ignored))
    elif case.allocator.known:
        confidence += 0.05
        reasons.append(Say.EXPANDABLE_SEGMENTS_NOT_ON())
    missing = [] if case.allocator.known else [Say.ALLOCATOR_SETTINGS_IN_JOB_ENVIRONMENT()]
    missing.append(Say.MEMORY_SUMMARY_WOULD_PROVE())
    newest = newest_minor(case.version)
    if newest is not None and newest < 4 and unallocated > reserved // 4:
        confidence -= 0.05
        missing.append(Say.WHETHER_GRAPHS_ARE_CAPTURED())
    confidence = round(min(_CEILING if case.allocator.known or retries else _CEILING_BLIND, max(_FLOOR, confidence)), 2)
    return Vote(
        "R-11 fragmentation", Conclusion.FRAGMENTATION, confidence, tuple(reasons), tuple(against), tuple(missing),
        decisive=confidence >= 0.5,
    )


def _other_readings(case: Case) -> list[Sentence]:
    """What else makes memory unallocated and yet of no use: R-14, R-15, R-16."""
    newest = newest_minor(case.version)
    streams = case.root is not None and _STREAMS.search(case.root.excerpt)
    readings = [
        Say.PIECES_OF_ANOTHER_STREAM(why=Say.SHARDED_TRAINING() if streams else NOTHING),
        Say.BLOCKS_AWAITED_BY_ANOTHER_STREAM(),
    ]
    if newest is not None and newest < 4:
        readings.append(Say.GRAPH_POOLS_COUNT_AS_UNALLOCATED())
    return readings


@rule
def not_fragmentation(case: Case) -> Vote | None:
    """What remains where fragmentation is possible and little supports it: a working set at the card's edge."""
    figures = case.figures
    vote = fragmentation(case)
    if vote is None:
        return None
    confidence = round(0.92 - vote.confidence, 2)
    detail, when = static_or_grown(case)
    reasons = [
        Say.ALLOCATED_BY_LIVE_TENSORS(
            allocated_bytes=size(figures.fields.allocated_bytes), capacity_bytes=size(figures.fields.capacity_bytes),
        )
    ]
    if case.allocator.expandable:
        reasons.append(Say.EXPANDABLE_SEGMENTS_ON_AND_FAILED())
    return Vote(
        "R-15 unallocated is not usable", Conclusion.TRUE_OOM, confidence, (*reasons, when), (), vote.missing,
        decisive=False, detail=detail,
    )
