"""What the launch template says now: the system it belongs to and the parameters in force."""

from __future__ import annotations

from runbook.model.log import LogStory
from runbook.model.template import Setting
from runbook.remedy import LeverDocument, recognise
from runbook.steps.base import StepContext
from runbook.template import find_settings


def system_of(context: StepContext) -> LeverDocument | None:
    """The lever document whose marks the template and the log carry; None: an unknown framework."""
    story = context.failure.story or LogStory(root_cause=None)
    return recognise(context.incident.templates, story, context.playbook.levers)


def settings_in_force(context: StepContext) -> tuple[Setting, ...]:
    """Every memory parameter that the templates set, with the value in force or why it is not known."""
    system = system_of(context)
    if system is None:
        return ()
    names = system.parameter_names()
    return tuple(setting for template in context.incident.templates for setting in find_settings(template, names))
