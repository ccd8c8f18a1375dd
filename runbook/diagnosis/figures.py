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


def figures_of(fields: MemoryFields) -> Figures:
    """Compute R-01 to R-04. Negative results within rounding become zero."""
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
    outside = None
    if fields.process_bytes is not None and reserved is not None:
        outside = max(0, fields.process_bytes - reserved)
    unattributed = None
    others = [process.bytes for process in fields.other_processes]
    if fields.capacity_bytes is not None and fields.free_bytes is not None and fields.process_bytes is not None:
        known = sum(value for value in others if value is not None)
        if None not in others:
            unattributed = max(0, fields.capacity_bytes - fields.free_bytes - fields.process_bytes - known)
    available = None
    if fields.free_bytes is not None and unallocated is not None:
        available = fields.free_bytes + unallocated
    return Figures(
        fields, reserved, unallocated, outside, unattributed, available,
        print_error(fields.free_bytes) + unallocated_error, reserved_error,
    )


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
