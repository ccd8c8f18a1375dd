"""Failures that the job survived: caught and retried, quoted in a warning, or followed by more steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbook.logs.collect import TEARDOWN_CODES, LogMatch
from runbook.logs.root_cause.evidence import LogEvidence
from runbook.logs.signatures import AT_START, CONSEQUENCE
from runbook.model.job import JobClass

STEPS_ON = 2
"""Ranks run at most about a step apart, so this many steps further the failing rank must have taken part."""


def said_mildly(seen: LogMatch) -> bool:
    """Whether the line itself is a warning or information: it quotes a failure and does not end a process."""
    return not seen.raised and seen.log_line.mild


def was_handled(seen: LogMatch, last: Mapping[tuple[object, ...], int], evidence: LogEvidence) -> bool:
    """Whether the job went on: it ended well, steps went on behind the failure, or the lines themselves say so.

    `last` is of `last_failures`. What may be a quotation counts as handled here; `died_with` takes it up again."""
    if seen.quoted:
        return True
    if seen.match.signature.late:
        return evidence.succeeded
    if evidence.succeeded:
        return True
    before = evidence.collection.progress.step_before(seen.file, seen.offset)
    after = evidence.steps_behind(seen)
    if seen.time_exact and seen.file in evidence.collection.clocks.files:
        after = set()  # stamps decide, whatever the order of lines
    if before is None and len(after) >= STEPS_ON:
        return True
    if before is not None and any(step >= before + STEPS_ON for step in after):
        return True
    if stamped_on(seen, evidence):
        return True
    if seen.raised:
        return bool(seen.remark) and last.get(_process(seen), seen.offset) > seen.offset
    return bool(seen.remark) or said_mildly(seen)


def stamped_on(seen: LogMatch, evidence: LogEvidence) -> bool:
    """Whether steps carry later stamps than the failure itself, so that they cannot have waited in a buffer."""
    if not seen.time_exact or seen.time_s is None or seen.attempt != evidence.last_attempt:
        return False
    return evidence.collection.clocks.steps_after(seen.time_s) >= STEPS_ON


def started_again(seen: LogMatch, evidence: LogEvidence) -> bool:
    """Whether steps behind the failure begin again at an earlier one: a restart, not output that waited in a buffer."""
    before = evidence.collection.progress.step_before(seen.file, seen.offset)
    after = evidence.steps_behind(seen)
    return before is not None and bool(after) and min(after) <= before


def last_failures(failures: Sequence[LogMatch]) -> dict[tuple[object, ...], int]:
    """Where each process failed last, other than in handling a failure that it had printed."""
    found: dict[tuple[object, ...], int] = {}
    for one in failures:
        if not one.chained:
            found[_process(one)] = max(one.offset, found.get(_process(one), one.offset))
    return found


def _process(seen: LogMatch) -> tuple[object, ...]:
    return (seen.file, seen.attempt, seen.log_line.speaker, seen.log_line.pid)


def died_with(handled_ones: Sequence[LogMatch], evidence: LogEvidence) -> tuple[list[LogMatch], str]:
    """Of failures that look handled, those that ended the job after all, and why; asked where nothing else explains it.

    A process that buffers its output prints steps behind a traceback that came later; and a program may quote the
    failure in a warning and exit."""
    if not ended_badly(evidence):
        return [], ""
    buffered = [
        one for one in handled_ones
        if one.raised and not one.quoted and not one.remark and not killed_later(one, evidence)
        and not stamped_on(one, evidence) and not started_again(one, evidence)
    ]
    if buffered:
        return buffered, (
            "Steps stand behind the failure in the log, as they do when a process buffers its output; the job ended "
            "badly and nothing else explains it, so the failure counts."
        )
    quoted = [
        one for one in handled_ones
        if ((said_mildly(one) and not one.remark) or one.quoted) and confirmed(one, evidence)
        and not evidence.steps_behind(one)
    ]
    if quoted:
        return quoted, "The failure is only quoted in a warning, but its process ended with an error code after it."
    return [], ""


def perhaps_quoted(handled_ones: Sequence[LogMatch], evidence: LogEvidence) -> tuple[list[LogMatch], str]:
    """Words inside a sentence that may quote them, as all that explains why a job ended; never of one that runs."""
    job = evidence.job
    if job is not None and job.state.job_class not in (JobClass.FAILED, JobClass.UNKNOWN):
        return [], ""
    found = [
        one for one in handled_ones
        if one.quoted and not one.remark and one.attempt == evidence.last_attempt
        and not evidence.steps_behind(one)
    ]
    return found, "The only words on a failure stand inside a sentence, which may quote them." if found else ""


def confirmed(one: LogMatch, evidence: LogEvidence) -> bool:
    """Whether the process that said it ended with an error code of its own; says nothing of the kernel's or Slurm's
    words, which are no process's of the job."""
    return one.match.signature.stands != AT_START and _ended_by_itself(one, evidence)


def ended_badly(evidence: LogEvidence) -> bool:
    """Whether the job is known to have failed: by Slurm's state, or by processes that ended after a failure."""
    job = evidence.job
    if job is not None and job.state.job_class is not JobClass.UNKNOWN:
        return job.state.job_class is JobClass.FAILED
    return any(one.means == CONSEQUENCE for one in evidence.matches)


def killed_later(one: LogMatch, evidence: LogEvidence) -> bool:
    """Whether the process is known to have ended by a signal, so not by the exception that it printed."""
    where = evidence.where
    rank = where.rank(one)
    if rank is None:
        return False
    row = where.row(rank)
    if row is not None:
        return row.exit_code == -9
    return any(
        other.match.text("signal") == "Killed" and rank in other.match.numbers("tasks") and where.tasks_are_ranks
        for other in evidence.matches
    )


def _ended_by_itself(one: LogMatch, evidence: LogEvidence) -> bool:
    where = evidence.where
    rank = where.rank(one)
    row = where.row(rank)
    if row is not None:
        return row.exit_code not in TEARDOWN_CODES
    codes = [
        other.match.integer("exit_code") for other in evidence.matches
        if where.rank(other) == rank or (where.tasks_are_ranks and rank in other.match.numbers("tasks"))
    ]
    return any(code is not None and code not in TEARDOWN_CODES for code in codes)
