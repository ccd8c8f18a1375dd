"""Earlier incidents as witnesses: which are like this one, and how each lever ended there.

They give reasons and change no order. Relaunches add up, so a rung that failed alone is a part of what worked after it,
and to leave it out would try something that nobody has proven.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from runbook.masking import masked
from runbook.model.remedy import Circumstances, LeverUse, Plan, Remembered, TriedLever
from runbook.model.template import Setting
from runbook.remedy.template_settings import Refused, TemplateSettings

NEAR = 2.0
"""Micro-batches and sequence lengths are near one another up to this factor."""
SAME_MEMORY = 0.05
"""The share by which the memory of two GPUs of one size may differ: the driver's figure and PyTorch's do."""
_NAMED = 3
_FEW = 3
"""Below so many judged cases the sentence says that they are few."""


class Similarity(IntEnum):
    """How near an earlier incident is. A greater one is a better similar."""

    ALIKE = 1
    """The same framework, kind of failure and GPU memory; model, batch and sequence where both are known."""
    SAME_SERIES = 2
    """The owner's jobs of this name."""
    SAME_SCRIPT = 3
    """The owner's script of this path."""


_PLACES = {
    Similarity.SAME_SCRIPT: "with the same script",
    Similarity.SAME_SERIES: "in the owner's jobs of the same name",
    Similarity.ALIKE: "in similar failures (same framework, kind of failure and GPU memory)",
}


@dataclass(frozen=True, slots=True)
class SimilarIncident:
    """An earlier incident, and how near it is."""

    similarity: Similarity
    of: Remembered
    points: int
    """Of two that are equally alike, the one with more in common goes first."""


def similar_incidents(now: Remembered, earlier: Sequence[Remembered]) -> tuple[SimilarIncident, ...]:
    """Those of the earlier incidents that are like this one, the nearest first, and of those the newest. What was
    simulated is compared with what was simulated alone."""
    found = []
    for past in earlier:
        if past.incident == now.incident or past.simulated != now.simulated:
            continue
        similarity = _similarity(now, past)
        if similarity is not None:
            found.append(SimilarIncident(similarity, past, _points(now, past)))
    return tuple(sorted(found, key=lambda item: (item.similarity, item.points, item.of.opened_s), reverse=True))


def near(one: int | None, other: int | None, factor: float = NEAR) -> bool | None:
    """Whether two figures are within a factor of one another; None where one is not known."""
    if not one or not other:
        return None
    return max(one, other) <= factor * min(one, other)


def with_reasons(plan: Plan, found: Sequence[SimilarIncident], framework_version: str = "") -> Plan:
    """The plan, each of its levers with what earlier incidents say of it. Nothing else of it changes."""
    uses = tuple(replace(use, seen_before=reasons(use, found, framework_version)) for use in plan.uses)
    return replace(plan, uses=uses)


def reasons(use: LeverUse, found: Sequence[SimilarIncident], framework_version: str = "") -> tuple[str, ...]:
    """How a lever ended in these incidents, a sentence for each degree of similarity; () where none tried it.

    Incidents are named by their ids: a report says nothing of another person's jobs."""
    told: list[str] = []
    for similarity in sorted(Similarity, reverse=True):
        cases = [
            (item.of, tried) for item in found if item.similarity is similarity
            for tried in item.of.levers if tried.lever == use.lever
        ]
        if cases:
            told.append(_sentence(use, _PLACES[similarity], cases, framework_version))
    told += _what_followed(use, found)
    return tuple(told)


def what_worked(found: Sequence[SimilarIncident]) -> str:
    """What got the newest like incident of the same script or series past its failure, for a person who has to decide
    without a lever of the ladder; "" where none is known to have."""
    own = [item for item in found if item.similarity is not Similarity.ALIKE]
    for similar in sorted(own, key=lambda item: item.of.opened_s, reverse=True):
        proven = max((tried.attempt for tried in similar.of.levers if tried.worked), default=0)
        if proven:
            together = [tried for tried in similar.of.levers if tried.attempt <= proven]
            levers = "; ".join(f"{tried.lever.replace('_', ' ')} {tried.change}" for tried in together)
            return f"{_PLACES[similar.similarity]}, {similar.of.incident} got past this failure with {levers}"
    return ""


def _similarity(now: Remembered, past: Remembered) -> Similarity | None:
    here, there = now.circumstances, past.circumstances
    same_system = bool(here.system) and here.system == there.system
    if now.kind != past.kind or not same_system:
        return None
    # Another size of card is another failure, also of the same script.
    same_memory = near(now.gpu_bytes, past.gpu_bytes, 1 + SAME_MEMORY)
    if same_memory is False:
        return None
    if now.script and now.script == past.script:
        return Similarity.SAME_SCRIPT
    if now.series and now.series == past.series:
        return Similarity.SAME_SERIES
    if same_memory is None or (here.model and there.model and here.model != there.model):
        return None
    figures = (
        near(here.micro_batch, there.micro_batch), near(here.sequence_length, there.sequence_length),
    )
    return None if False in figures else Similarity.ALIKE


def _points(now: Remembered, past: Remembered) -> int:
    here, there = now.circumstances, past.circumstances
    return sum((
        bool(here.model) and here.model == there.model,
        here.micro_batch is not None and here.micro_batch == there.micro_batch,
        here.sequence_length is not None and here.sequence_length == there.sequence_length,
        here.global_batch is not None and here.global_batch == there.global_batch,
        bool(here.degrees) and here.degrees == there.degrees,
        now.gpus is not None and now.gpus == past.gpus,
        now.phase is past.phase,
        now.detail is past.detail,
    ))


def _sentence(
    use: LeverUse, place: str, cases: Sequence[tuple[Remembered, TriedLever]], framework_version: str
) -> str:
    helped = [case for case in cases if case[1].worked is True]
    failed = [case for case in cases if case[1].worked is False]
    open_ones = len(cases) - len(helped) - len(failed)
    judged = len(helped) + len(failed)
    parts = []
    if not judged:
        return f"tried {place} before, and not proven either way: {_names(use, cases)}"
    if helped:
        parts.append(f"worked in {len(helped)} of {judged} {place}: {_names(use, helped)}")
    if failed:
        begun = f"did not suffice in {len(failed)} of {judged}"
        parts.append(f"{begun}{'' if helped else f' {place}'}: {_names(use, failed)}")
    if open_ones:
        parts.append(f"in {open_ones} more not proven either way")
    if helped and framework_version:
        versions = {case[0].framework_version for case in helped}
        if "" not in versions and framework_version not in versions:
            parts.append(f"worked only under another PyTorch ({', '.join(sorted(versions)[:_NAMED])})")
    if judged < _FEW:
        parts.append("one case proves little" if judged == 1 else "few cases prove little")
    return "; ".join(parts)


def _names(use: LeverUse, cases: Sequence[tuple[Remembered, TriedLever]]) -> str:
    """The newest of them with their values, each once."""
    told: dict[str, str] = {}
    for past, tried in sorted(cases, key=lambda case: case[0].opened_s, reverse=True):
        values = "the same values" if tried.key == use.key else tried.change
        before = [item.lever for item in past.levers if item.attempt < tried.attempt]
        after = f", on top of {_spoken(before)}" if before else ""
        told.setdefault(past.incident, f"{past.incident} ({values}{after})")
    names = list(told.values())
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _what_followed(use: LeverUse, found: Sequence[SimilarIncident]) -> list[str]:
    """Where the newest incident of the same script needed more than this lever: what worked on top of it."""
    for similar in sorted(found, key=lambda item: item.of.opened_s, reverse=True):
        if similar.similarity is not Similarity.SAME_SCRIPT:
            continue
        levers = similar.of.levers
        failed = [tried for tried in levers if tried.key == use.key and tried.worked is False]
        proven = [tried for tried in levers if tried.worked]
        if failed and proven and proven[0].attempt > failed[0].attempt:
            worked = "; ".join(f"{tried.lever.replace('_', ' ')} {tried.change}" for tried in proven)
            return [f"what worked on top of it in {similar.of.incident}: {worked}"]
        return []
    return []


def _spoken(levers: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(name.replace("_", " ") for name in levers))


# What a template tells the job to do, in the figures by which failures are compared.

_LONGEST_MODEL = 80


def circumstances(template: TemplateSettings, listed: Sequence[Setting]) -> Circumstances:
    """`listed`: everything that the templates set, by its own name. A figure that the template leaves open is None, or
    the program's default where that is known."""
    system, versions = template.system, template.releases
    kept, batch = system.remembered, system.batch
    return Circumstances(
        system=system.id,
        releases=tuple(item.id for item in versions) if len(versions) < len(system.versions) else (),
        model=_model(kept.model, listed),
        micro_batch=_first(template, (*([batch.micro] if batch else []), *kept.micro_batch)),
        accumulation=_first(template, (*([batch.accumulation] if batch else []), *kept.accumulation)),
        global_batch=_first(template, (*([batch.total] if batch else []), *kept.global_batch)),
        sequence_length=_first(template, kept.sequence_length) if len(kept.sequence_length) == 1
        else _sum(template, kept.sequence_length),
        degrees={
            name: value
            for name in dict.fromkeys((*(batch.model_parallel if batch else ()), *kept.degrees))
            if template.is_set(name) and (value := _number(template, name)) is not None
        },
    )


def _first(template: TemplateSettings, parameters: Sequence[str]) -> int | None:
    """The first that is known."""
    known = (_number(template, name) for name in parameters if name)
    return next((value for value in known if value is not None), None)


def _sum(template: TemplateSettings, parameters: Sequence[str]) -> int | None:
    """Prompt and answer together make the sequence; None where one of them is not known."""
    values = [_number(template, name) for name in parameters]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _number(template: TemplateSettings, parameter: str) -> int | None:
    try:
        return template.number(parameter)
    except Refused:
        return None


def _model(spellings: Sequence[str], listed: Sequence[Setting]) -> str:
    """The last part of the first of these that is set: a path says who keeps it where."""
    for spelling in spellings:
        for item in listed:
            if item.value and item.parameter and _plain(item.parameter) == _plain(spelling):
                name = posixpath.basename(item.value.strip().rstrip("/"))
                name = masked(re.sub(r"\s+", " ", name))[:_LONGEST_MODEL]
                if name.strip("."):
                    return name
    return ""


def _plain(name: str) -> str:
    """One name for `--model-name-or-path`, `--model_name_or_path` and the key of that name."""
    return name.lstrip("-+").replace("-", "_")
