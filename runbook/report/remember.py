"""An incident as a witness for the next one like it: derived from the stored incident, so it can be made again."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from runbook.model.diagnosis import Kind
from runbook.model.incident import Attempt, Failure, Incident
from runbook.model.log import LogStory, Phase
from runbook.model.remedy import Circumstances, LeverUse, Remembered, TriedLever
from runbook.model.template import condition_of
from runbook.model.units import Unknown
from runbook.report.clean import clean_line, shorten
from runbook.report.narrative import cause, first_failure, is_simulated, proven_attempt, worked

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_NOT_OF_MEMORY = frozenset({Kind.NOT_OOM, Kind.UNDETERMINED, Kind.HARDWARE_FAULT, Kind.CO_TENANT})
"""A relaunch that died of one of these says nothing against its lever."""
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
    return Remembered(
        incident=incident.id,
        opened_s=incident.opened_s,
        kind=best.kind,
        detail=best.detail,
        phase=finding.phase if finding else Phase.UNKNOWN,
        script=_digest(job.owner, job.command) if job.owner and job.command else "",
        series=_digest(job.owner, job.name) if job.owner and job.name else "",
        circumstances=_circumstances(incident),
        framework_version=_short(version or "", 40),
        gpu=_short(gpu, 60),
        gpu_bytes=gpu_bytes,
        gpus=_gpus(failure),
        levers=_levers(incident),
        headroom=_short(proven.verdict.headroom, 160) if proven and proven.verdict else "",
        simulated=is_simulated(incident),
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
    if passed is False and (attempt.diagnosis is None or attempt.diagnosis.best.kind in _NOT_OF_MEMORY):
        return None
    return passed


def _digest(*parts: str) -> str:
    """Enough to compare by, and not what it was made of."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _short(text: str, limit: int) -> str:
    return shorten(clean_line(text), limit)


@cache
def remembered_adapter() -> TypeAdapter[Remembered]:
    """JSON for one witness."""
    from pydantic import TypeAdapter

    return TypeAdapter(Remembered)
