"""Whether a change will fit: formulas, the job's own figures, and when nothing can be said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.foresight import (
    forecast,
    largest_that_fits,
    parameters_of,
    published_model,
    shape_of_model,
    with_changes,
)
from runbook.foresight.training_run import (
    Anchor,
    Forecast,
    LossPath,
    Recompute,
    Sharding,
    TrainingRun,
)
from runbook.model.remedy import Basis, Fit, MemoryFigure
from runbook.model.units import GIB, Bytes
from tests.foresight.published import memory_document

DOCUMENT = memory_document()
CARD = Bytes(81559 << 20)


def llama(**changes: Any) -> TrainingRun:
    """Llama 3 8B in torchtitan on eight GPUs, a sequence of 8192 tokens each."""
    entry = published_model("meta-llama/Meta-Llama-3-8B", DOCUMENT)
    assert entry is not None
    fields = {**shape_of_model(entry, DOCUMENT), "system": DOCUMENT.systems[0].id, "world": 8, "micro": 1,
              "sequence": 8192, "recompute": Recompute.SELECTIVE, "loss": LossPath.PLAIN}
    return TrainingRun(**{**fields, **changes})


def measured(gib: float, run: TrainingRun | None = None, **changes: Any) -> Anchor:
    return Anchor(run or llama(), MemoryFigure(int(gib * GIB), Basis.RESERVED, **changes))


def foreseen(run: TrainingRun, *anchors: Anchor, card: Bytes | None = CARD) -> Forecast:
    return forecast(run, DOCUMENT, anchors, card)


def part(told: Forecast, title: str) -> float:
    return next(item.bytes.middle for item in told.terms if item.title == title)


def test_states_are_exact() -> None:
    told = foreseen(llama())
    parameters = parameters_of(llama())
    assert parameters is not None
    assert part(told, "optimizer states") == pytest.approx(parameters * 8 / 8, rel=0.02)
    assert part(foreseen(llama(world=64)), "optimizer states") == pytest.approx(parameters * 8 / 64, rel=0.02)


@pytest.mark.parametrize(("sharding", "weights", "gradients", "states"), [
    (Sharding.DDP, 1, 1, 1), (Sharding.ZERO1, 1, 1, 8), (Sharding.ZERO2, 1, 8, 8), (Sharding.ZERO3, 8, 8, 8),
    (Sharding.DISTRIBUTED_OPTIMIZER, 1, 1, 8),
])
def test_what_a_sharding_divides(sharding: Sharding, weights: int, gradients: int, states: int) -> None:
    run = llama(sharding=sharding, weight_bytes=2, gradient_bytes=2, master_bytes=4, optimizer_bytes=8, accumulation=2)
    told, parameters = foreseen(run), parameters_of(run)
    assert parameters is not None
    assert part(told, "weights") == pytest.approx(parameters * 2 / weights, rel=0.02)
    assert part(told, "gradients") == pytest.approx(parameters * 2 / gradients, rel=0.02)
    assert part(told, "optimizer states") == pytest.approx(parameters * 12 / states, rel=0.02)


def test_the_same_run_again_needs_what_it_needed() -> None:
    told = foreseen(llama(), measured(49.65))
    peak = told.peaks[Basis.RESERVED]
    assert peak.middle == pytest.approx(49.65 * GIB, rel=0.01)
    assert peak.high - peak.low < 0.2 * peak.middle
    assert told.verdict is Fit.FITS


def test_a_figure_of_the_job_narrows_what_formulas_leave_open() -> None:
    twice = llama(micro=2)
    alone, anchored = foreseen(twice).peaks[Basis.RESERVED], foreseen(twice, measured(49.65)).peaks[Basis.RESERVED]
    assert anchored.high - anchored.low < 0.4 * (alone.high - alone.low)
    assert anchored.low < 82.4 * GIB < anchored.high  # as torchtitan published it


def test_another_tensor_parallel_degree_is_less_certain_than_another_batch() -> None:
    anchor = measured(49.65, llama(tensor=2))
    same, other = foreseen(llama(tensor=2, micro=2), anchor), foreseen(llama(tensor=4, micro=4), anchor)
    width = [item.peaks[Basis.RESERVED].high / item.peaks[Basis.RESERVED].low for item in (same, other)]
    assert width[0] < width[1]
    near = Bytes(int(other.peaks[Basis.DEVICE].middle * 1.05))
    assert foreseen(llama(tensor=4, micro=4), anchor, card=near).verdict is Fit.CANNOT_SAY


def test_a_job_that_ran_out_needs_at_least_what_it_had_and_asked_for() -> None:
    run = llama(recompute=Recompute.FULL)
    least = Anchor(run, MemoryFigure(78 * GIB, Basis.ALLOCATED, at_least=True))
    told = foreseen(run, least, card=Bytes(70 * GIB))
    assert told.verdict is Fit.DOES_NOT_FIT
    assert foreseen(run).peaks[Basis.ALLOCATED].middle < told.peaks[Basis.ALLOCATED].middle
    half = foreseen(replace(run, sequence=4096), least)
    assert half.peaks[Basis.ALLOCATED].middle < told.peaks[Basis.ALLOCATED].middle


def test_what_is_not_known_widens_and_is_named() -> None:
    known, open_loss = foreseen(llama()), foreseen(llama(loss=None))
    assert open_loss.open == ("loss",)
    assert open_loss.peaks[Basis.DEVICE].low < known.peaks[Basis.DEVICE].low
    assert open_loss.peaks[Basis.DEVICE].high >= known.peaks[Basis.DEVICE].high


def test_without_a_figure_that_every_term_needs_nothing_is_said() -> None:
    told = foreseen(llama(sequence=None, world=None))
    assert (told.verdict, told.missing, told.terms) == (Fit.CANNOT_SAY, ("sequence", "world"), ())


def test_without_a_card_nothing_is_said_of_fitting() -> None:
    assert foreseen(llama(), card=None).verdict is Fit.CANNOT_SAY


def test_terms_add_up_to_the_peak() -> None:
    told = foreseen(llama(), measured(49.65))
    assert sum(item.bytes.middle for item in told.terms) == pytest.approx(told.peaks[Basis.DEVICE].middle, rel=0.02)


def test_the_largest_batch_that_fits() -> None:
    fits, too_large = largest_that_fits(llama(), "micro", lambda run: foreseen(run, measured(30.0)))
    assert fits is not None and too_large is not None
    assert fits.verdict is Fit.FITS and too_large.verdict is Fit.DOES_NOT_FIT
    assert fits.run.micro is not None and too_large.run.micro is not None and fits.run.micro < too_large.run.micro
    assert foreseen(replace(fits.run, micro=fits.run.micro + 1), measured(30.0)).verdict is not Fit.FITS


def test_no_batch_fits_where_the_states_alone_do_not() -> None:
    fits, too_large = largest_that_fits(
        llama(world=1), "micro", lambda run: foreseen(run, card=Bytes(24 * GIB)))
    assert fits is None
    assert too_large is not None and too_large.run.micro == 1


def test_a_pipeline_counts_the_micro_batches_in_flight_on_its_first_stage() -> None:
    run = llama(pipeline=4, world=32, accumulation=16, recompute=Recompute.NONE)
    flying = part(foreseen(run), "activations")
    assert flying == pytest.approx(part(foreseen(llama(recompute=Recompute.NONE)), "activations"), rel=0.1)
    assert part(foreseen(replace(run, accumulation=1)), "activations") < 0.5 * flying


def test_adapters_have_states_of_their_own_only() -> None:
    full, adapters = foreseen(llama()), foreseen(llama(lora_rank=16, base_bits=4))
    assert part(adapters, "optimizer states") < 0.05 * part(full, "optimizer states")
    assert part(adapters, "weights") < 0.3 * part(foreseen(llama(lora_rank=16)), "weights") * 4 / 2


def test_changes_are_read_as_text() -> None:
    changed = with_changes(llama(), {"micro": "4", "recompute": "full", "compiled": "true", "optimizer_offload": "0.5"})
    assert (changed.micro, changed.recompute, changed.compiled, changed.optimizer_offload) == (
        4, Recompute.FULL, True, 0.5)
