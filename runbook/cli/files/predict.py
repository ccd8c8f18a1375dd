"""`runbook predict`: whether a run will fit, from its launch script, its log and its model's config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runbook.cli.files.forecast_text import lines_of
from runbook.cli.files.job_files import JobFiles, job_of, read_job_files, read_template
from runbook.cli.files.levers import lever_documents, named_system, terminal_width
from runbook.cli.files.patch_plan import Evidence, context_of, evidence_of
from runbook.cli.main import NEEDS_PERSON
from runbook.cli.say import echo
from runbook.errors import BadInput, NothingToDo
from runbook.foresight import (
    Forecast,
    MemoryDocument,
    RunReading,
    System,
    TrainingRun,
    field_named,
    forecast,
    largest_that_fits,
    load_memory,
    shape_of_config,
    typed_value,
    with_changes,
)
from runbook.locations import playbook_folder
from runbook.model.remedy import Fit
from runbook.model.units import GIB, Bytes
from runbook.node.catalogues import load_gpu_models
from runbook.slurm.sbatch_options import header_options, last_value
from runbook.steps.shared.foresight import anchors_of, card_of_log, run_of_template

_MULTIPLE = {True: 128, False: 1}
"""Sequences are searched in steps of 128 tokens, batches in steps of one."""
_EXITS = {Fit.FITS: 0, Fit.CANNOT_SAY: NEEDS_PERSON, Fit.DOES_NOT_FIT: NothingToDo.exit_code}
_SIZE = re.compile(r"(\d{1,4}(?:\.\d+)?)\s*(gib|gb|g|mib)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What was asked, and what came out."""

    reading: RunReading
    asked: Forecast
    before: Forecast | None
    """Of the job as its template has it, where something is changed."""
    searched: str
    largest: Forecast | None
    too_large: Forecast | None
    notes: tuple[str, ...]


def predict(
    template: Path, logs: tuple[str, ...], model: Path | None, assignments: tuple[str, ...], search: str | None,
    card: str | None, system: str | None, as_json: bool, playbook: Path | None,
) -> int:
    """`runbook predict`."""
    job = read_job_files(template)
    documents = lever_documents(playbook)
    memory = load_memory(playbook_folder(playbook) / "memory.yaml")
    seen = evidence_of(logs, None, template, nodes=None, gpus=None, playbook=playbook)
    seen = replace(seen, job=_job(job))
    reading = job.reading(documents, seen.story, named_system(system, documents) if system is not None else None)
    context = context_of(reading, job, seen)
    modelled = memory.system(context.template.system.id)
    if modelled is None:
        raise BadInput(
            f"the memory of {context.template.system.title} is not modelled", where=str(template),
            next_step=f"there are {', '.join(item.title for item in memory.systems)}",
        )
    read = run_of_template(reading, context, modelled, memory)
    read = _with_model(read, model, job, memory)
    card_bytes = _card(card, playbook, memory) if card is not None else card_of_log(seen.story)
    told = _foreseen(read, _changes(assignments, modelled), (memory, card_bytes, seen), search)
    if as_json:
        echo(json.dumps(_plain(told), indent=2, ensure_ascii=True))
    else:
        for number, line in enumerate(lines_of(told.asked, told.before, terminal_width(), _words(told))):
            echo(line, bold=number == 0)
    return _EXITS[told.asked.verdict]


def _foreseen(
    read: RunReading, changes: Mapping[str, object], by: tuple[MemoryDocument, Bytes | None, Evidence],
    search: str | None,
) -> Foreseen:
    memory, card_bytes, seen = by
    told = {name: value for name, value in changes.items() if getattr(read.run, name) is None}
    run = with_changes(read.run, told)  # what nobody knew holds for the job that ran, too
    changed = with_changes(run, changes)
    anchors, notes = anchors_of(seen.story, run)

    def ask(one: TrainingRun) -> Forecast:
        return forecast(one, memory, anchors, card_bytes)

    largest = too_large = None
    name = ""
    if search is not None:
        name = field_named(search)
        value = getattr(changed, name)
        if isinstance(value, bool) or not isinstance(value, int | None) or name not in ("micro", "sequence"):
            raise BadInput(f"--search: {search!r} is not searched for", next_step="micro_batch or sequence")
        largest, too_large = largest_that_fits(changed, name, ask, multiple=_MULTIPLE[name == "sequence"])
    asked = ask(changed) if largest is None else largest
    before = ask(run) if changed != run or largest is not None else None
    return Foreseen(read, asked, before, name, largest, too_large, (*read.notes, *notes))


def _job(job: JobFiles) -> Any:
    """The job as its directives ask for it."""
    try:
        header = header_options(job.script.text)
    except BadInput:
        header = ()
    nodes = last_value(header, "nodes") or ""
    gpus = last_value(header, "gpus-per-node") or last_value(header, "gres") or last_value(header, "ntasks-per-node")
    count = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]{0,40}:)?([1-9]\d?)", gpus or "")
    return job_of(
        job.path, nodes=int(nodes) if re.fullmatch(r"[1-9]\d{0,5}", nodes) else None,
        gpus_per_node=int(count[1]) if count is not None else None,
    )


def _with_model(read: RunReading, model: Path | None, job: JobFiles, memory: MemoryDocument) -> RunReading:
    """With the shape that config.json has: the file that is named, or the one that lies in the model's folder."""
    named = model is not None
    if model is None and read.run.hidden is None and read.model_name:
        there = job.path.absolute().parent / read.model_name / "config.json"
        model = there if there.is_file() else None
    if model is None:
        return read
    try:
        config = json.loads(read_template(model))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{model} is no JSON: {str(error)[:80]}", next_step="name the model's config.json") from error
    if not isinstance(config, dict):
        raise BadInput(f"{model} holds no object", next_step="name the model's config.json")
    told = shape_of_config(config, memory)
    if named and "hidden" not in told:
        raise BadInput(f"{model} says nothing of a model's shape", next_step="name the model's config.json")
    found = dict(read.found) | {name: str(model) for name in told}
    return replace(read, run=replace(read.run, **told), found=found, model=str(model))


def _changes(assignments: Sequence[str], system: System) -> dict[str, object]:
    """What `--set` says, by field of a training run."""
    told: dict[str, object] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name.strip():
            raise BadInput(f"--set {assignment}: it has no value", next_step="write NAME=VALUE, as micro_batch=2")
        chosen = field_named(name, system)
        told[chosen] = typed_value(chosen, value.strip())
    return told


def _card(name: str, playbook: Path | None, memory: MemoryDocument) -> Bytes:
    wanted = name.strip().lower().replace("_", "-")
    if (matched := _SIZE.fullmatch(wanted)) is not None:
        unit = {"gb": 10**9, "mib": 1 << 20}.get(matched[2], GIB)
        return Bytes(int(float(matched[1]) * unit))
    wanted = re.sub(r"(\d)(?:gb|gib)$", r"\1g", wanted)
    models = load_gpu_models(playbook_folder(playbook) / "gpu_models.yaml")
    found = models.capacity(memory.cards.get(wanted, name))
    if found is None:
        known = ", ".join(sorted(memory.cards))
        raise BadInput(f"--gpus: no card is called {name!r}", next_step=f"give its size, as 80GiB; there are {known}")
    return found


def _words(told: Foreseen) -> list[str]:
    """What is said below the table."""
    words = list(told.notes)
    if told.searched:
        label = "sequence of" if told.searched == "sequence" else "micro-batch of"
        if told.largest is not None:
            words.append(f"the largest that surely fits: a {label} {getattr(told.largest.run, told.searched)}")
        else:
            words.append(f"no {label.removesuffix(' of')} surely fits")
        if told.too_large is not None:
            words.append(f"surely too large: {getattr(told.too_large.run, told.searched)}; between them nobody can say")
    return words


def _plain(told: Foreseen) -> dict[str, Any]:
    """For `--json`."""
    def one(item: Forecast | None) -> dict[str, Any] | None:
        if item is None:
            return None
        return {
            "run": asdict(item.run), "verdict": item.verdict, "card_bytes": item.card_bytes,
            "peaks": {basis: _bounds(asdict(peak)) for basis, peak in item.peaks.items()},
            "terms": [{"title": term.title, "how": term.how, "counts_in": term.basis,
                       **_bounds(asdict(term.bytes))} for term in item.terms],
            "anchors": [asdict(anchor.figure) for anchor in item.anchors],
            "missing": list(item.missing), "assumed": list(item.assumed), "open": list(item.open),
        }

    return {
        "version": 1, "model": told.reading.model or None, "found": dict(told.reading.found),
        "forecast": one(told.asked), "before": one(told.before),
        "largest": one(told.largest), "too_large": one(told.too_large),
        "notes": list(told.notes),
    }


def _bounds(interval: Mapping[str, float]) -> dict[str, int]:
    return {f"{name}_bytes": round(value) for name, value in interval.items()}
