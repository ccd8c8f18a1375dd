"""How long steps took, along the steps: as printed, else between stamps, bounded, with its peaks."""

from __future__ import annotations

from itertools import pairwise

from runbook.logs.progress.step_counters import TIMES_TOLD, Mark, step_times
from runbook.model.log import StepTime
from tests.logs.test_progress_reading import OOM, megatron, read, stamp


def test_a_long_run_is_thinned_and_its_slow_step_stays() -> None:
    marks = [Mark(0, 0, step, step, 3, duration_s=9.87 if step == 437 else 1.21) for step in range(1, 100_001)]
    others = [Mark(1, 0, step, step, 4, duration_s=50.0) for step in range(1, 10)]
    times = step_times([*marks, *others])
    assert len(times) <= TIMES_TOLD
    assert (times[0].step, times[-1].step) == (1, 100_000)
    assert max(times, key=lambda one: one.duration_s) == StepTime(437, 9.87)
    assert all(one.step < other.step for one, other in pairwise(times))


def test_printed_durations_come_before_stamps() -> None:
    log = "\n".join(megatron(step, step * 2) for step in range(1, 60)) + "\n" + OOM + "\n"
    assert read(log).step_times == tuple(StepTime(step, 1.21) for step in range(1, 60))


def test_stamps_tell_it_where_no_duration_is_printed() -> None:
    lines = [f"{stamp(7 * step)} INFO train: step: {step}/500 loss: 2.31" for step in range(10, 30)]
    assert {one.duration_s for one in read("\n".join(lines) + "\n" + OOM + "\n").step_times} == {7.0}


def test_a_clock_that_jumps_and_durations_that_cannot_be_are_left_out() -> None:
    stamps = [(1, 100.0), (2, 110.0), (3, 50.0), (4, 60.0), (5, float("nan")), (2, 70.0), (3, 90.0)]
    marks = [Mark(0, 0, offset, step, 0, None, time_s) for offset, (step, time_s) in enumerate(stamps)]
    assert step_times(marks) == (StepTime(2, 10.0), StepTime(3, 20.0), StepTime(4, 10.0))
    printed = [float("inf"), -3.0, 1e300, float("nan"), 2.0]
    marks = [Mark(0, 0, step, step, 0, duration_s=seconds) for step, seconds in enumerate(printed)]
    assert step_times(marks) == (StepTime(4, 2.0),)
    assert step_times([]) == ()
