"""A model of PyTorch's CUDA caching allocator (``c10/cuda/CUDACachingAllocator.cpp``), without CUDA.

Same rounding, pools, best fit, splitting, merging, retry order and counters; left out are private pools of CUDA
graphs, blocks waiting for events of other streams, and the cudaMallocAsync backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import Block, BlockPool, merge, split_front
from .byte_sizes import LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, SMALL_SIZE_BYTES, round_up, segment_bytes_for
from .counters import AllocatorStatistics
from .expandable import MemorySource
from .segments import SegmentSource

UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """Settings of one process's allocator; sizes in bytes, ``roundup_power2_divisions`` 0 means off."""

    expandable_segments: bool = False
    max_split_size_bytes: int = UNLIMITED_BYTES
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: int = 0
    per_process_memory_fraction: float | None = None


@dataclass(slots=True)
class AllocationFailedError(Exception):
    """No memory for a request, even after cached blocks were released; all figures in bytes.

    ``tried_bytes`` is the segment that was asked for, as in PyTorch's message, not the request.
    """

    requested_bytes: int
    tried_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    allowed_bytes: int | None


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """One process's allocator on one device. Not thread-safe."""

    memory: MemorySource
    config: AllocatorConfig = field(default_factory=AllocatorConfig)
    statistics: AllocatorStatistics = field(default_factory=AllocatorStatistics)
    small_pool: BlockPool = field(default_factory=lambda: BlockPool(is_small=True))
    large_pool: BlockPool = field(default_factory=lambda: BlockPool(is_small=False))
    _active: dict[int, Block] = field(default_factory=dict)
    _segments: SegmentSource = field(init=False)

    def __post_init__(self) -> None:
        self._segments = SegmentSource(self.memory, self.statistics)

    @property
    def allowed_bytes(self) -> int | None:
        """Upper limit on reserved memory if a per-process fraction is set, else None."""
        fraction = self.config.per_process_memory_fraction
        return None if fraction is None else int(fraction * self.memory.total_bytes)

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver (``torch.cuda.memory_reserved``)."""
        return self._segments.reserved_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks handed out (``torch.cuda.memory_allocated``)."""
        return self.statistics.allocated_bytes.all.current

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        """A block of at least ``size_bytes``; AllocationFailedError if it cannot be had."""
        rounded = self.round_size(size_bytes)
        pool = self.small_pool if rounded <= SMALL_SIZE_BYTES else self.large_pool
        block = self._find_free(pool, stream, rounded)
        if block is None:
            self._collect_garbage()
            block = self._new_segment(pool, stream, rounded)
        if block is None and self._release_oversize(pool, stream, rounded):
            block = self._new_segment(pool, stream, rounded)
        if block is None:
            self.release_cached()
            self.statistics.num_alloc_retries += 1
            block = self._new_segment(pool, stream, rounded)
        if block is None:
            self.statistics.num_ooms += 1
            raise AllocationFailedError(
                requested_bytes=size_bytes,
                tried_bytes=segment_bytes_for(rounded),
                free_bytes=self.memory.free_bytes(),
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
                allowed_bytes=self.allowed_bytes,
            )
        return self._hand_out(block, rounded, size_bytes)

    def adopt(self, address: int, pieces: Sequence[tuple[int, bool]], *, small: bool, stream: int) -> list[Block]:
        """Take a segment as it was found: its pieces' sizes, and whether they are handed out. Their counters begin
        with it. The address and the pieces are a recorded allocator's."""
        pool = self.small_pool if small else self.large_pool
        blocks = self._segments.adopt(pool, stream, address, [size for size, _ in pieces])
        for block, (size, allocated) in zip(blocks, pieces, strict=True):
            if not allocated:
                pool.insert(block)
                continue
            block.allocated, block.requested_bytes = True, size
            self._active[block.address] = block
            for counter in (self.statistics.allocation, self.statistics.active):
                counter.increase(1, small)
            for counter in (self.statistics.allocated_bytes, self.statistics.active_bytes):
                counter.increase(size, small)
            self.statistics.requested_bytes.increase(size, small)
        return blocks

    def expect_segments(self, segments: Sequence[tuple[int, int]]) -> None:
        """Addresses and sizes of the segments that come next, as a recorded driver gave them."""
        self._segments.expect(segments)

    def free(self, block: Block) -> None:
        """Give a block back to the cache, merged with free neighbours of its segment."""
        if not block.allocated:
            raise ValueError(f"block at {block.address:#x} is not allocated")
        block.allocated = False
        statistics, pool, size = self.statistics, block.pool, block.size_bytes
        statistics.allocation.decrease(1, pool.is_small)
        statistics.active.decrease(1, pool.is_small)
        statistics.allocated_bytes.decrease(size, pool.is_small)
        statistics.active_bytes.decrease(size, pool.is_small)
        statistics.requested_bytes.decrease(block.requested_bytes, pool.is_small)
        del self._active[block.address]
        for neighbour in (block.previous, block.next):
            merged_bytes = merge(block, neighbour)
            if merged_bytes and block.segment is None:
                statistics.inactive_split.decrease(1, pool.is_small)
                statistics.inactive_split_bytes.decrease(merged_bytes, pool.is_small)
        if block.is_split() and block.segment is None:
            statistics.inactive_split.increase(1, pool.is_small)
            statistics.inactive_split_bytes.increase(block.size_bytes, pool.is_small)
        pool.insert(block)

    def release_cached(self) -> None:
        """Return every cached block that is a whole segment, and every empty page, to the driver."""
        for pool in (self.large_pool, self.small_pool):
            blocks = pool.free_blocks()
            for block in blocks:
                if block.segment is None and not block.is_split():
                    self._segments.release(block)
            for block in blocks:
                if block.segment is not None:
                    self._segments.unmap(block)

    empty_cache = release_cached

    def blocks(self) -> list[Block]:
        """Every block with memory behind it, allocated or cached, by address."""
        free = self.small_pool.free_blocks() + self.large_pool.free_blocks()
        return sorted([*self._active.values(), *free], key=lambda block: block.address)

    def round_size(self, size_bytes: int) -> int:
        """The size a request takes: a multiple of 512 bytes, or of a power-of-two division if that is set."""
        divisions = self.config.roundup_power2_divisions
        if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
            power = 1 << (size_bytes.bit_length() - 1)
            return size_bytes if power == size_bytes else power + round_up(size_bytes - power, power // divisions)
        return max(MIN_BLOCK_BYTES, round_up(size_bytes, MIN_BLOCK_BYTES))

    # -- a block for a request -----------------------------------------------------------------------------

    def _find_free(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """Best fit among the cached blocks (``get_free_block``)."""
        if self._collects_garbage():
            pool.free_lookups += 1
        candidates = pool.first_fitting(stream, size)
        block = next(candidates, None)
        if block is None:
            return None
        if block.segment is not None:
            for other in candidates:
                if block.segment is None or _growable_bytes(other) >= _growable_bytes(block):
                    break
                block = other
        limit = self.config.max_split_size_bytes
        if size < limit <= block.size_bytes:
            return None
        if size >= limit and block.size_bytes >= size + self.config.max_non_split_rounding_bytes:
            return None
        pool.remove(block)
        return block

    def _new_segment(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """Memory from the driver (``alloc_block``), or None."""
        segment_bytes = segment_bytes_for(size)
        allowed = self.allowed_bytes
        if allowed is not None and self.reserved_bytes + segment_bytes > allowed:
            return None
        if self.config.expandable_segments:
            return self._segments.expand(pool, stream, size)
        return self._segments.new_segment(pool, stream, segment_bytes)

    def _hand_out(self, block: Block, size: int, requested_bytes: int) -> Block:
        """Split off what is not needed if the rules allow, and count (``alloc_found_block``)."""
        pool, statistics = block.pool, self.statistics
        was_split = block.is_split()
        left_bytes = block.size_bytes - size
        if self._splits(block, size, left_bytes):
            rest, block = block, split_front(block, size)
            pool.insert(rest)
            if rest.segment is None:
                if was_split:
                    statistics.inactive_split_bytes.decrease(size, pool.is_small)
                else:
                    statistics.inactive_split_bytes.increase(left_bytes, pool.is_small)
                    statistics.inactive_split.increase(1, pool.is_small)
        elif was_split and block.segment is None:
            statistics.inactive_split_bytes.decrease(block.size_bytes, pool.is_small)
            statistics.inactive_split.decrease(1, pool.is_small)
        block.allocated = True
        block.requested_bytes = requested_bytes
        self._active[block.address] = block
        statistics.allocation.increase(1, pool.is_small)
        statistics.active.increase(1, pool.is_small)
        statistics.allocated_bytes.increase(block.size_bytes, pool.is_small)
        statistics.active_bytes.increase(block.size_bytes, pool.is_small)
        statistics.requested_bytes.increase(requested_bytes, pool.is_small)
        return block

    def _splits(self, block: Block, size: int, left_bytes: int) -> bool:
        """``should_split``: small pool and expandable segments from 512 bytes on, else more than 1 MiB left."""
        if block.pool.is_small or self.config.expandable_segments:
            return left_bytes >= MIN_BLOCK_BYTES
        return size < self.config.max_split_size_bytes and left_bytes > SMALL_SIZE_BYTES

    # -- giving back ---------------------------------------------------------------------------------------

    def _release_oversize(self, pool: BlockPool, stream: int, size: int) -> bool:
        """With ``max_split_size_mb``: release enough oversize blocks (``release_available_cached_blocks``)."""
        limit = self.config.max_split_size_bytes
        if limit >= 1 << 62:
            return False
        wanted = max(size, limit)
        fitting = next(pool.first_fitting(stream, wanted), None)
        if fitting is not None:
            if fitting.segment is None and not fitting.is_split():
                self._segments.release(fitting)
                return True
            return False
        released_bytes = 0
        for block in pool.largest_first(stream):
            if released_bytes >= wanted or block.size_bytes < limit:
                break
            if block.segment is None and not block.is_split():
                released_bytes += block.size_bytes
                self._segments.release(block)
        return released_bytes >= wanted

    def _collects_garbage(self) -> bool:
        return self.config.garbage_collection_threshold > 0 and self.config.per_process_memory_fraction is not None

    def _collect_garbage(self) -> None:
        """Release old whole segments above the threshold; without a memory fraction it does nothing, as in PyTorch."""
        allowed = self.allowed_bytes
        if allowed is None or not self._collects_garbage():
            return
        threshold_bytes = int(self.config.garbage_collection_threshold * allowed)
        target_bytes = self.reserved_bytes - threshold_bytes
        pool = self.large_pool
        freeable = [b for b in pool.free_blocks() if not b.is_split() and b.segment is None]
        while target_bytes > 0 and freeable:
            ages = [pool.free_lookups - block.garbage_count_base for block in freeable]
            average_age = sum(ages) / len(ages)
            kept: list[Block] = []
            for block, age in zip(freeable, ages, strict=True):
                if age >= average_age:
                    target_bytes -= block.size_bytes
                    self._segments.release(block)
                else:
                    kept.append(block)
            freeable = kept


def _growable_bytes(block: Block) -> int:
    """Size of a free block with the unmapped range right behind it, into which it can expand."""
    following = block.next
    if following is not None and not following.mapped:
        return block.size_bytes + following.size_bytes
    return block.size_bytes
