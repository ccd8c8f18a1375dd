"""One row about an incident: what lists, metrics and alerts need, small enough to keep ten thousand of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from runbook.model.diagnosis import Kind
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.model.units import IncidentId, JobId, NodeName
from runbook.report.clean import clean_line, shorten
from runbook.report.narrative import (
    Again,
    asked_of_a_person,
    cause,
    first_failure,
    is_simulated,
    root_cause,
    runs_again,
    what_happened,
    what_was_done,
    worked,
)
from runbook.report.tally import Tally, tally

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class LeverTry:
    """A lever of one attempt; `worked` is None while the relaunch is not judged."""

    lever: str
    worked: bool | None


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """Derived from `Incident`, never edited: it can be made again at any time."""

    id: IncidentId
    cluster: str
    root_job: JobId
    state: IncidentState
    policy: Policy
    trigger: str
    opened_s: float
    updated_s: float
    closed_s: float | None
    headline: str
    """One cleaned line of at most 240 characters."""
    kind: Kind | None = None
    job_name: str = ""
    owner: str = ""
    node: str = ""
    rank: int | None = None
    box: str = ""
    awaiting: str = ""
    jobs: tuple[JobId, ...] = ()
    """The first job and every relaunch."""
    relaunches: int = 0
    levers: tuple[LeverTry, ...] = ()
    drained_nodes: int = 0
    """Drained by this incident and not given back."""
    simulated: bool = False
    drained: tuple[NodeName, ...] = ()
    """Their names, at most eight."""
    tally: Tally = Tally()
    nodes: tuple[NodeName, ...] = ()
    """Of the job that failed first, at most 64."""
    num_nodes: int = 0
    done: str = ""
    """What was done on the cluster, one cleaned line."""
    again: Again = Again.NOT_YET
    asked: str = ""
    """What a person is asked to do first, "" when nothing is."""


def summarize(incident: Incident) -> IncidentSummary:
    """The row of an incident."""
    failure = first_failure(incident)
    finding = root_cause(incident)
    best = cause(incident)
    jobs = (incident.root_job, *(attempt.job for attempt in incident.attempts if attempt.job))
    return IncidentSummary(
        id=incident.id,
        cluster=incident.cluster,
        root_job=incident.root_job,
        state=incident.state,
        policy=incident.policy,
        trigger=incident.trigger,
        opened_s=incident.opened_s,
        updated_s=incident.updated_s,
        closed_s=incident.closed_s,
        headline=_short(what_happened(incident), 240),
        kind=best.kind if best else None,
        job_name=_short(failure.job.name, 80) if failure else "",
        owner=_short(failure.job.owner, 40) if failure else "",
        node=_short(finding.node, 64) if finding and finding.node else "",
        rank=finding.rank if finding else None,
        box=incident.box,
        awaiting=_short(incident.awaiting, 240),
        jobs=tuple(dict.fromkeys(jobs)),
        relaunches=sum(1 for attempt in incident.attempts if attempt.job),
        levers=tuple(
            LeverTry(use.lever, worked(attempt))
            for attempt in incident.attempts
            if attempt.plan is not None and attempt.job
            for use in attempt.plan.uses
        ),
        drained_nodes=len(incident.drained_nodes),
        simulated=is_simulated(incident),
        drained=tuple(NodeName(_short(node, 64)) for node in incident.drained_nodes[:8]),
        tally=tally(incident),
        nodes=tuple(NodeName(_short(node, 64)) for node in failure.job.nodes[:64]) if failure else (),
        num_nodes=len(failure.job.nodes) if failure else 0,
        done=_short(what_was_done(incident), 160),
        again=runs_again(incident),
        asked=_short(asked_of_a_person(incident), 240),
    )


@cache
def summaries_adapter() -> TypeAdapter[list[IncidentSummary]]:
    """JSON for a list of rows."""
    from pydantic import TypeAdapter

    return TypeAdapter(list[IncidentSummary])


def _short(text: str, limit: int) -> str:
    return shorten(clean_line(text), limit)
