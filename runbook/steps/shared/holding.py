"""A job that failed and waits to start again, unpatched, is held while it is worked on, and released where it stays.

Nobody can tell from a held job who held it. So a mark in the incident's folder says that it was us, and in which run of
the job, from before it is held until it is released. What is given back goes by the marks alone, whatever became of the
box that held it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.incident import Incident, Policy
from runbook.model.job import JobRecord
from runbook.model.units import JobId, UserName
from runbook.slurm.ownership import check_same_run
from runbook.slurm.states import starts_by_itself
from runbook.steps.shared.base import IncidentFolder, StepContext, with_notes


@dataclass(frozen=True, slots=True)
class _Mark:
    restarts: int
    uid: int | None
    owner: UserName


def hold(context: StepContext, job: JobRecord, incident: Incident) -> Incident:
    """The incident with a note of it. Not under the policy that touches nothing, and only one that would start by
    itself: what somebody else holds, or Slurm after a failed launch, stays theirs."""
    done = f"Job {job.id} waited to start again as it was, and is held while this is worked on."
    if incident.policy is Policy.PLAN:
        return incident
    if not starts_by_itself(job.reason_code):
        ours = _mark(context.ports.folder, incident, job.id) == _of(job)
        return with_notes(incident, done) if ours else incident
    _write(context, job.id, _of(job))
    try:
        held = context.ports.scheduler.hold(job)
    except Unavailable:
        raise
    except RunbookError as error:
        if isinstance(error, NotAllowed):
            _write(context, job.id, None)
        return with_notes(incident, f"Job {job.id} may start again as it was at any time: {error.what}.")
    if not held:
        _write(context, job.id, None)
        return incident
    return with_notes(incident, done)


def give_back(context: StepContext) -> Incident:
    """The incident at its end, with a note where a job that was held, and is still there, was released."""
    incident = context.incident
    for job in _jobs(incident):
        mark = _mark(context.ports.folder, incident, job)
        if mark is None:
            continue
        try:
            now = context.ports.scheduler.job(job)
            held = replace(now, restarts=mark.restarts, uid=mark.uid, owner=mark.owner, start_time_s=None)
            check_same_run(now, held, "released")
            released = context.ports.scheduler.release(held)
        except Unavailable:
            raise
        except NotFound:
            released = False
        except RunbookError as error:
            if isinstance(error, NotAllowed):
                _write(context, job, None)
            lets_go = f"`scontrol release {job}` lets it start again"
            incident = with_notes(incident, f"Job {job} may still be held: {error.what}. {lets_go}.")
            continue
        _write(context, job, None)
        if released:
            incident = with_notes(incident, f"Job {job} is no longer held: it starts again as it was.")
    return incident


def still_held(folder: IncidentFolder, incident: Incident) -> tuple[JobId, ...]:
    """Jobs that an incident has left held, where it stops before its report."""
    return tuple(job for job in _jobs(incident) if _mark(folder, incident, job) is not None)


def _jobs(incident: Incident) -> tuple[JobId, ...]:
    """All that it may have held. One of files alone has none."""
    if incident.trigger == "files":
        return ()
    return tuple(dict.fromkeys((incident.root_job, *(one.job for one in incident.attempts if one.job))))


def _of(job: JobRecord) -> _Mark:
    return _Mark(job.restarts, job.uid, job.owner)


def _mark(folder: IncidentFolder, incident: Incident, job: JobId) -> _Mark | None:
    """None: it is not held by us, or not any more."""
    try:
        told = folder.read_file(incident.id, _path(job)).decode().split("\n")
    except (NotFound, UnicodeDecodeError):
        return None
    if len(told) != 4 or told[0] != "held" or not _is_number(told[1]) or (told[2] and not _is_number(told[2])):
        return None
    return _Mark(int(told[1]), int(told[2]) if told[2] else None, UserName(told[3]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _write(context: StepContext, job: JobId, mark: _Mark | None) -> None:
    text = "not held"
    if mark is not None:
        text = f"held\n{mark.restarts}\n{'' if mark.uid is None else mark.uid}\n{mark.owner}"
    context.ports.folder.write_file(context.incident.id, _path(job), text.encode())


def _path(job: JobId) -> str:
    return f"acts/hold-{job}"
