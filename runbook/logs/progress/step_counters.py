"""Counters of steps in a log: which of several is the training's, how far each rank came, how long a step took."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from runbook.logs.signatures import Match
from runbook.model.log import StepTime
from runbook.model.units import median

MARKS_KEPT = 40_000
DURATIONS_KEPT = 2_000
_COMPARED = 20
_STAMP_ERROR_FACTOR = 20
"""A pair of stamps counts when they lie this many times their resolution apart."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A step seen at a place of a file."""

    file: int
    first_attempt: int
    """The file's first attempt; restarts before the place count on top."""
    offset: int
    step: int
    """As the program counts; for a counter that begins again with every epoch see `epoch`."""
    rank: int | None = None
    epoch: int | None = None
    time_s: float | None = None
    made: int | None = None
    """Steps since the program began to count, by a bar's own clock and its seconds a step."""
    duration_s: float | None = None
    """Seconds of this step, where the line prints them."""

    @property
    def place(self) -> tuple[int, int]:
        return self.file, self.offset


AttemptOf = Callable[[Mark], int]


@dataclass(slots=True)
class Counter:
    """What one kind of progress line told. Marks are limited; the first and each rank's newest are kept beside them."""

    signature: str
    bar: bool = False
    fallback: bool = False
    framework: str = ""
    first_number: int = 1
    """How the program numbers its first step: 0 or 1."""
    total: int | None = None
    totals: set[int] = field(default_factory=set)
    epochs: int | None = None
    """How many there will be, where the line says so."""
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    newest: dict[tuple[int, int | None], Mark] = field(default_factory=dict)
    """Of each file and rank, the mark that stands last."""
    durations_s: list[float] = field(default_factory=list)
    lines: int = 0
    name: str = ""
    """Of a bar."""
    _stride: int = 1

    def add(self, mark: Mark, match: Match) -> bool:
        """One line; a place that was seen before counts once."""
        if mark.place in self.marks:
            return False
        self.lines += 1
        if len(self.marks) >= MARKS_KEPT:
            # The oldest go, except the very first: what matters is where the log ends.
            places = iter(self.marks)
            next(places)
            del self.marks[next(places)]
        self.marks[mark.place] = mark
        known = self.newest.get((mark.file, mark.rank))
        if known is None or known.offset < mark.offset:
            self.newest[(mark.file, mark.rank)] = mark
        total = match.integer("total_steps")
        if total is not None:
            self.total = total
            self.totals.add(total)
            self.epochs = match.integer("total_epochs")
        duration = match.number("duration_s")
        if duration is not None and duration > 0 and self.lines % self._stride == 0:
            self.durations_s.append(duration)
            if len(self.durations_s) >= DURATIONS_KEPT:
                self.durations_s = self.durations_s[::2]
                self._stride *= 2
        return True

    def everyone(self) -> list[Mark]:
        """Marks in order of place, each rank's newest among them."""
        kept = {**self.marks, **{mark.place: mark for mark in self.newest.values()}}
        return sorted(kept.values(), key=lambda mark: mark.place)

    def falls(self, attempt_of: AttemptOf) -> int:
        """How often it goes back within one attempt and epoch: an evaluation does so, the training does not."""
        falls = 0
        marks = sorted(self.everyone(), key=lambda mark: (mark.file, str(mark.rank), mark.offset))
        for before, after in pairwise(marks):
            if (before.file, before.rank, before.epoch) == (after.file, after.rank, after.epoch) \
                    and after.step < before.step and attempt_of(before) == attempt_of(after):
                falls += 1
        return falls

    def unrolled(self) -> Counter:
        """The counter with epochs added up, where it begins again with every epoch; else itself. A log that does not
        show the first epoch does not say how long those before were: there the newest epoch's steps count."""
        marks = self.everyone()
        epochs = {mark.epoch for mark in marks if mark.epoch is not None}
        if not epochs or (not self.bar and not _begins_again(marks)):
            return self
        length = max([*self.totals, *(mark.step for mark in marks)])
        base = 0 if 0 in epochs else 1
        if min(epochs) > 1:
            base = max(epochs)
            marks = [mark for mark in marks if mark.epoch == base]
        unrolled = Counter(
            self.signature, self.bar, self.fallback, self.framework, self.first_number, durations_s=self.durations_s,
            name=self.name,
        )
        for mark in marks:
            step = mark.step + max(0, (mark.epoch or base) - base) * length
            one = Mark(
                mark.file, mark.first_attempt, mark.offset, step, mark.rank, None, mark.time_s, mark.made,
                mark.duration_s,
            )
            unrolled.marks[one.place] = one
            known = unrolled.newest.get((one.file, one.rank))
            if known is None or known.offset < one.offset:
                unrolled.newest[(one.file, one.rank)] = one
        unrolled.lines = self.lines
        if self.epochs is not None and len(self.totals) == 1:
            unrolled.total = self.epochs * length
        if min(epochs) > 1:
            unrolled.total = self.total
        return unrolled


def _begins_again(marks: Sequence[Mark]) -> bool:
    """Whether a greater epoch came with a smaller step, in one file and rank."""
    ordered = sorted(marks, key=lambda mark: (mark.file, str(mark.rank), mark.offset))
    return any(
        before.epoch is not None and after.epoch is not None
        and (before.file, before.rank) == (after.file, after.rank)
        and after.epoch > before.epoch and after.step < before.step
        for before, after in pairwise(ordered)
    )


def choose(
    counters: Iterable[Counter], attempt_of: AttemptOf, failed: Mapping[int, Sequence[int]]
) -> tuple[Counter, Counter] | None:
    """The counter of training steps, and the one that names the program; mostly they are the same.

    Lines made for the purpose come before bars, and those before what merely looks like a step. A bar is refused that
    goes back again and again (evaluation); of several the one that began first is the training's, unless it stopped at
    a shortage (`failed`: offsets by file) behind which another of its name, with another total, began: the next try. A
    bar that agrees with the step lines is taken for them where it tells more often."""
    every = [one.unrolled() for one in counters]
    lines = [one for one in every if not one.bar and not one.fallback]
    bars = sorted(
        (one for one in every if one.bar),
        key=lambda one: (one.falls(attempt_of) > 1, min(mark.place for mark in one.everyone())),
    )
    plain = [one for one in every if one.fallback and not one.bar]
    named = max(lines, key=lambda one: one.lines, default=None)
    if named is not None:
        better = next((one for one in bars if one.lines > named.lines and _agree(named, one)), None)
        return better or named, named
    if bars:
        last = _last_try(bars, failed)
        return last, last
    best = max(plain, key=lambda one: one.lines, default=None)
    return (best, best) if best is not None else None


def _last_try(bars: Sequence[Counter], failed: Mapping[int, Sequence[int]]) -> Counter:
    """The bar of the last try. One that is closed by an exception is drawn once more behind it."""
    chosen = bars[0]
    for other in sorted(bars[1:], key=lambda one: min(mark.place for mark in one.everyone())):
        places, begun = sorted(mark.place for mark in chosen.everyone()), min(mark.place for mark in other.everyone())
        file, stopped = places[-2] if len(places) > 1 else (places[-1][0], -1)
        if (
            (other.signature, other.name, begun[0]) == (chosen.signature, chosen.name, file) and places[-1] < begun
            and any(stopped < offset < begun[1] for offset in failed.get(file, ()))
        ):
            chosen = other
    return chosen


def _agree(one: Counter, other: Counter) -> bool:
    """Whether two counters count the same: where the one is printed, the other stands at the same step or next."""
    marks = other.everyone()
    compared = agreed = 0
    index = 0
    for mark in one.everyone()[-_COMPARED:]:
        while index < len(marks) and marks[index].place <= mark.place:
            index += 1
        nearby = [near for near in marks[max(0, index - 1):index + 1] if near.file == mark.file]
        if nearby:
            compared += 1
            agreed += min(abs(near.step - mark.step) for near in nearby) <= 1
    return compared >= 2 and agreed * 5 >= compared * 4


def duration_s(counter: Counter, attempt_of: AttemptOf) -> float | None:
    """Median seconds a step: as printed, else from stamps. Pauses for checkpoints and evaluations do not move it."""
    if counter.durations_s:
        return round(median(counter.durations_s), 6)
    rates: list[float] = []
    for marks in _runs(counter, attempt_of):
        rates += _rates(marks)
    return round(median(rates), 6) if rates else None


def _runs(counter: Counter, attempt_of: AttemptOf) -> Iterator[list[Mark]]:
    """Marks with a stamp, by file, rank and attempt, in order of place."""
    def key(mark: Mark) -> tuple[int, str, int]:
        return mark.file, str(mark.rank), attempt_of(mark)

    stamped = sorted((mark for mark in counter.everyone() if mark.time_s is not None), key=lambda mark: mark.offset)
    for _, run in groupby(sorted(stamped, key=key), key=key):
        yield list(run)


def _rates(marks: Sequence[Mark]) -> list[float]:
    """Seconds a step between marks that lie far enough apart for their stamps' resolution."""
    points = [(mark.step, mark.time_s) for mark in marks if mark.time_s is not None]
    whole = all(time_s == int(time_s) for _, time_s in points)
    apart = _STAMP_ERROR_FACTOR * (1.0 if whole else 0.001)
    rates: list[float] = []
    start = points[0] if points else None
    for step, time_s in points[1:]:
        if start is None or step <= start[0] or time_s < start[1]:
            start = (step, time_s)
        elif time_s - start[1] >= apart:
            rates.append((time_s - start[1]) / (step - start[0]))
            start = (step, time_s)
    if not rates and len(points) > 1 and points[-1][0] > points[0][0] and points[-1][1] > points[0][1]:
        rates.append((points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]))
    return rates


# Seconds a step along the steps of one rank: bounded for a run of any length, the slowest and the fastest kept.

TIMES_TOLD = 256
_LONGEST_S = 7 * 24 * 3_600.0
_RESOLUTIONS_APART = 5
"""Two stamps tell a duration when they lie this many times their resolution apart."""


def step_times(marks: Sequence[Mark]) -> tuple[StepTime, ...]:
    """Of the file and rank that told most, in order of step; as printed, else between stamps. Empty where neither is
    there. `marks` are in order of place."""
    writers: dict[tuple[int, int | None], list[Mark]] = {}
    for mark in marks:
        writers.setdefault((mark.file, mark.rank), []).append(mark)
    told = max(writers.values(), key=len, default=[])
    printed = {mark.step: mark.duration_s for mark in told if mark.duration_s is not None}
    found = printed or dict(_between_stamps(told))
    steps = [
        StepTime(step, round(seconds, 4)) for step, seconds in sorted(found.items())
        if math.isfinite(seconds) and 0 < seconds <= _LONGEST_S
    ]
    return thinned(steps, TIMES_TOLD)


def _between_stamps(marks: Sequence[Mark]) -> Iterator[tuple[int, float]]:
    points = [(mark.step, mark.time_s) for mark in marks if mark.time_s is not None and math.isfinite(mark.time_s)]
    whole = all(time_s == int(time_s) for _, time_s in points)
    apart = _RESOLUTIONS_APART * (1.0 if whole else 0.001)
    start = points[0] if points else None
    for step, time_s in points[1:]:
        if start is None or step <= start[0] or time_s < start[1]:
            start = (step, time_s)  # it began anew
        elif time_s - start[1] >= apart:
            yield step, (time_s - start[1]) / (step - start[0])
            start = (step, time_s)


def thinned(times: Sequence[StepTime], keep: int) -> tuple[StepTime, ...]:
    """At most `keep`: the first and the last, and of each of `keep // 2 - 1` groups the fastest and the slowest."""
    if len(times) <= keep:
        return tuple(times)
    groups = keep // 2 - 1
    chosen = {times[0].step: times[0], times[-1].step: times[-1]}
    edges = [index * len(times) // groups for index in range(groups + 1)]
    for begin, end in pairwise(edges):
        for extreme in (min, max):
            one = extreme(times[begin:end], key=lambda time: time.duration_s)
            chosen[one.step] = one
    return tuple(chosen[step] for step in sorted(chosen))
