"""What was seen while reading: matches with their speaker, place and surroundings, before anything is judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from runbook.evidence.framing_values import Frame
from runbook.evidence.log_devices import Devices, Speakers
from runbook.evidence.signatures import Match
from runbook.model.log import Phase
from runbook.model.units import NodeName

FIRST_KEPT = 3
LAST_KEPT = 3
SPEAKERS_KEPT = 20_000
"""Consequences and harmless lines beyond so many speakers are left out, failures beyond twice as many: thousands of
ranks that say what follows must not hide the one that says why."""
LINES_BACK = 1_000
NOTES_KEPT = 20
OWN_LINES_BACK = 240
PIDS_KEPT = 10_000
ENGINE_STARTS = "JOB-ENGINE-"
"""Signatures whose id begins so name an inference engine of the job's own: "JOB-ENGINE-VLLM"."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One match in its place."""

    match: Match
    frame: Frame
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
    def means(self) -> str:
        if self.pinning and self.match.signature.pinned:
            return "host_oom"
        return self.match.signature.means


@dataclass(frozen=True, slots=True)
class Row:
    """One row of torchrun's table of failures."""

    rank: int
    local_rank: int
    node: NodeName
    pid: int
    exit_code: int
    time_s: float | None
    file: int
    offset: int = 0
    line: int = 0


@dataclass(slots=True)
class Kept:
    """The first and the last few matches of one signature by one speaker: spam is counted, not kept."""

    first: list[Seen] = field(default_factory=list)
    last: list[Seen] = field(default_factory=list)
    count: int = 0
    looked_at: int = 0
    """How many there were when one was last looked at closely behind the first few."""

    def room(self) -> bool:
        return len(self.first) < FIRST_KEPT

    def add(self, seen: Seen) -> None:
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
    pids_seen: set[int] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)

    devices: Devices = field(default_factory=Devices)
    speakers: Speakers = field(default_factory=Speakers)
    het_groups: set[int] = field(default_factory=set)
    """Components of a heterogeneous job that srun's labels name: with two of them, tasks are no ranks."""
    notes: dict[str, None] = field(default_factory=dict)
    """What a reader must know of how lines were read, once each."""

    def note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_KEPT:
            self.notes[sentence] = None

    def note_frame(self, frame: Frame) -> None:
        """Learn from a prefix: which task holds which rank, which node holds which rank, whose pid is the job's."""
        if frame.pid is not None and len(self.pids_seen) < PIDS_KEPT:
            self.pids_seen.add(frame.pid)
        if frame.group is not None:
            self.het_groups.add(frame.group)
        self.speakers.note(frame)
        if frame.rank is None:
            return
        self.ranks_seen.add(frame.rank)
        if frame.task is not None:
            self.tasks_of_ranks.setdefault(frame.rank, frame.task)
        if frame.pid is not None:
            self.pids_of_ranks.setdefault(frame.rank, frame.pid)
        if frame.node is not None:
            self.nodes_of_ranks.setdefault(frame.rank, frame.node)

    def settle(self) -> None:
        """Take over, when all is read, what NCCL says of the whole job's ranks."""
        members = self.devices.world(self.world_size)
        for one in members:
            self.nodes_of_ranks.setdefault(one.rank, one.node)
            self.pids_of_ranks.setdefault(one.rank, one.pid)
        if self.world_size is None and members and len(members) == members[0].ranks:
            self.world_size = members[0].ranks

    def note_words(self, match: Match) -> None:
        """Learn which engine speaks, and which of the allocator's variables is set to what."""
        identity, setting = match.signature.id, match.text("setting")
        if identity.startswith(ENGINE_STARTS):
            self.engines.add(identity.removeprefix(ENGINE_STARTS).lower())
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


def traceback_before(lines: Iterable[Frame], speaker: tuple[object, ...]) -> tuple[list[str], bool]:
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


def line_before(lines: Iterable[Frame], speaker: tuple[object, ...], *, at_head: bool = False) -> str:
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
