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

from runbook.evidence.framing import frame
from runbook.evidence.framing_stamps import read_time
from runbook.evidence.framing_values import FileFrame
from runbook.evidence.log_crew import Crew, ReadAt, Searched, Segment, batches
from runbook.evidence.log_scan import View
from runbook.evidence.log_text import decode
from runbook.evidence.log_twins import Knowledge, Twin, Twins, last_step
from runbook.evidence.signatures import CONSEQUENCE, FRAMING, HARMLESS, Signature

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
class Tails:
    """Where the reading of each file begins; a file that is not named here is read whole."""

    starts: dict[int, int]
    healthy_s: dict[int, float] = field(default_factory=dict)
    """Files whose reading begins at a stamp that lies before the first failure."""
    twins: Mapping[int, Twin] = field(default_factory=dict)
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


def worth_it(sizes: Sequence[int]) -> bool:
    """Whether a set of plain files is large enough to be read from the ends."""
    large = [size for size in sizes if size > SMALL_BYTES]
    return len(large) >= FEWEST_FILES and sum(large) > FEWEST_BYTES


def tails(
    files: Mapping[int, tuple[ReadAt, int]], frames: Sequence[FileFrame], crew: Crew, knowledge: Knowledge
) -> Tails | None:
    """Where to begin in each of `files` (index to how to read it and its size). None: no file's end shows a failure,
    so that only all of them can. OSError while looking leaves a file to be read whole, where it is noted."""
    sizes = {index: size for index, (_, size) in files.items() if size > SMALL_BYTES}
    starts = {index: size - TAIL_BYTES for index, size in sizes.items()}
    ends: dict[int, _End] = {}
    twins = Twins(knowledge)
    pending = list(starts)
    while pending:
        for one in _searched(pending, files, starts, crew):
            index = one.segment.index
            if one.error is None:
                alike = twins.known(one, frames[index])
                ends[index] = _End(step=True) if alike else _judge(one, frames[index], knowledge)
                if not alike and ends[index].step and not ends[index].failed:
                    twins.learn(one, frames[index])
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
    return Tails(starts, healthy, twins.found)


def _before(stamp_s: float | None, first_s: float | None) -> bool:
    return stamp_s is not None and first_s is not None and stamp_s < first_s


def _first_failure_s(ends: Mapping[int, _End]) -> float | None:
    """Not later than the first failure that is known; None where that is not known of each failure."""
    stamps = [end.last_good_s for end in ends.values() if end.failed]
    known = [stamp for stamp in stamps if stamp is not None]
    return min(known) if known and len(known) == len(stamps) else None


def _searched(
    indices: Sequence[int], files: Mapping[int, tuple[ReadAt, int]], starts: Mapping[int, int], crew: Crew
) -> Iterator[Searched]:
    segments = (
        Segment(index, files[index][0], starts[index], starts[index], files[index][1], files[index][1], count=False)
        for index in indices
    )
    for parcel in crew.searched(batches(segments)):
        yield from parcel


def _judge(one: Searched, file: FileFrame, knowledge: Knowledge) -> _End:
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
    view: View, found: Sequence[int], file: FileFrame, knowledge: Knowledge
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
            if one.means not in (FRAMING, HARMLESS) or one.id == "PY-TRACEBACK"
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


def _means(raw: bytes, candidates: Sequence[Signature], file: FileFrame, knowledge: Knowledge) -> str | None:
    if all(one.means == CONSEQUENCE and one.lines == 1 for one in candidates) or any(
        one.id == "PY-TRACEBACK" for one in candidates
    ):
        return CONSEQUENCE  # the traceback's own exception is judged where it stands
    text = frame(decode(raw), file).text
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
