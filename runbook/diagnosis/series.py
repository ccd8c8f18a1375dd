"""Memory figures of one rank along the steps, made comparable: one place of the program, no warm-up, known peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from runbook.diagnosis.case import Case
from runbook.diagnosis.trend import FEWEST
from runbook.model.log import MemorySample

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
