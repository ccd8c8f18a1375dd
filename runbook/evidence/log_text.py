"""Pieces of a log's bytes: the line at an offset, the lines around it, and what of them a person is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

LINE_CAP_BYTES = 16 << 10
"""A longer line is looked at in windows of this size."""
EXCERPT_LINES = 40
EXCERPT_CHARACTERS = 2048

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def line_at(buffer: bytearray, position: int, end: int) -> tuple[int, int]:
    """Start and end of the line (or of the progress bar's stretch between carriage returns) around `position`."""
    low = max(0, position - LINE_CAP_BYTES)
    high = min(end, position + LINE_CAP_BYTES)
    start = max(buffer.rfind(b"\n", low, position), buffer.rfind(b"\r", low, position)) + 1
    stop = buffer.find(b"\n", position, high)
    stop = high if stop < 0 else stop
    turn = buffer.find(b"\r", position, stop)
    return max(start, low), turn if turn >= 0 else stop


def decode(piece: bytes | bytearray) -> str:
    """Bytes of a log as text; what is not UTF-8 becomes the replacement character."""
    return bytes(piece).decode("utf-8", "replace")


def lines_before(buffer: bytearray, position: int, limit_bytes: int, limit_lines: int) -> list[str]:
    """Whole lines that end before `position`, oldest first."""
    low = max(0, position - limit_bytes)
    piece = buffer[low:position]
    if low > 0:
        cut = piece.find(b"\n")
        piece = piece[cut + 1:] if cut >= 0 else bytearray()
    return [decode(line[:LINE_CAP_BYTES]) for line in piece.splitlines()[-limit_lines:]]


def lines_after(buffer: bytearray, position: int, end: int, limit_bytes: int, limit_lines: int) -> list[str]:
    """Lines that begin after the line end at `position`."""
    piece = buffer[position:min(end, position + limit_bytes)]
    lines = piece.splitlines()
    if lines and not lines[0]:
        lines = lines[1:]
    return [decode(line[:LINE_CAP_BYTES]) for line in lines[:limit_lines]]


def printable(text: str) -> str:
    """Text that can be shown: no control characters, no direction marks, tabs and newlines kept."""
    return _CONTROLS.sub("", text)


def excerpt(before: Sequence[str], line: str, after: Sequence[str] = ()) -> str:
    """What a person is shown of a finding: the line itself always, as much around it as fits."""
    own = printable(line)[:EXCERPT_CHARACTERS]
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
    return "\n".join([*reversed(first), *chosen])
