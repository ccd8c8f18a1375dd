"""What several boxes and `runbook node` ask of nodes beside the check itself: whose jobs hold a GPU, whom it is
worth to wait for, whether a later look finds the memory free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runbook.config import PolicyDocument
from runbook.diagnosis.nodes import NodePolicy
from runbook.errors import BadInput, NotFound, RunbookError
from runbook.model.incident import Failure
from runbook.model.job import JobRecord, JobState, NodeState
from runbook.model.node import (
    FoundJob,
    JobStanding,
    NodeAction,
    NodeFacts,
    NodeJudgement,
    NodeVerdict,
    Reach,
    Reports,
)
from runbook.model.units import JobId, NodeName, Unknown
from runbook.ports import Scheduler
from runbook.steps.shared.base import StepContext

WINDOW_MARGIN_S = 120.0
"""Kernel clocks, Slurm's and the log's differ a little; a fault just before the start can still be the cause."""


def job_window(job: JobRecord) -> tuple[float | None, float | None]:
    """From when to when the kernel log counts for a job. None: its start or end is not known."""
    since_s = job.start_time_s - WINDOW_MARGIN_S if job.start_time_s is not None else None
    until_s = job.end_time_s + WINDOW_MARGIN_S if job.end_time_s is not None else None
    return since_s, until_s


def with_expected_gpus(
    facts: Iterable[NodeFacts], states: Iterable[NodeState], otherwise: int | None
) -> tuple[NodeFacts, ...]:
    """The facts with how many GPUs each node must have: by Slurm's Gres, else by the inventory."""
    gpus = {state.name: state.gpus for state in states}
    return tuple(replace(fact, expected_gpus=gpus.get(fact.node) or otherwise) for fact in facts)


def found_jobs(scheduler: Scheduler, facts: Sequence[NodeFacts]) -> tuple[FoundJob, ...]:
    """The jobs of the processes found on the nodes' GPUs, and whether each has ended. After the first question that
    the scheduler does not answer, no other is asked."""
    wanted = {
        process.job
        for fact in facts
        if not isinstance(fact.gpus, Unknown)
        for gpu in fact.gpus
        if not isinstance(gpu.processes, Unknown)
        for process in gpu.processes
        if isinstance(process.job, str)
    }
    found: list[FoundJob] = []
    silent = ""
    for job in sorted(wanted):
        if silent:
            found.append(FoundJob(job, JobStanding.UNKNOWN, silent))
            continue
        try:
            state = scheduler.job(job).state
        except NotFound:
            found.append(FoundJob(job, JobStanding.FORGOTTEN))
        except BadInput as error:
            # This id alone: an array's, which stands for several jobs.
            found.append(FoundJob(job, JobStanding.UNKNOWN, error.what))
        except RunbookError as error:
            silent = error.what
            found.append(FoundJob(job, JobStanding.UNKNOWN, silent))
        else:
            standing = JobStanding.ENDED if has_ended(state) else JobStanding.LIVE
            found.append(FoundJob(job, standing, state.name))
    return tuple(found)


def has_ended(state: JobState) -> bool:
    """Only an end that Slurm names ends a job: an unknown state, or one that is still completing, does not."""
    return state.job_class.ended and "COMPLETING" not in state.flags


def live_jobs(found: Iterable[FoundJob]) -> frozenset[JobId] | None:
    """Those that have not ended: a tenant of an ended job is a leak. None: not known."""
    jobs = tuple(found)
    if any(job.standing is JobStanding.UNKNOWN for job in jobs):
        return None
    return frozenset(job.id for job in jobs if job.standing is JobStanding.LIVE)


def node_policy(acts: PolicyDocument) -> NodePolicy:
    """What the inventory decides where the vendor leaves a choice."""
    return NodePolicy(
        drain_on_pending_reset=acts.drain_on_pending_reset,
        drain_on_contained_error=acts.drain_on_contained_error,
        drain_on_hidden_memory=acts.drain_on_hidden_memory,
        may_end_leaked_processes=acts.may_end_leaked_processes,
    )


def tenants_of(failure: Failure) -> dict[NodeName, tuple[JobId, ...]]:
    """Nodes that are to be waited for, by the node check, and the jobs that were found there."""
    return {
        judgement.node: jobs_of(judgement) for judgement in failure.judgements
        if judgement.verdict is NodeVerdict.OCCUPIED and judgement.node not in failure.freed_nodes
        and any(finding.action is NodeAction.WAIT_FOR_TENANT for finding in judgement.findings)
    }


def jobs_of(judgement: NodeJudgement) -> tuple[JobId, ...]:
    """The Slurm jobs of the tenants."""
    return tuple(dict.fromkeys(tenant.job for tenant in judgement.tenants if isinstance(tenant.job, str)))


def is_free(judgement: NodeJudgement, facts: NodeFacts | None, context: StepContext) -> bool:
    """Whether a look found the memory of the job's GPUs in nobody's hands. What it could not read must not be more
    than what the check could not read either."""
    if facts is not None and facts.left_by_epilog:
        return False  # the node does not answer: how it was when the job ended tells nothing of now
    if judgement.verdict in (NodeVerdict.OCCUPIED, NodeVerdict.FAULTY):
        return False
    if facts is None or facts.reach is not Reach.OK or isinstance(facts.gpus, Unknown) or judgement.hidden_bytes:
        return False
    before = next((one for one in context.failure.judgements if one.node == judgement.node), None)
    known = {(one.rule, one.gpu) for one in before.findings} if before is not None else set()
    rules = context.playbook.node.rules
    return not any(
        Reports.MEMORY_IN_DOUBT in rules.reports(one.rule) and (one.rule, one.gpu) not in known
        for one in judgement.findings
    )
