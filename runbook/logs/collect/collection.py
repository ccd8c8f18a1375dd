"""What is collected over all files of a job, and where the reading of one file stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from runbook.logs.collect.matches import MatchGroup, Tables
from runbook.logs.lines import IS_BAR, FileProfile, LogLine, PrefixProfile, parse_lines, read_time
from runbook.logs.progress import ProgressReader
from runbook.logs.search import LiteralSearch, View, decode
from runbook.logs.signatures import Signature, Signatures
from runbook.model.units import NodeName

_FRAMES_REMEMBERED = 4_000
_LOOKED_AT_CLOSELY = 64
BELOW_BYTES = 8 << 10
PASTED_BYTES = 2048
"""A log of no more is a few lines that a person chose."""
UNKNOWN_SKEW_S = 1.0
"""Two clocks of which nothing is known: whole seconds order, parts of them do not."""
_MARKS_KEPT = 4_000
_SPEAKERS_A_MARK = 64

Speaker = tuple[int, int | None, NodeName | None]
"""File, rank and node as far as the line says them."""


@dataclass(frozen=True, slots=True)
class End:
    """The last stamped line of a file."""

    file: int
    time_s: float
    rank: int | None
    node: NodeName | None


@dataclass(slots=True)
class Clocks:
    """Stamps of moments that several speakers share, collected while reading."""

    marks: dict[tuple[str, int], dict[Speaker, float]] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    """The last stamp of each file."""

    files: set[int] = field(default_factory=set)
    """Files whose steps are stamped."""
    _latest: list[float] | None = None

    def note(self, kind: str, number: int | None, speaker: Speaker, time_s: float | None) -> None:
        """A stamped line about something numbered that happens once, such as a step."""
        if time_s is None or number is None:
            return
        self.files.add(speaker[0])
        mark = self.marks.get((kind, number))
        if mark is None:
            if len(self.marks) >= _MARKS_KEPT:
                del self.marks[next(iter(self.marks))]
            mark = self.marks[(kind, number)] = {}
        if len(mark) < _SPEAKERS_A_MARK:
            mark.setdefault(speaker, time_s)

    def ended(self, end: End | None) -> None:
        """The newest stamp of a file so far."""
        if end is not None:
            self.ends[end.file] = end

    def steps_after(self, time_s: float) -> int:
        """How many steps somebody stamped more than a second after a moment; asked when reading is over."""
        if self._latest is None:
            newest: dict[int, float] = {}
            for (_, number), mark in self.marks.items():
                newest[number] = max(newest.get(number, 0.0), *mark.values())
            self._latest = sorted(newest.values())
        return len(self._latest) - bisect_right(self._latest, time_s + UNKNOWN_SKEW_S)


@dataclass(slots=True)
class Collection:
    """Everything that is collected over all files of a job."""

    signatures: Signatures
    events: LiteralSearch
    steps: LiteralSearch
    started_s: float | None
    """When the job began (epoch seconds): the year of stamps that carry none."""
    nodes: tuple[NodeName, ...]
    kept: dict[tuple[str, int, tuple[object, ...]], MatchGroup] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    progress: ProgressReader = field(default_factory=ProgressReader)
    clocks: Clocks = field(default_factory=Clocks)
    known_sets: dict[frozenset[bytes], list[Signature]] = field(default_factory=dict)
    """Candidates by the set of literals that a line holds."""
    known_steps: dict[frozenset[bytes], list[Signature]] = field(default_factory=dict)
    habits: dict[bytes, PrefixProfile] = field(default_factory=dict)
    """What was learned from a file's first lines, by how they read without their digits: thousands begin alike."""
    looked_at: dict[str, int] = field(default_factory=dict)
    """How many warnings of a signature were looked at closely, by its id."""
    like_others: dict[str, int] = field(default_factory=dict)
    """Lines of a signature that were not looked at, as their file ends like others (`tails.TailDeduplicator`)."""
    cut_lines: int = 0
    long_misses: int = 0
    """Long lines that hold a signature's words and match none."""
    tasks_left: int = 200_000
    """Numbers of tasks that may still be remembered; of a list behind that only the first is read."""
    last_attempt: int = 0

    def count_tasks(self, tasks: int) -> None:
        """Take so many numbers of tasks off what may be remembered, and say when that is used up."""
        if tasks > 1:
            self.tasks_left -= tasks
            if self.tasks_left <= 0:
                self.tables.note(
                    "The launcher's lines name more than 200000 tasks; of the later lists only the first task is read."
                )

    def candidates(self, line: bytes) -> list[Signature]:
        """Signatures one of whose literals is in the line, in the documents' order."""
        found = frozenset(self.events.within(line))
        known = self.known_sets.get(found)
        if known is None:
            known = [one for one in self.signatures.events if not found.isdisjoint(one.encoded)]
            self.known_sets[found] = known
        return known

    def known_well(self, signature: Signature) -> bool:
        """Whether as many warnings of a signature were looked at closely as anybody wants to see; counts one more."""
        looked_at = self.looked_at.get(signature.id, 0)
        self.looked_at[signature.id] = looked_at + 1
        return looked_at >= _LOOKED_AT_CLOSELY

    def step_candidates(self, line: bytes) -> list[Signature]:
        """The same of the lines of progress."""
        found = frozenset(self.steps.within(line))
        known = self.known_steps.get(found)
        if known is None:
            known = [one for one in self.signatures.progress if not found.isdisjoint(one.encoded)]
            self.known_steps[found] = known
        return known


@dataclass(slots=True)
class FileState:
    """Where the reading of one file stands: shared by those who match, keep and sample its lines."""

    collection: Collection
    index: int
    """The file's place among the job's files."""
    named: FileProfile
    """What its name and its first lines say of each line."""
    attempt: int = 0
    """The attempt that it tells of at the place reached."""
    several: bool = False
    """It is the output of a program that prints several files behind each other, each under its name."""
    framed: dict[tuple[int, int], tuple[LogLine, ...]] = field(default_factory=dict)
    remembered: int = 0
    """Lines in `framed`."""

    def parsed_lines(
        self, view: View, spans: Iterable[tuple[int, int]], nearest_first: bool = False
    ) -> Iterator[LogLine]:
        """Lines framed. What is around one failure is around the next, so the newest are remembered."""
        for start, stop in spans:
            # The end counts too: what stands in front of a carriage return is asked for alone and with what follows.
            key = (view.base + start, stop - start)
            known = self.framed.get(key)
            if known is None:
                known = lines_between_newlines(decode(view.buffer[start:stop]), self.named)
                self.remembered += len(known)
                if self.remembered > _FRAMES_REMEMBERED:
                    self.framed.clear()
                    self.remembered = len(known)
                self.framed[key] = known
            yield from reversed(known) if nearest_first else known

    def above(self, view: View, here: LogLine, start: int) -> Iterator[LogLine]:
        """The lines in front of one, nearest first: those of its own record (`json_records`), then the file's."""
        for index in range(here.at - 1, -1, -1):
            yield replace(here, text=here.record[index], at=index)
        yield from self.parsed_lines(view, view.before(start), True)

    def below(self, view: View, here: LogLine, stop: int, limit_bytes: int = BELOW_BYTES) -> Iterator[LogLine]:
        """The lines behind one, nearest first, as `above`."""
        for index in range(here.at + 1, len(here.record)):
            yield replace(here, text=here.record[index], at=index)
        yield from self.parsed_lines(view, view.after(stop, limit_bytes))

    def time_of(self, here: LogLine) -> float | None:
        time_s = read_time(here.stamp, self.collection.started_s)
        return time_s if time_s is not None else here.time_s

    def restart(self, offset: int) -> None:
        self.attempt += 1
        self.collection.progress.restart(self.index, offset)


def lines_between_newlines(line: str, file: FileProfile) -> tuple[LogLine, ...]:
    """A line between newlines: what stands between carriage returns are lines of their own, progress bars are none."""
    found: list[LogLine] = []
    for part in line.rstrip("\r").split("\r"):
        found += [one for one in parse_lines(part, file) if not ("%|" in one.text and IS_BAR.match(one.text))]
    return tuple(found)


def rank_of(here: LogLine) -> int | None:
    """The rank that a line names, else its task's number, which mostly is the same."""
    return here.rank if here.rank is not None else here.task
