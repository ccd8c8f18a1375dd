"""Relaunch as the owner, with the original options, once per attempt however often this is repeated."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.incident import RESTORED, Act, Attempt, Incident, Milestone
from runbook.model.job import Claim, Dependent, JobEnvironment, JobRecord, Submission
from runbook.model.units import JobId, sentence
from runbook.remedy import relaunch_refused
from runbook.report.vocabulary.sentences import in_words
from runbook.slurm.ownership import attempt_mark, lost_claim, new_claim, submitted_under
from runbook.steps.cancel_job import not_relaunchable
from runbook.steps.find_checkpoint import before_relaunch
from runbook.steps.patch import copy_name
from runbook.steps.reduce_world import excluded
from runbook.steps.shared.base import (
    Proposal,
    StepContext,
    StepResult,
    waiting_note,
    with_act,
    with_last_attempt,
    with_notes,
)
from runbook.steps.shared.job_logs import take_marks


class Outcome(StrEnum):
    SUBMITTED = "submitted"
    PLANNED = Milestone.PLANNED.value
    DECLINED = "declined"
    REFUSED = "refused"
    LIMIT_REACHED = Milestone.LIMIT_REACHED.value
    NOTHING_DIFFERS = "nothing_differs"


def propose(context: StepContext) -> Proposal | None:
    """What would be submitted, in a sentence."""
    incident = context.incident
    if _limit(context) or _same_again(context) or not_relaunchable(context) is not None:
        return None
    number = len(incident.attempts) + 1
    plan = incident.whole_plan
    levers = "; ".join(use.title for use in plan.uses) if plan and plan.uses else "the template unchanged"
    where = f" away from {', '.join(incident.excluded_nodes)}" if incident.excluded_nodes else ""
    freed = context.failure.freed_nodes
    where += f", now that the memory of {', '.join(freed)} is free again" if freed else ""
    at = f" from step {incident.checkpoint.step}" if incident.checkpoint else " from the start"
    follow = [one.id for one in _waiting(context) if one.condition == "afterok" and not one.cancelled]
    then = f"; {', '.join(follow)} {'waits' if len(follow) == 1 else 'wait'} for it in place of the job that died"
    return Proposal(
        "submit",
        f"attempt {number}",
        f"submit attempt {number} as {context.failure.job.owner}{where}{at}: {levers}{then if follow else ''}",
        token=attempt_mark(incident.id, number),
    )


def run(context: StepContext) -> StepResult:
    """Submit, unless this attempt's token is in the queue or in accounting already."""
    incident = context.incident
    for outcome, why in ((Outcome.LIMIT_REACHED, _limit(context)), (Outcome.NOTHING_DIFFERS, _same_again(context))):
        if why:
            return StepResult(outcome, replace(incident, conclusion=why), why)
    refusal = not_relaunchable(context)
    if refusal is not None:
        return _refused(incident, refusal)
    failure = context.failure
    number = len(incident.attempts) + 1
    scheduler, clock = context.ports.scheduler, context.ports.clock
    original = incident.original.job if incident.original else failure.job
    started = clock.now()
    marks = take_marks(context, failure.job.log_paths, original.owner)
    claim = _claim(context, number, original)
    submitted = _submitted_before(context, claim)
    result = "found submitted already"
    if not submitted:
        environment = context.template.environment
        if not isinstance(environment, JobEnvironment):
            incident = with_notes(
                incident,
                f"the submitter's environment is not known ({environment.unknown}); the relaunch used a plain one",
            )
        avoid = excluded(context)
        options = (
            *((f"--exclude={','.join(avoid)}",) if avoid else ()),
            *((f"--nodes={incident.num_nodes}", *incident.world_options) if incident.num_nodes is not None else ()),
        )
        submission = Submission(
            claim=claim,
            work_dir=original.work_dir,
            script_path=str(context.ports.folder.folder(incident.id) / copy_name(incident)),
            options=options,
            environment=environment if isinstance(environment, JobEnvironment) else None,
            takes_dependents=not incident.attempts,
        )
        try:
            submitted = (scheduler.submit(submission, original),)
        except NotAllowed as error:
            return _refused(incident, error)
        result = "submitted"
    act = Act("submit", submitted[0], started, claim.token, result)
    incident = _submitted(context, incident, submitted, claim, act)
    incident = with_last_attempt(incident, replace(incident.attempts[-1], log_marks=marks))
    incident = _dependents_told(context, incident, submitted[0])
    return StepResult(Outcome.SUBMITTED, incident, f"job {submitted[0]}, attempt {number}")


def _waiting(context: StepContext) -> tuple[Dependent, ...]:
    """Who waits for the job that died first: what a relaunch of a relaunch does not change."""
    return context.failure.job.dependents if not context.incident.attempts else ()


def _dependents_told(context: StepContext, incident: Incident, new: JobId) -> Incident:
    """What became of the jobs that waited: those that wait for the relaunched job now, and those that are left."""
    waited = _waiting(context)
    if not waited:
        return incident
    try:
        left = {one.id for one in context.ports.scheduler.job(context.failure.job.id).dependents}
    except NotFound:
        left = set()
    moved = [one.id for one in waited if one.in_vain and not one.cancelled and one.id not in left]
    told = f"Now waiting for job {new} instead: {', '.join(moved)}." if moved else ""
    asks = [
        f"Job {one.id} ({one.name}) was cancelled by Slurm, as it waited for job {context.failure.job.id}: submit it "
        f"again, with `--dependency={one.condition}:{new}`." if one.cancelled
        else f"Job {one.id} ({one.name}) waits for job {context.failure.job.id} by {one.condition}, in vain: `scontrol "
        f"update jobid={one.id} dependency={one.condition}:{new}` lets it wait for the relaunched one."
        for one in waited if one.in_vain and one.id not in moved
    ]
    incident = replace(incident, to_do=tuple(dict.fromkeys((*incident.to_do, *asks))))
    return with_notes(incident, waiting_note(context.failure.job), told)


def _refused(incident: Incident, error: NotAllowed) -> StepResult:
    conclusion = f"The scheduler refused the relaunch: {error.what}"
    to_do = tuple(dict.fromkeys((*incident.to_do, *filter(None, (sentence(error.next_step),)))))
    return StepResult(Outcome.REFUSED, replace(incident, conclusion=conclusion, to_do=to_do), conclusion)


def _claim(context: StepContext, number: int, original: JobRecord) -> Claim:
    """What is written down of an attempt before it is submitted; whoever comes back after a kill finds it here."""
    folder, incident = context.ports.folder, context.incident.id
    place = f"attempts/{number}/claim.json"
    try:
        kept = json.loads(folder.read_file(incident, place))
        return replace(new_claim(incident, number, original, kept["written_s"]), token=kept["token"])
    except NotFound:
        claim = new_claim(incident, number, original, context.ports.clock.now())
        claim = _claim_lost(context, number, claim) or claim
        kept = {"token": claim.token, "written_s": claim.written_s}
        folder.write_file(incident, place, json.dumps(kept).encode())
        return claim


def _claim_lost(context: StepContext, number: int, claim: Claim) -> Claim | None:
    """Of an incident that came back from a backup: what was written down after that was made, by the job itself."""
    try:
        made_s = float(json.loads(context.ports.folder.read_file(context.incident.id, RESTORED))["made_s"])
    except NotFound:
        return None
    mark = attempt_mark(context.incident.id, number)
    jobs = []
    for job in context.ports.scheduler.find_submitted(replace(claim, token=f"{mark}:")):
        with contextlib.suppress(NotFound):
            jobs.append(context.ports.scheduler.job(job))
    return lost_claim(claim, mark, jobs, made_s)


def _submitted_before(context: StepContext, claim: Claim) -> tuple[JobId, ...]:
    """The jobs that were submitted under the claim."""
    found = []
    for job in context.ports.scheduler.find_submitted(claim):
        with contextlib.suppress(NotFound):
            if submitted_under(context.ports.scheduler.job(job), claim):
                found.append(job)
    return tuple(found)


def _submitted(
    context: StepContext, incident: Incident, jobs: tuple[JobId, ...], claim: Claim, act: Act
) -> Incident:
    job, number, started_s = jobs[0], len(incident.attempts) + 1, act.time_s
    if len(jobs) > 1:
        mark = attempt_mark(incident.id, number)
        incident = with_notes(incident, f"more than one job carries {mark}: {', '.join(jobs)}; watching {job}")
    attempt = Attempt(
        number=number,
        plan=incident.whole_plan,
        patch=incident.patch,
        checkpoint=incident.checkpoint,
        excluded_nodes=excluded(context),
        job=job,
        claim=claim,
        submitted_s=started_s,
        failed_step=failed_step(context),
        waiting_since_s=started_s,
    )
    patched = incident.patch.files if incident.patch else incident.templates
    # The world's edits are in the template now; only the number of nodes is told to the scheduler each time.
    done = before_relaunch(context)
    incident = replace(
        incident, attempts=(*incident.attempts, attempt), templates=patched, world_plan=None,
        to_do=tuple(item for item in incident.to_do if item not in done),
    )
    return with_act(incident, act)


def failed_step(context: StepContext) -> int | None:
    """The furthest step that any failure of this incident died in: the one that has to be passed."""
    steps: list[int] = []
    for failure in (context.incident.original, context.incident.failure):
        if failure is None or failure.story is None:
            continue
        cause, progress = failure.story.root_cause, failure.story.progress
        if cause is not None and cause.step is not None:
            steps.append(cause.step)
        elif progress.last_step is not None:
            steps.append(progress.last_step + 1)
    return max(steps) if steps else None


def _limit(context: StepContext) -> str:
    refused = relaunch_refused(len(context.incident.attempts), context.settings.policy.max_relaunches)
    return sentence(f"{in_words(refused)} (policy.max_relaunches)") if refused else ""


def _same_again(context: StepContext) -> str:
    """Never resume into the same failure: something must differ from the job that died."""
    incident = context.incident
    changed = bool(incident.patch and incident.patch.diff and incident.plan and incident.plan.uses)
    last = incident.attempts[-1] if incident.attempts else None
    avoided_before = set(last.excluded_nodes) if last else set(context.failure.job.excluded_nodes)
    elsewhere = bool(set(incident.excluded_nodes) - avoided_before)
    resized = incident.num_nodes is not None and incident.num_nodes != context.failure.job.num_nodes
    if changed or elsewhere or resized or context.failure.freed_nodes:
        return ""
    return "Nothing would differ from the job that died, so it is not submitted again."
