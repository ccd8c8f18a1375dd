"""What is believed of the unknowns: standard normals, corrected by each measured figure (linear Gaussian, exactly), and
by each lower bound (the normal beyond it, by its first two moments)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Linear:
    """A normal figure: its middle, and by how much each standard normal unknown moves it."""

    middle: float = 0.0
    moves: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Linear) -> Linear:
        moves = dict(self.moves)
        for name, value in other.moves.items():
            moves[name] = moves.get(name, 0.0) + value
        return Linear(self.middle + other.middle, moves)

    def times(self, factor: float) -> Linear:
        return Linear(self.middle * factor, {name: value * factor for name, value in self.moves.items()})


@dataclass(frozen=True, slots=True)
class Normal:
    """A figure in bytes."""

    middle: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Belief:
    """Means of the unknowns, 0 where none stands, and what figures took from their covariance, 1 at the beginning."""

    means: tuple[tuple[str, float], ...] = ()
    taken: tuple[tuple[tuple[str, float], ...], ...] = ()
    log_weight: float = 0.0
    """How likely the figures were."""

    def of(self, figure: Linear) -> Normal:
        means, spread = dict(self.means), self._spread(figure)
        middle = figure.middle + sum(value * means.get(name, 0.0) for name, value in figure.moves.items())
        variance = sum(value * spread.get(name, 0.0) for name, value in figure.moves.items())
        return Normal(middle, math.sqrt(max(variance, 0.0)))

    def after(self, figure: Linear, seen: float, noise: float, *, at_least: bool = False) -> Belief:
        """Having seen the figure, with a standard deviation of `noise`; with `at_least`, that it was so or more."""
        before = self.of(figure)
        variance = before.deviation**2 + noise**2
        if variance <= 0:
            return self
        deviation = math.sqrt(variance)
        if at_least:
            middle, left, log_weight = _beyond(before.middle, deviation, seen)
        else:
            distance = (seen - before.middle) / deviation
            middle, left, log_weight = seen, 0.0, -0.5 * distance**2 - math.log(deviation)
        spread = self._spread(figure)
        step = (middle - before.middle) / variance
        means = dict(self.means)
        for name, value in spread.items():
            means[name] = means.get(name, 0.0) + value * step
        shrink = math.sqrt(max(0.0, 1 - left / variance) / variance)
        gone = tuple((name, value * shrink) for name, value in spread.items() if value)
        return Belief(tuple(means.items()), (*self.taken, gone), self.log_weight + log_weight)

    def _spread(self, figure: Linear) -> dict[str, float]:
        """The covariance of each unknown with the figure."""
        spread = dict(figure.moves)
        for gone in self.taken:
            shared = sum(value * figure.moves.get(name, 0.0) for name, value in gone)
            if shared:
                for name, value in gone:
                    spread[name] = spread.get(name, 0.0) - value * shared
        return spread


def _beyond(middle: float, deviation: float, least: float) -> tuple[float, float, float]:
    """Mean and variance of a normal figure of which `least` is known, and the logarithm of how likely that was."""
    at = (least - middle) / deviation
    tail = 0.5 * math.erfc(at / math.sqrt(2))
    if tail < 1e-12:  # far beyond: as good as seen there
        return least, 0.0, -0.5 * at**2
    hazard = math.exp(-0.5 * at**2) / math.sqrt(2 * math.pi) / tail
    variance = deviation**2 * max(0.0, 1 - hazard * (hazard - at))
    return middle + deviation * hazard, variance, math.log(tail)
