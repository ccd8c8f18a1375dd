"""One pass over the logs of a job: each file, or its beginning and end, told to its handler in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from runbook.evidence.error_file import NOTE, opened_error_file
from runbook.evidence.framing_values import FileFrame
from runbook.evidence.log_crew import Crew, ReadAt, Searched, Segment, batches, part_reader, segments_of
from runbook.evidence.log_file import FileHandler
from runbook.evidence.log_reading import Reading
from runbook.evidence.log_scan import (
    CHUNK_BYTES,
    FREELY,
    FREELY_BYTES,
    KEPT_BYTES,
    View,
    binary,
    passed_over,
    scan,
    tell,
)
from runbook.evidence.log_tails import HEAD_BYTES
from runbook.evidence.log_twins import Twin
from runbook.evidence.log_unpack import is_gzip, is_zstandard
from runbook.model.log import LogSource

_LINES_IN_ALL = 400
"""Lines of steps that are read of a large set: each costs tens of microseconds, and a series needs no more."""
_LINES_AT_AN_END = 200
_LINES_AT_LEAST = 1
_HEADS_SAMPLED = 64
_LOOKED_AT_BYTES = 8192
"""Of a file's beginning, to tell text from other data."""
_VERY_MANY_FILES = 1024
_MANY_FILES = 64
"""Of so many files lines are not counted while reading: `log_lines` counts those of the findings that are shown."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The logs as they were handed in."""

    paths: tuple[str, ...]
    streams: tuple[BinaryIO, ...]
    sizes: tuple[int, ...]
    frames: tuple[FileFrame, ...]
    plain: dict[int, tuple[ReadAt, int]]
    """How to read, and the size of those that are plain files of text, by index: any part of them can be read."""
    total_bytes: int

    @classmethod
    def of(cls, sources: Sequence[tuple[str, BinaryIO, int]], frames: tuple[FileFrame, ...]) -> Sources:
        plain = {}
        head = bytearray(_LOOKED_AT_BYTES if len(sources) < _VERY_MANY_FILES else _LOOKED_AT_BYTES // 4)
        for index, (path, stream, _) in enumerate(sources):
            parts = None if path.endswith("error.json") else part_reader(stream)
            if parts is None:
                continue
            read, size = parts
            space = memoryview(head)
            try:
                space = space[:read(space, 0)]
            except OSError:
                continue
            magic = bytes(space[:4])
            if len(space) and not is_gzip(magic) and not is_zstandard(magic) and not binary(space):
                plain[index] = (read, size)
        return cls(
            tuple(path for path, _, _ in sources), tuple(stream for _, stream, _ in sources),
            tuple(size for _, _, size in sources), frames, plain, sum(size for _, _, size in sources),
        )



class Pass:
    """Reads every source once. `starts` are the offsets from which on files are read whose middle is left out, `twins`
    what is known already of the ends of some of them."""

    def __init__(
        self, sources: Sources, reading: Reading, crew: Crew, starts: Mapping[int, int],
        progress: Callable[[int, int], None] | None, twins: Mapping[int, Twin] | None = None,
    ) -> None:
        self.reading = reading
        self._twins = {index: twin for index, twin in (twins or {}).items() if index in starts}
        self.notes: list[LogSource] = []
        self.restarted = False
        """A file went on with a later attempt."""
        self._sources, self._crew, self._starts = sources, crew, starts
        self._progress = progress
        self._waiting: deque[int] = deque()
        self._handler: FileHandler | None = None
        self._index = -1
        self._lines = self._passed = self._done = 0
        self._note = ""
        self._buffer = bytearray()

    def run(self) -> None:
        """Read, tell, take notes."""
        for parcel in self._crew.searched(batches(self._segments())):
            if not parcel:
                self._stream(self._waiting.popleft())
            for one in parcel:
                self._searched(one)

    def _segments(self) -> Iterator[Segment | None]:
        many = len(self._sources.plain) > _MANY_FILES
        for index in range(len(self._sources.paths)):
            plain = self._sources.plain.get(index)
            if plain is None:
                self._waiting.append(index)
                yield None
                continue
            read, size = plain
            start = self._starts.get(index, 0)
            if start:
                known = index in self._twins
                yield Segment(index, read, 0, 0, HEAD_BYTES, HEAD_BYTES, first=True, last=known, count=False)
                if known:
                    continue
            yield from segments_of(index, read, size, start, count=not start and not (many and size <= CHUNK_BYTES))

    def _searched(self, one: Searched) -> None:
        segment = one.segment
        if segment.first:
            self._begin(segment.index)
        if self._note:
            return  # it broke off
        handler = self._handler
        assert handler is not None
        if one.error is not None:
            self._note = f"could not be read to its end: {one.error}"
        else:
            start, stop = one.start, one.stop
            known = self._lines if segment.count else None
            view = View(
                one.buffer, segment.low, one.end, known, start, one.part.with_steps, self._sample(segment),
                self._sources.plain[segment.index][1] - segment.stop, one.part.counts,
            )
            if segment.first:
                handler.first(view)
            self._passed += tell(view, one.part.found, handler, start, stop)
            self._lines += one.part.line_ends
            self._report(self._done + segment.low + stop)
        if segment.last or self._note:
            self._end(segment.index, segment.low + one.end)

    def _begin(self, index: int) -> None:
        self._handler = FileHandler(self.reading, index, self._sources.frames[index])
        self._lines = self._passed = 0
        self._note = ""

    def _end(self, index: int, reached: int) -> None:
        handler = self._handler
        assert handler is not None
        twin = self._twins.get(index)
        if twin is not None and not self._note:
            handler.like_others(twin)
            reached = max(reached, twin.end)
        handler.finish()
        self._see_attempts(handler, index)
        start = self._starts.get(index, 0)
        notes = [self._note, passed_over(self._passed)]
        size = self._sources.sizes[index]
        if reached < size and not self._note:
            notes.append(f"became shorter while it was read: it ends at byte {reached} of {size}")
        if start:
            notes.append(
                f"read at its beginning ({HEAD_BYTES >> 10} KiB) and from byte {start} on; the rest was not read"
            )
        read = reached if not start else HEAD_BYTES + max(0, reached - start)
        self.notes.append(LogSource(
            self._sources.paths[index], size, handler.read_to if self._note else read,
            "; ".join(note for note in notes if note),
        ))
        self._done += size

    def _see_attempts(self, handler: FileHandler, index: int) -> None:
        self.restarted = self.restarted or handler.attempt > (self._sources.frames[index].attempt or 0)

    def _stream(self, index: int) -> None:
        """A source that can only be read from its first byte to its last."""
        path, stream, size = self._sources.paths[index], self._sources.streams[index], self._sources.sizes[index]
        wanted = KEPT_BYTES + (min(CHUNK_BYTES, max(size + 1, 1 << 20)) if size else CHUNK_BYTES)  # 0: not known
        if len(self._buffer) < wanted:
            self._buffer = bytearray(wanted)
        handler = FileHandler(self.reading, index, self._sources.frames[index])
        before = self._done
        try:
            error_file = opened_error_file(path, stream)
            if error_file is None:
                scanned = scan(
                    stream, self.reading.events, handler, self._buffer, lambda done: self._report(before + done)
                )
                self.notes.append(LogSource(path, size, scanned.bytes_read, scanned.note))
            else:
                converted = replace(self._sources.frames[index], time_s=error_file.time_s, converted=True)
                handler = FileHandler(self.reading, index, converted)
                scan(error_file.stream(), self.reading.events, handler, self._buffer)
                self.notes.append(LogSource(path, size, size, NOTE))
        except (OSError, ValueError) as error:
            note = f"could not be read to its end: {error}"
            self.notes.append(LogSource(path, size, handler.read_to, note))
        handler.finish()
        self._see_attempts(handler, index)
        self._done += size

    def _sample(self, segment: Segment) -> int:
        """How many lines of steps may be read at the end of a segment."""
        total = self._sources.total_bytes
        if total <= FREELY_BYTES:
            return FREELY
        share = _LINES_IN_ALL * (segment.stop - segment.start) // total
        if segment.first and segment.index in self._starts:
            return _LINES_AT_LEAST if segment.index < _HEADS_SAMPLED else 0
        if segment.last:
            share = max(share, min(_LINES_AT_AN_END, _LINES_IN_ALL // len(self._sources.paths)))
        return max(_LINES_AT_LEAST, min(share, FREELY - 1))

    def _report(self, done: int) -> None:
        if self._progress is not None:
            total = self._sources.total_bytes
            self._progress(min(done, total) if total else done, total)
