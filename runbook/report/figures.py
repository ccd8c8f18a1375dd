"""The pictures of an incident's page, in one place: which there are, and what is drawn on each."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from runbook.model.incident import Incident
from runbook.report import narrative
from runbook.report.flow_svg import flow_chart
from runbook.report.memory_picture import MemoryPicture, memory_after, memory_at_failure, shortfall
from runbook.report.memory_svg import memory_bar, scale_bytes
from runbook.report.picture import FlowPicture, Stay, stays


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """The memory of the failing GPU at one time."""

    name: str
    picture: MemoryPicture
    bar: Markup
    remark: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What the page draws."""

    memory: tuple[MemoryFigure, ...]
    path: tuple[Stay, ...]
    chart: Markup
    hubs: tuple[str, ...]
    """Titles of boxes to which untaken arrows were left out."""


def figures(incident: Incident, flow: FlowPicture) -> Figures:
    """The pictures of an incident."""
    path = stays(flow.taken or incident.visits)
    chart, hubs = flow_chart(flow, path)
    return Figures(_memory(incident), path, chart, hubs)


def _memory(incident: Incident) -> tuple[MemoryFigure, ...]:
    """At the failure, and after the change where the new job printed its peak."""
    finding = narrative.root_cause(incident)
    if finding is None:
        return ()
    failure = narrative.first_failure(incident)
    gpu = None
    for facts in failure.nodes if failure else ():
        if facts.node == finding.node and isinstance(facts.gpus, tuple):
            gpu = next((gpu for gpu in facts.gpus if gpu.index == finding.device), None)
    before = memory_at_failure(finding.fields, gpu)
    if before is None:
        return ()
    named: list[tuple[str, MemoryPicture, str]] = [
        (f"When job {incident.root_job} failed", before, shortfall(before))
    ]
    proven = narrative.proven_attempt(incident)
    sample = narrative.peak_sample(proven, finding.rank) if proven else None
    after = memory_after(sample, before.capacity_bytes) if sample else None
    if proven is not None and sample is not None and after is not None:
        of_rank = f"rank {sample.rank}" if sample.rank is not None else "the highest rank that printed it"
        remark = proven.verdict.headroom if proven.verdict else ""
        named.append((f"Job {proven.job}, {of_rank}, its peak", after, remark))
    scale = scale_bytes(tuple(picture for _, picture, _ in named))
    return tuple(
        MemoryFigure(name, picture, memory_bar(picture, scale, name), remark) for name, picture, remark in named
    )
