"""Pieces of a log's bytes: the line at an offset, the lines around it, and what of them a person is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
