"""An expandable segment: one long range of addresses to which memory is mapped page by page.

Follows ``ExpandableSegment`` of ``c10/cuda/CUDACachingAllocator.cpp``: pages of 2 MiB (small pool) or 20 MiB
(large pool), and an address range of 1 1/8 of the card's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .byte_sizes import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES


class MemorySource(Protocol):
    """Where an allocator gets its memory from (``cudaMalloc``, ``cudaFree``, ``cudaMemGetInfo``)."""

    @property
    def total_bytes(self) -> int:
        """Capacity of the device in bytes."""

    def take(self, size_bytes: int) -> bool:
        """Take memory; False if there is not so much left."""

    def give_back(self, size_bytes: int) -> None:
        """Return memory taken before."""

    def free_bytes(self) -> int:
        """Bytes nobody holds."""


@dataclass(slots=True)
class GpuMemory:
    """A card, or what a process may have of one, used by one allocator alone."""

    total_bytes: int
    used_bytes: int = 0

    def take(self, size_bytes: int) -> bool:
        """See `MemorySource`."""
        if self.used_bytes + size_bytes > self.total_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """See `MemorySource`."""
        self.used_bytes -= size_bytes

    def free_bytes(self) -> int:
        """See `MemorySource`."""
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True, slots=True)
class ExpandableSegment:
    """An address range that is mapped in pages; sizes and addresses in bytes."""

    address: int
    page_bytes: int
    pages: int

    @classmethod
    def reserve(cls, address: int, device_bytes: int, is_small: bool) -> ExpandableSegment:
        """A range for one pool on a device of ``device_bytes``."""
        page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        return cls(address, page_bytes, -(-device_bytes * 9 // (8 * page_bytes)))

    @property
    def size_bytes(self) -> int:
        """Length of the address range."""
        return self.page_bytes * self.pages

    def map(self, memory: MemorySource, address: int, size_bytes: int) -> int:
        """Map whole pages from ``address`` (page-aligned) on; bytes mapped, or 0 if the device is full."""
        pages = -(-size_bytes // self.page_bytes)
        mapped_bytes = pages * self.page_bytes
        return mapped_bytes if memory.take(mapped_bytes) else 0

    def unmap(self, memory: MemorySource, address: int, size_bytes: int) -> tuple[int, int]:
        """Give back the pages that lie wholly in the range: (first address, bytes), bytes 0 if there are none."""
        first = -(-(address - self.address) // self.page_bytes)
        last = (address + size_bytes - self.address) // self.page_bytes
        if first >= last:
            return address, 0
        given_back_bytes = (last - first) * self.page_bytes
        memory.give_back(given_back_bytes)
        return self.address + first * self.page_bytes, given_back_bytes
