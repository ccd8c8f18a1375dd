"""Memory figures of one rank along the steps, made comparable: one place of the program, no warm-up, known peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

from runbook.diagnosis.case import Case
from runbook.model.log import MemorySample
from runbook.model.units import median

# Plain robust statistics on short series: a rise that is no noise, and whether one figure follows another.

FEWEST = 6
"""Fewer samples show no trend."""
SURE_Z = 2.4
"""Mann-Kendall's statistic in standard deviations: by chance, one series without a trend in 120 exceeds it."""
_MOST_POINTS = 160
_BLOCKS = 8
_EVEN = 0.03
_ONE_JUMP = 0.7
"""A series that rises by this part of its growth at one place has a step, not a rise."""
_STILL_RISING = 0.35
"""A rise goes on when its last third is at least this part as steep as the middle one. One that levels off does not."""

Points = Sequence[tuple[float, float]]
"""(x, y) in order of x."""


@dataclass(frozen=True, slots=True)
class Rise:
    """A steady rise. `slope` is in units of y for one of x, `growth` over the whole span."""

    first: tuple[float, float]
    last: tuple[float, float]
    samples: int
    slope: float
    growth: float
    rising_share: float
    """Of neighbouring samples, the share that rose."""
    z: float
    even: bool = False
    """It keeps to a line: the scatter around it is small against the growth."""


def fewer(points: Points) -> list[tuple[float, float]]:
    """At most a number of points for which all pairs can be looked at, evenly chosen, the last among them."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * step)] for index in range(_MOST_POINTS)]


def slope(points: Points) -> float:
    """Theil and Sen: the median of the slopes of all pairs. A third of the points may be wild."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(fewer(points), 2) if b[0] != a[0]]
    return median(slopes) if slopes else 0.0


def mann_kendall(values: Sequence[float]) -> float:
    """How far the number of rising pairs exceeds the falling ones, in its standard deviations without a trend."""
    n = len(values)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    ties = [values.count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0 or score == 0:
        return 0.0
    return (score - 1 if score > 0 else score + 1) / sqrt(variance)


def kendall(points: Points) -> tuple[float, float]:
    """Kendall's tau-b of x and y, and its score in standard deviations. (0, 0) where one of them never changes."""
    few = fewer(sorted(points))
    n = len(few)
    score = same_x = same_y = 0
    for a, b in combinations(few, 2):
        x, y = (b[0] > a[0]) - (b[0] < a[0]), (b[1] > a[1]) - (b[1] < a[1])
        score += x * y
        same_x += x == 0
        same_y += y == 0
    pairs = n * (n - 1) // 2
    below = sqrt((pairs - same_x) * (pairs - same_y)) if n > 1 else 0.0
    if not below:
        return 0.0, 0.0
    return score / below, score / sqrt(n * (n - 1) * (2 * n + 5) / 18)


def scatter(points: Points, per_x: float) -> float:
    """Median distance from the line of this slope through the points' medians."""
    rest = [y - per_x * x for x, y in points]
    middle = median(rest)
    return median(abs(one - middle) for one in rest)


def floor(values: Sequence[float]) -> float:
    """The lower quartile: what remains when peaks of single steps are taken away."""
    return sorted(values)[(len(values) - 1) // 4]


def steady_rise(points: Points, least_growth: float) -> Rise | None:
    """A rise that is no noise, lifts the floor all along, still goes on at the end, and is worth speaking of.

    Sawteeth fall back to the same floor, a series that levels off stops rising, noise has no order, and a running
    maximum of noise rises ever more slowly; none of them passes."""
    few = fewer(points)
    if len(few) < FEWEST:
        return None
    values = [y for _, y in few]
    z = mann_kendall(values)
    per_x = slope(few)
    span = few[-1][0] - few[0][0]
    growth = per_x * span
    if z < SURE_Z or per_x <= 0 or growth < max(least_growth, 3 * scatter(few, per_x)):
        return None
    floors = [floor(block) for block in _split(values, min(_BLOCKS, len(values) // 2))]
    up = sum(later > earlier for earlier, later in pairwise(floors))
    largest = max(later - earlier for earlier, later in pairwise(floors))
    if up < 0.8 * (len(floors) - 1) or largest > _ONE_JUMP * (floors[-1] - floors[0]):
        return None
    middle_x = [median(block) for block in _split([x for x, _ in few], 3)]
    low = [floor(block) for block in _split(values, 3)]
    if middle_x[1] <= middle_x[0] or middle_x[2] <= middle_x[1]:
        return None
    early = (low[1] - low[0]) / (middle_x[1] - middle_x[0])
    late = (low[2] - low[1]) / (middle_x[2] - middle_x[1])
    if late <= 0 or late < _STILL_RISING * early:
        return None
    share = sum(later > earlier for earlier, later in pairwise(values)) / (len(values) - 1)
    return Rise(
        few[0], few[-1], len(points), per_x, growth, share, z, even=scatter(few, per_x) <= _EVEN * growth,
    )


def _split(values: Sequence[float], parts: int) -> list[Sequence[float]]:
    """Blocks of nearly equal length, in order."""
    return [values[len(values) * index // parts:len(values) * (index + 1) // parts] for index in range(parts)]


_SAVING = "save_checkpoint"

Figure = Callable[[MemorySample], int | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one rank from one kind of line at one place of the program, in order of step, without the warm-up."""

    rank: int | None
    where: str
    samples: tuple[MemorySample, ...]
    of_failing_rank: bool

    @property
    def peaks_reset(self) -> bool:
        """Whether the greatest values are those of the time since the last print: the line says so, or one fell."""
        if self.samples[0].peaks:
            return self.samples[0].peaks == "reset"
        return any(_fell(self.values(figure)) for figure in (max_allocated, max_reserved))

    def values(self, figure: Figure) -> list[tuple[int, int]]:
        """(step, figure) where the figure is printed; of several samples of a step the greatest."""
        best: dict[int, int] = {}
        for one in self.samples:
            value = figure(one)
            if value is not None and one.step is not None:
                best[one.step] = max(value, best.get(one.step, value))
        return sorted(best.items())

    @property
    def whose(self) -> str:
        """ "rank 3", or "rank 0 (the rank that failed prints none)"; with the place of the program."""
        name = f"rank {self.rank}" if self.rank is not None else "a rank that the line does not name"
        other = "" if self.of_failing_rank or self.rank is None else " (the rank that failed prints none)"
        return name + other + (f", at \"{self.where}\"" if self.where and self.where != "after" else "")


def allocated(sample: MemorySample) -> int | None:
    return sample.allocated_bytes


def max_allocated(sample: MemorySample) -> int | None:
    return sample.max_allocated_bytes


def max_reserved(sample: MemorySample) -> int | None:
    return sample.max_reserved_bytes


def host_used(sample: MemorySample) -> int | None:
    return sample.host_used_bytes


def _fell(points: Sequence[tuple[int, int]]) -> bool:
    return any(later < earlier for (_, earlier), (_, later) in pairwise(points))


def all_series(case: Case) -> list[Series]:
    """The failing rank's series, the longest first; where it prints none, those of the other ranks."""
    rank = case.root.rank if case.root is not None else None
    grouped: dict[tuple[int | None, str, str], list[MemorySample]] = {}
    for sample in case.story.progress.memory:
        if sample.step is not None and _SAVING not in sample.where:
            grouped.setdefault((sample.rank, sample.source, sample.where), []).append(sample)
    own = {key for key in grouped if rank is None or key[0] == rank or key[0] is None}
    chosen = own or set(grouped)
    # A line without a rank may be any rank's.
    series = [
        Series(key[0], key[2], tuple(_without_warm_up(grouped[key], case)), rank is not None and key[0] == rank)
        for key in chosen
    ]
    return sorted(
        (one for one in series if one.samples),
        key=lambda one: (-len(one.samples), one.rank is None, one.rank or 0, one.where),
    )


def _without_warm_up(samples: Sequence[MemorySample], case: Case) -> list[MemorySample]:
    """Without the first two steps of the run: the optimizer's state appears at the end of the first, the first full
    peak in the second. Where too little would remain, without the first sample only."""
    ordered = sorted(samples, key=lambda one: one.step or 0)
    progress = case.story.progress
    resumed = progress.resumed_from_step
    start = progress.first_step if progress.first_step is not None else progress.numbered_from
    if resumed is not None:
        start = max(start, resumed + 1) if resumed < (ordered[-1].step or 0) else start
    settled = [one for one in ordered if (one.step or 0) > start + 1]
    first = ordered[0].step
    later = [one for one in ordered if one.step != first]
    return settled if len({one.step for one in settled}) >= FEWEST + 2 else later


def seconds_a_step(series: Series) -> list[tuple[float, float]]:
    """(step, seconds a step since the sample before) where the lines carry stamps."""
    points = [(one.step, one.time_s) for one in series.samples if one.step is not None and one.time_s is not None]
    return [
        (float(step), (time_s - before_s) / (step - before))
        for (before, before_s), (step, time_s) in pairwise(points) if step > before and time_s > before_s
    ]


def with_tokens(series: Series, figure: Figure) -> list[tuple[int, int]]:
    """(tokens, figure) of the samples that have both."""
    pairs = [(one.tokens, figure(one)) for one in series.samples]
    return [(tokens, value) for tokens, value in pairs if tokens is not None and value is not None]


def tokens_by_step(case: Case) -> list[tuple[int, int]]:
    """(step, tokens) over all ranks, the greatest of each step."""
    best: dict[int, int] = {}
    for one in case.story.progress.memory:
        if one.tokens is not None and one.step is not None:
            best[one.step] = max(one.tokens, best.get(one.step, 0))
    return sorted(best.items())


def capacity_of(case: Case, series: Series) -> int | None:
    """The card's size: from the message, else from the line itself."""
    return case.figures.fields.capacity_bytes or next(
        (one.device_total_bytes for one in series.samples if one.device_total_bytes), None
    )


def level(points: Sequence[tuple[int, int]]) -> float:
    """The ordinary height of a series' beginning."""
    return median(value for _, value in points[:max(1, len(points) // 4)])
