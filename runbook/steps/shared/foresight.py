"""What a failed job's template, its model's config.json and its log tell of its memory, and what a lever would leave of
that: where the rules on templates meet those on memory.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from runbook.errors import BadInput, NotAllowed, NotFound
from runbook.foresight import (
    Anchor,
    Forecast,
    MemoryDocument,
    RefusedRequest,
    RunReading,
    System,
    TrainingRun,
    forecast,
    run_of_settings,
    shape_of_config,
)
from runbook.model.log import LogStory, Phase
from runbook.model.remedy import Basis, Fit, Foreseen, LeverUse, MemoryFigure, PeakBounds
from runbook.model.template import Edit, SettingKind, condition_of
from runbook.model.units import GIB, Bytes
from runbook.remedy import KEEPING, LeverContext, Refused
from runbook.steps.shared.base import StepContext
from runbook.steps.shared.template_reading import TemplateReading

_PHASES = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.UNKNOWN})
"""Of a training step: the model of memory knows no other."""
_BEHIND_THE_LOSS = frozenset({Phase.BACKWARD, Phase.OPTIMIZER_STEP})
_OTHERS = 2 * GIB
"""What is in use on the card and not by the process: more than what a driver keeps for itself."""


def run_of_template(
    reading: TemplateReading, context: LeverContext, system: System, memory: MemoryDocument, edits: Sequence[Edit] = ()
) -> RunReading:
    """The training run that a template sets, with edits."""
    values = {condition_of(item.spelling)[0]: item.value for item in reading.everything if item.value is not None}
    values |= {item.parameter: item.value for item in reading.everything
               if item.value is not None and item.kind is not SettingKind.SBATCH}
    for parameter in context.template.system.parameters:
        try:
            text = context.template.text(parameter.id)
        except Refused:
            text = None
        if text is not None:
            values[parameter.id] = text
    for edit in edits:
        for name in (edit.parameter, *(condition_of(item)[0] for item in edit.spellings)):
            values.pop(name, None)
            if edit.new is not None:
                values[name] = edit.new
    read = run_of_settings(values, system, memory)
    world = context.world_size
    return replace(read, run=replace(read.run, world=world)) if world else read


def anchors_of(story: LogStory, run: TrainingRun) -> tuple[tuple[Anchor, ...], tuple[str, ...]]:
    """The job's own figures, as those of a run."""
    figures, notes = figures_of(story)
    request = _refused(story)
    least = request.allocated_bytes + request.asked_bytes if request is not None else None
    return tuple(Anchor(run, item, request if item.bytes == least else None) for item in figures), notes


def _refused(story: LogStory) -> RefusedRequest | None:
    cause = story.root_cause
    if cause is None or cause.fields.allocated_bytes is None or cause.fields.tried_bytes is None:
        return None
    return RefusedRequest(
        cause.fields.tried_bytes, cause.fields.allocated_bytes, cause.phase in _BEHIND_THE_LOSS,
        story.progress.last_step is not None and story.progress.last_step > (story.progress.first_step or 0),
    )


def figures_of(story: LogStory) -> tuple[tuple[MemoryFigure, ...], tuple[str, ...]]:
    """What a log tells of the job's peak. Of a job that ran out, earlier peaks are the least that it needs, for the
    step at which it died needed more."""
    cause = story.root_cause
    ran_out = cause is not None and cause.means.entry.on_the_card
    found: list[MemoryFigure] = []
    samples = story.progress.memory
    for basis, figures, exact in (
        (Basis.RESERVED, [item.max_reserved_bytes or item.reserved_bytes for item in samples], True),
        (Basis.ALLOCATED, [item.max_allocated_bytes for item in samples], True),
        (Basis.ALLOCATED, [item.allocated_bytes for item in samples], False),
    ):
        known = [item for item in figures if item]
        if known and not (found and not exact):
            found.append(MemoryFigure(max(known), basis, ran_out or not exact, "the job's memory lines"))
    if cause is None or not ran_out or cause.fields.allocated_bytes is None or cause.fields.tried_bytes is None:
        return tuple(found), ()
    allocated, tried, capacity = cause.fields.allocated_bytes, cause.fields.tried_bytes, cause.fields.capacity_bytes
    if capacity is not None and tried > capacity:
        return tuple(found), ("the failing request is larger than the card: it anchors nothing",)
    message = MemoryFigure(allocated + tried, Basis.ALLOCATED, True, "the failing message: allocated and asked")
    return (*found, message), ()


def card_of_log(story: LogStory) -> Bytes | None:
    """The size of the card that the failing message or a memory line names."""
    cause = story.root_cause
    if cause is not None and cause.fields.capacity_bytes:
        return cause.fields.capacity_bytes
    return next((item.device_total_bytes for item in story.progress.memory if item.device_total_bytes), None)


@dataclass(frozen=True, slots=True)
class Prospect:
    """A job that ran out, as far as its memory can be foreseen."""

    reading: TemplateReading
    context: LeverContext
    system: System
    memory: MemoryDocument
    shape: dict[str, Any]
    """What config.json says of the model."""
    before: TrainingRun
    anchors: tuple[Anchor, ...]
    card_bytes: Bytes
    trusted: bool = True
    """Whether "fits" is believed of this framework and model."""

    def foresee(self, uses: Sequence[LeverUse]) -> Foreseen | None:
        """With these levers together. None where one of them changes what the model of memory does not know, or what
        figures of the job do not carry over to."""
        rules = [self.context.template.system.lever(use.lever) for use in uses]
        kept = {step.parameter for rule in rules for step in rule.edits if step.function in KEEPING}
        known = {name for entry in self.system.inputs.values() for name in (*entry.names, *entry.where)}
        edits = [edit for use in uses for edit in use.edits]
        for edit in edits:
            if edit.parameter not in kept and known.isdisjoint(
                (edit.parameter, *(condition_of(item)[0] for item in edit.spellings))
            ):
                return None
        after = replace(
            run_of_template(self.reading, self.context, self.system, self.memory, edits).run, **self.shape
        )
        changed = _changed(self.before, after)
        if not changed - {"accumulation"} or not changed.issubset(self.memory.carried):
            return None
        told = forecast(after, self.memory, self.anchors, self.card_bytes)
        if not told.peaks:
            return None
        packed = _packed(told, self.card_bytes)
        if told.chance is not None and self.trusted:
            price = self.memory.price
            cost = price.of(self.before, after) + price.relaunch * (1 - told.chance)
            packed = replace(packed, chance=round(told.chance, 4), expected_cost=round(cost, 4))
        if self.trusted or packed.fit is not Fit.FITS:
            return packed
        return replace(packed, fit=Fit.CANNOT_SAY, distrusted=True)


def prospect_of(context: StepContext, levers: LeverContext) -> Prospect | None:
    """None where nothing is foreseen of the job: another kind of failure or another phase than a training step, a
    system that is not modelled, no figure of the job, somebody else on the card, or figures that the formulas cannot
    explain."""
    memory, diagnosis = context.playbook.memory, levers.diagnosis
    card_bytes = card_of_log(levers.story)
    if memory is None or diagnosis is None or card_bytes is None:
        return None
    entry, figures = diagnosis.best.kind.entry, levers.fields
    if not (entry.on_the_card and entry.in_the_allocator) or levers.phase not in _PHASES or levers.role:
        return None
    if figures.limit_bytes is not None or figures.other_processes:
        return None
    if figures.free_bytes is not None and figures.process_bytes is not None and (
        card_bytes - figures.free_bytes - figures.process_bytes > _OTHERS
    ):
        return None
    system = memory.system(levers.template.system.id)
    if system is None:
        return None
    read = run_of_template(context.template, levers, system, memory)
    shape = {} if read.run.hidden is not None else _shape(context, read.model_name, memory)
    run = replace(read.run, **shape)
    anchors, _ = anchors_of(levers.story, run)
    if not anchors:
        return None
    anchors = (*anchors, *_of_earlier_attempts(context, levers, system, memory, shape, run))
    alone = forecast(run, memory, (), card_bytes)
    if not alone.peaks or any(
        one.figure.bytes > alone.peaks[one.figure.basis].high for one in anchors if one.run == run
    ):
        return None  # something that the model does not know of holds memory
    if forecast(run, memory, anchors, card_bytes).verdict is Fit.FITS:
        return None  # it did not
    return Prospect(context.template, levers, system, memory, shape, run, anchors, card_bytes)


def _of_earlier_attempts(
    context: StepContext, levers: LeverContext, system: System, memory: MemoryDocument, shape: dict[str, Any],
    run: TrainingRun,
) -> tuple[Anchor, ...]:
    """What the job's earlier failures of this incident tell of it: each ran as the template is without the changes
    that were made since."""
    incident = context.incident
    found: list[Anchor] = []
    undone: list[Edit] = []
    first = incident.original.story if incident.original is not None else None
    stories = [first, *(attempt.story for attempt in incident.attempts)]
    for attempt, story in reversed([*zip(incident.attempts, stories, strict=False)]):
        undone += [replace(edit, old=edit.new, new=edit.old) for edit in (attempt.plan.edits if attempt.plan else ())]
        cause = story.root_cause if story is not None else None
        if story is None or cause is None or not cause.means.entry.on_the_card or cause.phase not in _PHASES:
            continue
        before = replace(run_of_template(context.template, levers, system, memory, undone).run, **shape)
        if _changed(before, run).issubset(memory.carried):
            found += anchors_of(story, before)[0]
    return tuple(found)


def _changed(before: TrainingRun, after: TrainingRun) -> set[str]:
    return {item.name for item in fields(TrainingRun) if getattr(after, item.name) != getattr(before, item.name)}


def _shape(context: StepContext, model: str, memory: MemoryDocument) -> dict[str, Any]:
    """Of a model in a folder: what its config.json tells, read as the job's owner."""
    job = context.failure.job
    if not model or job.owner is None:
        return {}
    path = posixpath.join(job.work_dir or "/", model, "config.json")
    try:
        config = json.loads(context.ports.files.read_small(path, job.owner))
        return shape_of_config(config, memory) if isinstance(config, dict) else {}
    except (NotFound, NotAllowed, BadInput, ValueError, RecursionError):
        return {}


def _packed(told: Forecast, card_bytes: Bytes) -> Foreseen:
    return Foreseen(
        told.verdict, card_bytes, round(told.least_bytes),
        {
            basis: PeakBounds(round(peak.low), round(peak.middle), round(peak.high))
            for basis, peak in told.peaks.items()
        },
        {term.title: round(term.bytes.middle) for term in told.terms},
        tuple(item.figure for item in told.anchors),
    )

