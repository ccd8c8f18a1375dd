"""Promote: a proven change goes back into the owner's template, if the cluster allows it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.incident import Act, Attempt, Incident
from runbook.model.template import Edit, TemplateFile
from runbook.remedy import WorldLever
from runbook.steps.shared.base import Proposal, StepContext, StepResult, with_act, with_notes
from runbook.template import CannotEdit, apply


class Outcome(StrEnum):
    PROMOTED = "promoted"
    LEFT_TO_OWNER = "left_to_owner"
    PLANNED = "planned"
    DECLINED = "declined"


def propose(context: StepContext) -> Proposal | None:
    """Only where the inventory promotes by itself; otherwise the owner does it with `runbook promote`."""
    if not context.settings.policy.may_promote or not _changed(context.incident):
        return None
    original = context.incident.original
    path = original.job.command if original else context.failure.job.command
    return Proposal("promote", path, f"write the proven change into {path}, with a backup beside it")


def run(context: StepContext) -> StepResult:
    """Write the change, or say how the owner does it."""
    incident = context.incident
    if not _changed(incident):
        return StepResult(Outcome.LEFT_TO_OWNER, incident, "the template was not changed")
    if not context.settings.policy.may_promote:
        incident = replace(
            incident,
            to_do=(
                *incident.to_do,
                f"To keep the change: `runbook promote {incident.id}`. Else nothing: the template is as it was.",
            ),
        )
        return StepResult(Outcome.LEFT_TO_OWNER, incident, f"runbook promote {incident.id}")
    try:
        incident = promote(context)
    except (NotAllowed, NotFound) as error:
        return StepResult(Outcome.LEFT_TO_OWNER, with_notes(incident, f"not promoted: {error.what}"), error.what)
    return StepResult(Outcome.PROMOTED, incident, f"backup: {incident.promoted}")


def promote(context: StepContext) -> Incident:
    """Write the last proven template over the owner's file. Raises `NotAllowed` when that file changed since."""
    incident = context.incident
    original, script = incident.original, incident.script
    if original is None or script is None or not _changed(incident):
        raise NotAllowed("there is no proven change to write back", next_step=f"runbook show {incident.id}")
    if not (incident.attempts and incident.attempts[-1].verdict and incident.attempts[-1].verdict.passed):
        raise NotAllowed("the last attempt is not proven", next_step=f"runbook show {incident.id}")
    if not original.job.command:
        raise NotAllowed("the scheduler does not know the template's file", next_step="copy it from the report")
    changes = _changes(context)
    for path, old, new in changes:
        # Every file is looked at before one is written: a promotion is not half done because a file was changed.
        present = context.ports.files.read_small(path, original.job.owner, max(len(old), len(new)) + 1)
        if present not in (old, new):
            raise NotAllowed(
                f"{path} was changed since the job was submitted", next_step=f"runbook show {incident.id}"
            )
    backups = []
    for path, old, new in changes:
        backups.append(_written(context, path, old, new))
        token = hashlib.sha256(old).hexdigest()[:12]
        act = Act("promote", path, context.ports.clock.now(), token=token, result=f"backup {backups[-1]}")
        incident = with_act(incident, act)
    return replace(incident, promoted=", ".join(backups))


def roll_back(context: StepContext) -> Incident:
    """Undo a promotion: the submitted script goes back where it was, if nobody changed it since."""
    incident = context.incident
    if not incident.promoted or incident.original is None or incident.script is None:
        raise NotAllowed(
            "nothing was promoted, so there is nothing to take back",
            next_step="the owner's template is as it was; the changed copy is in the report",
        )
    for path, old, new in _changes(context):
        backup = _written(context, path, new, old)
        token = hashlib.sha256(new).hexdigest()[:12]
        act = Act("rollback", path, context.ports.clock.now(), token=token, result=f"backup {backup}")
        incident = with_act(incident, act)
    return replace(incident, promoted="")


def _written(context: StepContext, path: str, before: bytes, content: bytes) -> str:
    """Write one file of the owner's over exactly `before`; returns the backup."""
    owner = context.failure.job.owner if context.incident.original is None else context.incident.original.job.owner
    digest = hashlib.sha256(before).hexdigest()
    try:
        return context.ports.files.replace(path, owner, content, digest)
    except NotAllowed:
        if context.ports.files.read_small(path, owner, len(content) + 1) != content:
            raise
        # Written by a run that was killed before it could say so; its backup has this name.
        return f"{path}.runbook-{digest[:8]}.bak"


def _changes(context: StepContext) -> list[tuple[str, bytes, bytes]]:
    """Path, text as it was, text with the levers that were proven, of the script and of the files that it names, where
    they differ. What made the relaunch resume (a checkpoint's path, a step) or run on fewer nodes is not the owner's
    to keep and is left out."""
    incident = context.incident
    if incident.script is None or incident.original is None or not incident.templates:
        return []
    before = (
        TemplateFile(incident.templates[0].path, incident.script.text), *(item.file for item in incident.companions)
    )
    after = before
    names, known = context.template.parameter_names, context.template.submit_context
    for attempt in incident.attempts:
        edits = _levers_edits(attempt)
        if not edits:
            continue
        try:
            after = apply(after, edits, names=names, known=known).files
        except CannotEdit as error:
            raise NotAllowed(
                f"the lever cannot be told from what else the relaunch changed: {error.what}", where=error.where,
                next_step="write it into the template by hand: the report shows the change",
            ) from error
    sources = (incident.original.job.command, *(item.source for item in incident.companions))
    return [
        (path, old.text.encode("utf-8", "surrogateescape"), new.text.encode("utf-8", "surrogateescape"))
        for path, old, new in zip(sources, before, after, strict=True) if old.text != new.text
    ]


def _changed(incident: Incident) -> bool:
    """Whether a lever was written at all."""
    return any(_levers_edits(attempt) for attempt in incident.attempts)


def _levers_edits(attempt: Attempt) -> tuple[Edit, ...]:
    """What a lever changed: what goes with fewer nodes is no change of the owner's."""
    uses = attempt.plan.uses if attempt.plan is not None else ()
    return tuple(edit for use in uses if use.lever not in tuple(WorldLever) for edit in use.edits)
