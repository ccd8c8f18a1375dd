"""The pictures of an incident's page, in one place: which there are, and what is drawn on each."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from runbook.model.incident import Attempt, Incident
from runbook.model.log import Progress
from runbook.report import narrative
from runbook.report.charts_steps import Marks, Run, StepsFigure, time_over_steps
from runbook.report.flow_svg import flow_chart
from runbook.report.memory_chart import memory_chart
from runbook.report.memory_picture import MemoryPicture, memory_after, memory_at_failure, shortfall
from runbook.report.memory_steps import memory_over_steps
from runbook.report.picture import FlowPicture, Stay, stays
from runbook.report.timeline_chart import TimeFigure, timeline_figures


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """The memory of the failing GPU at one time."""

    row: str
    """Its name in the picture."""
    name: str
    picture: MemoryPicture
    remark: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What the page draws."""

    memory: tuple[MemoryFigure, ...]
    memory_chart: Markup
    """All of `memory` on one scale; empty when there is none."""
    steps: tuple[StepsFigure, ...]
    not_drawn: tuple[str, ...]
    """Why there is no picture of the memory or of the time along the steps."""
    times: tuple[TimeFigure, ...]
    path: tuple[Stay, ...]
    chart: Markup
    hubs: tuple[str, ...]
    """Titles of boxes to which untaken arrows were left out."""
    simulated: str
    """Behind the name of each picture: " (simulated)", or "" where nothing is."""


def figures(incident: Incident, flow: FlowPicture) -> Figures:
    """The pictures of an incident."""
    path = stays(flow.taken or incident.visits)
    chart, hubs = flow_chart(flow, path)
    simulated = " (simulated)" if narrative.is_simulated(incident) else ""
    memory = _memory(incident, simulated)
    bars = memory_chart(tuple((one.row, one.name, one.picture) for one in memory)) if memory else Markup("")
    over_steps = _over_steps(incident, memory[0].picture.capacity_bytes if memory else None)
    return Figures(
        memory, bars, tuple(one for one in over_steps if isinstance(one, StepsFigure)),
        tuple(one for one in over_steps if isinstance(one, str)), timeline_figures(incident, simulated), path, chart,
        hubs, simulated,
    )


def _over_steps(incident: Incident, capacity_bytes: int | None) -> tuple[StepsFigure | str, ...]:
    """Memory and seconds a step, of the first failure and of the relaunch that was proven, else of the last one."""
    failure = narrative.first_failure(incident)
    finding = narrative.root_cause(incident)
    if failure is None or failure.story is None or finding is None:
        return ()
    runs = [Run(f"Job {incident.root_job}", "run-failed", failure.story.progress, finding.rank)]
    proven = narrative.proven_attempt(incident)
    again = proven or next((one for one in reversed(incident.attempts) if _progress(one) is not None), None)
    progress = _progress(again) if again is not None else None
    if again is not None and progress is not None:
        runs.append(Run(f"Job {again.job}", "run-again", progress, finding.rank))
    checkpoint = again.checkpoint if again is not None else incident.checkpoint
    marks = Marks(finding.step, checkpoint.step if checkpoint is not None else None, capacity_bytes)
    return memory_over_steps(runs, marks), time_over_steps(runs, marks)


def _progress(attempt: Attempt) -> Progress | None:
    if attempt.verdict is not None and attempt.verdict.progress is not None:
        return attempt.verdict.progress
    return attempt.story.progress if attempt.story is not None else None


def _memory(incident: Incident, simulated: str) -> tuple[MemoryFigure, ...]:
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
    drawn = [
        MemoryFigure(
            f"Job {incident.root_job}", f"When job {incident.root_job} failed{simulated}", before, shortfall(before)
        )
    ]
    proven = narrative.proven_attempt(incident)
    sample = narrative.peak_sample(proven, finding.rank) if proven else None
    after = memory_after(sample, before.capacity_bytes) if sample else None
    if proven is not None and sample is not None and after is not None:
        of_rank = f"rank {sample.rank}" if sample.rank is not None else "the highest rank that printed it"
        remark = proven.verdict.headroom if proven.verdict else ""
        drawn.append(
            MemoryFigure(f"Job {proven.job}", f"Job {proven.job}, {of_rank}, its peak{simulated}", after, remark)
        )
    return tuple(drawn)
