"""`runbook history`: what died of what before and which lever worked; which nodes see more of it than their peers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from runbook.cli.say import clean_console, echo
from runbook.cli.wiring import application
from runbook.errors import BadInput
from runbook.kinds import load_kinds
from runbook.report.html.list_pages import NODES_COMPARED, VERDICT_TITLES, chance
from runbook.report.incident_search import Group, HistoryQuery, groups, groups_document
from runbook.report.past_incidents import NodeHistory, node_histories
from runbook.report.vocabulary.clean import clean_line


class _KindName(click.ParamType[str]):
    """A kind of the playbook, which is read only when one is given."""

    name = "kind"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        chosen: str = click.Choice(list(load_kinds())).convert(value, param, ctx)
        return chosen


_UNITS_DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}


def history(
    user: str, node: str, system: str, model: str, kind: str | None, since: str, by_node: bool, as_json: bool,
    inventory: str | None,
) -> int:
    """`runbook history`."""
    query = HistoryQuery(user, node, system, model, kind or "", _days(since))
    if by_node and (user or system or model or kind):
        raise BadInput(
            "nodes are compared over the jobs of everybody",
            next_step="give --nodes with --node and --since alone",
        )
    app = application(inventory, looks=True)
    remembered = app.read_model.all()
    rows = query.choose(app.read_model.rows(), remembered, app.clock.now())
    if by_node:
        all_rows = HistoryQuery(days=query.days).choose(app.read_model.rows(), remembered, app.clock.now())
        nodes = [item for item in node_histories(all_rows, remembered) if not node or item.node == node]
        if as_json:
            echo(json.dumps([asdict(item) for item in nodes], indent=1))
        elif nodes:
            _print(_nodes_table(nodes))
            echo(NODES_COMPARED)
        else:
            echo("no memory failure is known to have been on a certain node", err=True)
        return 0
    found = groups(rows, remembered, query)
    if as_json:
        echo(json.dumps(groups_document(found), indent=1))
    elif found:
        _print(_groups_table(found))
    else:
        echo("no incident whose cause is known fits", err=True)
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
        if group.fits_foreseen:
            tried += f"; foreseen to fit: {group.fits_foreseen}, of these wrong: {group.fits_wrong}"
        _row(
            table, has.system or "?", has.model or "?", gpu or "?", str(has.micro_batch or "?"),
            str(has.sequence_length or "?"), has.kind.replace("_", " "), str(group.count), str(group.recovered),
            tried or "nothing", f"{group.incidents[0]} {time.strftime('%Y-%m-%d', time.gmtime(group.newest_s))}",
        )
    return table


def _nodes_table(nodes: Sequence[NodeHistory]) -> Table:
    table = _table(
        "node", "beside its peers", "failed here", "users", "most of them", "expected", "jobs compared", "chance",
        "as first node", "gpu faults", "co-tenants",
    )
    for item in nodes:
        here = f"{item.observed}" + (f" of {item.failures} in all" if item.failures > item.observed else "")
        _row(
            table, item.node, VERDICT_TITLES[item.verdict].lower(), here, str(item.owners), item.most_of or "-",
            f"{item.expected:.1f}" if item.draws else "-", str(item.draws), chance(item) or "-", str(item.as_first),
            str(item.hardware_faults), str(item.co_tenants),
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
    clean_console(sys.stdout, width=None if sys.stdout.isatty() else 180).print(table)
