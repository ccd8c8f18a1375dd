"""What the figures of an out-of-memory message allow to compute (rules R-01 to R-04), with their rounding error."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.model.log import MemoryFields
from runbook.model.units import GIB, MIB

SMALL_REQUESTS = (2 * MIB, 20 * MIB)
"""R-06: what the allocator asks the driver for when it needs anything up to 1 MiB, or up to 10 MiB."""

ORDINARY_CONTEXT_BYTES = 3 * GIB // 2
"""R-02: CUDA context, kernels, NCCL buffers and library workspaces of an ordinary process."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one message in bytes; None where the message does not say and nothing follows."""

    fields: MemoryFields
    reserved_bytes: int | None
    """R-01."""
    unallocated_bytes: int | None
    """R-01: reserved and not allocated."""
    outside_bytes: int | None
    """R-02: of this process, outside PyTorch's allocator."""
    unattributed_bytes: int | None
    """R-03: in use and nobody's that the message names."""
    available_bytes: int | None
    """R-04: free plus reserved but unallocated, the most that a perfectly defragmented card could give."""

    available_error_bytes: int = 0
    """What rounding can put on `available_bytes`."""
    reserved_error_bytes: int = 0
    self_pid: int | None = None
    """R-17 (a): the process of the message that must be the failing one, under its host's pid."""
    self_certain: bool = False
    """Its memory agrees with what PyTorch reserved."""
    process_bytes: int | None = None
    """All memory of the failing process, printed or by `self_pid`."""
    unexplained_bytes: int | None = None
    """Where the message lists no process at all: in use, and not reserved by PyTorch."""

    @property
    def tried(self) -> int | None:
        return self.fields.tried_bytes

    @property
    def free(self) -> int | None:
        return self.fields.free_bytes

    @property
    def short_bytes(self) -> int | None:
        """Tried less free: what the driver could not give."""
        if self.tried is None or self.free is None:
            return None
        return max(0, self.tried - self.free)

    @property
    def small_request(self) -> bool:
        """R-06: the request says only "anything small"."""
        return self.tried in SMALL_REQUESTS


def figures_of(fields: MemoryFields, own_pids: frozenset[int] = frozenset()) -> Figures:
    """Compute R-01 to R-04. Negative results within rounding become zero. `own_pids`: other processes of the job."""
    allocated = fields.allocated_bytes
    reserved: int | None = fields.reserved_bytes
    unallocated: int | None = fields.reserved_unallocated_bytes
    reserved_error, unallocated_error = print_error(reserved), print_error(unallocated)
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
        reserved_error = print_error(allocated) + unallocated_error
    if unallocated is None and allocated is not None and reserved is not None:
        unallocated = max(0, reserved - allocated)
        unallocated_error = print_error(reserved) + print_error(allocated)
    self_pid, certain, process = _self(fields, reserved, reserved_error, own_pids)
    outside = max(0, process - reserved) if process is not None and reserved is not None else None
    unattributed = unexplained = None
    others = [one.bytes for one in fields.other_processes if one.pid != self_pid]
    if fields.capacity_bytes is not None and fields.free_bytes is not None:
        used = fields.capacity_bytes - fields.free_bytes
        if process is not None and None not in others:
            unattributed = max(0, used - process - sum(value for value in others if value is not None))
        elif process is None and not fields.other_processes and reserved is not None:
            unexplained = max(0, used - reserved)
    available = None
    if fields.free_bytes is not None and unallocated is not None:
        available = fields.free_bytes + unallocated
    return Figures(
        fields, reserved, unallocated, outside, unattributed, available,
        print_error(fields.free_bytes) + unallocated_error, reserved_error, self_pid, certain, process, unexplained,
    )


def _self(
    fields: MemoryFields, reserved: int | None, error: int, own_pids: frozenset[int]
) -> tuple[int | None, bool, int | None]:
    """(pid in the list, whether its size agrees, all memory of the failing process).

    Where NVML runs in another pid namespace, "this process" is missing and the process stands in the list under its
    host's pid: it is the only one, or the one whose size is what PyTorch reserved and a context (R-17 a)."""
    if fields.process_bytes is not None or reserved is None:
        return None, fields.process_bytes is not None, fields.process_bytes
    listed = [one for one in fields.other_processes if one.pid not in own_pids]
    error += 6 * MIB
    least, most = reserved - error, reserved + 2 * ORDINARY_CONTEXT_BYTES + error
    fitting = [(one.bytes, one.pid) for one in listed if one.bytes is not None and least <= one.bytes <= most]
    if fitting:
        size_bytes, pid = min(fitting)
        return pid, len(fitting) == 1, size_bytes
    if len(listed) == 1 and (listed[0].bytes is None or listed[0].bytes >= least):
        return listed[0].pid, False, listed[0].bytes
    return None, False, None


def print_error(*figures: int | None) -> int:
    """The most that PyTorch's print format (two decimals of KiB, MiB or GiB) is off for a sum of these figures."""
    error = 0.0
    for figure in figures:
        if figure is not None and figure > 1 << 10:
            unit = 1 << 10 if figure <= MIB else MIB if figure <= GIB else GIB
            error += 0.005 * unit
    return round(error)


def size(value: int | None) -> str:
    """"1.91 GiB": a figure as the reasons show it."""
    if value is None:
        return "an unknown amount"
    if abs(value) >= GIB:
        return f"{value / GIB:.2f} GiB"
    if abs(value) >= MIB:
        return f"{value / MIB:.0f} MiB"
    return f"{value} bytes"
