"""Sums over all stored incidents, kept up to date by the incidents that changed.

Ten thousand incidents are asked for every few seconds and few of them change: what an incident adds is taken out and
put in again when its row is another one. All sums are integers (times in milliseconds), so that taking out leaves no
rounding behind: Prometheus takes the smallest fall of a counter for a restart.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.model.diagnosis import Kind
from runbook.model.incident import IncidentState
from runbook.report.summary import IncidentSummary

BOX_BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0)
RELAUNCH_BUCKETS_S = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
PROOF_BUCKETS_S = (60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 43_200.0, 86_400.0)

NO_DIAGNOSIS = "none"
OPEN = "open"
DIAGNOSES = (NO_DIAGNOSIS, *(str(kind) for kind in Kind))
OUTCOMES = (OPEN, *(str(state) for state in IncidentState if state.ended))
OPEN_STATES = tuple(str(state) for state in IncidentState if not state.ended)
BY = ("tool", "person")
LOSSES = ("stopped", "repeated")

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")

Key = tuple[str, ...]
"""Name of the figure, then its labels' values in the order that metrics_families.py gives them."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Figures by key. `oldest_question_s`: when the longest waiting question was asked."""

    figures: Mapping[Key, int]
    oldest_question_s: float | None


class Totals:
    """`of` gives the sums of the rows that are stored now."""

    def __init__(self, cluster: str = "", boxes: Sequence[str] = ()) -> None:
        """`cluster` and the flow's `boxes`: what has zeros before it is counted."""
        self._boxes = tuple(boxes)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[IncidentSummary, Counter[Key]]] = {}
        self._figures: Counter[Key] = Counter()
        self._last: tuple[Sequence[IncidentSummary], Sums] | None = None
        self._clusters: set[str] = set()
        if cluster:
            self._add_zeros(cluster)

    def of(self, rows: Sequence[IncidentSummary]) -> Sums:
        """A copy: the caller may look at it while others ask again. The same tuple of rows is the same answer."""
        with self._lock:
            if self._last is not None and self._last[0] is rows and isinstance(rows, tuple):
                return self._last[1]
            known = self._known
            for row in rows:
                before = known.get(row.id)
                if before is not None and before[0] is row:
                    continue
                if before is not None:
                    self._figures.subtract(before[1])
                added = Counter(dict(_figures_of(row)))
                self._figures.update(added)
                known[row.id] = (row, added)
                self._add_zeros(row.cluster)
            if len(known) > len(rows):
                stored = {row.id for row in rows}
                for name in [name for name in known if name not in stored]:
                    self._figures.subtract(known.pop(name)[1])
            asked = [row.updated_s for row in rows if row.state is IncidentState.AWAITING_APPROVAL]
            sums = Sums(dict(self._figures), min(asked, default=None))
            self._last = rows, sums
            return sums

    def _add_zeros(self, cluster: str) -> None:
        """Figures that are there before anything is counted: `increase()` does not see a series' first value, and an
        alert on "more than none" needs a zero and not an absence."""
        if cluster in self._clusters:
            return
        self._clusters.add(cluster)
        flow = "oom"
        for key in (
            *(("incidents", cluster, flow, kind, outcome) for kind in DIAGNOSES for outcome in OUTCOMES),
            *(("open", cluster, state) for state in OPEN_STATES),
            ("opened", cluster, flow),
            *(("endings", cluster, flow, outcome) for outcome in OUTCOMES if outcome != OPEN),
            *(
                (name, cluster, by)
                for name in ("recoveries", "recovered_gpus", "recovered_stopped_ms") for by in BY
            ),
            *((name, cluster) for name in ("relaunches", "nodes_drained", "drained", "gpu_saved_ms")),
            *(("gpu_lost_ms", cluster, reason) for reason in LOSSES),
            *((f"{name}_ms", cluster) for name in ("to_relaunch", "to_proof")),
            *(("box_ms", cluster, box) for box in self._boxes),
        ):
            self._figures[key] += 0


def _figures_of(row: IncidentSummary) -> Iterator[tuple[Key, int]]:
    """Each key once: what one incident adds."""
    counted: Counter[Key] = Counter()
    cluster, tally = row.cluster, row.tally
    flow = row.id.partition("-")[0]
    outcome = str(row.state) if row.state.ended else OPEN
    counted["incidents", cluster, flow, str(row.kind or NO_DIAGNOSIS), outcome] += 1
    counted["opened", cluster, flow] += 1
    if not row.state.ended:
        counted["open", cluster, str(row.state)] += 1
    for state in tally.endings:
        counted["endings", cluster, flow, str(state)] += 1
    counted["relaunches", cluster] += row.relaunches
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
    yield from counted.items()


def _observe(counted: Counter[Key], name: Key, labels: Key, seconds: float, bounds: Sequence[float]) -> None:
    """One observation: its bucket (the bound's place as text, the last one is +Inf) and its milliseconds."""
    counted[*name, *labels, str(bisect_left(bounds, seconds))] += 1
    counted[f"{name[0]}_ms", *labels] += round(seconds * 1000)
