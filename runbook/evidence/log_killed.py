"""Processes that died by SIGKILL, and the host's reports of its OOM killer: who was the victim (R-22, R-24).

SIGKILL has many senders. Only Slurm's or the kernel's word makes it a shortage of host memory, and that word often
names no rank: the rank killed on the same node is the victim then, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.evidence.log_places import Places
from runbook.evidence.log_seen import Seen
from runbook.model.units import NodeName

_KILLED = (-9, 137)


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
    seen: Seen | None = None
    """The line that reports it."""


def kills(seen: Sequence[Seen], where: Places) -> list[Kill]:
    """In order of time where all have one, else of place; one a rank."""
    closed = {one.match.integer("pid") for one in seen if one.match.signature.id == "FR-TE-CLOSE"}
    found = [
        Kill(row.rank, row.node, row.pid, row.time_s, row.file, row.offset, row.line)
        for row in where.rows if row.exit_code in _KILLED and row.pid not in closed
    ]
    failed: dict[int, int] = {}
    for one in seen:
        code = one.match.integer("exit_code")
        if one.match.signature.id == "SL-TASK-02" and code not in _KILLED:
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


def _is_kill(seen: Seen) -> bool:
    if seen.match.signature.id == "HOST-06" or seen.match.text("signal") in ("Killed", "SIGKILL"):
        return True
    return seen.match.integer("exit_code") in _KILLED and seen.match.signature.id in ("SL-TASK-02", "FR-TE-AGENT")


def place(seen: Seen) -> NodeName | None:
    """The node that a line names, if it names one."""
    hosts = seen.match.text("hosts") or seen.match.text("node")
    if hosts and "[" not in hosts and "," not in hosts:
        return NodeName(hosts.partition(".")[0])
    return seen.frame.node


@dataclass(frozen=True, slots=True)
class Victim:
    """Whom a report of the OOM killer is about, as far as it can be told."""

    rank: int | None
    node: NodeName | None
    pid: int | None
    note: str


def victim(report: Seen, every: Sequence[Kill], where: Places) -> Victim:
    """The rank that the host's OOM killer ended, for a report that names none."""
    rank = where.rank(report)
    tasks = report.match.numbers("tasks")
    note = ""
    if rank is None and tasks and where.tasks_are_ranks:
        rank = tasks[0]
        if len(tasks) > 1:
            note = (f"srun reports tasks {', '.join(map(str, tasks[:9]))} out of memory in one line; rank {rank} is "
                    f"named because it stands first: a tie.")
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
        names = f"names process {pid}{where_it_was}, and no line says which rank that was" if pid is not None else (
            f"names no process{where_it_was}, and no rank is known to have died by SIGKILL there"
        )
        return Victim(None, node, None, f"The report of the OOM killer {names}: it may be a helper (R-24).")
    first = ranked[0]
    place_word = f" on {first.node}" if first.node else ""
    if len(ranked) == 1:
        note = (f"The report of the OOM killer names no rank; rank {first.rank} is the only one{place_word} that died "
                f"by SIGKILL (R-22).")
    else:
        others = ", ".join(str(kill.rank) for kill in ranked[1:9])
        note = (f"A tie: ranks {first.rank}, {others} died by SIGKILL and the report of the OOM killer names none; "
                f"rank {first.rank} is named because its end is reported first.")
    return Victim(first.rank, first.node or node, first.pid, note)


def _short(name: NodeName) -> str:
    return name.partition(".")[0]


def killed_note(every: Sequence[Kill]) -> str:
    """What is said where SIGKILL is all that the logs show."""
    first = every[0]
    who = f"Rank {first.rank}" if first.rank is not None else "A process"
    pid = f" (pid {first.pid})" if first.pid is not None else ""
    node = f" on {first.node}" if first.node else ""
    more = f"; {len(every) - 1} more after it" if len(every) > 1 else ""
    return (
        f"{who}{pid}{node} is the first whose death the logs show, by SIGKILL{more}. Nothing says who sent it: the OOM "
        f"killer, scancel and teardown send the same signal (R-22)."
    )
