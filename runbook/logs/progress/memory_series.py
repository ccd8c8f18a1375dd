"""Memory figures along the steps: bounded for a run of any length, evenly thinned, first, last and extremes kept."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runbook.logs.signatures import Match
from runbook.model.log import MemorySample
from runbook.model.units import Bytes

SERIES_KEPT = 1_024
POINTS_A_SERIES = 128
SAMPLES_TOLD = 2_000
POINTS_OF_THE_FAILING_RANK = 1_000
_NUMBERS = re.compile(r"\d+")
_FIGURES = frozenset({
    "allocated_bytes", "reserved_bytes", "max_allocated_bytes", "max_reserved_bytes", "device_used_bytes",
    "host_used_bytes", "host_process_bytes", "tokens", "tokens_total",
})


class Place(NamedTuple):
    """Where a line stands, and the file's first attempt."""

    file: int
    offset: int
    first_attempt: int


@dataclass(frozen=True, slots=True)
class Point:
    place: Place
    sample: MemorySample
    tokens_so_far: int | None = None

    @property
    def height(self) -> int:
        """The figure by which extremes are told."""
        one = self.sample
        return (one.max_allocated_bytes or one.allocated_bytes or one.max_reserved_bytes or one.reserved_bytes
                or one.device_used_bytes or one.host_used_bytes or one.tokens or 0)


StepAt = Callable[[Place], int | None]


@dataclass(slots=True)
class MemorySeries:
    """All memory figures of a job: one series for each file, rank, kind of line and place in the program."""

    series: dict[tuple[int, int | None, str, str], dict[int, Point]] = field(default_factory=dict)
    left_out: int = 0

    def add(
        self, match: Match, rank: int | None, step: int | None, place: Place, time_s: float | None = None
    ) -> None:
        """The figures of a line, if it has any. Step None: it follows from the place when reading is over."""
        point = None if _FIGURES.isdisjoint(match.values) else _point(match, rank, step, place, time_s)
        if point is None:
            return
        key = (place.file, rank, match.signature.id, point.sample.where)
        points = self.series.get(key)
        if points is None:
            if len(self.series) >= SERIES_KEPT:
                self.left_out += 1
                return
            points = self.series[key] = {}
        points[place.offset] = point
        if len(points) > POINTS_A_SERIES:
            self.series[key] = {one.place.offset: one for one in thinned(list(points.values()), POINTS_A_SERIES // 2)}

    def told(
        self, step_at: StepAt, counts: Callable[[Place], bool], failing_rank: int | None = None
    ) -> tuple[MemorySample, ...]:
        """Samples in order of rank and step, of the places that count, at most SAMPLES_TOLD."""
        chosen = {key: [one for one in points.values() if counts(one.place)] for key, points in self.series.items()}
        chosen = {key: points for key, points in chosen.items() if points}
        if not chosen:
            chosen = {key: list(points.values()) for key, points in self.series.items()}
        own = {key for key in chosen if key[1] == failing_rank}
        for_own = min(POINTS_A_SERIES, POINTS_OF_THE_FAILING_RANK // max(1, len(own)))
        room = SAMPLES_TOLD - sum(min(len(chosen[key]), max(4, for_own)) for key in own)
        for_others = max(1, min(POINTS_A_SERIES, room // max(1, len(chosen) - len(own))))
        samples: list[MemorySample] = []
        for key, points in sorted(chosen.items(), key=lambda item: (item[0] not in own, str(item[0]))):
            few = thinned(points, max(4, for_own) if key in own else for_others)
            samples += _resolved(few, step_at)
        tokens = {one.step: one.tokens for one in samples if one.tokens is not None and one.step is not None}
        samples = [
            replace(one, tokens=tokens[one.step]) if one.tokens is None and one.step in tokens else one
            for one in samples[:SAMPLES_TOLD]
        ]
        return tuple(sorted(
            samples, key=lambda one: (one.rank is None, one.rank or 0, one.step is None, one.step or 0, one.where)
        ))


def thinned(points: Sequence[Point], keep: int) -> list[Point]:
    """At most `keep` points, spread evenly over the file: first, last, lowest and highest are among them."""
    ordered = sorted(points, key=lambda one: one.place)
    if len(ordered) <= keep:
        return ordered
    first, last = ordered[0], ordered[-1]
    must = [last, first, max(ordered, key=lambda one: one.height), min(ordered, key=lambda one: one.height)][:keep]
    chosen = {id(one): one for one in must}
    span = last.place.offset - first.place.offset or 1
    buckets: dict[int, Point] = {}
    room = max(1, keep - len(chosen))
    for one in ordered:
        buckets.setdefault((one.place.offset - first.place.offset) * room // (span + 1), one)
    for one in buckets.values():
        if len(chosen) < keep:
            chosen.setdefault(id(one), one)
    return sorted(chosen.values(), key=lambda one: one.place)


def nearest_step(offsets: Sequence[int], steps: Sequence[int], offset: int) -> int | None:
    """The step that was running at a place, from marks that are printed when a step is done.

    It is the next mark's step, or, where the next mark is farther away than the one before, the one after that."""
    index = bisect_left(offsets, offset)
    if index < len(offsets) and (index == 0 or offsets[index] - offset <= offset - offsets[index - 1]):
        return steps[index]
    return steps[index - 1] + 1 if index else None


def _point(
    match: Match, rank: int | None, step: int | None, place: Place, time_s: float | None
) -> Point | None:
    fields = match.memory_fields()
    tokens, so_far = match.number("tokens"), match.number("tokens_total")
    more = match.number("tokens_more")
    process = match.integer("host_process_bytes")
    sample = MemorySample(
        rank, step, fields.allocated_bytes, fields.reserved_bytes,
        max_allocated_bytes=_bytes(match, "max_allocated_bytes"),
        max_reserved_bytes=_bytes(match, "max_reserved_bytes"),
        device_used_bytes=_bytes(match, "device_used_bytes"),
        host_used_bytes=Bytes(process) if process is not None else _bytes(match, "host_used_bytes"),
        tokens=round(tokens + (more or 0)) if tokens is not None else None,
        where=_NUMBERS.sub("#", match.text("where") or "").strip()[:80],
        source=match.signature.id, peaks=match.signature.peaks, host_is_process=process is not None,
        device_total_bytes=fields.capacity_bytes, time_s=time_s,
    )
    figures = (
        sample.allocated_bytes, sample.reserved_bytes, sample.max_allocated_bytes, sample.max_reserved_bytes,
        sample.device_used_bytes, sample.host_used_bytes, sample.tokens, so_far,
    )
    if all(figure is None for figure in figures):
        return None
    return Point(place, sample, round(so_far) if so_far is not None else None)


def _bytes(match: Match, name: str) -> Bytes | None:
    value = match.integer(name)
    return Bytes(value) if value is not None else None


def _resolved(points: Sequence[Point], step_at: StepAt) -> list[MemorySample]:
    """Samples with their steps; tokens counted up over the run become tokens of a step."""
    resolved: list[MemorySample] = []
    before: tuple[int, int] | None = None
    for point in points:
        sample = point.sample
        step = sample.step if sample.step is not None else step_at(point.place)
        tokens = sample.tokens
        if point.tokens_so_far is not None and step is not None:
            if tokens is None and before is not None and step > before[0] and point.tokens_so_far >= before[1]:
                tokens = round((point.tokens_so_far - before[1]) / (step - before[0]))
            before = (step, point.tokens_so_far)
        if point.tokens_so_far is None or tokens is not None or point.height:
            resolved.append(replace(sample, step=step, tokens=tokens))
    return resolved
