"""Parts of logs, read and searched ahead of who judges them: results in the order of the work, memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import BinaryIO, Protocol, TypeVar, cast

from runbook.logs.search.literals import LiteralSearch
from runbook.logs.search.scan import AHEAD_BYTES, CHUNK_BYTES, KEPT_BYTES, SearchedStretch, search_stretch

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")
_LARGEST_BUFFER = KEPT_BYTES + CHUNK_BYTES + AHEAD_BYTES
_SEGMENTS_A_BATCH = 64
MOST_BYTES = 32 << 30
"""Of one file: some ten seconds."""


class Parts(Protocol):
    """A file of which any part can be read, by several threads at a time: what an adapter makes of a plain file."""

    @property
    def size_bytes(self) -> int:
        """As it was when the file was opened."""

    def read_at(self, space: memoryview, offset: int) -> int:
        """Fill a space from an offset; the bytes that were read, 0 at the file's end. Raises OSError."""

    def next_data(self, offset: int) -> int:
        """Where the file has blocks from an offset on; its size where it has none behind."""


class InOrder(Protocol):
    """Results of work in its order, as `map` gives them; an adapter's are made ahead, on threads."""

    def __call__(self, do: Callable[[_Work], _Result], work: Iterable[_Work], /) -> Iterator[_Result]:
        """What `do` raises is raised to the caller in its turn."""


def parts_of(stream: BinaryIO) -> Parts | None:
    """The parts of a stream, where it, or what it buffers, can be read so; None: from its first byte on only."""
    for one in (stream, getattr(stream, "raw", None)):
        if hasattr(one, "read_at"):
            return cast(Parts, one)
    return None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a file to be searched: from `start` to `stop`, with what lies around it from `low` to `high`."""

    index: int
    parts: Parts
    low: int
    start: int
    stop: int
    high: int
    first: bool = False
    """The file's handler hears of it first."""
    last: bool = False
    count: bool = True
    """Whether its line ends are counted."""
    cut_from: int = -1
    """Where the part in front begins that was not read as the file is too large; -1: there is none."""


@dataclass(slots=True)
class Searched:
    """A segment's bytes and what was found in them, in positions of the buffer."""

    segment: Segment
    buffer: bytearray
    end: int
    part: SearchedStretch
    error: OSError | None = None

    @property
    def start(self) -> int:
        return self.segment.start - self.segment.low

    @property
    def stop(self) -> int:
        """Before the segment's own end where the file was cut meanwhile."""
        return max(self.start, min(self.segment.stop - self.segment.low, self.end))


def segments_of(index: int, parts: Parts, size: int, start: int = 0, count: bool = True) -> Iterator[Segment]:
    """A file from `start` to its end in segments of a chunk each. `count` its line ends, of a whole file alone.

    Holes are passed over: they hold no line end. Of what is larger than MOST_BYTES the middle is left out."""
    at, read, cut_from = start, 0, -1
    while at < size or at == start:
        stop = min(at + CHUNK_BYTES, size)
        yield Segment(
            index, parts, max(start, at - KEPT_BYTES), at, stop, min(size, stop + AHEAD_BYTES),
            at == 0, stop >= size, count and cut_from < 0, cut_from,
        )
        if stop >= size:
            return
        read += stop - at
        at, here = _behind_holes(parts, stop, size), stop
        tail = size - MOST_BYTES // 2
        if cut_from < 0 and read >= MOST_BYTES // 2 and at < tail:
            at, cut_from = _behind_holes(parts, tail, size), here


def _behind_holes(parts: Parts, at: int, size: int) -> int:
    """The next part to be read; a little is left of a hole that ends the file, so that its end is told."""
    data = parts.next_data(at)
    return at if data < at + CHUNK_BYTES else max(at, min(data, size - 1) // CHUNK_BYTES * CHUNK_BYTES)


def batches(segments: Iterable[Segment | None]) -> Iterator[tuple[Segment, ...]]:
    """Segments in parcels that are worth handing over. None is a parcel of its own, empty."""
    parcel: list[Segment] = []
    size = 0
    for one in segments:
        if one is None:
            if parcel:
                yield tuple(parcel)
            yield ()
            parcel, size = [], 0
            continue
        parcel.append(one)
        size += one.high - one.low
        if size >= CHUNK_BYTES // 2 or len(parcel) >= _SEGMENTS_A_BATCH:
            yield tuple(parcel)
            parcel, size = [], 0
    if parcel:
        yield tuple(parcel)


class SearchPool:
    """Reads segments and searches them, ahead of whoever judges them where `in_order` does so."""

    def __init__(self, search: LiteralSearch, in_order: InOrder) -> None:
        self._search = search
        self._in_order = in_order
        self._spare: SimpleQueue[bytearray] = SimpleQueue()

    def searched(self, parcels: Iterable[tuple[Segment, ...]]) -> Iterator[list[Searched]]:
        """The parcels' segments in order. A buffer belongs to the caller until he asks for the next parcel."""
        previous: Sequence[Searched] = ()
        for result in self._in_order(self._parcel, parcels):
            for one in previous:
                if len(one.buffer) == _LARGEST_BUFFER:
                    self._spare.put(one.buffer)
            yield result
            previous = result

    def _parcel(self, parcel: tuple[Segment, ...]) -> list[Searched]:
        return [self._one(one) for one in parcel]

    def _one(self, segment: Segment) -> Searched:
        size = segment.high - segment.low
        buffer = self._buffer(size)
        filled = 0
        try:
            view = memoryview(buffer)[:size]
            while filled < size:
                got = segment.parts.read_at(view[filled:], segment.low + filled)
                if not got:
                    break
                filled += got
        except OSError as error:
            return Searched(segment, buffer, filled, SearchedStretch([], None), error)
        start = segment.start - segment.low
        stop = max(start, min(segment.stop - segment.low, filled))
        part = search_stretch(self._search, buffer, start, stop, filled, count=segment.count)
        return Searched(segment, buffer, filled, part)

    def _buffer(self, size: int) -> bytearray:
        if size <= CHUNK_BYTES // 2:
            return bytearray(size)
        try:
            return self._spare.get_nowait()
        except Empty:
            return bytearray(_LARGEST_BUFFER)
