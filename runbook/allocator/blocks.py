"""Vocabulary: a piece of a segment, and the two pools of pieces that are free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from .expandable import ExpandableSegment


@dataclass(slots=True, eq=False)
class Block:
    """A contiguous piece of one segment; neighbours in the segment are linked.

    ``mapped`` is False only for the part of an expandable segment's address range that has no memory behind it.
    """

    pool: BlockPool
    stream: int
    address: int
    size_bytes: int
    requested_bytes: int = 0
    allocated: bool = False
    mapped: bool = True
    previous: Block | None = None
    next: Block | None = None
    segment: ExpandableSegment | None = None
    garbage_count_base: int = 0

    def is_split(self) -> bool:
        """Whether the segment holds other blocks too, so that this one cannot be given back to the driver."""
        return self.previous is not None or self.next is not None


@dataclass(slots=True, eq=False)
class BlockPool:
    """Free blocks of one size class, ordered by (stream, size, address), and unmapped ones by address."""

    is_small: bool
    free_lookups: int = 0
    _free: list[tuple[int, int, int]] = field(default_factory=list)
    _unmapped: list[tuple[int, int]] = field(default_factory=list)
    _by_address: dict[int, Block] = field(default_factory=dict)

    def insert(self, block: Block) -> None:
        """Put a block among the free ones."""
        insort(self._free, (block.stream, block.size_bytes, block.address))
        self._by_address[block.address] = block
        block.garbage_count_base = self.free_lookups

    def remove(self, block: Block) -> None:
        """Take a block, whose size has not changed since ``insert``, from the free ones."""
        key = (block.stream, block.size_bytes, block.address)
        position = bisect_left(self._free, key)
        if position >= len(self._free) or self._free[position] != key:
            raise AssertionError(f"block at {block.address:#x} is not in the free list")
        del self._free[position]
        del self._by_address[block.address]

    def insert_unmapped(self, block: Block) -> None:
        """Put a block among those with addresses but no memory."""
        insort(self._unmapped, (block.stream, block.address))
        self._by_address[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Take a block from those with addresses but no memory."""
        del self._unmapped[bisect_left(self._unmapped, (block.stream, block.address))]
        del self._by_address[block.address]

    def first_fitting(self, stream: int, size_bytes: int) -> Iterator[Block]:
        """Free blocks of the stream with at least ``size_bytes``, smallest first, then by address."""
        position = bisect_left(self._free, (stream, size_bytes, 0))
        while position < len(self._free) and self._free[position][0] == stream:
            yield self._by_address[self._free[position][2]]
            position += 1

    def largest_first(self, stream: int) -> list[Block]:
        """All free blocks of the stream, largest first."""
        return [self._by_address[key[2]] for key in reversed(self._free) if key[0] == stream]

    def free_blocks(self) -> list[Block]:
        """All free blocks with memory behind them, in the pool's order."""
        return [self._by_address[key[2]] for key in self._free]

    def unmapped_blocks(self, stream: int) -> list[Block]:
        """Blocks without memory, lowest address first."""
        return [self._by_address[address] for owner, address in self._unmapped if owner == stream]


def merge(block: Block, neighbour: Block | None) -> int:
    """Take a free neighbour into ``block``, which is in no pool itself; its bytes, or 0 (``try_merge_blocks``)."""
    if neighbour is None or neighbour.allocated or neighbour.mapped != block.mapped:
        return 0
    if neighbour.mapped:
        block.pool.remove(neighbour)
    else:
        block.pool.remove_unmapped(neighbour)
    if neighbour is block.previous:
        block.address = neighbour.address
        block.previous = neighbour.previous
        if block.previous is not None:
            block.previous.next = block
    else:
        block.next = neighbour.next
        if block.next is not None:
            block.next.previous = block
    block.size_bytes += neighbour.size_bytes
    return neighbour.size_bytes


def split_front(block: Block, size_bytes: int) -> Block:
    """Cut the first ``size_bytes`` off a block that is in no pool and return them; ``block`` keeps the rest."""
    front = Block(block.pool, block.stream, block.address, size_bytes, mapped=block.mapped, segment=block.segment)
    front.previous, front.next = block.previous, block
    if block.previous is not None:
        block.previous.next = front
    block.previous = front
    block.address += size_bytes
    block.size_bytes -= size_bytes
    return front
