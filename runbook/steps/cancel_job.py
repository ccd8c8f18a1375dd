"""Cancel the wedged job, once its evidence is kept."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.incident import Act, Incident
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import sentence
from runbook.remedy import submitted_by_another
from runbook.slurm.ownership import check_ours, check_same_run
from runbook.slurm.submit import check_relaunchable
from runbook.steps.shared.base import Proposal, StepContext, StepResult, with_act, with_notes


class Outcome(StrEnum):
    CANCELLED = "cancelled"
    LEFT_RUNNING = "left_running"
    ALREADY_GONE = "already_gone"
    COMPLETED = "completed"
    """It ran when its logs were read, and has completed since."""
    PLANNED = "planned"
    DECLINED = "declined"
    STILL_THERE = "still_there"


def propose(context: StepContext) -> Proposal | None:
    """Nothing to approve when the job has ended by itself, and none for one that could not be submitted again."""
    job = context.failure.job
    if job.state.job_class.ended or not_relaunchable(context) is not None or _ended(context, job):
        return None
    nodes = ", ".join(job.nodes[:4]) + (" …" if len(job.nodes) > 4 else "")
    doing = f"{job.state.name} on {nodes or 'no node'}"
    if job.state.job_class is JobClass.WAITING:
        doing = f"{job.state.name}, which Slurm starts again as it was"
    return Proposal("cancel", job.id, f"cancel job {job.id} ({job.name}, {job.owner}, {doing})")


def run(context: StepContext) -> StepResult:
    """Cancel, then wait until the scheduler says that the job has ended. Safe to repeat."""
    job = context.failure.job
    now = _record(context, job)
    if now is not None and now.state.job_class is JobClass.SUCCEEDED and not job.state.job_class.ended:
        return StepResult(Outcome.COMPLETED, context.incident, f"job {job.id} ran, and has completed meanwhile")
    if now is None or now.state.job_class.ended:
        return StepResult(
            Outcome.ALREADY_GONE, _with_record(context, now), f"job {job.id} had ended: {(now or job).state.name}"
        )
    refusal = not_relaunchable(context)
    if refusal is not None:
        why = f"job {job.id} is left as it is: {refusal.what}"
        return StepResult(Outcome.LEFT_RUNNING, with_notes(_with_record(context, now), sentence(why)), why)
    check_ours(context.incident, now)
    check_same_run(now, job)
    if not context.incident.evidence_files:
        raise NotAllowed(
            f"job {job.id} is not cancelled: none of its logs is kept yet",
            next_step="look at the job, then `runbook resume`",
        )
    scheduler, clock = context.ports.scheduler, context.ports.clock
    started = clock.elapsed()
    scheduler.cancel(job)
    pause_s = 0.1
    while True:
        now = _record(context, job)
        if now is None or now.state.job_class.ended:
            break
        if clock.elapsed() - started > context.settings.policy.cancel_wait_s:
            conclusion = (
                f"Job {job.id} did not end within {context.settings.policy.cancel_wait_s:.0f} s of being cancelled."
            )
            return StepResult(Outcome.STILL_THERE, replace(context.incident, conclusion=conclusion), conclusion)
        clock.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 2.0)
    waited_s = clock.elapsed() - started
    incident = with_act(
        _with_record(context, now), Act("cancel", job.id, started, result=f"ended after {waited_s:.1f} s")
    )
    return StepResult(Outcome.CANCELLED, incident, f"job {job.id} ended {waited_s:.1f} s after the cancel")


def not_relaunchable(context: StepContext) -> NotAllowed | None:
    """Why the job cannot be submitted again, whatever the plan will be; None when it can."""
    original = context.incident.original or context.failure
    script = context.incident.script
    try:
        check_relaunchable(original.job, script.text if script else "")
    except NotAllowed as refusal:
        return refusal
    return of_another(context)


def of_another(context: StepContext) -> NotAllowed | None:
    """Why the job is another program's to submit; None: it is its owner's."""
    found = [submitted_by_another(script, context.playbook.restarters) for script in context.incident.templates[:1]]
    if found == [] or found[0] is None:
        return None
    program, place = found[0]
    return NotAllowed(f"it is {program.title} ({place}). {program.what_happens}", next_step=program.to_do)


def _record(context: StepContext, job: JobRecord) -> JobRecord | None:
    try:
        return context.ports.scheduler.job(job.id)
    except NotFound:
        return None


def _ended(context: StepContext, job: JobRecord) -> bool:
    now = _record(context, job)
    return now is None or now.state.job_class.ended


def _with_record(context: StepContext, now: JobRecord | None) -> Incident:
    """The incident with the job's newer record: its end time bounds the window of the node check."""
    if now is None:
        return context.incident
    return replace(context.incident, failure=replace(context.failure, job=now.knowing(context.failure.job)))
