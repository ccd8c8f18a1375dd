"""The first hour on a cluster: `runbook setup` writes its inventory, `runbook canary` tries it."""

from __future__ import annotations

import textwrap

from runbook.cli.say import echo
from runbook.report.vocabulary.clean import clean_line

WIDTH = 100
"""Columns of a terminal that everything but a line to copy fits into."""


def say(text: str, indent: str = "", *, first: str | None = None) -> None:
    """One paragraph, wrapped. `first`: the first line's own indent."""
    first = indent if first is None else first
    lines = textwrap.wrap(
        clean_line(text), WIDTH, initial_indent=first, subsequent_indent=indent or " " * len(first),
        break_long_words=False, break_on_hyphens=False,
    )
    echo("\n".join(lines))


def heading(text: str) -> None:
    """A part's title."""
    echo()
    echo(text, bold=True)
