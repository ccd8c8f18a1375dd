"""`runbook incidents`, `show`, `report`: what is stored, told plainly."""

from __future__ import annotations

import sys

import click

from runbook.adapters.store import check_incident_id
from runbook.cli.daemon_seen import at_work_elsewhere
from runbook.cli.incident import code_of
from runbook.cli.say import clean_console, echo, say_json
from runbook.cli.wiring import application
from runbook.errors import NotFound
from runbook.model.incident import IncidentState
from runbook.report.summary import summaries_adapter


def incidents(state: str | None, watching: bool, as_json: bool, inventory: str | None) -> int:
    """`runbook incidents`."""
    app = application(inventory, looks=True)
    if watching:
        from runbook.cli.incident.live import watch

        return watch(app, lambda row: state is None or row.state == state, as_json)
    every, unreadable = app.read_model.overview()
    rows = [row for row in every if state is None or row.state == state]
    for name in unreadable:
        echo(f"unreadable: {name} (its incident.json is damaged or missing)", err=True)
    if as_json:
        say_json(summaries_adapter().dump_json(rows, indent=1).decode("utf-8"))
        return 0
    for one in at_work_elsewhere(app):
        if one.late:
            echo(f"at work for too long: {one}", err=True)
    if not rows:
        echo("no incidents" + (f" in state {state}" if state else ""), err=True)
        return 0
    from rich.padding import Padding

    from runbook.cli.incident.live import lines_of, table_of

    console = clean_console(sys.stdout, width=None if sys.stdout.isatty() else 160)
    table, headlines = table_of(rows, console, folded=True)
    if not headlines:
        console.print(table)
        return 0
    for line, told in zip(lines_of(console, table), (None, *headlines), strict=False):
        console.print(line, no_wrap=True)
        if told is not None:
            console.print(Padding(told, (0, 0, 0, 4)))
    return 0


def show(incident: str, as_json: bool, inventory: str | None) -> int:
    """`runbook show`."""
    app = application(inventory, looks=True)
    checked = check_incident_id(incident)
    if as_json:
        say_json(app.store.read_file(checked, "incident.json").decode("utf-8"), nl=False)
        return 0
    stored = app.store.load(checked)
    from runbook.report.text.incident_text import render_text

    echo(render_text(app.store.as_kept(stored)))
    return 0 if stored.state is not IncidentState.ESCALATED else code_of(stored)


def report(incident: str, open_it: bool, draw: bool, inventory: str | None) -> int:
    """`runbook report`."""
    app = application(inventory)
    checked = check_incident_id(incident)
    stored = app.store.load(checked)
    path = app.store.folder(checked) / "report.html"
    if draw or not path.exists():
        app.draw(stored)
    if not path.exists():
        raise NotFound("the report could not be drawn", where=str(path), next_step="runbook show " + incident)
    echo(str(path))
    if open_it:
        click.launch(str(path))
    return 0
