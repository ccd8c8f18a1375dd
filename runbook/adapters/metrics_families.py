"""The sums over incidents as metric families: names, help and labels. docs/metrics.md explains each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from runbook.adapters.metrics_totals import BOX_BUCKETS_S, OUTCOMES, PROOF_BUCKETS_S, RELAUNCH_BUCKETS_S, Key, Sums

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


def incident_families(sums: Sums) -> Iterator[Metric]:
    """Every family over stored incidents, in a stable order."""
    by_name: dict[str, dict[Key, int]] = defaultdict(dict)
    for figure, value in sums.figures.items():
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
    question = GaugeMetricFamily(
        "runbook_oldest_approval_timestamp_seconds", "When the longest waiting question was asked; absent if none."
    )
    if sums.oldest_question_s is not None:
        question.add_metric([], sums.oldest_question_s)
    yield question


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
