"""The one metric that names jobs and nodes: what alerts and links are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import nlargest

from prometheus_client.core import GaugeMetricFamily

from runbook.model.incident import IncidentState
from runbook.report.summary import IncidentSummary

MOST_OPEN = 500
MOST_ENDED = 50
ENDED_FOR_S = 72 * 3600.0
"""An incident that ended is named for a long weekend; then its alerts end, too."""

LABELS = (
    "cluster", "incident", "job_id", "node", "user", "diagnosis", "state", "died_again", "budget", "drained",
    "report_url",
)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+@\[\]-]{0,63}")
_ENDED = frozenset(state for state in IncidentState if state.ended)
_URGENT = {IncidentState.AWAITING_APPROVAL: 2, IncidentState.INTERRUPTED: 1}


def incident_info(rows: Sequence[IncidentSummary], report_url: str, now_s: float) -> GaugeMetricFamily:
    """Open incidents, those that wait for a person first, and the newest of those that ended lately."""
    family = GaugeMetricFamily(
        "runbook_incident_info",
        f"Open incidents, and the last {MOST_ENDED} that ended within 72 hours, with what is known of each; always 1.",
        labels=LABELS,
    )
    since_s = now_s - ENDED_FOR_S
    still_open = [row for row in rows if row.state not in _ENDED]
    ended = [row for row in rows if row.updated_s >= since_s and row.state in _ENDED]
    shown = [
        *nlargest(MOST_OPEN, still_open, key=lambda row: (_URGENT.get(row.state, 0), row.opened_s)),
        *nlargest(MOST_ENDED, ended, key=lambda row: row.updated_s),
    ]
    for row in sorted(shown, key=lambda row: row.id):
        family.add_metric(_labels(row, report_url), 1)
    return family


def _labels(row: IncidentSummary, report_url: str) -> list[str]:
    return [
        row.cluster,
        row.id,
        _plain(row.root_job),
        _plain(row.node),
        _plain(row.owner),
        str(row.kind or "none"),
        str(row.state),
        "yes" if row.tally.memory_failures_again else "no",
        "spent" if row.tally.budget_spent else "left",
        ",".join(name for name in map(_plain, row.drained) if name),
        f"{report_url.rstrip('/')}/incidents/{row.id}" if report_url else "",
    ]


def _plain(text: str) -> str:
    """A name that can be one; what a log or a job calls itself goes no further: alerts end up in chats and mails."""
    return text if _PLAIN.fullmatch(text) else ""
