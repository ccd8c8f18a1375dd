"""Drain a node whose GPU is faulty, with our reason, never over somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runbook.errors import NotAllowed
from runbook.model.incident import Act, Incident
from runbook.model.job import MARK, NodeClass, NodeState
from runbook.model.node import NodeJudgement
from runbook.model.units import NodeName, moment
from runbook.remedy import drain_refused
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.base import Proposal, StepContext, StepResult, with_act, with_notes

_REASON_LIMIT = 300
"""Characters: what a person reads in a line of `sinfo -R`; the report has the rest."""
_HOUR_S = 3600.0


class Outcome(StrEnum):
    DRAINED = "drained"
    ALREADY_DRAINED = "already_drained"
    LEFT_IN_SERVICE = "left_in_service"
    HELD_BACK = "held_back"
    """A limit on drains was reached: a person is paged (notifications.py)."""
    PLANNED = "planned"
    DECLINED = "declined"


def drain_token(incident: Incident) -> str:
    """What the reason of a drain begins with, by which it is found again."""
    return f"{MARK}{incident.id}"


def propose(context: StepContext) -> Proposal | None:
    """The nodes that the rules say to drain and that are not drained yet."""
    wanted = _wanted(context).nodes
    if not wanted:
        return None
    names = ", ".join(judgement.node for judgement in wanted)
    reasons = "; ".join(judgement.reasons[0] for judgement in wanted if judgement.reasons)
    return Proposal("drain", names, f"drain {names}: {reasons}", token=drain_token(context.incident))


def run(context: StepContext) -> StepResult:
    """Drain and record. Refusals leave the node in service; the relaunch avoids it all the same."""
    found = _wanted(context)
    wanted = found.nodes
    incident = with_notes(context.incident, *found.left, *found.held_back)
    incident = replace(incident, to_do=tuple(dict.fromkeys((*incident.to_do, *map(_by_hand, found.held_back)))))
    refused = [*found.left, *found.held_back]
    already = [judgement.node for judgement in _faulty(context) if judgement not in wanted]
    # Drained by this incident in a run that was killed before it could say so.
    incident = _remember(incident, _ours(context, already))
    if not wanted:
        outcome = Outcome.LEFT_IN_SERVICE if refused else Outcome.ALREADY_DRAINED
        outcome = Outcome.HELD_BACK if found.held_back else outcome
        return StepResult(outcome, incident, "; ".join(refused) or f"{', '.join(already)} is drained already")
    token = drain_token(incident)
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
    said = f"drained {', '.join(drained)}" if drained else "the scheduler refused the drain"
    if found.held_back:
        return StepResult(Outcome.HELD_BACK, incident, "; ".join((said, *found.held_back)))
    return StepResult(Outcome.DRAINED if drained else Outcome.LEFT_IN_SERVICE, incident, said)


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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which faulty nodes to drain now, and why others are left: by the policy, or held back by a limit."""

    nodes: list[NodeJudgement]
    left: list[str]
    held_back: list[str]


def _wanted(context: StepContext) -> _Wanted:
    acts = context.settings.policy
    faulty = _faulty(context)
    if not faulty:
        return _Wanted([], ["no rule asks for a drain"], [])
    everyone = context.ports.scheduler.nodes()
    states = {state.name: state for state in everyone}
    found = _Wanted([], [], [])
    for judgement in faulty:
        if _is_drained(states.get(judgement.node)):
            continue
        if not acts.may_drain:
            why = in_words(drain_refused(0, 0, 0.0, may_drain=False))
            found.left.append(f"{judgement.node} was left in service: {why}")
        elif limit := _limit_reached(context, judgement.node, everyone, found.nodes):
            found.held_back.append(f"{judgement.node} is faulty and was left in service: {limit}")
        else:
            found.nodes.append(judgement)
    return found


def _limit_reached(
    context: StepContext, node: NodeName, everyone: Sequence[NodeState], wanted: Sequence[NodeJudgement]
) -> str:
    """Why one more drain is for a person to decide; "": it is not. What many incidents blame on many nodes at once is
    seldom the nodes' fault, and a forged fault must not cost a partition."""
    acts = context.settings.policy
    hour = len(wanted) + _drains_of_last_hour(context)
    if hour >= acts.max_drains_per_hour:
        return f"{hour} nodes were drained within an hour; the policy allows {acts.max_drains_per_hour}"
    now = {judgement.node for judgement in wanted}
    partitions = next((state.partitions for state in everyone if state.name == node), ())
    for partition in (None, *partitions):
        among = [state for state in everyone if partition is None or partition in state.partitions]
        ours = [state for state in among if state.name in now or _drained_by_us(state)]
        refused = drain_refused(len(ours), len(among), acts.max_drained_share)
        if refused:
            return in_words(refused) if partition is None else f"in the partition {partition}, {in_words(refused)}"
    return ""


def _drains_of_last_hour(context: StepContext) -> int:
    since_s = context.ports.clock.now() - _HOUR_S
    own = sum(
        1 for act in context.incident.acts if act.what == "drain" and not act.planned_only and act.time_s >= since_s
    )
    # The history has this incident's own too, as far as they are stored.
    return own if context.ports.history is None else max(own, context.ports.history.drains_since(since_s))


def _by_hand(held_back: str) -> str:
    return f"Look at the node, and drain it by hand if it is so: {held_back}."


def _drained_by_us(state: NodeState) -> bool:
    return bool(state.token) and _is_drained(state)


def _ours(context: StepContext, names: list[NodeName]) -> list[NodeName]:
    token = drain_token(context.incident)
    states = context.ports.scheduler.nodes(names) if names else ()
    return [state.name for state in states if _is_drained(state) and state.token == token]


def _is_drained(state: NodeState | None) -> bool:
    return state is not None and state.node_class in (NodeClass.DRAINED, NodeClass.DOWN)


def _remember(incident: Incident, drained: list[NodeName]) -> Incident:
    together = tuple(dict.fromkeys((*incident.drained_nodes, *drained)))
    return replace(incident, drained_nodes=together)
