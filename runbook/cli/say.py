"""The one place through which commands write: no text of a user's that is said commands the terminal.

Job names, paths, lines of scripts and stored documents come here as they are, so that no command has to think of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

from runbook.report.vocabulary.clean import escaped, harmless

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", *, err: bool = False, nl: bool = True, bold: bool = False, colour: str | None = None) -> None:
    """Lines of text. What they look like is said apart: they bring no colours of their own."""
    shown = harmless(text)
    click.echo(click.style(shown, fg=colour, bold=bold or None) if bold or colour else shown, err=err, nl=nl)


def say_json(text: str, *, nl: bool = True) -> None:
    """A JSON document, the same document: characters that are not seen are written as JSON's escapes."""
    click.echo(escaped(text), nl=nl)


def hand_on(text: str) -> None:
    """As it is, into a pipe or a file, for a program to read."""
    click.echo(text, nl=False)


def redraw(text: str) -> None:
    """On the terminal's last line, in place of what stood there; "" takes it away."""
    click.echo(f"\r\x1b[K{harmless(text)}", nl=False, err=True)


def clean_console(
    stream: TextIO, *, soft_wrap: bool = False, width: int | None = None, force: bool | None = None
) -> Console:
    """A console that draws tables and coloured lines, and cleans every piece of text that it draws."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Cleaning(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for piece in super().render(renderable, options):
                yield piece if piece.control else Segment(harmless(piece.text), piece.style)

    return Cleaning(file=stream, highlight=False, soft_wrap=soft_wrap, width=width, force_terminal=force)


class CleanLines(logging.Formatter):
    """A record of the log is one line, and a trace of this program's below it: nobody's name begins another record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return " ".join(harmless(super().formatMessage(record)).splitlines())

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))
