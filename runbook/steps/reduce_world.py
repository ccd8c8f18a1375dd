"""Fit the job to the nodes left: a spare if one is free, else fewer nodes with the same global batch."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.model.job import NodeClass
from runbook.model.remedy import Plan
from runbook.model.units import NodeName
from runbook.steps.base import StepContext, StepResult, with_notes
from runbook.steps.occupied import tenants_of
from runbook.steps.smaller_world import Smaller, serves, smaller_world, suits

__all__ = ["Outcome", "excluded", "run", "serves"]


class Outcome(StrEnum):
    SPARE = "spare"
    REDUCED = "reduced"
    TENANT = "tenant"
    IMPOSSIBLE = "impossible"


def run(context: StepContext) -> StepResult:
    """Decide the size of the next attempt. The template is left alone when enough nodes are there."""
    job = context.failure.job
    needed = job.num_nodes or len(job.nodes) or 1
    incident = replace(
        context.incident,
        plan=Plan(uses=(), ladder="elsewhere", system="", refused=()),
        no_plan=None,
        world_plan=None,
    )
    avoided = set(excluded(context))
    everyone = context.ports.scheduler.nodes()
    nodes = [node for node in everyone if node.name not in avoided and serves(node, job)]
    free = [node for node in nodes if node.node_class is NodeClass.AVAILABLE or node.name in job.nodes]
    avoid_text = ", ".join(sorted(avoided)) or "no node"
    if len(free) >= needed:
        return StepResult(Outcome.SPARE, incident, f"{len(free)} nodes are free for {needed}; avoiding {avoid_text}")
    if free and context.settings.acts.may_reduce_world:
        smaller = smaller_world(context, job, len(free), needed)
        if isinstance(smaller, Smaller):
            incident = replace(
                incident, num_nodes=smaller.nodes, world_plan=smaller.plan, world_options=smaller.options
            )
            incident = with_notes(incident, *smaller.notes)
            return StepResult(Outcome.REDUCED, incident, f"{smaller.nodes} nodes instead of {needed}")
        incident = with_notes(incident, f"not resumed on {len(free)} nodes: {smaller}")
    busy = [node for node in nodes if node not in free]
    if len(free) + len(busy) >= needed:
        return StepResult(
            Outcome.SPARE,
            with_notes(incident, f"no spare is free now: the relaunched job waits in the queue for {needed} nodes"),
            f"queues for {needed} nodes; avoiding {avoid_text}",
        )
    held = [node.name for node in everyone if node.name in tenants_of(context.failure) and serves(node, job)]
    if held and len(nodes) + len(set(held) & avoided) >= needed:
        return StepResult(
            Outcome.TENANT, incident, f"{len(nodes)} nodes for {needed}; a tenant's job holds {', '.join(held)}"
        )
    away = [node for node in everyone if node.name not in avoided and node not in nodes and suits(node, job)]
    if len(nodes) + len(away) >= needed:
        names = ", ".join(node.name for node in away)
        return StepResult(
            Outcome.SPARE,
            with_notes(incident, f"the relaunched job waits in the queue until {names} can be used again"),
            f"queues for {needed} nodes; {names} cannot be used now; avoiding {avoid_text}",
        )
    conclusion = (
        f"The job needs {needed} node{'s' if needed != 1 else ''}; without {avoid_text} the cluster has "
        f"{len(nodes)} that could take it."
    )
    return StepResult(Outcome.IMPOSSIBLE, replace(incident, conclusion=conclusion), conclusion)


def excluded(context: StepContext) -> tuple[NodeName, ...]:
    """Nodes that the next attempt avoids: the job's own wish and what this incident found."""
    return tuple(dict.fromkeys((*context.failure.job.excluded_nodes, *context.incident.excluded_nodes)))
