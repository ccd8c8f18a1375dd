"""What a person decides of an incident, from a page or a terminal: the answer to its question, and taking back what
it changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from dbos import DBOS

from runbook.errors import NothingToDo, Unavailable
from runbook.flow.walking import approval_topic, workflow_id
from runbook.model.incident import Act, Incident
from runbook.steps.check_node import look_again
from runbook.steps.drain_node import drain_token, undrain_evidence
from runbook.steps.promote import roll_back
from runbook.steps.shared.base import StepContext, with_act

# The question that an incident waits on: what names it, and how an answer reaches whoever drives the incident.

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


# Taking back what an incident changed: the promotion, and on request the nodes that it drained.

ContextOf = Callable[[Incident], StepContext]


def check_undoable(incident: Incident, *, undrain: bool) -> None:
    """Raises `NothingToDo` when there is nothing to take back."""
    if incident.promoted or (undrain and incident.drained_nodes):
        return
    drained = f"; it drained {', '.join(incident.drained_nodes)} (--undrain)" if incident.drained_nodes else ""
    raise NothingToDo(
        f"{incident.id} changed nothing that can be taken back{drained}", next_step="the owner's template is as it was"
    )


def what_is_undone(incident: Incident, *, undrain: bool) -> tuple[str, ...]:
    """What an undo would do, a sentence's part each."""
    what = []
    if incident.promoted:
        written = [act.target for act in incident.acts if act.what == "promote" and not act.planned_only]
        script = [incident.original.job.command] if incident.original is not None else []
        # The script, and the files that it names where the change went there.
        what.append(f"put the old template back over {', '.join(dict.fromkeys(written or script)) or 'the script'}")
    if undrain and incident.drained_nodes:
        what.append(f"give back {', '.join(incident.drained_nodes)}")
    return tuple(what)


def changes_undone(incident: Incident) -> tuple[str, ...]:
    """The levers that a promotion wrote, in a few words each."""
    plans = [attempt.plan for attempt in incident.attempts if attempt.plan is not None]
    return tuple(dict.fromkeys(use.title for plan in plans for use in plan.uses if use.edits))


def evidence(incident: Incident, context_of: ContextOf) -> Iterator[str]:
    """What the drained nodes were drained for, then how they look now, a line each. Asks the nodes."""
    yield from undrain_evidence(incident)
    if incident.failure is not None:
        for judgement in look_again(context_of(incident), incident.drained_nodes):
            yield f"{judgement.node} now: {judgement.verdict.value}: {'; '.join(judgement.reasons)}"


def undo(
    incident: Incident, context_of: ContextOf, save: Callable[[Incident], None], *, undrain: bool, by: str
) -> Iterator[str]:
    """Take it back, and say each thing done. Each is saved before the next is begun, with the name of whoever asked."""
    check_undoable(incident, undrain=undrain)
    if incident.promoted:
        before = len(incident.acts)
        incident = _signed(roll_back(context_of(incident)), before, by)
        save(incident)
        yield "the old template is back in place"
    for node in incident.drained_nodes if undrain else ():
        context = context_of(incident)
        token = drain_token(incident)
        context.ports.scheduler.undrain(node, token)
        act = Act("undrain", node, context.ports.clock.now(), token=token, result="given back", approved_by=by)
        left = tuple(other for other in incident.drained_nodes if other != node)
        incident = with_act(replace(incident, drained_nodes=left), act)
        save(incident)
        yield f"{node} is back in service"


def _signed(incident: Incident, before: int, by: str) -> Incident:
    fresh = tuple(replace(act, approved_by=by) for act in incident.acts[before:])
    return replace(incident, acts=(*incident.acts[:before], *fresh))
