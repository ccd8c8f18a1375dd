"""`runbook patch`: one lever, or one value, written into a copy of a launch script under the flow's own conditions."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from runbook.cli.files.job_files import JobFiles, read_job_files, write_copies
from runbook.cli.files.levers import lever_documents, named_system, terminal_width, titled
from runbook.cli.files.patch_plan import Asked, Planned, context_of, evidence_of, plan
from runbook.cli.main import NEEDS_PERSON
from runbook.cli.say import echo, hand_on
from runbook.errors import BadInput, NothingToDo, RunbookError, Unavailable
from runbook.model.template import Patch
from runbook.remedy import LeverDocument
from runbook.report.text import labelled, paragraph
from runbook.report.vocabulary.clean import clean, clean_line
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.template_reading import TemplateReading, copies_of
from runbook.template import apply, wire_copies
from runbook.template.text_files import language


def patch(
    levers: tuple[str, ...], assignments: tuple[str, ...], template: Path, logs: tuple[str, ...], kind: str | None,
    nodes: int | None, gpus: int | None, system: str | None, yes: bool, may_change_training: bool, folder: Path | None,
    as_json: bool, playbook: Path | None,
) -> int:
    """`runbook patch`."""
    if not levers and not assignments:
        raise BadInput(
            "nothing to change is named",
            next_step="name a lever with --lever (`runbook levers` lists them), or a value with --set PARAMETER=VALUE",
        )
    job = read_job_files(template)
    language(job.script)
    documents = lever_documents(playbook)
    seen = evidence_of(logs, kind, template, nodes=nodes, gpus=gpus, playbook=playbook)
    if seen.refused:
        echo(clean_line(seen.refused), err=True)
    reading = job.reading(documents, seen.story, named_system(system, documents) if system is not None else None)
    context = context_of(reading, job, seen)
    document = context.template.system
    try:
        asked = Asked(levers, assignments, yes, may_change_training)
        planned = plan(context, asked, documents, job=job, from_log=seen.meanings is not None)
    except RunbookError as error:
        if as_json and error.exit_code == NEEDS_PERSON:
            _print_json({"system": document.id, "refused": error.what, "question": error.next_step})
        raise
    made = _patch(job, reading, planned)
    written = _written(made, job, folder)
    if as_json:
        _print_json({
            "system": document.id,
            "failure": planned.failure or None,
            "uses": [{**asdict(use), "expectation": in_words(use.expectation)} for use in planned.uses],
            "edits": [asdict(edit) for edit in planned.edits],
            "files": [item.source for item in job.companions],
            "unread": list(job.unread),
            "notes": [*([seen.refused] if seen.refused else []), *planned.notes, *made.notes],
            "diff": made.diff,
            "written": [str(path) for path in written],
        })
        return 0
    _tell(document, job, planned, made)
    if written:
        for path in written:
            echo(str(path))
        return 0
    _print_diff(made.diff)
    return 0


def _patch(job: JobFiles, reading: TemplateReading, planned: Planned) -> Patch:
    """The changed files, with those that need a copy. Raises `CannotEdit`, also where copies could not be wired."""
    made = apply(job.files, planned.edits, names=reading.parameter_names, known=reading.submit_context)
    if not made.diff:
        raise NothingToDo("the template has these values already", where=str(job.path))
    notes = list(made.notes)
    copies = copies_of(job.companions, made, "/copy", beside=True)
    if copies:
        wire_copies(made.files, copies, reading.submit_context)
        shown = ", ".join(copies)
        notes.append(f"{shown}: with --write a copy is changed, and the written script names the copy")
    return replace(made, copies=copies, notes=tuple(notes))


def _written(made: Patch, job: JobFiles, folder: Path | None) -> list[Path]:
    if folder is None:
        return []

    try:
        return write_copies(made, job.path, folder, job.companions)
    except OSError as error:
        raise Unavailable(
            f"the change could not be written: {(error.strerror or str(error)).lower()}", where=str(folder),
            next_step="name another folder with --write",
        ) from error


def _tell(document: LeverDocument, job: JobFiles, planned: Planned, made: Patch) -> None:
    """What is changed, what it frees and costs, and what is not known: on standard error."""
    width = min(120, terminal_width())
    lines = [*paragraph(titled(document), width, ""), *labelled("failure", planned.failure, width)]
    for use in planned.uses:
        lines.append("")
        effect = planned.effect_words[use.lever]
        for label, text in (
            ("lever", f"{use.lever}: {use.title}"), ("relieves", planned.relieves[use.lever]),
            ("frees", in_words(use.expectation)), ("effect", effect), ("cost", use.cost), ("why", use.why),
            ("source", use.source),
        ):
            lines += labelled(label, text, width)
    if not planned.uses:
        lines.append("")
    for text in planned.set_words:
        lines += paragraph(text, width, "  ", "")
    for note in (*planned.notes, *made.notes):
        lines += labelled("note", note, width)
    for unread in job.unread:
        lines += labelled("not read", unread, width)
    for number, line in enumerate([*lines, ""]):
        echo(line, err=True, bold=number == 0)


def _print_diff(diff: str) -> None:
    """To a file or a pipe as it is, so that it can be applied; to a terminal without what would command it."""
    if not sys.stdout.isatty():
        hand_on(diff)
        return

    for line in clean(diff).splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        head = line.startswith(("+++", "---"))
        echo(line, colour=None if head else colour, bold=head)


def _print_json(told: dict[str, object]) -> None:
    echo(json.dumps(told, indent=2, ensure_ascii=True))
