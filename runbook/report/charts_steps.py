"""Lines over the steps of a job: what is drawn for one that failed and one that was relaunched, in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from runbook.model.log import Progress
from runbook.report.charts import Line, Lines, draw_lines

POINTS = 240
"""Of a line, at most: of each group of samples the lowest and the highest, so that peaks stay."""
MOST_STEP = 10**12
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
            if 0 <= one.step <= MOST_STEP and math.isfinite(one.duration_s) and one.duration_s > 0
        ))
        if len(points) < 2:
            notes.append(f"{run.name}: the log does not tell how long its steps took.")
            continue
        lines += pieces(run.kind, points)
        legend.append((run.kind, run.name))
        rows.append(series_words(run.kind, run.name, points, "s"))
    if not lines:
        return "The logs do not tell how long single steps took."
    return steps_figure("Seconds a step", lines, legend, rows, notes, marks, None)


def steps_figure(
    name: str, lines: list[Line], legend: list[tuple[str, str]], rows: list[SeriesWords], notes: list[str],
    marks: Marks, y_mark: tuple[float, str] | None,
) -> StepsFigure:
    """The picture of lines that hold a point at least, with the steps that are near enough marked."""
    xs = [x for line in lines for x, _ in line.points]
    first, last = min(xs), max(xs)
    margin = max(last - first, 50)
    highest = max(y for line in lines for _, y in line.points)
    top = max(highest * 1.08, y_mark[0] * 1.05 if y_mark else 0.0) or 1.0
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
    picture = Lines(words, (*marked, *lines), low - space, high + space, top, tuple(x_marks), y_mark)
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
