"""What was seen while reading: matches with their speaker, place and surroundings, before anything is judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from runbook.logs.lines import LogLine
from runbook.logs.signatures import MEMORY_FIELDS, Match
from runbook.model.diagnosis import Died, Kind, LogReading
from runbook.model.log import Event, Phase, ProcessUse
from runbook.model.units import Bytes, NodeName

# Which process is where, and which of its node's GPUs it uses: told by start-up lines and by NCCL's own.

PROCESSES_KEPT = 40_000
_SHIFTS_KEPT = 64
REPLICA = re.compile(r"-(?:worker|replica|job|task)(?:-\d{1,4})?-(\d{1,4})(?=$|/)")
"""Kubernetes' operators count a job's pods so; one process each where no line names ranks besides."""

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


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """A process as far as the lines tell; `device` is the index that it uses itself, of the GPUs that it sees."""

    rank: int | None
    local_rank: int | None
    node: NodeName | None
    pid: int | None
    device: int | None


@dataclass(slots=True)
class Devices:
    """Lists of visible devices and NCCL's processes, collected while reading."""

    visible: dict[Owner, str | None] = field(default_factory=dict)
    """CUDA_VISIBLE_DEVICES by who stated it; None where one stated two."""
    processes: dict[tuple[NodeName, int, int], NcclProcess] = field(default_factory=dict)
    """By node, process and size of the communicator: the first of each size."""
    of_ranks: dict[int, int] = field(default_factory=dict)
    """Device index that a rank says it set."""

    def note_visible(self, here: LogLine, listed: str, local_rank: int | None = None) -> None:
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

    def node_device(self, here: LogLine, process: ProcessPlace, *, alone: bool) -> str | None:
        """The node's GPU that the process of a line used, as text; None where no line shows it. `alone`: the job has
        one process. NCCL's own map is the best; else the entry of the process's list that the device points at."""
        device, local_rank = process.device, process.local_rank
        if here.local_rank is not None:
            local_rank = here.local_rank
        if device is None and process.rank is not None:
            device = self.of_ranks.get(process.rank)
        members = {
            one.node_device for one in self.processes.values()
            if one.pid == process.pid and process.node in (None, one.node) and device in (None, one.device)
        }
        if len(members) == 1 and (found := next(iter(members))) is not None:
            return found
        for owner in _owners(process.rank, here, local_rank):
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


def _owners(rank: int | None, here: LogLine, local_rank: int | None) -> Iterable[Owner]:
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
    shifts: dict[Owner, set[tuple[int, int]]] = field(default_factory=dict)
    """How far ranks lie from the numbers that processes of one place or of one set of pods carry, each with one such
    number: two processes that agree tell the others'."""

    has_master: bool = False
    """A pod calls itself the master, as Kubeflow's operator names that of rank 0; its workers count behind it."""

    def note(self, here: LogLine) -> None:
        self.has_master = self.has_master or "-master-0" in here.voice or "-master-0" in (here.node or "")
        if here.local_rank is not None:
            self.local_ranks.add(here.local_rank)
        if here.rank is None or len(self.ranks) > PROCESSES_KEPT:
            return
        for place, number in _numbered(here):
            known = self.shifts.setdefault(place, set())
            if len(known) < _SHIFTS_KEPT:
                known.add((here.rank - number, number))
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

    def rank(self, here: LogLine, world_size: int | None, one_node: bool) -> int | None:
        """The rank of a line's speaker: by its process, else by its place where that leaves no choice."""
        for owner in _processes(here):
            known = self.ranks.get(owner)
            if known is not None:
                return known
        if here.local_rank is not None and (
            one_node or (world_size is not None and len(self.local_ranks) >= world_size)
        ):
            return here.local_rank
        for place, number in _numbered(here):
            pairs = self.shifts.get(place, set())
            shift = next(iter(pairs))[0] if len(pairs) > 1 and len({one for one, _ in pairs}) == 1 else None
            # Where nothing names the node, the lines of another may lie in the same file; only the first has no shift.
            if shift is not None and (not shift or place != _NOWHERE):
                return number + shift
        if here.local_rank is not None:
            return None
        if here.node is not None and here.task is None and not here.voice and world_size == len(self.at_nodes):
            own = self.at_nodes.get(here.node, set())
            if len(own) == 1 and len(set().union(*self.at_nodes.values())) == world_size:
                return next(iter(own))
        return None


def _processes(here: LogLine) -> Iterable[Owner]:
    """Names that belong to one process alone: Ray's actor with its pid, a local rank at a place."""
    if here.voice and here.pid is not None:
        yield ("voice", here.voice)
        yield ("ray", here.pid, here.ip)
    if here.place:
        yield ("place", here.place)
    local_rank = here.local_rank if here.local_rank is not None else here.device or None  # all see 0 that see one
    if local_rank is not None and (here.node is not None or here.task is not None):
        yield ("local", here.node, here.task, here.group, local_rank)


_NOWHERE: Owner = ("local", None, None, None)


def _numbered(here: LogLine) -> Iterable[tuple[Owner, int]]:
    """The numbers that a line's process carries among those of its place, or of its set of pods."""
    if here.local_rank is not None:
        yield ("local", here.node, here.task, here.group), here.local_rank
    if found := REPLICA.search(here.voice.rstrip("] ") or here.node or ""):
        yield ("pods", found.string[: found.start()].rpartition("/")[2]), int(found[1])


def by_rank(members: Iterable[NcclProcess]) -> Mapping[int, NcclProcess]:
    return {one.rank: one for one in members}


_ROOMS = {
    Event.SHM_ROOM: Died.SHARED_MEMORY, Event.GROUP_ROOM: Died.MAIN_MEMORY, Event.CARD_ROOM: Died.GPU_MEMORY,
}
_ROOMS_KEPT = 4
FIRST_KEPT = 3
LAST_KEPT = 3
SPEAKERS_KEPT = 20_000
"""Consequences and harmless lines beyond so many speakers are left out, failures beyond twice as many: thousands of
ranks that say what follows must not hide the one that says why."""
LINES_BACK = 1_000
NOTES_KEPT = 20
NODES_KEPT = 64
OWN_LINES_BACK = 240
PIDS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class LogMatch:
    """One match in its place."""

    match: Match
    log_line: LogLine
    file: int
    attempt: int
    offset: int
    line: int
    time_s: float | None
    excerpt: str
    time_exact: bool = False
    """The stamp stands in the line itself; else it is that of an earlier line of the same process."""
    phase: Phase = Phase.UNKNOWN
    raised: bool = False
    """The line ends a traceback, so it is an exception and not a remark about one."""
    remark: str = ""
    """Words near it that say it was handled."""
    pinning: bool = False
    """The traceback shows pinned host memory."""
    chained: bool = False
    """Raised while the same process handled an exception that it printed just before."""
    spawned: int | None = None
    """The process of torch.multiprocessing.spawn whose failure its parent passes on here."""
    functions: tuple[str, ...] = ()
    """Names of the functions in its traceback, outermost first."""
    said_by: str = ""
    """What the process is called that says it, by its prefix, its own words or its file."""
    quoted: bool = False
    """It stands inside a sentence, which may quote it."""

    @property
    def reports(self) -> frozenset[Event]:
        return self.match.signature.reports

    @property
    def unknown_exception(self) -> bool:
        return Event.EXCEPTION in self.reports

    @property
    def hears_of_others(self) -> bool:
        """It tells what became of another process, as one hears of it in a collective or over a connection."""
        return Event.NCCL in self.reports or Event.PEER in self.reports

    @property
    def means(self) -> Kind:
        if self.pinning and self.match.signature.pinned:
            return self.match.signature.kinds.read_from(LogReading.PINNED_MEMORY)
        return self.match.signature.means


@dataclass(frozen=True, slots=True)
class Row:
    """One row of torchrun's table of failures."""

    rank: int
    local_rank: int
    node: NodeName | None
    pid: int
    exit_code: int
    time_s: float | None
    file: int
    offset: int = 0
    line: int = 0
    signature: str = ""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A process with its memory in the driver's list, and where in the log that stands."""

    process: ProcessUse
    device: int | None
    file: int
    offset: int


@dataclass(slots=True)
class MatchGroup:
    """The first and the last few matches of one signature by one speaker: spam is counted, not kept."""

    first: list[LogMatch] = field(default_factory=list)
    last: list[LogMatch] = field(default_factory=list)
    count: int = 0
    looked_at: int = 0
    """How many there were when one was last looked at closely behind the first few."""

    def room(self) -> bool:
        return len(self.first) < FIRST_KEPT

    def add(self, seen: LogMatch) -> None:
        if self.room():
            self.first.append(seen)
        else:
            self.last = [*self.last[-(LAST_KEPT - 1):], seen]


@dataclass(slots=True)
class Tables:
    """Who is where, as the logs tell it."""

    nodes_of_ranks: dict[int, NodeName] = field(default_factory=dict)
    nodes_of_tasks: dict[int, NodeName] = field(default_factory=dict)
    tasks_of_ranks: dict[int, int] = field(default_factory=dict)
    pids_of_ranks: dict[int, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    world_size: int | None = None
    version: str | None = None
    ranks_seen: set[int] = field(default_factory=set)
    ranks_named: set[int] = field(default_factory=set)
    """Those that the words of a few pasted lines name, whatever they say of them."""
    pids_seen: set[int] = field(default_factory=set)
    nodes_seen: set[str] = field(default_factory=set)
    num_nodes: int = 0
    """As a launcher says it, and two where a rank is another one than its local rank; 0 is not known."""
    first_ranks: dict[NodeName | None, int] = field(default_factory=dict)
    """What launchers call the first rank of a node, by the node in front of their lines."""
    engines: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)

    rooms: dict[tuple[Died, str], set[int]] = field(default_factory=dict)
    """What tables of the log say of the memory at hand: of which, in which field."""
    listed: dict[int, GpuRow] = field(default_factory=dict)
    """Processes that the driver's list in the log names, by pid."""
    devices: Devices = field(default_factory=Devices)
    speakers: Speakers = field(default_factory=Speakers)
    het_groups: set[int] = field(default_factory=set)
    """Components of a heterogeneous job that srun's labels name: with two of them, tasks are no ranks."""
    notes: dict[str, None] = field(default_factory=dict)
    """What a reader must know of how lines were read, once each."""

    def note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_KEPT:
            self.notes[sentence] = None

    def note_line(self, log_line: LogLine) -> None:
        """Learn from a prefix: which task holds which rank, which node holds which rank, whose pid is the job's."""
        if log_line.pid is not None and len(self.pids_seen) < PIDS_KEPT:
            self.pids_seen.add(log_line.pid)
        if log_line.node is not None and len(self.nodes_seen) < NODES_KEPT:
            self.nodes_seen.add(log_line.node)
        if log_line.group is not None:
            self.het_groups.add(log_line.group)
        self.speakers.note(log_line)
        if log_line.rank is None:
            return
        if log_line.local_rank not in (None, log_line.rank):
            self.num_nodes = max(self.num_nodes, 2)
        self.ranks_seen.add(log_line.rank)
        if log_line.task is not None:
            self.tasks_of_ranks.setdefault(log_line.rank, log_line.task)
        if log_line.pid is not None:
            self.pids_of_ranks.setdefault(log_line.rank, log_line.pid)
        if log_line.node is not None:
            self.nodes_of_ranks.setdefault(log_line.rank, log_line.node)

    def note_gpu_process(self, match: Match, file: int, offset: int) -> None:
        pid, held = match.integer("pid"), match.integer("process_bytes")
        if pid is not None and held is not None and len(self.listed) < NODES_KEPT:
            self.listed[pid] = GpuRow(ProcessUse(pid, Bytes(held)), match.integer("device"), file, offset)

    def note_room(self, match: Match) -> None:
        of = next((died for event, died in _ROOMS.items() if event in match.signature.reports), None)
        for name in MEMORY_FIELDS & match.values.keys():
            room, value = self.rooms.setdefault((of or Died.UNKNOWN, name), set()), match.integer(name)
            if value is not None and len(room) < _ROOMS_KEPT:
                room.add(value)

    def settle(self) -> None:
        """Take over, when all is read, what NCCL says of the whole job's ranks."""
        members = self.devices.world(self.world_size)
        for one in members:
            self.nodes_of_ranks.setdefault(one.rank, one.node)
            self.pids_of_ranks.setdefault(one.rank, one.pid)
        if self.world_size is None and members and len(members) == members[0].ranks:
            self.world_size = members[0].ranks

    def note_words(self, match: Match, node: NodeName | None) -> None:
        """Learn which engine speaks, which of the allocator's variables is set to what, and how a launcher counts."""
        self.num_nodes = max(self.num_nodes, match.integer("num_nodes") or 0)
        node_rank, each = match.integer("node_rank"), match.integer("node_ranks")
        first = node_rank * each if node_rank is not None and each is not None else match.integer("first_rank")
        if first is not None and len(self.first_ranks) < NODES_KEPT:
            self.first_ranks.setdefault(node, first)
        if self.world_size is None and self.num_nodes and each:
            self.world_size = self.num_nodes * each
        setting = match.text("setting")
        if Event.ENGINE_STARTS in match.signature.reports:
            self.engines.add(match.signature.engine)
        if setting:
            name, _, value = setting.replace("'", "").replace('"', "").partition("=" if "=" in setting else ":")
            self.settings[name.strip()] = value.strip()


_HEAD = "Traceback (most recent call last)"
_HEAD_WITHIN = 140
"""Engines put words in front of it: "[2026-01-01 10:00:00 TP0] Scheduler hit an exception: "."""
_PASSED_ON = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
_REMOTE = re.compile(r"\(pid=(\d{1,9})[,)]")
_CAUGHT = re.compile(r"[\w.]{1,120}: Caught \w{1,80} in ")
"""A thread's or worker's exception, raised again by the process; the original one follows."""


def remote_pid(stack: Sequence[str]) -> int | None:
    """The process in which a traceback was raised that Ray's driver repeats."""
    found = _REMOTE.search(stack[0][:2000]) if stack and "ray::" in stack[0] else None
    return int(found[1]) if found else None


def dumped(after: Sequence[str]) -> list[str]:
    """The stack that Python's fault handler prints behind its line, the innermost frame first."""
    heads = [index for index, text in enumerate(after) if text.rstrip().endswith("(most recent call first):")]
    return [text for text in after[heads[0]:] if text.lstrip().startswith('File "')] if heads else []


def traceback_before(lines: Iterable[LogLine], speaker: tuple[object, ...]) -> tuple[list[str], bool]:
    """Lines of the same speaker back to the traceback's beginning, and whether a traceback directly precedes.

    `lines` come nearest first. Those between the head and the exception are indented, or join chained exceptions; a
    head that is out of reach does not matter. Ray's copy of a remote traceback begins with the remote call instead."""
    collected: list[str] = []
    for line in islice((one for one in islice(lines, LINES_BACK) if one.speaker == speaker), OWN_LINES_BACK):
        text = line.text
        if _HEAD in text[:_HEAD_WITHIN] or ("ray::" in text and _REMOTE.search(text[:2000]) and collected):
            collected.append(text)
            return list(reversed(collected)), True
        joins = text.startswith(("During handling", "The above exception")) or _CAUGHT.match(text)
        if text[:1] not in (" ", "\t", "") and not joins:
            return [], False
        collected.append(text)
    frames = sum(1 for text in collected if text.lstrip().startswith('File "'))
    return (list(reversed(collected)), True) if frames >= 2 else ([], False)


def line_before(lines: Iterable[LogLine], speaker: tuple[object, ...], *, at_head: bool = False) -> str:
    """What the same process said in front of the traceback that ends here; "" where there is none.

    `lines` come nearest first; `at_head`: they begin in front of the traceback's own head."""
    for line in islice((one for one in islice(lines, LINES_BACK) if one.speaker == speaker), OWN_LINES_BACK):
        text = line.text
        if not at_head:
            at_head = _HEAD in text[:_HEAD_WITHIN]
            if not at_head and text[:1] not in (" ", "\t", ""):
                return ""
        elif text.strip():
            return text
    return ""


def is_chain(before: str) -> bool:
    """Whether a line joins two exceptions of one process: the second was raised while it handled the first."""
    return before.startswith(("During handling of the above exception", "The above exception was the direct"))


def spawned_process(before: str) -> int | None:
    """The process whose failure torch.multiprocessing.spawn passes on behind a line, by its number in the spawn."""
    found = _PASSED_ON.match(before)
    return int(found[1]) if found else None
