"""Launcher logs into one story: which rank failed first and what it said, who followed, and how far the job came.

One pass over the logs of a job: each file, or its beginning and end, told to its reader in order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from runbook.logs.collect import Collection, FileReader
from runbook.logs.lines import FileProfile, family_profiles, file_profile, site_prefixes
from runbook.logs.root_cause import log_story
from runbook.logs.search import (
    CHUNK_BYTES,
    FREELY,
    FREELY_BYTES,
    HEAD_BYTES,
    KEPT_BYTES,
    NOTE,
    InOrder,
    LiteralSearch,
    Parts,
    RepeatedTail,
    Searched,
    SearchPool,
    Segment,
    TailPlan,
    View,
    batches,
    binary,
    is_gzip,
    is_zstandard,
    opened_error_file,
    parts_of,
    passed_over,
    scan_stream,
    segments_of,
    tail_plan,
    tell_lines,
    worth_reading_tails,
)
from runbook.logs.signatures import Signatures
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogSource, LogStory
from runbook.model.sentences import Sentence
from runbook.model.sentences.of_logs import Say

_LINES_IN_ALL = 400
"""Lines of steps that are read of a large set: each costs tens of microseconds, and a series needs no more."""
_LINES_AT_AN_END = 200
_LINES_AT_LEAST = 1
_HEADS_SAMPLED = 64
_LOOKED_AT_BYTES = 8192
"""Of a file's beginning, to tell text from other data."""
_VERY_MANY_FILES = 1024
_MANY_FILES = 64
"""Of so many files lines are not counted while reading: `with_lines` counts those of the findings that are shown."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The logs as they were handed in."""

    paths: tuple[str, ...]
    streams: tuple[BinaryIO, ...]
    sizes: tuple[int, ...]
    profiles: tuple[FileProfile, ...]
    plain: dict[int, Parts]
    """Those that are plain files of text, by index: any part of them can be read."""
    total_bytes: int

    @classmethod
    def of(cls, sources: Sequence[tuple[str, BinaryIO, int]], profiles: tuple[FileProfile, ...]) -> Sources:
        plain = {}
        head = bytearray(_LOOKED_AT_BYTES if len(sources) < _VERY_MANY_FILES else _LOOKED_AT_BYTES // 4)
        for index, (path, stream, _) in enumerate(sources):
            parts = None if path.endswith("error.json") else parts_of(stream)
            if parts is None:
                continue
            space = memoryview(head)
            try:
                space = space[:parts.read_at(space, 0)]
            except OSError:
                continue
            magic = bytes(space[:4])
            if len(space) and not is_gzip(magic) and not is_zstandard(magic) and not binary(space):
                plain[index] = parts
        return cls(
            tuple(path for path, _, _ in sources), tuple(stream for _, stream, _ in sources),
            tuple(size for _, _, size in sources), profiles, plain, sum(size for _, _, size in sources),
        )


class Pass:
    """Reads every source once. `starts` are the offsets from which on files are read whose middle is left out, `twins`
    what is known already of the ends of some of them."""

    def __init__(
        self, sources: Sources, collection: Collection, pool: SearchPool, starts: Mapping[int, int],
        progress: Callable[[int, int], None] | None, repeated: Mapping[int, RepeatedTail] | None = None,
    ) -> None:
        self.collection = collection
        self._repeated = {index: twin for index, twin in (repeated or {}).items() if index in starts}
        self.notes: list[LogSource] = []
        self.restarted = False
        """A file went on with a later attempt."""
        self._sources, self._pool, self._starts = sources, pool, starts
        self._progress = progress
        self._waiting: deque[int] = deque()
        self._handler: FileReader | None = None
        self._index = -1
        self._lines = self._passed = self._done = 0
        self._note = self._cut = ""
        self._buffer = bytearray()

    def run(self) -> None:
        """Read, tell, take notes."""
        for parcel in self._pool.searched(batches(self._segments())):
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
            size = plain.size_bytes
            start = self._starts.get(index, 0)
            if start:
                known = index in self._repeated
                yield Segment(index, plain, 0, 0, HEAD_BYTES, HEAD_BYTES, first=True, last=known, count=False)
                if known:
                    continue
            yield from segments_of(index, plain, size, start, count=not start and not (many and size <= CHUNK_BYTES))

    def _searched(self, one: Searched) -> None:
        segment = one.segment
        if segment.first:
            self._begin(segment.index)
        if self._note:
            return  # it broke off
        if segment.cut_from >= 0 and not self._cut:
            self._cut = f"cut: bytes {segment.cut_from} to {segment.start} were not read, as it is too large"
        handler = self._handler
        assert handler is not None
        if one.error is not None:
            self._note = f"could not be read to its end: {one.error}"
        else:
            start, stop = one.start, one.stop
            known = self._lines if segment.count else None
            view = View(
                one.buffer, segment.low, one.end, known, start, one.part.with_steps, self._sample(segment),
                self._sources.plain[segment.index].size_bytes - segment.stop, one.part.counts,
            )
            if segment.first:
                handler.first(view)
            self._passed += tell_lines(view, one.part.found, handler, start, stop)
            self._lines += one.part.line_ends
            self._report(self._done + segment.low + stop)
        if segment.last or self._note:
            self._end(segment.index, segment.low + one.end)

    def _begin(self, index: int) -> None:
        self._handler = FileReader(self.collection, index, self._sources.profiles[index])
        self._lines = self._passed = 0
        self._note = self._cut = ""

    def _end(self, index: int, reached: int) -> None:
        handler = self._handler
        assert handler is not None
        twin = self._repeated.get(index)
        if twin is not None and not self._note:
            handler.like_others(twin)
            reached = max(reached, twin.end)
        handler.finish()
        self._see_attempts(handler, index)
        start = self._starts.get(index, 0)
        notes = [self._note, self._cut, passed_over(self._passed)]
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
            "; ".join(note for note in notes if note), bool(self._cut),
        ))
        self._done += size

    def _see_attempts(self, handler: FileReader, index: int) -> None:
        self.restarted = self.restarted or handler.attempt > (self._sources.profiles[index].attempt or 0)

    def _stream(self, index: int) -> None:
        """A source that can only be read from its first byte to its last."""
        path, stream, size = self._sources.paths[index], self._sources.streams[index], self._sources.sizes[index]
        wanted = KEPT_BYTES + (min(CHUNK_BYTES, max(size + 1, 1 << 20)) if size else CHUNK_BYTES)  # 0: not known
        if len(self._buffer) < wanted:
            self._buffer = bytearray(wanted)
        handler = FileReader(self.collection, index, self._sources.profiles[index])
        before = self._done
        try:
            error_file = opened_error_file(path, stream)
            if error_file is None:
                scanned = scan_stream(
                    stream, self.collection.events, handler, self._buffer, lambda done: self._report(before + done)
                )
                self.notes.append(LogSource(path, size, scanned.bytes_read, scanned.note, scanned.cut))
            else:
                converted = replace(self._sources.profiles[index], time_s=error_file.time_s, converted=True)
                handler = FileReader(self.collection, index, converted)
                scan_stream(error_file.stream(), self.collection.events, handler, self._buffer)
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


MOST_BYTES = 4 << 30
"""Counting stops here: about a second."""
_PIECE_BYTES = 256 << 10


def with_lines(story: LogStory, sources: Sources) -> LogStory:
    """The story with the line of each finding; a note where files are too large to be counted."""
    findings = [one for one in (story.root_cause, *story.candidates, *story.harmless) if one is not None]
    missing = [one for one in findings if one.line == 0]
    if not missing:
        return story
    index_of = {path: index for index, path in enumerate(sources.paths)}
    room = MOST_BYTES
    known: dict[tuple[str, int], int] = {}
    for path, offsets in _by_file(missing).items():
        plain = sources.plain.get(index_of[path])
        if plain is None or offsets[-1] > room:
            continue
        room -= offsets[-1]
        known.update(((path, offset), line) for offset, line in _lines(plain, offsets))

    def counted(one: Finding) -> Finding:
        return replace(one, line=known[(one.file, one.offset)]) if (one.file, one.offset) in known else one

    unknown = sum(1 for one in missing if (one.file, one.offset) not in known)
    note = (Say.LINES_NOT_COUNTED(findings=unknown),) if unknown else ()
    return replace(
        story, root_cause=counted(story.root_cause) if story.root_cause is not None else None,
        candidates=tuple(map(counted, story.candidates)), harmless=tuple(map(counted, story.harmless)),
        notes=(*story.notes, *note),
    )


def _by_file(findings: Iterable[Finding]) -> dict[str, list[int]]:
    """Offsets in order, by file, in the order of the findings: the root cause's file comes first."""
    offsets: dict[str, set[int]] = {}
    for one in findings:
        offsets.setdefault(one.file, set()).add(one.offset)
    return {path: sorted(several) for path, several in offsets.items()}


def _lines(parts: Parts, offsets: Iterable[int]) -> Iterable[tuple[int, int]]:
    at, lines = 0, 1
    piece = bytearray(_PIECE_BYTES)
    space = memoryview(piece)
    for offset in offsets:
        while at < offset:
            try:
                got = parts.read_at(space[:min(_PIECE_BYTES, offset - at)], at)
            except OSError:
                return
            if not got:
                return
            lines += got - len(piece[:got].replace(b"\n", b""))
            at += got
        yield offset, lines


_TIE_S = 1.0


class LogReader:
    """Reads the logs of one job. Made once for a set of signatures, used for any number of jobs."""

    def __init__(self, signatures: Signatures, *, engine: str | None = None) -> None:
        """`engine` names the library that searches ("hyperscan", "automata"); None is the fastest that is there."""
        self._signatures = signatures
        steps = [literal for one in signatures.progress for literal in one.literals]
        self._events = LiteralSearch((literal for one in signatures.events for literal in one.literals), steps, engine)
        self._progress = LiteralSearch(steps, (), engine)

    def read(
        self,
        sources: Sequence[tuple[str, BinaryIO, int]],
        *,
        job: JobRecord | None = None,
        progress: Callable[[int, int], None] | None = None,
        in_order: InOrder = map,
        tail_first: bool | None = None,
        prefixes: Sequence[str] = (),
    ) -> LogStory:
        """(path, stream, size in bytes) each; `.gz` and `.zst` are unpacked on the way. The caller opens and closes.

        Plain files are searched ahead as far as `in_order` does so. `tail_first` reads of many large files only the
        ends, as far back as the story needs (None: where the set is large enough for it); the notes of the sources
        say what was not read. `prefixes` are a site's own: regular expressions with groups named rank, local_rank,
        node or pid, for what its launcher puts in front of a line; ValueError in words for one that is none.
        `progress` gets bytes done and bytes in all. A stream that breaks off is a note of its source, not an error."""
        given = Sources.of(sources, self._frames(sources, job, site_prefixes(prefixes)))
        pool = SearchPool(self._events, in_order if given.total_bytes > (1 << 20) else map)

        def fresh() -> Collection:
            return Collection(self._signatures, self._events, self._progress, _started_s(job), job.nodes if job else ())

        def told(plan: TailPlan) -> tuple[LogStory, Pass]:
            one = Pass(given, fresh(), pool, plan.starts, progress, plan.repeated)
            one.run()
            one.collection.tables.settle()
            return log_story.story_of(one.collection, one.notes, job), one

        sizes = [parts.size_bytes for parts in given.plain.values()]
        if tail_first or (tail_first is None and worth_reading_tails(sizes)):
            plan = tail_plan(given.plain, given.profiles, pool, fresh())
            story = self._from_ends(plan, given, told) if plan is not None and plan.starts else None
            if story is not None:
                return with_lines(story, given)
        return with_lines(told(TailPlan({}))[0], given)

    def _from_ends(
        self, plan: TailPlan, given: Sources, told: Callable[[TailPlan], tuple[LogStory, Pass]]
    ) -> LogStory | None:
        """The story by the files' ends, or None where it needs all of them."""
        index_of = {path: index for index, path in enumerate(given.paths)}
        for _ in range(3):
            story, one = told(plan)
            root = story.root_cause
            if root is None or one.restarted:
                return None  # only all of the logs can tell, or attempts have to be counted through all of them
            known = self._signatures.by_id.get(root.signature)
            if known is None or known.weak or known.late:
                return None
            if root.time_s is not None and any(
                index in plan.starts and stamp_s >= root.time_s for index, stamp_s in plan.healthy_s.items()
            ):
                return None
            tied = [
                each.file for each in story.candidates[:8]
                if root.time_s is None or each.time_s is None or abs(each.time_s - root.time_s) < _TIE_S
            ]
            wanted = {index_of[path] for path in (root.file, *tied)} & plan.starts.keys()
            if index_of[root.file] not in wanted:
                return replace(story, notes=(*story.notes, _said(plan, given)))
            plan = replace(plan, starts={
                index: start for index, start in plan.starts.items() if index not in wanted
            })
        return None

    def _frames(
        self, sources: Sequence[tuple[str, BinaryIO, int]], job: JobRecord | None,
        prefixes: tuple[re.Pattern[str], ...],
    ) -> tuple[FileProfile, ...]:
        nodes = job.nodes if job else ()
        forms = self._signatures.forms
        profiles = [replace(file_profile(path, nodes), prefixes=prefixes, forms=forms) for path, _, _ in sources]
        return family_profiles([path for path, _, _ in sources], profiles, job)


def _said(plan: TailPlan, given: Sources) -> Sentence:
    left_out = sum(plan.starts.values())
    return Say.ENDS_OF_FILES_READ(some=len(plan.starts), files=len(given.paths), left_out_mib=left_out >> 20)


def _started_s(job: JobRecord | None) -> float | None:
    return (job.start_time_s or job.submit_time_s) if job else None
