"""A model of PyTorch's CUDA caching allocator, without a GPU and without PyTorch: a snapshot's trace is replayed
through it, and the simulator's jobs allocate from it.

It imports nothing but the standard library, and its modules import each other relatively: the examples copy it beside
the simulator, to where jobs run under a Python of their own."""

from .allocator import UNLIMITED_BYTES, AllocationFailedError, AllocatorConfig, CachingAllocator
from .blocks import Block, BlockPool
from .byte_sizes import (
    GIB,
    LARGE_SEGMENT_BYTES,
    MIB,
    MIN_BLOCK_BYTES,
    SMALL_SEGMENT_BYTES,
    SMALL_SIZE_BYTES,
    format_size,
    round_up,
    segment_bytes_for,
)
from .expandable import GpuMemory, MemorySource
from .segments import SegmentSource

__all__ = [
    "GIB", "LARGE_SEGMENT_BYTES", "MIB", "MIN_BLOCK_BYTES", "SMALL_SEGMENT_BYTES", "SMALL_SIZE_BYTES",
    "UNLIMITED_BYTES", "AllocationFailedError", "AllocatorConfig", "Block", "BlockPool", "CachingAllocator",
    "GpuMemory", "MemorySource", "SegmentSource", "format_size", "round_up", "segment_bytes_for",
]
