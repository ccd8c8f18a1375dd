"""Many large files, one a rank: how far back each has to be read for the story, beginning at its end.

A file's end shows one of three things. A step that was completed, and what followed it: nothing before that step ended
the rank. No step, but a stamp of time from before the first failure of the job: nothing before that stamp came first.
Neither: the file is followed back, four times as far at a time, until one of the two comes or the file begins.
A file that shows a failure of its own is read whole. What hits say alone decides nothing: every rank's end is full of
consequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from runbook.logs.lines import FileProfile, LogLine, parse_line, read_time
from runbook.logs.search.literals import LiteralSearch
from runbook.logs.search.pool import Parts, Searched, SearchPool, Segment, batches
from runbook.logs.search.scan import View, decode, positions_of_lines
from runbook.logs.signatures import CONSEQUENCE, FRAMING, HARMLESS, Match, Signature, Signatures
from runbook.model.log import Event

# Files that end alike: of thousands of ranks that waited for one, each says the same but for the numbers.
#
# A file whose last lines, digits aside, are those of files that were judged before is not judged again. Only its first
# line of trouble and its last step are read, for its rank, its time and how far it came; its other lines are counted.

READ_AS_USUAL = 256
"""So many files that outlived the first failure are read in any case."""
TEACHERS = 4
"""Files with an end of one shape that are read before others are taken to be like them."""
_SHAPES_KEPT = 4_096
_LINES_AT_MOST = 16
_BYTES_AT_MOST = 8 << 10
_STEPS_LOOKED_AT = 3
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_OF_OTHERS = frozenset({"tasks", "hosts", "node", "pid", "exit_code", "signal", "device"})
"""Lines with one of these speak of other processes, or say how one ended."""


class LineKnowledge(Protocol):
    """What the signatures say of a line; see `collection.Collection`."""

    @property
    def signatures(self) -> Signatures: ...

    @property
    def steps(self) -> LiteralSearch: ...

    @property
    def started_s(self) -> float | None: ...

    def candidates(self, line: bytes) -> list[Signature]: ...

    def step_candidates(self, line: bytes) -> list[Signature]: ...


@dataclass(frozen=True, slots=True)
class RepeatedTail:
    """What the end of such a file says."""

    match: Match
    log_line: LogLine
    offset: int
    """Of the first line of trouble."""
    also: tuple[str, ...]
    """Signatures of the lines behind it."""
    step: Match
    step_line: LogLine
    step_offset: int
    end: int
    """Offset of the file's end."""


@dataclass(slots=True)
class _Shape:
    files: int
    signatures: tuple[Signature, ...]
    """Of its lines of trouble in order; none where such files have to be read."""


@dataclass(slots=True)
class TailDeduplicator:
    """Learns what ends look like, and finds those that look the same."""

    knowledge: LineKnowledge
    found: dict[int, RepeatedTail] = field(default_factory=dict)
    _shapes: dict[bytes, _Shape] = field(default_factory=dict)
    _read: int = 0
    _numbered: tuple[bytes, ...] | None = None

    def known(self, one: Searched, file: FileProfile) -> bool:
        """Whether a file's end is like others that outlived the first failure; `found` then tells what it says."""
        if self._read < READ_AS_USUAL or not one.part.found:
            return False
        view = View(one.buffer, one.segment.low, one.end, None)
        start, stop = view.line(one.part.found[0])
        shape = self._shapes.get(_shape(view, start))
        if shape is None or not shape.signatures or shape.files < TEACHERS or self._numbers_matter(view, start):
            return False
        line = _line(view, start, stop, file, shape.signatures[0])
        step = last_step(view, one, file, start, self.knowledge) if line is not None else None
        if line is None or step is None:
            return False
        self.found[one.segment.index] = RepeatedTail(
            line[0], line[1], view.base + start, tuple(each.id for each in shape.signatures[1:]), *step,
            view.base + view.end,
        )
        return True

    def learn(self, one: Searched, file: FileProfile) -> None:
        """A file that outlived the first failure and was judged."""
        self._read += 1
        if not one.part.found:
            return
        view = View(one.buffer, one.segment.low, one.end, None)
        start, _ = view.line(one.part.found[0])
        key = _shape(view, start)
        shape = self._shapes.get(key)
        if shape is None:
            if len(key) > _BYTES_AT_MOST or len(self._shapes) >= _SHAPES_KEPT:
                return
            told = () if self._numbers_matter(view, start) else self._signatures(view, one.part.found, file)
            shape = self._shapes[key] = _Shape(0, told)
        shape.files += 1

    def _numbers_matter(self, view: View, start: int) -> bool:
        """Whether an end holds a literal of which a number is a part: another number is another message."""
        if self._numbered is None:
            literals = {literal for one in self.knowledge.signatures.events for literal in one.encoded}
            self._numbered = tuple(one for one in literals if one.translate(None, b"0123456789") != one)
        return any(view.buffer.find(one, start, view.end) >= 0 for one in self._numbered)

    def _signatures(self, view: View, found: list[int], file: FileProfile) -> tuple[Signature, ...]:
        """Of all lines with a literal; none where one of them is more than a rank's own word that another is gone."""
        signatures: list[Signature] = []
        ranks: set[int | None] = set()
        reached = -1
        for at in found:
            if at < reached:
                continue
            start, stop = view.line(at)
            reached = max(stop, at + 1)
            raw = bytes(view.buffer[start:stop])
            candidates = self.knowledge.candidates(raw)
            here = parse_line(decode(raw), file)
            match = self.knowledge.signatures.first_match(here.text, candidates)
            if (
                match is None or any(one.lines > 1 or one.means != CONSEQUENCE for one in candidates)
                or match.signature.weak or match.signature.late or not _OF_OTHERS.isdisjoint(match.values)
                or len(signatures) >= _LINES_AT_MOST
            ):
                return ()
            signatures.append(match.signature)
            ranks.add(here.rank)
        return tuple(signatures) if len(ranks) == 1 and None not in ranks else ()


def _shape(view: View, start: int) -> bytes:
    return bytes(view.buffer[start:view.end]).translate(_DIGITS)


def _line(view: View, start: int, stop: int, file: FileProfile, signature: Signature) -> tuple[Match, LogLine] | None:
    here = parse_line(decode(view.buffer[start:stop]), file)
    match = signature.match(here.text)
    if match is None or here.rank is None or not _OF_OTHERS.isdisjoint(match.values):
        return None
    return match, here


def last_step(
    view: View, one: Searched, file: FileProfile, clear: int, knowledge: LineKnowledge
) -> tuple[Match, LogLine, int] | None:
    """The last completed step before `clear`, and its offset. Bars do not count: evaluation and loading have them
    too."""
    spans = one.part.with_steps if one.part.with_steps is not None else [(0, clear)]
    for low, high in reversed(spans):
        if low >= clear:
            continue
        for start, stop in _latest(view, knowledge.steps, low, min(high, clear)):
            raw = bytes(view.buffer[start:stop])
            candidates = [known for known in knowledge.step_candidates(raw) if not known.fallback and not known.bar]
            here = parse_line(decode(raw), file)
            match = knowledge.signatures.first_match(here.text, candidates)
            if match is not None and match.integer("step") is not None:
                return match, here, view.base + start
    return None


def _latest(view: View, search: LiteralSearch, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The last few lines with a literal of steps, the nearest first; mostly one is enough."""
    newest = positions_of_lines(view, search, low, high, last=1)
    yield from newest
    if newest:
        yield from reversed(positions_of_lines(view, search, low, newest[0][0], last=_STEPS_LOOKED_AT - 1))


HEAD_BYTES = 16 << 10
TAIL_BYTES = 16 << 10
SMALL_BYTES = 256 << 10
"""A smaller file is read whole."""
FEWEST_FILES = 8
FEWEST_BYTES = 128 << 20
"""A smaller set is read whole, which takes no tenth of a second."""
_GROWTH = 4
_LINES_FOR_A_STAMP = 40
_WHOLE_AT_MOST = 16
_TROUBLE_LOOKED_AT = 200


@dataclass(slots=True)
class TailPlan:
    """Where the reading of each file begins; a file that is not named here is read whole."""

    starts: dict[int, int]
    healthy_s: dict[int, float] = field(default_factory=dict)
    """Files whose reading begins at a stamp that lies before the first failure."""
    repeated: Mapping[int, RepeatedTail] = field(default_factory=dict)
    """Files that end as others do: what their ends say is known."""


@dataclass(frozen=True, slots=True)
class _End:
    """What a file's end shows."""

    failed: bool = False
    step: bool = False
    """A completed step, in front of all trouble."""
    stamp_s: float | None = None
    """The first stamp, in front of all trouble."""
    last_good_s: float | None = None
    """The last stamp in front of the first failure."""


def worth_reading_tails(sizes: Sequence[int]) -> bool:
    """Whether a set of plain files is large enough to be read from the ends."""
    large = [size for size in sizes if size > SMALL_BYTES]
    return len(large) >= FEWEST_FILES and sum(large) > FEWEST_BYTES


def tail_plan(
    files: Mapping[int, Parts], profiles: Sequence[FileProfile], pool: SearchPool, knowledge: LineKnowledge
) -> TailPlan | None:
    """Where to begin in each of `files` (by index). None: no file's end shows a failure,
    so that only all of them can. OSError while looking leaves a file to be read whole, where it is noted."""
    sizes = {index: parts.size_bytes for index, parts in files.items() if parts.size_bytes > SMALL_BYTES}
    starts = {index: size - TAIL_BYTES for index, size in sizes.items()}
    ends: dict[int, _End] = {}
    repeated = TailDeduplicator(knowledge)
    pending = list(starts)
    while pending:
        for one in _searched(pending, files, starts, pool):
            index = one.segment.index
            if one.error is None:
                alike = repeated.known(one, profiles[index])
                ends[index] = _End(step=True) if alike else _judge(one, profiles[index], knowledge)
                if not alike and ends[index].step and not ends[index].failed:
                    repeated.learn(one, profiles[index])
            else:
                del starts[index]
        first_s = _first_failure_s(ends)
        pending = [
            index for index in pending
            if index in starts and not ends[index].step and not _before(ends[index].stamp_s, first_s)
        ]
        for index in pending:
            window = (sizes[index] - starts[index]) * _GROWTH
            starts[index] = sizes[index] - window
            if starts[index] <= HEAD_BYTES:
                del starts[index]
        pending = [index for index in pending if index in starts]
    failed = [index for index in sizes if index in ends and ends[index].failed]
    read_whole = [index for index in sizes if index not in starts]
    if not failed and not read_whole:
        return None
    for index in sorted(failed, key=lambda one: (ends[one].last_good_s or 0.0, one))[:_WHOLE_AT_MOST]:
        starts.pop(index, None)
    healthy = {
        index: stamp_s for index in starts if not ends[index].step and (stamp_s := ends[index].stamp_s) is not None
    }
    return TailPlan(starts, healthy, repeated.found)


def _before(stamp_s: float | None, first_s: float | None) -> bool:
    return stamp_s is not None and first_s is not None and stamp_s < first_s


def _first_failure_s(ends: Mapping[int, _End]) -> float | None:
    """Not later than the first failure that is known; None where that is not known of each failure."""
    stamps = [end.last_good_s for end in ends.values() if end.failed]
    known = [stamp for stamp in stamps if stamp is not None]
    return min(known) if known and len(known) == len(stamps) else None


def _searched(
    indices: Sequence[int], files: Mapping[int, Parts], starts: Mapping[int, int], pool: SearchPool
) -> Iterator[Searched]:
    segments = (
        Segment(index, parts, starts[index], starts[index], parts.size_bytes, parts.size_bytes, count=False)
        for index, parts in ((index, files[index]) for index in indices)
    )
    for parcel in pool.searched(batches(segments)):
        yield from parcel


def _judge(one: Searched, file: FileProfile, knowledge: LineKnowledge) -> _End:
    view = View(one.buffer, one.segment.low, one.end, None)
    trouble, failure = _trouble(view, one.part.found, file, knowledge)
    clear = one.end if trouble is None else trouble
    step = last_step(view, one, file, clear, knowledge) is not None
    if step and failure is None:
        return _End(step=True)
    stamp_s = next(_stamps(view, 0, clear, knowledge.started_s), None)
    good_s = None
    if failure is not None:
        spans = islice(view.before(failure), _LINES_FOR_A_STAMP)
        stamps = (read_time(decode(view.buffer[first:stop][:300]), knowledge.started_s) for first, stop in spans)
        good_s = next((stamp for stamp in stamps if stamp is not None), stamp_s)
    return _End(failure is not None, step, stamp_s, good_s)


def _trouble(
    view: View, found: Sequence[int], file: FileProfile, knowledge: LineKnowledge
) -> tuple[int | None, int | None]:
    """Where the first line of trouble begins, and where the first failure does."""
    first: int | None = None
    reached = -1
    looked_at = 0
    for at in found:
        if at < reached:
            continue
        start, stop = view.line(at)
        reached = max(stop, at + 1)
        raw = bytes(view.buffer[start:stop])
        candidates = [
            one for one in knowledge.candidates(raw)
            if one.means not in (FRAMING, HARMLESS) or Event.TRACEBACK in one.reports
        ]
        if not candidates:
            continue
        looked_at += 1
        if looked_at > _TROUBLE_LOOKED_AT:
            break
        means = _means(raw, candidates, file, knowledge)
        if means is None:
            continue
        first = start if first is None else first
        if means not in (CONSEQUENCE, FRAMING):
            return first, start
    return first, None


def _means(raw: bytes, candidates: Sequence[Signature], file: FileProfile, knowledge: LineKnowledge) -> str | None:
    if all(one.means == CONSEQUENCE and one.lines == 1 for one in candidates) or any(
        Event.TRACEBACK in one.reports for one in candidates
    ):
        return CONSEQUENCE  # the traceback's own exception is judged where it stands
    text = parse_line(decode(raw), file).text
    match = knowledge.signatures.first_match(text, [one for one in candidates if one.lines == 1])
    if match is not None:
        return CONSEQUENCE if match.signature.weak or match.signature.late else match.signature.means
    return CONSEQUENCE if any(one.lines > 1 for one in candidates) else None


def _stamps(view: View, start: int, stop: int, started_s: float | None) -> Iterator[float]:
    at = view.buffer.find(b"\n", start, stop) + 1
    for _ in range(_LINES_FOR_A_STAMP):
        end = view.buffer.find(b"\n", at, stop) if at else -1
        if end < 0:
            return
        stamp = read_time(decode(view.buffer[at:min(end, at + 300)]), started_s)
        if stamp is not None:
            yield stamp
        at = end + 1
