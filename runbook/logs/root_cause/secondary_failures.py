"""Failures that another one brought about: raised while handling it, after a failed collective, in the teardown, or
the same message said twice. Each is taken out of the running with a reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.logs.collect import TEARDOWN_CODES, LogMatch, RankLocations
from runbook.logs.signatures import ABSURD_BYTES, CONSEQUENCE, HARMLESS
from runbook.model.diagnosis import Kind
from runbook.model.log import Event, Phase

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
    notes: tuple[str, ...] = ()


def secondary_failures(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> SecondaryFailures:
    """Take out what another failure brought about. Both are in the order of files and places."""
    dropped: dict[int, LogMatch] = {}
    causes: list[LogMatch] = []
    notes: list[str] = []
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
            f"{_who(one, where)}'s {one.match.signature.id} was raised while it handled "
            f"{_said(cause)}, which is the cause."
        )
    for one, word in [*_after_collective(failures, seen, where), *_in_teardown(failures, seen, where)]:
        if id(one) not in dropped:
            dropped[id(one)] = one
            notes.append(word)
    for one in _workers_words(failures, where):
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
        process = (one.file, one.attempt, one.log_line.speaker)
        before = previous.get(process)
        if id(one) in chained and before is not None and before.means != HARMLESS:
            found.append((one, before))
        previous[process] = one
    return found


def _after_collective(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> list[tuple[LogMatch, str]]:
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
            found.append((one, "The absurd size stands behind a failed collective and follows from it (NCCL-08)."))
        elif Event.ABORT in one.reports and lost.get((one.file, one.attempt), one.offset) < one.offset:
            found.append((one, "A process aborted after it, or another one here, had lost a peer; that came first."))
        elif (
            rank is not None and one.means == Kind.TRUE_OOM
            and by_rank.get((one.file, one.attempt, rank), one.offset) < one.offset
        ):
            found.append((one, f"{_who(one, where)} ran out of memory only after its own collective had timed out, so "
                               f"it was waiting for another rank."))
    return found


def garbage(seen: LogMatch) -> bool:
    """Whether the size that was asked for is none (R-13)."""
    return Event.GARBAGE_SIZE in seen.reports or (seen.match.integer("tried_bytes") or 0) >= ABSURD_BYTES


def _in_teardown(
    failures: Sequence[LogMatch], seen: Sequence[LogMatch], where: RankLocations
) -> list[tuple[LogMatch, str]]:
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
            found.append((one, f"{_who(one, where)} failed after rank {dead} had ended, while the launcher took it "
                               f"down; it is not the first."))
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
