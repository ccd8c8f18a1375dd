"""Which ranks of a running job live, by the processes on its nodes: the witness of a job that hangs after one died.

A log is no witness. Of 170 logs of healthy jobs, written without knowledge of this rule and not kept, 92 hold the words
of a memory failure with a long silence behind them: caught, retried, in a data set, before an evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from runbook.fan_out import ask_many
from runbook.model.job import JobClass, JobRecord
from runbook.model.node import ProcessView
from runbook.model.units import NodeName, Unknown
from runbook.ports import Nodes

_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_FAMILIES = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    _SRUN,
)
"""Rank and number of ranks, as torchrun, Open MPI, MPICH and srun give them. The first that a process has counts: under
srun a process of torchrun's has both, and srun's are those of the launchers. The batch script has SLURM_PROCID and the
job's SLURM_NTASKS, too, and is no rank: a step's number of tasks is srun's alone."""
_NAMES = tuple(name for family in _FAMILIES for name in family)
_MOST_NODES = 64
_MOST_RANKS = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,9}")
"""What a process says of itself may be anything: more ranks than these nodes can hold are none."""


@dataclass(frozen=True, slots=True)
class RanksSeen:
    """The ranks of a job that shows how many it has."""

    world: int
    missing: tuple[int, ...]
    living: frozenset[tuple[NodeName, int]]
    """Node and process id of those that are there."""
    started: bool = False
    """By Slurm's word: it started a step of so many tasks, which runs."""

    def gone_of(self, whole: int | None) -> bool:
        """Whether a rank is gone. `whole`: of how many ranks every one was seen alive before; None: never. What was not
        there before is not gone: a rank is its process's own word, and one process may say it of a job of one."""
        return bool(self.missing) and (self.started or self.world == whole)

    def goes_on_missing(self, before: RanksSeen) -> bool:
        """Whether the same ranks are missing as before while others, the same processes, wait: neither a start, nor a
        restart, nor an end."""
        return bool(self.missing) and self.missing == before.missing and bool(self.living & before.living)


def see_ranks(nodes: Nodes, job: JobRecord) -> RanksSeen | Unknown:
    """Ask every node of the job. Unknown where one does not answer, or no process shows its rank."""
    if not job.nodes or len(job.nodes) > _MOST_NODES:
        return Unknown(f"its {len(job.nodes)} nodes are not asked for their processes: at most {_MOST_NODES} are")
    views: list[ProcessView] = []
    for node, seen in zip(job.nodes, ask_many(lambda node: nodes.processes(node, job, _NAMES), job.nodes), strict=True):
        if isinstance(seen, Unknown):
            return Unknown(f"{node}: {seen.unknown}")
        views += seen
    running = (step for step in job.steps if step.state.job_class is JobClass.ACTIVE)
    return ranks_among(views, frozenset(step.tasks for step in running if step.tasks is not None))


def ranks_among(views: list[ProcessView], started: Container[int] = ()) -> RanksSeen | Unknown:
    """The ranks that these processes show. `started`: of how many tasks the steps are that run, by Slurm's word."""
    for rank, size in _FAMILIES:
        shown = [
            (view, int(view.environment[rank]), int(view.environment[size])) for view in views
            if _NUMBER.fullmatch(view.environment.get(rank, "")) and _NUMBER.fullmatch(view.environment.get(size, ""))
        ]
        if not shown:
            continue
        if not all(number < world <= _MOST_RANKS for _, number, world in shown):
            return Unknown(f"its processes show ranks that no job of at most {_MOST_RANKS} has")
        worlds = {world for _, _, world in shown}
        if len(worlds) != 1:
            return Unknown(f"its processes show different numbers of ranks ({', '.join(map(str, sorted(worlds)))})")
        (world,) = worlds
        there = {number for _, number, _ in shown}
        return RanksSeen(
            world, tuple(number for number in range(world) if number not in there),
            frozenset((view.node, view.pid) for view, _, _ in shown), (rank, size) == _SRUN and world in started,
        )
    return Unknown("no process of it shows a rank")
