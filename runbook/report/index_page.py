"""The page with the list of incidents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.diagnosis import Kind
from runbook.report.diagnosis_words import KIND_TITLES
from runbook.report.search import PERIODS, STATES, IndexQuery
from runbook.report.site import Site, environment
from runbook.report.summary import IncidentSummary

ROWS_A_PAGE = 100
_MOST_NAMES = 200
_MOST_CHARACTERS = 140
"""Of a text in a row, so that a hundred rows stay a small page."""


@dataclass(frozen=True, slots=True)
class _Choice:
    title: str
    count: int
    address: str
    chosen: bool


def render_index(
    rows: Sequence[IncidentSummary],
    query: IndexQuery,
    now_s: float,
    *,
    unreadable: Sequence[str] = (),
    site: Site | None = None,
) -> str:
    """The list, newest first. `rows`: all incidents; `query`: what is looked for, its page brought into range;
    `unreadable`: names of folders that hold no readable incident."""
    fitting = query.choose(rows, now_s)
    kept = [row for row in fitting if row.state in query.states]
    pages = max((len(kept) - 1) // ROWS_A_PAGE + 1, 1)
    query = query.but(page=min(max(query.page, 1), pages))
    first = (query.page - 1) * ROWS_A_PAGE
    counts = Counter(row.state for row in fitting)
    states = [
        _Choice(title, sum(counts[state] for state in group), query.but(state=name).address, query.state == name)
        for name, (title, group) in STATES.items()
    ]
    if query.state not in STATES:
        states.append(_Choice(query.state_title, len(kept), query.but(state=query.state).address, True))
    return environment().get_template("index.html").render(
        rows=kept[first : first + ROWS_A_PAGE],
        first=first + 1,
        total=len(rows),
        found=len(kept),
        query=query,
        states=states,
        wider=[] if kept else _wider(rows, query, now_s),
        kinds=_kinds(rows),
        users=_most(row.owner for row in rows),
        nodes=_most(row.node for row in rows),
        periods={name: title for name, (title, _) in PERIODS.items()},
        pages=pages,
        unreadable=unreadable,
        short=lambda text: text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1].rstrip() + "…",
        site=site or Site(here="/"),
    )


def render_problem(title: str, what: str, next_step: str = "") -> str:
    """A page that says what went wrong and what to do."""
    return environment().get_template("problem.html").render(
        heading=title, what=what, next_step=next_step, site=Site()
    )


def _wider(rows: Sequence[IncidentSummary], query: IndexQuery, now_s: float) -> list[_Choice]:
    """For a list that came out empty: each filter that can be left out, with how many there are then."""
    wider = []
    for words, without in query.filters:
        count = sum(1 for row in without.choose(rows, now_s) if row.state in without.states)
        wider.append(_Choice(words, count, without.address, False))
    return wider


def _kinds(rows: Sequence[IncidentSummary]) -> list[tuple[Kind, str, int]]:
    counts = Counter(row.kind for row in rows if row.kind is not None)
    return [(kind, KIND_TITLES[kind], counts[kind]) for kind in Kind if counts[kind]]


def _most(names: object) -> list[str]:
    """The names that come most often, by name."""
    return sorted(name for name, _ in Counter(names).most_common(_MOST_NAMES) if name)  # type: ignore[call-overload]
