"""One pass over a log at the search engine's speed: overlapping chunks, bounded memory, any kind of lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from runbook.evidence.log_text import line_at, lines_after, lines_before

CHUNK_BYTES = 8 << 20
KEPT_BYTES = 192 << 10
"""What stays in front of a chunk, so that a failure's traceback can be read back."""
AHEAD_BYTES = 64 << 10
"""What a chunk leaves to the next one, so that a failure's following lines can be read."""
LONGEST_LITERAL = 256
LITERALS_AN_AUTOMATON = 20
"""Measured on the shipped literals: automata of 20 neighbours in the alphabet run at 6 to 14 GB/s each (lower-case
ones at 2), together 1.1 GB/s; two of 60 ran at 0.5, and above 64 the engine takes a slower algorithm still."""


class Search:
    """Several literals searched at once. Which of overlapping literals is reported does not matter to the caller."""

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(sorted({literal.encode() for literal in literals}))
        groups = -(-len(self.literals) // LITERALS_AN_AUTOMATON)
        size = -(-len(self.literals) // groups) if groups else 1
        self._automata = [
            BytesAhoCorasick(list(self.literals[start:start + size]), matchkind=MatchKind.LeftmostFirst)
            for start in range(0, len(self.literals), size)
        ]

    def positions(self, text: memoryview) -> list[int]:
        """Where a literal begins, in order."""
        found = [
            start for automaton in self._automata for _, start, _ in automaton.find_matches_as_indexes(text)
        ]
        found.sort()
        return found

    def within(self, line: bytes) -> list[bytes]:
        """All literals that a line holds."""
        return [literal for literal in self.literals if literal in line]


@dataclass(slots=True)
class View:
    """The part of a log at hand. Positions are in `buffer`, offsets in the file."""

    buffer: bytearray
    base: int
    """Offset in the file of the buffer's first byte."""
    end: int
    """Bytes filled."""
    lines_before_base: int
    _counted_to: int = 0
    _counted: int = 0

    def line_number(self, position: int) -> int:
        """From 1. Positions must not go down from call to call, which keeps the counting linear."""
        if position >= self._counted_to:
            self._counted += self.buffer.count(b"\n", self._counted_to, position)
            self._counted_to = position
            return self.lines_before_base + self._counted + 1
        return self.lines_before_base + self.buffer.count(b"\n", 0, position) + 1

    def line(self, position: int) -> tuple[int, int]:
        return line_at(self.buffer, position, self.end)

    def before(self, position: int, limit_bytes: int = 48 << 10) -> Iterator[tuple[int, int]]:
        return lines_before(self.buffer, position, limit_bytes)

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


def scan(
    stream: BinaryIO, search: Search, handler: Handler, buffer: bytearray,
    report: Callable[[int], None] = lambda done: None,
) -> Scanned:
    """Read a stream to its end once. `buffer` is working space of KEPT_BYTES + CHUNK_BYTES or more, used again by
    the next call. `report` gets the bytes read so far. Raises OSError from the stream."""
    source, note = _unpacked(stream)
    base = filled = done = lines = 0
    view_of_all = memoryview(buffer)
    while True:
        fresh, broken = _fill(source, view_of_all[filled:])
        filled += fresh
        last = bool(broken) or filled < len(buffer)
        note = broken or note
        limit = filled if last else filled - AHEAD_BYTES
        view = View(buffer, base, filled, lines)
        if base == 0 and done == 0:
            binary = _binary(view_of_all[:min(filled, 8192)])
            if binary:
                return Scanned(filled, binary)
            handler.first(view)
        _tell(view, search, handler, done, limit, view_of_all)
        report(_position(stream, base + limit))
        if last:
            return Scanned(base + filled, note or ("empty" if base + filled == 0 else ""))
        drop = limit - KEPT_BYTES
        lines += buffer.count(b"\n", 0, drop)
        view_of_all[:filled - drop] = view_of_all[drop:filled]
        base, filled, done = base + drop, filled - drop, limit - drop


def _tell(view: View, search: Search, handler: Handler, start: int, limit: int, text: memoryview) -> None:
    told_to = start
    for position in search.positions(text[start:min(view.end, limit + LONGEST_LITERAL)]):
        at = start + position
        if at < told_to:
            continue
        if at >= limit:
            break
        first, stop = view.line(at)
        handler.line(view, first, stop)
        told_to = max(stop, at + 1)
    handler.stretch(view, start, limit)


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
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return filled, "the compressed file is damaged or cut; read as far as it goes"
        if not got:
            break
        filled += got
    return filled, ""


def _unpacked(stream: BinaryIO) -> tuple[BinaryIO, str]:
    try:
        stream.seek(0)
        magic = stream.read(2)
        stream.seek(0)
    except (OSError, AttributeError):
        return stream, ""
    if magic == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream)), "gzip, unpacked while reading"
    return stream, ""


def _position(stream: BinaryIO, otherwise: int) -> int:
    try:
        return stream.tell()
    except (OSError, AttributeError, ValueError):
        return otherwise


def _binary(head: memoryview) -> str:
    """Control bytes among the first ones mean that it is no log. NUL bytes do not: a truncated log begins with them."""
    sample = bytes(head).replace(b"\0", b"")
    strange = sum(sample.count(byte) for byte in (1, 2, 3, 4, 5, 6, 14, 15, 16, 127))
    return "binary data, not read as a log" if strange * 10 > len(sample) else ""


def positions_of_lines(view: View, search: Search, start: int, stop: int, last: int) -> Sequence[tuple[int, int]]:
    """The lines of a stretch that hold a literal, at most the last `last` of them."""
    text = memoryview(view.buffer)[start:stop]
    spans: list[tuple[int, int]] = []
    told_to = start
    for position in search.positions(text)[-last * 3:]:
        at = start + position
        if at < told_to:
            continue
        first, end = view.line(at)
        spans.append((first, end))
        told_to = max(end, at + 1)
    return spans[-last:]
