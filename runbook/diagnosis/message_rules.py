"""Rules on an out-of-memory message with figures, in the order in which they decide.

Each follows a numbered rule of the facts on PyTorch's allocator: R-04 is the strongest that one line allows.
"""

from __future__ import annotations

import re

from runbook.diagnosis.case import (
    ORDINARY_CONTEXT_BYTES,
    Case,
    Conclusion,
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
        (f"The message asks for {size(tried)}, which no device has: the size is garbage, not a shortage.",),
        missing=("what corrupted the size, often a collective that failed earlier",),
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
    slice_of = " (a MIG slice)" if (case.root and (case.root.node_device or "").startswith("MIG-")) else ""
    if tried > capacity + error:
        return Vote(
            "R-08 impossible request", Conclusion.TRUE_OOM, 0.95 if tried < _DOUBTFUL_BYTES else 0.65,
            (
                f"Tried {size(tried)} on a card of {size(capacity)}{slice_of}: one request is larger than the whole "
                "card, so a shape, the batch times the sequence, or a model that is not sharded is at fault.",
                "No allocator setting and no free card could have served it.",
            ), detail=Detail.IMPOSSIBLE_REQUEST,
        )
    if outside is None or not figures.self_certain or outside > 2 * ORDINARY_CONTEXT_BYTES:
        return None
    error += figures.reserved_error_bytes + print_error(figures.process_bytes)
    if tried <= capacity - outside + error:
        return None
    return Vote(
        "R-08 impossible request, softer", Conclusion.TRUE_OOM, 0.88,
        (f"Tried {size(tried)} on a card of {size(capacity)}{slice_of}, of which {size(outside)} are this process's "
         "CUDA context and libraries: it would fail on an otherwise empty card.",
         "No allocator setting could have served it."), detail=Detail.IMPOSSIBLE_REQUEST,
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
    figure = (
        f"Reserved {size(reserved)} and tried {size(tried)} make {size(reserved + tried)}, "
        f"over the {size(allowed)} that this process is allowed"
    )
    against = []
    unallocated = figures.unallocated_bytes or 0
    if unallocated >= tried and unallocated >= _MATERIAL_SHARE * reserved:
        against.append(f"{size(unallocated)} of what it holds are unallocated, so within the limit the memory may be "
                       "fragmented.")
    if free + print_error(free, tried) < tried:
        return Vote(
            "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, 0.75,
            (f"{figure}.", "The allocator tests the limit before it asks the driver, so the limit refused it."),
            (f"The card itself had only {size(free)} free, so the limit is not the only cause.", *against),
        )
    confidence = 0.96 if not against else 0.85
    if reserved + tried <= allowed + error:
        confidence = min(confidence, 0.9)
        figure = figure.replace("over the", "about the") if reserved + tried <= allowed else figure
        against.append(f"The excess is below the print error of {size(error)}; the free memory speaks for the limit.")
    return Vote(
        "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, confidence,
        (f"{figure}, while {size(free)} of the card are free.",
         "A memory fraction is set for this process; the card itself is not full."), tuple(against),
    )


def _limit_of_a_cut_message(case: Case, allowed: int, tried: int, free: int) -> Vote | None:
    """What this process had reserved is lost; that free memory would have sufficed leaves the limit as the reason."""
    capacity = case.figures.fields.capacity_bytes
    if free < tried + print_error(tried, free) or capacity is None or allowed >= capacity - print_error(capacity):
        return None
    return Vote(
        "R-09 per-process limit", Conclusion.PER_PROCESS_LIMIT, 0.85,
        (f"Tried {size(tried)} while {size(free)} of the card were free, and this process is allowed {size(allowed)} "
         f"of {size(capacity)}: the limit refused it.",),
        ("The message is cut, so what the process had reserved is not known.",),
    )


@rule
def free_enough(case: Case) -> Vote | None:
    """R-10: free memory would have sufficed, and no limit explains the refusal."""
    figures = case.figures
    tried, free = figures.tried, figures.free
    if tried is None or free is None or free < tried + print_error(tried, free):
        return None
    said = f"Tried {size(tried)} while {size(free)} were free: the figures contradict a plain shortage."
    if case.root is not None and case.reports(case.root, Event.FREE_ESTIMATED):
        return Vote(
            "R-10 free is an estimate", Conclusion.UNDETERMINED, 0.5,
            (said, "On Intel's devices the free figure is capacity less what PyTorch reserved, an estimate: another "
                   "process may hold the rest."),
            missing=("xpu-smi on the node: who else holds memory of the device",),
        )
    unallocated, reserved = figures.unallocated_bytes or 0, figures.reserved_bytes or 0
    if unallocated >= 2 * tried and 10 * unallocated >= reserved:
        return Vote(
            "R-10 free is enough", Conclusion.FRAGMENTATION, 0.5,
            (said, f"{size(unallocated)} more are reserved and unallocated: what is missing is one piece, in either."),
            ("Free memory is read after the failure; another process may have released it in between.",),
            ("torch.cuda.memory_summary() or a memory snapshot of this rank",),
        )
    newest, oldest = newest_minor(case.version), oldest_minor(case.version)
    hidden = newest is not None and oldest is not None and oldest >= 1 and newest <= 4
    if case.allocator.fraction is not None or any("fraction" in name.lower() for name in case.settings):
        return Vote(
            "R-10 free is enough", Conclusion.PER_PROCESS_LIMIT, 0.75,
            (said, "The job's settings hold a memory fraction for the process, which this message does not print."),
            missing=("whether the fraction is that of the failing process",),
        )
    missing = [
        "whether the program calls set_per_process_memory_fraction" + (
            " (PyTorch 2.1 to 2.4 does not print the limit)" if hidden else ""
        ),
        "whether another process released memory at that moment (free is read after the failure)",
        "whether CUDA graphs, a memory pool, MIG or a vGPU limit the allocation",
    ]
    if hidden:
        return Vote(
            "R-10 free is enough", Conclusion.PER_PROCESS_LIMIT, 0.5,
            (said, "This PyTorch (2.1 to 2.4) hides a limit that is set."), missing=tuple(missing),
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
        (f"{size(pool)} lie in private pools (CUDA graphs), which only their owner may use again; tried {size(tried)}.",
         "Fewer or smaller graph captures, or none, give it back; expandable segments do not reach these pools."),
        missing=("whether the graphs are needed at these sizes",), detail=Detail.PRIVATE_POOLS,
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
        f"This process holds {size(outside)} outside PyTorch's allocator (ordinary is up to "
        f"{size(ORDINARY_CONTEXT_BYTES)}), which is {size(excess)} too many for a request of {size(tried)}.",
        ("It is an inference engine's pool in the same process" if engine
         else "It is NCCL's buffers, library workspaces or another pool")
        + "; the caching allocator cannot give it back.",
    ]
    if engine and in_engine:
        doing = "starts" if phase is Phase.INIT else "takes its memory back or generates"
        reasons.append(f"It failed while the engine {doing}: lower the engine's share.")
    votes = [Vote(
        "R-02 memory outside the allocator", Conclusion.INFERENCE_RESERVATION if engine else Conclusion.NCCL_BUFFERS,
        confidence if figures.self_certain else 0.5, tuple(reasons), (),
        ("what in this process takes it: NCCL_DEBUG=INFO, or a memory snapshot",),
        detail=Detail.LOWER_SHARE if engine else Detail.OUTSIDE,
    )]
    if not figures.self_certain:
        votes.append(Vote(
            "R-17 co-tenant", Conclusion.CO_TENANT, 0.35,
            (f"Process {figures.self_pid} with {size(figures.process_bytes)} is the only one that the message names "
             "and it holds far more than PyTorch reserved here; if it is not this process under its host's pid, it is "
             "somebody else's.",), (), ("nvidia-smi on the node: which processes are on the card",), decisive=False,
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
    sum_of = (
        f"Tried {size(tried)}; free {size(figures.free)} + reserved but unallocated "
        f"{size(figures.unallocated_bytes)} = {size(available)}"
    )
    against = _rounded_requests(case)
    rest = figures.unexplained_bytes
    hidden = rest is not None and rest - ORDINARY_CONTEXT_BYTES >= (figures.short_bytes or 0)
    if hidden:
        against = (*against, f"{size(rest)} of the card are in use and not reserved by PyTorch, and this message lists "
                             "no processes.")
    if available < tried - error:
        return Vote(
            "R-04 perfect defragmentation", Conclusion.TRUE_OOM, 0.75 if hidden else 0.93,
            (f"{sum_of}: less than tried, so no allocator setting could have served it.", when), against, detail=detail,
        )
    if available < tried + error:
        return Vote(
            "R-04 perfect defragmentation", Conclusion.TRUE_OOM, 0.6,
            (f"{sum_of}: equal to what was tried within the rounding of the message "
             f"({size(error)}), so at best the last byte would have fitted.", when), against,
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
            (f"Tried {size(tried)}, which stands for any small request: the card was simply full "
             f"({size(figures.fields.allocated_bytes)} allocated, {share:.0%} of the reserved memory in slivers).",
             when, "The failing line of code is a random victim."),
            (f"{sum_of}: more than tried.", *against), detail=detail,
        )
    if unallocated < tried and reserved and unallocated < _MATERIAL_SHARE * reserved:
        return Vote(
            "R-11 unallocated part immaterial", Conclusion.TRUE_OOM, 0.75,
            (f"Reserved but unallocated is only {size(unallocated)}, {unallocated / reserved:.1%} of what is reserved: "
             "the working set fills the card.", when),
            (f"{sum_of}: a little more than tried.", *against), detail=detail,
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
        (f"Tried {size(figures.tried)} with {size(figures.free)} free: equal within the rounding of the message "
         f"({size(error)}), so the card was full to the last page.", when),
        ("If a little more was free than was tried, something else refused the request.",),
        ("nvidia-smi or a memory snapshot, which print exact figures",), detail=detail,
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
    told = f"Tried {size(tried)} with {size(figures.free)} free and {size(allocated)} of {size(capacity)} allocated."
    if rest - 2 * ORDINARY_CONTEXT_BYTES < short:
        return (Vote(
            "cudaMallocAsync", Conclusion.TRUE_OOM, 0.8, (told, when),
            ("backend:cudaMallocAsync does not print what its pool holds unused.",), detail=detail,
        ),)
    reason = (
        f"{told} {size(rest)} are in use and not allocated by this program: unused in CUDA's pool, outside it, or "
        "another process's."
    )
    missing = ("nvidia-smi on the node: how much of the card this process holds, and who else",)
    return (
        Vote("cudaMallocAsync", Conclusion.UNDETERMINED, 0.5, (reason,), (), missing),
        Vote("cudaMallocAsync", Conclusion.TRUE_OOM, 0.45, (reason,), (), missing, decisive=False, detail=detail),
        Vote("cudaMallocAsync", Conclusion.CO_TENANT, 0.3, (reason,), (), missing, decisive=False),
    )


def _rounded_requests(case: Case) -> tuple[str, ...]:
    """R-07."""
    if not case.allocator.rounds_up:
        return ()
    return ("roundup_power2_divisions is set, so what is allocated is more than the tensors asked for.",)


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
        confidence -= 0.15 if ratio >= 1 else 0.3  # in one piece it would still be too small by itself
        against.append(f"The unallocated part is only {ratio:.2f} times what was tried.")
    if share >= 0.10:
        confidence += 0.1
        reasons.append(f"{share:.0%} of the reserved memory is unallocated.")
    elif share < 0.05:
        confidence -= 0.3
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
    retries = any(case.reports(one, Event.ALLOCATOR_RETRIES) for one in case.story.harmless)
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
        "R-11 fragmentation", Conclusion.FRAGMENTATION, confidence, tuple(reasons), tuple(against), tuple(missing),
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
        f"{size(figures.fields.allocated_bytes)} of {size(figures.fields.capacity_bytes)} are allocated by live "
        "tensors; what is unallocated may be of no use to this request."
    ]
    if case.allocator.expandable:
        reasons.append("Expandable segments are already on, and the request still failed.")
    return Vote(
        "R-15 unallocated is not usable", Conclusion.TRUE_OOM, confidence, (*reasons, when), (), vote.missing,
        decisive=False, detail=detail,
    )
