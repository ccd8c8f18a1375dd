"""What the commands write to a terminal or a log commands neither, and all of it goes one way."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from runbook.cli.say import CleanLines, clean_console, echo, say_json
from tests.checks.literals import REPOSITORY

FORGED = "\n2026-11-27 18:00:00,000 INFO oom-9: approved by root"
EVIL = f"x\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[8m\x9b31m\u202e\u2066\x85y{FORGED}"
SEEN = f"xy{FORGED}"
COMMANDS = REPOSITORY / "runbook" / "cli"
ALLOWED = {"runbook/cli/say.py", "runbook/cli/main.py: click.echo"}
"""main's: the shell's own completion."""


def test_what_is_said_has_no_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL)
    echo(EVIL, err=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{SEEN}\n", f"{SEEN}\n")


def test_a_document_is_the_same_document_and_shows_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"name": EVIL + "\U000e0041", "plain": "tab\tumlaut ä"}
    say_json(json.dumps(document, ensure_ascii=False))
    said = capsys.readouterr().out
    assert json.loads(said) == document
    assert said.removesuffix("\n").isprintable() and "ä" in said


def test_a_console_cleans_what_it_draws_and_keeps_its_own_colours() -> None:
    stream = io.StringIO()
    console = clean_console(stream, width=200, force=True)
    table = Table()
    table.add_column("a")
    table.add_row(Text(EVIL.partition("\n")[0], style="red"))
    console.print(table)
    console.print(Text(EVIL), style="bold")
    drawn = stream.getvalue()
    for sequence in ("\x1b]52", "\x1b[2J", "\x1b[8m", "\x9b", "\u202e", "\u2066", "\x85"):
        assert sequence not in drawn
    assert "\x1b[31m" in drawn


def test_a_record_of_the_log_is_one_line_and_its_trace_has_no_commands() -> None:
    stream = io.StringIO()
    logger, handler = logging.Logger("x"), logging.StreamHandler(stream)
    handler.setFormatter(CleanLines("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.warning("job %s", EVIL)
    assert stream.getvalue() == f"WARNING job {SEEN}\n".replace("y\n2026", "y 2026")
    try:
        raise ValueError(EVIL)
    except ValueError:
        logger.exception("that")
    assert "Traceback" in stream.getvalue() and "\x1b" not in stream.getvalue() and "\x9b" not in stream.getvalue()


def _ways_past(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "Console" as name)):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr="echo" | "secho" | "style" as name)):
                yield f"click.{name}"
            case ast.Call(func=ast.Attribute(attr="write", value=ast.Attribute(attr="stdout" | "stderr" as name))):
                yield name
            case ast.Call(func=ast.Attribute(attr="basicConfig")):
                if not any(keyword.arg == "handlers" for keyword in node.keywords):
                    yield "basicConfig"


@pytest.mark.parametrize("file", sorted(COMMANDS.rglob("*.py")), ids=lambda file: str(file.relative_to(COMMANDS)))
def test_the_commands_write_in_one_way_only(file: Path) -> None:
    name = str(file.relative_to(REPOSITORY))
    past = {f"{name}: {way}" for way in _ways_past(ast.parse(file.read_text(encoding="utf-8")))}
    assert name in ALLOWED or past <= ALLOWED, "use runbook.cli.say"


def test_an_error_from_outside_is_said_without_them() -> None:
    from runbook.cli.main import say_error
    from runbook.errors import BadInput

    stream, before = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        say_error(BadInput(EVIL))
    finally:
        sys.stderr = before
    assert SEEN in stream.getvalue() and "\x1b" not in stream.getvalue()
