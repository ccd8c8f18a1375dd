"""Memory from and to the driver: plain segments, and expandable ones mapped page by page.

Follows ``alloc_block``, ``release_block`` and the expandable-segment functions of
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import Block, BlockPool, merge, split_front
from .counters import AllocatorStatistics
from .expandable import ExpandableSegment, MemorySource

_FIRST_ADDRESS = 0x7F0000000000
_FAR_ADDRESS = 1 << 60


@dataclass(slots=True, eq=False)
class SegmentSource:
    """Takes memory from a device for one allocator, keeps count, and gives it back; sizes in bytes."""

    memory: MemorySource
    statistics: AllocatorStatistics
    reserved_bytes: int = 0
    expected: list[tuple[int, int]] = field(default_factory=list)
    """Addresses and sizes that a recorded driver gave next: of blocks of one size the lowest address is taken."""
    _next_address: int = _FIRST_ADDRESS
    _expandable: list[ExpandableSegment] = field(default_factory=list)

    def new_segment(self, pool: BlockPool, stream: int, segment_bytes: int) -> Block | None:
        """One free block that is a whole new segment and in no pool, or None if the device is full."""
        if not self.memory.take(segment_bytes):
            return None
        address = self._next_address
        if self.expected and self.expected[0][1] == segment_bytes:
            address = self.expected.pop(0)[0]
        else:
            self._next_address += segment_bytes
        block = Block(pool, stream, address, segment_bytes)
        self._count(segment_bytes, pool)
        self.statistics.segment.increase(1, pool.is_small)
        return block

    def expect(self, segments: Sequence[tuple[int, int]]) -> None:
        """Addresses and sizes of plain segments that come next. Where others come, their addresses are far away."""
        self.expected[:] = segments
        self._next_address = max(self._next_address, _FAR_ADDRESS)

    def adopt(self, pool: BlockPool, stream: int, address: int, pieces: Sequence[int]) -> list[Block]:
        """A segment that is there already, in pieces of these sizes, linked and in no pool."""
        blocks: list[Block] = []
        for size in pieces:
            block = Block(pool, stream, address, size, previous=blocks[-1] if blocks else None)
            if blocks:
                blocks[-1].next = block
            blocks.append(block)
            address += size
        self.memory.take(sum(pieces))
        self._count(sum(pieces), pool)
        self.statistics.segment.increase(1, pool.is_small)
        return blocks

    def release(self, block: Block) -> None:
        """Give a free block that is a whole segment back to the device."""
        block.pool.remove(block)
        self.memory.give_back(block.size_bytes)
        self._count(-block.size_bytes, block.pool)
        self.statistics.segment.decrease(1, block.pool.is_small)

    def expand(self, pool: BlockPool, stream: int, size_bytes: int) -> Block | None:
        """A free block of at least ``size_bytes`` in an expandable segment, in no pool; None if the device is full.

        ``try_allocate_expandable_block``: memory is mapped behind a run of free and unmapped blocks.
        """
        block: Block | None = self._find_expandable(pool, stream, size_bytes)
        assert block is not None
        if not block.mapped:
            block = self._map(block, min(block.size_bytes, size_bytes))
        while block is not None and block.size_bytes < size_bytes:
            unmapped = block.next
            assert unmapped is not None
            block = self._map(unmapped, min(size_bytes - block.size_bytes, unmapped.size_bytes))
        if block is None:
            return None
        pool.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Take the memory from the whole pages of a free block of an expandable segment (``unmap_block``)."""
        assert block.segment is not None
        pool, address, size = block.pool, block.address, block.size_bytes
        first, unmapped_bytes = block.segment.unmap(self.memory, address, size)
        if unmapped_bytes == 0:
            return
        pool.remove(block)
        if first > address:
            pool.insert(split_front(block, first - address))
        if block.size_bytes > unmapped_bytes:
            middle = split_front(block, unmapped_bytes)
            pool.insert(block)
            block = middle
        block.mapped = False
        merge(block, block.previous)
        merge(block, block.next)
        pool.insert_unmapped(block)
        self._count(-unmapped_bytes, pool)

    def _find_expandable(self, pool: BlockPool, stream: int, size_bytes: int) -> Block:
        """The lowest run of free and unmapped blocks that is long enough, else the start of a new range."""
        for unmapped in pool.unmapped_blocks(stream):
            before = unmapped.previous
            start = before if before is not None and not before.allocated else unmapped
            available_bytes = 0
            block: Block | None = start
            while block is not None and not block.allocated and available_bytes < size_bytes:
                available_bytes += block.size_bytes
                block = block.next
            if available_bytes >= size_bytes:
                return start
        segment = ExpandableSegment.reserve(self._next_address, self.memory.total_bytes, pool.is_small)
        self._next_address += segment.size_bytes
        self._expandable.append(segment)
        self.statistics.segment.increase(1, pool.is_small)
        new = Block(pool, stream, segment.address, segment.size_bytes, mapped=False, segment=segment)
        pool.insert_unmapped(new)
        return new

    def _map(self, block: Block, size_bytes: int) -> Block | None:
        """Put memory behind the first ``size_bytes`` (whole pages) of an unmapped block (``map_block``).

        Returns the free block, in its pool, that now holds it and its free neighbours; None if the device is full.
        """
        assert block.segment is not None
        mapped_bytes = block.segment.map(self.memory, block.address, size_bytes)
        if mapped_bytes == 0:
            return None
        pool = block.pool
        pool.remove_unmapped(block)
        if mapped_bytes < block.size_bytes:
            front = split_front(block, mapped_bytes)
            pool.insert_unmapped(block)
            block = front
        block.mapped = True
        merge(block, block.previous)
        merge(block, block.next)
        pool.insert(block)
        self._count(mapped_bytes, pool)
        return block

    def _count(self, change_bytes: int, pool: BlockPool) -> None:
        self.reserved_bytes += change_bytes
        if change_bytes >= 0:
            self.statistics.num_device_alloc += 1
            self.statistics.reserved_bytes.increase(change_bytes, pool.is_small)
        else:
            self.statistics.num_device_free += 1
            self.statistics.reserved_bytes.decrease(-change_bytes, pool.is_small)
