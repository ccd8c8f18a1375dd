"""What a run will need: its terms, corrected by figures of the same job, against a card."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runbook.foresight.memory_document import Constants, MemoryDocument, OpenChoice, System
from runbook.foresight.memory_terms import Moment, Part, Term, missing_figures, moments_of
from runbook.foresight.settings import typed_value
from runbook.foresight.training_run import Anchor, Forecast, Interval, LossPath, Sharding, TermFigure, TrainingRun
from runbook.foresight.unknowns import Belief, Linear
from runbook.model.remedy import Basis, Fit
from runbook.model.units import Bytes

_BOUND = 2.6
"""Deviations on either side. Were all constants right, two would be nineteen times of twenty; measurements of other
frameworks than the constants were set with lie farther out (tests/foresight/README.md)."""
_UNLIKELY = 0.02
"""An alternative of less weight beside the likeliest does not count."""
_MOST_ALTERNATIVES = 160
_LARGEST = 1 << 24
_LOGIT_BYTES = (2, 4)
_SAME_SIZE = 0.02
"""By how much a request of the logits' size may differ: vocabularies are padded, requests are rounded."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A forecast under one choice of what is open, and of the moment at which each anchor had its peak."""

    weight: float
    belief: Belief
    moments: tuple[Moment, ...]
    constants: Constants
    run: TrainingRun

    def peak(self, basis: Basis, *, gap: bool = True) -> Interval:
        """Over all moments, with what two runs of one configuration differ by. Without `gap`, where the allocator keeps
        nothing beyond the peak, as it may when memory is short."""
        figures = []
        for moment in self.moments:
            total = moment.total(basis)
            if not gap:
                total = sum((item.bytes for item in moment.terms if item.part is not Part.GAP), Linear())
            figure = self.belief.of(total)
            spread = _BOUND * math.hypot(figure.deviation, self.constants.noise.middle * figure.middle)
            figures.append(Interval(figure.middle - spread, figure.middle, figure.middle + spread))
        return Interval(
            max(item.low for item in figures), max(item.middle for item in figures), max(item.high for item in figures)
        )

    def chance(self, card_bytes: float) -> float:
        """How likely the fullest moment is below the card. Deviations are as wide as the bounds are."""
        least = 1.0
        for moment in self.moments:
            figure = self.belief.of(moment.total(Basis.DEVICE))
            deviation = _BOUND / 2 * math.hypot(figure.deviation, self.constants.noise.middle * figure.middle)
            least = min(least, 0.5 * math.erfc((figure.middle - card_bytes) / (deviation * math.sqrt(2) or 1.0)))
        return least

    def highest(self, basis: Basis) -> Moment:
        return max(self.moments, key=lambda item: self.belief.of(item.total(basis)).middle)


def forecast(
    run: TrainingRun, document: MemoryDocument, anchors: Sequence[Anchor] = (), card_bytes: Bytes | None = None
) -> Forecast:
    """The memory of a run by term, and whether it fits. A figure that is missing gives "cannot say"."""
    system = document.system(run.system)
    constants = document.constants_of(system)
    open_choices = _open_choices(run, anchors, document)
    choices = list(itertools.islice(
        (item for item in _alternatives(open_choices) if _possible(run, item)), _MOST_ALTERNATIVES
    ))
    likely, assumed = _completed(run, system, choices[0])
    missing = missing_figures(likely)
    if missing:
        return Forecast(likely, (), {}, 0.0, Fit.CANNOT_SAY, card_bytes, (), missing, assumed)
    usable = tuple(item for item in anchors if not missing_figures(_completed(item.run, system, choices[0])[0]))
    outcomes = [each for chosen in choices for each in _outcomes(run, usable, (system, constants), chosen, card_bytes)]
    best = max(item.belief.log_weight for item in outcomes)
    outcomes = [replace(item, weight=math.exp(item.belief.log_weight - best)) for item in outcomes]
    counting = [item for item in outcomes if item.weight >= _UNLIKELY]
    peaks = {basis: _together(counting, partial(_Outcome.peak, basis=basis)) for basis in Basis}
    first = max(counting, key=lambda item: item.weight)
    terms = sorted(first.highest(Basis.RESERVED).terms, key=lambda item: list(Part).index(item.part))
    least = _together(counting, partial(_Outcome.peak, basis=Basis.DEVICE, gap=False)).low
    return Forecast(
        first.run, tuple(_shown(first, term) for term in terms), peaks, least,
        _verdict(peaks[Basis.DEVICE], least, card_bytes), card_bytes, usable, (), assumed,
        tuple(sorted({name for item in open_choices for name in item.fields if getattr(run, name) is None})),
        _chance(counting, card_bytes),
    )


def _chance(outcomes: Sequence[_Outcome], card_bytes: int | None) -> float | None:
    """Over all choices of what is open, by their weight."""
    if card_bytes is None:
        return None
    return sum(item.weight * item.chance(card_bytes) for item in outcomes) / sum(item.weight for item in outcomes)


def _verdict(device: Interval, least: float, card_bytes: int | None) -> Fit:
    """`least`: the lower bound where the allocator keeps nothing beyond the peak, as it may when memory is short."""
    if card_bytes is None:
        return Fit.CANNOT_SAY
    if device.high <= card_bytes:
        return Fit.FITS
    return Fit.DOES_NOT_FIT if least > card_bytes else Fit.CANNOT_SAY


def largest_that_fits(
    run: TrainingRun, field: str, ask: Callable[[TrainingRun], Forecast], *, multiple: int = 1
) -> tuple[Forecast | None, Forecast | None]:
    """The largest value of a whole-number field with which the run surely fits, and the least with which it surely does
    not: what lies between cannot be said. None where there is no such value."""
    def at(number: int) -> Forecast:
        changes: dict[str, Any] = {field: number * multiple}
        return ask(replace(run, **changes))

    def last(holds: Callable[[Forecast], bool]) -> int:
        """The largest number for which it holds, 0 where it never does."""
        if not holds(at(1)):
            return 0
        high = 2
        while high * multiple <= _LARGEST and holds(at(high)):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(at(middle)) else (low, middle)
        return low

    fitting = last(lambda item: item.verdict is Fit.FITS)
    open_too = last(lambda item: item.verdict is not Fit.DOES_NOT_FIT)
    too_large = at(open_too + 1) if (open_too + 1) * multiple <= _LARGEST else None
    return at(fitting) if fitting else None, too_large


def _outcomes(
    run: TrainingRun, anchors: Sequence[Anchor], by: tuple[System | None, Constants], chosen: Mapping[str, Any],
    card_bytes: int | None,
) -> list[_Outcome]:
    system, constants = by
    beliefs = [Belief()]
    for anchor in anchors:
        made = _completed(anchor.run, system, chosen)[0]
        moments = moments_of(made, constants, card_bytes)
        totals = [item.total(anchor.figure.basis) for item in moments]
        beliefs = _likely([
            _after_request(each, anchor, made, moments, constants, card_bytes)
            for belief in beliefs for each in _after(belief, totals, anchor, constants)
        ])
    completed = _completed(run, system, chosen)[0]
    moments = moments_of(completed, constants, card_bytes)
    return [_Outcome(1.0, belief, moments, constants, completed) for belief in beliefs]


def _after(
    belief: Belief, totals: Sequence[Linear], anchor: Anchor, constants: Constants
) -> Iterator[Belief]:
    """Having seen the peak: it was that of each of the moments, and the others were not above it."""
    noise = constants.noise.middle * anchor.figure.bytes
    if anchor.figure.at_least:
        highest = max(totals, key=lambda item: belief.of(item).middle)
        yield belief.after(highest, anchor.figure.bytes, noise, at_least=True)
        return
    for total in totals:
        after = belief.after(total, anchor.figure.bytes, noise)
        for other in totals:
            if other is not total:
                after = after.after(other.times(-1.0), -float(anchor.figure.bytes), noise, at_least=True)
        yield after


def _after_request(
    belief: Belief, anchor: Anchor, run: TrainingRun, moments: Sequence[Moment], constants: Constants,
    card_bytes: int | None,
) -> Belief:
    """Having seen what was refused. A request of the size of the logits tells where in its step the run was: the
    activations of all layers were there, and some copies of the logits. One in backward tells that these have fitted.
    """
    request = anchor.request
    at_loss = next((one for one in moments if any(term.part is Part.LOGITS for term in one.terms)), None)
    if request is None or at_loss is None or run.loss is not LossPath.PLAIN:
        return belief
    elements = (run.micro or 0) * (run.sequence or 0) / run.context * (run.vocabulary or 0) / run.tensor
    there = constants.copies_before
    beside = Linear(elements * there.middle, {"copies_before": elements * there.deviation})
    for term in at_loss.terms:
        if term.basis is Basis.ALLOCATED and term.part is not Part.LOGITS:
            beside += term.bytes
        if term.part is Part.OPTIMIZER and not request.stepped:
            beside += Linear(-0.5 * term.bytes.middle, {"not there yet": 0.25 * term.bytes.middle})
    noise = constants.noise.middle * request.allocated_bytes
    if any(abs(request.asked_bytes / (elements * size) - 1) < _SAME_SIZE for size in _LOGIT_BYTES):
        return belief.after(beside, request.allocated_bytes, noise)
    if request.in_backward and card_bytes is not None:
        return belief.after(beside.times(-1.0), -float(card_bytes), noise, at_least=True)
    return belief


def _likely(beliefs: Sequence[Belief]) -> list[Belief]:
    best = max(item.log_weight for item in beliefs)
    return [item for item in beliefs if item.log_weight > best + math.log(_UNLIKELY)]


def _completed(
    run: TrainingRun, system: System | None, chosen: Mapping[str, Any]
) -> tuple[TrainingRun, tuple[str, ...]]:
    """With what is chosen for open fields, and what the system has by default; and which fields the latter are."""
    changes: dict[str, Any] = {name: value for name, value in chosen.items() if getattr(run, name) is None}
    defaults = system.defaults if system is not None else {}
    assumed = [name for name in defaults if getattr(run, name) is None and name not in changes]
    changes |= {name: typed_value(name, defaults[name]) for name in assumed}
    return replace(run, **changes), tuple(assumed)


def _open_choices(run: TrainingRun, anchors: Sequence[Anchor], document: MemoryDocument) -> list[OpenChoice]:
    """What is open for the run or for one of those that were made."""
    runs = (run, *(anchor.run for anchor in anchors))
    system = document.system(run.system)
    found = [
        item for item in (system.open if system is not None else ())
        if any(getattr(one, name) is None for one in runs for name in item.fields)
    ]
    if anchors:
        found += [item for item in document.unchanged
                  if all(getattr(one, name) is None for one in runs for name in item.fields)]
    return found


def _alternatives(choices: Sequence[OpenChoice]) -> Iterator[dict[str, Any]]:
    """Every choice of what is open, the likeliest first."""
    for chosen in itertools.product(*(item.choices for item in choices)):
        yield {name: typed_value(name, value) for part in chosen for name, value in part.items()}


def _possible(run: TrainingRun, chosen: Mapping[str, Any]) -> bool:
    """States that are divided over a number of ranks are divided somehow."""
    return (run.shards or 1) == 1 or chosen.get("sharding") not in (Sharding.NONE, Sharding.DDP)


def _together(outcomes: Sequence[_Outcome], peak: Callable[[_Outcome], Interval]) -> Interval:
    """Over all choices of what is open: the middle of the likeliest, to which the terms add up, the bounds of all."""
    figures = [peak(item) for item in outcomes]
    likeliest = max(range(len(outcomes)), key=lambda at: outcomes[at].weight)
    return Interval(
        max(0.0, min(item.low for item in figures)), figures[likeliest].middle, max(item.high for item in figures)
    )


def _shown(outcome: _Outcome, term: Term) -> TermFigure:
    figure = outcome.belief.of(term.bytes)
    low, high = figure.middle - _BOUND * figure.deviation, figure.middle + _BOUND * figure.deviation
    floor = -math.inf if term.part is Part.REST else 0.0
    return TermFigure(term.part, term.how, Interval(max(floor, low), max(floor, figure.middle), high), term.basis)
