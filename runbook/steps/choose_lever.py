"""Choose the lever: the next rung of the ladder for this diagnosis, never one that was tried."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.model.incident import Incident
from runbook.model.log import LogStory
from runbook.model.remedy import NoPlan, Plan
from runbook.remedy import propose
from runbook.steps.base import StepContext, StepResult
from runbook.steps.find_checkpoint import list_checkpoints
from runbook.steps.template_view import settings_in_force, system_of


class Outcome(StrEnum):
    LEVER = "lever"
    NEEDS_PERSON = "needs_person"
    EXHAUSTED = "exhausted"


def run(context: StepContext) -> StepResult:
    """Fill `incident.plan`, or `no_plan` with the reason and the question to ask."""
    incident = context.incident
    failure = context.failure
    if not incident.templates:
        return _without(
            incident, NoPlan("the script that was submitted is not known: " + _notes(incident), exhausted=False)
        )
    system = system_of(context)
    if system is None:
        return _without(
            incident,
            NoPlan(
                "the launch template and the log belong to no framework that a lever document describes",
                exhausted=False,
                question="Which framework launches this job? A document under playbooks/oom/levers can describe it.",
            ),
        )
    if failure.diagnosis is None:
        return _without(incident, NoPlan("there is no diagnosis to act on", exhausted=False))
    plan = propose(
        failure.diagnosis,
        failure.story or LogStory(root_cause=None),
        failure.job,
        settings_in_force(context),
        system,
        tried=tried(incident),
        allow_training_change=context.settings.acts.may_change_training,
        checkpoints=list_checkpoints(context)[0],
        templates=incident.templates,
    )
    if isinstance(plan, NoPlan):
        return _without(incident, plan)
    incident = replace(incident, plan=plan, no_plan=None)
    return StepResult(Outcome.LEVER, incident, "; ".join(use.title for use in plan.uses) or "unchanged, elsewhere")


def tried(incident: Incident) -> tuple[str, ...]:
    """Keys of every lever used in an attempt of this incident, and of those that could not be written."""
    used = [use.key for attempt in incident.attempts if attempt.plan for use in attempt.plan.uses]
    return tuple(dict.fromkeys((*used, *incident.barred)))


def _without(incident: Incident, no_plan: NoPlan) -> StepResult:
    outcome = Outcome.EXHAUSTED if no_plan.exhausted else Outcome.NEEDS_PERSON
    question = f" {no_plan.question}" if no_plan.question else ""
    sentence = no_plan.why[:1].upper() + no_plan.why[1:] + ("" if no_plan.why.endswith(".") else ".")
    to_do = (*((no_plan.question,) if no_plan.question else ()), *incident.to_do)
    empty: Plan | None = None
    incident = replace(incident, plan=empty, no_plan=no_plan, conclusion=sentence, to_do=tuple(dict.fromkeys(to_do)))
    return StepResult(outcome, incident, no_plan.why + question)


def _notes(incident: Incident) -> str:
    return incident.notes[0] if incident.notes else "the scheduler kept none"
