"""Read the error: keep the logs, find the rank that failed first and what its message says."""

from __future__ import annotations

import posixpath
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum, auto
from typing import BinaryIO

from runbook.errors import NotAllowed, NotFound, RunbookError
from runbook.logs.reader import LogReader
from runbook.model.diagnosis import Died
from runbook.model.incident import GUESSES, Incident, IncidentState
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Collateral, Finding, LogStory
from runbook.model.sentences.of_logs import Say
from runbook.model.units import Unknown, UserName, name_within, sentence
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.job_logs import STEPS_TOLD_WITHIN_S, after_mark, silent_s
from runbook.steps.shared.ranks import RanksSeen, see_ranks

KEPT_LOG_BYTES = 64 << 20
KEPT_IN_ALL_BYTES = 256 << 20
"""Of all logs of a job together, which may be any number, and all links to one file."""
_LEAST_KEPT_BYTES = 64 << 10
_KEPT_OF_OTHERS_BYTES = 1 << 20
"""Of the logs of a job that did not die of memory or of a GPU: any user's failed jobs are kept, each with this much."""
_STEPS_WAITED = 3.0
"""A step with an evaluation or a checkpoint in it takes longer than the others."""
_LONGEST_WAIT_S = 3600.0
_LOOK_AGAIN_S = 30.0


class Outcome(StrEnum):
    MEMORY_ERROR = auto()
    GPU_FAULT = auto()
    OTHER_ERROR = auto()
    HEALTHY = auto()
    WAITING = auto()
    ENDED = auto()
    """It ran when it was looked at first and has ended since: how, the next look at its record says."""
    NO_ERROR_FOUND = auto()
    RELAUNCH_FAILED_OTHERWISE = auto()
    UNREADABLE = auto()


_ON_A_NODE_ALONE = (
    "Look where the log lies: a node's own folder, such as its /tmp, is seen by that node alone, and Slurm may empty "
    "it with the job. If it is still there, `runbook diagnose FILE` reads a copy; let --output name a folder that "
    "every machine sees."
)


def run(context: StepContext) -> StepResult:
    """Copy the logs into the incident's folder, read them, and fill `incident.failure.story`."""
    job = context.failure.job
    if job.steps_to_come:
        job = _told_anew(context, job)
        context = replace(context, incident=_with_job(context.incident, job))
    kept, problems = _keep(context, job, KEPT_LOG_BYTES)
    incident = replace(context.incident, evidence_files=tuple(dict.fromkeys((*context.incident.evidence_files, *kept))))
    story = read_story(context, _as_evidence(job))
    if not kept and not story.sources:
        conclusion = f"None of the logs of job {job.id} could be read: {'; '.join(problems)}."
        to_do = tuple(dict.fromkeys((*incident.to_do, _ON_A_NODE_ALONE)))
        return StepResult(Outcome.UNREADABLE, replace(incident, conclusion=conclusion, to_do=to_do), conclusion)
    if job.state.job_class is JobClass.SUCCEEDED and story.root_cause is not None:
        problems.append(
            f"Slurm calls job {job.id} {job.state.name}: that is how the last command of its script ended, and a pipe "
            "without `set -o pipefail` ends as its last part does"
        )
    outcome, summary = _judge(story, job)
    if outcome is Outcome.NO_ERROR_FOUND and job.steps_to_come:
        # By the time of day, as it is stored: one that was set back meanwhile prolongs nothing.
        if abs(_watched_s(context, incident)) < STEPS_TOLD_WITHIN_S:
            return StepResult(Outcome.WAITING, incident, f"{summary}; accounting has yet to tell of its steps", 2.0)
        problems.append(
            f"accounting did not tell of the steps of job {job.id} within {STEPS_TOLD_WITHIN_S:.0f} s: files that "
            "srun's --output names were not read"
        )
    failed = outcome in (Outcome.MEMORY_ERROR, Outcome.GPU_FAULT)
    ranks = see_ranks(context.ports.nodes, job) if failed and _is_a_guess(job, incident) else None
    failure = replace(
        context.failure, story=story, no_step_since_s=_no_step_since_s(context, story),
        whole_ranks=_whole_ranks(context.failure.whole_ranks, ranks),
    )
    incident = with_notes(replace(incident, failure=failure), *problems)
    if incident.original is not None and incident.original.job.id == job.id:
        incident = replace(incident, original=incident.failure)
    if ranks is not None:
        if _has_ended(context, job):
            return StepResult(Outcome.ENDED, incident, f"job {job.id} ran, and has ended meanwhile")
        undecided = (
            _has_done_its_steps(job, story, incident) or _may_be_at_a_step(context, job, story, incident)
            or _all_ranks_may_live(context, job, incident, ranks) or _may_have_ended_well(context, job, story, incident)
        )
        if undecided is not None:
            return undecided
    if failed and _may_have_completed(job, story, incident):
        failed = False
        shows = f"job {job.id} completed, and its log shows {summary}; but "
        if story.process_ended:
            outcome, summary = Outcome.UNREADABLE, f"{shows}{_all_counted(story)}, and a person decides"
        else:
            outcome, summary = Outcome.HEALTHY, (
                f"{shows}no line tells that a process ended with an error. If it failed: `runbook oom --job {job.id}`"
            )
    if outcome is Outcome.UNREADABLE:
        conclusion = summary[:1].upper() + summary[1:] + "."
        return StepResult(outcome, replace(incident, conclusion=conclusion), summary)
    if not failed and job.state.job_class.ended:
        less, _ = _keep(context, job, _KEPT_OF_OTHERS_BYTES)
        incident = replace(incident, evidence_files=tuple(dict.fromkeys((*incident.evidence_files, *less))))
    if incident.attempts and outcome not in (Outcome.MEMORY_ERROR, Outcome.GPU_FAULT):
        conclusion = f"The relaunched job {job.id} ended without a memory error that the logs show: {summary}."
        return StepResult(Outcome.RELAUNCH_FAILED_OTHERWISE, replace(incident, conclusion=conclusion), summary)
    if outcome in (Outcome.OTHER_ERROR, Outcome.HEALTHY, Outcome.NO_ERROR_FOUND):
        incident = replace(incident, state=IncidentState.CLOSED, conclusion=sentence(summary))
    return StepResult(outcome, incident, summary)


def read_story(context: StepContext, job: JobRecord) -> LogStory:
    """Read every log of a job with its owner's rights. A log that cannot be opened is left out."""
    marks = {
        mark.path: mark for attempt in context.incident.attempts if attempt.job == job.id for mark in attempt.log_marks
    }
    with ExitStack() as stack:
        sources = []
        for path, opened in _opened(context, job.log_paths, job.owner):
            stream = after_mark(stack.enter_context(opened), marks.get(path))
            sources.append((path, stream, _size(stream)))
        reader = LogReader(context.playbook.signatures)
        return on_own_nodes(reader.read(sources, job=job, in_order=context.ports.in_order), job)


def _as_evidence(job: JobRecord) -> JobRecord:
    """The record as the logs are judged by. A job that Slurm calls COMPLETED had a last command that ended well: behind
    `srun … | tee` that is tee, so that nothing is known of the ranks."""
    if job.state.job_class is not JobClass.SUCCEEDED:
        return job
    return replace(job, state=JobState(job.state.name, JobClass.UNKNOWN))


def on_own_nodes(story: LogStory, job: JobRecord) -> LogStory:
    """The story with its first failure on a node of the job, or on none that is known: any line can name any host."""
    cause = story.root_cause
    if cause is None or cause.node is None or not job.nodes:
        return story
    own = job.own_node(cause.node)
    if own is not None:
        return replace(story, root_cause=replace(cause, node=own))
    note = Say.PLACED_ON_NO_NODE_OF_THE_JOB(node=cause.node[:80], job=job.id)
    return replace(story, root_cause=replace(cause, node=None, node_device=None), notes=(*story.notes, note))


def describe(finding: Finding) -> str:
    """ "rank 3 on gpu-22 (GPU 3), step 61": who a finding is about, as far as it is known."""
    rank = f"rank {finding.rank}" if finding.rank is not None else "a rank that the log does not name"
    node = f" on {finding.node}" if finding.node else " on an unknown node"
    device = f" (GPU {finding.device} of the process)" if finding.device is not None else ""
    step = f", step {finding.step}" if finding.step is not None else ""
    return f"{rank}{node}{device}{step}"


def _judge(story: LogStory, job: JobRecord) -> tuple[Outcome, str]:
    cause = story.root_cause
    if cause is None:
        killed = [step.id for step in job.steps if step.state.name == "OUT_OF_MEMORY"]
        if killed or job.state.name == "OUT_OF_MEMORY":
            return Outcome.MEMORY_ERROR, f"the host ran out of memory, by Slurm's word ({', '.join(killed) or job.id})"
        cut = [f"{source.path}: {source.note}" for source in story.sources if source.cut]
        if cut:
            return Outcome.UNREADABLE, f"what job {job.id} died of is not known, as not all was read ({'; '.join(cut)})"
        followed = story.collateral[0] if story.collateral else None
        if not job.state.job_class.ended and followed is not None:
            # A task that has ended with a code died of something: that no log that is known says it, is no health.
            return Outcome.UNREADABLE, (
                f"job {job.id} is {job.state.name}, and {_who(followed)} {in_words(followed.why)}; what it died of "
                "stands in no log that was read"
            )
        if not job.state.job_class.ended:
            return Outcome.HEALTHY, f"job {job.id} is {job.state.name} and its logs show no failure"
        if job.state.job_class is JobClass.SUCCEEDED:
            return Outcome.NO_ERROR_FOUND, f"job {job.id} completed, and its logs show no failure"
        if not any(source.size_bytes for source in story.sources):
            return Outcome.NO_ERROR_FOUND, f"the logs of job {job.id} are empty: what it died of is not known"
        return Outcome.NO_ERROR_FOUND, f"the logs of job {job.id} show no memory error"
    completed = job.state.job_class is JobClass.SUCCEEDED
    shown = _shows_an_end(story, cause, job) and not (completed and cause.quoted)
    if (completed or not job.state.job_class.ended) and not shown:
        return Outcome.HEALTHY, (
            f"job {job.id} is {job.state.name}; its log mentions {cause.signature}, but nothing shows that a process "
            "ended, and a mention is no reason to cancel it"
        )
    if cause.means.entry.died.of_memory:
        return Outcome.MEMORY_ERROR, f"{describe(cause)}: {cause.signature}"
    if cause.means.entry.died is Died.GPU:
        return Outcome.GPU_FAULT, f"{describe(cause)}: a GPU error ({cause.signature})"
    if not job.state.job_class.ended:
        return Outcome.HEALTHY, f"job {job.id} is {job.state.name}; its log shows {cause.signature}, no memory error"
    return Outcome.OTHER_ERROR, f"job {job.id} did not die of memory: {cause.signature} at {describe(cause)}"


def _who(follower: Collateral) -> str:
    rank = "a task" if follower.rank is None else f"task {follower.rank}"
    return f"{rank} on {follower.node}" if follower.node else rank


def _shows_an_end(story: LogStory, cause: Finding, job: JobRecord) -> bool:
    """Whether more than words in its text says that a process of a running job failed: a traceback, a rank that says
    it, others that follow, or Slurm's word on a step. Generated text and data sets quote errors of every kind."""
    return bool(
        cause.frames or 'File "' in cause.excerpt or cause.rank is not None
        or story.collateral or any(step.state.job_class is JobClass.FAILED for step in job.steps)
    )


def _is_a_guess(job: JobRecord, incident: Incident) -> bool:
    """Whether the job runs, and only an alert or the watch says that it is in trouble."""
    return incident.trigger in GUESSES and not incident.attempts and not job.state.job_class.ended


def _no_step_since_s(context: StepContext, story: LogStory) -> float | None:
    """Since when this job's logs show no further step, as far as this visit of the box saw: what it writes besides (a
    heartbeat, a bar of its loader, a watchdog's word) is no step."""
    now_s, before = context.ports.clock.now(), context.failure
    if before.story is None or before.no_step_since_s is None:
        return now_s
    return before.no_step_since_s if _steps(before.story) == _steps(story) else now_s


def _steps(story: LogStory) -> tuple[object, ...]:
    progress = story.progress
    return progress.last_step, progress.last_step_by_rank, progress.saved_steps


def _has_done_its_steps(job: JobRecord, story: LogStory, incident: Incident) -> StepResult | None:
    """Close where all of the job's steps are behind it and no line tells of an end with an error: its ranks end one
    after the other then, and the last may be at work on a model for long."""
    if not _at_its_last_step(story) or _told_of_an_end(job, story):
        return None
    summary = (
        f"job {job.id} is {job.state.name} and has completed all of its {story.progress.total_steps} steps: that ranks "
        "of it end, is what is to be expected"
    )
    closed = replace(incident, state=IncidentState.CLOSED, conclusion=sentence(summary))
    return StepResult(Outcome.HEALTHY, closed, summary)


def _told_of_an_end(job: JobRecord, story: LogStory) -> bool:
    """Whether a launcher or Slurm says that a process ended with an error."""
    return story.process_ended or any(step.state.job_class is JobClass.FAILED for step in job.steps)


def _at_its_last_step(story: LogStory) -> bool:
    """By the last total that was shown, which may be an epoch's: there is one for each, or one for all."""
    progress, total = story.progress, story.progress.total_steps
    last = progress.last_step
    return total is not None and last is not None and last >= total - 1 + progress.numbered_from


def _may_have_completed(job: JobRecord, story: LogStory, incident: Incident) -> bool:
    """Of a job that Slurm calls COMPLETED, which nobody but its log says to have failed."""
    told = job.state.job_class is JobClass.SUCCEEDED and incident.trigger == "epilog" and not job.derived_exit_code
    return told and (_at_its_last_step(story) or not story.process_ended)


def _all_counted(story: LogStory) -> str:
    total = story.progress.total_steps
    return f"it has counted {total} of {total} steps: whether those are all or an epoch's is not known"


def _may_be_at_a_step(context: StepContext, job: JobRecord, story: LogStory, incident: Incident) -> StepResult | None:
    """Wait while the job may be between two steps. A program that catches an error prints it and goes on, and its next
    line comes with its next step."""
    step_s = story.progress.step_duration_s
    if step_s is None and incident.trigger == "alert":
        return None
    stood_s = _stood_s(context, job, incident)
    wanted_s = context.settings.watch.unknown_step_s if step_s is None else _STEPS_WAITED * step_s
    if stood_s is None or stood_s >= wanted_s:
        return None
    pace = "how long a step takes is not known" if step_s is None else f"a step takes {step_s:.0f} s"
    shows = f"job {job.id} is {job.state.name}; its log shows an error, but {pace} and "
    if _watched_s(context, incident) > _LONGEST_WAIT_S:
        summary = f"{shows}steps were completed again and again since: it goes on, and is not cancelled on such a word"
        closed = replace(incident, state=IncidentState.CLOSED, conclusion=sentence(summary))
        return StepResult(Outcome.HEALTHY, closed, summary)
    summary = f"{shows}no step was completed for {stood_s:.0f} s: waiting until that is {wanted_s:.0f} s"
    return StepResult(Outcome.WAITING, incident, summary, max(wanted_s - stood_s, 1.0))


def _stood_s(context: StepContext, job: JobRecord, incident: Incident) -> float | None:
    """How long no step was completed for: it was silent so long, or was seen to write other lines alone. None where
    its logs cannot be looked at."""
    now_s = context.ports.clock.now()
    quiet_s = silent_s(context.ports.files, job, now_s)
    since_s = incident.failure.no_step_since_s if incident.failure is not None else None
    return None if quiet_s is None else max(quiet_s, 0.0 if since_s is None else now_s - since_s)


def _whole_ranks(before: int | None, seen: RanksSeen | Unknown | None) -> int | None:
    return seen.world if isinstance(seen, RanksSeen) and not seen.missing else before


def _all_ranks_may_live(
    context: StepContext, job: JobRecord, incident: Incident, seen: RanksSeen | Unknown
) -> StepResult | None:
    """Wait while each of the job's ranks has a process: a log is its owner's text, and the words of a failure with a
    silence behind them stand in healthy ones. Where it cannot be known whether one that lived is gone, a person
    decides. The watch tells only of jobs of which it knows that all ranks were alive."""
    failure = incident.failure
    missing = isinstance(seen, RanksSeen) and bool(seen.missing)
    lived = incident.trigger == "watch" or (
        isinstance(seen, RanksSeen) and failure is not None and seen.gone_of(failure.whole_ranks)
    )
    if missing and lived:
        return None
    if isinstance(seen, Unknown) or missing:
        why = seen.unknown if isinstance(seen, Unknown) else (
            f"{len(seen.missing)} of {seen.world} show no process, and were not seen alive before"
        )
        summary = (
            f"job {job.id} is {job.state.name} and its log shows a memory failure, but whether a rank of it is gone is "
            f"not known ({why}): it is not cancelled on the log's word"
        )
        return StepResult(Outcome.UNREADABLE, replace(incident, conclusion=sentence(summary)), summary)
    shows = f"job {job.id} is {job.state.name}; its log shows an error, but all of its {seen.world} ranks are there"
    if _watched_s(context, incident) > _LONGEST_WAIT_S:
        summary = f"{shows}: it was caught, or they are at work on something else"
        closed = replace(incident, state=IncidentState.CLOSED, conclusion=sentence(summary))
        return StepResult(Outcome.HEALTHY, closed, summary)
    return StepResult(Outcome.WAITING, incident, f"{shows}: looking again", _LOOK_AGAIN_S)


def _may_have_ended_well(
    context: StepContext, job: JobRecord, story: LogStory, incident: Incident
) -> StepResult | None:
    """Ranks that share out work without waiting for each other end one by one, and nothing is wrong. So a line has to
    tell that a process ended badly (a launcher's, Slurm's), and what goes on writing has to count its steps; or a
    person decides after a while."""
    if _at_its_last_step(story):  # and a line tells of an end with an error: `_has_done_its_steps`
        summary = (
            f"job {job.id} is {job.state.name}; its log shows a memory failure and a rank of it is gone, but "
            f"{_all_counted(story)}, and a person decides"
        )
        return StepResult(Outcome.UNREADABLE, replace(incident, conclusion=sentence(summary)), summary)
    patience_s = context.settings.watch.unknown_step_s
    stood_s = _stood_s(context, job, incident)
    if stood_s is None:
        return None
    told = _told_of_an_end(job, story)
    quiet_s = silent_s(context.ports.files, job, context.ports.clock.now())
    counted = story.progress.last_step is not None or incident.trigger == "alert"  # which was silent for `quiet_s`
    if told and (counted or quiet_s is None or quiet_s >= patience_s):
        return None
    but = "it goes on writing what counts no steps" if told else "no line tells that a process ended with an error"
    shows = f"job {job.id} is {job.state.name}; its log shows a memory failure and a rank of it is gone, but {but}"
    if stood_s < patience_s:
        wait_s = min(max(patience_s - stood_s, 1.0), _LOOK_AGAIN_S)
        return StepResult(Outcome.WAITING, incident, f"{shows}: looking again", wait_s)
    summary = f"{shows}: it may be at work, and a person decides"
    return StepResult(Outcome.UNREADABLE, replace(incident, conclusion=sentence(summary)), summary)


def _watched_s(context: StepContext, incident: Incident) -> float:
    return context.ports.clock.now() - (incident.visits[-1].started_s if incident.visits else incident.opened_s)


def _told_anew(context: StepContext, job: JobRecord) -> JobRecord:
    try:
        now = context.ports.scheduler.job(job.id).knowing(job)
    except NotFound:
        return job
    return now if (now.restarts, now.start_time_s) == (job.restarts, job.start_time_s) else job


def _with_job(incident: Incident, job: JobRecord) -> Incident:
    assert incident.failure is not None
    is_first = incident.original is not None and incident.original.job.id == job.id
    failure = replace(incident.failure, job=job)
    return replace(incident, failure=failure, original=failure if is_first else incident.original)


def _has_ended(context: StepContext, job: JobRecord) -> bool:
    try:
        return context.ports.scheduler.job(job.id).state.job_class.ended
    except NotFound:
        return True


def _keep(context: StepContext, job: JobRecord, limit_bytes: int) -> tuple[list[str], list[str]]:
    """Copies of the logs in the incident's folder, and what could not be kept. A requeue truncates logs."""
    kept: list[str] = []
    problems: list[str] = []
    absent, more = 0, frozenset(job.more_log_paths)
    left_bytes, too_many = KEPT_IN_ALL_BYTES, 0
    incident: Incident = context.incident
    for number, path in enumerate(job.log_paths):
        name = f"evidence/{job.id}-{number}-{name_within(posixpath.basename(path), 100)}"
        most = min(limit_bytes, left_bytes)
        if most < _LEAST_KEPT_BYTES:
            too_many += 1
            continue
        try:
            with context.ports.files.open(path, job.owner) as stream:
                left_bytes -= min(_size(stream), most)
                _, shortened = context.ports.folder.copy_stream(incident.id, name, stream, most)
        except (NotFound, NotAllowed) as error:
            if isinstance(error, NotFound) and path in more:
                absent += 1
            else:
                problems.append(f"{path}: {error.what}")
            continue
        kept.append(name)
        if shortened:
            problems.append(f"{path}: only its first and last part were kept ({most / (1 << 20):.3g} MiB in all)")
    if too_many:
        problems.append(
            f"{too_many} of the {len(job.log_paths)} logs were read and not kept: an incident keeps at most "
            f"{KEPT_IN_ALL_BYTES >> 20} MiB of them"
        )
    if absent:
        problems.append(f"{absent} of the {len(more)} files that its steps' tasks were told to write to are not there")
    return kept, problems


def _opened(context: StepContext, paths: tuple[str, ...], owner: UserName) -> list[tuple[str, BinaryIO]]:
    opened: list[tuple[str, BinaryIO]] = []
    for path in paths:
        try:
            opened.append((path, context.ports.files.open(path, owner)))
        except RunbookError:
            continue
    return opened


def _size(stream: BinaryIO) -> int:
    end = stream.seek(0, 2)
    stream.seek(0)
    return end
