"""What a node check asks besides the node itself: shared by the box `check_node` and by `runbook node`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runbook.diagnosis.nodes.judgement import NodePolicy
from runbook.errors import BadInput, NotFound, RunbookError
from runbook.model.job import JobRecord, JobState, NodeState
from runbook.model.node import FoundJob, JobStanding, NodeFacts
from runbook.model.units import JobId, Unknown
from runbook.ports import Scheduler
from runbook.settings import ActSettings

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


def node_policy(acts: ActSettings) -> NodePolicy:
    """What the inventory decides where the vendor leaves a choice."""
    return NodePolicy(
        drain_on_pending_reset=acts.drain_on_pending_reset,
        drain_on_contained_error=acts.drain_on_contained_error,
        drain_on_hidden_memory=acts.drain_on_hidden_memory,
        may_end_leaked_processes=acts.may_end_leaked_processes,
    )
