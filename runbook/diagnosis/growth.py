"""Growth over steps: memory that rises and does not fall points at references kept alive."""

from __future__ import annotations

from itertools import pairwise

from runbook.diagnosis.case import Case, Vote
from runbook.diagnosis.figures import size
from runbook.model.diagnosis import Kind

_FEWEST_SAMPLES = 5
_RISING_SHARE = 0.9
_GROWTH = 1.10


def leak(case: Case) -> Vote | None:
    """Allocated memory that rose at nearly every sample of one rank, by more than a tenth, beyond the first steps."""
    series: dict[int | None, list[tuple[int, int]]] = {}
    for sample in case.story.progress.memory:
        value = sample.allocated_bytes
        if value is not None and sample.step is not None:
            series.setdefault(sample.rank, []).append((sample.step, value))
    rank = case.root.rank if case.root is not None and case.root.rank in series else next(iter(series), None)
    points = sorted(series.get(rank, []))[1:]
    if len(points) < _FEWEST_SAMPLES:
        return None
    values = [value for _, value in points]
    rising = sum(1 for earlier, later in pairwise(values) if later > earlier) / (len(values) - 1)
    if rising < _RISING_SHARE or values[-1] < values[0] * _GROWTH:
        return None
    return Vote(
        "growth over steps", Kind.MEMORY_LEAK, 0.65,
        (f"Allocated memory of rank {rank if rank is not None else 'unknown'} rose at {rising:.0%} of "
         f"{len(points)} samples, from {size(values[0])} at step {points[0][0]} to {size(values[-1])} at step "
         f"{points[-1][0]}.",),
        ("Sequences that grow by a curriculum look the same.",),
        ("two memory snapshots some steps apart, to name what is kept",),
    )
