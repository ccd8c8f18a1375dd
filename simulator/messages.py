"""Pure: the text of PyTorch's out-of-memory error, in the wording of a named version.

The wordings by version follow the released wheels and ``c10/cuda/CUDACachingAllocator.cpp``: 2.1 prints
"capacty", 2.3 prints the GPU's number as a character (so GPU 0 ends the text), the private pools appear in 2.4,
"allowed" is missing from 2.1 to 2.4, and the advice names another variable in 2.10 and another page from 2.11 on.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.allocator import format_size

from .versions import TorchVersion


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process on the GPU as the message lists it."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The figures of one out-of-memory error, in bytes; ``gpu`` is the number inside the process."""

    gpu: int
    tried_bytes: int
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    own: ProcessUse
    others: tuple[ProcessUse, ...] = ()
    allowed_bytes: int | None = None
    private_pool_bytes: int = 0


def exception_name(version: TorchVersion) -> str:
    """What stands before the colon in the last line of a traceback."""
    if version >= (2, 4):
        return "torch.OutOfMemoryError"
    if version >= (1, 13):
        return "torch.cuda.OutOfMemoryError"
    return "RuntimeError"


def cuda_error_name(version: TorchVersion) -> str:
    """The exception of a failed CUDA call that is not the caching allocator's out-of-memory error."""
    return "torch.AcceleratorError" if version >= (2, 8) else "RuntimeError"


def out_of_memory_text(error: OutOfMemory, version: TorchVersion) -> str:
    """The message, from "CUDA out of memory." on."""
    tried = format_size(error.tried_bytes)
    if version < (2, 1):
        return _text_before_2_1(error, tried)
    if (2, 3) <= version < (2, 4):
        if error.gpu == 0:
            return f"CUDA out of memory. Tried to allocate {tried}. GPU "
        number = chr(error.gpu)
    else:
        number = str(error.gpu)
    capacity = "capacty" if version < (2, 2) else "capacity"
    private_bytes = error.private_pool_bytes if version >= (2, 4) else 0
    allocated_bytes = error.allocated_bytes + private_bytes
    unallocated_bytes = error.reserved_bytes - allocated_bytes
    private = ""
    if private_bytes > 0:
        private = f"with {format_size(private_bytes)} allocated in private pools (e.g., CUDA Graphs), "
    allowed = ""
    if error.allowed_bytes is not None and version >= (2, 5):
        allowed = f"{format_size(error.allowed_bytes)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU {number} has a total {capacity} of "
        f"{format_size(error.total_bytes)} of which {format_size(error.free_bytes)} is free. "
        f"{_processes(error)}{allowed}"
        f"Of the allocated memory {format_size(allocated_bytes)} is allocated by PyTorch, {private}"
        f"and {format_size(unallocated_bytes)} is reserved by PyTorch but unallocated. {_advice(version)}"
    )


def _processes(error: OutOfMemory) -> str:
    clauses = [
        (use.pid, f"Process {use.pid} has {format_size(use.used_bytes)} memory in use. ") for use in error.others
    ]
    own = f"Including non-PyTorch memory, this process has {format_size(error.own.used_bytes)} memory in use. "
    clauses.append((error.own.pid, own))
    return "".join(clause for _, clause in sorted(clauses))


def _advice(version: TorchVersion) -> str:
    lead = "If reserved but unallocated memory is large try setting "
    if version < (2, 2):
        return (
            f"{lead}max_split_size_mb to avoid fragmentation.  "
            "See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
        )
    variable = "PYTORCH_ALLOC_CONF" if version == (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"
    page = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
    if version >= (2, 11):
        page = (
            "https://docs.pytorch.org/docs/stable/notes/cuda.html"
            "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
        )
    return (
        f"{lead}{variable}=expandable_segments:True to avoid fragmentation.  "
        f"See documentation for Memory Management  ({page})"
    )


def _text_before_2_1(error: OutOfMemory, tried: str) -> str:
    allowed = "" if error.allowed_bytes is None else f"{format_size(error.allowed_bytes)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {tried} (GPU {error.gpu}; "
        f"{format_size(error.total_bytes)} total capacity; {format_size(error.allocated_bytes)} already allocated; "
        f"{format_size(error.free_bytes)} free; {allowed}"
        f"{format_size(error.reserved_bytes)} reserved in total by PyTorch) "
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  "
        "See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def watchdog_lines(
    rank: int, version: TorchVersion, work: int, elements: int, limit_ms: int, took_ms: int
) -> list[str]:
    """What the NCCL watchdog of a surviving rank writes before it aborts.

    ``{stamp}`` stands where the time goes; ``work`` counts the collective operations of the rank.
    Source: ``ProcessGroupNCCL.cpp`` as printed by 2.1 to 2.13 (timeout) and by 2.4, 2.8 (status).
    """
    prefix = f"[rank{rank}]:[E{{stamp}} ProcessGroupNCCL.cpp"
    lines = [
        f"{prefix}:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, "
        f"OpType=_REDUCE_SCATTER_BASE, NumelIn={elements}, NumelOut={elements}, Timeout(ms)={limit_ms}) "
        f"ran for {took_ms} milliseconds before timing out."
    ]
    if version >= (2, 8):
        lines.append(
            f"{prefix}:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work "
            f"sequence id: {work} PG status: last enqueued work: {work}, last completed work: {work - 1}"
        )
    elif version >= (2, 4):
        lines.append(
            f"{prefix}:1785] [PG 0 (default_pg) Rank {rank}] Exception (either an error or timeout) detected by "
            f"watchdog at work: {work}, last enqueued NCCL work: {work}, last completed NCCL work: {work - 1}."
        )
    lines.append(
        f"{prefix}:630] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature "
        "of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
    )
    lines.append(
        f"{prefix}:636] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down."
    )
    return lines
