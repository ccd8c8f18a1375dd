"""Prometheus metrics, computed from the stored incidents each time they are asked for.

Nothing is counted in memory, so a restart loses nothing and the figures agree with the pages. Labels come from closed
sets or are capped: a cluster full of odd names cannot flood Prometheus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runbook.model.incident import IncidentState
from runbook.report.summary import IncidentSummary

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

_MOST_CLUSTERS = 20
_MOST_LEVERS = 60
_OTHER = "other"
_RECOVERY_BUCKETS_S = (60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """What the daemon adds. Times in epoch seconds; None: not known."""

    now_s: float
    version: str = ""
    driver_alive: bool = True
    heartbeat_s: float | None = None
    spool_depth: int = 0
    spool_oldest_s: float | None = None
    spool_readable: bool = True
    spool_bad: int = 0
    events_opened: int = 0


class IncidentMetrics:
    """Text for /metrics, or for node_exporter's textfile collector."""

    def __init__(
        self, rows: Callable[[], Sequence[IncidentSummary]], service: Callable[[], ServiceFigures] | None = None
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Incidents(rows))
        if service is not None:
            self._registry.register(_Service(service))

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)


class _Incidents(Collector):
    def __init__(self, rows: Callable[[], Sequence[IncidentSummary]]) -> None:
        self._rows = rows

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        rows = self._rows()
        cluster = _Capped((row.cluster for row in rows), _MOST_CLUSTERS)
        yield _gauge(
            "runbook_incidents", "Stored incidents by diagnosis of the first failure and outcome.",
            ("cluster", "diagnosis", "outcome"),
            Counter(
                (cluster(row.cluster), str(row.kind or "none"), str(row.state) if row.state.ended else "open")
                for row in rows
            ),
        )
        open_rows = Counter((cluster(row.cluster), str(row.state)) for row in rows if not row.state.ended)
        # Every cluster has every state, so that an alert on "more than none" sees a zero and not an absence.
        for name in sorted({cluster(row.cluster) for row in rows}):
            for state in IncidentState:
                if not state.ended:
                    open_rows.setdefault((name, str(state)), 0)
        yield _gauge("runbook_open_incidents", "Incidents that have not ended.", ("cluster", "state"), open_rows)
        waiting = [row.updated_s for row in rows if row.state is IncidentState.AWAITING_APPROVAL]
        oldest = GaugeMetricFamily(
            "runbook_oldest_approval_timestamp_seconds", "When the longest waiting question was asked; absent if none."
        )
        if waiting:
            oldest.add_metric([], min(waiting))
        yield oldest
        relaunches: Counter[tuple[str]] = Counter()
        drained: Counter[tuple[str]] = Counter()
        for row in rows:
            relaunches[(cluster(row.cluster),)] += row.relaunches
            drained[(cluster(row.cluster),)] += row.drained_nodes
        yield _gauge("runbook_relaunches", "Jobs submitted again, over all incidents.", ("cluster",), relaunches)
        yield _gauge("runbook_drained_nodes", "Nodes drained, over all incidents.", ("cluster",), drained)
        lever = _Capped((tried.lever for row in rows for tried in row.levers), _MOST_LEVERS)
        results = {True: "worked", False: "failed", None: "open"}
        yield _gauge(
            "runbook_lever_tries", "Levers in relaunched jobs, by how the relaunch ended.", ("lever", "result"),
            Counter((lever(tried.lever), results[tried.worked]) for row in rows for tried in row.levers),
        )
        yield _recovery_times(rows)


class _Service(Collector):
    def __init__(self, figures: Callable[[], ServiceFigures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        service = self._figures()
        yield GaugeMetricFamily("runbook_spool_depth", "Events that wait in the spool.", service.spool_depth)
        age_s = 0.0 if service.spool_oldest_s is None else max(service.now_s - service.spool_oldest_s, 0.0)
        yield GaugeMetricFamily("runbook_spool_oldest_age_seconds", "Age of the oldest waiting event.", age_s)
        yield GaugeMetricFamily(
            "runbook_spool_readable", "1 while the spool can be read.", float(service.spool_readable)
        )
        yield GaugeMetricFamily("runbook_driver_up", "1 while incidents are worked on.", float(service.driver_alive))
        if service.heartbeat_s is not None:
            yield GaugeMetricFamily(
                "runbook_heartbeat_timestamp_seconds", "When the daemon's loop last came round.", service.heartbeat_s
            )
        yield CounterMetricFamily(
            "runbook_events_opened", "Events whose incident was opened or joined since start.", service.events_opened
        )
        yield GaugeMetricFamily("runbook_spool_bad", "Files set aside in the spool's bad/.", service.spool_bad)
        build = GaugeMetricFamily("runbook_build_info", "The version that runs.", labels=("version",))
        build.add_metric([service.version], 1)
        yield build


class _Capped:
    """A label's values: the most common ones keep their name, the rest is "other"."""

    def __init__(self, values: Iterable[str], most: int) -> None:
        self._kept = {value for value, _ in Counter(values).most_common(most)}

    def __call__(self, value: str) -> str:
        return value if value in self._kept else _OTHER


def _gauge(
    name: str, words: str, labels: tuple[str, ...], values: Mapping[_Labels, int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric([str(part) for part in key], value)
    return family


def _recovery_times(rows: Sequence[IncidentSummary]) -> HistogramMetricFamily:
    times = [
        row.closed_s - row.opened_s
        for row in rows
        if row.state is IncidentState.RECOVERED and row.closed_s is not None and row.closed_s >= row.opened_s
    ]
    buckets = [(str(bound), float(sum(1 for time_s in times if time_s <= bound))) for bound in _RECOVERY_BUCKETS_S]
    return HistogramMetricFamily(
        "runbook_recovery_seconds", "From opening an incident to a relaunch that is proven.",
        buckets=[*buckets, ("+Inf", float(len(times)))], sum_value=sum(times),
    )
