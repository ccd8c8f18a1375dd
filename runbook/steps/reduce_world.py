"""Fit the job to the nodes left: a spare if one is free, else fewer nodes with the same global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runbook.checkpoints import choose_checkpoint
from runbook.errors import BadInput, RunbookError
from runbook.host_lists import expand_hosts
from runbook.model.checkpoint import Checkpoint
from runbook.model.incident import Incident, IncidentState
from runbook.model.job import JobEnvironment, JobRecord, NodeClass, NodeState
from runbook.model.log import LogStory
from runbook.model.remedy import Plan
from runbook.model.units import NodeName
from runbook.remedy import LeverContext, Obstacle, Refused, fit_to_nodes, world_options
from runbook.report.vocabulary.sentences import in_words
from runbook.slurm.submit import options_in_force
from runbook.steps.find_checkpoint import list_checkpoints
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.nodes import tenants_of

SMALLEST_SHARE = 2
"""A job is not resumed on fewer than one in so many of its nodes: it would hold them for several times as long."""


@dataclass(frozen=True, slots=True)
class Smaller:
    """A job that can go on with fewer nodes."""

    nodes: int
    plan: Plan
    options: tuple[str, ...]
    """What the submission says anew beside `--nodes`."""
    notes: tuple[str, ...]


def smaller_world(context: StepContext, job: JobRecord, free: int, needed: int) -> Smaller | str:
    """The largest number of nodes, of those that are free, on which the job goes on with the same global batch; or why
    it does not."""
    system = context.template.system
    if system is None:
        return "the framework is not known, so the global batch could not be kept"
    stays = _hindered(context, system.world.stays)
    if stays:
        return stays
    loads = _loads(context)
    if isinstance(loads, str):
        return loads
    least = -(-needed // SMALLEST_SHARE)
    if free < least:
        return f"{free} of {needed} nodes are free, fewer than half"
    template = context.template.told
    assert template is not None
    story = context.failure.story or LogStory(root_cause=None)
    gone = tuple(node for node in context.incident.excluded_nodes)
    first_reason = ""
    for nodes in range(min(free, needed - 1), least - 1, -1):
        plan = fit_to_nodes(LeverContext(template, story, job), nodes, gone)
        options = _options(context, nodes, gone)
        if isinstance(plan, Plan) and not isinstance(options, str):
            fewer = f"not all of the {free} free nodes are used: {first_reason}" if first_reason else ""
            return Smaller(nodes, plan, options, tuple(note for note in (*loads, fewer) if note))
        reason = options if isinstance(options, str) else "" if isinstance(plan, Plan) else in_words(plan.why)
        first_reason = first_reason or reason
    return first_reason


def _loads(context: StepContext) -> tuple[str, ...] | str:
    """What a person should know of the checkpoint's loading with fewer ranks; or why that is refused."""
    system, story = context.template.system, context.failure.story
    found, unread = list_checkpoints(context)
    complete = [checkpoint for checkpoint in found if checkpoint.complete]
    if not found:
        saved = story.progress.saved_steps if story is not None else ()
        if unread or saved:
            why = "; ".join(unread) or f"the log says that step {max(saved)} was saved, and no checkpoint was found"
            return f"whether the checkpoint loads with fewer ranks is not known: {why}"
        return ("no checkpoint was written yet, so none has to be resharded",)
    if not complete:
        return f"no checkpoint is complete ({found[0].path}: {found[0].why})"
    newest = choose_checkpoint(found, world_size_changes=False)
    fitting = choose_checkpoint(found, world_size_changes=True)
    assert isinstance(newest, Checkpoint)
    if not isinstance(fitting, Checkpoint):
        return fitting.unknown
    if system is not None and system.checkpoint.reshardable is False:
        return f"{system.title} loads {fitting.path} only with the number of ranks that wrote it"
    if fitting.step != newest.step:
        return (
            f"the newest checkpoint, {newest.path}, is not known to load with fewer ranks"
            f"{f' ({newest.why})' if newest.why else ''}; from {fitting.path} the job would repeat what it has done"
        )
    tied = _hindered(context, system.checkpoint.ties_ranks) if system is not None else ""
    if tied:
        return tied
    limits = f": {fitting.why}" if fitting.why else ""
    return (f"{fitting.path} is loaded by fewer ranks than wrote it{limits}",)


def _hindered(context: StepContext, rules: Sequence[Obstacle]) -> str:
    """The first setting that stands in the way, or whose value is not known; "" where none does."""
    told = context.template.told if rules else None
    for rule in rules if told is not None else ():
        assert told is not None
        holds = told.holds(rule)
        if holds is not False:
            known = "" if holds else "is not known, and may stand in the way: "
            return f"{told.named(rule.parameter)}{' ' if known else ': '}{known}{rule.why}"
    return ""


def _options(context: StepContext, nodes: int, gone: Sequence[NodeName]) -> tuple[str, ...] | str:
    """Options of the first submission, whose totals stand for the nodes that it asked for."""
    incident = context.incident
    job = incident.original.job if incident.original else context.failure.job
    kept = context.template.environment
    try:
        asked = options_in_force(
            job, incident.script.text if incident.script else "",
            kept.variables if isinstance(kept, JobEnvironment) else {},
        )
        wanted = () if "/" in asked.get("nodelist", "/") else expand_hosts(asked["nodelist"])
    except BadInput as error:
        return f"the options of the submission could not be read: {error.what}"
    try:
        return world_options(
            asked, job.num_nodes or len(job.nodes) or 1, nodes, wanted_nodes=wanted, gone=gone,
        )
    except Refused as refused:
        return in_words(refused.refusal.why)


def serves(node: NodeState, job: JobRecord) -> bool:
    """Whether the job could run on the node, now or once it is free."""
    return node.node_class in (NodeClass.AVAILABLE, NodeClass.BUSY) and suits(node, job)


def suits(node: NodeState, job: JobRecord) -> bool:
    """Whether the job could run on the node if that were in service."""
    in_partition = not job.partition or not node.partitions or job.partition in node.partitions
    gpus = job.gpus_per_node is None or node.gpus is None or node.gpus >= job.gpus_per_node
    return in_partition and gpus and not {"FUTURE", "DYNAMIC_FUTURE"} & set(node.states)


def full_size_again(context: StepContext) -> str:
    """What a person is told of a job that goes on with fewer nodes: nothing switches it back by itself. "" for another
    incident."""
    incident = context.incident
    if incident.state is not IncidentState.RECOVERED or incident.num_nodes is None or incident.original is None:
        return ""
    job = incident.original.job
    wanted = job.num_nodes or len(job.nodes)
    missing = wanted - incident.num_nodes
    if missing < 1:
        return ""
    return (
        f"The job goes on with {incident.num_nodes} of {wanted} nodes and is not switched back by itself. "
        f"{_spares(context, incident, job, missing)} To go on with {wanted}: after its next checkpoint cancel it and "
        f"submit {job.command or 'the original template'} again, which was left as it is for {wanted} nodes."
    )


def _spares(context: StepContext, incident: Incident, job: JobRecord, missing: int) -> str:
    plural = "s" if missing != 1 else ""
    try:
        states = context.ports.scheduler.nodes()
    except RunbookError as error:
        return f"Whether {missing} more node{plural} could be had is not known: {error.what}."
    free = [
        state.name for state in states
        if state.node_class is NodeClass.AVAILABLE and serves(state, job) and state.name not in incident.excluded_nodes
    ]
    if len(free) >= missing:
        return f"{len(free)} more could be had now: {', '.join(free[:8])}."
    return f"{missing} more node{plural} could not be had when this was written."


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
    if free and context.settings.policy.may_reduce_world:
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
