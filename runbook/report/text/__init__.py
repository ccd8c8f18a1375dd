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
        lines += [line.rstrip() for line in paragraph(last, width, " " * (width - room), front)] or [front.rstrip()]
    return lines


def paragraph(
    text: str, width: int, indent: str = "  ", first: str | None = None, *, cut_words: bool = False,
    fill_first: bool = False,
) -> list[str]:
    """Wrapped text; nothing where there is none. Words that are longer than a line, as a path to copy, stay whole
    unless `cut_words`. The first line is as long as the others, or as its own front lets it be (`fill_first`)."""
    first = indent if first is None else first
    lines = textwrap.wrap(
        clean_line(text), max(width, len(indent) + 20), initial_indent=first if fill_first else indent,
        subsequent_indent=indent, break_long_words=cut_words, break_on_hyphens=False,
    )
    if lines and not fill_first:
        lines[0] = first + lines[0][len(indent) :]
    return lines


def labelled(label: str, text: str, width: int, *, indent: str = "  ", size: int = 13) -> list[str]:
    """A paragraph with a label in front; nothing where there is no text."""
    return paragraph(text, width, indent + " " * (size + 1), f"{indent}{label:<{size}} ")


def cell_count(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
