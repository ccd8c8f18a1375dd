"""What is known of who said a line: the line itself, how a file's lines begin, and what the file's name and its
neighbours' names say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from runbook.logs.signatures import PrefixForm
from runbook.model.job import JobRecord
from runbook.model.units import NodeName

_MILD = re.compile(r"(?:^|[\s\[(|:])(?:WARNING|WARN|INFO|DEBUG|[Ww]arning)(?:[\s\])|:,]|$)|\b\w{0,40}Warning: ")
_EVENT = re.compile(r"\s{0,8}(?:\d{1,4}[smhd](?:\d{1,2}[smh])?\s{1,12})?Warning {1,12}[A-Z][A-Za-z]{3,30}\s")
"""An event of Kubernetes in its table: "Warning" is the sort of event there, and what it tells has happened."""
_LEVEL_AREA = 160


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its prefix, and what the prefix said."""

    text: str
    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    device: int | None = None
    stamp: str = ""
    """The line's beginning, where its own stamp of time stands."""
    group: int | None = None
    """Component of a heterogeneous job, where srun's label names it: tasks are numbered anew in each."""
    voice: str = ""
    """A process that its launcher names by something else than a rank: Ray's actor, a pod."""
    ip: str = ""
    """Address of the process's node, where Ray names it."""
    repeats: int = 0
    """Further copies of the line that Ray folded into this one."""
    time_s: float | None = None
    """When the line was said, where that stands elsewhere than in the line."""
    cut: bool = False
    """Another process's line begins before this one ends."""
    after_cut: bool = False
    """It stands behind the broken line of another process, the rest of which may be mixed into it."""
    place: str = ""
    """The folder of its process's files."""
    stack: tuple[str, ...] = ()
    """The traceback in front of it, where that stands elsewhere than in the speaker's own lines."""
    doubt: str = ""
    """Why it is not certain who said it."""
    level: str = ""
    """The level that a logger put in front of the rank's prefix ("WARNING [rank3]: …")."""
    name: str = ""
    """What Ray or an engine calls the process in its prefix: "WorkerDict", "EngineCore"."""
    record: tuple[str, ...] = ()
    """All lines of the JSON record in which it stands (`json_records`), its own among them."""
    at: int = 0
    """Which of the record's lines it is."""
    by_words: bool = False
    """Its own words, and no prefix, say who says it: the lines around it may name nobody."""

    @property
    def speaker(self) -> tuple[object, ...]:
        """Equal for lines of one process: what brings an interleaved traceback together again."""
        if self.by_words:
            return (self.task, None, None, self.node, self.group, "")
        return (self.task, self.rank, self.local_rank, self.node, self.group, self.voice)

    @property
    def mild(self) -> bool:
        """The line is a warning or information by its own words: where it is no exception, it quotes one."""
        text = f"{self.level} {self.text[:_LEVEL_AREA]}"
        return " NCCL WARN " not in text and bool(_MILD.search(text)) and not _EVENT.match(self.text)

    @property
    def unnamed(self) -> bool:
        """Nothing in the line says which process of its task or node it is."""
        return self.rank is None and self.local_rank is None and not self.voice


@dataclass(frozen=True, slots=True)
class PrefixProfile:
    """How a file's lines begin, as learned from samples of them."""

    label_widths: frozenset[int] = frozenset()
    """Widths of srun's task labels; none where lines are not labelled."""
    roles: frozenset[str] = frozenset({"default"})
    """torchrun's roles: "[default3]:"."""
    bare: str = ""
    """What a number alone in brackets ("[3]:") is: "rank", "local_rank", or nothing."""
    spaced: bool = False
    """A space stands between such a prefix and its line."""
    hosts: frozenset[str] = frozenset()
    """Names that begin most lines ("gpu-22: …") and look like hosts."""
    piped: bool = False
    """Lines begin with a name and a bar ("algo-1 | …")."""
    containers: frozenset[str] = frozenset()
    """Second words of lines that begin with a pod and a container."""
    collected: bool = False
    """A log collector put a stamp in front of every line."""
    tagged: bool = False
    """And keys with values, or a level ("node=gpu-22 ERROR ")."""
    forms: tuple[PrefixForm, ...] = ()
    """Of the forms that could be something else, those that name the speaker here."""
    from_one: bool = False
    """A prefix that names a process and the number of all of them counts from 1: the last one is that number."""


@dataclass(frozen=True, slots=True)
class FileProfile:
    """What a file's name and its lines in general say of each of them."""

    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    attempt: int | None = None
    stream: str = ""
    """"stdout" or "stderr", where the name says it."""
    nodes: frozenset[str] = frozenset()
    """The job's nodes, by their short names: names that count as a host prefix ("gpu-22: …")."""
    habits: PrefixProfile = PrefixProfile()
    forms: tuple[PrefixForm, ...] = ()
    """All forms of prefixes that the documents know."""
    prefixes: tuple[re.Pattern[str], ...] = ()
    """A site's own prefixes, with groups named rank, local_rank, node, pid."""
    place: str = ""
    """The folder of one process's files: what one of them says of the process holds for the others."""
    time_s: float | None = None
    """When all of it was said, for a file that holds one event."""
    converted: bool = False
    """What is read is not the file's own text, so that places in it mean nothing."""
    role: str = ""
    """The role whose processes alone write it, as its name says: "rollout", "llm_server"."""
    _forms_at: dict[str, tuple[PrefixForm, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def forms_at(self, first: str) -> tuple[PrefixForm, ...]:
        """Those that count in this file and may begin with a character, in the order in which they are tried."""
        known = self._forms_at.get(first)
        if known is None:
            every = (*self.habits.forms, *(form for form in self.forms if not form.learned))
            known = self._forms_at[first] = tuple(form for form in every if first in form.opens)
        return known


@dataclass(slots=True)
class PrefixFacts:
    """What the prefixes of one line said so far."""

    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    device: int | None = None
    group: int | None = None
    voice: str = ""
    ip: str = ""
    region: int = 0
    stamped: bool = field(default=False)
    tagged: bool = False
    level: str = ""
    name: str = ""


def short_name(host: str) -> str:
    return host.partition(".")[0]


_RANK = re.compile(r"(?:^|[/._-])(?:global_?)?rank[._=-]?(\d{1,10})(?=[/._-]|$)", re.IGNORECASE)
_LOCAL = re.compile(r"(?:^|[/._-])local_?rank[._=-]?(\d{1,4})(?=[/._-]|$)", re.IGNORECASE)
_TASK = re.compile(
    r"(?:^|[/._-])(?:(?:task|proc)[._-]?|worker(?:log)?[._-]?(?=\d{1,4}(?!\d)))(\d{1,10})(?=[/._-]|$)", re.IGNORECASE
)
_ELASTIC = re.compile(r"(?:^|/)attempt_(\d{1,4})/(\d{1,4})/(?:std(?:out|err)\.log|error\.json)(?:\.gz)?$")
_FILTERED = re.compile(r"(?:^|/)attempt_(\d{1,4})/filtered_std(?:out|err)\.log(?:\.gz)?$")
_RAY_WORKER = re.compile(r"(?:^|/)worker-[0-9a-f]{16,64}-[0-9a-f]{8,16}-(\d{1,9})\.(?:out|err)(?:\.gz)?$")
_STREAMS = (
    ("stderr", re.compile(r"(?:^|[/._-])(?:std)?err(?=[/._-]|$)|\.e\d*(?=\.|$)", re.IGNORECASE)),
    ("stdout", re.compile(r"(?:^|[/._-])(?:std)?out(?=[/._-]|$)|\.o\d*(?=\.|$)", re.IGNORECASE)),
)
_ROLE = re.compile(
    r"(?:^|/)((?:eval[-_])?(?:actor|critic|ref|reference|rollout|reward|teacher|llm_server|trainer|sglang|vllm))"
    r"(?:[._-]\d{1,4})?\.(?:log|out|err)(?:\.gz)?$"
)
"""AReaL's schedulers write one log a role: "actor.log", "llm_server.log" (areal/infra/scheduler/slurm.py)."""
_NUMBER = re.compile(r"(\d+)")
_LAST_NUMBER = re.compile(r"(?<!slurm-)(?:(?<=[A-Za-z])|(?<=[._-])(?<!slurm-))(\d{1,3})\.(?:log|out|err|txt)$")


def file_profile(path: str, nodes: Sequence[NodeName]) -> FileProfile:
    """What a file's name says: rank or task, node, attempt, process, stream."""
    rank = local_rank = attempt = task = pid = None
    place = ""
    if found := _ELASTIC.search(path):
        attempt, local_rank = int(found[1]), int(found[2])
        place = path.rpartition("/")[0]
    elif found := _FILTERED.search(path):
        attempt = int(found[1])
    elif found := _RAY_WORKER.search(path):
        pid = int(found[1])
    elif found := _LOCAL.search(path):
        local_rank = int(found[1])
    elif found := _RANK.search(path):
        rank = int(found[1])
    elif found := _TASK.search(path):
        task = int(found[1])
    return FileProfile(
        task=task, rank=rank, local_rank=local_rank, node=_node(path, nodes), pid=pid, attempt=attempt,
        place=place, stream=_stream(path), nodes=frozenset(short_name(name) for name in nodes),
        role=found[1] if (found := _ROLE.search(path)) else "",
    )


def named_file(path: str, nodes: Sequence[NodeName] = ()) -> FileProfile:
    """The same of a file that a line names beside others (tail, grep): a number at the end of its name tells it from
    them, too."""
    named = file_profile(path, nodes)
    told = (named.rank, named.local_rank, named.task, named.pid) != (None,) * 4
    last = _LAST_NUMBER.search(path) if not told else None
    return replace(named, task=int(last[1])) if last is not None else named


def _node(path: str, nodes: Sequence[NodeName]) -> NodeName | None:
    """The job's node that a path names, if it names one alone."""
    named = [name for name in nodes
             if re.search(rf"(?:^|[/._-]){re.escape(short_name(name))}(?=[/._-]|$)", path)]
    if named:
        return NodeName(short_name(named[0])) if len(named) == 1 else None
    return None  # a number ("node_rank_1") is none: torchrun gives out node ranks anew, not in Slurm's order


def _stream(path: str) -> str:
    name = "/".join(path.split("/")[-2:])
    for stream, pattern in _STREAMS:
        if pattern.search(name):
            return stream
    return ""


def family_profiles(
    paths: Sequence[str], frames: Sequence[FileProfile], job: JobRecord | None
) -> tuple[FileProfile, ...]:
    """One file a task (or node), told by a number that alone differs (`out.0`, `out_00001.err`): srun's %t, %n, %N.

    Only where the numbers run from 0 without a gap, and their count is that of the job's tasks or nodes where those
    are known. The numbers of array tasks (%a) and steps (%s) are no tasks. Single files stay as they are."""
    result = list(frames)
    families: dict[tuple[str, ...], list[int]] = {}
    for index, (path, one) in enumerate(zip(paths, frames, strict=True)):
        if (one.rank, one.task, one.local_rank, one.attempt, one.pid) == (None,) * 5:
            families.setdefault(tuple(_shape(path, one, job)[0::2]), []).append(index)
    for members in families.values():
        numbers = _task_numbers([_shape(paths[index], frames[index], job) for index in members], job)
        if numbers is None:
            continue
        for index, (kind, number) in zip(members, numbers, strict=True):
            if kind == "task":
                result[index] = replace(result[index], task=number)
            elif job is not None and result[index].node is None:
                result[index] = replace(result[index], node=NodeName(short_name(job.nodes[number])))
    return _local_is_rank(paths, result, job)


def _shape(path: str, one: FileProfile, job: JobRecord | None) -> list[str]:
    """A name cut into text and numbers by turns; the node's name and the job's id are text."""
    name = path
    if one.node is not None:
        name = re.sub(rf"(?<![A-Za-z0-9]){re.escape(one.node)}(?:\.[a-z][\w.-]*?)?(?=[/._-]|$)", "NODE", name)
    if job is not None and job.array_job_id is not None:
        name = re.sub(rf"(?<!\d){re.escape(str(job.array_job_id))}_\d+(?!\d)", "ARRAY", name)
    if job is not None:
        name = re.sub(rf"(?<!\d){re.escape(str(job.id))}(?!\d)", "JOB", name)
    name = re.sub(r"(?<![a-z0-9])slurm-\d+_\d+(?=\.|$)", "ARRAY", name)
    return _NUMBER.split(name)


def _task_numbers(
    shapes: Sequence[Sequence[str]], job: JobRecord | None
) -> list[tuple[str, int]] | None:
    """For each file of a family: whether its number is a task's or a node's, and the number."""
    if len(shapes) < 2:
        return None
    columns = [column for column in range(1, len(shapes[0]), 2) if len({shape[column] for shape in shapes}) > 1]
    tasks, nodes = (job.num_tasks, job.num_nodes) if job is not None else (None, None)
    running = []
    for column in columns:
        numbers = [int(shape[column]) for shape in shapes]
        if sorted(numbers) == list(range(len(numbers))):
            running.append(numbers)
    if len(running) != 1:
        return None
    numbers = running[0]
    others = [column for column in columns if [int(shape[column]) for shape in shapes] != numbers]
    if len(others) > 1 or (others and not _block(numbers, [int(shape[others[0]]) for shape in shapes])):
        return None
    if tasks is None or tasks == len(numbers):
        return [("task", number) for number in numbers]
    if nodes is not None and nodes == len(numbers) and job is not None and len(job.nodes) == nodes:
        return [("node", number) for number in numbers]
    return None


def _block(tasks: Sequence[int], other: Sequence[int]) -> bool:
    """Whether another number that differs can be that of the tasks' nodes: it never goes down as the tasks go up."""
    ordered = [value for _, value in sorted(zip(tasks, other, strict=True))]
    return all(later >= earlier for earlier, later in pairwise(ordered))


def _local_is_rank(
    paths: Sequence[str], frames: Sequence[FileProfile], job: JobRecord | None
) -> tuple[FileProfile, ...]:
    """torchrun's directory of the job's only node: its local ranks are the ranks."""
    runs = {path.rpartition("attempt_")[0] for path, one in zip(paths, frames, strict=True) if one.attempt is not None}
    if job is None or job.num_nodes != 1 or len(runs) != 1:
        return tuple(frames)
    return tuple(
        replace(one, rank=one.local_rank) if one.attempt is not None and one.rank is None else one for one in frames
    )
