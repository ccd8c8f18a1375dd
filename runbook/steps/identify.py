"""Identify: the job's record, its logs, the script as submitted, its owner and nodes."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.incident import GUESSES, Failure, Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord, JobScript
from runbook.model.template import TemplateFile
from runbook.model.units import JobId, sentence
from runbook.slurm.ownership import check_ours
from runbook.steps.shared.base import StepContext, StepResult, waiting_note, with_last_attempt, with_notes
from runbook.steps.shared.companion_files import read_companions
from runbook.steps.shared.holding import hold

PERSON_TRIGGERS = frozenset({"person", "files"})
_HELD = frozenset({"JobHeldUser", "JobHeldAdmin"})
_AT_A_TERMINAL = frozenset({"salloc", "srun"})


class Outcome(StrEnum):
    IDENTIFIED = "identified"
    CANCELLED_BY_USER = "cancelled_by_user"
    SUCCEEDED = "succeeded"
    WAITING = "waiting"
    RELAUNCH_WAITS = "relaunch_waits"
    INTERACTIVE = "interactive"
    NO_LOGS = "no_logs"


def run(context: StepContext) -> StepResult:
    """Fill `incident.failure.job`, `script` and `templates`."""
    job = context.ports.scheduler.job(subject(context.incident))
    check_ours(context.incident, job)
    attempt = context.attempt
    waits = job.state.job_class is JobClass.WAITING
    if attempt is not None and attempt.job == job.id and waits and context.incident.policy is not Policy.PLAN:
        # Its wait was given up before, or the watch was: whoever comes back gives it all its time anew.
        now_s = context.ports.clock.now()
        before_s = now_s - (attempt.waiting_since_s or now_s)
        attempt = replace(attempt, waiting_since_s=now_s, queued_s=attempt.queued_s + before_s, verdict=None)
        incident = with_last_attempt(context.incident, attempt)
        return StepResult(Outcome.RELAUNCH_WAITS, incident, f"the relaunched job {job.id} waits in the queue")
    before = context.incident.failure
    job = job.knowing(before.job if before is not None else None)
    incident = replace(context.incident, failure=Failure(job=job))
    if incident.original is None:
        incident = replace(incident, original=incident.failure)
    where = f"job {job.id} ({job.name or 'unnamed'}, {job.owner})"
    if waits and not _failed_before(job, incident.trigger):
        return _closed(incident, Outcome.WAITING, f"{where} has not started yet: {job.state.name}")
    asked = incident.trigger in PERSON_TRIGGERS
    # Whose event tells of a memory failure in its log; of no relaunch's.
    pipe = incident.trigger == "epilog" and not job.restarts and not incident.attempts
    if job.state.job_class is JobClass.SUCCEEDED and not job.derived_exit_code and not asked and not pipe:
        return _closed(incident, Outcome.SUCCEEDED, f"{where} completed; there is nothing to bring back")
    ours = any(act.what == "cancel" and act.target == job.id and not act.planned_only for act in incident.acts)
    if job.state.job_class is JobClass.CANCELLED and not ours and not asked:
        return _closed(incident, Outcome.CANCELLED_BY_USER, f"{where} was cancelled by a person; it is not relaunched")
    typed = posixpath.basename(job.submit_line.partition(" ")[0])
    if typed in _AT_A_TERMINAL and not job.log_paths and not asked:
        # Its exit status is that of somebody's last command. Nobody is woken for it.
        return _closed(incident, Outcome.INTERACTIVE, f"{where} was started by {typed} and not as a batch job: it has "
                       "no log, and what it printed went to a terminal")
    script, note = _script(context, job)
    if isinstance(script, JobScript):
        # A later attempt keeps the template that earlier attempts changed.
        templates = incident.templates or (TemplateFile(job.command or f"job-{job.id}.sh", script.text),)
        incident = _with_companions(
            replace(context, incident=replace(incident, script=incident.script or script, templates=templates))
        )
        note = "; ".join(filter(None, (note, *incident.unread)))
    incident = with_notes(incident, note, waiting_note(job))
    if not job.log_paths:
        return StepResult(
            Outcome.NO_LOGS,
            replace(incident, conclusion=f"{where} wrote to no log file that the scheduler knows of."),
            "no log file",
        )
    if waits:  # the last deed: whatever ends this box before it leaves nothing behind
        incident = hold(context, job, incident)
    nodes = f"{len(job.nodes)} node{'s' if len(job.nodes) != 1 else ''}"
    return StepResult(Outcome.IDENTIFIED, incident, f"{where}, {job.state.name}, {nodes}, from {job.source}")


def _failed_before(job: JobRecord, trigger: str) -> bool:
    """Whether a waiting job has run and failed, so that its log is that of the run that failed. It is kept from
    starting again (`scontrol requeuehold`, the exit codes of RequeueExitHold): nothing else will bring it back. Or it
    starts again, unpatched, at the front of the queue where Slurm expedites it: one whose end the epilog or a person
    told of is read at once, so that it is cancelled before that. An alert's word may be of any run."""
    return job.restarts > 0 and (job.reason_code in _HELD or trigger not in GUESSES)


def subject(incident: Incident) -> JobId:
    """The job under work: the last relaunch, or the job that the incident was opened for."""
    submitted = [attempt.job for attempt in incident.attempts if attempt.job]
    return submitted[-1] if submitted else incident.root_job


def _script(context: StepContext, job: JobRecord) -> tuple[JobScript | None, str]:
    """The submitted script, else the file as it is today if it was not touched since the submission."""
    kept = context.ports.scheduler.script(job.id)
    if isinstance(kept, JobScript):
        return kept, ""
    unkept = f"the scheduler kept no script of job {job.id} ({kept.unknown})"
    if not job.command:
        return None, f"{unkept}, and does not name its file"
    try:
        listed = context.ports.files.entries(posixpath.dirname(job.command) or "/", job.owner)
        today = next((entry for entry in listed if entry.path == job.command), None)
        if today is None:
            return None, f"{unkept}, and {job.command} is gone"
        if job.submit_time_s is None or today.modified_s > job.submit_time_s:
            return None, f"{unkept}, and {job.command} was changed after the job was submitted"
        text = context.ports.files.read_small(job.command, job.owner).decode("utf-8", "surrogateescape")
    except (NotFound, NotAllowed) as error:
        return None, f"{unkept}, and {job.command} could not be read: {error.what}"
    return JobScript(text, "file"), f"{unkept}; the file {job.command} is older than the job and stands for it"


def _with_companions(context: StepContext) -> Incident:
    """The incident with what its script names, what those name, and so on; and with what could not be read."""
    incident, script = context.incident, context.incident.templates[0]
    if incident.attempts or incident.companions:
        return incident
    known = context.template.submit_context
    found, unread = read_companions(context.ports.files, context.failure.job, script, known)
    files = (script, *(item.file for item in found))
    return replace(incident, templates=files, companions=found, unread=unread)


def _closed(incident: Incident, outcome: Outcome, why: str) -> StepResult:
    closed = replace(incident, state=IncidentState.CLOSED, conclusion=sentence(why))
    return StepResult(outcome, closed, why)
