"""The pictures of an incident's page, in one place: which there are, and what is drawn on each."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from runbook.model.incident import Attempt, Incident
from runbook.model.log import Progress
from runbook.model.units import GIB, in_gib, size
from runbook.report import narrative
from runbook.report.charts.flow_chart import FlowPicture, Stay, flow_chart, stays
from runbook.report.charts.plots import BarPart, Bars, draw_bars, nice_ticks
from runbook.report.charts.steps_chart import Marks, Run, StepsFigure, memory_over_steps, time_over_steps
from runbook.report.charts.timeline_chart import TimeFigure, timeline_figures
from runbook.report.memory_picture import MemoryPicture, memory_after, memory_at_failure, shortfall

# The failing GPU's memory in parts as one picture: at the failure, what was asked for, and after the change, on one
# scale.

_FARTHEST = 1.4
"""A request may be drawn to this many capacities; beyond that it is cut."""


def scale_bytes(pictures: tuple[MemoryPicture, ...]) -> float:
    """How many bytes the full width stands for, common to bars that are compared."""
    ends = [1.0]
    for picture in pictures:
        capacity = float(picture.capacity_bytes or picture.known_bytes)
        wanted = _used(picture) + (picture.tried_bytes or 0)
        ends.append(max(capacity, min(float(max(wanted, picture.known_bytes)), capacity * _FARTHEST)))
    return max(ends)


def memory_chart(named: tuple[tuple[str, str, MemoryPicture], ...]) -> Markup:
    """Pictures with a short name for the row and a long one for those who do not see it."""
    return draw_bars(memory_bars(named))


def memory_bars(named: tuple[tuple[str, str, MemoryPicture], ...]) -> Bars:
    """The rows: a bar for each picture, and under it one for what was asked for, from where the memory in use ends."""
    end = scale_bytes(tuple(picture for _, _, picture in named))
    rows: list[str] = []
    columns: list[list[tuple[str, float, str]]] = []
    for row, _, picture in named:
        rows.append(row)
        columns.append(_parts(picture, end))
        if picture.tried_bytes:
            rows.append("asked for")
            columns.append(_request(picture, end))
    deepest = max(len(column) for column in columns)
    kinds = dict.fromkeys(kind for column in columns for kind, _, _ in column)
    parts: list[BarPart] = []
    for index in range(deepest):
        for kind in kinds:
            here = [
                column[index] if index < len(column) and column[index][0] == kind else (kind, 0.0, "")
                for column in columns
            ]
            if any(length for _, length, _ in here):
                parts.append(BarPart(kind, tuple(one[1] / GIB for one in here), tuple(one[2] for one in here)))
    first = named[0][2]
    marks = []
    if first.capacity_bytes:
        marks.append((first.capacity_bytes / GIB, f"{in_gib(first.capacity_bytes, 1)}"))
    if first.limit_bytes and first.limit_bytes < end:
        marks.append((first.limit_bytes / GIB, f"limit {first.limit_bytes / GIB:.1f}"))
    ticks = tuple((value, f"{value:g}") for value in nice_ticks(0, end / GIB, 5))
    return Bars(
        "; ".join(f"{name}: {in_words(picture)}" for _, name, picture in named), tuple(rows), tuple(parts), end / GIB,
        ticks, tuple(marks),
    )


def _parts(picture: MemoryPicture, end: float) -> list[tuple[str, float, str]]:
    """Class, bytes and words of what is laid end to end, cut where the scale ends."""
    told: list[tuple[str, float, str]] = []
    filled = 0.0
    for part in picture.parts:
        length = min(float(part.bytes or 0), end - filled)
        if length > 0:
            told.append((f"part-{part.part}", length, f"{part.words}: {size(part.bytes)}"))
            filled += length
    return told


def _request(picture: MemoryPicture, end: float) -> list[tuple[str, float, str]]:
    used = min(float(_used(picture)), end)
    card = min(float(picture.capacity_bytes or end), end)
    stop = min(used + (picture.tried_bytes or 0), end)
    words = f"Asked for: {size(picture.tried_bytes)}"
    told = [("", used, "")] if used else []
    if min(stop, card) > used:
        told.append(("tried", min(stop, card) - used, words))
    if stop > card:
        told.append(("tried-beyond", stop - max(used, card), words))
    return told


def _used(picture: MemoryPicture) -> int:
    if picture.capacity_bytes is not None and picture.free_bytes is not None:
        return max(picture.capacity_bytes - picture.free_bytes, 0)
    return picture.used_bytes


def in_words(picture: MemoryPicture) -> str:
    """The bar for those who do not see it."""
    told = [f"{part.words} {size(part.bytes)}" for part in picture.parts]
    if picture.tried_bytes is not None:
        told.append(f"asked for {size(picture.tried_bytes)}")
    if picture.capacity_bytes is not None:
        told.append(f"capacity {size(picture.capacity_bytes)}")
    return ", ".join(told)


# The pictures of an incident's page, in one place: which there are, and what is drawn on each.

@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """The memory of the failing GPU at one time."""

    row: str
    """Its name in the picture."""
    name: str
    picture: MemoryPicture
    remark: str


@dataclass(frozen=True, slots=True)
class IncidentFigures:
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


def incident_figures(incident: Incident, flow: FlowPicture) -> IncidentFigures:
    """The pictures of an incident."""
    path = stays(flow.taken or incident.visits)
    chart, hubs = flow_chart(flow, path)
    simulated = " (simulated)" if narrative.is_simulated(incident) else ""
    memory = _memory(incident, simulated)
    bars = memory_chart(tuple((one.row, one.name, one.picture) for one in memory)) if memory else Markup("")
    over_steps = _over_steps(incident, memory[0].picture.capacity_bytes if memory else None)
    return IncidentFigures(
        memory, bars, tuple(one for one in over_steps if isinstance(one, StepsFigure)),
        tuple(one for one in over_steps if isinstance(one, str)), timeline_figures(incident, flow, simulated), path,
        chart, hubs, simulated,
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
