"""Threads that read and search ahead of one that judges: results in the order of the work, memory bounded."""

from __future__ import annotations

import io
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import BinaryIO, TypeVar

from runbook.logs.search.literals import LiteralSearch
from runbook.logs.search.scan import AHEAD_BYTES, CHUNK_BYTES, KEPT_BYTES, SearchedStretch, search_stretch

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")
_LARGEST_BUFFER = KEPT_BYTES + CHUNK_BYTES + AHEAD_BYTES
_SEGMENTS_A_BATCH = 64


ReadAt = Callable[[memoryview, int], int]
"""Fill a space from an offset of a file; the bytes that were read, 0 at its end. Several threads may do so at a time.
Raises OSError."""


def part_reader(stream: BinaryIO) -> tuple[ReadAt, int] | None:
    """How to read any part of a stream, and its size, where it is a plain file from its first byte on.

    A stream that is no file object says so itself by a method `read_at`, and its size by `size_bytes`."""
    own = getattr(stream, "read_at", None)
    if own is not None:
        return own, stream.size_bytes  # type: ignore[attr-defined]
    raw = stream.raw if isinstance(stream, io.BufferedReader) else stream
    if not isinstance(raw, io.FileIO):
        return None
    try:
        descriptor = raw.fileno()
        status = os.fstat(descriptor)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return lambda space, offset: os.preadv(descriptor, [space], offset), status.st_size


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a file to be searched: from `start` to `stop`, with what lies around it from `low` to `high`."""

    index: int
    read: ReadAt
    low: int
    start: int
    stop: int
    high: int
    first: bool = False
    """The file's handler hears of it first."""
    last: bool = False
    count: bool = True
    """Whether its line ends are counted."""


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


def segments_of(index: int, read: ReadAt, size: int, start: int = 0, count: bool = True) -> Iterator[Segment]:
    """A file from `start` to its end in segments of a chunk each. `count` its line ends, of a whole file alone."""
    at = start
    while at < size or at == start:
        stop = min(at + CHUNK_BYTES, size)
        yield Segment(
            index, read, max(start, at - KEPT_BYTES), at, stop, min(size, stop + AHEAD_BYTES),
            at == 0, stop >= size, count,
        )
        if stop >= size:
            return
        at = stop


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
    """Reads segments and searches them, on `threads` threads."""

    def __init__(self, search: LiteralSearch, threads: int) -> None:
        self._search = search
        self._threads = max(1, threads)
        self._spare: SimpleQueue[bytearray] = SimpleQueue()

    def searched(self, parcels: Iterable[tuple[Segment, ...]]) -> Iterator[list[Searched]]:
        """The parcels' segments in order. A buffer belongs to the caller until he asks for the next parcel."""
        previous: Sequence[Searched] = ()
        for result in in_order(parcels, lambda parcel: [self._one(one) for one in parcel], self._threads):
            for one in previous:
                if len(one.buffer) == _LARGEST_BUFFER:
                    self._spare.put(one.buffer)
            yield result
            previous = result

    def _one(self, segment: Segment) -> Searched:
        size = segment.high - segment.low
        buffer = self._buffer(size)
        filled = 0
        try:
            view = memoryview(buffer)[:size]
            while filled < size:
                got = segment.read(view[filled:], segment.low + filled)
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


def in_order(work: Iterable[_Work], do: Callable[[_Work], _Result], threads: int) -> Iterator[_Result]:
    """`do` for each piece of work on several threads; results in order, and only a few of them waiting at a time.

    What `do` raises is raised to the caller in its turn. With one thread all is done by the caller's own."""
    if threads == 1:
        yield from map(do, work)
        return
    tasks: SimpleQueue[tuple[_Work, SimpleQueue[tuple[_Result | None, Exception | None]]] | None] = SimpleQueue()

    def toil() -> None:
        while (task := tasks.get()) is not None:
            piece, answer = task
            try:
                answer.put((do(piece), None))
            except Exception as error:  # handed to the caller
                answer.put((None, error))

    waiting: deque[SimpleQueue[tuple[_Result | None, Exception | None]]] = deque()
    started = 0
    try:
        for piece in work:
            if started < threads:
                Thread(target=toil, daemon=True, name="runbook-log-search").start()
                started += 1
            answer: SimpleQueue[tuple[_Result | None, Exception | None]] = SimpleQueue()
            waiting.append(answer)
            tasks.put((piece, answer))
            if len(waiting) > threads:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        for _ in range(started):
            tasks.put(None)


def _result(answer: SimpleQueue[tuple[_Result | None, Exception | None]]) -> _Result:
    result, error = answer.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
