"""What one incident adds to the sums of the metrics, and what stands there before anything is added.

All figures are integers (times in milliseconds), so that taking an incident out and putting it in again leaves no
rounding behind: Prometheus takes the smallest fall of a counter for a restart.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from runbook.kinds import load_kinds
from runbook.model.incident import IncidentState
from runbook.model.units import playbook_of
from runbook.report.summary import IncidentSummary

BOX_BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0)
RELAUNCH_BUCKETS_S = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
PROOF_BUCKETS_S = (60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 43_200.0, 86_400.0)

NO_DIAGNOSIS = "none"
OPEN = "open"
OUTCOMES = (OPEN, *(str(state) for state in IncidentState if state.ended))
OPEN_STATES = tuple(str(state) for state in IncidentState if not state.ended)
BY = ("tool", "person")
LOSSES = ("stopped", "repeated")

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")

Key = tuple[str, ...]
"""Name of the figure, then its labels' values in the order that `adapters/metrics.py` gives them."""


AS_THEY_STAND = frozenset({"incidents", "open", "drained", "unreached"})
"""Figures of what is stored now: they go with an incident that is removed. All others only grow."""


def zeros(cluster: str, flow: str, boxes: Sequence[str]) -> Iterator[Key]:
    """Figures that are there before anything is counted: `increase()` does not see a series' first value, and an alert
    on "more than none" needs a zero and not an absence."""
    diagnoses = (NO_DIAGNOSIS, *load_kinds())
    yield from (("incidents", cluster, flow, kind, outcome) for kind in diagnoses for outcome in OUTCOMES)
    yield from (("open", cluster, state) for state in OPEN_STATES)
    yield ("opened", cluster, flow)
    yield from (("endings", cluster, flow, outcome) for outcome in OUTCOMES if outcome != OPEN)
    yield from (
        (name, cluster, by) for name in ("recoveries", "recovered_gpus", "recovered_stopped_ms") for by in BY
    )
    yield from ((name, cluster) for name in ("fits_foreseen", "fits_wrong"))
    yield from ((name, cluster) for name in ("relaunches", "nodes_drained", "drained", "gpu_saved_ms"))
    yield from (("gpu_lost_ms", cluster, reason) for reason in LOSSES)
    yield from ((f"{name}_ms", cluster) for name in ("to_relaunch", "to_proof"))
    yield from (("box_ms", cluster, box) for box in boxes)


def figures_of(row: IncidentSummary) -> Mapping[Key, int]:
    """What one incident adds."""
    counted: Counter[Key] = Counter()
    cluster, tally = row.cluster, row.tally
    flow = playbook_of(row.id)
    outcome = str(row.state) if row.state.ended else OPEN
    counted["incidents", cluster, flow, str(row.kind or NO_DIAGNOSIS), outcome] += 1
    counted["opened", cluster, flow] += 1
    if not row.state.ended:
        counted["open", cluster, str(row.state)] += 1
    for state in tally.endings:
        counted["endings", cluster, flow, str(state)] += 1
    counted["relaunches", cluster] += row.relaunches
    counted["fits_foreseen", cluster] += tally.fits_foreseen
    counted["fits_wrong", cluster] += tally.fits_wrong
    counted["nodes_drained", cluster] += tally.nodes_drained
    counted["drained", cluster] += row.drained_nodes
    for reach in tally.unreached:
        counted["unreached", cluster, str(reach)] += 1
    for tried in row.levers:
        lever = tried.lever if _WORD.fullmatch(tried.lever) else "other"
        counted["levers_tried", cluster, lever] += 1
        # Zeros too: a lever that never failed still has a share of tries that worked.
        counted["levers_worked", cluster, lever] += tried.worked is True
        counted["levers_failed", cluster, lever] += tried.worked is False
    for box, left_by, seconds in tally.boxes:
        counted["box_outcomes", cluster, box, left_by] += 1
        _observe(counted, ("box",), (cluster, box), seconds, BOX_BUCKETS_S)
    if tally.failed_s is not None and tally.relaunched_s is not None:
        waited_s = max(tally.relaunched_s - tally.failed_s, 0.0)
        _observe(counted, ("to_relaunch",), (cluster,), waited_s, RELAUNCH_BUCKETS_S)
    if tally.failed_s is not None and tally.proven_s is not None:
        _observe(counted, ("to_proof",), (cluster,), max(tally.proven_s - tally.failed_s, 0.0), PROOF_BUCKETS_S)
    if tally.proven_s is not None:
        by = BY[0] if tally.unattended else BY[1]
        counted["recoveries", cluster, by] += 1
        counted["recovered_gpus", cluster, by] += tally.gpus or 0
        counted["recovered_stopped_ms", cluster, by] += round(tally.stopped_s * (tally.gpus or 0) * 1000)
    gpus = tally.gpus or 0
    counted["gpu_lost_ms", cluster, LOSSES[0]] += round(tally.stopped_s * gpus * 1000)
    counted["gpu_lost_ms", cluster, LOSSES[1]] += round(tally.repeated_s * gpus * 1000)
    counted["gpu_saved_ms", cluster] += round(tally.saved_s * gpus * 1000)
    return counted


def _observe(counted: Counter[Key], name: Key, labels: Key, seconds: float, bounds: Sequence[float]) -> None:
    """One observation: its bucket (the bound's place as text, the last one is +Inf) and its milliseconds."""
    counted[*name, *labels, str(bisect_left(bounds, seconds))] += 1
    counted[f"{name[0]}_ms", *labels] += round(seconds * 1000)
