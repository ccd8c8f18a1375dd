"""Promote: a proven change goes back into the owner's template, if the cluster allows it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.model.incident import Act, Incident
from runbook.steps.base import Proposal, StepContext, StepResult, with_act, with_notes


class Outcome(StrEnum):
    PROMOTED = "promoted"
    LEFT_TO_OWNER = "left_to_owner"
    PLANNED = "planned"
    DECLINED = "declined"


def propose(context: StepContext) -> Proposal | None:
    """Only where the inventory promotes by itself; otherwise the owner does it with `runbook promote`."""
    if not context.settings.acts.may_promote or not _changed(context.incident):
        return None
    original = context.incident.original
    path = original.job.command if original else context.failure.job.command
    return Proposal("promote", path, f"write the proven change into {path}, with a backup beside it")


def run(context: StepContext) -> StepResult:
    """Write the change, or say how the owner does it."""
    incident = context.incident
    if not _changed(incident):
        return StepResult(Outcome.LEFT_TO_OWNER, incident, "the template was not changed")
    if not context.settings.acts.may_promote:
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
    path = original.job.command
    if not path:
        raise NotAllowed("the scheduler does not know the template's file", next_step="copy it from the report")
    before = hashlib.sha256(script.text.encode("utf-8")).hexdigest()
    content = incident.templates[0].text.encode("utf-8")
    try:
        backup = context.ports.files.replace(path, original.job.owner, content, before)
    except NotAllowed:
        if context.ports.files.read_small(path, original.job.owner, len(content) + 1) != content:
            raise
        # Written by a run that was killed before it could say so; its backup has this name.
        backup = f"{path}.runbook-{before[:8]}.bak"
    return with_act(
        replace(incident, promoted=backup),
        Act("promote", path, context.ports.clock.now(), token=before[:12], result=f"backup {backup}"),
    )


def roll_back(context: StepContext) -> Incident:
    """Undo a promotion: the submitted script goes back where it was, if nobody changed it since."""
    incident = context.incident
    if not incident.promoted or incident.original is None or incident.script is None:
        raise NotAllowed(
            "nothing was promoted, so there is nothing to take back",
            next_step="the owner's template is as it was; the changed copy is in the report",
        )
    path = incident.original.job.command
    promoted = hashlib.sha256(incident.templates[0].text.encode("utf-8")).hexdigest()
    backup = context.ports.files.replace(
        path, incident.original.job.owner, incident.script.text.encode("utf-8"), promoted
    )
    return with_act(
        replace(incident, promoted=""),
        Act("rollback", path, context.ports.clock.now(), token=promoted[:12], result=f"backup {backup}"),
    )


def _changed(incident: Incident) -> bool:
    return bool(incident.script and incident.templates and incident.templates[0].text != incident.script.text)
