"""The page with the list of incidents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.incident import IncidentState
from runbook.report.html import environment
from runbook.report.summary import IncidentSummary

FILTERS: dict[str, tuple[str, frozenset[IncidentState]]] = {
    "all": ("All", frozenset(IncidentState)),
    "person": (
        "Need a person",
        frozenset({IncidentState.ESCALATED, IncidentState.AWAITING_APPROVAL, IncidentState.INTERRUPTED}),
    ),
    "running": ("Running", frozenset({IncidentState.RUNNING})),
    "recovered": ("Recovered", frozenset({IncidentState.RECOVERED})),
    "planned": ("Planned", frozenset({IncidentState.PLANNED})),
    "closed": ("Closed", frozenset({IncidentState.CLOSED})),
}
ROWS_A_PAGE = 100


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    title: str
    count: int


def render_index(
    rows: Sequence[IncidentSummary], chosen: str = "all", page: int = 1, unreadable: Sequence[str] = ()
) -> str:
    """The list, newest first. `rows`: all incidents; `chosen`: a key of `FILTERS` (others mean "all"); `page` from 1,
    brought into range; `unreadable`: names of folders that hold no readable incident."""
    if chosen not in FILTERS:
        chosen = "all"
    kept = [row for row in rows if row.state in FILTERS[chosen][1]]
    pages = max((len(kept) - 1) // ROWS_A_PAGE + 1, 1)
    page = min(max(page, 1), pages)
    choices = [
        _Choice(name, title, sum(1 for row in rows if row.state in states))
        for name, (title, states) in FILTERS.items()
    ]
    return environment().get_template("index.html").render(
        rows=kept[(page - 1) * ROWS_A_PAGE : page * ROWS_A_PAGE],
        total=len(rows),
        choices=choices,
        chosen=chosen,
        page=page,
        pages=pages,
        unreadable=unreadable,
        refresh_s=30,
    )


def render_problem(title: str, what: str, next_step: str = "") -> str:
    """A page that says what went wrong and what to do."""
    return environment().get_template("problem.html").render(
        heading=title, what=what, next_step=next_step, refresh_s=0
    )
