"""`runbook follow` and `runbook incidents --watch`: what is stored, drawn again as it changes. Nothing is written."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runbook.adapters.store import check_incident_id
from runbook.cli.incident import code_of
from runbook.cli.incident.terminal import (
    Asked,
    Entered,
    Event,
    Left,
    Line,
    View,
    console_of,
    interruptible,
    redraws,
)
from runbook.cli.say import echo
from runbook.cli.wiring import Application, application
from runbook.errors import BadInput, Interrupted, NotFound, NothingToDo
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId
from runbook.report.json_documents import load_incident
from runbook.report.narrative import what_happened
from runbook.report.summary import IncidentSummary, summaries_adapter
from runbook.report.vocabulary.clean import clean_line, shorten

if TYPE_CHECKING:
    from runbook.adapters.store import IncidentStore, Stamp
    from runbook.flow import Flow

_LOOK_S = 0.3
"""Between two looks whether an incident was stored anew; a look is one question for the file's time."""
_LIST_S = 1.0
_SHARE = 50
"""A look at all incidents is this many times shorter than the wait after it, so that ten thousand cost no more of a
processor than ten."""
_SIZE_S = 0.2
"""Between two looks whether the terminal has another size."""
_WIDE = 110
"""Columns from which what happened has room beside an incident; else it stands below it."""
_NARROW = 60
"""Columns below which only the incident and its state are told beside each other."""
_NAMED = 5
"""Open incidents that are named to somebody who has to choose one."""


# One incident


def follow(incident: str | None, job: str | None, as_json: bool, inventory: str | None) -> int:
    """`runbook follow`."""
    app = application(inventory, looks=True)
    name = _chosen(app, incident, job)
    view = View(sys.stdout, quiet=as_json)
    drawn: Incident | None = None
    try:
        with interruptible():
            for current, document in versions(app.store, name):
                if as_json:
                    echo(json.dumps(json.loads(document)))
                elif drawn is None:
                    view.heading(f"{current.id} · policy {current.policy.value} · {what_happened(current)}")
                for event in news(drawn, current, titles_of(app.flow)):
                    view.draw(event)
                drawn = current
                if over(current):
                    view.conclude(current, str(app.store.folder(name) / "report.html"))
                    return code_of(current)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(
            f"no longer following; {name} is left alone and goes on as before. `runbook follow {name}` looks again"
        ) from None
    finally:
        view.close()
    raise AssertionError("versions come until it is over")


def _chosen(app: Application, incident: str | None, job: str | None) -> IncidentId:
    """The incident that is named, or that a job belongs to, or the only one that is at work."""
    if incident and job:
        raise BadInput("INCIDENT and --job exclude each other", next_step="name one of them")
    if incident:
        return check_incident_id(incident)
    if job:
        found = [row for row in app.read_model.rows() if job.strip() in row.jobs]
        if not found:
            raise NotFound(
                f"no incident of job {clean_line(job)[:40]}", where=str(app.store.root),
                next_step="`runbook incidents` shows the incidents that there are",
            )
        return next((row for row in found if row.begun), found[0]).id
    begun = [row.id for row in app.read_model.rows() if row.begun]
    if not begun:
        raise NothingToDo(
            "no incident is at work", where=str(app.store.root),
            next_step="`runbook incidents` shows those that there are; name one to see how it went",
        )
    if len(begun) > 1:
        more = f" and {len(begun) - _NAMED} more" if len(begun) > _NAMED else ""
        raise BadInput(
            f"{len(begun)} incidents are at work: {', '.join(begun[:_NAMED])}{more}",
            next_step="name one, or a job with --job; `runbook incidents --watch` shows all",
        )
    return begun[0]


def versions(store: IncidentStore, name: IncidentId) -> Iterator[tuple[Incident, bytes]]:
    """An incident with its document as it stands, and again each time that it was stored anew. Raises `NotFound` where
    there is none (any more), and what reading it raises."""
    seen: Stamp | None = None
    last = b""
    while True:
        stamp = store.stamp(name)
        if stamp is None or stamp != seen:
            try:
                document = store.read_file(name, "incident.json")
            except NotFound as error:
                if seen is None:
                    raise
                raise NotFound(
                    f"{name} was removed while it was followed", where=error.where, next_step=error.next_step
                ) from error
            seen = stamp
            if document != last:
                last = document
                yield load_incident(document, str(store.folder(name) / "incident.json")), document
        time.sleep(_LOOK_S)


def titles_of(flow: Flow) -> Mapping[str, str]:
    """What each box does, by its name."""
    return {name: box.title for name, box in flow.boxes.items()}


def over(incident: Incident) -> bool:
    """Whether nobody works on it, or waits to."""
    return incident.finished or incident.state is IncidentState.INTERRUPTED


def question_of(incident: Incident) -> str:
    """What is asked now, different for each question; "" for none."""
    return f"{len(incident.visits)}:{incident.awaiting}" if incident.awaiting else ""


def news(drawn: Incident | None, now: Incident, titles: Mapping[str, str]) -> Iterator[Event]:
    """What is to be drawn of an incident as it is stored now. `drawn`: as it was drawn last."""
    left = [visit for visit in now.visits if visit.outcome]
    known = sum(1 for visit in drawn.visits if visit.outcome) if drawn is not None else 0
    for visit in left[known:]:
        yield Left(visit.box, visit)
    if over(now):
        return
    if question := question_of(now):
        if drawn is None or question_of(drawn) != question:
            yield Asked(now, now.awaiting)
        return
    inside = now.visits[-1] if now.visits and not now.visits[-1].outcome else None
    title = titles.get(now.box, now.box) or "waits to be taken up"
    yield Entered(now.box, title, inside.started_s if inside is not None else now.updated_s)
    if inside is not None and inside.summary:
        yield Line(inside.summary)


# All incidents


def watch(app: Application, chosen: Callable[[IncidentSummary], bool], as_json: bool) -> int:
    """`runbook incidents --watch`: until it is interrupted."""
    try:
        with interruptible():
            if as_json or not redraws(sys.stdout):
                _tell_changes(app, chosen, as_json)
            else:
                _redraw(app, chosen)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted("no longer watching; the incidents are left alone") from None
    raise AssertionError("it is watched until it is interrupted")


def _looks(app: Application, wait: Callable[[float], None]) -> Iterator[tuple[Sequence[IncidentSummary], int]]:
    """All rows, newest first, and how many cannot be read, at each look. The same object while nothing changes."""
    while True:
        began_s = time.monotonic()
        rows, unreadable = app.read_model.overview()
        took_s = time.monotonic() - began_s
        yield rows, len(unreadable)
        wait(max(_LIST_S, _SHARE * took_s))


def _redraw(app: Application, chosen: Callable[[IncidentSummary], bool]) -> None:
    console = console_of(sys.stdout)

    def wait(seconds: float) -> None:
        size, until_s = console.size, time.monotonic() + seconds
        while time.monotonic() < until_s and console.size == size:
            time.sleep(_SIZE_S)

    drawn: object = None
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        for every, unreadable in _looks(app, wait):
            if drawn == (id(every), unreadable, console.size):
                continue
            drawn = id(every), unreadable, console.size
            rows = sorted((row for row in every if chosen(row)), key=lambda row: row.closed_s is not None)
            screen.update(_page(console, rows, unreadable), refresh=True)


def _page(console: Console, rows: Sequence[IncidentSummary], unreadable: int) -> Group:
    """The list, as much of it as the terminal has lines for."""
    still_open = sum(1 for row in rows if row.closed_s is None)
    title = f"{len(rows)} incidents, {still_open} open" + (f", {unreadable} unreadable" if unreadable else "")
    each = 2 if is_narrow(console) else 1
    # Two lines stand above the list, and one below says how many there are more.
    fit = (console.height - 2) // each
    fit = fit if len(rows) <= fit else (console.height - 3) // each
    table, headlines = table_of(rows[: max(fit, 0)], console, folded=False)
    head, *listed = lines_of(console, table)
    lines = [Text(f"{title} · Ctrl-C ends", style="bold"), head]
    for line, headline in zip_longest(listed, headlines):
        lines += [line] if headline is None else [line, Text.assemble("    ", headline)]
    if len(rows) > max(fit, 0):
        lines.append(Text(f"… and {len(rows) - max(fit, 0)} more", style="dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines[: console.height])


def _tell_changes(app: Application, chosen: Callable[[IncidentSummary], bool], as_json: bool) -> None:
    """One line for each open incident, then one for each that has changed, the oldest change first."""
    told: dict[str, tuple[IncidentSummary, str]] = {}
    first, last = True, None
    for every, _ in _looks(app, time.sleep):
        if every is last:
            continue
        fresh = []
        for row in every:
            before = told.get(row.id)
            if (before is not None and before[0] is row) or not chosen(row):
                continue
            line = _line(row)
            told[row.id] = row, line
            if (before is None or before[1] != line) and not (first and row.closed_s is not None):
                fresh.append(row)
        for row in sorted(fresh, key=lambda row: row.updated_s):
            if as_json:
                echo(json.dumps(summaries_adapter().dump_python([row], mode="json")[0]))
            else:
                changed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.updated_s))
                echo(f"{changed}  {told[row.id][1]}")
        first, last = False, every


def _line(row: IncidentSummary) -> str:
    asked = f" → {row.asked}" if row.asked else ""
    return "  ".join(clean_line(part) for part in (row.id, _state(row), f"{row.headline}{asked}"))


def _state(row: IncidentSummary) -> str:
    """With where it is, of one that is at work."""
    return row.state.replace("_", " ") + (f" · {row.box}" if row.begun and row.box else "")


def table_of(rows: Sequence[IncidentSummary], console: Console, *, folded: bool) -> tuple[Table, list[Text]]:
    """The list, and what happened for where that has no room beside it. Not `folded`: a row has one line, cut off."""
    titles = ("incident", "state", "opened", "job", "owner", "what happened")
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = len(titles) - is_narrow(console) if console.width >= _NARROW else 2
    for title in titles[:shown]:
        folds = folded and title == titles[-1]
        # An incident is named whole: it is what a person types next.
        least = max((len(row.id) for row in rows), default=0) if title == titles[0] else None
        table.add_column(title, overflow="fold" if folds else "ellipsis", no_wrap=not folds, min_width=least)
    headlines = [Text(shorten(clean_line(row.headline), 160)) for row in rows]
    for row, headline in zip(rows, headlines, strict=True):
        opened = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.opened_s))
        cells = (Text(clean_line(cell)) for cell in (row.id, _state(row), opened, row.job_name, row.owner))
        table.add_row(*(*cells, headline)[:shown])
    return table, headlines if is_narrow(console) else []


def is_narrow(console: Console) -> bool:
    """Whether what happened stands below an incident."""
    return console.width < _WIDE


def lines_of(console: Console, table: Table) -> list[Text]:
    """The lines of a table, none broken."""
    lines = console.render_lines(table, console.options.update(no_wrap=True), pad=False)
    return [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]
