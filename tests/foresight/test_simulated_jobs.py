"""Jobs of the simulator come back with fewer relaunches where forecasts choose, and never with more."""

from __future__ import annotations

from runbook.config import Foresight
from tests.foresight.simulated_jobs import by_the_loop, jobs


def test_forecasts_save_relaunches_and_cost_none() -> None:
    chosen = list(jobs(7, seed=1))[3:]
    foreseen = [by_the_loop(job, Foresight.CHOOSE) for job in chosen]
    as_ever = [by_the_loop(job, Foresight.OFF) for job in chosen]
    assert all(course.runs for course in foreseen)
    assert not sum(course.wrong for course in foreseen)
    saved = [before.relaunches - now.relaunches for before, now in zip(as_ever, foreseen, strict=True)]
    assert min(saved) >= 0
    assert any(before.relaunches == 2 and now.relaunches == 1 for before, now in zip(as_ever, foreseen, strict=True))
