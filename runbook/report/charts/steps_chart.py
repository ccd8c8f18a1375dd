"""Lines over the steps of a job: what is drawn for one that failed and one that was relaunched, in one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from runbook.model.log import MemorySample, Progress
from runbook.model.units import GIB, in_gib
from runbook.report.charts.plots import Line, Lines, draw_lines

POINTS = 240
"""Of a line, at most: of each group of samples the lowest and the highest, so that peaks stay."""
MOST_STEP = 10**12
_LONGEST_STEP_S = 1e9
"""Thirty years: what a log says beyond that is no duration, and near 1e308 no scale can be drawn."""
_PIECES = 12
_GAP = 8
"""A line is interrupted where no sample is for so many times the usual distance."""

Points = tuple[tuple[int, float], ...]
"""Steps with their figures, in order of step."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job whose steps are drawn."""

    name: str
    kind: str
    """Class of its line: "run-failed", "run-again"."""
    progress: Progress
    rank: int | None = None
    """The rank that failed, if that is known."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What is marked in the picture, as far as it is known."""

    failed_step: int | None = None
    checkpoint_step: int | None = None
    capacity_bytes: int | None = None
    level: tuple[float, str] | None = None
    """A figure of the lines, with its label."""


@dataclass(frozen=True, slots=True)
class SeriesWords:
    """A line's figures, for the table beside the picture."""

    kind: str
    name: str
    samples: int
    first: str
    highest: str
    last: str


@dataclass(frozen=True, slots=True)
class StepsFigure:
    """A picture of lines over the steps, and what stands beside it."""

    name: str
    chart: Markup
    legend: tuple[tuple[str, str], ...]
    """Class of a line and what it is."""
    rows: tuple[SeriesWords, ...]
    notes: tuple[str, ...] = ()


def time_over_steps(runs: Sequence[Run], marks: Marks) -> StepsFigure | str:
    """The picture, or why there is none."""
    lines: list[Line] = []
    legend: list[tuple[str, str]] = []
    rows: list[SeriesWords] = []
    notes: list[str] = []
    for run in runs:
        points = thinned(tuple(
            (one.step, one.duration_s) for one in run.progress.step_times
            if 0 <= one.step <= MOST_STEP and 0 < one.duration_s <= _LONGEST_STEP_S
        ))
        if len(points) < 2:
            notes.append(f"{run.name}: the log does not tell how long its steps took.")
            continue
        lines += pieces(run.kind, points)
        legend.append((run.kind, run.name))
        rows.append(series_words(run.kind, run.name, points, "s"))
    if not lines:
        return "The logs do not tell how long single steps took."
    return steps_figure("Seconds a step", lines, legend, rows, notes, marks)


def steps_figure(
    name: str, lines: list[Line], legend: list[tuple[str, str]], rows: list[SeriesWords], notes: list[str],
    marks: Marks,
) -> StepsFigure:
    """The picture of lines that hold a point at least, with the steps that are near enough marked."""
    xs = [x for line in lines for x, _ in line.points]
    first, last = min(xs), max(xs)
    margin = max(last - first, 50)
    highest = max(y for line in lines for _, y in line.points)
    top = max(highest * 1.08, marks.level[0] * 1.05 if marks.level else 0.0) or 1.0
    x_marks: list[tuple[float, str]] = []
    marked: list[Line] = []
    for kind, step, words in (
        ("mark-failed", marks.failed_step, "Failed at step"),
        ("mark-checkpoint", marks.checkpoint_step, "Checkpoint of step"),
    ):
        if step is None:
            continue
        if not first - margin <= step <= last + margin:
            notes.append(f"{words} {step}: outside the picture.")
            continue
        x_marks.append((float(step), str(step)))
        marked.append(Line(kind, ((step, 0.0), (step, top))))
        legend.append((kind, f"{words} {step}"))
    ends = [first, last, *(x for x, _ in x_marks)]
    words = f"{name}. " + "; ".join(
        f"{row.name}: first {row.first}, highest {row.highest}, last {row.last}" for row in rows
    ) + "".join(f"; {told}" for kind, told in legend if kind.startswith("mark-"))
    low, high = min(ends), max(ends)
    space = (high - low) * 0.02 or 1.0
    picture = Lines(words, (*marked, *lines), low - space, high + space, top, tuple(x_marks), marks.level)
    return StepsFigure(name, draw_lines(picture), tuple(legend), tuple(rows), tuple(notes))


def series_words(kind: str, name: str, points: Points, unit: str) -> SeriesWords:
    """The row of a line in the table. `points` is not empty."""
    def told(point: tuple[int, float]) -> str:
        figure = f"{point[1]:.4g}" if point[1] < 1_000 else f"{point[1]:.0f}"
        return f"{figure} {unit} at step {point[0]}"

    return SeriesWords(
        kind, name, len(points), told(points[0]), told(max(points, key=lambda one: one[1])), told(points[-1])
    )


def thinned(points: Points) -> Points:
    """At most `POINTS`, the first and the last among them, and the lowest and the highest of each group."""
    if len(points) <= POINTS:
        return points
    groups = POINTS // 2 - 1
    edges = [index * len(points) // groups for index in range(groups + 1)]
    chosen = {points[0], points[-1]}
    for begin, end in pairwise(edges):
        group = points[begin:end]
        chosen |= {min(group, key=lambda one: one[1]), max(group, key=lambda one: one[1])}
    return tuple(sorted(chosen))


def pieces(kind: str, points: Points) -> list[Line]:
    """The line, interrupted where steps are missing."""
    distances = [there[0] - here[0] for here, there in pairwise(points)]
    if not distances:
        return [Line(kind, points)]
    far = _GAP * max(1.0, median(distances))
    if sum(1 for distance in distances if distance > far) >= _PIECES:
        return [Line(kind, points)]
    parts: list[list[tuple[int, float]]] = [[points[0]]]
    for distance, point in zip(distances, points[1:], strict=True):
        if distance > far:
            parts.append([])
        parts[-1].append(point)
    return [Line(kind, tuple(part)) for part in parts]


# Memory along the steps: the attempt that failed and the relaunched one in one picture.
#
# Figures of different log lines are not compared: a picture shows one figure of one kind of line. Where none can be
# drawn, a sentence says why.

_MOST_BYTES = 16 << 40
_FIGURES = (
    ("max_reserved_bytes", "highest reserved by PyTorch"),
    ("reserved_bytes", "reserved by PyTorch"),
    ("max_allocated_bytes", "highest allocated by PyTorch"),
    ("allocated_bytes", "allocated by PyTorch"),
    ("device_used_bytes", "in use on the card, whoever holds it"),
)

_Place = tuple[str, str]
"""Signature of a line, and the place in the program that it names."""
_Places = dict[_Place, list[MemorySample]]


def memory_over_steps(runs: Sequence[Run], marks: Marks) -> StepsFigure | str:
    """The picture, or why there is none."""
    if not any(run.progress.memory for run in runs):
        return "The logs print no memory figures along the steps."
    places = [_by_place(run.progress.memory) for run in runs]
    chosen = _choice(runs, places)
    if chosen is None:
        return "The logs' memory figures cannot be put to steps, or cannot be sizes of a card."
    place, figure, words = chosen
    legend: list[tuple[str, str]] = []
    lines: list[Line] = []
    rows: list[SeriesWords] = []
    notes: list[str] = []
    for run, at_place in zip(runs, places, strict=True):
        samples = at_place.get(place, [])
        own, label = _of_run(run, samples, figure)
        if not own:
            notes.append(f"{run.name} prints no such figure.")
            continue
        others = _other_ranks(own, samples, figure) if run.kind == "run-failed" else ()
        if others:
            lines.append(Line("run-others", _band(others, figure)))
            legend.append(("run-others", f"{run.name}, the other ranks: from the lowest to the highest"))
        points = _points(own, figure)
        lines += pieces(run.kind, points)
        legend.append((run.kind, f"{run.name}, {label}"))
        rows.append(series_words(run.kind, f"{run.name}, {label}", points, "GiB"))
    if sum(row.samples for row in rows) < 2:
        return f"The logs print one memory figure only: {words}, {rows[0].name}, {rows[0].first}."
    capacity = marks.capacity_bytes if marks.capacity_bytes and marks.capacity_bytes <= _MOST_BYTES else None
    highest = max(y for line in lines for _, y in line.points)
    y_mark = None
    if capacity and capacity / GIB <= highest * 6:
        y_mark = (capacity / GIB, f"{capacity / GIB:.1f}")
        legend.append(("mark-card", f"What the card has: {in_gib(capacity)}"))
    left_out = sum(
        1 for at_place in places for one in at_place.get(place, [])
        if getattr(one, figure) is not None and not _good(one, figure)
    )
    if left_out:
        notes.append(f"{left_out:,} figures without a step, or that no card can hold, are left out.")
    if all(one.peaks == "running" for at_place in places for one in at_place.get(place, [])):
        notes.append("The log prints the highest since the start, which never falls.")
    where = f", at “{place[1]}”" if place[1] else ""
    name = f"Memory over the steps: {words}, GiB{where}"
    return steps_figure(name, lines, legend, rows, notes, replace(marks, level=y_mark))


def _by_place(samples: Iterable[MemorySample]) -> _Places:
    places: _Places = {}
    for sample in samples:
        places.setdefault((sample.source, sample.where), []).append(sample)
    return places


def _choice(runs: Sequence[Run], places: Sequence[_Places]) -> tuple[_Place, str, str] | None:
    """Place, figure and its words: drawn for both runs if that can be, of the failing rank if that printed it."""
    best: tuple[tuple[int, int, int, int, int], tuple[_Place, str, str]] | None = None
    for place in sorted({place for at_place in places for place in at_place}):
        for index, (figure, words) in enumerate(_FIGURES):
            drawn = [
                _of_run(run, at_place.get(place, []), figure)[0]
                for run, at_place in zip(runs, places, strict=True)
            ]
            own = sum(
                1 for run, samples in zip(runs, drawn, strict=True) if samples and samples[0].rank == run.rank
            )
            steps = sum(len(samples) for samples in drawn)
            score = (sum(1 for samples in drawn if samples), own, min(steps, 6), -index, steps)
            if steps and (best is None or score > best[0]):
                best = (score, (place, figure, words))
    return best[1] if best else None


def _good(sample: MemorySample, figure: str) -> bool:
    value = getattr(sample, figure)
    return (
        sample.step is not None and 0 <= sample.step <= MOST_STEP
        and value is not None and 0 <= value <= _MOST_BYTES
    )


def _of_run(run: Run, samples: Iterable[MemorySample], figure: str) -> tuple[tuple[MemorySample, ...], str]:
    """The failing rank's samples; else those without a rank; else of the rank with the highest figure. With words."""
    ranks: dict[int | None, list[MemorySample]] = {}
    for sample in samples:
        if _good(sample, figure):
            ranks.setdefault(sample.rank, []).append(sample)
    if run.rank is not None and run.rank in ranks:
        return tuple(ranks[run.rank]), f"rank {run.rank}"
    if None in ranks:
        return tuple(ranks[None]), "a rank that the log does not name"
    if not ranks:
        return (), ""
    highest = max(ranks, key=lambda rank: (max(getattr(one, figure) for one in ranks[rank]), -(rank or 0)))
    silent = f"; rank {run.rank} prints none" if run.rank is not None else ""
    return tuple(ranks[highest]), f"rank {highest}, the highest{silent}"


def _other_ranks(
    own: Sequence[MemorySample], samples: Iterable[MemorySample], figure: str
) -> tuple[MemorySample, ...]:
    return tuple(
        one for one in samples if one.rank is not None and one.rank != own[0].rank and _good(one, figure)
    )


def _points(samples: Iterable[MemorySample], figure: str) -> Points:
    """Step and GiB; of several figures of a step the highest."""
    highest: dict[int, float] = {}
    for sample in samples:
        step, value = sample.step or 0, getattr(sample, figure) / GIB
        highest[step] = max(value, highest.get(step, value))
    return thinned(tuple(sorted(highest.items())))


def _band(samples: Sequence[MemorySample], figure: str) -> tuple[tuple[float, float], ...]:
    """The outline of the range: along the lowest, and back along the highest."""
    steps = sorted({one.step or 0 for one in samples})
    groups = min(len(steps), POINTS // 4)
    place = {step: index * groups // len(steps) for index, step in enumerate(steps)}
    ranges: dict[int, tuple[int, float, float]] = {}
    for one in samples:
        step, value = one.step or 0, getattr(one, figure) / GIB
        at, low, high = ranges.get(place[step], (step, value, value))
        ranges[place[step]] = (min(at, step), min(low, value), max(high, value))
    ordered = [ranges[index] for index in sorted(ranges)]
    return (*((at, low) for at, low, _ in ordered), *((at, high) for at, _, high in reversed(ordered)))
