"""Rules on an out-of-memory message with figures, in the order in which they decide.

Each follows a numbered rule of the facts on PyTorch's allocator: R-04 is the strongest that one line allows.
"""

from __future__ import annotations

from runbook.diagnosis.allocator import newest_minor
from runbook.diagnosis.case import Case, Vote
from runbook.diagnosis.figures import ORDINARY_CONTEXT_BYTES, print_error, size
from runbook.model.diagnosis import Kind
from runbook.model.node import GpuProcess, NodeVerdict
from runbook.model.units import GIB, MIB, Unknown

_ABSURD_BYTES = 1 << 50
_MATERIAL_SHARE = 0.05
_ENGINES = ("vllm", "sglang", "verl", "areal", "slime", "relax", "openrlhf")


def absurd_size(case: Case) -> Vote | None:
    """R-13: a request of a petabyte is a corrupted number."""
    tried = case.figures.tried
    if tried is None or tried < _ABSURD_BYTES:
        return None
    return Vote(
        "R-13 absurd size", Kind.NOT_OOM, 0.9,
        (f"The message asks for {size(tried)}, which no device has: the size is garbage, not a shortage.",),
        missing=("what corrupted the size, often a collective that failed earlier",),
    )


def impossible(case: Case) -> Vote | None:
    """R-08: more was asked for than the card has."""
    tried, capacity = case.figures.tried, case.figures.fields.capacity_bytes
    if tried is None or capacity is None or tried <= capacity + print_error(tried, capacity):
        return None
    return Vote(
        "R-08 impossible request", Kind.TRUE_OOM, 0.95,
        (
            f"Tried {size(tried)} on a card of {size(capacity)}: one request is larger than the whole card, so a "
            "shape, the batch times the sequence, or a model that is not sharded is at fault.",
            "No allocator setting and no free card could have served it.",
        ),
    )


def limit(case: Case) -> Vote | None:
    """R-09: the process may not use what is free."""
    figures = case.figures
    allowed, tried, free, reserved = figures.fields.limit_bytes, figures.tried, figures.free, figures.reserved_bytes
    if allowed is None or tried is None or free is None or reserved is None:
        return None
    if reserved + tried <= allowed - figures.reserved_error_bytes - print_error(tried, allowed):
        return None
    figure = (
        f"Reserved {size(reserved)} and tried {size(tried)} make {size(reserved + tried)}, "
        f"over the {size(allowed)} that this process is allowed"
    )
    if free + print_error(free, tried) >= tried:
        return Vote(
            "R-09 per-process limit", Kind.PER_PROCESS_LIMIT, 0.96,
            (f"{figure}, while {size(free)} of the card are free.",
             "A memory fraction is set for this process; the card itself is not full."),
        )
    return Vote(
        "R-09 per-process limit", Kind.PER_PROCESS_LIMIT, 0.6, (f"{figure}.",),
        (f"The card itself had only {size(free)} free, so the limit is not the only cause.",), decisive=False,
    )


def free_enough(case: Case) -> Vote | None:
    """R-10: free memory would have sufficed, and no limit is printed."""
    figures = case.figures
    tried, free = figures.tried, figures.free
    if tried is None or free is None or free < tried or figures.fields.limit_bytes is not None:
        return None
    said = f"Tried {size(tried)} while {size(free)} were free: the figures contradict a plain shortage."
    newest = newest_minor(case.version)
    hidden = newest is not None and 1 <= newest <= 4
    fraction = case.allocator.fraction is not None
    if fraction or any("fraction" in name.lower() for name in case.settings):
        return Vote(
            "R-10 free is enough", Kind.PER_PROCESS_LIMIT, 0.8,
            (said, "The template sets a memory fraction for the process, which this message does not print."),
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
            "R-10 free is enough", Kind.PER_PROCESS_LIMIT, 0.5,
            (said, "This PyTorch (2.1 to 2.4) hides a limit that is set."), missing=tuple(missing),
        )
    return Vote("R-10 free is enough", Kind.UNDETERMINED, 0.5, (said,), missing=tuple(missing))


def co_tenant(case: Case) -> Vote | None:
    """R-17, R-18, R-03: memory in the hands of another process."""
    figures, fields = case.figures, case.figures.fields
    short = figures.short_bytes
    judgement = case.judgement()
    held = 0
    names: list[str] = []
    if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED:
        held = sum(one.used_bytes for one in judgement.tenants if not isinstance(one.used_bytes, Unknown))
        names = [_named(one) for one in judgement.tenants[:4]]
        if short is None or held + print_error(figures.tried, figures.free) >= short:
            return Vote(
                "R-17 co-tenant", Kind.CO_TENANT, 0.9 if short is not None else 0.75,
                (
                    f"The node check of {judgement.node} found memory of the card in other hands: "
                    f"{', '.join(names) or 'tenants'} with {size(held)}"
                    + (f"; {size(short)} were missing." if short is not None else "."),
                    *judgement.reasons[:2],
                ),
            )
    if short is None:
        return None
    own = case.own_pids()
    foreign = [one for one in fields.other_processes if one.pid not in own]
    if _is_self(case) is not None:
        foreign = [one for one in foreign if one.pid != _is_self(case)]
    known = sum(one.bytes for one in foreign if one.bytes is not None)
    if foreign and known + print_error(known, figures.tried, figures.free) >= short and known > 0:
        return _message_tenant(case, known, short, [one.pid for one in foreign])
    if figures.unattributed_bytes is not None and figures.unattributed_bytes >= max(short, 2 * GIB):
        return Vote(
            "R-03 unattributed memory", Kind.CO_TENANT, 0.5,
            (f"{size(figures.unattributed_bytes)} of the card are in use by nobody that the message names; "
             f"{size(short)} were missing.",),
            ("Another container, MPS or a slice of the card that this process may not use looks the same.",),
            ("nvidia-smi on the node, to see whose it is",),
        )
    return None


def _named(process: GpuProcess) -> str:
    owner = "unknown owner" if isinstance(process.owner, Unknown) else process.owner
    return f"process {process.pid} ({process.name or 'unnamed'}, {owner})"


def _message_tenant(case: Case, known: int, short: int, pids: list[int]) -> Vote | None:
    own_count = len(case.figures.fields.other_processes) - len(pids)
    listed = ", ".join(str(pid) for pid in pids[:4])
    small = all((one.bytes or 0) < 2 * GIB for one in case.figures.fields.other_processes)
    if len(pids) >= 3 and small:
        return Vote(
            "R-17 ranks share a GPU", Kind.CUDA_CONTEXT_OR_DRIVER, 0.6,
            (f"{len(pids)} other processes ({listed}) hold {size(known)} together, each less than 2 GiB: every local "
             "rank made its context on the same GPU (a missing set_device, map_location or CUDA_VISIBLE_DEVICES).",),
            missing=("the owners of these processes, from nvidia-smi on the node",),
        )
    judgement = case.judgement()
    clean = judgement is not None and judgement.verdict is NodeVerdict.CLEAN
    confidence = 0.6 if clean else 0.75
    if case.figures.available_bytes is not None and known * 4 < (case.figures.reserved_bytes or 0) // 10:
        confidence -= 0.15
    against = []
    if clean and judgement is not None:
        against.append(f"The later check of {judgement.node} saw no other process; it may have ended meanwhile.")
    if own_count:
        against.append(f"{own_count} of the processes in the message are this job's own ranks.")
    return Vote(
        "R-17 co-tenant", Kind.CO_TENANT, confidence,
        (f"The message names process{'es' if len(pids) > 1 else ''} {listed} on the same card with {size(known)}; "
         f"{size(short)} were missing, so without them the request would have been served.",),
        tuple(against),
        () if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED
        else ("whose processes these are: pids in a container are the host's, and a trainer may share its card with "
              "its own rollout engine on purpose",),
    )


def _is_self(case: Case) -> int | None:
    """R-17 (a): in a container NVML shows the own process under its host pid; then "this process" is missing."""
    fields, reserved = case.figures.fields, case.figures.reserved_bytes
    error = case.figures.reserved_error_bytes + 6 * MIB
    if fields.process_bytes is not None or reserved is None:
        return None
    fitting = [
        one for one in fields.other_processes
        if one.bytes is not None
        and reserved - error <= one.bytes <= reserved + 3 * GIB + error
    ]
    return fitting[0].pid if len(fitting) == 1 else None


def private_pools(case: Case) -> Vote | None:
    """R-14: free memory inside CUDA graphs' pools, which only they may use."""
    figures, fields = case.figures, case.figures.fields
    pool, tried, capacity = fields.private_pool_bytes, figures.tried, fields.capacity_bytes
    if pool is None or tried is None or capacity is None or pool < tried or pool < capacity // 10:
        return None
    return Vote(
        "R-14 private pools", Kind.TRUE_OOM, 0.7,
        (f"{size(pool)} lie in private pools (CUDA graphs), which only their owner may use again; tried {size(tried)}.",
         "Fewer or smaller graph captures, or none, give it back; expandable segments do not reach these pools."),
        missing=("whether the graphs are needed at these sizes",),
    )


def outside_allocator(case: Case) -> Vote | None:
    """R-02, R-19: this process's memory outside PyTorch's allocator is large."""
    figures = case.figures
    outside, tried = figures.outside_bytes, figures.tried
    if outside is None or tried is None:
        return None
    excess = outside - ORDINARY_CONTEXT_BYTES
    if excess < tried or outside < 3 * GIB:
        return None
    engine = (case.story.framework or "").lower() in _ENGINES or any(
        name in (case.root.excerpt.lower() if case.root else "") for name in ("vllm", "sglang", "cumem")
    )
    kind = Kind.INFERENCE_RESERVATION if engine else Kind.NCCL_BUFFERS
    whose = (
        "an inference engine's pool in the same process" if engine
        else "NCCL's buffers, library workspaces or another pool"
    )
    return Vote(
        "R-02 memory outside the allocator", kind, 0.65,
        (f"This process holds {size(outside)} outside PyTorch's allocator (ordinary is up to "
         f"{size(ORDINARY_CONTEXT_BYTES)}), which is {size(excess)} too many for a request of {size(tried)}.",
         f"It is {whose}; the caching allocator cannot give it back."),
        missing=("what in this process takes it: NCCL_DEBUG=INFO, or a memory snapshot",),
    )


def exhausted(case: Case) -> Vote | None:
    """R-04: even perfectly defragmented, the card could not have served the request."""
    figures = case.figures
    tried, available = figures.tried, figures.available_bytes
    if tried is None or available is None:
        return None
    error = figures.available_error_bytes + print_error(tried)
    sum_of = (
        f"tried {size(tried)}; free {size(figures.free)} + reserved but unallocated "
        f"{size(figures.unallocated_bytes)} = {size(available)}"
    )
    if available < tried - error:
        return Vote(
            "R-04 perfect defragmentation", Kind.TRUE_OOM, 0.93,
            (f"{sum_of[:1].upper()}{sum_of[1:]}: less than tried, so no allocator setting could have served it.",
             *_static_or_grown(case)),
        )
    if available < tried + error:
        return Vote(
            "R-04 perfect defragmentation", Kind.TRUE_OOM, 0.6,
            (f"{sum_of[:1].upper()}{sum_of[1:]}: equal to what was tried within the rounding of the message "
             f"({size(error)}), so at best the last byte would have fitted.", *_static_or_grown(case)),
            decisive=False,
        )
    unallocated = figures.unallocated_bytes or 0
    reserved = figures.reserved_bytes or 0
    if figures.small_request:
        share = unallocated / reserved if reserved else 0.0
        if share >= 2 * _MATERIAL_SHARE:
            return None
        return Vote(
            "R-06 small request", Kind.TRUE_OOM, 0.75,
            (f"Tried {size(tried)}, which stands for any small request: the card was simply full "
             f"({size(figures.fields.allocated_bytes)} allocated, {share:.0%} of the reserved memory in slivers).",
             *_static_or_grown(case)),
            (f"{sum_of[:1].upper()}{sum_of[1:]}: more than tried.",),
        )
    if unallocated < tried and reserved and unallocated < _MATERIAL_SHARE * reserved:
        return Vote(
            "R-11 unallocated part immaterial", Kind.TRUE_OOM, 0.75,
            (f"Reserved but unallocated is only {size(unallocated)}, {unallocated / reserved:.1%} of what is reserved: "
             "the working set fills the card.", *_static_or_grown(case)),
            (f"{sum_of[:1].upper()}{sum_of[1:]}: a little more than tried.",),
        )
    return None


def _static_or_grown(case: Case) -> tuple[str, ...]:
    progress = case.story.progress
    done = case.steps_done()
    if progress.last_step is None:
        return ("It happened before any step was completed: a static size (batch, sequence, model, sharding).",)
    if done is not None and done <= 1:
        return (f"It happened within the first steps of this run (last: {progress.last_step}): a static size.",)
    return (
        f"It happened after {done} completed steps (last: {progress.last_step}): the working set grew, by longer "
        "sequences, late optimizer state or something kept alive.",
    )
