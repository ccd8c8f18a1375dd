"""The `#SBATCH` lines at the head of a job script, as Slurm reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(rb"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a `#SBATCH` line. Spans are bytes of the file."""

    option: str
    """As written: "--nodes", "-N"."""
    value: str | None
    start: int
    end: int
    value_start: int
    value_end: int
    line: int
    alone: bool
    """The only option of its line."""


@dataclass(frozen=True, slots=True)
class Header:
    """Directives in order, and where a line can be added."""

    directives: tuple[Directive, ...]
    insert_at: int
    """Byte behind the last `#SBATCH` line, or behind the `#!` line: a line can be put there."""
    heterogeneous: bool = False

    def last(self, options: Sequence[str]) -> Directive | None:
        """The one in force: Slurm lets the last win."""
        return next((item for item in reversed(self.directives) if item.option in options), None)


def read_header(data: bytes) -> Header:
    """Directives up to the first line that is neither blank nor a comment: Slurm ignores later ones."""
    directives: list[Directive] = []
    insert_at = 0
    heterogeneous = False
    start = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        end = start + len(line)
        if number == 1 and line.startswith(b"#!"):
            insert_at = end
        elif line.startswith(b"#SBATCH") and line[7:8] in (b" ", b"\t", b"\n", b""):
            directives += _line(line, start, number)
            insert_at = end
            heterogeneous = heterogeneous or bool(re.match(rb"#SBATCH\s+(?:hetjob|packjob)\b", line))
        elif line.strip() and not line.startswith(b"#"):
            break
        start = end
    return Header(tuple(directives), insert_at, heterogeneous)


def _line(line: bytes, offset: int, number: int) -> list[Directive]:
    words = []
    for match in _WORD.finditer(line, 7):
        if match.group().startswith(b"#"):
            break
        words.append(match)
    found: list[Directive] = []
    at = 0
    while at < len(words):
        match = words[at]
        text = match.group().decode("utf-8", "surrogateescape")
        start, end = offset + match.start(), offset + match.end()
        at += 1
        if not text.startswith("-"):
            continue
        option, value, value_start, value_end = text, None, end, end
        if text.startswith("--") and "=" in text:
            option, value = text.split("=", 1)
            value_start = start + len(option.encode("utf-8", "surrogateescape")) + 1
        elif not text.startswith("--") and len(text) > 2:
            option, value, value_start = text[:2], text[2:], start + 2
        elif at < len(words) and not words[at].group().startswith(b"-"):
            value = words[at].group().decode("utf-8", "surrogateescape")
            value_start, value_end = offset + words[at].start(), offset + words[at].end()
            end = value_end
            at += 1
        found.append(
            Directive(option, _unquoted(value), start, end, value_start, value_end, number, False)
        )
    if len(found) == 1:
        only = found[0]
        found = [
            Directive(
                only.option, only.value, only.start, only.end, only.value_start, only.value_end, only.line, True
            )
        ]
    return found


def _unquoted(value: str | None) -> str | None:
    if value and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
