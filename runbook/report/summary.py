"""One row about an incident: what lists, metrics and alerts need, small enough to keep ten thousand of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from runbook.model.diagnosis import Kind, Remedy
from runbook.model.incident import Attempt, BoxVisit, Incident, IncidentState, Milestone, Policy
from runbook.model.node import Reach
from runbook.model.units import IncidentId, JobId, NodeName
from runbook.report.narrative import (
    asked_of_a_person,
    cause,
    first_failure,
    fits_told,
    is_simulated,
    root_cause,
    runs_again,
    what_happened,
    what_was_done,
    worked,
)
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.report.vocabulary.titles import Again

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# What an incident adds to the metrics: times, endings, losses.
#
# Prometheus takes a counter that falls for one that began anew, so every figure here only grows while its incident
# lives: an incident that ended and is taken up again keeps its first ending, and what a later run finds is added.

_BY_POLICY = frozenset({"", "policy"})
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")


class BoxTime(NamedTuple):
    """One box that was left: how, and how long it took with all its waiting."""

    box: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Times in epoch seconds, lengths in seconds; None: it has not happened, or is not known."""

    failed_s: float | None = None
    """When the first job failed: the time of the error's line, else the job's end, else the incident's opening."""
    relaunched_s: float | None = None
    """The first relaunch."""
    proven_s: float | None = None
    """The first proof that a relaunched job runs past the failing step."""
    unattended: bool = False
    """It was proven, and no person had said yes to anything before."""
    endings: tuple[IncidentState, ...] = ()
    """Every time that work on it ended, and how."""
    boxes: tuple[BoxTime, ...] = ()
    gpus: int | None = None
    """Of the first job."""
    stopped_s: float = 0.0
    """From the failure to the last relaunch; without one to the last ending. 0 where no memory failure was found."""
    repeated_s: float = 0.0
    """Training since the checkpoint that the first relaunch resumed from: steps times the seconds of one."""
    saved_s: float = 0.0
    """Training that the proven relaunch had done by its proof, where no person was needed for it."""
    memory_failures_again: int = 0
    """Relaunches that died of memory or of a GPU again."""
    budget_spent: bool = False
    """The last run ended because it was relaunched as often as the policy allows."""
    fits_foreseen: int = 0
    """Relaunches that were said to fit."""
    fits_wrong: int = 0
    """Those of them that ran out again."""
    nodes_drained: int = 0
    """Ever, also where the node was given back since."""
    drained_at: tuple[float, ...] = ()
    """When each drain was."""
    unreached: tuple[Reach, ...] = ()
    """Of each node that was asked and did not answer, why: as far as the incident keeps its nodes' answers."""


def tally_of(incident: Incident) -> Tally:
    """The figures of an incident as it stands."""
    failed_s = failure_time(incident)
    submitted = [attempt for attempt in incident.attempts if attempt.job and attempt.submitted_s is not None]
    proof = next((v for v in incident.visits if v.outcome == Milestone.PASSED and v.ended_s), None)
    proven_s = proof.ended_s if proof else None
    unattended = proven_s is not None and not _a_person_said_yes(incident, proven_s)
    first = first_failure(incident)
    kind = first.diagnosis.best.kind if first and first.diagnosis else None
    counts = kind is not None and kind.entry.remedy is not Remedy.PERSON
    fits, wrong = fits_told(incident.attempts)
    return Tally(
        failed_s=failed_s,
        relaunched_s=submitted[0].submitted_s if submitted else None,
        proven_s=proven_s,
        unattended=unattended,
        endings=_endings(incident.visits),
        boxes=tuple(
            BoxTime(_word(visit.box), _word(visit.outcome), round(max(visit.ended_s - visit.started_s, 0.0), 3))
            for visit in incident.visits
            if visit.ended_s is not None and visit.outcome
        ),
        gpus=_gpus(incident),
        stopped_s=_stopped_s(incident, failed_s, submitted) if counts else 0.0,
        repeated_s=_repeated_s(incident, submitted) if counts else 0.0,
        saved_s=_saved_s(incident) if unattended else 0.0,
        memory_failures_again=sum(1 for attempt in incident.attempts if _died_again(attempt)),
        budget_spent=any(Milestone.LIMIT_REACHED in run for run in _runs(incident.visits)[-1:]),
        fits_foreseen=fits,
        fits_wrong=wrong,
        nodes_drained=len(
            {act.target for act in incident.acts if act.what == "drain" and not act.planned_only}
            | set(incident.drained_nodes)
        ),
        drained_at=tuple(act.time_s for act in incident.acts if act.what == "drain" and not act.planned_only),
        unreached=_unreached(incident),
    )


def failure_time(incident: Incident) -> float | None:
    """When the first job failed. A log's clock is believed only between the job's start and the incident's opening."""
    failure = first_failure(incident)
    if failure is None:
        return None
    finding = root_cause(incident)
    earliest_s = failure.job.start_time_s or 0.0
    for time_s in (finding.time_s if finding else None, failure.job.end_time_s):
        if time_s is not None and earliest_s <= time_s <= incident.opened_s:
            return time_s
    return incident.opened_s


def _word(text: str) -> str:
    """A box's or an outcome's name. A stored document is a file like any other: its words may be anybody's."""
    return text if _WORD.fullmatch(text) else "other"


def _endings(visits: Sequence[BoxVisit]) -> tuple[IncidentState, ...]:
    """From the path alone: a state is forgotten when the incident is taken up again."""
    return tuple(_ending(run) for run in _runs(visits) if run[-1] == Milestone.WRITTEN)


def _runs(visits: Sequence[BoxVisit]) -> list[list[str]]:
    """The outcomes of each run, in order: it is over when the report is written."""
    runs: list[list[str]] = []
    over = True
    for visit in visits:
        if over:
            runs.append([])
        runs[-1].append(visit.outcome)
        over = visit.outcome == Milestone.WRITTEN
    return runs


def _ending(run: Sequence[str]) -> IncidentState:
    if Milestone.TOLD in run:
        return IncidentState.ESCALATED
    if Milestone.PASSED in run:
        return IncidentState.RECOVERED
    return IncidentState.PLANNED if Milestone.PLANNED in run[-2:] else IncidentState.CLOSED


def _a_person_said_yes(incident: Incident, before_s: float) -> bool:
    return any(
        not act.planned_only and act.time_s <= before_s and act.approved_by not in _BY_POLICY for act in incident.acts
    )


def _gpus(incident: Incident) -> int | None:
    failure = first_failure(incident)
    if failure is None or failure.job.gpus_per_node is None:
        return None
    nodes = failure.job.num_nodes or len(failure.job.nodes)
    return failure.job.gpus_per_node * nodes if nodes else None


def _stopped_s(incident: Incident, failed_s: float | None, submitted: Sequence[Attempt]) -> float:
    if failed_s is None:
        return 0.0
    reports = [visit.ended_s for visit in incident.visits if visit.outcome == Milestone.WRITTEN and visit.ended_s]
    until_s = submitted[-1].submitted_s if submitted else (reports[-1] if reports else None)
    return max(until_s - failed_s, 0.0) if until_s is not None else 0.0


def _repeated_s(incident: Incident, submitted: Sequence[Attempt]) -> float:
    """0 where the step that failed, the checkpoint's step or the length of a step is not known."""
    failure = first_failure(incident)
    if not submitted or failure is None or failure.story is None:
        return 0.0
    progress = failure.story.progress
    first = submitted[0]
    resumed_at = first.checkpoint.step if first.checkpoint else progress.first_step
    if progress.last_step is None or resumed_at is None or progress.step_duration_s is None:
        return 0.0
    return max(progress.last_step - resumed_at, 0) * progress.step_duration_s


def _saved_s(incident: Incident) -> float:
    """As above: what is not known counts as nothing."""
    attempt = next((attempt for attempt in incident.attempts if worked(attempt)), None)
    failure = first_failure(incident)
    if attempt is None or attempt.verdict is None or attempt.verdict.progress is None:
        return 0.0
    progress = attempt.verdict.progress
    before = failure.story.progress.step_duration_s if failure and failure.story else None
    step_s = progress.step_duration_s if progress.step_duration_s is not None else before
    begun_at = next(
        (step for step in (progress.resumed_from_step, attempt.checkpoint.step if attempt.checkpoint else None,
                           progress.first_step) if step is not None),
        None,
    )
    if progress.last_step is None or begun_at is None or step_s is None:
        return 0.0
    return max(progress.last_step - begun_at, 0) * step_s


def _died_again(attempt: Attempt) -> bool:
    diagnosis = attempt.diagnosis
    return worked(attempt) is False and diagnosis is not None and diagnosis.best.kind.entry.remedy is not Remedy.PERSON


def _unreached(incident: Incident) -> tuple[Reach, ...]:
    failures = [failure for failure in (incident.original, incident.failure) if failure is not None]
    reaches = {
        (failure.job.id, facts.node): facts.reach for failure in failures for facts in failure.nodes
    }
    return tuple(sorted(reach for reach in reaches.values() if reach is not Reach.OK))


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

    @property
    def begun(self) -> bool:
        """Whether it is at work, or waits for a job or for an answer."""
        return self.closed_s is None and self.state in (IncidentState.RUNNING, IncidentState.AWAITING_APPROVAL)


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
        tally=tally_of(incident),
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
