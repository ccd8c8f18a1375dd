"""A job that failed and waits to start again, unpatched, is held while it is worked on, and released where it stays."""

from __future__ import annotations

from runbook.errors import NotFound, RunbookError, Unavailable
from runbook.model.incident import Incident, Policy
from runbook.model.job import JobRecord
from runbook.steps.shared.base import StepContext, with_notes


def hold(context: StepContext, job: JobRecord, incident: Incident) -> Incident:
    """The incident with a note of it. Not under the policy that touches nothing, and none that somebody else holds."""
    if incident.policy is Policy.PLAN or (job.reason_code.startswith("JobHeld") and not _is_ours(context, job)):
        return incident
    # Nobody can tell from a held job who held it: what is about to be done is written down first.
    context.ports.folder.write_file(incident.id, _mark(job), b"held\n")
    try:
        held = context.ports.scheduler.hold(job)
    except Unavailable:
        raise
    except RunbookError as error:
        return with_notes(incident, f"Job {job.id} may start again as it was at any time: {error.what}.")
    if not held:
        return incident
    return with_notes(incident, f"Job {job.id} waited to start again as it was, and is held while this is worked on.")


def give_back(context: StepContext) -> Incident:
    """The incident at its end, with a note where a job that was held, and is still there, was released."""
    incident = context.incident
    for job in [one.job for one in (incident.failure,) if one is not None]:
        if not _is_ours(context, job):
            continue
        try:
            released = context.ports.scheduler.release(job)
        except Unavailable:
            raise
        except RunbookError as error:
            command = f"`scontrol release {job.id}`"
            return with_notes(incident, f"Job {job.id} is still held: {error.what}. {command} lets it start again.")
        if released:
            return with_notes(incident, f"Job {job.id} is no longer held: it starts again as it was.")
    return incident


def _is_ours(context: StepContext, job: JobRecord) -> bool:
    try:
        return bool(context.ports.folder.read_file(context.incident.id, _mark(job)))
    except NotFound:
        return False


def _mark(job: JobRecord) -> str:
    return f"acts/hold-{job.id}-{job.restarts}"
