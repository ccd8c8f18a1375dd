"""`runbook incidents`, `show`, `report`, `history`: what is stored, told plainly."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from runbook.adapters.store import check_incident_id
from runbook.cli.incident import code_of
from runbook.cli.main import inventory_option
from runbook.cli.wiring import application
from runbook.errors import BadInput, NotFound
from runbook.model.diagnosis import Kind
from runbook.model.incident import IncidentState
from runbook.report.html.list_pages import NODES_COMPARED, VERDICT_TITLES, chance
from runbook.report.incident_search import Group, HistoryQuery, groups, groups_document
from runbook.report.past_incidents import NodeHistory, node_histories
from runbook.report.summary import summaries_adapter
from runbook.report.text.incident_text import render_text
from runbook.report.vocabulary.clean import clean_line, shorten

_WIDE = 110
"""Columns from which what happened has room beside an incident; else it stands below it."""


@click.command()
@click.option("--state", type=click.Choice([state.value for state in IncidentState]), help="Only those in this state.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list on standard output.")
@inventory_option
def incidents(state: str | None, as_json: bool, inventory: str | None) -> int:
    """List incidents, newest first."""
    app = application(inventory)
    every, unreadable = app.read_model.overview()
    rows = [row for row in every if state is None or row.state == state]
    if as_json:
        click.echo(summaries_adapter().dump_json(rows, indent=1).decode("utf-8"))
        return 0
    for name in unreadable:
        click.echo(f"unreadable: {name} (its incident.json is damaged or missing)", err=True)
    if not rows:
        click.echo("no incidents" + (f" in state {state}" if state else ""), err=True)
        return 0

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


@click.command()
@click.argument("incident")
@click.option("--json", "as_json", is_flag=True, help="Print incident.json.")
@inventory_option
def show(incident: str, as_json: bool, inventory: str | None) -> int:
    """Show one incident: what died, what was done, what is asked of a person."""
    app = application(inventory)
    checked = check_incident_id(incident)
    if as_json:
        click.echo(app.store.read_file(checked, "incident.json").decode("utf-8"), nl=False)
        return 0
    stored = app.store.load(checked)
    click.echo(render_text(stored))
    return 0 if stored.state is not IncidentState.ESCALATED else code_of(stored)


@click.command()
@click.argument("incident")
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser of this machine.")
@click.option("--draw", is_flag=True, help="Draw the page again from incident.json.")
@inventory_option
def report(incident: str, open_it: bool, draw: bool, inventory: str | None) -> int:
    """Where an incident's report is."""
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


_UNITS_DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}


@click.command()
@click.option("--user", "-u", default="", metavar="USER", help="Only jobs of this user.")
@click.option("--node", default="", metavar="NODE", help="Only jobs that ran on this node.")
@click.option("--system", default="", metavar="NAME", help="Only this framework: megatron, verl, … (runbook levers).")
@click.option("--model", default="", metavar="TEXT", help="Only models with this in their name.")
@click.option(
    "--kind", type=click.Choice([kind.value for kind in Kind]), metavar="KIND",
    help="Only what died of this: true_oom, fragmentation, … (runbook explain KIND).",
)
@click.option("--since", default="", metavar="TIME", help="Only the last 30d, 12w, 6m, 1y.")
@click.option("--nodes", "by_node", is_flag=True, help="Nodes beside their peers, instead of groups of incidents.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list on standard output.")
@inventory_option
def history(
    user: str, node: str, system: str, model: str, kind: str | None, since: str, by_node: bool, as_json: bool,
    inventory: str | None,
) -> int:
    """What died of what before, and which lever worked; with --nodes, which node sees more of it than its peers."""
    query = HistoryQuery(user, node, system, model, kind or "", _days(since))
    if by_node and (user or system or model or kind):
        raise BadInput(
            "nodes are compared over the jobs of everybody",
            next_step="give --nodes with --node and --since alone",
        )
    app = application(inventory)
    remembered = app.read_model.all()
    rows = query.choose(app.read_model.rows(), remembered, app.clock.now())
    if by_node:
        all_rows = HistoryQuery(days=query.days).choose(app.read_model.rows(), remembered, app.clock.now())
        nodes = [item for item in node_histories(all_rows, remembered) if not node or item.node == node]
        if as_json:
            click.echo(json.dumps([asdict(item) for item in nodes], indent=1))
        elif nodes:
            _print(_nodes_table(nodes))
            click.echo(NODES_COMPARED)
        else:
            click.echo("no memory failure is known to have been on a certain node", err=True)
        return 0
    found = groups(rows, remembered, query)
    if as_json:
        click.echo(json.dumps(groups_document(found), indent=1))
    elif found:
        _print(_groups_table(found))
    else:
        click.echo("no incident whose cause is known fits", err=True)
    return 0


def _days(since: str) -> int:
    if not since:
        return 0
    number, unit = since[:-1], since[-1:].lower()
    if not (number.isascii() and number.isdecimal() and 0 < int(number) < 10_000 and unit in _UNITS_DAYS):
        raise BadInput(f"--since {since[:40]!r} is no length of time", next_step="write 30d, 12w, 6m or 1y")
    return int(number) * _UNITS_DAYS[unit]


def _groups_table(found: Sequence[Group]) -> Table:
    table = _table(
        "framework", "model", "gpu", "micro-batch", "sequence", "died of", "incidents", "recovered", "tried", "newest"
    )
    for group in found:
        has = group.figures
        gpu = " ".join(part for part in (has.gpu, f"{has.gpu_gib} GiB" if has.gpu_gib else "") if part)
        tried = "; ".join(
            f"{item.lever.replace('_', ' ')} "
            + (f"{item.worked}/{item.worked + item.failed}" if item.worked + item.failed else "not proven")
            for item in group.levers[:4]
        )
        _row(
            table, has.system or "?", has.model or "?", gpu or "?", str(has.micro_batch or "?"),
            str(has.sequence_length or "?"), has.kind.replace("_", " "), str(group.count), str(group.recovered),
            tried or "nothing", f"{group.incidents[0]} {time.strftime('%Y-%m-%d', time.gmtime(group.newest_s))}",
        )
    return table


def _nodes_table(nodes: Sequence[NodeHistory]) -> Table:
    table = _table(
        "node", "beside its peers", "failed here", "expected", "jobs compared", "chance", "as first node", "gpu faults",
        "co-tenants",
    )
    for item in nodes:
        here = f"{item.observed}" + (f" of {item.failures} in all" if item.failures > item.observed else "")
        _row(
            table, item.node, VERDICT_TITLES[item.verdict].lower(), here, f"{item.expected:.1f}" if item.draws else "-",
            str(item.draws), chance(item) or "-", str(item.as_first), str(item.hardware_faults), str(item.co_tenants),
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(clean_line(cell)) for cell in cells))


def _print(table: Table) -> None:
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 180).print(table)
