"""The question that an incident waits on: what names it, and how an answer reaches whoever drives the incident."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from runbook.engine import approval_topic, workflow_id
from runbook.errors import Unavailable
from runbook.model.incident import Incident


def approval_topic_of(incident: Incident) -> str:
    """The topic of the question that a stored incident waits on: asked before the box's own visit was added."""
    return approval_topic(replace(incident, visits=incident.visits[:-1]), incident.box)


def question_of(incident: Incident) -> str:
    """A name for exactly this question of exactly this visit, in these words; "" when nothing is asked. An answer that
    names another was meant for another."""
    if not incident.awaiting:
        return ""
    parts = (workflow_id(incident), approval_topic_of(incident), incident.awaiting)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def answer_here(incident: Incident, yes: bool, by: str) -> None:
    """Answer through this process' own engine: by way of the database, so that any daemon of it may drive the incident.
    The first answer to a question counts. Raises `Unavailable`."""
    from dbos import DBOS

    topic = approval_topic_of(incident)
    try:
        DBOS.send(
            workflow_id(incident), {"yes": yes, "by": by}, topic, idempotency_key=f"{workflow_id(incident)}:{topic}"
        )
    except Exception as error:
        raise Unavailable(
            f"the answer could not be handed over: {type(error).__name__}",
            where=incident.id,
            next_step=f"try again, or `runbook approve {incident.id}`",
        ) from error
