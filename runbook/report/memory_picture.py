"""A GPU's memory in parts, from an error message or from what a job printed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from runbook.model.log import MemoryFields, MemorySample
from runbook.model.units import MIB, size

if TYPE_CHECKING:
    from runbook.model.node import GpuFacts


class Part(StrEnum):
    """A part of a GPU's memory, named for its colour class."""

    ALLOCATED = "allocated"
    UNALLOCATED = "unallocated"
    OUTSIDE = "outside"
    OTHERS = "others"
    UNKNOWN = "unknown"
    FREE = "free"


PART_WORDS: dict[Part, str] = {
    Part.ALLOCATED: "Allocated by PyTorch",
    Part.UNALLOCATED: "Reserved by PyTorch, unallocated",
    Part.OUTSIDE: "This process, outside PyTorch",
    Part.OTHERS: "Other processes",
    Part.UNKNOWN: "Not accounted for",
    Part.FREE: "Free",
}


@dataclass(frozen=True, slots=True)
class MemoryPart:
    part: Part
    bytes: int | None
    """None: unknown; it is listed and not drawn."""
    label: str = ""
    """Instead of the part's usual words."""

    @property
    def words(self) -> str:
        return self.label or PART_WORDS[self.part]


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """One GPU's memory at one moment, in the order it is drawn. Bytes."""

    parts: tuple[MemoryPart, ...]
    capacity_bytes: int | None
    tried_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def known_bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.parts)

    @property
    def used_bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.parts if part.part is not Part.FREE)


def memory_at_failure(fields: MemoryFields, gpu: GpuFacts | None = None) -> MemoryPicture | None:
    """The error message's figures as parts of the card; None when it gives none to draw.

    The parts follow PyTorch's message (c10/cuda/CUDACachingAllocator.cpp): this process holds what PyTorch
    reserved (allocated and unallocated) and what is outside it; the rest is free or other processes'.
    """
    capacity = _figure(fields.capacity_bytes) or None
    if capacity is None and gpu is not None and isinstance(gpu.total_bytes, int):
        capacity = _figure(gpu.total_bytes) or None
    allocated = _figure(fields.allocated_bytes)
    unallocated, reserved = _figure(fields.unallocated), _figure(fields.reserved)
    process = _figure(fields.process_bytes)
    outside = _figure(process - reserved) if process is not None and reserved is not None else None
    others = [_figure(use.bytes) for use in fields.other_processes]
    others_bytes = sum(value for value in others if value is not None) if any(others) else None
    free = _figure(fields.free_bytes)
    if allocated is None and reserved is None and process is None and free is None:
        return None
    parts = [
        MemoryPart(Part.ALLOCATED, allocated),
        MemoryPart(Part.UNALLOCATED, unallocated),
        MemoryPart(Part.OUTSIDE, outside),
    ]
    if fields.other_processes:
        unsized = sum(1 for value in others if value is None)
        label = f"Other processes ({unsized} of {len(others)} of unknown size)" if unsized else ""
        if _counted_twice(capacity, others_bytes, reserved, process, free):
            # In a container a message may name its own process by the host's pid, as if it were another's.
            others_bytes = max(0, (others_bytes or 0) - (reserved or 0))
            label = "The processes named, this one among them, beyond that"
        parts.append(MemoryPart(Part.OTHERS, others_bytes, label))
    rest = _rest(capacity, parts, free, fields.rounding_bytes)
    if rest is not None:
        parts.append(MemoryPart(Part.UNKNOWN, rest))
    parts.append(MemoryPart(Part.FREE, free))
    return MemoryPicture(
        tuple(parts), capacity, _figure(fields.tried_bytes), free, _figure(fields.limit_bytes) or None
    )


def _counted_twice(
    capacity: int | None, others: int | None, reserved: int | None, process: int | None, free: int | None
) -> bool:
    """Whether more is in use than the card has, unless this process is one of those that the message names."""
    if capacity is None or others is None or reserved is None or process is not None:
        return False
    return reserved + others + (free or 0) > capacity + 64 * MIB and others + (free or 0) <= capacity + 64 * MIB


def memory_after(sample: MemorySample, capacity_bytes: int | None) -> MemoryPicture | None:
    """The relaunched job's peak as it printed it; None when it printed no reserve."""
    reserved = _figure(
        sample.max_reserved_bytes if sample.max_reserved_bytes is not None else sample.reserved_bytes
    )
    allocated = _figure(
        sample.max_allocated_bytes if sample.max_allocated_bytes is not None else sample.allocated_bytes
    )
    if reserved is None:
        return None
    unallocated = _figure(reserved - allocated) if allocated is not None else None
    parts = [MemoryPart(Part.ALLOCATED, allocated, "Peak allocated by PyTorch")]
    if allocated is None:
        parts = [MemoryPart(Part.ALLOCATED, reserved, "Peak reserved by PyTorch")]
    else:
        parts.append(MemoryPart(Part.UNALLOCATED, unallocated, "Peak reserved beyond that"))
    if capacity_bytes is not None and capacity_bytes > reserved:
        parts.append(MemoryPart(Part.FREE, capacity_bytes - reserved, "Not reserved by PyTorch"))
    return MemoryPicture(tuple(parts), capacity_bytes)


def _figure(value: int | None) -> int | None:
    """A size that can be one: logs are other people's text, and a negative size is none."""
    return value if value is not None and value >= 0 else None


def _rest(capacity: int | None, parts: list[MemoryPart], free: int | None, rounding: int | None) -> int | None:
    """What the figures leave open; None when that is within the message's rounding, or what is free is not known."""
    if capacity is None or free is None:
        return None
    rest = capacity - sum(part.bytes or 0 for part in parts) - free
    return rest if rest > max(rounding or 0, 64 * MIB) else None


def shortfall(picture: MemoryPicture) -> str:
    """What the request lacked, and whether the allocator's own reserve would have covered it; "" when unknown."""
    if picture.tried_bytes is None or picture.free_bytes is None:
        return ""
    short = picture.tried_bytes - picture.free_bytes
    if short <= 0:
        return (
            f"{size(picture.tried_bytes)} was asked for and {size(picture.free_bytes)} is listed as free: "
            "the card alone does not explain the failure."
        )
    sentence = f"{size(picture.tried_bytes)} was asked for, {size(picture.free_bytes)} was free: {size(short)} short."
    unallocated = next((part.bytes for part in picture.parts if part.part is Part.UNALLOCATED), None)
    if unallocated is not None:
        together = unallocated + picture.free_bytes
        verdict = "enough, had it been in one piece" if together >= picture.tried_bytes else "still too little"
        sentence += f" With the allocator's unallocated reserve it would have been {size(together)}: {verdict}."
    return sentence
