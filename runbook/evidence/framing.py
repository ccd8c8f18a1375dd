"""Who said a line: the prefixes that launchers put in front, the stamps of time, and the ranks that file names carry.

Sources: srun's write_labelled_message.c, torchelastic's tail_log.py, Open MPI's iof_base_output.c, Ray's worker.py,
NCCL's debug.cc, pdsh's dsh.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

from runbook.model.units import NodeName

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}\x07?)")
_LABEL = re.compile(r" {0,6}(\d{1,6}): ")
_RANK = re.compile(r"\[[Rr]ank:? ?(\d{1,6})\]:? ?")
_ROLE = re.compile(r"\[([A-Za-z_][\w-]{0,30}?)(\d{1,4})\]: ?")
_MPI = re.compile(r"\[\d{1,9},(\d{1,6})\](?:\[[^\]]{1,80}\])?<std(?:out|err)>: ?")
_RAY = re.compile(r"\(([A-Za-z_][\w.:]{0,80}) pid=(\d{1,9})(?:, ip=([\d.]{7,15}))?\) ?")
_NODE_LOCAL = re.compile(r"\[([A-Za-z][A-Za-z0-9.-]{1,60}):(\d{1,3})\]:? ?")
_NCCL = re.compile(r"(?:\[\S{8,30}\] )?([A-Za-z][\w.-]{0,60}):(\d{1,9}):\d{1,9} \[(\d{1,3})\] ")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,60}): ")

_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"\[[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")


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
    """The line's beginning with its prefix, where c10d's stamp of time stands."""

    @property
    def speaker(self) -> tuple[object, ...]:
        """Equal for lines of one process: what brings an interleaved traceback together again."""
        return (self.task, self.rank, self.local_rank, self.node)


@dataclass(frozen=True, slots=True)
class FileFrame:
    """What a file's name and first lines say of all its lines."""

    labelled: bool = False
    """Lines begin with srun's task label."""
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    attempt: int | None = None
    nodes: frozenset[str] = frozenset()
    """Names that count as a host prefix ("gpu-22: …")."""


def without_escapes(text: str) -> str:
    """Text without terminal escapes (colours, titles)."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def frame(line: str, file: FileFrame) -> Frame:
    """Take the launchers' prefixes off, however they are stacked. What the file says fills what the line does not."""
    text = without_escapes(line)
    task = rank = local_rank = pid = device = None
    node: NodeName | None = None
    position = 0
    if file.labelled and (found := _LABEL.match(text)):
        task, position = int(found[1]), found.end()
    for _ in range(5):
        if not file.nodes and text[position:position + 1] not in ("[", "("):
            break
        if found := _RANK.match(text, position):
            rank = int(found[1])
        elif found := _ROLE.match(text, position):
            local_rank = int(found[2])
        elif found := _MPI.match(text, position):
            rank = int(found[1])
        elif found := _RAY.match(text, position):
            pid = int(found[2])
        elif (found := _NODE_LOCAL.match(text, position)) and (not file.nodes or _short(found[1]) in file.nodes):
            node, local_rank = NodeName(found[1]), int(found[2])
        elif file.nodes and (found := _HOST.match(text, position)) and _short(found[1]) in file.nodes:
            node = NodeName(_short(found[1]))
        else:
            break
        position = found.end()
    if " NCCL " in text and (found := _NCCL.match(text, position)):
        node, pid, device = NodeName(_short(found[1])), int(found[2]), int(found[3])
    return Frame(
        text=text[position:],
        task=task,
        rank=rank if rank is not None else file.rank,
        local_rank=local_rank if local_rank is not None else file.local_rank,
        node=node or file.node,
        pid=pid,
        device=device,
        stamp=text[:200],
    )


def _short(host: str) -> str:
    return host.partition(".")[0]


def read_time(text: str, year: int | None) -> float | None:
    """The first stamp among a line's first 200 characters, as epoch seconds. Stamps without a zone are read as UTC.

    `year` completes stamps that carry none (c10d's "[E1121 10:00:00.123"); None leaves those unread."""
    head = text[:200]
    try:
        if found := _STAMP.search(head):
            zone = UTC if found[8] in (None, "Z") else _zone(found[8])
            moment = datetime.strptime("-".join(found.groups()[:6]), "%Y-%m-%d-%H-%M-%S").replace(tzinfo=zone)
            return moment.timestamp() + _fraction(found[7])
        if year is not None and (found := _GLOG.search(head)):
            moment = datetime.strptime(f"{year:04}-" + "-".join(found.groups()[:5]), "%Y-%m-%d-%H-%M-%S")
            moment = moment.replace(tzinfo=UTC)
            return moment.timestamp() + _fraction(found[6])
    except ValueError:
        return None
    return None


def _zone(written: str) -> timezone:
    sign = -1 if written[0] == "-" else 1
    digits = written[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def _fraction(digits: str | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0


_FILE_RANK = re.compile(r"(?:^|[/._-])rank[._-]?(\d{1,6})(?=[/._-]|$)")
_FILE_TASK = re.compile(r"(?:^|[/._-])task[._-]?(\d{1,6})(?=[/._-]|$)")
_FILE_LOCAL = re.compile(r"attempt_(\d{1,4})/(\d{1,4})/std(?:out|err)\.log(?:\.gz)?$")


def frame_of_file(path: str, first_lines: Sequence[str], nodes: Sequence[NodeName]) -> FileFrame:
    """What a file's name and its first lines say: rank, node, attempt, and whether srun labelled it."""
    rank = local_rank = attempt = None
    if found := _FILE_LOCAL.search(path):
        attempt, local_rank = int(found[1]), int(found[2])
    elif found := _FILE_RANK.search(path) or _FILE_TASK.search(path):
        rank = int(found[1])
    named = [name for name in nodes if re.search(rf"(?:^|[/._-]){re.escape(name)}(?=[/._-]|$)", path)]
    lines = [without_escapes(line) for line in first_lines if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    labelled = len(own) >= 2 and sum(1 for line in own if _LABEL.match(line)) * 2 > len(own)
    return FileFrame(
        labelled=labelled, rank=rank, local_rank=local_rank, node=named[0] if len(named) == 1 else None,
        attempt=attempt, nodes=frozenset(_short(name) for name in nodes),
    )


def frames_of_family(paths: Sequence[str], frames: Sequence[FileFrame], tasks: int | None) -> tuple[FileFrame, ...]:
    """One file a task, told by a number that alone differs (`out.0`, `out.1`, …): that number is the task.

    Only where the numbers run from 0 without a gap, and their count is `tasks` where that is known."""
    shapes = [re.split(r"(\d+)", path.rpartition("/")[2]) for path in paths]
    if len(paths) < 2 or len({len(shape) for shape in shapes}) != 1 or any(one.rank is not None for one in frames):
        return tuple(frames)
    if any(one.attempt is not None for one in frames):
        return tuple(frames)
    differing = [
        index for index in range(len(shapes[0])) if len({shape[index] for shape in shapes}) > 1
    ]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return tuple(frames)
    numbers = [int(shape[differing[0]]) for shape in shapes]
    if sorted(numbers) != list(range(len(numbers))) or (tasks is not None and tasks != len(numbers)):
        return tuple(frames)
    return tuple(replace(one, rank=number) for one, number in zip(frames, numbers))
