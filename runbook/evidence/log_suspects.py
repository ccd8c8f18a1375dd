"""Where no line tells the first failure: which ranks are worth looking at, said as a suspicion and never as a cause."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from runbook.evidence.log_killed import Kill, killed_note
from runbook.evidence.log_places import TEARDOWN_CODES, Places
from runbook.evidence.log_reading import Reading
from runbook.evidence.log_seen import Row, Seen
from runbook.model.units import NodeName

SILENT = "RANK-SILENT"
BEHIND = "RANK-BEHIND"
ENDED = "RANK-ENDED"
KILLED = "RANK-KILLED"
_NAMED = 8
_WORLD_LARGEST = 65_536
_STEPS_BEHIND = 2
_SECONDS_EARLIER = 30.0
LOST = ("NCCL-", "FOLLOW-", "PY-EXC")
"""Words of a rank that waited for another or lost it; an exception that is here only as a consequence is one."""
_WATCHDOG = ("NCCL-05", "NCCL-06")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank to look at first. `signature` is one of the words above: no line of a log stands behind it as such."""

    signature: str
    rank: int | None
    node: NodeName | None
    why: str
    file: int = 0
    offset: int = 0
    line: int = 0
    pid: int | None = None
    time_s: float | None = None


def suspects(
    seen: Sequence[Seen], every: Sequence[Kill], where: Places, reading: Reading
) -> tuple[list[Suspect], list[str]]:
    """The likeliest first, and a note for each reason."""
    found: list[Suspect] = []
    notes: list[str] = []
    for some, note in (
        _ended(seen, where), _killed(_named(every, seen, where)), _watchdog(seen, where, reading),
        _stopped(where, reading),
    ):
        found += some
        notes += [note] if note else []
    distinct: dict[object, Suspect] = {}
    for one in found:
        distinct.setdefault(one.rank if one.rank is not None else (one.node, one.pid), one)
    return list(distinct.values()), notes


def _ended(seen: Sequence[Seen], where: Places) -> tuple[list[Suspect], str]:
    """Workers that torchrun's tables say ended by themselves, without a word of their own in the logs. Each table is
    one node's view, so all of them are put together."""
    hurt = {where.rank(one) for one in seen if one.match.signature.id.startswith(LOST)}
    rows = [row for row in where.rows_of_ranks.values() if row.exit_code not in TEARDOWN_CODES and row.rank not in hurt]
    rows.sort(key=lambda row: (row.time_s or 0.0, row.rank))
    if not rows:
        return _signalled(seen, where, hurt)
    first = rows[0]
    tied = [row.rank for row in rows[1:] if (row.time_s or 0.0) - (first.time_s or 0.0) <= 1.0]
    tie = f" A tie with rank{_s(tied)} {_list(tied)}: the tables give whole seconds." if tied else ""
    return [_of_row(row) for row in rows[:_NAMED]], (
        f"Rank {first.rank} on {first.node} ended by itself with exit code {first.exit_code} by torchrun's table, but "
        f"its own words are not in these logs.{tie}"
    )


def _signalled(seen: Sequence[Seen], where: Places, hurt: Set[int | None]) -> tuple[list[Suspect], str]:
    """A worker that ended by SIGABRT or SIGTERM although no launcher had begun to end it and it had lost nobody."""
    closed = {one.match.integer("pid") for one in seen if one.match.signature.id == "FR-TE-CLOSE"}
    rows = [
        row for row in where.rows_of_ranks.values()
        if row.exit_code in (-6, -15, 134, 143) and row.pid not in closed and row.rank not in hurt
    ]
    rows.sort(key=lambda row: (row.time_s or 0.0, row.rank))
    if not rows or len(rows) * 2 > len(where.rows_of_ranks):
        return [], ""
    first = rows[0]
    return [_of_row(row) for row in rows[:_NAMED]], (
        f"Rank {first.rank} on {first.node} ended by a signal ({first.exit_code}) that no line explains, and the "
        f"others lost it."
    )


def _named(every: Sequence[Kill], seen: Sequence[Seen], where: Places) -> list[Kill]:
    """A kill without rank is that of the one rank that lost nobody, where all others say that they lost somebody."""
    world = where.world_size
    lost = {where.rank(one) for one in seen if one.match.signature.id.startswith(LOST)}
    if len(every) != 1 or every[0].rank is not None or world is None or not 1 < world <= _WORLD_LARGEST:
        return list(every)
    left = [rank for rank in range(world) if rank not in lost]
    return [replace(every[0], rank=left[0])] if len(left) == 1 else list(every)


def _of_row(row: Row) -> Suspect:
    return Suspect(
        ENDED, row.rank, row.node, f"ended by itself with exit code {row.exit_code}", row.file, row.offset, row.line,
        row.pid, row.time_s,
    )


def _killed(every: Sequence[Kill]) -> tuple[list[Suspect], str]:
    if not every:
        return [], ""
    return [
        Suspect(KILLED, one.rank, one.node, "died by SIGKILL", one.file, one.offset, one.line, one.pid, one.time_s)
        for one in every[:_NAMED]
    ], killed_note(every)


def _watchdog(seen: Sequence[Seen], where: Places, reading: Reading) -> tuple[list[Suspect], str]:
    """Ranks that waited print a timeout; the one they waited for prints none, or has queued less work (NCCL-06)."""
    timed: dict[int, int | None] = {}
    example: Seen | None = None
    for one in seen:
        rank = where.rank(one)
        if one.match.signature.id in _WATCHDOG and rank is not None and one.attempt == reading.last_attempt:
            example = example or one
            enqueued = one.match.integer("enqueued")
            timed[rank] = enqueued if enqueued is not None else timed.get(rank)
    if example is None:
        return [], ""
    known = {rank: work for rank, work in timed.items() if work is not None}
    most = max(known.values(), default=0)
    behind = sorted(rank for rank, work in known.items() if work < most)
    world = where.world_size
    ranks = range(world) if world is not None and world <= _WORLD_LARGEST else sorted(reading.tables.ranks_seen)
    silent = [rank for rank in ranks if rank not in timed]
    if len(silent) > max(1, len(ranks) // 4):
        silent = []  # most ranks are silent: their output is elsewhere, and that says nothing
    if silent:
        return _at(SILENT, silent, "printed no watchdog timeout", example, where), (
            f"Only collective timeouts are in the logs. Rank{_s(silent)} {_list(silent)} printed none and "
            f"{'are' if len(silent) > 1 else 'is'} the first to look at: the others may have waited for it. A "
            f"suspicion, no proof."
        )
    if behind and len(behind) <= max(1, len(known) // 4):
        return _at(BEHIND, behind, "queued less work than the others", example, where), (
            f"Only collective timeouts are in the logs. Rank{_s(behind)} {_list(behind)} had queued fewer collectives "
            f"({min(known[rank] for rank in behind)} against {most}) and {'are' if len(behind) > 1 else 'is'} the "
            f"first to look at. A suspicion, no proof."
        )
    return [], (
        f"Only collective timeouts are in the logs: {len(timed)} rank{_s(timed)} waited, and nothing tells for whom."
    )


def _at(signature: str, ranks: Sequence[int], why: str, example: Seen, where: Places) -> list[Suspect]:
    return [
        Suspect(signature, rank, where.nodes.get(rank), why, example.file, example.offset, example.line)
        for rank in ranks[:_NAMED]
    ]


def _stopped(where: Places, reading: Reading) -> tuple[list[Suspect], str]:
    """Ranks whose output stops before the others': steps where each rank prints them, else the files' last stamps."""
    steps = reading.progress.result(reading.last_attempt).last_step_by_rank
    if len(steps) >= 2:
        furthest = max(steps.values())
        late = sorted(rank for rank, step in steps.items() if step + _STEPS_BEHIND <= furthest)
        if late and len(late) <= max(1, len(steps) // 4):
            return [Suspect(SILENT, rank, where.nodes.get(rank), "its steps stop earlier") for rank in late[:_NAMED]], (
                f"The steps of rank{_s(late)} {_list(late)} stop at {steps[late[0]]}, those of the others at "
                f"{furthest}."
            )
    ends = {
        end.rank: end for end in reading.clocks.ends.values() if end.rank is not None
    }
    if len(ends) < 2:
        return [], ""
    ordered = sorted(ends.values(), key=lambda end: end.time_s)
    gap = ordered[1].time_s - ordered[0].time_s
    if gap < _SECONDS_EARLIER:
        return [], ""
    first = ordered[0]
    node = first.node or where.nodes.get(first.rank or 0)
    return [Suspect(SILENT, first.rank, node, "its output stops earlier", first.file, time_s=first.time_s)], (
        f"The output of rank {first.rank}{f' on {node}' if node else ''} stops {gap:.0f} s before that of any other "
        f"rank."
    )


def _s(ranks: Sequence[int] | dict[int, int | None]) -> str:
    return "s" if len(ranks) > 1 else ""


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")
