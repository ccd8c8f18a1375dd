"""Writes the pages of docs/ that follow from the code and the documents: commands, flow, signatures, levers, Xids, and
the schemas of what commands print with `--json`.

    python deploy/docs/reference.py           # writes them
    python deploy/docs/reference.py --check   # exits with 1 and names those that are not current
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from answers import ANSWERS, INCIDENT, file_of, schema_of

from runbook.cli.command_line import cli
from runbook.explain.lines import entries
from runbook.explain.terms import names, topics_of
from runbook.flow import load_flow
from runbook.locations import playbook_folder
from runbook.remedy import load_levers

REPOSITORY = Path(__file__).resolve().parents[2]
_MADE = "This page is made by `make reference`; changes belong where it comes from: "


def pages() -> dict[str, str]:
    """Each page's text by its file name."""
    made = {
        "commands.md": ["# Commands", _MADE + "`runbook/cli/command_line.py`.", *_commands(cli, "runbook")],
        "flow.md": ["# The flow", _MADE + "`playbooks/oom/flow.yaml`.", *_flow()],
        "signature-list.md": ["# Every signature", _MADE + "`playbooks/oom/signatures/`.", *_signatures()],
        "lever-list.md": ["# Levers by system", _MADE + "`playbooks/oom/levers/`.", *_levers()],
        "json.md": ["# Answers as JSON", _MADE + "`deploy/docs/answers.py`.", *_answers()],
        "xids.md": ["# Xids", _MADE + "`playbooks/oom/xid.yaml`.", *_xids()],
    }
    schemas = {file_of(command): json.dumps(schema_of(command), indent=2) + "\n" for command in ANSWERS}
    return {name: "\n\n".join(parts) + "\n" for name, parts in made.items()} | schemas


def _commands(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            if not below.hidden:
                yield from _commands(below, f"{path} {name}")
        return
    context = click.Context(command, info_name=path)
    yield f"## {path}"
    yield _text(command.help or command.short_help or "")
    yield f"    {path} {' '.join(command.collect_usage_pieces(context))}"
    options = [
        record for parameter in command.get_params(context)
        if "--help" not in parameter.opts and (record := parameter.get_help_record(context))
    ]
    if options:
        yield _table(("option", "meaning"), ((f"`{option}`", _text(meaning)) for option, meaning in options))


def _flow() -> Iterator[str]:
    flow = load_flow(playbook_folder() / "flow.yaml")
    yield f"It starts at `{flow.start}`. Each box is recorded once, and its outcome says which comes next."
    for box in flow.boxes.values():
        yield f"## {box.title}"
        yield f"`{box.name}`: {_text(box.why)}" + (f" It acts: {', '.join(box.acts)}." if box.acts else "")
        yield _table(("outcome", "leads to"), ((f"`{outcome}`", f"`{to}`") for outcome, to in box.next.items()))


def _signatures() -> Iterator[str]:
    by_document: dict[str, list[tuple[str, ...]]] = {}
    for document, entry in entries(None):
        by_document.setdefault(document, []).append((f"`{entry.id}`", _text(entry.title), f"`{entry.means}`"))
    for document, lines in by_document.items():
        yield f"## {document}"
        yield _table(("id", "line", "means"), lines)


def _levers() -> Iterator[str]:
    for system in load_levers(playbook_folder() / "levers"):
        yield f"## {system.id}"
        yield _table(("lever", "why"), ((f"`{rule.id}`", _text(rule.why)) for rule in system.levers))


def _answers() -> Iterator[str]:
    yield (
        "What each command prints on standard output with `--json`, as JSON Schema 2020-12. All that stands in a "
        "schema is printed; a newer version may print more. What is not known is null or empty. Errors are text on "
        "standard error, with the [exit code](exit-codes.md)."
    )
    told = {command: (says, "incident-schema.json") for command, says in INCIDENT.items()}
    told |= {command: (says, file_of(command)) for command, (says, _) in ANSWERS.items()}
    printing = {path for path, command in _every(cli, "") if any("--json" in option.opts for option in command.params)}
    if missing := printing ^ {command.partition(" --")[0] for command in told}:
        raise SystemExit(f"deploy/docs/answers.py and the commands differ on {', '.join(sorted(missing))}")
    yield _table(("command", "prints", "schema"), (
        (f"`runbook {command} --json`", says, f"[{file}]({file})") for command, (says, file) in sorted(told.items())
    ))


def _every(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _every(below, f"{path} {name}".strip())


def _xids() -> Iterator[str]:
    rows = []
    for name in sorted((name for name in names(None) if name.startswith("xid ")), key=lambda name: int(name[4:])):
        rows += [(f"`{topic.name}`", _text(topic.title)) for topic in topics_of(name, None)]
    yield _table(("Xid", "means"), rows)


def _text(words: str) -> str:
    """On one line, as text: what Markdown or a table would take for its own is escaped."""
    plain = " ".join(words.replace("\b", "").split())
    parts = re.split(r"(`[^`]*`)", plain)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)


def _table(head: tuple[str, ...], rows: object) -> str:
    assert not isinstance(rows, str)
    lines = [head, ("---",) * len(head), *rows]  # type: ignore[misc]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """A stroke would end the cell; within Markdown's code its escape would be shown."""
    code = re.sub(r"`([^`]*\|[^`]*)`", lambda found: f"<code>{html.escape(found[1], quote=False)}</code>", text)
    return code.replace("|", "&#124;")


def main() -> int:
    """Write the pages, or say which are not current."""
    stale = []
    for name, text in pages().items():
        path = REPOSITORY / "docs" / name
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"docs/{name} is not current: make reference", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
