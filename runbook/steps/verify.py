"""Verify: the relaunched job runs past the step where it died and writes a checkpoint; receipts say that a lever
really is in it, in its script and in its processes.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.diagnosis import Died
from runbook.model.incident import Attempt, Failure, Incident, IncidentState, Milestone, Receipt, Verdict
from runbook.model.job import JobClass, JobRecord, JobScript
from runbook.model.log import LogStory
from runbook.model.node import ProcessView
from runbook.model.sentences import NOTHING
from runbook.model.template import Edit, SettingKind, condition_of
from runbook.model.units import GIB, in_gib, rough_duration, sentence
from runbook.remedy import Resumed, ResumeKind, resume_proof
from runbook.report.vocabulary.sentences import in_words
from runbook.report.vocabulary.titles import waits_for
from runbook.slurm.ownership import check_ours
from runbook.steps.find_checkpoint import list_checkpoints
from runbook.steps.read_error import read_story
from runbook.steps.shared.base import StepContext, StepResult, with_last_attempt, with_notes
from runbook.steps.shared.foresight import figures_of
from runbook.steps.shared.job_logs import STEPS_TOLD_WITHIN_S
from runbook.steps.shared.template_reading import submitted_files


def gather_receipts(context: StepContext, attempt: Attempt, job: JobRecord) -> tuple[Receipt, ...]:
    """What was seen so far. Once a process carried every edit, nothing more is asked of the nodes."""
    edits = _seen_in_ranks(context, attempt.plan.edits if attempt.plan else ())
    if not edits or any(receipt.where.startswith("process") and receipt.seen for receipt in attempt.receipts):
        return attempt.receipts
    receipts = [_script_receipt(context, attempt, job)]
    if job.state.job_class is JobClass.ACTIVE:
        receipts.extend(_process_receipts(context, attempt, job, edits))
    elif job.state.job_class.ended and not any(r.where.startswith("process") for r in attempt.receipts):
        receipts.append(Receipt(_lever(attempt), "process", False, "the job ended before its processes were seen"))
    else:
        receipts.extend(receipt for receipt in attempt.receipts if receipt.where.startswith("process"))
    return tuple(receipts)


def _seen_in_ranks(context: StepContext, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Without the options of launchers (torchrun's, srun's), which no rank carries among its own words."""
    system = context.template.system
    if system is None:
        return edits
    launchers = {item.id for item in system.parameters if item.launcher or item.program}
    return tuple(edit for edit in edits if edit.parameter not in launchers)


def _script_receipt(context: StepContext, attempt: Attempt, job: JobRecord) -> Receipt:
    kept = context.ports.scheduler.script(job.id)
    if not isinstance(kept, JobScript):
        return Receipt(_lever(attempt), "script", False, f"the scheduler keeps no script ({kept.unknown})")
    wanted = submitted_files(attempt.patch, context.template.submit_context)[0].text if attempt.patch else ""
    same = _digest(kept.text) == _digest(wanted)
    detail = "the scheduler holds the changed script, byte for byte" if same else "the scheduler's script differs"
    return Receipt(_lever(attempt), "script", same, f"{detail} ({kept.source})")


def _process_receipts(context: StepContext, attempt: Attempt, job: JobRecord, edits: tuple[Edit, ...]) -> list[Receipt]:
    names = [name for edit in edits if edit.kind is SettingKind.ENVIRONMENT for name in edit.spellings]
    copies = tuple(attempt.patch.copies.values()) if attempt.patch else ()
    seen_anything = False
    reasons: list[str] = []
    for node in job.nodes[:1]:
        views = context.ports.nodes.processes(node, job, names)
        if not isinstance(views, tuple):
            reasons.append(f"{node}: {views.unknown}")
            continue
        ranks = [view for view in views if _is_rank(view, edits, copies)]
        seen_anything = seen_anything or bool(ranks)
        if ranks:
            return [_judged(attempt, edit, ranks, copies) for edit in edits if edit.kind is not SettingKind.SBATCH]
    if reasons:
        return [Receipt(_lever(attempt), "process", False, "; ".join(reasons))]
    return []


def _is_rank(view: ProcessView, edits: tuple[Edit, ...], copies: tuple[str, ...]) -> bool:
    """A training process: it carries one of the options in question or the copy of a configuration, or, for the
    environment, it is a ranked Python. Launchers (srun, the batch shell) carry the same words and are none."""
    program = view.argv[0].rpartition("/")[2] if view.argv else ""
    if not program.startswith("python"):
        return False
    if view.argv[1:3] in (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")):
        return False
    spellings = {
        name.lstrip("+") for edit in edits if edit.kind in (SettingKind.ARGUMENT, SettingKind.KEY)
        for name in edit.spellings
    }
    if not spellings:
        return view.rank is not None
    return any(
        argument.split("=", 1)[0].lstrip("+") in spellings or _names_copy(argument, copies) for argument in view.argv
    )


def _names_copy(argument: str, copies: tuple[str, ...]) -> str:
    """The copy of a configuration that an argument names; "" for another argument."""
    value = argument.partition("=")[2] if argument.startswith("-") and "=" in argument else argument
    return next((copy for copy in copies if value == copy or value == copy.rpartition("/")[2].rpartition(".")[0]), "")


def _judged(attempt: Attempt, edit: Edit, ranks: list[ProcessView], copies: tuple[str, ...]) -> Receipt:
    if edit.kind is SettingKind.ENVIRONMENT:
        having = [view for view in ranks if any(view.environment.get(name) == edit.new for name in edit.spellings)]
        what = f"{edit.spellings[0]}={edit.new}"
        where = "process environment"
    elif edit.kind is SettingKind.KEY and not any(_carries(view.argv, edit) for view in ranks):
        # The key stands in a file: that the process was given the changed copy is what can be seen of it.
        having = [view for view in ranks if any(_names_copy(argument, copies) for argument in view.argv)]
        what = f"the changed copy with {condition_of(edit.spellings[0])[0]} {edit.new}"
        where = "process arguments"
    else:
        having = [view for view in ranks if _argument_is(view.argv, edit)]
        what = f"{edit.spellings[0]} {edit.new}" if edit.new is not None else f"no {edit.spellings[0]}"
        where = "process arguments"
    first = having[0] if having else ranks[0]
    detail = f"{what}: in {len(having)} of {len(ranks)} processes on {first.node} (pid {first.pid})"
    return Receipt(_lever(attempt), where, bool(having), detail)


def _argument_is(argv: tuple[str, ...], edit: Edit) -> bool:
    value: str | None = None
    present = False
    for index, argument in enumerate(argv):
        name, equals, inline = argument.partition("=")
        if name.lstrip("+") in {spelling.lstrip("+") for spelling in edit.spellings}:
            present = True
            value = inline if equals else (argv[index + 1] if index + 1 < len(argv) else None)
    if edit.new is None:
        return not present
    return present if edit.flag else _same(value, edit.new)


def _same(value: str | None, wanted: str) -> bool:
    """Alike but for case of true and false, and for the quotes that a shell left inside a Hydra override."""
    return value is not None and (value == wanted or value.strip("'\"").lower() == wanted.lower())


def _carries(argv: tuple[str, ...], edit: Edit) -> bool:
    """Whether the key is on the command line at all."""
    spellings = {spelling.lstrip("+") for spelling in edit.spellings}
    return any(argument.split("=", 1)[0].lstrip("+") in spellings for argument in argv)


def _lever(attempt: Attempt) -> str:
    return ", ".join(use.lever for use in attempt.plan.uses) if attempt.plan and attempt.plan.uses else "none"


def _digest(text: str) -> str:
    # Accounting may add or drop the final line end.
    return hashlib.sha256(text.rstrip("\n").encode("utf-8", "surrogateescape")).hexdigest()


class Outcome(StrEnum):
    PASSED = Milestone.PASSED.value
    WAITING = "waiting"
    FAILED_AGAIN = "failed_again"
    STILL_QUEUED = "still_queued"
    CANCELLED_BY_USER = "cancelled_by_user"
    STARTED_OVER = "started_over"
    NOT_PROVEN = "not_proven"


_NOT_RESUMED = (ResumeKind.FROM_SCRATCH, ResumeKind.ELSEWHERE)


def run(context: StepContext) -> StepResult:
    """Look once. `WAITING` asks to be called again after `poll_s`."""
    attempt = context.attempt
    if attempt is None or attempt.job is None:
        conclusion = "There is no relaunched job to watch."
        return StepResult(Outcome.NOT_PROVEN, replace(context.incident, conclusion=conclusion), conclusion)
    watched_s = context.ports.clock.now() - (attempt.submitted_s or context.incident.opened_s)
    try:
        job = context.ports.scheduler.job(attempt.job)
        check_ours(context.incident, job)
    except NotFound:
        return _not_proven(context, attempt, f"job {attempt.job} is no longer known to the scheduler")
    except NotAllowed as error:
        return _not_proven(context, attempt, error.what)
    story = _story(context, job)
    incident = context.incident
    queued = _with_time_queued(context, attempt, job)
    if queued != attempt:
        attempt = queued
        incident = with_last_attempt(incident, attempt)
    receipts = gather_receipts(context, attempt, job)
    if receipts != attempt.receipts:
        attempt = replace(attempt, receipts=receipts)
        incident = with_last_attempt(incident, attempt)
    resumed = _resumed(context, attempt, story)
    if resumed.kind in _NOT_RESUMED and not _fatal(story, job):
        return _started_over(context, incident, attempt, job, story, resumed)
    if (past := _past_failure(context, attempt, story)) and not _fatal(story, job):
        saved = _checkpoint_written(context, attempt, story)
        if saved or (job.state.job_class is JobClass.SUCCEEDED):
            why = f"{past}; {saved or 'and ran to its end'}"
            if resumed.why and resumed.kind is ResumeKind.UNKNOWN:
                incident = with_notes(incident, in_words(resumed.why))
            elif resumed.why:
                why = f"{in_words(resumed.why)}; {why}"
            return _passed(context, incident, attempt, job, story, why)
    if job.state.job_class is JobClass.CANCELLED:
        why = f"Job {job.id} was cancelled by a person while it was being watched."
        verdict = Verdict(passed=None, why=why, progress=story.progress)
        incident = with_last_attempt(incident, replace(attempt, verdict=verdict))
        incident = replace(incident, state=IncidentState.CLOSED, conclusion=why)
        return StepResult(Outcome.CANCELLED_BY_USER, incident, why)
    if job.state.job_class is JobClass.FAILED or _fatal(story, job):
        why = f"job {job.id} failed again ({job.state.name})"
        verdict = Verdict(passed=False, why=why, progress=story.progress)
        incident = with_last_attempt(incident, replace(attempt, verdict=verdict))
        return StepResult(Outcome.FAILED_AGAIN, replace(incident, failure=Failure(job=job)), why)
    unread = job.steps_to_come or (story.progress.last_step is None and job.state.job_class is JobClass.SUCCEEDED)
    if unread and job.end_time_s is not None and abs(context.ports.clock.now() - job.end_time_s) < STEPS_TOLD_WITHIN_S:
        # What its tasks wrote to files of srun's `--output` is read once accounting names these.
        return StepResult(
            Outcome.WAITING, incident, f"job {job.id} ended; accounting has yet to tell of its steps", 2.0
        )
    if job.state.job_class in (JobClass.STOPPED, JobClass.SUCCEEDED) and "REQUEUED" not in job.state.flags:
        return _not_proven(context, attempt, f"job {job.id} ended as {job.state.name} before it was past the failure")
    if job.state.job_class is JobClass.WAITING:
        waits_s = context.ports.clock.now() - (attempt.waiting_since_s or context.ports.clock.now())
        if waits_s >= context.settings.policy.wait_for_spare_s:
            return _still_queued(context, incident, attempt, job, waits_s)
        return StepResult(Outcome.WAITING, incident, _queue_line(context, job, waits_s), _pause_s(context, watched_s))
    ran_s = watched_s - attempt.queued_s
    if ran_s > context.settings.policy.verify.limit_s:
        return _not_proven(context, attempt, f"job {job.id} was not proven within {ran_s / 3600:.1f} hours of running")
    return StepResult(Outcome.WAITING, incident, _progress_line(attempt, job, story), _pause_s(context, watched_s))


def _with_time_queued(context: StepContext, attempt: Attempt, job: JobRecord) -> Attempt:
    """The attempt with its time in the queue: closed when the job has started, begun when it is queued again."""
    waits = job.state.job_class is JobClass.WAITING
    now_s = context.ports.clock.now()
    if waits and attempt.waiting_since_s is None:
        return replace(attempt, waiting_since_s=now_s)
    if waits or attempt.waiting_since_s is None:
        return attempt
    # Slurm's clock and this machine's differ a little.
    started_s = min(max(job.start_time_s or now_s, attempt.waiting_since_s), now_s)
    return replace(
        attempt, waiting_since_s=None, queued_s=attempt.queued_s + started_s - attempt.waiting_since_s
    )


def _queue_line(context: StepContext, job: JobRecord, waits_s: float) -> str:
    limit_s = context.settings.policy.wait_for_spare_s
    waited = f"{rough_duration(waits_s)} of at most {rough_duration(limit_s)}"
    return f"job {job.id} {job.state.name} for {waited}: {waits_for(job)}"


def _still_queued(
    context: StepContext, incident: Incident, attempt: Attempt, job: JobRecord, waits_s: float
) -> StepResult:
    """The job stays in the queue: it holds no node there, and its place would be lost with it."""
    why = f"job {job.id} still waits in the queue after {rough_duration(waits_s)}: {waits_for(job)}"
    incident = with_last_attempt(incident, replace(attempt, verdict=Verdict(passed=None, why=why)))
    conclusion = f"{sentence(why)} It was left there and keeps its place; nobody watches it when it starts."
    asks = (
        f"See why job {job.id} does not start: `scontrol show job {job.id}`. "
        f"`runbook resume {incident.id}` watches it again; `scancel {job.id}` gives it up.",
    )
    incident = replace(incident, conclusion=conclusion, to_do=tuple(dict.fromkeys((*asks, *incident.to_do))))
    return StepResult(Outcome.STILL_QUEUED, incident, why)


def _resumed(context: StepContext, attempt: Attempt, story: LogStory) -> Resumed:
    """What the log shows of where the job began. A job that was to begin anew has nothing to show."""
    if attempt.checkpoint is None:
        return Resumed(ResumeKind.UNKNOWN, NOTHING)
    original = context.incident.original
    before = original.story.progress if original is not None and original.story is not None else None
    return resume_proof(story.progress, attempt.checkpoint, before.step_duration_s if before is not None else None)


def _started_over(
    context: StepContext, incident: Incident, attempt: Attempt, job: JobRecord, story: LogStory, resumed: Resumed
) -> StepResult:
    """The job repeats what was done already, and its first save writes over what is there: it is to be stopped."""
    path = attempt.checkpoint.path if attempt.checkpoint else "its checkpoint"
    why = f"job {job.id} did not go on from {path}: {in_words(resumed.why)}"
    conclusion = f"{sentence(why)} It could write over the checkpoints, so it is to be stopped."
    incident = with_last_attempt(incident, replace(attempt, verdict=Verdict(False, why, story.progress)))
    ask = f"Find out why the program did not load {path}: its options in the changed template, and its log."
    incident = replace(
        incident, failure=Failure(job=job, story=story), conclusion=conclusion,
        to_do=tuple(dict.fromkeys((ask, *incident.to_do))),
    )
    return StepResult(Outcome.STARTED_OVER, incident, why)


def _story(context: StepContext, job: JobRecord) -> LogStory:
    if job.state.job_class is JobClass.WAITING or "CONFIGURING" in (job.state.name, *job.state.flags):
        # Its nodes are being made ready: whatever a log of that name holds is not this job's.
        return LogStory(root_cause=None)
    return read_story(context, job)


def _fatal(story: LogStory, job: JobRecord) -> bool:
    """A memory error or GPU fault in the log, even if the scheduler still calls the wedged job running."""
    cause = story.root_cause
    if cause is None or cause.means.entry.died is Died.PROGRAM:
        return False
    return not job.state.job_class.ended or job.state.job_class is JobClass.FAILED


def _past_failure(context: StepContext, attempt: Attempt, story: LogStory) -> str:
    """ "step 63 is past step 61", or "" when it is not yet."""
    last = story.progress.last_step
    if last is None:
        return ""
    beyond = context.settings.policy.verify.steps_past_failure
    if attempt.failed_step is None:
        first = story.progress.first_step if story.progress.first_step is not None else last
        return f"step {last} is done" if last - first >= beyond else ""
    # The failed step itself has to be completed, and `beyond` more.
    return f"step {last} is past step {attempt.failed_step}" if last >= attempt.failed_step + beyond else ""


def _checkpoint_written(context: StepContext, attempt: Attempt, story: LogStory) -> str:
    """A complete checkpoint newer than the one resumed from: by the folder, which cannot be mistaken."""
    if not context.settings.policy.verify.needs_checkpoint:
        return "no checkpoint is asked for"
    resumed = attempt.checkpoint.step if attempt.checkpoint and attempt.checkpoint.step is not None else -1
    must = max(resumed + 1, attempt.failed_step or 0)
    found, _ = list_checkpoints(context)
    newer = [item for item in found if item.complete and item.step is not None and item.step >= must]
    if newer:
        return f"it wrote a checkpoint at step {newer[0].step}"
    said = [step for step in story.progress.saved_steps if step >= must]
    if said and not found:
        return f"its log says that step {max(said)} was saved"
    return ""


def _passed(
    context: StepContext, incident: Incident, attempt: Attempt, job: JobRecord, story: LogStory, why: str
) -> StepResult:
    headroom = _headroom(context, story)
    measured = tuple(item for item in figures_of(story)[0] if not item.at_least)
    verdict = Verdict(passed=True, why=why, progress=story.progress, headroom=headroom, measured=measured)
    incident = with_last_attempt(incident, replace(attempt, verdict=verdict))
    unseen = [receipt for receipt in attempt.receipts if not receipt.seen]
    if unseen:
        incident = with_notes(
            incident, "the job runs, but the lever was not seen in it: " + "; ".join(item.detail for item in unseen)
        )
    levers = ", ".join(use.title for use in attempt.plan.uses) if attempt.plan else ""
    avoided = f"away from {', '.join(incident.excluded_nodes)}" if incident.excluded_nodes else ""
    freed = f"the memory of {', '.join(context.failure.freed_nodes)}, free again" if context.failure.freed_nodes else ""
    how = " and ".join(part for part in (levers, avoided, freed) if part) or "unchanged"
    conclusion = f"Job {job.id} runs past the failure: {why}. What helped: {how}."
    incident = replace(incident, state=IncidentState.RECOVERED, conclusion=conclusion)
    return StepResult(Outcome.PASSED, incident, why + (f"; {headroom}" if headroom else ""))


def _not_proven(context: StepContext, attempt: Attempt, why: str) -> StepResult:
    verdict = Verdict(passed=None, why=why)
    incident = with_last_attempt(context.incident, replace(attempt, verdict=verdict))
    return StepResult(Outcome.NOT_PROVEN, replace(incident, conclusion=sentence(why)), why)


def _headroom(context: StepContext, story: LogStory) -> str:
    """Peak reserved against the card, from the log's own memory lines and the first failure's capacity."""
    original = context.incident.original
    cause = original.story.root_cause if original and original.story else None
    capacity = cause.fields.capacity_bytes if cause else None
    peaks = [(sample.max_reserved_bytes, sample.rank) for sample in story.progress.memory if sample.max_reserved_bytes]
    if not peaks:
        return "headroom not known: the log prints no peak of reserved memory"
    # The rank that failed is the one to look at; others tell less.
    failed = [item for item in peaks if cause is not None and item[1] is not None and item[1] == cause.rank]
    peak, rank = max(failed or peaks, key=lambda item: item[0])
    who = f"rank {rank}" if rank is not None else "a rank"
    if capacity is None:
        return f"{who}: peak reserved {in_gib(peak, 1)}; the card's capacity is not known"
    other = "" if failed else "; the rank that failed prints none"
    return f"{who}: peak reserved {peak / GIB:.1f} of {in_gib(capacity, 1)} ({100 * peak / capacity:.0f} %){other}"


def _progress_line(attempt: Attempt, job: JobRecord, story: LogStory) -> str:
    step = f"step {story.progress.last_step}" if story.progress.last_step is not None else "no step yet"
    goal = f" of {attempt.failed_step} to pass" if attempt.failed_step is not None else ""
    return f"job {job.id} {job.state.name}: {step}{goal}"


def _pause_s(context: StepContext, waited_s: float) -> float:
    return context.settings.policy.verify.pause_s(waited_s)
