"""Which rank a line is about, and on which node that rank ran: by the log's own words first, else by inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from runbook.logs.collect.matches import REPLICA, LogMatch, Row, Speakers, Tables
from runbook.model.job import JobRecord
from runbook.model.log import Event
from runbook.model.units import NodeName

_WORLD_LARGEST = 200_000
_RANKS_OF_A_NODE = 1_024
"""More ranks than this, in all or on each of the job's nodes, are no job's: a line can hold any number."""
_GPUS_OF_A_NODE = 16
"""The most that one node has of them."""
TEARDOWN_CODES = frozenset({-6, -15, -9, 134, 137, 143})
_ABORTED = frozenset({-6, 134})


@dataclass(frozen=True)
class RankLocations:
    """Ranks, nodes and processes of a job as far as they are known."""

    nodes: Mapping[int, NodeName]
    inferred: frozenset[int]
    """Ranks whose node follows from a block distribution and not from the log."""
    world_size: int | None
    tasks_are_ranks: bool
    ranks_of_pids: Mapping[int, int]
    rows: tuple[Row, ...]
    rows_of_ranks: Mapping[int, Row]
    devices_are_local_ranks: bool = False
    """A GPU number above 0 was seen, so processes see all GPUs and not each its own as number 0."""
    only_node: NodeName | None = None
    """The job's node, where it has one alone."""
    several_nodes: bool = False
    """The job is known to run on more than one node."""
    speakers: Speakers = field(default_factory=Speakers)
    """Ranks of processes that lines name otherwise, as other lines of theirs tell."""
    first_ranks: Mapping[NodeName | None, int] = field(default_factory=dict)
    """The rank of local rank 0 of a node, where its launcher says it; without the node where no line names one."""
    nobody_named: bool = False
    """No line names a rank or a task."""

    def rank(self, seen: LogMatch) -> int | None:
        """The rank that a line is about; a process that calls itself -1 has none yet."""
        rank = self._told(seen)
        return rank if rank is None or rank >= 0 else None

    def _told(self, seen: LogMatch) -> int | None:
        written = seen.match.integer("rank")
        if seen.log_line.rank is not None and (written is None or Event.NCCL in seen.reports):
            return seen.log_line.rank  # NCCL's watchdog numbers ranks within its process group
        if written is not None:
            return written
        if seen.log_line.doubt:
            return None
        learned = self.speakers.rank(seen.log_line, self.world_size, self.only_node is not None)
        if learned is not None:
            return learned
        placed = self._rank_at(seen.log_line.node, seen.log_line.local_rank)
        if placed is not None:
            return placed
        pid = seen.match.integer("pid") or seen.log_line.pid
        if pid is not None and pid in self.ranks_of_pids:
            return self.ranks_of_pids[pid]
        if seen.spawned is not None and not self.several_nodes:
            return seen.spawned
        if self.tasks_are_ranks:
            named = seen.match.numbers("tasks")
            if len(named) == 1:
                return named[0]
            if seen.log_line.task is not None and not named:
                return seen.log_line.task
        replica = REPLICA.search(seen.log_line.node or seen.log_line.voice.rstrip("] ")) if self.nobody_named else None
        if replica is not None:
            return int(replica[1]) + self.speakers.has_master
        by_device = self.rank_by_device(seen)
        return by_device if by_device is not None else self.on_one_node(seen)

    def on_one_node(self, seen: LogMatch) -> int | None:
        """The rank of a line that names a local rank alone, in the log of one node; an assumption that is said where no
        launcher numbers that node's ranks: no second node shows, and no more ranks than a node can have."""
        local_rank = seen.log_line.local_rank
        local_rank = local_rank if local_rank is not None else seen.match.integer("local_rank")
        first = self._first_rank(seen)
        if local_rank is not None and first is not None and seen.log_line.rank is None:
            return first + local_rank
        if self.several_nodes or seen.log_line.rank is not None or (self.world_size or 0) > _GPUS_OF_A_NODE:
            return None
        return local_rank if local_rank is None or local_rank < (self.world_size or _GPUS_OF_A_NODE) else None

    def _first_rank(self, seen: LogMatch) -> int | None:
        """The first rank of a line's node; the only one that is known, where no line names its node."""
        if seen.log_line.node in self.first_ranks:
            return self.first_ranks[seen.log_line.node]
        return next(iter(self.first_ranks.values())) if len(self.first_ranks) == 1 else None

    def assumed_one_node(self, seen: LogMatch) -> bool:
        """Whether the rank of a line is that of its local rank for want of a second node."""
        rank = self.on_one_node(seen) if self._first_rank(seen) is None else None
        return rank is not None and self.only_node is None and self.rank(seen) == rank

    def _rank_at(self, node: NodeName | None, local_rank: int | None) -> int | None:
        """The rank of a local rank of a node, where the log says every rank's node: ranks of a node are numbered alike.
        A block distribution does not say it: torchrun numbers nodes in the order in which they met."""
        if node is None or local_rank is None or self.inferred or self.world_size != len(self.nodes):
            return None
        own = self._ranks_of_nodes.get(node.partition(".")[0], ())
        return own[local_rank] if local_rank < len(own) else None

    @cached_property
    def _ranks_of_nodes(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for rank in sorted(self.nodes):
            found.setdefault(self.nodes[rank].partition(".")[0], []).append(rank)
        return found

    def inferred_by_device(self, seen: LogMatch) -> bool:
        """Whether the rank follows from nothing better than the GPU's number."""
        return seen.log_line.rank is None and seen.log_line.task is None and self.rank(seen) is not None and (
            self.rank(seen) == self.rank_by_device(seen)
        )

    def rank_by_device(self, seen: LogMatch) -> int | None:
        """A rank for a line that names only its GPU, where GPU numbers tell processes apart: by the first rank of the
        line's node, or where torchrun's table of one node has a worker with that local rank that failed by itself."""
        device = seen.match.integer("device")
        if device is None or not self.devices_are_local_ranks:
            return None
        if seen.log_line.node in self.first_ranks and seen.log_line.node is not None and seen.log_line.unnamed:
            return self.first_ranks[seen.log_line.node] + device
        if len({row.node for row in self.rows}) != 1:
            return None
        own = [row for row in self.rows if row.local_rank == device and row.exit_code not in TEARDOWN_CODES]
        return own[0].rank if len(own) == 1 else None

    def row(self, rank: int | None) -> Row | None:
        """The last table's row of a rank: earlier tables are of earlier attempts."""
        return self.rows_of_ranks.get(rank) if rank is not None else None

    def first_row(self, lost: Set[int | None] = frozenset(), ended: Set[int | None] = frozenset()) -> Row | None:
        """The worker that torchrun's tables name first, if one alone failed by itself rather than in the teardown.

        Where all codes are those of a teardown: the one worker that aborted, which no launcher makes another one do,
        unless it is of the ranks that `lost` a peer (a watchdog aborts too; None: somebody whose rank is not known)
        or of the processes that the launcher `ended`."""
        own = [row for row in self.rows if row.exit_code not in TEARDOWN_CODES]
        if not own and None not in lost:
            own = [
                row for row in self.rows_of_ranks.values()
                if row.exit_code in _ABORTED and row.rank not in lost and row.pid not in ended
            ]
        return own[0] if len({row.rank for row in own}) == 1 else None


def rank_locations(tables: Tables, seen: Sequence[LogMatch], job: JobRecord | None) -> RankLocations:
    """Bring together prefixes, start-up lines, torchrun's tables and srun's messages."""
    tasks_are_ranks = _tasks_are_ranks(tables, job)
    nodes, pids = dict(tables.nodes_of_ranks), dict(tables.pids_of_ranks)
    for rank, (node, pid) in _repeated(seen).items():
        if rank not in pids and pid not in pids.values() and nodes.setdefault(rank, node) == node:
            pids[rank] = pid
            tables.note(f"Process {pid} on {node} is rank {rank}: that rank's exception repeats NCCL's warning.")
    nodes_of_tasks = dict(tables.nodes_of_tasks)
    for one in seen:
        hosts, tasks = one.match.text("hosts"), one.match.numbers("tasks")
        if hosts and "[" not in hosts and "," not in hosts:
            for task in tasks:
                nodes_of_tasks.setdefault(task, NodeName(hosts.partition(".")[0]))
    if tasks_are_ranks:
        for task, node in nodes_of_tasks.items():
            nodes.setdefault(task, node)
    for rank, task in tables.tasks_of_ranks.items():
        if task in nodes_of_tasks:
            nodes.setdefault(rank, nodes_of_tasks[task])
    world = _world_size(tables, job, tasks_are_ranks)
    nodes, inferred = _filled(nodes, world, job)
    alone = set(nodes.values()) if world is not None and len(nodes) == world else set()
    only = job.nodes[0] if job is not None and len(job.nodes) == 1 else next(iter(alone)) if len(alone) == 1 else None
    owners = Counter(pids.values())  # processes of two nodes may have one number
    return RankLocations(
        nodes, inferred, world, tasks_are_ranks, {pid: rank for rank, pid in pids.items() if owners[pid] == 1},
        tuple(tables.rows), {row.rank: row for row in tables.rows},
        any((one.match.integer("device") or 0) > 0 for one in seen), only,
        len({*nodes.values(), *nodes_of_tasks.values(), *tables.nodes_seen}) > 1 or tables.num_nodes > 1
        or (job is not None and (job.num_nodes or 1) > 1),
        tables.speakers, tables.first_ranks,
        job is None and not (tables.ranks_seen or tables.rows or tables.speakers.local_ranks),
    )


def _repeated(seen: Sequence[LogMatch]) -> dict[int, tuple[NodeName, int]]:
    """Processes of ranks by NCCL's own words: the exception of a rank repeats under "Last error" the warning that NCCL
    printed with host and process. Only where one process alone warned so and one rank alone repeats it."""
    warned: dict[str, set[tuple[NodeName, int]]] = {}
    repeated: dict[str, set[int]] = {}
    for one in seen:
        if Event.NCCL not in one.reports:
            continue
        before, warns, words = one.log_line.text.partition(" NCCL WARN ")
        if not warns:
            if one.log_line.rank is not None:
                repeated.setdefault(before.strip(), set()).add(one.log_line.rank)
        elif one.log_line.rank is None and one.log_line.node is not None and one.log_line.pid is not None:
            warned.setdefault(words.strip(), set()).add((one.log_line.node, one.log_line.pid))
    everywhere = {place for places in warned.values() for place in places}
    found: dict[int, set[tuple[NodeName, int]]] = {}
    for words, ranks in repeated.items():
        processes = warned.get(words, set())
        if len(ranks) == len(processes) == 1:
            found.setdefault(next(iter(ranks)), set()).update(processes)
    pids = [pid for _, pid in everywhere]
    return {
        rank: place for rank, processes in found.items() for place in processes
        if len(processes) == 1 and pids.count(place[1]) == 1  # two nodes may have a process of one number
    }


def _tasks_are_ranks(tables: Tables, job: JobRecord | None) -> bool:
    """One task a rank, or one task a node with torchrun inside? Seen pairs decide, else the job's own numbers."""
    if len(tables.het_groups) > 1:
        return False
    if tables.tasks_of_ranks:
        return all(rank == task for rank, task in tables.tasks_of_ranks.items())
    if any(row.local_rank > 0 for row in tables.rows):
        return False  # an agent with several workers is one task
    if job is None or job.num_tasks is None or job.num_nodes is None:
        return True
    return job.num_tasks > job.num_nodes or (job.gpus_per_node or 1) <= 1


def _world_size(tables: Tables, job: JobRecord | None, tasks_are_ranks: bool) -> int | None:
    most = _WORLD_LARGEST if job is None or not job.num_nodes else min(_WORLD_LARGEST, job.num_nodes * _RANKS_OF_A_NODE)
    if tables.world_size is not None and 1 <= tables.world_size <= most:
        return tables.world_size
    if job is None:
        return None
    if tasks_are_ranks and job.num_tasks is not None and job.num_tasks > (job.num_nodes or 1):
        return job.num_tasks
    if job.num_nodes is not None and job.gpus_per_node:
        return job.num_nodes * job.gpus_per_node
    return job.num_tasks


def _filled(
    nodes: dict[int, NodeName], world: int | None, job: JobRecord | None
) -> tuple[dict[int, NodeName], frozenset[int]]:
    """A block distribution over the job's nodes for the ranks that the log does not place.

    Left out where the ranks that the log does place contradict it."""
    if job is None or not job.nodes or not world or world % len(job.nodes):
        return nodes, frozenset()
    each = world // len(job.nodes)
    block = {rank: job.nodes[rank // each] for rank in range(world)}
    short = {NodeName(str(name).partition(".")[0]) for name in block.values()}
    if any(rank in block and node in short and block[rank].partition(".")[0] != node for rank, node in nodes.items()):
        return nodes, frozenset()
    inferred = frozenset(block) - frozenset(nodes)
    return {**block, **nodes}, inferred
