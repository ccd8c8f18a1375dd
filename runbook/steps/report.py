"""Report: write the page and the text into the incident's folder."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.model.incident import IncidentState, Milestone
from runbook.steps.reduce_world import full_size_again
from runbook.steps.shared.base import StepContext, StepResult
from runbook.steps.shared.holding import give_back


class Outcome(StrEnum):
    WRITTEN = Milestone.WRITTEN.value


def run(context: StepContext) -> StepResult:
    """Close the incident. The page itself is drawn from the closed incident by the engine."""
    incident = give_back(context)
    if not incident.state.ended:
        incident = replace(incident, state=IncidentState.CLOSED)
    told = full_size_again(context)
    if told:
        incident = replace(incident, to_do=tuple(dict.fromkeys((*incident.to_do, told))))
    incident = replace(incident, closed_s=context.ports.clock.now(), awaiting="")
    return StepResult(Outcome.WRITTEN, incident, "report.html")
