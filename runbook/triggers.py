"""Which incident a failed job belongs to: a new one, a running one to join, or a closed one to take up again."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from runbook.errors import NotFound
from runbook.model.incident import GUESSES, Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import IncidentId, JobId, UserName
from runbook.slurm.ownership import same_owner

_TOKEN = re.compile(r"\Arunbook:([a-z][a-z0-9_]*-[A-Za-z0-9_.+-]+):(\d{1,3})(?::[0-9a-f]{32})?(?:\s|\Z)")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")


class Known(Protocol):
    """Stored incidents, for the question whether one exists."""

    def load(self, incident: IncidentId) -> Incident: ...


class Opening(StrEnum):
    NEW = "new"
    JOIN = "join"
    """It is being worked on already."""
    AGAIN = "again"
    """It had ended; work begins again with what is known, and no lever is tried twice."""
    DONE = "done"
    """It had ended and there is nothing new."""


@dataclass(frozen=True, slots=True)
class Opened:
    opening: Opening
    incident: Incident
    owner: UserName = UserName("")
    """Of a new incident's job, by the scheduler's word."""


def incident_id(playbook: str, cluster: str, job: JobId, submitted_s: float | None = None) -> IncidentId:
    """`<playbook>-<cluster>-<root job id>`: the same failure always has the same id. `submitted_s`: of a job whose
    number was given out before, to a job that has an incident."""
    again = "" if submitted_s is None else f"-s{submitted_s:.0f}"
    return IncidentId(f"{playbook}-{_UNSAFE.sub('_', cluster)}-{_UNSAFE.sub('_', job)}{again}")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a new incident is opened with, and an old one taken up again."""

    playbook: str
    """The flow's id."""
    cluster: str
    policy: Policy
    trigger: str
    """"person", "epilog", "alert" or "watch". An alert is somebody's guess about a job: it opens and joins as the
    epilog does, takes up nothing that waits for a person, and looks again at a job that ran well only after a while.
    So does what the watch saw in a running job's log."""
    tool_version: str


_LOOK_AGAIN_S = 1800.0
"""After an incident was closed because its job ran well, an alert that goes on this much later is a reason to look
again; one that comes and goes is not one each time."""


def open_for(job: JobRecord, known: Known, terms: Terms, now_s: float) -> Opened:
    """Decide for one report of a failure. Pure but for looking up incidents."""
    trigger, policy = terms.trigger, terms.policy
    wanted = incident_id(terms.playbook, terms.cluster, job.id)
    existing = _of_relaunch(job, known) or _load(known, wanted)
    if existing is not None and is_another_job(existing, job):
        wanted = incident_id(terms.playbook, terms.cluster, job.id, job.submit_time_s)
        existing = _load(known, wanted)
    if existing is None:
        incident = Incident(
            id=wanted,
            cluster=terms.cluster,
            root_job=job.id,
            policy=policy,
            trigger=trigger,
            opened_s=now_s,
            updated_s=now_s,
            tool_version=terms.tool_version,
        )
        return Opened(Opening.NEW, incident, job.owner)
    guessed = trigger in GUESSES
    if guessed and existing.state is IncidentState.INTERRUPTED:
        return Opened(Opening.DONE, existing)
    if not existing.finished:
        # Interrupted ones too: whoever joins finds out whether their run still lives.
        return Opened(Opening.JOIN, existing)
    last_job = existing.attempts[-1].job if existing.attempts else existing.root_job
    failed_since = job.state.job_class is JobClass.FAILED
    if existing.state is IncidentState.RECOVERED and job.id == last_job and existing.attempts and failed_since:
        # The relaunch was proven, and failed later: the next attempt of the same incident.
        return Opened(Opening.AGAIN, again(existing, policy=policy, now_s=now_s))
    seen = existing.failure.job.state.job_class if existing.failure is not None else None
    if existing.state is not IncidentState.RECOVERED and failed_since and _ran_again(existing, job):
        # Slurm or a person started it again under its number, and it failed once more.
        return Opened(Opening.AGAIN, again(existing, policy=policy, now_s=now_s))
    if existing.state is IncidentState.CLOSED and failed_since and seen is not None and not seen.ended:
        # It ran when it was looked at and nothing was wrong with it; since then it failed.
        return Opened(Opening.AGAIN, again(existing, policy=policy, now_s=now_s))
    if (
        guessed and existing.state is IncidentState.CLOSED and seen is not None and not seen.ended
        and existing.closed_s is not None and now_s > existing.closed_s + _LOOK_AGAIN_S
    ):
        return Opened(Opening.AGAIN, again(existing, policy=policy, now_s=now_s))
    if trigger == "person" and existing.state is not IncidentState.RECOVERED:
        return Opened(Opening.AGAIN, again(existing, policy=policy, now_s=now_s))
    return Opened(Opening.DONE, existing)


def is_another_job(existing: Incident, job: JobRecord) -> bool:
    """Whether a number was given out again (MaxJobId was passed, or the controller lost its state): another job than
    the one that the incident is about. A requeued job keeps its number and has another time of submission, too: it has
    more restarts, and the same owner."""
    first = next((one.job for one in (existing.original, existing.failure) if one is not None), None)
    if first is None or first.id != job.id:
        return False
    if not same_owner(job, first.uid, first.owner):
        return True
    apart = None not in (first.submit_time_s, job.submit_time_s) and first.submit_time_s != job.submit_time_s
    return apart and job.restarts <= first.restarts


def _ran_again(existing: Incident, job: JobRecord) -> bool:
    """Whether this is a later run of the very job that the incident looked at last."""
    last = existing.failure.job if existing.failure is not None else None
    return last is not None and last.id == job.id and job.restarts > last.restarts


def again(incident: Incident, *, policy: Policy, now_s: float) -> Incident:
    """The incident ready for one more run: from the box where it was interrupted, else from the beginning."""
    interrupted = incident.state is IncidentState.INTERRUPTED
    visits = incident.visits
    if visits and not visits[-1].outcome:
        # A box that was left half way is entered anew, with a question of its own.
        visits = visits[:-1]
    return replace(
        incident,
        visits=visits,
        run=incident.run + 1,
        policy=policy,
        state=IncidentState.RUNNING,
        box=incident.box if interrupted else "",
        awaiting="",
        updated_s=now_s,
        closed_s=None,
        conclusion="",
        to_do=(),
        no_plan=None,
    )


def _of_relaunch(job: JobRecord, known: Known) -> Incident | None:
    """The incident whose relaunch this job is. A comment is anybody's text: the incident must name the job too."""
    match = _TOKEN.match(job.comment)
    if match is None:
        return None
    incident = _load(known, IncidentId(match.group(1)))
    if incident is None:
        return None
    if any(attempt.job == job.id for attempt in incident.attempts):
        return incident
    # Submitted by a run that was killed before it could say so: the next attempt, by the same owner.
    original = incident.original.job if incident.original else None
    is_next = int(match.group(2)) == len(incident.attempts) + 1
    theirs = original is not None and same_owner(job, original.uid, original.owner)
    return incident if not incident.finished and is_next and theirs else None


def _load(known: Known, incident: IncidentId) -> Incident | None:
    try:
        return known.load(incident)
    except NotFound:
        return None
