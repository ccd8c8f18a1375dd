"""Prometheus metrics, computed from the stored incidents each time they are asked for.

What is kept in memory between two requests can be made again from the incidents at any time, so a restart loses nothing
and every process says the same. docs/metrics.md has the list.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from runbook.adapters.clock import SystemClock
from runbook.adapters.store.totals import (
    BOX_BUCKETS_S,
    OUTCOMES,
    PROOF_BUCKETS_S,
    RELAUNCH_BUCKETS_S,
    Key,
    zeros,
)
from runbook.model.incident import IncidentState
from runbook.report.summary import IncidentSummary

# The sums over incidents as metric families: names, help and labels. docs/metrics.md explains each.

_OTHER = "other"
_MOST = {"cluster": 20, "lever": 120, "box": 40, "outcome": 60}
"""Values of a label; the most common keep their name. The others are "other": a store full of odd names cannot flood
Prometheus."""

_LOST = (
    "GPU seconds in which a job that died of memory or of a GPU did not train: stopped: from the failure to the last "
    "relaunch, or without one to the incident's end; repeated: training since the checkpoint that was resumed from."
)
_SAVED = (
    "GPU seconds of training that relaunched jobs had done by the time they were proven, where no person had said yes "
    "to anything: a lower bound, as nothing is counted after the proof."
)
_GAUGES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "incidents", "runbook_incidents",
        "Stored incidents as they stand now, by diagnosis of the first failure and outcome.",
        ("cluster", "flow", "diagnosis", "outcome"),
    ),
    ("open", "runbook_open_incidents", "Incidents that have not ended.", ("cluster", "state")),
    ("drained", "runbook_drained_nodes", "Nodes drained and not given back by this tool.", ("cluster",)),
    (
        "unreached", "runbook_unreached_nodes", "Nodes of stored incidents that did not answer the check, by reason.",
        ("cluster", "reason"),
    ),
)
_COUNTERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("opened", "runbook_incidents_opened", "Incidents opened.", ("cluster", "flow")),
    (
        "endings", "runbook_incident_endings",
        "Times that work on an incident ended; one that is taken up again ends again.", ("cluster", "flow", "outcome"),
    ),
    (
        "recoveries", "runbook_recoveries",
        "Incidents with a relaunched job proven to run past the failing step; by=tool: no person said yes to anything.",
        ("cluster", "by"),
    ),
    (
        "recovered_gpus", "runbook_recovered_gpus",
        "GPUs of the jobs in runbook_recoveries_total, where their number is known.", ("cluster", "by"),
    ),
    (
        "recovered_stopped_ms", "runbook_recovered_gpu_stopped_seconds",
        "GPU seconds from the failure to the last relaunch of the jobs in runbook_recoveries_total.", ("cluster", "by"),
    ),
    ("relaunches", "runbook_relaunches", "Jobs submitted again.", ("cluster",)),
    ("fits_foreseen", "runbook_fits_foreseen", "Relaunched jobs that were foreseen to fit.", ("cluster",)),
    ("fits_wrong", "runbook_fits_wrong", "Those of them that ran out of memory again.", ("cluster",)),
    ("nodes_drained", "runbook_nodes_drained", "Nodes drained, also those given back since.", ("cluster",)),
    ("levers_tried", "runbook_levers_tried", "Levers in relaunched jobs.", ("cluster", "lever")),
    ("levers_worked", "runbook_levers_worked", "Levers in relaunched jobs that were proven.", ("cluster", "lever")),
    ("levers_failed", "runbook_levers_failed", "Levers in relaunched jobs that failed again.", ("cluster", "lever")),
    (
        "box_outcomes", "runbook_box_outcomes", "Boxes of the flow that were left, by outcome.",
        ("cluster", "box", "outcome"),
    ),
    ("gpu_lost_ms", "runbook_gpu_lost_seconds", _LOST, ("cluster", "reason")),
    ("gpu_saved_ms", "runbook_gpu_saved_seconds", _SAVED, ("cluster",)),
)
_HISTOGRAMS: tuple[tuple[str, str, str, tuple[str, ...], Sequence[float]], ...] = (
    (
        "box", "runbook_box_duration_seconds", "Time in a box of the flow, with its waiting.", ("cluster", "box"),
        BOX_BUCKETS_S,
    ),
    (
        "to_relaunch", "runbook_failure_to_relaunch_seconds", "From a job's failure to its first relaunch.",
        ("cluster",), RELAUNCH_BUCKETS_S,
    ),
    (
        "to_proof", "runbook_failure_to_proof_seconds",
        "From a job's failure to the proof that a relaunched job runs past it.", ("cluster",), PROOF_BUCKETS_S,
    ),
)


def incident_families(figures: Mapping[Key, int]) -> Iterator[Metric]:
    """Every family over stored incidents, in a stable order."""
    by_name: dict[str, dict[Key, int]] = defaultdict(dict)
    for figure, value in figures.items():
        by_name[figure[0]][figure[1:]] = value
    kept = {
        "cluster": _most_common(by_name["opened"], 0, "cluster"),
        "lever": _most_common(by_name["levers_tried"], 1, "lever"),
        "box": _most_common(by_name["box_ms"], 1, "box"),
        "outcome": _most_common(by_name["box_outcomes"], 2, "outcome") | set(OUTCOMES),
    }

    def capped(labels: tuple[str, ...], name: str) -> Iterator[tuple[Key, int]]:
        together: Counter[Key] = Counter()
        for key, value in by_name[name].items():
            parts = (
                part if label not in kept or part in kept[label] else _OTHER for part, label in zip(key, labels)
            )
            together[tuple(parts)] += value
        yield from sorted(together.items())

    for name, metric, words, labels in _GAUGES:
        gauge = GaugeMetricFamily(metric, words, labels=labels)
        for key, value in capped(labels, name):
            gauge.add_metric(key, value)
        yield gauge
    for name, metric, words, labels in _COUNTERS:
        counter = CounterMetricFamily(metric, words, labels=labels)
        for key, value in capped(labels, name):
            counter.add_metric(key, value / 1000 if name.endswith("_ms") else value)
        yield counter
    for name, metric, words, labels, bounds in _HISTOGRAMS:
        histogram = HistogramMetricFamily(metric, words, labels=labels)
        counts: dict[Key, dict[int, int]] = defaultdict(dict)
        for key, value in capped((*labels, "bucket"), name):
            counts[key[:-1]][int(key[-1])] = value
        for key, sum_ms in capped(labels, f"{name}_ms"):
            histogram.add_metric(key, _cumulative(counts[key], bounds), sum_ms / 1000)
        yield histogram


def _cumulative(counts: Mapping[int, int], bounds: Sequence[float]) -> list[tuple[str, float]]:
    """Prometheus' buckets from the counts of single ones; the last is +Inf."""
    running = accumulate(counts.get(place, 0) for place in range(len(bounds) + 1))
    return [(bound, float(count)) for bound, count in zip((*map(str, bounds), "+Inf"), running)]


def _most_common(values: Mapping[Key, int], place: int, label: str) -> set[str]:
    """Values of a label that keep their name: by weight, then by name."""
    weights: Counter[str] = Counter()
    for key, value in values.items():
        weights[key[place]] += value
    return set(sorted(weights, key=lambda value: (-weights[value], value))[: _MOST[label]])


# The one metric that names jobs and nodes: what alerts and links are made of.

MOST_OPEN = 500
MOST_ENDED = 50
ENDED_FOR_S = 72 * 3600.0
"""An incident that ended is named for a long weekend; then its alerts end, too."""

LABELS = (
    "cluster", "incident", "job_id", "node", "user", "diagnosis", "state", "died_again", "budget", "drained",
    "report_url",
)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+@\[\]-]{0,63}")
_ENDED = frozenset(state for state in IncidentState if state.ended)
_URGENT = {IncidentState.AWAITING_APPROVAL: 2, IncidentState.INTERRUPTED: 1}


def incident_info(rows: Sequence[IncidentSummary], report_url: str, now_s: float) -> GaugeMetricFamily:
    """Open incidents, those that wait for a person first, and the newest of those that ended lately."""
    family = GaugeMetricFamily(
        "runbook_incident_info",
        f"Open incidents, and the last {MOST_ENDED} that ended within 72 hours, with what is known of each; always 1.",
        labels=LABELS,
    )
    since_s = now_s - ENDED_FOR_S
    still_open = [row for row in rows if row.state not in _ENDED]
    ended = [row for row in rows if row.updated_s >= since_s and row.state in _ENDED]
    shown = [
        *nlargest(MOST_OPEN, still_open, key=lambda row: (_URGENT.get(row.state, 0), row.opened_s)),
        *nlargest(MOST_ENDED, ended, key=lambda row: row.updated_s),
    ]
    for row in sorted(shown, key=lambda row: row.id):
        family.add_metric(incident_labels(row, report_url), 1)
    return family


def incident_labels(row: IncidentSummary, report_url: str) -> list[str]:
    """The values of `LABELS`: nothing in them is a sentence of somebody else's."""
    return [
        row.cluster,
        row.id,
        _plain(row.root_job),
        _plain(row.node),
        _plain(row.owner),
        str(row.kind or "none"),
        str(row.state),
        "yes" if row.tally.memory_failures_again else "no",
        "spent" if row.tally.budget_spent else "left",
        ",".join(name for name in map(_plain, row.drained) if name),
        f"{report_url.rstrip('/')}/incidents/{row.id}" if report_url else "",
    ]


def _plain(text: str) -> str:
    """A name that can be one; what a log or a job calls itself goes no further: alerts end up in chats and mails."""
    return text if _PLAIN.fullmatch(text) else ""


@dataclass(frozen=True, slots=True)
class BoxFigures:
    """One box of the flow, over the incidents where it is at work now."""

    box: str
    oldest_s: float
    late: int
    """At work for longer than the flow document expects."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What lay in the state folder of incidents when a prune last came to its end, and what may."""

    stored_bytes: int
    limit_bytes: int
    last_prune_s: float
    """0: there was none."""


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """What is watched now. Seconds."""

    jobs: int = 0
    files: int = 0
    round_s: float = 0.0
    """The longest of the last rounds: so long a file may wait to be asked."""
    held: int = 0
    """Jobs left out because their file system does not answer."""
    ok: bool = True


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
    events_held: int | None = None
    """By their owner's share of the places in which incidents are begun; None: whoever asks is not the daemon."""
    boxes: tuple[BoxFigures, ...] = ()
    """At work now."""
    boxes_waiting: int | None = 0
    """For a place; None: whoever asks is not the daemon."""
    reads_given_up: int | None = None
    """None: whoever asks is not the daemon."""
    notifications: tuple[tuple[str, str, int], ...] = ()
    """Target, "delivered", "failed" or "held_back", and how many since the daemon's start."""
    store: StoreFigures | None = None
    watch: WatchFigures | None = None
    """None: no running job is watched."""
    drives: bool = True
    """False: a daemon that waits, and so has no figures but of itself."""
    waiting: int | None = None
    """Daemons that would take over; None: not known, or none can."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What the metrics of one installation say of themselves, and what has zeros before its first incident."""

    cluster: str = ""
    flow: str = ""
    boxes: tuple[str, ...] = ()
    """Of the flow."""
    report_url: str = ""
    """The address that /incidents/ID is added to; "" leaves links out."""


class Incidents(Protocol):
    def totals(self) -> tuple[Sequence[IncidentSummary], Mapping[Key, int]]:
        """Every incident, and the sums over all of them."""


class IncidentMetrics:
    """Text for /metrics, or for node_exporter's textfile collector. May be asked by several threads at once."""

    def __init__(
        self,
        incidents: Incidents | None,
        labels: Labels,
        service: Callable[[], ServiceFigures] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`incidents` None: another daemon tells of them."""
        self._registry = CollectorRegistry(auto_describe=False)
        if incidents is not None:
            self._registry.register(_Incidents(incidents, labels, now or SystemClock().now))
        if service is not None:
            self._registry.register(_Service(service, labels.cluster))

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)


class _Incidents(Collector):
    def __init__(self, incidents: Incidents, labels: Labels, now: Callable[[], float]) -> None:
        self._incidents = incidents
        self._labels = labels
        self._now = now

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        rows, sums = self._incidents.totals()
        labels = self._labels
        known = {(key[1], key[2]) for key in sums if key[0] == "opened"}
        known |= {(labels.cluster, labels.flow)} if labels.cluster else set()
        at_least = {key: 0 for cluster, flow in known for key in zeros(cluster, flow, labels.boxes)}
        yield from incident_families({**at_least, **sums})
        yield _oldest_question(rows)
        yield incident_info(rows, labels.report_url, self._now())


def _oldest_question(rows: Sequence[IncidentSummary]) -> GaugeMetricFamily:
    question = GaugeMetricFamily(
        "runbook_oldest_approval_timestamp_seconds", "When the longest waiting question was asked; absent if none."
    )
    if asked := [row.updated_s for row in rows if row.state is IncidentState.AWAITING_APPROVAL]:
        question.add_metric([], min(asked))
    return question


class _Service(Collector):
    def __init__(self, figures: Callable[[], ServiceFigures], cluster: str) -> None:
        self._figures = figures
        self._labels = {"cluster": cluster} if cluster else {}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        service = self._figures()
        if service.drives:
            yield from self._spool(service)
        yield self._gauge("runbook_driver_up", "1 while incidents are worked on.", float(service.driver_alive))
        if service.drives:
            yield from self._boxes(service)
        if service.waiting is not None:
            words = "Other daemons that would take over, as the database they share has it."
            yield self._gauge("runbook_waiting_daemons", words, service.waiting)
        if service.heartbeat_s is not None:
            yield self._gauge(
                "runbook_heartbeat_timestamp_seconds", "When the daemon's loop last came round.", service.heartbeat_s
            )
        if service.drives:
            yield from self._since_its_start(service)
        build = GaugeMetricFamily("runbook_build_info", "The version that runs.", labels=(*self._labels, "version"))
        build.add_metric((*self._labels.values(), service.version), 1)
        yield build

    def _spool(self, service: ServiceFigures) -> Iterator[Metric]:
        yield self._gauge("runbook_spool_depth", "Events that wait in the spool.", service.spool_depth)
        age_s = 0.0 if service.spool_oldest_s is None else max(service.now_s - service.spool_oldest_s, 0.0)
        yield self._gauge("runbook_spool_oldest_age_seconds", "Age of the oldest waiting event; 0: none waits.", age_s)
        yield self._gauge("runbook_spool_readable", "1 while the spool can be read.", float(service.spool_readable))
        if service.events_held is not None:
            words = "Events whose owner has his share of the places in which incidents are begun."
            yield self._gauge("runbook_events_held", words, service.events_held)
        yield self._gauge("runbook_spool_bad", "Files set aside in the spool's bad/.", service.spool_bad)

    def _boxes(self, service: ServiceFigures) -> Iterator[Metric]:
        yield self._by_box("runbook_box_at_work_seconds", "For how long the oldest is at work, by box.", [
            (one.box, one.oldest_s) for one in service.boxes
        ])
        yield self._by_box("runbook_boxes_late", "At work for longer than the flow document expects, by box.", [
            (one.box, one.late) for one in service.boxes
        ])
        if service.boxes_waiting is not None:
            yield self._gauge("runbook_boxes_waiting", "Boxes that wait for a place.", service.boxes_waiting)
        if service.reads_given_up is not None:
            yield self._gauge(
                "runbook_reads_given_up", "Processes that wait for a file system and cannot be ended.",
                service.reads_given_up,
            )

    def _since_its_start(self, service: ServiceFigures) -> Iterator[Metric]:
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
        if service.store is not None:
            yield self._gauge(
                "runbook_stored_bytes", "On disk of stored incidents, by the last prune.", service.store.stored_bytes
            )
            yield self._gauge(
                "runbook_stored_limit_bytes", "As much as may be (keep.total_gib).", service.store.limit_bytes
            )
            yield self._gauge(
                "runbook_last_prune_timestamp_seconds", "When a prune last came to its end; 0: never.",
                service.store.last_prune_s,
            )
        if service.watch is not None:
            yield from self._watch(service.watch)

    def _watch(self, watch: WatchFigures) -> Iterator[Metric]:
        yield self._gauge("runbook_watched_jobs", "Running jobs whose logs are followed.", watch.jobs)
        yield self._gauge("runbook_watched_files", "Logs that are followed.", watch.files)
        yield self._gauge("runbook_watch_round_seconds", "How long the last round took.", watch.round_s)
        yield self._gauge(
            "runbook_watch_left_out_jobs", "Left out for a while, as nothing that reads their logs answers.", watch.held
        )
        yield self._gauge("runbook_watch_up", "1 while jobs are watched as the inventory says.", float(watch.ok))

    def _by_box(self, name: str, words: str, values: Sequence[tuple[str, float]]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, words, labels=(*self._labels, "box"))
        for box, value in values:
            family.add_metric((*self._labels.values(), box), value)
        return family

    def _gauge(self, name: str, words: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, words, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family
