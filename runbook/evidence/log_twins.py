"""Files that end alike: of thousands of ranks that waited for one, each says the same but for the numbers.

A file whose last lines, digits aside, are those of files that were judged before is not judged again. Only its first
line of trouble and its last step are read, for its rank, its time and how far it came; its other lines are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from runbook.evidence.framing import frame
from runbook.evidence.framing_values import FileFrame, Frame
from runbook.evidence.log_crew import Searched
from runbook.evidence.log_scan import View, positions_of_lines
from runbook.evidence.log_search import Search
from runbook.evidence.log_text import decode
from runbook.evidence.signatures import CONSEQUENCE, Match, Signature, Signatures

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


class Knowledge(Protocol):
    """What the signatures say of a line; see `log_reading.Reading`."""

    @property
    def signatures(self) -> Signatures: ...

    @property
    def steps(self) -> Search: ...

    @property
    def started_s(self) -> float | None: ...

    def candidates(self, line: bytes) -> list[Signature]: ...

    def step_candidates(self, line: bytes) -> list[Signature]: ...


@dataclass(frozen=True, slots=True)
class Twin:
    """What the end of such a file says."""

    match: Match
    frame: Frame
    offset: int
    """Of the first line of trouble."""
    also: tuple[str, ...]
    """Signatures of the lines behind it."""
    step: Match
    step_frame: Frame
    step_offset: int
    end: int
    """Offset of the file's end."""


@dataclass(slots=True)
class _Shape:
    files: int
    signatures: tuple[Signature, ...]
    """Of its lines of trouble in order; none where such files have to be read."""


@dataclass(slots=True)
class Twins:
    """Learns what ends look like, and finds those that look the same."""

    knowledge: Knowledge
    found: dict[int, Twin] = field(default_factory=dict)
    _shapes: dict[bytes, _Shape] = field(default_factory=dict)
    _read: int = 0
    _numbered: tuple[bytes, ...] | None = None

    def known(self, one: Searched, file: FileFrame) -> bool:
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
        self.found[one.segment.index] = Twin(
            line[0], line[1], view.base + start, tuple(each.id for each in shape.signatures[1:]), *step,
            view.base + view.end,
        )
        return True

    def learn(self, one: Searched, file: FileFrame) -> None:
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

    def _signatures(self, view: View, found: list[int], file: FileFrame) -> tuple[Signature, ...]:
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
            here = frame(decode(raw), file)
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


def _line(view: View, start: int, stop: int, file: FileFrame, signature: Signature) -> tuple[Match, Frame] | None:
    here = frame(decode(view.buffer[start:stop]), file)
    match = signature.match(here.text)
    if match is None or here.rank is None or not _OF_OTHERS.isdisjoint(match.values):
        return None
    return match, here


def last_step(
    view: View, one: Searched, file: FileFrame, clear: int, knowledge: Knowledge
) -> tuple[Match, Frame, int] | None:
    """The last completed step before `clear`, and its offset. Bars do not count: evaluation and loading have them
    too."""
    spans = one.part.with_steps if one.part.with_steps is not None else [(0, clear)]
    for low, high in reversed(spans):
        if low >= clear:
            continue
        for start, stop in _latest(view, knowledge.steps, low, min(high, clear)):
            raw = bytes(view.buffer[start:stop])
            candidates = [known for known in knowledge.step_candidates(raw) if not known.fallback and not known.bar]
            here = frame(decode(raw), file)
            match = knowledge.signatures.first_match(here.text, candidates)
            if match is not None and match.integer("step") is not None:
                return match, here, view.base + start
    return None


def _latest(view: View, search: Search, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The last few lines with a literal of steps, the nearest first; mostly one is enough."""
    newest = positions_of_lines(view, search, low, high, last=1)
    yield from newest
    if newest:
        yield from reversed(positions_of_lines(view, search, low, newest[0][0], last=_STEPS_LOOKED_AT - 1))
