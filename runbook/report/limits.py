"""How much of an incident a page shows, so that it stays small whatever the logs hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and characters. What is cut is said where it is cut."""

    text: int
    """Characters of one piece of text."""
    items: int
    """Entries of a list in a section: reasons, notes, receipts, levers passed over."""
    rows: int
    """Rows of a table: acts, visits, XIDs, processes, ranks."""
    groups: int
    """Attempts, nodes: parts with tables of their own."""
    excerpt_lines: int
    diff_lines: int
    line: int
    """Characters of a line of an excerpt or a diff."""


LEVELS = (
    Limits(text=700, items=20, rows=64, groups=8, excerpt_lines=40, diff_lines=160, line=400),
    Limits(text=300, items=8, rows=16, groups=4, excerpt_lines=20, diff_lines=60, line=300),
    Limits(text=160, items=3, rows=6, groups=2, excerpt_lines=8, diff_lines=20, line=160),
)
"""From generous to tight: a page that comes out too large is made again with the next."""

MOST_BYTES = 300_000
