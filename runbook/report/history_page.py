"""The page of the past: what died of what and which lever worked, and which nodes stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runbook.model.diagnosis import Kind
from runbook.model.remedy import Remembered
from runbook.report.diagnosis_words import KIND_TITLES
from runbook.report.history import HistoryQuery, groups
from runbook.report.node_history import NodeHistory, Verdict, node_histories
from runbook.report.site import Site, environment
from runbook.report.summary import IncidentSummary

MOST_GROUPS = 100
MOST_NODES = 50
PERIODS = {7: "last 7 days", 30: "last 30 days", 90: "last 90 days", 365: "last year"}

NODES_EXPLAINED = (
    "A job on n nodes that fails on one of them counts 1/n as expected for each of its nodes, whatever job it was; a "
    "node is named when it was the failing one so much more often than this that chance among all nodes is no good "
    "explanation (Poisson-binomial tail, at most 5 % false names by Benjamini and Hochberg)."
)
"""How the nodes are compared, in one sentence."""

VERDICT_TITLES = {
    Verdict.MORE: "More than its peers",
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
    return environment().get_template("history.html").render(
        groups=found[:MOST_GROUPS],
        more_groups=max(len(found) - MOST_GROUPS, 0),
        found=len(chosen),
        nodes=nodes[:MOST_NODES],
        more_nodes=max(len(nodes) - MOST_NODES, 0),
        query=query,
        periods=PERIODS if query.days in (0, *PERIODS) else {**PERIODS, query.days: f"last {query.days} days"},
        kinds=[(kind, KIND_TITLES[kind]) for kind in Kind if kind in kinds],
        systems=sorted({past.circumstances.system for past in remembered.values()} - {""}),
        explained=NODES_EXPLAINED,
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
