"""What is known of who said a line: a framed line, the habits of a file, what a file's name says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.model.units import NodeName

_NUMBERS = re.compile(r"\d+")
_MILD = re.compile(r"(?:^|[\s\[(|:])(?:WARNING|WARN|INFO|DEBUG|[Ww]arning)(?:[\s\])|:,]|$)|\b\w{0,40}Warning: ")
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

    @property
    def speaker(self) -> tuple[object, ...]:
        """Equal for lines of one process: what brings an interleaved traceback together again."""
        return (self.task, self.rank, self.local_rank, self.node, self.group, self.voice)

    @property
    def mild(self) -> bool:
        """The line is a warning or information by its own words: where it is no exception, it quotes one."""
        text = f"{self.level} {self.text[:_LEVEL_AREA]}"
        return " NCCL WARN " not in text and bool(_MILD.search(text))

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
    templates: frozenset[str] = frozenset()
    """Shapes of bracketed prefixes that name a rank ("default-#|rank #"), as torchrun's template allows them."""


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


def shape_of(words: str) -> str:
    """Words with every number as "#"."""
    return _NUMBERS.sub("#", words)


def short_name(host: str) -> str:
    return host.partition(".")[0]
