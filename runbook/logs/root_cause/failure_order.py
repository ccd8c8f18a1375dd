"""Which of several ranks' failures came first, and what that order rests on.

Within a file the order of lines counts (stamps of one node's clock go before it). Across files only time does: exact
stamps; the rows of torchrun's tables, which are whole seconds of the agent's node and of its polling; and the stamp of
an earlier line, which a failure cannot precede. Where the order is not known, a choice is made and called a tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.logs.collect import TEARDOWN_CODES, UNKNOWN_SKEW_S, Clocks, LogMatch, RankLocations, Speaker
from runbook.logs.signatures import AT_START
from runbook.model.log import Event
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_logs import Say
from runbook.model.units import NodeName, median

_POLL_S = 1.0
RANKS_NAMED = 16
_SMALLEST_SPREAD_S = 0.2
_TIMEOUT_SPREAD_S = 2.0

# How far the clocks of a job's nodes are apart, told from what several nodes stamped at the same moment. A training
# step ends on all ranks together, because its collectives hold them together; so the same step stamped on two nodes
# shows the difference of their clocks to within a part of the step. A watchdog's timeout of the same collective does so
# more coarsely: each rank waits from its own arrival.


@dataclass(frozen=True, slots=True)
class Offset:
    """A node's clock against the reference node's: positive is ahead."""

    seconds: float
    spread_s: float
    marks: int


@dataclass(frozen=True, slots=True)
class Skew:
    """What is known of the nodes' clocks."""

    offsets: dict[NodeName, Offset]
    by: Sentence = NOTHING
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
        return Skew(offsets, Say.BY_STEPS_BOTH_STAMPED())
    timeouts: dict[int, dict[Speaker, float]] = {}
    for one in seen:
        sequence = one.match.integer("sequence")
        if Event.WATCHDOG_TIMEOUT in one.reports and sequence is not None and one.time_s is not None:
            speaker = (one.file, where.rank(one), one.log_line.node)
            timeouts.setdefault(sequence, {}).setdefault(speaker, one.time_s)
    offsets = _offsets([_by_node(mark, where) for mark in timeouts.values()], _TIMEOUT_SPREAD_S)
    return Skew(offsets, Say.BY_WATCHDOG_TIMEOUTS())


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


@dataclass(frozen=True, slots=True)
class Moment:
    """When a failure happened: between these two, by the clock of a node."""

    earliest: float
    latest: float
    node: NodeName | None


@dataclass(frozen=True, slots=True)
class Ordered:
    """Failures, the first one leading; how many after it could be first as well; and the reason."""

    failures: tuple[LogMatch, ...]
    tied: int = 0
    notes: tuple[Sentence, ...] = ()


@dataclass(frozen=True, slots=True)
class Orderer:
    """Orders failures, one a rank, of one job."""

    where: RankLocations
    skew: Skew
    paths: Sequence[str]

    def order(self, firsts: Sequence[LogMatch]) -> Ordered:
        """`firsts` are in the order of files and places."""
        if len(firsts) < 2:
            return Ordered(tuple(firsts))
        by_file: dict[int, list[LogMatch]] = {}
        for one in firsts:
            by_file.setdefault(one.file, []).append(one)
        files = {file: self._within(found) for file, found in by_file.items()}
        if len(files) == 1:
            found = next(iter(files.values()))
            return Ordered(tuple(found), 0, (*self._line_notes(found), *self._contradiction(found)))
        leaders = [found[0] for found in files.values()]
        moments = {id(one): self._moment(one) for one in firsts}
        pivot = min(leaders, key=lambda one: moments[id(one)].latest)
        undecided = [
            one for one in leaders if one is pivot or not self._before(moments[id(pivot)], moments[id(one)])
        ]
        chosen, why = self._chosen(undecided, pivot)
        tied = [one for one in undecided if one is not chosen]
        taken = {id(chosen), *(id(one) for one in tied)}
        rest = sorted(
            (one for one in firsts if id(one) not in taken),
            key=lambda one: (moments[id(one)].earliest, one.file, one.offset),
        )
        note = self._tie_note(chosen, tied, moments, why, len(firsts)) if tied else self._time_note(chosen, firsts)
        return Ordered((chosen, *tied, *rest), len(tied), (note, *self._skew_note(chosen, [*tied, *rest])))

    def stamp(self, seen: LogMatch) -> float | None:
        """The stamp of the line itself."""
        return seen.time_s if seen.time_exact else None

    def _moment(self, seen: LogMatch) -> Moment:
        """By the reference clock, as far as the skew is known."""
        rank = self.where.rank(seen)
        node = seen.log_line.node or (self.where.nodes.get(rank) if rank is not None else None)
        offset = self.skew.offset(node)
        exact = self.stamp(seen)
        if exact is not None:
            width = 1.0 if exact == int(exact) else 0.0
            return Moment(exact - offset, exact + width - offset, node)
        row = self.where.row(rank)
        if row is not None and row.time_s is not None:
            return Moment(row.time_s - _POLL_S - offset, row.time_s + 1.0 - offset, node)
        if seen.time_s is not None:
            return Moment(seen.time_s - offset, math.inf, node)
        return Moment(-math.inf, math.inf, node)

    def _before(self, one: Moment, other: Moment) -> bool:
        """Whether `one` certainly came first. Whole seconds of one clock that are equal do not order."""
        return one.latest + self.skew.tolerance_s(one.node, other.node) <= other.earliest and one.latest < math.inf

    def _within(self, found: list[LogMatch]) -> list[LogMatch]:
        """The lines' order; where all stamps are of one node's clock, theirs."""
        moments = [self._moment(one) for one in found]
        stamps = [self.stamp(one) for one in found]
        same_clock = len({moment.node for moment in moments}) == 1  # or nothing speaks of several
        if same_clock and all(stamp is not None for stamp in stamps):
            return sorted(found, key=lambda one: (self.stamp(one) or 0.0, one.offset))
        return sorted(found, key=lambda one: one.offset)

    def _chosen(self, undecided: Sequence[LogMatch], pivot: LogMatch) -> tuple[LogMatch, Sentence]:
        """Of those that could be first, the one whose process ended by itself by torchrun's tables; else by place."""
        if len(undecided) == 1:
            return pivot, NOTHING
        own = [one for one in undecided if self._ended_by_itself(one)]
        if own and len(own) < len(undecided):
            chosen = min(own, key=lambda one: (one.file, one.offset))
            return chosen, Say.ENDED_BY_ITSELF_BY_TABLES()
        chosen = min(undecided, key=lambda one: (one.file, one.offset))
        return chosen, Say.WAS_READ_FIRST(path=self.paths[chosen.file])

    def _ended_by_itself(self, seen: LogMatch) -> bool:
        row = self.where.row(self.where.rank(seen))
        return row is not None and row.exit_code not in TEARDOWN_CODES

    def _line_notes(self, found: Sequence[LogMatch]) -> tuple[Sentence, ...]:
        first, name = self._moment(found[0]), self.paths[found[0].file]
        tied = [
            one for one in found[1:]
            if first.latest < math.inf and abs(self._moment(one).earliest - first.earliest) < 1.0
        ]
        if any(other.offset < found[0].offset for other in found):
            return (self._time_note(found[0], found),)
        told = Say.FIRST_BY_LINE(count=self._count(found), who=self.who(found[0]), name=name)
        if not tied:
            return (told,)
        return (told, Say.TIE_BY_CLOCK(names=self._names(tied)))

    def _contradiction(self, found: Sequence[LogMatch]) -> tuple[Sentence, ...]:
        """A later line of the same file with a clearly earlier stamp: clocks or buffers, and a person should know."""
        first = self.stamp(found[0])
        if first is None:
            return ()
        own = self._moment(found[0])
        for other in found[1:]:
            if self.stamp(other) is not None and self._before(self._moment(other), own):
                gap = own.earliest - self._moment(other).latest
                return (Say.STAMP_EARLIER_LINE_LATER(who=self.who(other), gap=gap),)
        return ()

    def _time_note(self, chosen: LogMatch, firsts: Sequence[LogMatch]) -> Sentence:
        return Say.FIRST_BY_STAMP(count=self._count(firsts), who=self.who(chosen))

    def _tie_note(
        self, chosen: LogMatch, tied: Sequence[LogMatch], moments: dict[int, Moment], why: Sentence, count: int
    ) -> Sentence:
        first = moments[id(chosen)]
        named = self._names(tied)
        if all(math.isfinite(moments[id(one)].latest) and math.isfinite(moments[id(one)].earliest)
               for one in (chosen, *tied)):
            apart = max(abs(moments[id(one)].earliest - first.earliest) for one in tied)
            within = Say.SAME_SECOND() if apart <= 1.0 else Say.SECONDS(apart=apart)
            return Say.TIE_OF_STAMPS(named=named, within=within, who=self.who(chosen), why=why)
        return Say.TIE_WITHOUT_STAMPS(count=count, who=self.who(chosen), named=named, why=why)

    def _skew_note(self, chosen: LogMatch, others: Sequence[LogMatch]) -> tuple[Sentence, ...]:
        """What is known of the clocks, where two nodes' stamps were compared."""
        here = self._moment(chosen).node
        for other in others:
            there = self._moment(other).node
            if here is None or there is None or here == there:
                continue
            first, second = self.skew.offsets.get(here), self.skew.offsets.get(there)
            if first is None or second is None:
                return (Say.CLOCKS_NOT_KNOWN(here=here, there=there),)
            gap = second.seconds - first.seconds
            marks = min(first.marks, second.marks)
            return (
                Say.CLOCKS_APART(
                    there=there, gap=abs(gap), side="ahead of" if gap >= 0 else "behind", here=here,
                    spread_s=max(first.spread_s, second.spread_s), marks=marks, by=self.skew.by,
                ),
            )
        return ()

    def who(self, seen: LogMatch) -> Sentence:
        rank = self.where.rank(seen)
        if rank is None and (seen.match.signature.stands == AT_START):
            return Say.LINE_WITHOUT_RANK(id=seen.match.signature.id)
        return Say.RANK(rank=rank) if rank is not None else Say.PROCESS_WITHOUT_RANK()

    def _names(self, seen: Sequence[LogMatch]) -> str:
        ranks = sorted({rank for rank in map(self.where.rank, seen) if rank is not None})
        if not ranks:
            return "other processes"
        more = ", …" if len(ranks) > RANKS_NAMED else ""
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:RANKS_NAMED]))}{more}"

    def _count(self, seen: Sequence[LogMatch]) -> str:
        ranks = {self.where.rank(one) for one in seen}
        return f"{len(ranks)} ranks" if None not in ranks else f"{len(seen)} processes"
