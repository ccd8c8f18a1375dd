"""How far the clocks of a job's nodes are apart, told from what several nodes stamped at the same moment.

A training step ends on all ranks together, because its collectives hold them together; so the same step stamped on two
nodes shows the difference of their clocks to within a part of the step. A watchdog's timeout of the same collective
does so more coarsely: each rank waits from its own arrival."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from runbook.logs.collect.matches import LogMatch
from runbook.logs.collect.rank_locations import RankLocations
from runbook.model.log import Event
from runbook.model.units import NodeName

UNKNOWN_SKEW_S = 1.0
"""Two clocks of which nothing is known: whole seconds order, parts of them do not."""
_MARKS_KEPT = 4_000
_SPEAKERS_A_MARK = 64
_SMALLEST_SPREAD_S = 0.2
_TIMEOUT_SPREAD_S = 2.0

Speaker = tuple[int, int | None, NodeName | None]
"""File, rank and node as far as the line says them."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A node's clock against the reference node's: positive is ahead."""

    seconds: float
    spread_s: float
    marks: int


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


@dataclass(frozen=True, slots=True)
class Skew:
    """What is known of the nodes' clocks."""

    offsets: dict[NodeName, Offset]
    by: str = ""
    """What the estimate rests on, in words."""

    def offset(self, node: NodeName | None) -> float:
        known = self.offsets.get(node) if node is not None else None
        return known.seconds if known else 0.0

    def tolerance_s(self, one: NodeName | None, other: NodeName | None) -> float:
        """Within this many seconds two nodes' stamps do not order."""
        if one is not None and one == other:
            return 0.0
        first = self.offsets.get(one) if one is not None else None
        second = self.offsets.get(other) if other is not None else None
        return first.spread_s + second.spread_s if first and second else UNKNOWN_SKEW_S


def skew(clocks: Clocks, seen: Sequence[LogMatch], where: RankLocations) -> Skew:
    """Estimate from steps; where no step is stamped on two nodes, from watchdog timeouts of the same collective."""
    steps = [_by_node(mark, where) for mark in clocks.marks.values()]
    offsets = _offsets(steps, _SMALLEST_SPREAD_S)
    if offsets:
        return Skew(offsets, "steps that both stamped")
    timeouts: dict[int, dict[Speaker, float]] = {}
    for one in seen:
        sequence = one.match.integer("sequence")
        if Event.WATCHDOG_TIMEOUT in one.reports and sequence is not None and one.time_s is not None:
            speaker = (one.file, where.rank(one), one.log_line.node)
            timeouts.setdefault(sequence, {}).setdefault(speaker, one.time_s)
    offsets = _offsets([_by_node(mark, where) for mark in timeouts.values()], _TIMEOUT_SPREAD_S)
    return Skew(offsets, "watchdog timeouts of the same collective")


def _by_node(mark: dict[Speaker, float], where: RankLocations) -> dict[NodeName, float]:
    times: dict[NodeName, list[float]] = {}
    for (_, rank, node), time_s in mark.items():
        place = node or (where.nodes.get(rank) if rank is not None else None)
        if place is not None:
            times.setdefault(place, []).append(time_s)
    return {node: median(values) for node, values in times.items()}


def _offsets(marks: Sequence[dict[NodeName, float]], least_s: float) -> dict[NodeName, Offset]:
    shared = [mark for mark in marks if len(mark) >= 2]
    counts: dict[NodeName, int] = {}
    for mark in shared:
        for node in mark:
            counts[node] = counts.get(node, 0) + 1
    if not counts:
        return {}
    reference = max(sorted(counts), key=lambda node: counts[node])
    found = {reference: Offset(0.0, 0.0, counts[reference])}
    for node in counts:
        gaps = [mark[node] - mark[reference] for mark in shared if node in mark and reference in mark]
        if node == reference or not gaps:
            continue
        middle = median(gaps)
        spread = max((abs(gap - middle) for gap in gaps), default=0.0)
        # One mark alone says nothing of its own error.
        found[node] = Offset(middle, max(least_s, spread, UNKNOWN_SKEW_S if len(gaps) < 3 else 0.0), len(gaps))
    return found
