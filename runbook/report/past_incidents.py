"""What past incidents tell: each as a witness for the next one like it, and which node sees more memory failures than
its peers.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from runbook.model.diagnosis import Died, Remedy
from runbook.model.incident import Attempt, Failure, Incident
from runbook.model.log import LogStory, Phase
from runbook.model.remedy import Circumstances, LeverUse, Remembered, TriedLever
from runbook.model.template import condition_of
from runbook.model.units import Unknown
from runbook.report.narrative import (
    cause,
    first_failure,
    fits_told,
    is_simulated,
    newest_forecast,
    proven_attempt,
    worked,
)
from runbook.report.summary import IncidentSummary
from runbook.report.vocabulary.clean import clean_line, shorten

if TYPE_CHECKING:
    pass


# An incident as a witness for the next one like it: derived from the stored incident, so it can be made again.

_MOST_LEVERS = 12
_MOST_DEGREES = 8


def remember(incident: Incident) -> Remembered | None:
    """What is kept of an incident; None while it is not known what its first job died of. Of bounded size, masked,
    without names of people and jobs."""
    failure, best = first_failure(incident), cause(incident)
    if failure is None or best is None:
        return None
    finding = failure.story.root_cause if failure.story else None
    gpu, gpu_bytes = _gpu(failure)
    proven = proven_attempt(incident)
    version = (failure.story.framework_version if failure.story else None) or (
        finding.framework_version if finding else None
    )
    job = failure.job
    fits, wrong = fits_told(incident.attempts)
    return Remembered(
        incident=incident.id,
        opened_s=incident.opened_s,
        kind=best.kind,
        detail=best.detail,
        phase=finding.phase if finding else Phase.UNKNOWN,
        script=_digest(job.owner, job.command) if job.owner and job.command else "",
        series=_digest(job.owner, job.name) if job.owner and job.name else "",
        owner=_digest(job.owner) if job.owner else "",
        circumstances=_circumstances(incident),
        framework_version=_short(version or "", 40),
        gpu=_short(gpu, 60),
        gpu_bytes=gpu_bytes,
        gpus=_gpus(failure),
        levers=_levers(incident),
        headroom=_short(proven.verdict.headroom, 160) if proven and proven.verdict else "",
        simulated=is_simulated(incident),
        fits_foreseen=fits,
        fits_wrong=wrong,
        forecast_held=newest_forecast(incident),
    )


def _circumstances(incident: Incident) -> Circumstances:
    """As the choice of the lever found them; of an incident that made none, only what its plan says."""
    told = incident.circumstances
    if told is None:
        plans = (incident.plan, incident.world_plan, *(attempt.plan for attempt in incident.attempts))
        return Circumstances(system=next((_short(plan.system, 40) for plan in plans if plan and plan.system), ""))
    return replace(
        told,
        system=_short(told.system, 40),
        releases=tuple(_short(name, 40) for name in told.releases[:8]),
        model=_short(told.model, 80),
        degrees={_short(name, 40): told.degrees[name] for name in list(told.degrees)[:_MOST_DEGREES]},
    )


def _gpu(failure: Failure) -> tuple[str, int | None]:
    """Model and memory of the failing rank's GPU. The log's word on the capacity goes first: it is what PyTorch had."""
    story = failure.story or LogStory(root_cause=None)
    finding = story.root_cause
    here = [facts for facts in failure.nodes if finding is None or finding.node is None or facts.node == finding.node]
    gpus = [gpu for facts in here if not isinstance(facts.gpus, Unknown) for gpu in facts.gpus]
    names = {gpu.name for gpu in gpus if gpu.name}
    sizes = {gpu.total_bytes for gpu in gpus if not isinstance(gpu.total_bytes, Unknown)}
    told = finding.fields.capacity_bytes if finding else None
    return names.pop() if len(names) == 1 else "", told or (sizes.pop() if len(sizes) == 1 else None)


def _gpus(failure: Failure) -> int | None:
    nodes = failure.job.num_nodes or len(failure.job.nodes)
    if failure.job.gpus_per_node and nodes:
        return failure.job.gpus_per_node * nodes
    return failure.story.world_size if failure.story else None


def _levers(incident: Incident) -> tuple[TriedLever, ...]:
    tried = [
        TriedLever(_short(use.lever, 60), _short(use.key, 160), _change(use), attempt.number, _helped(attempt))
        for attempt in incident.attempts
        if attempt.plan is not None and attempt.job
        for use in attempt.plan.uses
    ]
    return tuple(tried[-_MOST_LEVERS:])


def _change(use: LeverUse) -> str:
    told = [
        f"{condition_of(edit.spellings[0])[0]} {edit.old or '(not set)'} → {edit.new or '(removed)'}"
        for edit in use.edits[:4]
    ]
    return _short("; ".join(told), 160)


def _helped(attempt: Attempt) -> bool | None:
    passed = worked(attempt)
    if passed is False and (
        attempt.diagnosis is None or attempt.diagnosis.best.kind.entry.remedy is not Remedy.LEVERS
    ):
        return None  # it died of what says nothing against its lever
    return passed


def _digest(*parts: str) -> str:
    """Enough to compare by, and not what it was made of."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _short(text: str, limit: int) -> str:
    return shorten(clean_line(text), limit)


# Which node sees more memory failures than its peers, judged by what the incidents themselves can tell.
#
# How many jobs a node ran is not known here. A job on n nodes that failed on one of them is one draw among n: without
# a difference between nodes, each is the failing one with probability 1/n. The failures of a node are compared with
# the sum of these over the jobs that it took part in; the tail of that distribution (Poisson-binomial) is its
# probability, and Benjamini and Hochberg's procedure (1995) keeps the expected share of wrongly named nodes below 5 %.
#
# Which node a job failed on is what its logs say, and those are its owner's text. So a node is named only where that
# holds without the jobs of any one owner.

FALSE_DISCOVERIES = 0.05
_MOST_LEFT_OUT = 4
"""Owners who are left out by turns, those with most failures on the node first: another has at most a fifth of them."""
_MOST_STEPS = 200_000
"""Of the exact sum; beyond it the Chernoff bound, which is never below the true tail."""


class Verdict(StrEnum):
    MORE = "more"
    """More often than its peers, after correction for the number of nodes, whichever one owner's jobs are left out."""
    ONE_OWNER = "one_owner"
    """More often than its peers, and not without one owner's jobs."""
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
    owners: int = 0
    """Whose jobs `observed` are."""
    most_of: str = ""
    """The owner of most of them."""


def node_histories(
    rows: Iterable[IncidentSummary], remembered: Mapping[str, Remembered] | None = None
) -> tuple[NodeHistory, ...]:
    """Every node that a memory failure, a GPU fault or a co-tenant was found on, the least probable first."""
    draws: dict[str, list[tuple[str, float]]] = defaultdict(list)
    observed: dict[str, Counter[str]] = defaultdict(Counter)
    as_first: dict[str, int] = defaultdict(int)
    failures: dict[str, int] = defaultdict(int)
    faults: dict[str, int] = defaultdict(int)
    tenants: dict[str, int] = defaultdict(int)
    seen: set[object] = set()
    for row in rows:
        if row.kind is None or row.kind.entry.remedy is Remedy.PERSON or not row.node:
            continue
        if row.kind.entry.died is Died.GPU:
            faults[row.node] += 1
            continue
        if row.kind.entry.remedy is Remedy.OTHER_NODES:
            tenants[row.node] += 1
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
            draws[name].append((row.owner, 1 / count))
        observed[row.node][row.owner] += 1
        as_first[row.node] += row.nodes[0] == row.node
    tails = {name: _tail(draws[name], observed[name]) for name in draws}
    able = {name: p for name, p in tails.items() if _surest(draws[name]) <= FALSE_DISCOVERIES / max(len(tails), 1)}
    more = _discoveries(able)
    named = _discoveries({
        name: max((_tail(draws[name], observed[name], but) for but, _ in observed[name].most_common(_MOST_LEFT_OUT)),
                  default=p) if name in more else p
        for name, p in able.items()
    })
    names = failures.keys() | faults.keys() | tenants.keys()
    told = [
        NodeHistory(
            node=name,
            verdict=Verdict.MORE if name in named else Verdict.ONE_OWNER if name in more
            else Verdict.NOT_MORE if name in able else Verdict.TOO_FEW,
            failures=failures[name],
            draws=len(draws[name]),
            observed=observed[name].total(),
            expected=sum(p for _, p in draws[name]),
            probability=tails.get(name, 1.0),
            as_first=as_first[name],
            hardware_faults=faults[name],
            co_tenants=tenants[name],
            owners=len(observed[name]),
            most_of=next((owner for owner, _ in observed[name].most_common(1)), ""),
        )
        for name in names
    ]
    return tuple(sorted(told, key=lambda item: (item.verdict is not Verdict.MORE, item.probability, -item.failures,
                                                item.node)))


def _tail(draws: Sequence[tuple[str, float]], observed: Mapping[str, int], but: str | None = None) -> float:
    """Of a node's draws by owner, those of one owner left out."""
    kept = [p for owner, p in draws if owner != but]
    return draws_tail(kept, sum(count for owner, count in observed.items() if owner != but))


def draws_tail(probabilities: Sequence[float], at_least: int) -> float:
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


def _surest(draws: Sequence[tuple[str, float]]) -> float:
    """The smallest probability that these draws could give: every one of them true."""
    return math.prod(p for _, p in draws)


def _discoveries(tails: Mapping[str, float]) -> frozenset[str]:
    """Benjamini and Hochberg: the largest k whose k-th smallest probability is at most k/m of the level."""
    ordered = sorted(tails, key=lambda name: tails[name])
    kept = 0
    for rank, name in enumerate(ordered, start=1):
        if tails[name] <= FALSE_DISCOVERIES * rank / len(ordered):
            kept = rank
    return frozenset(ordered[:kept])
