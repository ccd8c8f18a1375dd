"""Vocabulary: the byte sizes the caching allocator works with, and how PyTorch prints a size."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

#: The constants below are those of ``c10/cuda/CUDACachingAllocator.cpp`` (names there in parentheses).
MIN_BLOCK_BYTES = 512  # kMinBlockSize: every size is rounded up to a multiple of this
SMALL_SIZE_BYTES = MIB  # kSmallSize: the largest request the small pool serves
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: a segment of the small pool
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer: the segment for requests between 1 and 10 MiB
MIN_LARGE_ALLOCATION_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a segment is made to measure
ROUND_LARGE_BYTES = 2 * MIB  # kRoundLarge: segments made to measure are multiples of this


def round_up(size_bytes: int, multiple_bytes: int) -> int:
    """The smallest multiple of ``multiple_bytes`` that is not below ``size_bytes``."""
    return -(-size_bytes // multiple_bytes) * multiple_bytes


def segment_bytes_for(size_bytes: int) -> int:
    """Bytes asked from the driver for a block of ``size_bytes`` (``get_allocation_size`` in the source).

    This is also the figure an OutOfMemoryError calls "Tried to allocate".
    """
    if size_bytes <= SMALL_SIZE_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_LARGE_ALLOCATION_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(size_bytes, ROUND_LARGE_BYTES)


def format_size(size_bytes: int) -> str:
    """A size as PyTorch prints it: powers of 1024, two decimals, the limits inclusive, nothing above GiB.

    Source: ``format_size`` in ``c10/cuda/CUDACachingAllocator.cpp``; exactly 1 GiB prints ``1024.00 MiB``.
    """
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    if size_bytes <= MIB:
        return f"{size_bytes / KIB:.2f} KiB"
    if size_bytes <= GIB:
        return f"{size_bytes / MIB:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"
