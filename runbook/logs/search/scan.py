"""One log told to a handler: chunks that overlap, lines that hold a literal, bounded memory, any kind of lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, cast

from runbook.logs.search.file_formats import DAMAGED, unpacked
from runbook.logs.search.literals import LONGEST_LITERAL, LiteralSearch
from runbook.masking import masked

LINE_CAP_BYTES = 16 << 10
"""A longer line is looked at in windows of this size."""
SHORT_BYTES = 512
EXCERPT_LINES = 40
EXCERPT_CHARACTERS = 2048

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def line_at(buffer: bytearray, position: int, end: int) -> tuple[int, int]:
    """Start and end of the line (or of the progress bar's stretch between carriage returns) around `position`."""
    low = max(0, position - LINE_CAP_BYTES)
    high = min(end, position + LINE_CAP_BYTES)
    start = max(buffer.rfind(b"\n", low, position), buffer.rfind(b"\r", low, position)) + 1
    if start == 0 and low > 0:
        low = position - SHORT_BYTES  # an endless line: only a little of what stands before
    stop = buffer.find(b"\n", position, high)
    stop = high if stop < 0 else stop
    turn = buffer.find(b"\r", position, stop)
    return max(start, low), turn if turn >= 0 else stop


def decode(piece: bytes | bytearray) -> str:
    """Bytes of a log as text; what is not UTF-8 becomes the replacement character."""
    return bytes(piece).decode("utf-8", "replace")


def lines_before(buffer: bytearray, position: int, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and end of the whole lines before `position`, nearest first, looked up as far as they are asked for."""
    low = max(0, position - limit_bytes)
    stop = position - 1
    while stop >= low:
        start = buffer.rfind(b"\n", low, stop) + 1
        if start == 0 and low > 0:
            return  # the line begins out of reach
        yield start, min(stop, start + LINE_CAP_BYTES)
        stop = start - 1


def lines_after(buffer: bytearray, position: int, end: int, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and end of the lines after the line end at `position`, nearest first."""
    high = min(end, position + limit_bytes)
    start = buffer.find(b"\n", position, high) + 1
    while 0 < start < high:
        stop = buffer.find(b"\n", start, high)
        stop = high if stop < 0 else stop
        yield start, min(stop, start + LINE_CAP_BYTES)
        start = stop + 1


def printable(text: str) -> str:
    """Text that can be shown: no control characters, no direction marks, no secrets; tabs and newlines kept."""
    return masked(text if text.isprintable() else _CONTROLS.sub("", text))


def excerpt(before: Sequence[str], line: str, after: Sequence[str] = ()) -> str:
    """What a person is shown of a finding: the line itself always, as much around it as fits."""
    own = printable(line)[:EXCERPT_CHARACTERS]
    if not before and not after:
        return own
    room = EXCERPT_CHARACTERS - len(own)
    chosen = [own]
    for text in after[:6]:
        shown = printable(text)[:240]
        if len(shown) + 1 > room:
            break
        chosen.append(shown)
        room -= len(shown) + 1
    first: list[str] = []
    for text in reversed(before[-(EXCERPT_LINES - len(chosen)):]):
        shown = printable(text)[:240]
        if len(shown) + 1 > room:
            break
        first.append(shown)
        room -= len(shown) + 1
    return masked("\n".join([*reversed(first), *chosen]))  # again: a private key has several lines


MOST_UNPACKED_BYTES = 16 << 30
_FREELY_UNPACKED_BYTES = 1 << 30
_MOST_TIMES = 500
"""So many times its size a packed log may hold, once it is that much: text packs to a hundredth."""
CHUNK_BYTES = 4 << 20
KEPT_BYTES = 192 << 10
"""What stays in front of a chunk, so that a failure's traceback can be read back."""
AHEAD_BYTES = 64 << 10
"""What a chunk leaves to the next one, so that a failure's following lines can be read."""
PIECE_BYTES = 256 << 10
"""What is searched and counted at a time, while it is in the processor's cache."""
FREELY = 500
"""Lines of steps that may be read at a stretch's end where nothing has to be saved."""
FEW = 8
"""Fewer lines than this may be read where a file is one of thousands."""
FREELY_BYTES = 16 << 20
"""Up to here steps are sampled freely."""
_LINES_OF_A_STREAM = 600
_LINES_AT_AN_END = 200
_STRANGE = bytes((1, 2, 3, 4, 5, 6, 14, 15, 16, 127))
_OF_TRACEBACKS = (b"Traceback", b"File ", b"ray::")
"""Colours may stand between these and what follows them."""
_SHORT_LINE_BYTES = 32
COUNTED_BYTES = 32 << 10
_SPAM = 64
"""Lines of a chunk with the same beginning and the same literal that are told from either end of the chunk."""
_MANY = 4096
"""Hits in a chunk from which on spam is looked for."""


@dataclass(slots=True)
class View:
    """The part of a log at hand. Positions are in `buffer`, offsets in the file."""

    buffer: bytearray
    base: int
    """Offset in the file of the buffer's first byte."""
    end: int
    """Bytes filled."""
    lines_before: int | None
    """Line ends before `counted_from`; None: not known."""
    counted_from: int = 0
    """A position."""
    with_steps: Sequence[tuple[int, int]] | None = None
    """Stretches that hold a step's literal, in order; None: nobody looked."""
    sample: int = FREELY
    """How many lines of steps may be read at the end of this stretch; a long log is sampled thinly."""
    left: int = 0
    """Bytes of the file behind this stretch; 0 where nobody knows."""
    counts: list[int] = field(default_factory=lambda: [0])
    """Line ends from `counted_from` up to every COUNTED_BYTES, as far as they are known."""

    def line_number(self, position: int) -> int:
        """From 1; 0 where it is not known."""
        if self.lines_before is None:
            return 0
        if position < self.counted_from:
            return self.lines_before - self.buffer.count(b"\n", position, self.counted_from) + 1
        block, rest = divmod(position - self.counted_from, COUNTED_BYTES)
        while len(self.counts) <= block:
            low = self.counted_from + (len(self.counts) - 1) * COUNTED_BYTES
            self.counts.append(self.counts[-1] + self.buffer.count(b"\n", low, low + COUNTED_BYTES))
        return self.lines_before + self.counts[block] + self.buffer.count(b"\n", position - rest, position) + 1

    def last_steps(self, start: int, stop: int) -> tuple[int, int]:
        """The last part of a stretch that may hold steps; an empty one where none are."""
        if self.with_steps is None:
            return max(start, stop - (64 << 10)), stop
        for low, high in reversed(self.with_steps):
            if low < stop and high > start:
                return max(start, low), min(stop, high)
        return stop, stop

    def line(self, position: int) -> tuple[int, int]:
        return line_at(self.buffer, position, self.end)

    def before(self, position: int, limit_bytes: int = 48 << 10) -> Iterator[tuple[int, int]]:
        return lines_before(self.buffer, position, limit_bytes)

    def traceback_before(self, position: int, limit_bytes: int = 48 << 10) -> bool:
        """Whether anything of a traceback stands among the lines that `before` yields: framing them costs far more."""
        low = max(0, position - limit_bytes)
        return any(self.buffer.rfind(word, low, position) >= 0 for word in _OF_TRACEBACKS)

    def after(self, position: int, limit_bytes: int = 8 << 10) -> Iterator[tuple[int, int]]:
        return lines_after(self.buffer, position, self.end, limit_bytes)


class Handler(Protocol):
    """Who is told what was found."""

    def first(self, view: View) -> None:
        """Once, before anything else, with the file's beginning."""

    def line(self, view: View, start: int, stop: int) -> None:
        """A line that holds a literal."""

    def stretch(self, view: View, start: int, stop: int) -> None:
        """A stretch whose lines with literals were all told."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """How the pass ended: bytes of the text read, and a note where not all was plain text."""

    bytes_read: int
    note: str = ""
    cut: bool = False
    """More is there that was not read."""


@dataclass(slots=True)
class SearchedStretch:
    """What a search of one stretch of a buffer brought."""

    found: list[int]
    """Positions where a literal begins."""
    with_steps: list[tuple[int, int]] | None
    counts: list[int] = field(default_factory=lambda: [0])
    """Line ends from the stretch's beginning up to every COUNTED_BYTES and to its end."""

    @property
    def line_ends(self) -> int:
        """Line ends of all of it; 0 where they were not counted."""
        return self.counts[-1]


def search_stretch(
    search: LiteralSearch, buffer: bytearray, start: int, stop: int, end: int, *, count: bool = True
) -> SearchedStretch:
    """Search a stretch piece by piece; `end` is where the filled buffer ends. Other threads run meanwhile."""
    text = memoryview(buffer)
    found: list[int] = []
    steps: list[tuple[int, int]] | None = []
    counts, ends = [0], 0
    for low in range(start, stop, PIECE_BYTES):
        high = min(low + PIECE_BYTES, stop)
        some, present = search.find(text[low:min(high + LONGEST_LITERAL, end)])
        size = high - low
        found += [low + one for one in some if one < size]
        if present is None:
            steps = None
        elif present and steps is not None:
            if steps and steps[-1][1] == low:
                steps[-1] = (steps[-1][0], high)
            else:
                steps.append((low, high))
        if count:
            for first in range(low, high, COUNTED_BYTES):
                size = min(COUNTED_BYTES, high - first)
                # CPython's count looks at each byte, its replace leaps from one to the next: faster by far on long
                # lines, as long as the copy is small enough that its memory is not fetched anew each time.
                short = ends * _SHORT_LINE_BYTES > size
                ends = (
                    buffer.count(b"\n", first, first + size) if short
                    else size - len(buffer[first:first + size].replace(b"\n", b""))
                )
                counts.append(counts[-1] + ends)
    return SearchedStretch(found, steps, counts)


def tell_lines(view: View, found: Iterable[int], handler: Handler, start: int, stop: int) -> int:
    """Tell a handler the lines at the positions found, then the stretch. Returns how many lines were passed over."""
    positions = found if isinstance(found, list) else list(found)
    spam, passed = _Spam(view, positions) if len(positions) > _MANY else None, 0
    told_to = start
    for at in positions:
        if at < told_to:
            continue
        first, end = view.line(at)
        told_to = max(end, at + 1)
        if spam is not None and spam.passes_over(first, at):
            passed += 1
            continue
        handler.line(view, first, end)
    handler.stretch(view, start, stop)
    return passed


class _Spam:
    """Which of very many lines say nothing new: those that begin like many others of the chunk up to the literal.

    The beginning holds who speaks, so every speaker is heard; the first and the last lines of each are told."""

    def __init__(self, view: View, positions: Sequence[int]) -> None:
        self._buffer = view.buffer
        self._left: dict[bytes, int] = {}
        self._told: dict[bytes, int] = {}
        reached = -1
        for at in positions:
            if at < reached:
                continue
            start, stop = view.line(at)
            reached = max(stop, at + 1)
            key = self._key(start, at)
            self._left[key] = self._left.get(key, 0) + 1

    def _key(self, start: int, at: int) -> bytes:
        return bytes(self._buffer[start:min(at + 12, start + 240)])

    def passes_over(self, start: int, at: int) -> bool:
        key = self._key(start, at)
        self._left[key] = left = self._left.get(key, 1) - 1
        told = self._told.get(key, 0)
        if told < _SPAM or left < _SPAM:
            self._told[key] = told + 1
            return False
        return True


def scan_stream(
    stream: BinaryIO, search: LiteralSearch, handler: Handler, buffer: bytearray,
    report: Callable[[int], None] = lambda done: None,
) -> Scanned:
    """Read a stream to its end once, a packed one as far as it holds what a log may. `buffer` is working space of
    KEPT_BYTES + CHUNK_BYTES or more, used again by the next call. `report` gets the bytes read so far. Raises OSError
    from the stream."""
    source, note = unpacked(stream)
    base = filled = done = lines = passed = 0
    view_of_all = memoryview(buffer)
    while True:
        fresh, broken = _fill(source, view_of_all[filled:])
        filled += fresh
        cut = _holds_too_much(stream, base + filled) if source is not stream else ""
        last = bool(broken or cut) or filled < len(buffer)
        note = broken or cut or note
        limit = filled if last else filled - AHEAD_BYTES
        if base == 0 and done == 0:
            strange = binary(view_of_all[:min(filled, 8192)])
            if strange:
                return Scanned(filled, note or strange)
            handler.first(View(buffer, 0, filled, 0))
        part = search_stretch(search, buffer, done, limit, filled)
        sample = _sample(base + limit, last)
        view = View(buffer, base, filled, lines, done, part.with_steps, sample, counts=part.counts)
        passed += tell_lines(view, part.found, handler, done, limit)
        lines += part.line_ends
        report(_position(stream, base + limit))
        if last:
            notes = [note or ("empty" if base + filled == 0 else ""), passed_over(passed)]
            return Scanned(base + filled, "; ".join(one for one in notes if one), bool(cut))
        drop = limit - KEPT_BYTES
        view_of_all[:filled - drop] = view_of_all[drop:filled]
        base, filled, done = base + drop, filled - drop, limit - drop


def _holds_too_much(packed: BinaryIO, read_bytes: int) -> str:
    """Why a packed log is read no further; "" where it is."""
    if read_bytes <= _FREELY_UNPACKED_BYTES:
        return ""
    times = read_bytes // max(_position(packed, read_bytes), 1)
    if times <= _MOST_TIMES and read_bytes <= MOST_UNPACKED_BYTES:
        return ""
    return f"cut at byte {read_bytes} of its text, {times} times what was unpacked for it: the rest was not read"


def _sample(read_bytes: int, last: bool) -> int:
    """Lines of steps to be read at a stretch's end where nobody knows how much is to come: all is read freely as long
    as it is little, and then the thinner the longer the log has become, more of them at its end."""
    if read_bytes <= FREELY_BYTES:
        return FREELY
    share = _LINES_OF_A_STREAM * CHUNK_BYTES // read_bytes
    return max(1, _LINES_AT_AN_END if last else share)


def passed_over(lines: int) -> str:
    """The note on spam."""
    return f"{lines} lines that repeat their neighbours were passed over" if lines else ""


def _fill(stream: BinaryIO, space: memoryview) -> tuple[int, str]:
    """Fill the space as far as the stream goes, and say what broke it off."""
    filled = 0
    read_into = cast("Callable[[memoryview], int | None] | None", getattr(stream, "readinto", None))
    while filled < len(space):
        try:
            if read_into is not None:
                got = read_into(space[filled:]) or 0
            else:
                piece = stream.read(len(space) - filled)
                got = len(piece)
                space[filled:filled + got] = piece
        except DAMAGED:
            return filled, "the compressed file is damaged or cut; read as far as it goes"
        if not got:
            break
        filled += got
    return filled, ""


def _position(stream: BinaryIO, otherwise: int) -> int:
    try:
        return stream.tell()
    except (OSError, AttributeError, ValueError):
        return otherwise


def binary(head: memoryview) -> str:
    """Control bytes among the first ones mean that it is no log. NUL bytes do not: a truncated log begins with them."""
    sample = bytes(head)
    if _is_utf_16(sample):
        return "UTF-16 text, not read; convert it with iconv -f UTF-16 -t UTF-8"
    strange = len(sample) - len(sample.translate(None, _STRANGE))
    if not strange:
        return ""
    visible = sample.translate(None, b"\0")
    no_text = strange * 10 > len(visible)
    if not no_text and strange * 50 > len(visible):  # compressed or random bytes: few of them are UTF-8 either
        no_text = visible.decode("utf-8", "replace").count("\ufffd") * 10 > len(visible)
    return "binary data, not read as a log" if no_text else ""


def _is_utf_16(sample: bytes) -> bool:
    """A byte order mark and NULs, or a NUL beside nearly every letter, always on the same side of it."""
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return sample.count(0) * 20 > len(sample)
    text = sample[:2048].lstrip(b"\0")
    even, odd = text[::2].count(0), text[1::2].count(0)
    return len(text) >= 64 and max(even, odd) * 10 > len(text) * 4 and min(even, odd) * 50 < len(text)


def positions_of_lines(
    view: View, search: LiteralSearch, start: int, stop: int, last: int
) -> Sequence[tuple[int, int]]:
    """The lines of a stretch that hold a literal, at most the last `last` of them."""
    text = memoryview(view.buffer)
    wanted = last * 3
    low, found = stop, list[int]()
    size = max(2048, min(last * 512, stop - start))
    while low > start and len(found) < wanted:  # from the end, so that a few lines cost no search of all
        low, high = max(start, low - size), low
        found = [low + one for one in search.positions(text[low:min(high + LONGEST_LITERAL, stop)])
                 if low + one < high] + found
        size *= 4
    spans: list[tuple[int, int]] = []
    told_to = start
    for at in found[-wanted:]:
        if at < told_to:
            continue
        first, end = view.line(at)
        spans.append((first, end))
        told_to = max(end, at + 1)
    return spans[-last:]
