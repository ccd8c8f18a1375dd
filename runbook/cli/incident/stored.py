"""`runbook incidents`, `show`, `report`: what is stored, told plainly."""

from __future__ import annotations

import sys
import time

import click

from runbook.adapters.store import check_incident_id
from runbook.cli.daemon_seen import at_work_elsewhere
from runbook.cli.incident import code_of
from runbook.cli.wiring import application
from runbook.errors import NotFound
from runbook.model.incident import IncidentState
from runbook.report.summary import summaries_adapter
from runbook.report.vocabulary.clean import clean_line, shorten

_WIDE = 110
"""Columns from which what happened has room beside an incident; else it stands below it."""


def incidents(state: str | None, as_json: bool, inventory: str | None) -> int:
    """`runbook incidents`."""
    app = application(inventory)
    every, unreadable = app.read_model.overview()
    rows = [row for row in every if state is None or row.state == state]
    for name in unreadable:
        click.echo(f"unreadable: {name} (its incident.json is damaged or missing)", err=True)
    if as_json:
        click.echo(summaries_adapter().dump_json(rows, indent=1).decode("utf-8"))
        return 0
    for one in at_work_elsewhere(app):
        if one.late:
            click.echo(f"at work for too long: {one}", err=True)
    if not rows:
        click.echo("no incidents" + (f" in state {state}" if state else ""), err=True)
        return 0
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
    narrow = console.width < _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("incident", "state", "opened", "job", "owner", "what happened")
    for title in titles[:-1] if narrow else titles:
        table.add_column(
            title, overflow="fold" if title == "what happened" else "ellipsis", no_wrap=title != "what happened"
        )
    headlines = []
    for row in rows:
        opened = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.opened_s))
        cells = (row.id, row.state.replace("_", " "), opened, row.job_name, row.owner)
        headline = Text(shorten(clean_line(row.headline), 160))
        table.add_row(*(Text(clean_line(cell)) for cell in cells), *(() if narrow else (headline,)))
        headlines.append(headline)
    if not narrow:
        console.print(table)
        return 0
    lines = console.render_lines(table, console.options.update(no_wrap=True), pad=False)
    for line, told in zip(lines, (None, *headlines), strict=False):
        console.print(Text.assemble(*((part.text, part.style or "") for part in line)), no_wrap=True)
        if told is not None:
            console.print(Padding(told, (0, 0, 0, 4)))
    return 0


def show(incident: str, as_json: bool, inventory: str | None) -> int:
    """`runbook show`."""
    app = application(inventory)
    checked = check_incident_id(incident)
    if as_json:
        click.echo(app.store.read_file(checked, "incident.json").decode("utf-8"), nl=False)
        return 0
    stored = app.store.load(checked)
    from runbook.report.text.incident_text import render_text

    click.echo(render_text(app.store.as_kept(stored)))
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
    click.echo(str(path))
    if open_it:
        click.launch(str(path))
    return 0
