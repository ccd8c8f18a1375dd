"""Which process is where, and which of its node's GPUs it uses: told by start-up lines and by NCCL's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runbook.evidence.framing_values import Frame
from runbook.model.units import NodeName

PROCESSES_KEPT = 40_000

Owner = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class NcclProcess:
    """A member of a communicator as NCCL prints it; its rank is the communicator's, which need not be the world."""

    node: NodeName
    pid: int
    rank: int
    ranks: int
    device: int
    node_device: str | None
    """nvmlDev: the index that the node's driver shows; absent in older releases."""


@dataclass(slots=True)
class Devices:
    """Lists of visible devices and NCCL's processes, collected while reading."""

    visible: dict[Owner, str | None] = field(default_factory=dict)
    """CUDA_VISIBLE_DEVICES by who stated it; None where one stated two."""
    processes: dict[tuple[NodeName, int, int], NcclProcess] = field(default_factory=dict)
    """By node, process and size of the communicator: the first of each size."""
    of_ranks: dict[int, int] = field(default_factory=dict)
    """Device index that a rank says it set."""

    def note_visible(self, here: Frame, listed: str, local_rank: int | None = None) -> None:
        owners = list(_owners(here.rank, here, local_rank)) or [()]
        for owner in owners:
            if len(self.visible) < PROCESSES_KEPT:
                known = self.visible.setdefault(owner, listed)
                if known != listed:
                    self.visible[owner] = None

    def note_process(self, one: NcclProcess) -> None:
        if len(self.processes) < PROCESSES_KEPT:
            self.processes.setdefault((one.node, one.pid, one.ranks), one)

    def world(self, world_size: int | None) -> tuple[NcclProcess, ...]:
        """The processes of the communicator that is the whole job: as many members as the job has ranks, each once.

        Where the job's size is not known, the largest communicator counts if there are no more processes than it has
        members; a smaller one is a group, whose ranks are not the job's."""
        size = world_size or max((one.ranks for one in self.processes.values()), default=0)
        members = [one for one in self.processes.values() if one.ranks == size]
        everyone = {(one.node, one.pid) for one in self.processes.values()}
        if not members or len(everyone) > size or len({one.rank for one in members}) != len(members):
            return ()
        return tuple(members)

    def node_device(
        self, here: Frame, *, rank: int | None, local_rank: int | None, node: NodeName | None, pid: int | None,
        device: int | None, alone: bool,
    ) -> str | None:
        """The node's GPU that a process used, as text; None where no line shows it.

        `device` is the index inside the process, `alone`: the job has one process. NCCL's own map is the best; else
        the entry of the process's list that the index points at."""
        if device is None and rank is not None:
            device = self.of_ranks.get(rank)
        members = {
            one.node_device for one in self.processes.values()
            if one.pid == pid and (node is None or one.node == node) and device in (None, one.device)
        }
        if len(members) == 1 and (found := next(iter(members))) is not None:
            return found
        for owner in _owners(rank, here, local_rank):
            listed = self.visible.get(owner)
            if listed is not None:
                return _entry(listed, device)
        listed = self.visible.get(())
        if listed is None or len(self.visible) != 1:
            return None
        # A list that nobody in particular stated is the script's: each process may have got its own since.
        if alone or (local_rank is not None and local_rank == device and len(listed.split(",")) > 1):
            return _entry(listed, device)
        return None


def _owners(rank: int | None, here: Frame, local_rank: int | None) -> Iterable[Owner]:
    """The names that a process goes by, the surest first."""
    if rank is not None:
        yield ("rank", rank)
    if here.voice:
        yield ("voice", here.voice)
    local = here.local_rank if here.local_rank is not None else local_rank
    if local is not None:
        yield ("local", here.node, here.task, here.group, local)
    if here.task is not None:
        yield ("task", here.task, here.group)


def _entry(listed: str, device: int | None) -> str | None:
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    if len(entries) == 1:
        return entries[0]
    return entries[device] if device is not None and 0 <= device < len(entries) else None


@dataclass(slots=True)
class Speakers:
    """Which rank speaks where a line itself does not say so, learned from lines that do."""

    ranks: dict[Owner, int | None] = field(default_factory=dict)
    """None where two ranks spoke in one name."""
    at_nodes: dict[NodeName, set[int]] = field(default_factory=dict)
    local_ranks: set[int] = field(default_factory=set)

    def note(self, here: Frame) -> None:
        if here.local_rank is not None:
            self.local_ranks.add(here.local_rank)
        if here.rank is None or len(self.ranks) > PROCESSES_KEPT:
            return
        for owner in _processes(here):
            if self.ranks.setdefault(owner, here.rank) != here.rank:
                self.ranks[owner] = None
        if here.node is not None:
            self.at_nodes.setdefault(here.node, set()).add(here.rank)

    def note_worker(self, rank: int, pid: int, ip: str) -> None:
        """Ray's own list of a group's workers. A line of the driver's node carries no address."""
        for owner in (("ray", pid, ip), ("ray", pid, "")):
            if self.ranks.setdefault(owner, rank) != rank:
                self.ranks[owner] = None

    def rank(self, here: Frame, world_size: int | None, one_node: bool) -> int | None:
        """The rank of a line's speaker: by its process, else by its place where that leaves no choice."""
        for owner in _processes(here):
            known = self.ranks.get(owner)
            if known is not None:
                return known
        if here.local_rank is not None:
            alone = one_node or (world_size is not None and len(self.local_ranks) >= world_size)
            return here.local_rank if alone else None
        if here.node is not None and here.task is None and not here.voice and world_size == len(self.at_nodes):
            own = self.at_nodes.get(here.node, set())
            if len(own) == 1 and len(set().union(*self.at_nodes.values())) == world_size:
                return next(iter(own))
        return None


def _processes(here: Frame) -> Iterable[Owner]:
    """Names that belong to one process alone: Ray's actor with its pid, a local rank at a place."""
    if here.voice and here.pid is not None:
        yield ("voice", here.voice)
        yield ("ray", here.pid, here.ip)
    if here.place:
        yield ("place", here.place)
    if here.local_rank is not None and (here.node is not None or here.task is not None):
        yield ("local", here.node, here.task, here.group, here.local_rank)


def by_rank(members: Iterable[NcclProcess]) -> Mapping[int, NcclProcess]:
    return {one.rank: one for one in members}
