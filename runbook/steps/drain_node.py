"""Drain a node whose GPU is faulty, with our reason, never over somebody else's."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed
from runbook.model.incident import Act, Incident
from runbook.model.job import NodeClass, NodeState
from runbook.model.node import NodeJudgement
from runbook.model.units import NodeName, moment
from runbook.remedy import drain_refused
from runbook.steps.shared.base import Proposal, StepContext, StepResult, with_act, with_notes

REASON_PREFIX = "runbook:"
_REASON_LIMIT = 300
"""Characters: what a person reads in a line of `sinfo -R`; the report has the rest."""


class Outcome(StrEnum):
    DRAINED = "drained"
    ALREADY_DRAINED = "already_drained"
    LEFT_IN_SERVICE = "left_in_service"
    PLANNED = "planned"
    DECLINED = "declined"


def propose(context: StepContext) -> Proposal | None:
    """The nodes that the rules say to drain and that are not drained yet."""
    wanted, _ = _wanted(context)
    if not wanted:
        return None
    names = ", ".join(judgement.node for judgement in wanted)
    reasons = "; ".join(judgement.reasons[0] for judgement in wanted if judgement.reasons)
    return Proposal("drain", names, f"drain {names}: {reasons}", token=f"{REASON_PREFIX}{context.incident.id}")


def run(context: StepContext) -> StepResult:
    """Drain and record. Refusals leave the node in service; the relaunch avoids it all the same."""
    wanted, why_not = _wanted(context)
    incident = with_notes(context.incident, *why_not)
    already = [judgement.node for judgement in _faulty(context) if judgement not in wanted]
    # Drained by this incident in a run that was killed before it could say so.
    incident = _remember(incident, _ours(context, already))
    if not wanted:
        outcome = Outcome.LEFT_IN_SERVICE if why_not else Outcome.ALREADY_DRAINED
        return StepResult(outcome, incident, "; ".join(why_not) or f"{', '.join(already)} is drained already")
    token = f"{REASON_PREFIX}{incident.id}"
    drained: list[NodeName] = []
    for judgement in wanted:
        reason = f"{token} {judgement.reasons[0] if judgement.reasons else 'GPU fault'}"[:_REASON_LIMIT]
        try:
            context.ports.scheduler.drain(judgement.node, reason)
        except NotAllowed as error:
            incident = with_notes(incident, f"{judgement.node} was not drained: {error.what}")
            continue
        drained.append(judgement.node)
        incident = with_act(
            incident, Act("drain", judgement.node, context.ports.clock.now(), token=token, result=reason)
        )
    incident = _remember(incident, drained)
    if not drained:
        return StepResult(Outcome.LEFT_IN_SERVICE, incident, "the scheduler refused the drain")
    return StepResult(Outcome.DRAINED, incident, f"drained {', '.join(drained)}")


def undrain_evidence(incident: Incident) -> tuple[str, ...]:
    """What the nodes that this incident drained were drained for, for whoever gives them back."""
    lines: list[str] = []
    for node in incident.drained_nodes:
        acts = [act for act in incident.acts if act.what == "drain" and act.target == node and not act.planned_only]
        drained = acts[-1] if acts else None
        when = f" at {moment(drained.time_s)}" if drained is not None else ""
        lines.append(f"{node} was drained{when}: {drained.result if drained is not None else 'no record of it'}")
        for judgement in _judgements_of(incident, node):
            lines += [f"  {finding.rule}: {finding.text}" for finding in judgement.findings]
            lines += [] if judgement.findings else [f"  {reason}" for reason in judgement.reasons]
            lines += [f"  not known then: {item}" for item in judgement.missing]
    return tuple(dict.fromkeys(lines))


def _judgements_of(incident: Incident, node: NodeName) -> list[NodeJudgement]:
    failures = [failure for failure in (incident.original, incident.failure) if failure is not None]
    return [one for failure in failures for one in failure.judgements if one.node == node and one.drain]


def _faulty(context: StepContext) -> list[NodeJudgement]:
    return [judgement for judgement in context.failure.judgements if judgement.drain]


def _wanted(context: StepContext) -> tuple[list[NodeJudgement], list[str]]:
    """Which faulty nodes to drain now, and why others are left."""
    acts = context.settings.policy
    faulty = _faulty(context)
    if not faulty:
        return [], ["no rule asks for a drain"]
    everyone = context.ports.scheduler.nodes()
    states = {state.name: state for state in everyone}
    drained_by_us = sum(1 for state in everyone if state.reason.startswith(REASON_PREFIX) and _is_drained(state))
    wanted: list[NodeJudgement] = []
    left: list[str] = []
    for judgement in faulty:
        if _is_drained(states.get(judgement.node)):
            continue
        refused = drain_refused(
            drained_by_us + len(wanted), len(everyone), acts.max_drained_share, may_drain=acts.may_drain
        )
        if refused:
            left.append(f"{judgement.node} was left in service: {refused}")
        else:
            wanted.append(judgement)
    return wanted, left


def _ours(context: StepContext, names: list[NodeName]) -> list[NodeName]:
    token = f"{REASON_PREFIX}{context.incident.id} "
    states = context.ports.scheduler.nodes(names) if names else ()
    return [state.name for state in states if _is_drained(state) and state.reason.startswith(token)]


def _is_drained(state: NodeState | None) -> bool:
    return state is not None and state.node_class in (NodeClass.DRAINED, NodeClass.DOWN)


def _remember(incident: Incident, drained: list[NodeName]) -> Incident:
    together = tuple(dict.fromkeys((*incident.drained_nodes, *drained)))
    return replace(incident, drained_nodes=together)
