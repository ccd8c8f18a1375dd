"""Which node sees more memory failures than its peers, judged by what the incidents themselves can tell.

How many jobs a node ran is not known here. A job on n nodes that failed on one of them is one draw among n: without a
difference between nodes, each is the failing one with probability 1/n. The failures of a node are compared with the sum
of these over the jobs that it took part in; the tail of that distribution (Poisson-binomial) is its probability, and
Benjamini and Hochberg's procedure (1995) keeps the expected share of wrongly named nodes below 5 %.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbook.model.diagnosis import Kind
from runbook.model.remedy import Remembered
from runbook.report.summary import IncidentSummary

FALSE_DISCOVERIES = 0.05
_NO_MEMORY = frozenset({Kind.NOT_OOM, Kind.UNDETERMINED})
_OF_THE_NODE = frozenset({Kind.HARDWARE_FAULT, Kind.CO_TENANT})
_MOST_STEPS = 200_000
"""Of the exact sum; beyond it the Chernoff bound, which is never below the true tail."""


class Verdict(StrEnum):
    MORE = "more"
    """More often than its peers, after correction for the number of nodes."""
    NOT_MORE = "not_more"
    TOO_FEW = "too_few"
    """Even if it had been the failing node each time, that would prove nothing yet."""


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """One node. `observed` and `expected` are over jobs on several nodes alone."""

    node: str
    verdict: Verdict
    failures: int
    """Memory failures with their failing rank here, those of single-node jobs too."""
    draws: int
    """Jobs on several nodes that it took part in, a series of the same job on the same nodes counted once."""
    observed: int
    expected: float
    probability: float
    """Of so many or more, were all nodes alike."""
    as_first: int
    """Of `observed`, those where it was the job's first node: rank 0 holds more in many programs."""
    hardware_faults: int
    co_tenants: int


def node_histories(
    rows: Iterable[IncidentSummary], remembered: Mapping[str, Remembered] | None = None
) -> tuple[NodeHistory, ...]:
    """Every node that a memory failure, a GPU fault or a co-tenant was found on, the least probable first."""
    draws: dict[str, list[float]] = defaultdict(list)
    observed: dict[str, int] = defaultdict(int)
    as_first: dict[str, int] = defaultdict(int)
    failures: dict[str, int] = defaultdict(int)
    found: dict[Kind, dict[str, int]] = {kind: defaultdict(int) for kind in _OF_THE_NODE}
    seen: set[object] = set()
    for row in rows:
        if row.kind is None or row.kind in _NO_MEMORY or not row.node:
            continue
        if row.kind in _OF_THE_NODE:
            found[row.kind][row.node] += 1
        if row.kind is Kind.HARDWARE_FAULT:
            continue
        failures[row.node] += 1
        count = max(row.num_nodes, len(row.nodes))
        if count < 2 or row.node not in row.nodes:
            continue
        past = (remembered or {}).get(row.id)
        series = (past.script or past.series) if past else ""
        # A job that is submitted again and again to the same nodes dies in the same place: that is one observation.
        same = (series or (row.owner, row.job_name) if series or row.job_name else row.id, row.nodes, row.node)
        if same in seen:
            continue
        seen.add(same)
        for name in row.nodes:
            draws[name].append(1 / count)
        observed[row.node] += 1
        as_first[row.node] += row.nodes[0] == row.node
    tails = {name: tail(draws[name], observed[name]) for name in draws}
    able = {name: p for name, p in tails.items() if _surest(draws[name]) <= FALSE_DISCOVERIES / max(len(tails), 1)}
    named = _discoveries(able)
    names = failures.keys() | {name for counts in found.values() for name in counts}
    told = [
        NodeHistory(
            node=name,
            verdict=Verdict.MORE if name in named else Verdict.NOT_MORE if name in able else Verdict.TOO_FEW,
            failures=failures[name],
            draws=len(draws[name]),
            observed=observed[name],
            expected=sum(draws[name]),
            probability=tails.get(name, 1.0),
            as_first=as_first[name],
            hardware_faults=found[Kind.HARDWARE_FAULT][name],
            co_tenants=found[Kind.CO_TENANT][name],
        )
        for name in names
    ]
    return tuple(sorted(told, key=lambda item: (item.verdict is not Verdict.MORE, item.probability, -item.failures,
                                                item.node)))


def tail(probabilities: Sequence[float], at_least: int) -> float:
    """The probability that `at_least` or more of independent draws come true: exact while that is quick, else a bound
    from above."""
    if at_least <= 0:
        return 1.0
    if at_least > len(probabilities):
        return 0.0
    if len(probabilities) * at_least > _MOST_STEPS:
        mean = sum(probabilities)
        if at_least <= mean:
            return 1.0
        return math.exp(min(at_least - mean - at_least * math.log(at_least / mean), 0.0))
    below = [1.0] + [0.0] * (at_least - 1)
    for p in probabilities:
        for count in range(at_least - 1, 0, -1):
            below[count] = below[count] * (1 - p) + below[count - 1] * p
        below[0] *= 1 - p
    return min(max(1.0 - math.fsum(below), 0.0), 1.0)


def _surest(probabilities: Sequence[float]) -> float:
    """The smallest probability that these draws could give: every one of them true."""
    return math.prod(probabilities) if probabilities else 1.0


def _discoveries(tails: Mapping[str, float]) -> frozenset[str]:
    """Benjamini and Hochberg: the largest k whose k-th smallest probability is at most k/m of the level."""
    ordered = sorted(tails, key=lambda name: tails[name])
    kept = 0
    for rank, name in enumerate(ordered, start=1):
        if tails[name] <= FALSE_DISCOVERIES * rank / len(ordered):
            kept = rank
    return frozenset(ordered[:kept])
