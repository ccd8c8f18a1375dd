"""Wait until somebody else's job leaves the GPUs, where the job has no other node to run on; with a limit."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotFound
from runbook.model.incident import IncidentState, Milestone, Policy
from runbook.model.job import JobRecord
from runbook.model.units import JobId, NodeName, rough_duration
from runbook.steps.check_node import SETTLE_S, look
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.nodes import has_ended, is_free, jobs_of, tenants_of


class Outcome(StrEnum):
    FREE = "free"
    WAITING = "waiting"
    STILL_OCCUPIED = "still_occupied"
    TENANT_STAYS = "tenant_stays"
    PLANNED = Milestone.PLANNED.value


def run(context: StepContext) -> StepResult:
    """Look once at the tenants' jobs, and at their nodes when these have ended. `WAITING` asks to be called again."""
    incident, clock, limit_s = context.incident, context.ports.clock, context.settings.policy.wait_for_tenant_s
    limit = rough_duration(limit_s, seconds_below_s=0.0)
    waited_s = clock.now() - incident.visits[-1].started_s if incident.visits else 0.0
    nodes = tenants_of(context.failure)
    if not nodes:
        return StepResult(Outcome.FREE, incident, "no tenant is left to wait for")
    running = _running(context, nodes)
    if not running:
        freed, running, held = _free_now(context, tuple(nodes))
        if set(freed) >= set(nodes):
            return _free(context, freed)
        if not running:
            conclusion = f"The tenants of {', '.join(nodes)} have ended, but the memory is still held: {held}."
            return StepResult(Outcome.STILL_OCCUPIED, replace(incident, conclusion=conclusion), conclusion)
    who = "; ".join(_described(record, node, clock.now()) for node, record in running)
    if incident.policy is Policy.PLAN:
        conclusion = f"Planned only, nothing was touched. The tool would wait up to {limit} for {who}."
        return StepResult(
            Outcome.PLANNED, replace(incident, conclusion=conclusion, state=IncidentState.PLANNED), conclusion
        )
    if waited_s >= limit_s:
        return _tenant_stays(context, running, who, waited_s)
    named = "; ".join(_named(record, node) for node, record in running)
    # People are told of the note (report/text/notifications.py).
    incident = with_notes(incident, f"waits up to {limit} for {named}: the job has no other node to run on")
    pause_s = context.settings.policy.verify.pause_s(waited_s)
    return StepResult(Outcome.WAITING, incident, f"{rough_duration(waited_s)} of at most {limit}: {who}", pause_s)


def _running(context: StepContext, nodes: dict[NodeName, tuple[JobId, ...]]) -> list[tuple[NodeName, JobRecord]]:
    """The tenants' jobs that have not ended, as the scheduler has them now."""
    found: list[tuple[NodeName, JobRecord]] = []
    for node, jobs in nodes.items():
        for job in jobs:
            try:
                record = context.ports.scheduler.job(job)
            except NotFound:
                continue
            if not has_ended(record.state):
                found.append((node, record))
    return found


def _free_now(
    context: StepContext, names: tuple[NodeName, ...]
) -> tuple[tuple[NodeName, ...], list[tuple[NodeName, JobRecord]], str]:
    """Which of the nodes are free, the jobs that have come meanwhile, and what else holds the memory. Memory that is
    just being given back is waited for a little."""
    for again in (False, True):
        if again:
            context.ports.clock.sleep(SETTLE_S)
        _, facts, judgements = look(context, names)
        by_node = {fact.node: fact for fact in facts}
        freed = tuple(one.node for one in judgements if is_free(one, by_node.get(one.node), context))
        running = _running(context, {one.node: jobs_of(one) for one in judgements})
        if running or len(freed) == len(names):
            break
    taken = [one for one in judgements if one.node not in freed]
    held = "; ".join(f"{one.node}: {(one.reasons or one.missing or ('nobody knows by whom',))[0]}" for one in taken)
    return freed, running, held


def _free(context: StepContext, freed: tuple[NodeName, ...]) -> StepResult:
    incident, failure = context.incident, context.failure
    failure = replace(failure, freed_nodes=tuple(dict.fromkeys((*failure.freed_nodes, *freed))))
    kept = tuple(node for node in incident.excluded_nodes if node not in freed)
    sentence = f"the memory of {', '.join(freed)} is free again"
    return StepResult(Outcome.FREE, replace(incident, failure=failure, excluded_nodes=kept), sentence)


def _tenant_stays(
    context: StepContext, running: list[tuple[NodeName, JobRecord]], who: str, waited_s: float
) -> StepResult:
    incident = context.incident
    waited = f"for {rough_duration(waited_s)}" if waited_s >= 1 else "at all (policy.wait_for_tenant_hours)"
    verb = "Waited" if waited_s >= 1 else "Not waited"
    conclusion = f"{verb} {waited}: the GPUs are still held by {who}, and the job has no other node."
    asks = tuple(
        f"Talk to {record.owner} about {_named(record, node)}; "
        f"`runbook resume {incident.id}` waits on."
        for node, record in running
    )
    incident = replace(incident, conclusion=conclusion, to_do=tuple(dict.fromkeys((*asks, *incident.to_do))))
    return StepResult(Outcome.TENANT_STAYS, incident, conclusion)


def _described(record: JobRecord, node: NodeName, now_s: float) -> str:
    """ "job 99 of bob (server) on gpu-22, RUNNING, at most 2.1 h more", by its time limit."""
    left = ""
    if record.start_time_s is not None and record.time_limit_s is not None:
        left_s = max(0.0, record.start_time_s + record.time_limit_s - now_s)
        left = f", at most {rough_duration(left_s, seconds_below_s=0.0)} more"
    return f"{_named(record, node)}, {record.state.name}{left}"


def _named(record: JobRecord, node: NodeName) -> str:
    return f"job {record.id} of {record.owner} ({record.name or 'unnamed'}) on {node}"
