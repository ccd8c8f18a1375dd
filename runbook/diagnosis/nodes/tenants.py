"""Who else holds memory on the job's GPUs: neighbours, leaked processes, and memory that no process owns.

The check comes after the job was cancelled, so that its own processes may be gone or just going: they are never
tenants. Whose a process is comes from its cgroup, its owner and its age; where that cannot be read, it is said so.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

from runbook.diagnosis.nodes.hardware import hidden_sign
from runbook.diagnosis.nodes.signs import FailureClues, JobGpus, Rulebook, SchedulerView, Sign, size
from runbook.model.job import JobRecord, NodeState
from runbook.model.node import GpuFacts, GpuProcess, NodeFacts
from runbook.model.node_rules import Condition, Weight
from runbook.model.units import JobId, Unknown, rough_duration

# May a leaked process be ended? Only where nothing at all speaks against it.
#
# Every condition must hold, and what is not known does not hold. A process that no Slurm job is known for is never
# ended: nobody can tell a leak from somebody's work beside Slurm.

SECOND_LOOK_S = 10.0
_STEP = re.compile(
    r"/(?:slurm[^/]*/uid_\d+|[^/]*slurmstepd\.scope)/job_(?P<job>\d+)/step_(?P<step>\d+|batch)(?:/|$)"
)
"""Of Slurm's own cgroups only: below those that a user may make, any name can stand."""
_ROOT = frozenset({"root", "0"})
_QUIET = frozenset({"IDLE", "DRAINED"})
_WORKING = frozenset({"ALLOCATED", "ALLOC", "MIXED", "COMPLETING", "COMP", "DRAINING", "SUSPENDED"})


@dataclass(frozen=True, slots=True)
class LeakContext:
    """What the scheduler and the inventory say around a process that may be leaked."""

    allowed: bool
    """`policy.may_end_leaked_processes` of the inventory."""
    live_jobs: frozenset[JobId] | None
    node_state: NodeState | None
    partial_view: str = ""
    helpers: frozenset[str] = frozenset()
    """Programs of the driver, of monitoring and of displays."""


def end_refused(process: GpuProcess, around: LeakContext) -> tuple[str, ...]:
    """Why the process must not be ended, by one look; () where only the second look is still missing."""
    reasons: list[str] = []
    if not around.allowed:
        reasons.append("the inventory does not allow it (policy.may_end_leaked_processes)")
    if around.partial_view:
        reasons.append(f"the node was not seen whole: {around.partial_view}")
    if isinstance(process.owner, Unknown) or process.owner in _ROOT:
        reasons.append("its owner is root or not known")
    if is_helper_program(process.name, around.helpers):
        reasons.append("it is a program of the driver, of monitoring or of a display")
    if isinstance(process.start_ticks, Unknown):
        reasons.append("its start time is not known, so that it could be another process by then")
    step = None if isinstance(process.cgroup, Unknown) else _STEP.search(process.cgroup)
    if step is None:
        reasons.append("its cgroup is not that of a step of a Slurm job")
    elif step["job"] != process.job:
        reasons.append("its cgroup and its environment name different jobs, or one task of an array")
    if around.live_jobs is None or not isinstance(process.job, str):
        reasons.append("whether its job still runs is not known")
    elif process.job in around.live_jobs:
        reasons.append(f"its job {process.job} still runs")
    reasons += node_in_use(around.node_state)
    return tuple(reasons)


def is_helper_program(name: str, helpers: Set[str]) -> bool:
    """Whether a process's name, or its command line, is that of one of the helpers."""
    words = name.split()
    return bool(words) and words[0].rsplit("/", 1)[-1] in helpers


def second_look_refused(first: GpuProcess, second: GpuProcess | None, seconds_between: float) -> tuple[str, ...]:
    """Why the second look does not confirm the first: it must be the same process, still in the same place."""
    if second is None:
        return ("it has ended by itself",)
    reasons = []
    if seconds_between < SECOND_LOOK_S:
        reasons.append(f"the two looks are only {seconds_between:.0f} s apart")
    same = (first.pid, first.start_ticks, first.owner, first.cgroup, first.job) == (
        second.pid, second.start_ticks, second.owner, second.cgroup, second.job
    )
    if not same or isinstance(second.start_ticks, Unknown):
        reasons.append("the second look found another process, or less about it")
    return tuple(reasons)


def node_in_use(state: NodeState | None) -> list[str]:
    """Why the node may have jobs. Without any allocation neither its GPUs nor the owner can have a live job there."""
    if state is None:
        return ["whether other jobs run on the node is not known"]
    words = set(state.states)
    if words & _WORKING or not words & _QUIET or (state.gpus_allocated or 0) > 0:
        return ["jobs run on the node, or may"]
    return []


_START_SLACK_S = 10.0


def tenant_signs(
    facts: NodeFacts, job: JobRecord, gpus: JobGpus, book: Rulebook, clues: FailureClues, scheduler: SchedulerView
) -> tuple[list[tuple[GpuProcess, Sign]], list[Sign]]:
    """Tenants with a sentence each, those of the failing GPU first, then the largest; and what is not a tenant but
    must be said."""
    judge = _Judge(facts, job, gpus, book, clues, scheduler)
    tenants: list[tuple[GpuProcess, Sign]] = []
    others: list[Sign] = []
    for gpu in () if isinstance(facts.gpus, Unknown) else facts.gpus:
        if not gpus.counts(gpu.index) or isinstance(gpu.processes, Unknown):
            continue
        for process in gpu.processes:
            one = judge.process(process, gpu)
            if one is None:
                continue
            if one.weight is Weight.OCCUPIED:
                tenants.append((process, one))
            else:
                others.append(one)
        hidden = hidden_sign(gpu, facts, job, book)
        if hidden is not None:
            others.append(hidden)
    tenants.sort(key=lambda pair: (pair[1].gpu != gpus.failing, -_bytes(pair[0])))
    return tenants, others


@dataclass(frozen=True, slots=True)
class _Judge:
    facts: NodeFacts
    job: JobRecord
    gpus: JobGpus
    book: Rulebook
    clues: FailureClues
    scheduler: SchedulerView

    def process(self, process: GpuProcess, gpu: GpuFacts) -> Sign | None:
        """None: nothing to say of it."""
        condition = self._condition(process)
        if condition is None:
            return None
        live = self.scheduler.live_jobs
        return self.book.sign(
            condition, gpu, process=_described(process), pid=process.pid, name=_short(process.name),
            held=_held(process), job=process.job, seconds=f"{SECOND_LOOK_S:.0f}",
            no_owner=_why(process.owner), no_size=_why(process.used_bytes), no_job=_why(process.job),
            standing="" if live is None else ", which has not ended",
            named="; the error message names it on the GPU that ran out of memory" if self._named(process) else "",
        )

    def _condition(self, process: GpuProcess) -> Condition | None:
        job, used = self.job, process.used_bytes
        if process.job == job.id:
            return Condition.PROCESS_OF_JOB
        if self._is_helper(process):
            return Condition.PROCESS_OF_DRIVER
        if used == 0:
            return None
        if isinstance(process.owner, Unknown) and isinstance(process.job, Unknown):
            return Condition.PROCESS_OF_NOBODY_IN_SIGHT
        mine = process.owner == job.owner and _started_after(process, self.facts, job)
        if mine and process.pid in self.clues.own_pids:
            return Condition.PROCESS_NAMED_BY_LOG
        if mine and isinstance(process.job, Unknown):
            return Condition.PROCESS_PERHAPS_LEFT_OVER_OF_UNKNOWN_JOB
        if mine and process.job is not None and not job.id.isdecimal():
            return Condition.PROCESS_PERHAPS_LEFT_OVER
        if isinstance(used, Unknown):
            return Condition.PROCESS_OF_UNKNOWN_SIZE
        if isinstance(process.job, Unknown):
            return Condition.PROCESS_OF_UNKNOWN_JOB
        if process.job is None:
            return Condition.PROCESS_OF_NO_JOB_OF_OWNER if mine else Condition.PROCESS_OF_NO_JOB
        return self._of_a_job(process)

    def _of_a_job(self, process: GpuProcess) -> Condition:
        live = self.scheduler.live_jobs
        if live is not None and process.job not in live:
            around = LeakContext(
                self.book.policy.may_end_leaked_processes, live, self.scheduler.node_state, self.facts.partial_view,
                self.book.rules.helpers,
            )
            refused = end_refused(process, around)
            return Condition.PROCESS_OF_ENDED_JOB if refused else Condition.PROCESS_THAT_MAY_BE_ENDED
        if not self._named(process) and not self.gpus.whole_node and self.gpus.indexes is None:
            return Condition.PROCESS_OF_NEIGHBOUR
        if self.scheduler.spare_nodes is False:
            return Condition.PROCESS_OF_OTHER_JOB_TO_WAIT_FOR
        return Condition.PROCESS_OF_OTHER_JOB

    def _named(self, process: GpuProcess) -> bool:
        return process.pid in self.clues.named_pids

    def _is_helper(self, process: GpuProcess) -> bool:
        small = isinstance(process.used_bytes, Unknown) or process.used_bytes < self.book.policy.helper_bytes
        return is_helper_program(process.name, self.book.rules.helpers) and small


def _why(value: object) -> str:
    return value.unknown if isinstance(value, Unknown) else ""


def _started_after(process: GpuProcess, facts: NodeFacts, job: JobRecord) -> bool:
    if isinstance(process.age_s, Unknown) or facts.checked_at_s is None or job.start_time_s is None:
        return False
    return facts.checked_at_s - process.age_s >= job.start_time_s - _START_SLACK_S


def _described(process: GpuProcess) -> str:
    owner = "of an owner that is not known" if isinstance(process.owner, Unknown) else f"of {process.owner}"
    age = "" if isinstance(process.age_s, Unknown) else f", {rough_duration(process.age_s, hours_from_s=7200.0)} old"
    return f"process {process.pid} ({_short(process.name)}) {owner}{_held(process)}{age}"


def _held(process: GpuProcess) -> str:
    return "" if isinstance(process.used_bytes, Unknown) else f" with {size(process.used_bytes)}"


def _short(name: str) -> str:
    if not name:
        return "unnamed"
    return name if len(name) <= 60 else name[:59] + "…"


def _bytes(process: GpuProcess) -> int:
    return 0 if isinstance(process.used_bytes, Unknown) else process.used_bytes
