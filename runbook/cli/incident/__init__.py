"""An incident from the command line: begin it, look on, answer, look at what is stored."""

from __future__ import annotations

from runbook.cli.main import DONE, NEEDS_PERSON, NOTHING_TO_DO, UNAVAILABLE
from runbook.model.incident import Incident, IncidentState


def code_of(incident: Incident) -> int:
    """The exit code that an incident's state stands for."""
    return {
        IncidentState.RECOVERED: DONE,
        IncidentState.PLANNED: DONE,
        IncidentState.ESCALATED: NEEDS_PERSON,
        IncidentState.AWAITING_APPROVAL: NEEDS_PERSON,
        IncidentState.CLOSED: NOTHING_TO_DO,
        IncidentState.INTERRUPTED: UNAVAILABLE,
        IncidentState.RUNNING: DONE,
    }[incident.state]
