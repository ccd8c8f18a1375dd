"""The pages over all incidents: the list, and the past (what died of what and which lever worked, and which
nodes stand out).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.diagnosis import Kind
from runbook.model.remedy import Remembered
from runbook.report.html import Site, page_environment
from runbook.report.incident_search import PERIOD_FILTERS, STATE_FILTERS, HistoryQuery, IndexQuery, groups
from runbook.report.past_incidents import NodeHistory, Verdict, node_histories
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
        for name, (title, group) in STATE_FILTERS.items()
    ]
    if query.state not in STATE_FILTERS:
        states.append(_Choice(query.state_title, len(kept), query.but(state=query.state).address, True))
    return page_environment().get_template("index.html").render(
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
        periods={name: title for name, (title, _) in PERIOD_FILTERS.items()},
        pages=pages,
        unreadable=unreadable,
        short=lambda text: text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1].rstrip() + "…",
        site=site or Site(here="/"),
    )


def render_problem(title: str, what: str, next_step: str = "") -> str:
    """A page that says what went wrong and what to do."""
    return page_environment().get_template("problem.html").render(
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
    return [(kind, kind.entry.title, counts[kind]) for kind in sorted(counts, key=_place)]


def _place(kind: Kind) -> int:
    return kind.entry.place


def _most(names: object) -> list[str]:
    """The names that come most often, by name."""
    return sorted(name for name, _ in Counter(names).most_common(_MOST_NAMES) if name)  # type: ignore[call-overload]


MOST_GROUPS = 100
MOST_NODES = 50
SPANS = {7: "last 7 days", 30: "last 30 days", 90: "last 90 days", 365: "last year"}

NODES_COMPARED = (
    "A job on n nodes that fails on one of them counts 1/n as expected for each of its nodes, whatever job it was; a "
    "node is named when it was the failing one so much more often than this that chance among all nodes is no good "
    "explanation (Poisson-binomial tail, at most 5 % false names by Benjamini and Hochberg), and when that holds "
    "without any one user's jobs: which node failed is what a job's own log says."
)
"""How the nodes are compared, in one sentence."""

VERDICT_TITLES = {
    Verdict.MORE: "More than its peers",
    Verdict.ONE_OWNER: "More, by one user's jobs alone",
    Verdict.NOT_MORE: "As its peers",
    Verdict.TOO_FEW: "Too few to tell",
}


def render_history(
    rows: Sequence[IncidentSummary],
    remembered: Mapping[str, Remembered],
    query: HistoryQuery,
    now_s: float,
    *,
    site: Site | None = None,
) -> str:
    """The page. `rows`: all incidents; `remembered`: what is kept of each that is a witness, by id."""
    chosen = query.choose(rows, remembered, now_s)
    found = groups(chosen, remembered, query)
    # Exposure comes from every job that a node took part in, so a filter by user or model would make other odds.
    all_rows = replace(HistoryQuery(), days=query.days).choose(rows, remembered, now_s)
    nodes = [item for item in node_histories(all_rows, remembered) if not query.node or item.node == query.node]
    kinds = {row.kind for row in rows if row.kind is not None}
    return page_environment().get_template("history.html").render(
        groups=found[:MOST_GROUPS],
        more_groups=max(len(found) - MOST_GROUPS, 0),
        found=len(chosen),
        nodes=nodes[:MOST_NODES],
        more_nodes=max(len(nodes) - MOST_NODES, 0),
        query=query,
        periods=SPANS if query.days in (0, *SPANS) else {**SPANS, query.days: f"last {query.days} days"},
        kinds=[(kind, kind.entry.title) for kind in sorted(kinds, key=_place)],
        systems=sorted({past.circumstances.system for past in remembered.values()} - {""}),
        explained=NODES_COMPARED,
        verdicts=VERDICT_TITLES,
        chance=chance,
        site=site or Site(here="/history"),
    )


def chance(node: NodeHistory) -> str:
    """The probability as people read it; "" where the node had no draw."""
    if not node.draws:
        return ""
    if node.probability < 0.0001:
        return "under 0.0001"
    return f"{node.probability:.2f}" if node.probability >= 0.01 else f"{node.probability:.4f}"
