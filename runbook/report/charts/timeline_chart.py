"""The way across attempts as two pictures: what the work between a failure and its relaunch took, second by second, and
how long each relaunch waited and ran until it was proven or failed again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from markupsafe import Markup

from runbook.model.incident import Attempt, BoxVisit, Incident, IncidentState, Policy
from runbook.model.units import duration
from runbook.report.charts.flow_chart import FlowPhase, FlowPicture
from runbook.report.charts.plots import BarPart, Bars, draw_bars, nice_ticks
from runbook.report.narrative import first_failure, root_cause, worked

_MOST_ROWS = 6
_LONGEST_S = 366 * 86_400.0
_SHORTEST_S = 0.05
_NOTICED = ("phase-noticed", "Until it was noticed")
_NOTICED_LATE = ("", "Until it was noticed (too long to be drawn)")
_LATE = 12
"""The time until it was noticed is drawn when it is not longer than so many times the work itself."""
_OTHER = ("phase-other", "Other boxes")
_UNITS = ((1.0, "s", 200.0), (60.0, "min", 7_200.0), (3_600.0, "h", 345_600.0), (86_400.0, "d", math.inf))


@dataclass(frozen=True, slots=True)
class TimeFigure:
    """A picture of durations with its table: a row for each of its parts, a column for each of its rows."""

    name: str
    chart: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Class, words, and a duration for each column."""


def timeline_figures(incident: Incident, flow: FlowPicture, simulated: str = "") -> tuple[TimeFigure, ...]:
    """What can be drawn of it; `simulated` is put behind the names."""
    goal = "the plan" if incident.state is IncidentState.PLANNED else "relaunch"
    found = (
        _work(incident, flow, f"From failure to {goal}{simulated}"),
        _runs(incident, flow, f"Since the first failure: queue and runs{simulated}"),
    )
    return tuple(figure for figure in found if figure is not None)


def _work(incident: Incident, flow: FlowPicture, name: str) -> TimeFigure | None:
    """Each failure's boxes up to the relaunch, or to where the work stands."""
    kinds = {phase.name: _kind(phase, incident) for phase in flow.phases}
    rounds: list[list[BoxVisit]] = [[]]
    for visit in incident.visits:
        if visit.box in flow.afterwards:
            if rounds[-1]:
                rounds.append([])
        else:
            rounds[-1].append(visit)
    rounds = [visits for visits in rounds if visits][:_MOST_ROWS]
    if not rounds:
        return None
    failed_s = _failed_s(incident)
    jobs = [str(incident.root_job), *(str(attempt.job) for attempt in incident.attempts if attempt.job)]
    columns: list[str] = []
    lengths: list[dict[tuple[str, str], float]] = []
    for number, visits in enumerate(rounds):
        columns.append(f"Job {jobs[number]}" if number < len(jobs) else f"Round {number + 1}")
        row: dict[tuple[str, str], float] = {}
        for visit in visits:
            took = _span(visit.started_s, visit.ended_s if visit.ended_s is not None else incident.updated_s)
            kind = next((kinds[phase.name] for phase in flow.phases if visit.box in phase.boxes), _OTHER)
            row[kind] = row.get(kind, 0.0) + took
        lengths.append(row)
    noticed = _span(failed_s, incident.opened_s) if failed_s is not None else 0.0
    late = noticed > _LATE * max(sum(row.values()) for row in lengths)
    if not late:
        lengths[0] = {_NOTICED: noticed, **lengths[0]}
    order = [_NOTICED, *kinds.values(), _OTHER]
    figure = _figure(name, columns, [[(kind, row.get(kind, 0.0)) for kind in order] for row in lengths])
    if figure is None or not late:
        return figure
    told = (duration(noticed), *("" for _ in columns[1:]))
    return replace(figure, rows=((*_NOTICED_LATE, told), *figure.rows))


def _kind(phase: FlowPhase, incident: Incident) -> tuple[str, str]:
    asked = incident.policy is Policy.APPROVE and phase.acts
    return f"phase-{phase.name}", f"{phase.title}, with the wait for a yes" if asked else phase.title


def _runs(incident: Incident, flow: FlowPicture, name: str) -> TimeFigure | None:
    """From the first failure: the wedged job, then of each relaunch its queue wait and its run."""
    begin = _failed_s(incident)
    if begin is None:
        begin = incident.opened_s
    attempts = [attempt for attempt in incident.attempts if attempt.submitted_s is not None and attempt.job]
    if not attempts:
        return None
    columns: list[str] = []
    rows: list[list[tuple[tuple[str, str], float]]] = []
    failure = first_failure(incident)
    if failure is not None and failure.job.end_time_s is not None:
        hung = _span(begin, failure.job.end_time_s)
        if hung > 0:
            columns.append(f"Job {incident.root_job}")
            rows.append([(("phase-hung", "Went on after failing"), hung)])
    for attempt in attempts[:_MOST_ROWS]:
        submitted = attempt.submitted_s or begin
        queued = attempt.queued_s + (
            _span(attempt.waiting_since_s, incident.updated_s) if attempt.waiting_since_s is not None else 0.0
        )
        end, kind = _end(incident, flow.proof, attempt)
        columns.append(f"Job {attempt.job}")
        rows.append([
            (("", "Before it was submitted"), _span(begin, submitted)),
            (("phase-queue", "In the queue"), queued),
            (kind, max(0.0, _span(submitted, end) - queued)),
        ])
    return _figure(name, columns, rows)


def _end(incident: Incident, proof: str, attempt: Attempt) -> tuple[float, tuple[str, str]]:
    """When the run was proven or failed again, else as far as it was watched."""
    left = [
        visit.ended_s for visit in incident.visits
        if visit.box == proof and visit.attempt == attempt.number and visit.ended_s is not None
    ]
    last_look = left[-1] if left else None
    match worked(attempt):
        case True:
            return last_look or incident.updated_s, ("phase-proven", "Ran until proven past the failing step")
        case False:
            cause = attempt.story.root_cause if attempt.story else None
            failed_s = cause.time_s if cause is not None and cause.time_s is not None else last_look
            return failed_s or incident.updated_s, ("phase-failed", "Ran until it failed again")
        case None:
            return last_look or incident.updated_s, ("phase-run", "Runs, not proven yet")


def _figure(
    name: str, columns: list[str], rows: list[list[tuple[tuple[str, str], float]]]
) -> TimeFigure | None:
    longest = max((sum(length for _, length in row) for row in rows), default=0.0)
    if longest <= _SHORTEST_S:
        return None
    unit_s, unit = next((unit_s, unit) for unit_s, unit, up_to in _UNITS if longest <= up_to)
    kinds = list(dict.fromkeys(kind for row in rows for kind, length in row if length > _SHORTEST_S))
    table = [dict(row) for row in rows]
    parts = tuple(
        BarPart(
            kind[0], tuple(row.get(kind, 0.0) / unit_s for row in table),
            tuple(f"{kind[1]}: {duration(row.get(kind, 0.0))}" for row in table),
        )
        for kind in kinds
    )
    told = tuple(
        (kind[0], kind[1], tuple(duration(row[kind]) if row.get(kind, 0.0) > _SHORTEST_S else "" for row in table))
        for kind in kinds
    )
    words = f"{name}. " + "; ".join(
        f"{column}: " + ", ".join(
            f"{kind[1]} {duration(row[kind])}" for kind in kinds if row.get(kind, 0.0) > _SHORTEST_S
        )
        for column, row in zip(columns, table, strict=True)
    )
    end = longest / unit_s * 1.02
    ticks = tuple((value, f"{value:g} {unit}" if value else "0") for value in nice_ticks(0, end, 6))
    return TimeFigure(name, draw_bars(Bars(words, tuple(columns), parts, end, ticks)), tuple(columns), told)


def _failed_s(incident: Incident) -> float | None:
    """When the first failure was, by its log line; None where that has no time or cannot be."""
    finding = root_cause(incident)
    failed_s = finding.time_s if finding is not None else None
    if failed_s is None or not math.isfinite(failed_s) or not 0 <= incident.opened_s - failed_s <= _LONGEST_S:
        return None
    return failed_s


def _span(start_s: float, end_s: float) -> float:
    """Seconds from one to the other; 0 for what cannot be."""
    span = end_s - start_s
    return span if 0 < span <= _LONGEST_S else 0.0
