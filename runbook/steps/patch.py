"""Change the launch template: a copy with only the lever's bytes changed, kept beside its diff."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from runbook.model.incident import Incident
from runbook.model.template import Edit, Patch, TemplateFile
from runbook.model.units import name_within
from runbook.remedy import find_restarters, resume_edits, resume_findings
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.template_reading import copies_of, submitted_files
from runbook.template import CannotEdit, apply


class Outcome(StrEnum):
    PATCHED = "patched"
    UNCHANGED = "unchanged"
    CANNOT_EDIT = "cannot_edit"
    CANNOT_RESUME = "cannot_resume"


def run(context: StepContext) -> StepResult:
    """Fill `incident.patch` and write the copy into `attempts/N/`."""
    incident = context.incident
    if not incident.templates:
        conclusion = "The script that was submitted is not known, so there is nothing to relaunch."
        return StepResult(Outcome.CANNOT_RESUME, replace(incident, conclusion=conclusion), conclusion)
    lever_edits = incident.plan.edits if incident.plan else ()
    world_edits = incident.world_plan.edits if incident.world_plan else ()
    names, known = context.template.parameter_names, context.template.submit_context
    try:
        resume = _resume_edits(context)
        apply(incident.templates, (*world_edits, *resume), names=names, known=known)
    except CannotEdit as error:
        conclusion = f"The template cannot be made to resume: {error.what} ({error.where})."
        return StepResult(Outcome.CANNOT_RESUME, replace(incident, conclusion=conclusion), conclusion)
    try:
        patch = apply(incident.templates, (*lever_edits, *world_edits, *resume), names=names, known=known)
        patch = replace(patch, copies=copies_of(
            incident.companions, patch, _folder(context), beside=incident.trigger == "files"
        ))
        submitted = submitted_files(patch, known)
    except CannotEdit as error:
        keys = tuple(use.key for use in incident.plan.uses) if incident.plan else ()
        incident = with_notes(
            replace(incident, not_written={**incident.not_written, **dict.fromkeys(keys, error.what)}),
            f"the template could not be changed for {', '.join(keys)}: {error.what} ({error.where})"
            + (f"; {error.next_step}" if error.next_step else ""),
        )
        return StepResult(Outcome.CANNOT_EDIT, incident, error.what)
    _write(context, patch, submitted)
    names_it = tuple(
        f"{path} is changed too: the submitted script names the copy {copy}" for path, copy in patch.copies.items()
    )
    patch = replace(patch, notes=(*patch.notes, *names_it))
    incident = with_notes(replace(incident, patch=patch), *patch.notes)
    if not patch.diff:
        return StepResult(Outcome.UNCHANGED, incident, "the template stays as it was submitted")
    return StepResult(Outcome.PATCHED, incident, _summary(patch))


_OURS = frozenset({"claim.json", "template.diff"})
"""What else lies in the folder of an attempt."""


def copy_name(incident: Incident) -> str:
    """Where the next attempt's script lies in the incident's folder. Its name stays the owner's."""
    return f"attempts/{len(incident.attempts) + 1}/{_file_name(incident.templates[0].path)}"


def _file_name(path: str) -> str:
    """The owner's name for the script, without what a folder of ours does not take: one of our own files there, too."""
    name = name_within(posixpath.basename(path), 150).lstrip(".") or "job.sh"
    return f"script-{name}" if name in _OURS else name


def _resume_edits(context: StepContext) -> tuple[Edit, ...]:
    """Resume flags, settings that would cost the checkpoint, and restarters that would repeat the failure."""
    told = context.template.told
    if told is None:
        return ()
    checkpoint = context.incident.checkpoint
    edits = find_restarters(told, context.playbook.restarters).edits
    if checkpoint is None:
        return edits
    return (*resume_edits(told, checkpoint), *resume_findings(told, checkpoint, made_steps=True).edits, *edits)


def _folder(context: StepContext) -> str:
    """Where this attempt's copies lie."""
    incident = context.incident
    return str(context.ports.folder.folder(incident.id) / posixpath.dirname(copy_name(incident)))


def _write(context: StepContext, patch: Patch, submitted: Sequence[TemplateFile]) -> None:
    incident, folder = context.incident, context.ports.folder
    base = posixpath.dirname(copy_name(incident))
    # The job reads the files that its script names, so its owner may read those and write none: they lie on the
    # service's disk, where no quota of his holds. The script goes to sbatch in memory.
    job = incident.original.job if incident.original else context.failure.job
    owner = (job.uid, job.gid) if job.uid is not None and job.gid is not None else None
    for file in submitted:
        copy = patch.copies.get(file.path)
        if copy is None and file is not submitted[0]:
            continue
        name = copy_name(incident) if copy is None else f"{base}/{posixpath.basename(copy)}"
        folder.write_file(incident.id, name, _bytes(file.text), 0o600, None if file is submitted[0] else owner)
    folder.write_file(incident.id, f"{base}/template.diff", _bytes(patch.diff), 0o600)


def _bytes(text: str) -> bytes:
    """As the owner wrote them, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


def _summary(patch: Patch) -> str:
    added = sum(1 for line in patch.diff.splitlines() if line.startswith("+") and not line.startswith("+++"))
    removed = sum(1 for line in patch.diff.splitlines() if line.startswith("-") and not line.startswith("---"))
    return f"{removed} line{'s' if removed != 1 else ''} out, {added} in"
