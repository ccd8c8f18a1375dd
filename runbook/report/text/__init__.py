"""Text tables and paragraphs that fit a terminal of any width, and read well when they are piped."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from runbook.report.vocabulary.clean import clean_line

_GAP = 2
_LAST_AT_LEAST = 28
"""Below this the last column goes under its row."""


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, indent: str = "  ", below: str = "      "
) -> list[str]:
    """Lines of a table whose last column is wrapped; where that has no room it stands below its row. A cell in front
    that is longer than half the width pushes its row's rest to the right, or down. The heads come first where there are
    any. Cells may hold anything: what a terminal would act on is taken out."""
    told = [[clean_line(cell) for cell in row] for row in rows]
    everything = [list(heads), *told] if any(heads) else told
    if not everything:
        return []
    widths = [
        min(max(cell_count(row[at]) for row in everything), max(width // 2, 24)) for at in range(len(everything[0]) - 1)
    ]
    room = width - len(indent) - sum(widths) - _GAP * len(widths)
    lines: list[str] = []
    for row in everything:
        front = indent
        for cell, size in zip(row, widths):
            front += cell + " " * (max(size - cell_count(cell), 0) + _GAP)
        last = row[-1]
        if room < _LAST_AT_LEAST or cell_count(front) > width - room:
            lines += textwrap.wrap(
                front.rstrip(), width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
            )
            lines += paragraph(last, width, below)
            continue
        parts = wrapped_words(last, room) or [""]
        lines.append((front + parts[0]).rstrip())
        lines += [" " * (width - room) + part for part in parts[1:]]
    return lines


def paragraph(text: str, width: int, indent: str = "  ", first: str | None = None) -> list[str]:
    """Wrapped text; nothing where there is none. Words that are longer than a line, as a path to copy, stay whole."""
    first = indent if first is None else first
    parts = wrapped_words(clean_line(text), width - len(indent))
    return [(first if at == 0 else indent) + part for at, part in enumerate(parts)]


def labelled(label: str, text: str, width: int, *, indent: str = "  ", size: int = 13) -> list[str]:
    """A paragraph with a label in front; nothing where there is no text."""
    return paragraph(text, width, indent + " " * (size + 1), f"{indent}{label:<{size}} ")


def wrapped_words(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def cell_count(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
