"""What a template tells the job to do, in the figures by which failures are compared."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from runbook.masking import masked
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.remedy import Circumstances
from runbook.model.template import Setting, TemplateFile
from runbook.remedy.document import LeverDocument
from runbook.remedy.release import releases
from runbook.remedy.situation import Refusal, Situation

_LONGEST_MODEL = 80


def circumstances(
    system: LeverDocument,
    settings: Sequence[Setting],
    listed: Sequence[Setting],
    story: LogStory,
    job: JobRecord,
    templates: Sequence[TemplateFile] = (),
) -> Circumstances:
    """`settings`: the system's parameters in force; `listed`: everything that the templates set, by its own name. A
    figure that the template leaves open is None, or the program's default where that is known."""
    versions = releases(system, settings, templates)
    situation = Situation(
        system, tuple(settings), story, job, releases=versions, files=tuple(file.path for file in templates)
    )
    kept = system.remembered
    batch = system.batch
    return Circumstances(
        system=system.id,
        releases=tuple(item.id for item in versions) if len(versions) < len(system.versions) else (),
        model=_model(kept.model, listed),
        micro_batch=_first(situation, (*([batch.micro] if batch else []), *kept.micro_batch)),
        accumulation=_first(situation, (*([batch.accumulation] if batch else []), *kept.accumulation)),
        global_batch=_first(situation, (*([batch.total] if batch else []), *kept.global_batch)),
        sequence_length=_first(situation, kept.sequence_length) if len(kept.sequence_length) == 1
        else _sum(situation, kept.sequence_length),
        degrees={
            name: value
            for name in dict.fromkeys((*(batch.model_parallel if batch else ()), *kept.degrees))
            if situation.is_set(name) and (value := _number(situation, name)) is not None
        },
    )


def _first(situation: Situation, parameters: Sequence[str]) -> int | None:
    """The first that is known."""
    known = (_number(situation, name) for name in parameters if name)
    return next((value for value in known if value is not None), None)


def _sum(situation: Situation, parameters: Sequence[str]) -> int | None:
    """Prompt and answer together make the sequence; None where one of them is not known."""
    values = [_number(situation, name) for name in parameters]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _number(situation: Situation, parameter: str) -> int | None:
    value = situation.number(parameter)
    return None if isinstance(value, Refusal) else value


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
