"""Who else holds memory on the job's GPUs: neighbours, leaked processes, and memory that no process owns.

The check comes after the job was cancelled, so that its own processes may be gone or just going: they are never
tenants. Whose a process is comes from its cgroup, its owner and its age; where that cannot be read, it is said so.
"""

from __future__ import annotations

from collections.abc import Iterable

from runbook.diagnosis.nodes_signs import JobGpus, NodePolicy, Sign, Weight, gpu_name, size
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, GpuProcess, NodeFacts
from runbook.model.units import JobId, Unknown

HELPERS = frozenset(
    {
        "nv-hostengine", "dcgm-exporter", "nvidia-dcgm", "nvidia-persistenced", "nv-fabricmanager",
        "nvidia-fabricmanager", "nvidia-imex", "nvsm_core", "nvidia-smi", "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server", "Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland",
    }
)
"""Programs of the driver, of monitoring and of displays. `dcgmproftester` is none: it loads a GPU on purpose."""

_START_SLACK_S = 10.0


def tenant_signs(
    facts: NodeFacts,
    job: JobRecord,
    gpus: JobGpus,
    policy: NodePolicy,
    live_jobs: frozenset[JobId] | None,
    named_pids: frozenset[int] = frozenset(),
) -> tuple[list[tuple[GpuProcess, Sign]], list[Sign]]:
    """Tenants with a sentence each, those of the failing GPU first, then the largest; and what is not a tenant but
    must be said. `live_jobs` None: which jobs run is not known. `named_pids`: processes that the error message itself
    lists on the GPU that ran out of memory."""
    tenants: list[tuple[GpuProcess, Sign]] = []
    others: list[Sign] = []
    for gpu in () if isinstance(facts.gpus, Unknown) else facts.gpus:
        if not gpus.counts(gpu.index) or isinstance(gpu.processes, Unknown):
            continue
        for process in gpu.processes:
            weight, text = _judge(process, facts, job, gpus, policy, live_jobs, process.pid in named_pids)
            if not text:
                continue
            sign = Sign(weight or Weight.WARN, f"{gpu_name(gpu)}: {text}", gpu.index, "co-tenant")
            if weight is None:
                tenants.append((process, sign))
            else:
                others.append(sign)
        others += _hidden(gpu, policy)
    tenants.sort(key=lambda pair: (pair[1].gpu != gpus.failing, -_bytes(pair[0])))
    return tenants, others


def _judge(
    process: GpuProcess, facts: NodeFacts, job: JobRecord, gpus: JobGpus, policy: NodePolicy,
    live_jobs: frozenset[JobId] | None, named: bool,
) -> tuple[Weight | None, str]:
    """(None, sentence) for a tenant, (weight, sentence) for something to say, (NOTE, "") for nothing."""
    used = process.used_bytes
    if process.job == job.id:
        return Weight.WARN, f"process {process.pid} of the job itself is still there{_held(process)}"
    if _is_helper(process, policy) or used == 0:
        return Weight.NOTE, ""
    if isinstance(process.owner, Unknown) and isinstance(process.job, Unknown):
        return Weight.UNDETERMINED, (
            f"process {process.pid} ({_short(process.name)}){_held(process)} is nobody's as far as can be seen: "
            f"{process.owner.unknown}"
        )
    mine = process.owner == job.owner and _started_after(process, facts, job)
    described = _described(process)
    if mine and (isinstance(process.job, Unknown) or (process.job is not None and not job.id.isdecimal())):
        whose = process.job.unknown if isinstance(process.job, Unknown) else f"it is in Slurm job {process.job}"
        return Weight.WARN, (
            f"{described} started during the job and belongs to its owner; perhaps the job's own leftover ({whose})"
        )
    if isinstance(used, Unknown):
        return Weight.UNDETERMINED, f"{described}: how much memory it holds is not known ({used.unknown})"
    if isinstance(process.job, Unknown):
        return None, f"{described}; its Slurm job is not known ({process.job.unknown})"
    if process.job is None:
        own = " (started during the job by its owner: perhaps the job's own leftover)" if mine else ""
        return None, f"{described} belongs to no Slurm job: leaked, or started beside Slurm{own}"
    if live_jobs is not None and process.job not in live_jobs:
        return None, f"{described} is leaked: its Slurm job {process.job} has ended"
    if not named and not gpus.whole_node and gpus.indexes is None:
        return Weight.WARN, (
            f"{described} of Slurm job {process.job}: a neighbour; which GPUs of the node this job had is not known"
        )
    state = "" if live_jobs is None else ", which is running"
    by_message = "; the error message names it on the GPU that ran out of memory" if named else ""
    return None, f"{described} of Slurm job {process.job}{state}{by_message}"


def _hidden(gpu: GpuFacts, policy: NodePolicy) -> Iterable[Sign]:
    if isinstance(gpu.used_bytes, Unknown) or isinstance(gpu.processes, Unknown):
        return
    known = [process.used_bytes for process in gpu.processes if not isinstance(process.used_bytes, Unknown)]
    if len(known) != len(gpu.processes):
        return
    hidden = gpu.used_bytes - sum(known)
    if hidden <= policy.hidden_memory_bytes + policy.context_bytes * len(known):
        return
    yield Sign(
        Weight.DRAIN if policy.drain_on_hidden_memory else Weight.WARN,
        f"{gpu_name(gpu)}: {size(hidden)} are in use by no process that nvidia-smi lists (hidden memory: a process "
        "that is just ending, a dead one whose memory was not given back, or another namespace); if it stays, the GPU "
        "needs a reset",
        gpu.index,
        "memory in use without a process",
    )


def _is_helper(process: GpuProcess, policy: NodePolicy) -> bool:
    words = process.name.split()
    name = words[0].rsplit("/", 1)[-1] if words else ""
    small = isinstance(process.used_bytes, Unknown) or process.used_bytes < policy.helper_bytes
    return name in HELPERS and small


def _started_after(process: GpuProcess, facts: NodeFacts, job: JobRecord) -> bool:
    if isinstance(process.age_s, Unknown) or facts.checked_at_s is None or job.start_time_s is None:
        return False
    return facts.checked_at_s - process.age_s >= job.start_time_s - _START_SLACK_S


def _described(process: GpuProcess) -> str:
    owner = "of an owner that is not known" if isinstance(process.owner, Unknown) else f"of {process.owner}"
    age = "" if isinstance(process.age_s, Unknown) else f", {_duration(process.age_s)} old"
    return f"process {process.pid} ({_short(process.name)}) {owner}{_held(process)}{age}"


def _held(process: GpuProcess) -> str:
    return "" if isinstance(process.used_bytes, Unknown) else f" with {size(process.used_bytes)}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _bytes(process: GpuProcess) -> int:
    return 0 if isinstance(process.used_bytes, Unknown) else process.used_bytes
