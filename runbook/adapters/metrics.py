"""Prometheus metrics, computed from the stored incidents each time they are asked for.

What is kept in memory between two requests can be made again from the incidents at any time, so a restart loses nothing
and every process says the same. docs/metrics.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runbook.adapters.clock import SystemClock
from runbook.adapters.metrics_families import incident_families
from runbook.adapters.metrics_info import incident_info
from runbook.adapters.metrics_totals import Totals
from runbook.report.summary import IncidentSummary


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
    events_opened: int | None = 0
    """None: whoever asks is not the daemon."""
    notifications: tuple[tuple[str, str, int], ...] = ()
    """Target, "delivered", "failed" or "held_back", and how many since the daemon's start."""


class IncidentMetrics:
    """Text for /metrics, or for node_exporter's textfile collector. May be asked by several threads at once."""

    def __init__(
        self,
        rows: Callable[[], Sequence[IncidentSummary]],
        service: Callable[[], ServiceFigures] | None = None,
        *,
        cluster: str = "",
        report_url: str = "",
        boxes: Sequence[str] = (),
        now: Callable[[], float] | None = None,
    ) -> None:
        """`cluster`: the daemon's own, which has its zeros before its first incident; `boxes`: of the flow, likewise.
        `report_url`: the address that /incidents/ID is added to; "" leaves links out."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Incidents(rows, Totals(cluster, boxes), report_url, now or SystemClock().now))
        if service is not None:
            self._registry.register(_Service(service, cluster))

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)


class _Incidents(Collector):
    def __init__(
        self,
        rows: Callable[[], Sequence[IncidentSummary]],
        totals: Totals,
        report_url: str,
        now: Callable[[], float],
    ) -> None:
        self._rows = rows
        self._totals = totals
        self._report_url = report_url
        self._now = now

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        rows = self._rows()
        yield from incident_families(self._totals.of(rows))
        yield incident_info(rows, self._report_url, self._now())


class _Service(Collector):
    def __init__(self, figures: Callable[[], ServiceFigures], cluster: str) -> None:
        self._figures = figures
        self._labels = {"cluster": cluster} if cluster else {}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        service = self._figures()
        yield self._gauge("runbook_spool_depth", "Events that wait in the spool.", service.spool_depth)
        age_s = 0.0 if service.spool_oldest_s is None else max(service.now_s - service.spool_oldest_s, 0.0)
        yield self._gauge("runbook_spool_oldest_age_seconds", "Age of the oldest waiting event; 0: none waits.", age_s)
        yield self._gauge("runbook_spool_readable", "1 while the spool can be read.", float(service.spool_readable))
        yield self._gauge("runbook_spool_bad", "Files set aside in the spool's bad/.", service.spool_bad)
        yield self._gauge("runbook_driver_up", "1 while incidents are worked on.", float(service.driver_alive))
        if service.heartbeat_s is not None:
            yield self._gauge(
                "runbook_heartbeat_timestamp_seconds", "When the daemon's loop last came round.", service.heartbeat_s
            )
        if service.events_opened is not None:
            events = CounterMetricFamily(
                "runbook_events_opened", "Events whose incident was opened or joined since the daemon's start.",
                labels=tuple(self._labels),
            )
            events.add_metric(tuple(self._labels.values()), service.events_opened)
            yield events
        if service.notifications:
            told = CounterMetricFamily(
                "runbook_notifications", "Notifications by target and what became of them, since the daemon's start.",
                labels=(*self._labels, "target", "outcome"),
            )
            for target, outcome, count in service.notifications:
                told.add_metric((*self._labels.values(), target, outcome), count)
            yield told
        build = GaugeMetricFamily("runbook_build_info", "The version that runs.", labels=(*self._labels, "version"))
        build.add_metric((*self._labels.values(), service.version), 1)
        yield build

    def _gauge(self, name: str, words: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, words, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family
