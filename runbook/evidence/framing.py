"""Who said a line: the prefixes that launchers put in front, however they are stacked, coloured, broken.

Sources: srun's write_labelled_message.c, torchelastic's tail_log.py, Open MPI's iof_base_output.c,
openpmix' pmix_iof.c, Ray's worker.py, NCCL's debug.cc, pdsh's dsh.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from runbook.evidence.framing_stamps import COLLECTOR, LEADING
from runbook.model.units import NodeName

PREFIXES_AT_MOST = 10
_PREFIX_CHARACTERS = 400

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}\x07?)")
_LOST_COLOUR = re.compile(r"\[\d{0,3}(?:;\d{1,3}){0,4}m ?")
"""A colour whose ESC byte a web page or an editor took away."""
LABEL = re.compile(r"(?:P(\d{1,3}) )?( {0,8}\d{1,6}):(?: |$)")
_RANK = re.compile(r"\[(?:[Gg]lobal[ _])?(?:[Rr]ank|RANK)[:=_ ]{0,2}(\d{1,6})\]:? ?")
_LOCAL = re.compile(r"\[(?:[Ll]ocal[ _-]?[Rr]ank|LOCAL_RANK)[:=_ ]{0,2}(\d{1,4})\]:? ?")
ROLE = re.compile(r"\[([A-Za-z_][\w-]{0,30}?)(\d{1,4})\]:")
RANK_AS_ROLE = re.compile(r"\[rank(\d{1,6})\]:\[rank(\d{1,6})\]:")
"""torchrun's role may be called "rank" itself: then its local rank stands in front of PyTorch's own prefix."""
BARE = re.compile(r"\[(\d{1,6})\]:")
MPI = re.compile(r"\[[\w.@+-]{1,120},(\d{1,6})\](?:\[([\w.-]{1,80}):(\d{1,9})\])?<std(?:out|err|diag)>:")
_RAY = re.compile(
    r"\(([A-Za-z_][^()\n]{0,80}(?:\(([^()\n]{0,80})\))?[^()\n]{0,40}?) pid=(\d{1,9})(?:, ip=([\w.:]{3,45}))?\) ?"
)
_RAY_SYSTEM = re.compile(r"\((raylet|gcs_server|dashboard|autoscaler)(?:, ip=([\w.:]{3,45})| \+[\dhms.]{1,20})?\) ?")
_ACTOR_RANK = re.compile(r"(?:^|[ ,])(?:world_)?rank=(\d{1,6})(?=$|[ ,])")
_RAY_REPEATED = re.compile(r"(?:\[\d{1,3}m)? \[repeated (\d{1,9})x across cluster\]")
TEMPLATE = re.compile(r"\[([^\[\]\n]{1,60})\]:? ?")
_TEMPLATE_RANK = re.compile(r"(?<![A-Za-z])(?:global[ _-]?)?rank[ :=_-]{0,2}(\d{1,6})", re.IGNORECASE)
_TEMPLATE_LOCAL = re.compile(r"(?<![A-Za-z])local(?:[ _-]?rank)?[ :=_-]{0,2}(\d{1,4})", re.IGNORECASE)
NODE_LOCAL = re.compile(r"\[([A-Za-z][A-Za-z0-9.-]{1,60}):(\d{1,3})\]:? ?")
_POD = re.compile(r"\[(?:pod|container|ns|node)/[\w./-]{1,200}\] ?")
_NCCL = re.compile(r"(?:\[[^\]\n]{8,40}\] )?([A-Za-z][\w.-]{0,60}):(\d{1,9}):\d{1,9} \[(\d{1,3})\] ")
HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,80}):(?: |$)")
PIPED = re.compile(r"([\w.-]{1,80}) {0,30}\| ?")
SAGEMAKER = re.compile(r"(?:[\w-]{1,40}-)?(algo-\d{1,5})(?:-\w{1,20})?$")
CONTAINER = re.compile(r"([\w.-]{3,80}) ([\w.-]{1,60}) ")
_SOURCE_FILE = re.compile(r"\.(?:py|cpp|cc|cu|cuh|c|h|hpp|go|rs)$")

_NUMBERS = re.compile(r"\d+")
_LEVEL_OF_RANK = re.compile(
    r"\[?(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?(?::[\w.]{1,80})?:?(?: [-|])? {0,8}"
    r"(?=\[rank\d{1,6}\]:)"
)
"""A logger's level between its stamp and PyTorch's prefix: the line is the logger's and not two processes'."""

_BREAK = re.compile(
    r"(?<!['\"`(={,])(?:\[rank\d{1,6}\]: ?|\[[A-Za-z_][\w-]{0,30}?\d{1,4}\]:|\[\d{1,6}\]:"
    r"|\[[\w.@+-]{1,120},\d{1,6}\](?:\[[\w.-]{1,80}:\d{1,9}\])?<std(?:out|err)>:"
    r"| ?\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\] iteration +\d)"
)
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,300}\| {0,12}\d{1,12}/(?:\d{1,12}|\?) \[[^\[\]\n]{1,200}\]")
IS_BAR = re.compile(r"\s{0,8}(?:[^%|\n]{0,80}: {1,6})?\d{1,3}%\|[^|\n]{0,300}\|[^\n]{0,260}$")


@dataclass(frozen=True, slots=True)
class Frame:
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

    @property
    def speaker(self) -> tuple[object, ...]:
        """Equal for lines of one process: what brings an interleaved traceback together again."""
        return (self.task, self.rank, self.local_rank, self.node, self.group, self.voice)

    @property
    def unnamed(self) -> bool:
        """Nothing in the line says which process of its task or node it is."""
        return self.rank is None and self.local_rank is None and not self.voice


@dataclass(frozen=True, slots=True)
class Habits:
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
    templates: frozenset[str] = frozenset()
    """Shapes of bracketed prefixes that name a rank ("default-#|rank #"), as torchrun's template allows them."""


@dataclass(frozen=True, slots=True)
class FileFrame:
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
    habits: Habits = Habits()
    prefixes: tuple[re.Pattern[str], ...] = ()
    """A site's own prefixes, with groups named rank, local_rank, node, pid."""
    place: str = ""
    """The folder of one process's files: what one of them says of the process holds for the others."""
    time_s: float | None = None
    """When all of it was said, for a file that holds one event."""
    converted: bool = False
    """What is read is not the file's own text, so that places in it mean nothing."""


@dataclass(slots=True)
class _Said:
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
    level: str = ""


def without_escapes(text: str) -> str:
    """Text without terminal escapes (colours, titles) and zero bytes (a signal handler of PyTorch's writes one)."""
    if "\0" in text:
        text = text.replace("\0", "")
    return _ANSI.sub("", text) if "\x1b" in text else text


def shape_of(words: str) -> str:
    """Words with every number as "#"."""
    return _NUMBERS.sub("#", words)


def short_name(host: str) -> str:
    return host.partition(".")[0]


def frame(line: str, file: FileFrame) -> Frame:
    """Take the launchers' prefixes off, however they are stacked. What the file says fills what the line does not."""
    return _framed(without_escapes(line), file, _Said())


def frames(line: str, file: FileFrame) -> list[Frame]:
    """As `frame`, but a line that several processes wrote into each other becomes a frame a piece."""
    text = without_escapes(line)
    said = _Said()
    first = _framed(text, file, said)
    begin = len(text) - len(first.text)
    starts = [] if first.repeats else list(_broken_at(text, begin, said, file))
    if not starts:
        return [first]
    pieces = [replace(first, text=text[begin: starts[0][0]], cut=starts[0][1])]
    for index, (start, by_other) in enumerate(starts):
        last = index + 1 == len(starts)
        # A task or a node prints line by line, so its prefix holds for the whole line; a rank's does not.
        own = _Said(task=said.task, group=said.group, node=said.node)
        if not by_other:
            own.rank, own.local_rank, own.voice, own.pid = said.rank, said.local_rank, said.voice, said.pid
        piece = _framed(text[start:] if last else text[start: starts[index + 1][0]], file, own)
        pieces.append(replace(
            piece, cut=not last and starts[index + 1][1], after_cut=any(other for _, other in starts[: index + 1])
        ))
    return pieces


def _broken_at(text: str, begin: int, said: _Said, file: FileFrame) -> Iterator[tuple[int, bool]]:
    """Where pieces begin, and whether another process wrote the piece (else the same one, behind its progress bar)."""
    end_of_bar = -1
    if "%|" in text and (bar := _BAR.search(text, begin)) and text[bar.end():].strip() and (
        text[bar.end():].lstrip()[:1] not in ("{", ",")
    ):
        end_of_bar = bar.end()
    if "]: " not in text[begin:] and "]:" not in text[begin:] and ">:" not in text and "] iteration" not in text:
        if end_of_bar >= 0:
            yield end_of_bar, False
        return
    previous = begin
    rank = said.rank
    for found in _BREAK.finditer(text, begin):
        start, words = found.start(), found[0]
        if not text[previous:start].strip():
            previous = found.end()
            continue
        if role := ROLE.fullmatch(words.rstrip()):
            if role[1] == "rank":
                if int(role[2]) == (said.local_rank if "rank" in file.habits.roles else rank):
                    continue
                rank = int(role[2])
            elif role[1] not in file.habits.roles or int(role[2]) == said.local_rank:
                continue
        elif BARE.fullmatch(words) and not file.habits.bare:
            continue
        if 0 <= end_of_bar <= start:
            if text[end_of_bar:start].strip():
                yield end_of_bar, False
            end_of_bar = -1
        yield start, True
        previous = found.end()
    if end_of_bar >= 0:
        yield end_of_bar, False


def _framed(text: str, file: FileFrame, said: _Said) -> Frame:
    position, behind_stamps = _prefixes(text, file, said)
    if " NCCL " in text and (found := _NCCL.match(text, behind_stamps) or _NCCL.match(text, position)):
        said.node, said.pid, said.device = NodeName(short_name(found[1])), int(found[2]), int(found[3])
    body, repeats = text[position:], 0
    if "x across cluster]" in body and (folded := _RAY_REPEATED.search(body)):
        body, repeats = body[: folded.start()], int(folded[1])
    return Frame(
        text=body,
        task=said.task if said.task is not None else file.task,
        rank=said.rank if said.rank is not None else file.rank,
        local_rank=said.local_rank if said.local_rank is not None else file.local_rank,
        node=said.node or file.node,
        pid=said.pid if said.pid is not None else file.pid,
        device=said.device,
        stamp=text[said.region: said.region + 240],
        group=said.group,
        voice=said.voice,
        ip=said.ip,
        repeats=repeats,
        time_s=file.time_s,
        place=file.place,
        level=said.level,
    )


def _prefixes(text: str, file: FileFrame, said: _Said) -> tuple[int, int]:
    """Where the line's own text begins, and where it would begin if the stamps in front of it were prefixes too."""
    position = kept = 0
    for _ in range(PREFIXES_AT_MOST):
        first = text[position:position + 1]
        stop = _site_prefix(text, position, file, said) if file.prefixes else position
        if stop == position:
            if first == "[":
                stop = _bracketed(text, position, file, said)
            elif first == "(":
                stop = _ray(text, position, said)
            elif first:
                stop = _named(text, position, file, said)
        if stop > position:
            kept = position = stop
        elif first and (found := LEADING.match(text, position)):
            if file.habits.collected and position == kept and COLLECTOR.match(text, position):
                kept = found.end()
            said.stamped = True
            position = found.end()
        elif "[rank" in text and (found := _LEVEL_OF_RANK.match(text, position)):
            said.level = found[1]
            kept = position = found.end()
        else:
            break
    return kept, position


def _bracketed(text: str, position: int, file: FileFrame, said: _Said) -> int:
    found: re.Match[str] | None
    habits = file.habits
    if (found := ROLE.match(text, position)) and found[1] == "rank" and said.local_rank is None and (
        "rank" in file.habits.roles or RANK_AS_ROLE.match(text, position)
    ):
        said.local_rank = int(found[2])
        return _behind_space(text, found.end(), file)
    if found := _RANK.match(text, position):
        if said.rank is not None and said.rank != int(found[1]):
            return position  # "[rank11]: [Rank 3] …": the inner one is a group's own numbering
        said.rank = int(found[1])
    elif found := _LOCAL.match(text, position):
        said.local_rank = int(found[1])
    elif (found := ROLE.match(text, position)) and found[1] in file.habits.roles:
        said.local_rank = int(found[2])
        return _behind_space(text, found.end(), file)
    elif found := MPI.match(text, position):
        said.rank = int(found[1])
        if found[2]:
            said.node, said.pid = NodeName(short_name(found[2])), int(found[3])
        return _behind_space(text, found.end(), file)
    elif file.habits.bare and (found := BARE.match(text, position)):
        if file.habits.bare == "rank":
            said.rank = int(found[1])
        else:
            said.local_rank = int(found[1])
        return _behind_space(text, found.end(), file)
    elif habits.templates and (found := TEMPLATE.match(text, position)) and shape_of(found[1]) in habits.templates:
        if rank := _TEMPLATE_RANK.search(found[1]):
            said.rank = int(rank[1])
        if local := _TEMPLATE_LOCAL.search(found[1]):
            said.local_rank = int(local[1])
    elif (found := NODE_LOCAL.match(text, position)) and _is_host(found[1], file):
        said.node, said.local_rank = NodeName(short_name(found[1])), int(found[2])
    elif found := _POD.match(text, position):
        said.voice = found[0]
        _region(said, found.end())
    elif not (found := _LOST_COLOUR.match(text, position)):
        return position
    return found.end()


def _behind_space(text: str, position: int, file: FileFrame) -> int:
    """Some launchers put a space behind their prefix and some none; two spaces are the line's own indentation."""
    space = text[position:position + 1] == " " and (file.habits.spaced or text[position + 1:position + 2] != " ")
    return position + 1 if space else position


def _ray(text: str, position: int, said: _Said) -> int:
    if found := _RAY.match(text, position):
        said.pid, said.ip = int(found[3]), found[4] or ""
        said.voice = f"{found[1]} {found[3]} {said.ip}"
        if found[2] and (rank := _ACTOR_RANK.search(found[2])):
            said.rank = int(rank[1])
    elif found := _RAY_SYSTEM.match(text, position):
        said.voice, said.ip = f"{found[1]} {found[2] or ''}", found[2] or ""
    else:
        return position
    return found.end()


def _named(text: str, position: int, file: FileFrame, said: _Said) -> int:
    """Prefixes of words and numbers: labels, hosts, containers. Each only where the file is known to have it."""
    habits = file.habits
    if (
        habits.label_widths and said.task is None and (found := LABEL.match(text, position))
        and len(found[2]) in habits.label_widths
    ):
        said.task, said.group = int(found[2]), int(found[1]) if found[1] else None
        return found.end()
    if (
        (file.nodes or habits.hosts) and said.node is None and (found := HOST.match(text, position))
        and (short_name(found[1]) in file.nodes or found[1] in habits.hosts)
    ):
        said.node = NodeName(short_name(found[1]))
        return found.end()
    if found := PIPED.match(text, position):
        if container := SAGEMAKER.match(found[1]):
            said.node = NodeName(container[1])
        elif not habits.piped or said.voice:
            return position
        said.voice = found[1]
        _region(said, found.end())
        return found.end()
    if (
        habits.containers and not said.voice and (found := CONTAINER.match(text, position))
        and found[2] in habits.containers
    ):
        said.voice = found[0]
        _region(said, found.end())
        return found.end()
    return position


def _region(said: _Said, position: int) -> None:
    """A prefix of free words is no part of the region where a stamp may stand, unless a stamp came before it."""
    if not said.stamped:
        said.region = position


def _is_host(name: str, file: FileFrame) -> bool:
    if file.nodes:
        return short_name(name) in file.nodes
    return not _SOURCE_FILE.search(name) and (name in file.habits.hosts or any(one.isdigit() for one in name))


def _site_prefix(text: str, position: int, file: FileFrame, said: _Said) -> int:
    for pattern in file.prefixes:
        found = pattern.match(text[position: position + _PREFIX_CHARACTERS])
        if found is None or not found.end():
            continue
        words = {name: value.strip() for name, value in found.groupdict().items() if value}
        for name in ("rank", "local_rank", "pid"):
            if words.get(name, "").isdecimal():
                setattr(said, name, int(words[name]))
        if words.get("node"):
            said.node = NodeName(short_name(words["node"]))
        _region(said, position + found.end())
        return position + found.end()
    return position


def site_prefixes(expressions: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """A site's own prefixes made ready. Raises ValueError in words for the author."""
    known = ("rank", "local_rank", "node", "pid")
    patterns = []
    for expression in expressions:
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise ValueError(f"prefix {expression!r} is no regular expression: {error}") from error
        if not set(pattern.groupindex) & set(known):
            raise ValueError(f"prefix {expression!r} has no group named {', '.join(known)}, so it tells nothing")
        patterns.append(pattern)
    return tuple(patterns)
