"""May a leaked process be ended? Only where nothing at all speaks against it.

Every condition must hold, and what is not known does not hold. A process that no Slurm job is known for is never
ended: nobody can tell a leak from somebody's work beside Slurm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.model.job import NodeState
from runbook.model.node import GpuProcess
from runbook.model.units import JobId, Unknown

HELPERS = frozenset(
    {
        "nv-hostengine", "dcgm-exporter", "nvidia-dcgm", "nvidia-persistenced", "nv-fabricmanager",
        "nvidia-fabricmanager", "nvidia-imex", "nvsm_core", "nvidia-smi", "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server", "Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland",
    }
)
"""Programs of the driver, of monitoring and of displays. `dcgmproftester` is none: it loads a GPU on purpose."""

SECOND_LOOK_S = 10.0
_STEP = re.compile(
    r"/(?:slurm[^/]*/uid_\d+|[^/]*slurmstepd\.scope)/job_(?P<job>\d+)/step_(?P<step>\d+|batch)(?:/|$)"
)
"""Of Slurm's own cgroups only: below those that a user may make, any name can stand."""
_ROOT = frozenset({"root", "0"})
_QUIET = frozenset({"IDLE", "DRAINED"})
_WORKING = frozenset({"ALLOCATED", "ALLOC", "MIXED", "COMPLETING", "COMP", "DRAINING", "SUSPENDED"})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the scheduler and the inventory say around a process that may be leaked."""

    allowed: bool
    """`policy.may_end_leaked_processes` of the inventory."""
    live_jobs: frozenset[JobId] | None
    node_state: NodeState | None
    partial_view: str = ""


def end_refused(process: GpuProcess, around: Surroundings) -> tuple[str, ...]:
    """Why the process must not be ended, by one look; () where only the second look is still missing."""
    reasons: list[str] = []
    if not around.allowed:
        reasons.append("the inventory does not allow it (policy.may_end_leaked_processes)")
    if around.partial_view:
        reasons.append(f"the node was not seen whole: {around.partial_view}")
    if isinstance(process.owner, Unknown) or process.owner in _ROOT:
        reasons.append("its owner is root or not known")
    if is_helper_program(process.name):
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


def is_helper_program(name: str) -> bool:
    """Whether a process's name, or its command line, is that of one of `HELPERS`."""
    words = name.split()
    return bool(words) and words[0].rsplit("/", 1)[-1] in HELPERS


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
