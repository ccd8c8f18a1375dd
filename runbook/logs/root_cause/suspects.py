"""Processes that died by SIGKILL, whom the host's OOM killer ended, and, where no line tells the first failure, which
ranks are worth looking at: said as a suspicion and never as a cause (R-22, R-24).

SIGKILL has many senders. Only Slurm's or the kernel's word makes it a shortage of host memory, and that word often
names no rank: the rank killed on the same node is the victim then, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from runbook.logs.collect import TEARDOWN_CODES, Collection, LogMatch, RankLocations, Row
from runbook.logs.root_cause.evidence import LogEvidence
from runbook.logs.signatures import CONSEQUENCE
from runbook.model.log import DerivedSignature, Event
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_logs import Say
from runbook.model.units import NodeName

_KILLED = (-9, 137)
_OF_AN_END = frozenset({Event.OWN_END, Event.PROCESS_EXIT, Event.TASK_END})
_OF_A_TEARDOWN = frozenset({"SIGTERM", "SIGKILL", "SIGHUP", "SIGINT", "Killed", "Terminated"})


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that died by SIGKILL before any launcher had begun to end it."""

    rank: int | None
    node: NodeName | None
    pid: int | None
    time_s: float | None
    file: int
    offset: int
    line: int
    attempt: int = 0
    seen: LogMatch | None = None
    """The line that reports it."""


def kills(seen: Sequence[LogMatch], where: RankLocations) -> list[Kill]:
    """In order of time where all have one, else of place; one a rank."""
    closed = {one.match.integer("pid") for one in seen if Event.CLOSING in one.reports}
    found = [
        Kill(row.rank, row.node, row.pid, row.time_s, row.file, row.offset, row.line)
        for row in where.rows if row.exit_code in _KILLED and row.pid not in closed
    ]
    failed: dict[int, int] = {}
    for one in seen:
        code = one.match.integer("exit_code")
        if Event.PROCESS_EXIT in one.reports and "tasks" in one.match.values and code not in _KILLED:
            failed.setdefault(one.file, one.offset)
        pid = one.match.integer("pid")
        if not _is_kill(one) or pid in closed or failed.get(one.file, one.offset) < one.offset:
            continue
        ranks: Sequence[int | None] = (where.rank(one),)
        if one.match.numbers("tasks"):
            ranks = one.match.numbers("tasks") if where.tasks_are_ranks else (None,)
        for rank in ranks[:64]:
            node = place(one) or (where.nodes.get(rank) if rank is not None else None) or where.only_node
            found.append(Kill(rank, node, pid, one.time_s, one.file, one.offset, one.line, one.attempt, one))
    distinct: dict[object, Kill] = {}
    for kill in found:
        distinct.setdefault(kill.rank if kill.rank is not None else (kill.node, kill.pid), kill)
    ranked = {kill.node for kill in distinct.values() if kill.rank is not None}
    one_a_rank = [kill for kill in distinct.values() if kill.rank is not None or kill.node not in ranked]
    if all(kill.time_s is not None for kill in one_a_rank):
        return sorted(one_a_rank, key=lambda kill: (kill.time_s or 0.0, kill.file, kill.offset))
    return sorted(one_a_rank, key=lambda kill: (kill.file, kill.offset))


def _is_kill(seen: LogMatch) -> bool:
    if Event.SIGKILL in seen.reports or seen.match.text("signal") in ("Killed", "SIGKILL"):
        return True
    return seen.match.integer("exit_code") in _KILLED and Event.PROCESS_EXIT in seen.reports


def place(seen: LogMatch) -> NodeName | None:
    """The node that a line names, if it names one."""
    hosts = seen.match.text("hosts") or seen.match.text("node")
    if hosts and "[" not in hosts and "," not in hosts:
        return NodeName(hosts.partition(".")[0])
    return seen.log_line.node


@dataclass(frozen=True, slots=True)
class Victim:
    """Whom a report of the OOM killer is about, as far as it can be told."""

    rank: int | None
    node: NodeName | None
    pid: int | None
    note: Sentence


def victim(report: LogMatch, every: Sequence[Kill], where: RankLocations) -> Victim:
    """The rank that the host's OOM killer ended, for a report that names none."""
    rank = where.rank(report)
    tasks = report.match.numbers("tasks")
    note = NOTHING
    if rank is None and tasks and where.tasks_are_ranks:
        rank = tasks[0]
        if len(tasks) > 1:
            note = Say.TASKS_OUT_OF_MEMORY(tasks=tasks[:9], rank=rank)
    node = place(report) or (where.nodes.get(rank) if rank is not None else None) or where.only_node
    if rank is not None:
        return Victim(rank, node, None, note)
    same = [kill for kill in every if node is None or kill.node is None or _short(kill.node) == _short(node)]
    ranked = [kill for kill in same if kill.rank is not None]
    if not ranked:
        nodes = {kill.node for kill in same if kill.node is not None}
        node = node or (next(iter(nodes)) if len(nodes) == 1 else None)
        where_it_was = f" on {node}" if node else ""
        pid = report.match.integer("pid")
        names = Say.NAMES_PROCESS_OF_NO_RANK(pid=pid, where_it_was=where_it_was) if pid is not None else (
            Say.NAMES_NO_PROCESS(where_it_was=where_it_was)
        )
        return Victim(None, node, None, Say.OOM_KILLER_MAY_NAME_A_HELPER(names=names))
    first = ranked[0]
    place_word = _on(first.node)
    if len(ranked) == 1:
        note = Say.OOM_KILLER_NAMES_NO_RANK(rank=first.rank, place_word=place_word)
    else:
        others = ", ".join(str(kill.rank) for kill in ranked[1:9])
        note = Say.TIE_OF_KILLED_RANKS(rank=first.rank, others=others)
    return Victim(first.rank, first.node or node, first.pid, note)


def _short(name: NodeName) -> str:
    return name.partition(".")[0]


def killed_note(every: Sequence[Kill]) -> Sentence:
    """What is said where SIGKILL is all that the logs show."""
    first = every[0]
    who = f"Rank {first.rank}" if first.rank is not None else "A process"
    pid = f" (pid {first.pid})" if first.pid is not None else ""
    node = _on(first.node)
    more = Say.MORE_AFTER(more=len(every) - 1) if len(every) > 1 else ""
    return Say.FIRST_KILLED(who=who, pid=pid, node=node, more=more)


_NAMED = 8
_WORLD_LARGEST = 65_536
_STEPS_BEHIND = 2
_SECONDS_EARLIER = 30.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank to look at first. `signature` is a derived one: no line of a log stands behind it as such."""

    signature: DerivedSignature
    rank: int | None
    node: NodeName | None
    why: str
    file: int = 0
    offset: int = 0
    line: int = 0
    pid: int | None = None
    time_s: float | None = None


def suspects(evidence: LogEvidence, every: Sequence[Kill]) -> tuple[list[Suspect], list[Sentence]]:
    """The likeliest first, and a note for each reason."""
    seen, where, collection = evidence.matches, evidence.where, evidence.collection
    found: list[Suspect] = []
    notes: list[Sentence] = []
    for some, note in (
        _ended(evidence), _killed(_named(every, seen, where)), _watchdog(seen, where, collection),
        _stopped(where, collection),
    ):
        found += some
        notes += [note] if note else []
    found = found or _spoke_first(evidence)
    distinct: dict[object, Suspect] = {}
    for one in found:
        distinct.setdefault(one.rank if one.rank is not None else (one.node, one.pid), one)
    return list(distinct.values()), notes


def _lost_somebody(seen: LogMatch) -> bool:
    """Words of a rank that waited for another or lost it; an exception that is here only as a consequence is one."""
    return seen.hears_of_others or seen.unknown_exception


def _ended(evidence: LogEvidence) -> tuple[list[Suspect], Sentence]:
    """Workers that torchrun's tables say ended by themselves, without a word of their own in the logs. Each table is
    one node's view, so all of them are put together."""
    seen, where = evidence.matches, evidence.where
    hurt = {where.rank(one) for one in seen if _lost_somebody(one)}
    rows = [row for row in where.rows_of_ranks.values() if row.exit_code not in TEARDOWN_CODES and row.rank not in hurt]
    rows.sort(key=lambda row: (row.time_s or 0.0, row.rank))
    if not rows:
        return _reported(evidence, hurt) or _signalled(seen, where, hurt)
    first = rows[0]
    tied = [row.rank for row in rows[1:] if (row.time_s or 0.0) - (first.time_s or 0.0) <= 1.0]
    tie = Say.TIE_IN_WHOLE_SECONDS(s=_s(tied), list=_list(tied)) if tied else ""
    return [_of_row(row) for row in rows[:_NAMED]], (
        Say.RANK_ENDED_BY_ITSELF(rank=first.rank, on=_on(first.node), exit_code=first.exit_code, tie=tie)
    )


def _reported(evidence: LogEvidence, hurt: Set[int | None]) -> tuple[list[Suspect], Sentence] | None:
    """The one rank whose end launchers' own lines report, where no signal of a teardown explains it and no step stands
    behind it. Of several the order of the reports does not tell the first: who lost it may be reported before it."""
    where = evidence.where
    ended: dict[int, Suspect | None] = {}
    for one in evidence.matches:
        reported = one.means == CONSEQUENCE and one.reports & _OF_AN_END and not one.quoted
        if not reported or one.attempt != evidence.last_attempt or evidence.steps_behind(one):
            continue
        code, signal = one.match.integer("exit_code"), one.match.text("signal")
        if code in (0, -15, 143) or signal in _OF_A_TEARDOWN or not (one.reports & {Event.OWN_END} or code or signal):
            continue
        tasks = one.match.numbers("tasks") if where.tasks_are_ranks else ()
        named = tasks or [rank for rank in (where.rank(one),) if rank is not None]
        end = f"with exit code {code}" if code is not None else f"by a signal ({signal})" if signal else "with an error"
        for rank in named[:_NAMED]:
            ended.setdefault(rank, None if code in TEARDOWN_CODES else Suspect(
                DerivedSignature.RANK_ENDED, rank, place(one) or where.nodes.get(rank), f"ended by itself {end}",
                one.file, one.offset, one.line, one.match.integer("pid"), one.time_s,
            ))
    first = next(iter(ended.values())) if len(ended) == 1 else None
    if first is None or first.rank in hurt:
        return None
    return [first], Say.RANK_ENDED_BY_LAUNCHERS_WORD(rank=first.rank, on=_on(first.node), why=first.why)


def _signalled(seen: Sequence[LogMatch], where: RankLocations, hurt: Set[int | None]) -> tuple[list[Suspect], Sentence]:
    """A worker that ended by SIGABRT or SIGTERM although no launcher had begun to end it and it had lost nobody."""
    closed = {one.match.integer("pid") for one in seen if Event.CLOSING in one.reports}
    rows = [
        row for row in where.rows_of_ranks.values()
        if row.exit_code in (-6, -15, 134, 143) and row.pid not in closed and row.rank not in hurt
    ]
    rows.sort(key=lambda row: (row.time_s or 0.0, row.rank))
    if not rows or len(rows) * 2 > len(where.rows_of_ranks):
        return [], NOTHING
    first = rows[0]
    return [_of_row(row) for row in rows[:_NAMED]], (
        Say.RANK_ENDED_BY_SIGNAL(rank=first.rank, on=_on(first.node), exit_code=first.exit_code)
    )


def _named(every: Sequence[Kill], seen: Sequence[LogMatch], where: RankLocations) -> list[Kill]:
    """A kill without rank is that of the one rank that a launcher says ended, else of the one that lost nobody, where
    all others say that they lost somebody."""
    world = where.world_size
    lost = {where.rank(one) for one in seen if _lost_somebody(one)}
    if len(every) != 1 or every[0].rank is not None:
        return list(every)
    ended = {where.rank(one) for one in seen if Event.OWN_END in one.reports and one.means == CONSEQUENCE} - {None}
    if len(ended) == 1:
        return [replace(every[0], rank=next(iter(ended)))]
    if world is None or not 1 < world <= _WORLD_LARGEST:
        return list(every)
    left = [rank for rank in range(world) if rank not in lost]
    return [replace(every[0], rank=left[0])] if len(left) == 1 else list(every)


def _of_row(row: Row) -> Suspect:
    return Suspect(
        DerivedSignature.RANK_ENDED, row.rank, row.node, f"ended by itself with exit code {row.exit_code}",
        row.file, row.offset, row.line, row.pid, row.time_s
    )


def _killed(every: Sequence[Kill]) -> tuple[list[Suspect], Sentence]:
    if not every:
        return [], NOTHING
    return [
        Suspect(
            DerivedSignature.RANK_KILLED, one.rank, one.node, "died by SIGKILL", one.file, one.offset, one.line,
            one.pid, one.time_s
        ) for one in every[:_NAMED]
    ], killed_note(every)


def _watchdog(seen: Sequence[LogMatch], where: RankLocations, collection: Collection) -> tuple[list[Suspect], Sentence]:
    """Ranks that waited print a timeout; the one they waited for prints none, or has queued less work (NCCL-06)."""
    timed: dict[int, int | None] = {}
    example: LogMatch | None = None
    for one in seen:
        rank = where.rank(one)
        if Event.WATCHDOG in one.reports and rank is not None and one.attempt == collection.last_attempt:
            example = example or one
            enqueued = one.match.integer("enqueued")
            timed[rank] = enqueued if enqueued is not None else timed.get(rank)
    if example is None:
        return [], NOTHING
    known = {rank: work for rank, work in timed.items() if work is not None}
    most = max(known.values(), default=0)
    behind = sorted(rank for rank, work in known.items() if work < most)
    world = where.world_size
    ranks = range(world) if world is not None and world <= _WORLD_LARGEST else sorted(collection.tables.ranks_seen)
    silent = [rank for rank in ranks if rank not in timed]
    if len(silent) > max(1, len(ranks) // 4):
        silent = []  # most ranks are silent: their output is elsewhere, and that says nothing
    if silent:
        return _at(DerivedSignature.RANK_SILENT, silent, "printed no watchdog timeout", example, where), (
            Say.ONLY_TIMEOUTS_AND_SILENT_RANKS(s=_s(silent), list=_list(silent), are="are" if len(silent) > 1 else "is")
        )
    if behind and len(behind) <= max(1, len(known) // 4):
        return _at(DerivedSignature.RANK_BEHIND, behind, "queued less work than the others", example, where), (
            Say.ONLY_TIMEOUTS_AND_RANKS_BEHIND(
                s=_s(behind), list=_list(behind), behind=min(known[rank] for rank in behind), most=most,
                are="are" if len(behind) > 1 else "is"
            )
        )
    return [], Say.ONLY_TIMEOUTS(timed=len(timed), s=_s(timed))


def _spoke_first(evidence: LogEvidence) -> list[Suspect]:
    """The rank that torchrun saw end first, else the only one that says itself that it broke off, else the only one
    that says another reason than its patience, else the one that said so a good while before the others: those within
    a second of each other wait for the same rank."""
    where = evidence.where
    spoke, why = dict[int, LogMatch](), "its end is the first that is told"
    for one in evidence.matches:
        rank = where.rank(one)
        own = one.means == CONSEQUENCE and one.hears_of_others and not one.quoted
        if own and rank is not None and one.attempt == evidence.last_attempt and not evidence.steps_behind(one):
            spoke.setdefault(rank, one)
    rows = [row for row in where.rows if row.exit_code not in (0, -15, 143)]
    if rows:
        seen_first = min(row.time_s or 0.0 for row in rows)
        # Of a table's rows, torchrun prints the one that it saw first at the end.
        row = max((row for row in rows if (row.time_s or 0.0) == seen_first), key=lambda row: (-row.file, row.offset))
        return [Suspect(
            DerivedSignature.RANK_SPOKE, row.rank, row.node, why, row.file, row.offset, row.line, row.pid,
            row.time_s,
        )]
    impatient = {rank for rank, one in spoke.items() if Event.WATCHDOG_TIMEOUT in one.reports}
    prompt = {rank: one for rank, one in spoke.items() if rank not in impatient}
    spoke = prompt if len(prompt) == 1 else spoke
    first = next(iter(spoke.items()), None)
    if first is None:
        return []
    rank, said = first
    stamps = [one.time_s for one in spoke.values()]
    alone = len(spoke) == 1 or (
        said.time_s is not None and all(
            stamp is not None and stamp - said.time_s >= _SECONDS_EARLIER for stamp in stamps[1:]
        )
    )
    if not alone:
        return []
    node = place(said) or where.nodes.get(rank)
    return [Suspect(
        DerivedSignature.RANK_SPOKE, rank, node, why, said.file, said.offset, said.line, said.log_line.pid,
        said.time_s,
    )]


def _at(
    signature: DerivedSignature, ranks: Sequence[int], why: str, example: LogMatch, where: RankLocations
) -> list[Suspect]:
    return [
        Suspect(signature, rank, where.nodes.get(rank), why, example.file, example.offset, example.line)
        for rank in ranks[:_NAMED]
    ]


def _stopped(where: RankLocations, collection: Collection) -> tuple[list[Suspect], Sentence]:
    """Ranks whose output stops before the others': steps where each rank prints them, else the files' last stamps."""
    steps = collection.progress.result(collection.last_attempt).last_step_by_rank
    if len(steps) >= 2:
        furthest = max(steps.values())
        late = sorted(rank for rank, step in steps.items() if step + _STEPS_BEHIND <= furthest)
        if late and len(late) <= max(1, len(steps) // 4):
            silent = DerivedSignature.RANK_SILENT
            return [Suspect(silent, rank, where.nodes.get(rank), "its steps stop earlier") for rank in late[:_NAMED]], (
                Say.STEPS_OF_RANKS_STOP(s=_s(late), list=_list(late), step=steps[late[0]], furthest=furthest)
            )
    ends = {
        end.rank: end for end in collection.clocks.ends.values() if end.rank is not None
    }
    if len(ends) < 2:
        return [], NOTHING
    ordered = sorted(ends.values(), key=lambda end: end.time_s)
    gap = ordered[1].time_s - ordered[0].time_s
    if gap < _SECONDS_EARLIER:
        return [], NOTHING
    first = ordered[0]
    node = first.node or where.nodes.get(first.rank or 0)
    silent = DerivedSignature.RANK_SILENT
    return [Suspect(silent, first.rank, node, "its output stops earlier", first.file, time_s=first.time_s)], (
        Say.OUTPUT_OF_RANK_STOPS(rank=first.rank, on=_on(node), gap=gap)
    )


def _on(node: NodeName | None) -> str:
    return f" on {node}" if node else ""


def _s(ranks: Sequence[int] | dict[int, int | None]) -> str:
    return "s" if len(ranks) > 1 else ""


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")
