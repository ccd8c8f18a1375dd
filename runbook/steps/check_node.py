"""Check the node over SSH: GPU faults in the job's window, and who else sits on its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from runbook.diagnosis.nodes import FailureClues, SchedulerView, judge_node
from runbook.errors import RunbookError
from runbook.fan_out import Progress, check_many
from runbook.model.job import NodeState
from runbook.model.log import Finding
from runbook.model.node import NodeAction, NodeFacts, NodeJudgement, NodeVerdict, Reach, Reports
from runbook.model.units import JobId, NodeName
from runbook.steps.reduce_world import serves
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.nodes import found_jobs, job_window, live_jobs, node_policy, with_expected_gpus

SETTLE_S = 20.0
"""Memory in use by no process may be that of the job's own, just ending: after this they are gone, or it stays."""
_MOST_CHECKED = 16
"""Nodes to check when the failing rank's node is not known."""


class Outcome(StrEnum):
    CLEAN = "clean"
    FAULTY = "faulty"
    OCCUPIED = "occupied"
    UNKNOWN = "unknown"


def run(context: StepContext) -> StepResult:
    """Fill `failure.nodes` and `failure.judgements`. An unreachable node is unknown, never clean."""
    names, note = _nodes_to_check(context)
    if not names:
        return StepResult(
            Outcome.UNKNOWN, with_notes(context.incident, note or "no node is known to check"), "no node is known"
        )
    states, facts, judgements = look(context, names)
    whole = {fact.node for fact in facts if not fact.partial_view}
    doubtful = tuple(one.node for one in judgements if one.node in whole and _may_only_be_ending(context, one))
    if doubtful:
        context.tell(f"{', '.join(doubtful)}: memory in use by no process; looking again in {SETTLE_S:.0f} s")
        context.ports.clock.sleep(SETTLE_S)
        _, later, rejudged = look(_with_the_job_as_it_is(context), doubtful)
        facts = tuple(next((one for one in later if one.node == fact.node), fact) for fact in facts)
        judgements = tuple(next((one for one in rejudged if one.node == old.node), old) for old in judgements)
    failure = replace(context.failure, nodes=facts, judgements=judgements, node_states=states)
    left = (f"{fact.node}: {fact.reach_detail}" for fact in facts if fact.left_by_epilog)
    incident = with_notes(replace(context.incident, failure=failure), note, *left)
    outcome = _worst(judgements)
    return StepResult(outcome, incident, "; ".join(_sentence(judgement) for judgement in judgements))


def look(
    context: StepContext, names: Sequence[NodeName]
) -> tuple[tuple[NodeState, ...], tuple[NodeFacts, ...], tuple[NodeJudgement, ...]]:
    """One look at these nodes, for the failure under work: as the scheduler sees them, their facts, the judgement."""
    since_s, until_s = job_window(context.failure.job)
    facts = check_many(
        context.ports.nodes, names, since_s=since_s, until_s=until_s, limit=context.settings.nodes.fan_out,
        on_done=Progress(len(names), context.tell),
    )
    states = context.ports.scheduler.nodes(tuple(names))
    facts = with_expected_gpus(facts, states, context.settings.nodes.gpus_per_node)
    live = _live_jobs(context, facts)
    spare = _spare_nodes(context, live)
    by_name = {state.name: state for state in states}
    return states, facts, tuple(
        _judge(context, fact, SchedulerView(live, by_name.get(fact.node), spare)) for fact in facts
    )


def _may_only_be_ending(context: StepContext, judgement: NodeJudgement) -> bool:
    rules = context.playbook.node.rules
    return any(
        finding.action is NodeAction.UNKNOWN and Reports.HIDDEN_MEMORY in rules.reports(finding.rule)
        for finding in judgement.findings
    )


def _with_the_job_as_it_is(context: StepContext) -> StepContext:
    """The job's end may have come since it was read; the incident keeps what it knows of the failure."""
    job = context.failure.job
    try:
        ended_s = context.ports.scheduler.job(job.id).end_time_s
    except RunbookError:
        return context
    if ended_s is None:
        return context
    failure = replace(context.failure, job=replace(job, end_time_s=ended_s))
    return replace(context, incident=replace(context.incident, failure=failure))


def look_again(context: StepContext, names: Sequence[NodeName]) -> tuple[NodeJudgement, ...]:
    """How these nodes look now, for whoever wants to give them back. Nothing is recorded, and no job's own processes
    or tenants are looked up."""
    job = context.failure.job
    facts = (
        context.ports.nodes.check(name, since_s=job.start_time_s, until_s=context.ports.clock.now()) for name in names
    )
    # What an epilog left when the job ended tells nothing of how the node looks now.
    now = (
        replace(fact, reach=Reach.ERROR) if fact.left_by_epilog else fact for fact in facts
    )
    states = context.ports.scheduler.nodes(tuple(names))
    counted = with_expected_gpus(now, states, context.settings.nodes.gpus_per_node)
    return tuple(_judge(context, fact, SchedulerView()) for fact in counted)


def _nodes_to_check(context: StepContext) -> tuple[tuple[NodeName, ...], str]:
    story = context.failure.story
    cause = story.root_cause if story else None
    nodes = context.failure.job.nodes
    if cause is not None and cause.node:
        own = context.failure.job.own_node(cause.node)
        if own is not None:
            return (own,), ""
        if context.incident.trigger == "files":
            return (cause.node,), ""  # nothing is contacted then
    if not nodes:
        # A log can name any host; none is contacted on its word alone.
        return (), "the scheduler names no node of the job"
    if len(nodes) > _MOST_CHECKED:
        return nodes[:_MOST_CHECKED], (
            f"the log does not tell the failing rank's node; {_MOST_CHECKED} of the job's {len(nodes)} nodes were "
            "checked"
        )
    return nodes, "the log does not tell the failing rank's node; all nodes of the job were checked"


def _live_jobs(context: StepContext, facts: tuple[NodeFacts, ...]) -> frozenset[JobId] | None:
    """Which jobs of the processes found there have not ended: a tenant of an ended job is a leak. None: not known."""
    return live_jobs(found_jobs(context.ports.scheduler, facts))


def _spare_nodes(context: StepContext, live: frozenset[JobId] | None) -> bool | None:
    """Whether the job could run without one of its nodes. Asked only where a tenant's job runs."""
    job = context.failure.job
    if not live or live <= {job.id}:
        return None
    needed = job.num_nodes or len(job.nodes) or 1
    try:
        serving = [node for node in context.ports.scheduler.nodes() if serves(node, job)]
    except RunbookError:
        return None
    return len(serving) > needed


def _judge(context: StepContext, facts: NodeFacts, scheduler: SchedulerView) -> NodeJudgement:
    story = context.failure.story
    cause = story.root_cause if story else None
    on_this_node = cause is not None and (cause.node is None or cause.node == facts.node)
    here = cause if on_this_node else None
    clues = FailureClues(
        oom_device=_own_index(here),
        node_device=here.node_device if here is not None else None,
        named_pids=frozenset(use.pid for use in here.fields.other_processes) if here is not None else frozenset(),
        own_pids=frozenset(story.rank_pids.values()) if story else frozenset(),
    )
    policy = node_policy(context.settings.policy)
    return judge_node(facts, context.failure.job, context.playbook.node, policy, clues, scheduler)


def _own_index(cause: Finding | None) -> int | None:
    """The failing GPU as the job numbers its GPUs. A process that was given one GPU alone calls it 0, whichever it
    is: 0 tells something of the process with local rank 0 only."""
    if cause is None or cause.device is None:
        return None
    if cause.local_rank is None:
        return cause.device or None
    return cause.device if cause.device == cause.local_rank else None


def _worst(judgements: tuple[NodeJudgement, ...]) -> Outcome:
    verdicts = {judgement.verdict for judgement in judgements}
    for verdict, outcome in (
        (NodeVerdict.FAULTY, Outcome.FAULTY),
        (NodeVerdict.OCCUPIED, Outcome.OCCUPIED),
        (NodeVerdict.UNKNOWN, Outcome.UNKNOWN),
    ):
        if verdict in verdicts:
            return outcome
    return Outcome.CLEAN


def _sentence(judgement: NodeJudgement) -> str:
    reason = (judgement.reasons or judgement.missing or judgement.warnings or ("",))[0]
    return f"{judgement.node}: {judgement.verdict}" + (f" ({reason})" if reason else "")
