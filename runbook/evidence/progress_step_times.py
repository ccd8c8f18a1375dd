"""Seconds a step along the steps of one rank: bounded for a run of any length, the slowest and the fastest kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from runbook.evidence.progress_counters import Mark
from runbook.model.log import StepTime

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
