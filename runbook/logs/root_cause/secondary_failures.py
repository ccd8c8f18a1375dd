"""Failures that are not the first: those that another one brought about (raised while handling it, after a failed
collective, in the teardown, said twice), and those that the job survived (caught and retried, quoted in a warning,
followed by more steps). Each is taken out of the running with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.logs.collect import TEARDOWN_CODES, LogMatch, RankLocations
from runbook.logs.root_cause.evidence import LogEvidence
from runbook.logs.signatures import ABSURD_BYTES, AT_START, CONSEQUENCE, HARMLESS
from runbook.model.diagnosis import Detail
from runbook.model.job import JobClass
from runbook.model.log import Event, MemoryFields, Phase
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_logs import Say

_EVERYDAY = re.compile(
    r"^(?:[\w.]{0,80}\.)?(?:KeyError|AttributeError|StopIteration|Empty|ImportError|ModuleNotFoundError"
    r"|NotImplementedError|FileNotFoundError)\b"
)
"""Exceptions that programs raise and catch as a matter of course: a cache without the key, an optional module."""


_INTERRUPTING = re.compile(r"\bDataLoader worker \(pid \d")
"""Said by a signal handler, which strikes the main thread wherever it is: what it interrupted is not its cause."""


@dataclass(frozen=True, slots=True)
class SecondaryFailures:
    """What is left, what was taken out, and what now counts although its signature alone is weak."""

    kept: tuple[LogMatch, ...]
    dropped: tuple[LogMatch, ...] = ()
    causes: tuple[LogMatch, ...] = ()
    notes: tuple[Sentence, ...] = ()


def secondary_failures(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> SecondaryFailures:
    """Take out what another failure brought about. Both are in the order of files and places."""
    dropped: dict[int, LogMatch] = {}
    causes: list[LogMatch] = []
    notes: list[Sentence] = []
    for one, cause in _chains(failures, seen):
        everyday = _EVERYDAY.match(cause.match.text("detail") or "") and one.phase is not Phase.CHECKPOINT
        if _INTERRUPTING.search(one.log_line.text):
            if cause.match.signature.weak:
                dropped[id(cause)] = cause
            continue
        if everyday and cause.match.signature.weak:
            dropped[id(cause)] = cause
            continue
        if cause.means not in (CONSEQUENCE, HARMLESS):
            if id(cause) in dropped:
                continue
            causes.append(cause)
        dropped[id(one)] = one
        notes.append(
            Say.RAISED_WHILE_HANDLING_CAUSE(who=_who(one, where), id=one.match.signature.id, said=_said(cause))
        )
    for one, word in [*_after_collective(failures, seen, where), *_in_teardown(failures, seen, where)]:
        if id(one) not in dropped:
            dropped[id(one)] = one
            notes.append(word)
    for one in (*_workers_words(failures, where), *_explained_below(failures)):
        dropped[id(one)] = one
    for one in _echoes([one for one in failures if id(one) not in dropped], where):
        dropped[id(one)] = one
    kept = [one for one in failures if id(one) not in dropped]
    return SecondaryFailures(tuple(kept), tuple(dropped.values()), tuple(causes), tuple(dict.fromkeys(notes))[:6])


def _chains(failures: Sequence[LogMatch], seen: Sequence[LogMatch]) -> list[tuple[LogMatch, LogMatch]]:
    """Each failure that was raised in handling another, with the one that the same process printed before it."""
    chained = {id(one) for one in failures if one.chained}
    previous: dict[tuple[object, ...], LogMatch] = {}
    found = []
    for one in seen:
        process = (one.file, one.attempt, one.log_line.speaker, one.log_line.rank)
        before = previous.get(process)
        if id(one) in chained and before is not None and before.means != HARMLESS:
            found.append((one, before))
        previous[process] = one
    return found


def _after_collective(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> list[tuple[LogMatch, Sentence]]:
    """Sizes that are garbage behind a failed collective (NCCL-08), aborts behind a lost peer, and shortages of a rank
    that had itself waited in a collective until the timeout: that rank was alive and waiting, so the one it waited for
    matters."""
    by_file: dict[int, int] = {}
    by_rank: dict[tuple[int, int, int], int] = {}
    lost: dict[tuple[int, int], int] = {}
    for one in seen:
        if one.means == CONSEQUENCE and one.hears_of_others:
            lost.setdefault((one.file, one.attempt), one.offset)
        if one.reports.isdisjoint((Event.COLLECTIVE_FAILED, Event.WATCHDOG)):
            continue
        by_file[one.file] = min(one.offset, by_file.get(one.file, one.offset))
        waiting = where.rank(one)
        if waiting is not None and Event.WATCHDOG in one.reports:
            key = (one.file, one.attempt, waiting)
            by_rank[key] = min(one.offset, by_rank.get(key, one.offset))
    found = []
    for one in failures:
        rank = where.rank(one)
        if garbage(one) and by_file.get(one.file, one.offset) < one.offset:
            found.append((one, Say.ABSURD_SIZE_AFTER_COLLECTIVE()))
        elif Event.ABORT in one.reports and lost.get((one.file, one.attempt), one.offset) < one.offset:
            found.append((one, Say.ABORTED_AFTER_LOST_PEER()))
        elif (
            rank is not None and one.means.entry.by_figures
            and by_rank.get((one.file, one.attempt, rank), one.offset) < one.offset
        ):
            found.append((one, Say.RAN_OUT_AFTER_ITS_TIMEOUT(who=_who(one, where))))
    return found


def garbage(seen: LogMatch) -> bool:
    """Whether the size that was asked for is none (R-13)."""
    return Event.GARBAGE_SIZE in seen.reports or (seen.match.integer("tried_bytes") or 0) >= ABSURD_BYTES


def _in_teardown(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> list[tuple[LogMatch, Sentence]]:
    """Failures of ranks that a launcher ended, printed behind the report of another rank's own death."""
    hurt = {where.rank(one) for one in seen if one.hears_of_others}
    deaths: dict[tuple[int, int], tuple[int, int]] = {}
    for one in seen:
        for ended_rank in _own_deaths(one, where):
            if ended_rank not in hurt:
                deaths.setdefault((one.file, one.attempt), (one.offset, ended_rank))
    if not deaths:
        return []
    ended = _ended_by_launcher(seen, where)
    found = []
    for one in failures:
        offset, dead = deaths.get((one.file, one.attempt), (one.offset, -1))
        rank = where.rank(one)
        if offset < one.offset and rank is not None and rank != dead and rank in ended:
            found.append((one, Say.FAILED_IN_TEARDOWN(who=_who(one, where), dead=dead)))
    return found


def _own_deaths(seen: LogMatch, where: RankLocations) -> Sequence[int]:
    """The ranks that a launcher's line says ended by themselves."""
    code = seen.match.integer("exit_code")
    by_itself = Event.PROCESS_EXIT in seen.reports and code is not None and code not in TEARDOWN_CODES
    if by_itself and "tasks" not in seen.match.values:
        rank = where.rank(seen)
        return () if rank is None else (rank,)
    if not where.tasks_are_ranks:
        return ()
    if by_itself:
        return seen.match.numbers("tasks")
    if seen.match.text("signal") in ("Segmentation fault", "Bus error", "Killed"):
        return seen.match.numbers("tasks")
    return ()


def _ended_by_launcher(seen: Sequence[LogMatch], where: RankLocations) -> set[int]:
    ended = {rank for rank, row in where.rows_of_ranks.items() if row.exit_code in (-15, 143)}
    if where.tasks_are_ranks:
        for one in seen:
            if one.match.text("signal") == "Terminated":
                ended.update(one.match.numbers("tasks"))
    return ended


def _workers_words(failures: Sequence[LogMatch], where: RankLocations) -> list[LogMatch]:
    """What a data loading worker says itself of the bus error that killed it, where the rank whose worker it was
    reports that death behind it: a worker has no rank, and both are one failure."""
    found: list[LogMatch] = []
    waiting: list[LogMatch] = []
    for one in failures:
        if Event.LOADER_BUS_ERROR not in one.reports:
            continue
        if one.match.integer("pid") is None and where.rank(one) is None:
            waiting.append(one)
        elif one.match.integer("pid") is not None and where.rank(one) is not None:
            found += [
                word for word in waiting
                if (word.file, word.attempt) == (one.file, one.attempt)
                and word.log_line.task in (None, one.log_line.task)
                and (word.log_line.node is None or one.log_line.node in (None, word.log_line.node))
            ]
            waiting = [word for word in waiting if word not in found]
    return found


def _explained_below(failures: Sequence[LogMatch]) -> list[LogMatch]:
    """Exceptions that tell little, where the same process says with figures below what was short: libraries in C++
    print the reason under the exception's class, and a program's own words repeat a message without its class."""
    found: list[LogMatch] = []
    latest: dict[tuple[object, ...], LogMatch] = {}
    for one in failures:
        before = latest.get(_process(one))
        latest[_process(one)] = one
        if before is None or one.offset - before.offset > _BELOW_BYTES or not one.means.entry.died.of_memory:
            continue
        own, tried = one.match.memory_fields(), before.match.memory_fields().tried_bytes
        signatures = (before.match.signature, one.match.signature)
        if own == MemoryFields() or signatures[0] is signatures[1] or any(each.late for each in signatures):
            continue
        bare = before.match.memory_fields() == MemoryFields() and not one.raised and not one.quoted
        wordless = before.match.signature.general or not any(one.isdigit() for one in before.log_line.text)
        again = wordless and tried is not None and tried == own.tried_bytes
        vague = before.unknown_exception or before.match.signature.confidence is not None
        first, second = (each.confidence for each in signatures)
        surer = not signatures[0].general or (first or 0.0) < (second or 1.0)
        if (bare and vague and not before.quoted) or (again and surer):
            found.append(before)
    return found


def _echoes(failures: Sequence[LogMatch], where: RankLocations) -> list[LogMatch]:
    """Copies of a message by somebody without rank (Ray's driver quotes its workers): same words, same figures."""
    speakers: dict[tuple[object, ...], set[tuple[int | None, int | None]]] = {}
    for one in failures:
        if where.rank(one) is not None:
            speakers.setdefault(_figures(one), set()).add((where.rank(one), one.log_line.pid))
    found = []
    for one in failures:
        if where.rank(one) is not None or len(_figures(one)) < 3:
            continue
        said, pid = speakers.setdefault(_figures(one), set()), one.log_line.pid
        if (pid is None and said) or (pid is not None and pid in {other for _, other in said}):
            found.append(one)
        elif pid is not None:
            said.add((None, pid))
    return found


def _figures(seen: LogMatch) -> tuple[object, ...]:
    fields = seen.match.memory_fields()
    if fields.allocated_bytes is None or fields.tried_bytes is None:
        return (seen.match.signature.id,)
    return (seen.match.signature.id, seen.attempt, fields)


def _who(seen: LogMatch, where: RankLocations) -> str:
    rank = where.rank(seen)
    return f"Rank {rank}" if rank is not None else "A process"


def _said(seen: LogMatch) -> str:
    detail = seen.match.text("detail") if seen.match.signature.weak else None
    return f"“{detail[:100]}”" if detail else f"{seen.match.signature.id} ({seen.match.signature.title})"


_BELOW_BYTES = 6144
STEPS_ON = 2
"""Ranks run at most about a step apart, so this many steps further the failing rank must have taken part."""


def said_mildly(seen: LogMatch) -> bool:
    """Whether the line itself is a warning or information: it quotes a failure and does not end a process. That
    whoever runs the job ends it is said so as a matter of course."""
    return not seen.raised and seen.log_line.mild and seen.match.signature.detail is not Detail.STOPPED


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
    return (seen.file, seen.attempt, seen.log_line.speaker, seen.log_line.rank, seen.log_line.pid)


def died_with(handled_ones: Sequence[LogMatch], evidence: LogEvidence) -> tuple[list[LogMatch], Sentence]:
    """Of failures that look handled, those that ended the job after all, and why; asked where nothing else explains it.

    A process that buffers its output prints steps behind a traceback that came later; and a program may quote the
    failure in a warning and exit."""
    if not ended_badly(evidence):
        return [], NOTHING
    buffered = [
        one for one in handled_ones
        if one.raised and not one.quoted and not one.remark and not killed_later(one, evidence)
        and not stamped_on(one, evidence) and not started_again(one, evidence)
    ]
    if buffered:
        return buffered, Say.STEPS_BEHIND_BY_BUFFER()
    quoted = [
        one for one in handled_ones
        if ((said_mildly(one) and not one.remark) or one.quoted) and confirmed(one, evidence)
        and not evidence.steps_behind(one)
    ]
    if quoted:
        return quoted, Say.QUOTED_AND_PROCESS_FAILED()
    return [], NOTHING


def perhaps_quoted(handled_ones: Sequence[LogMatch], evidence: LogEvidence) -> tuple[list[LogMatch], Sentence]:
    """Words inside a sentence that may quote them, as all that explains why a job ended; never of one that runs."""
    job = evidence.job
    if job is not None and job.state.job_class not in (JobClass.FAILED, JobClass.UNKNOWN):
        return [], NOTHING
    found = [
        one for one in handled_ones
        if one.quoted and not one.remark and one.attempt == evidence.last_attempt
        and not evidence.steps_behind(one)
    ]
    return found, Say.ONLY_WORDS_MAY_BE_QUOTED() if found else NOTHING


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
