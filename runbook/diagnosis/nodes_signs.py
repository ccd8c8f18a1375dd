"""What the judgement on a node is made of: one sign per finding, each with the weight that its rule gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, NodeFacts
from runbook.model.units import GIB, Bytes, Unknown


class Weight(IntEnum):
    """What a sign does to the verdict, the heaviest first."""

    DRAIN = 5
    """The rule says drain."""
    ELSEWHERE = 4
    """Hardware hit the job; the next run goes to another node, the node itself is not drained."""
    UNDETERMINED = 3
    """Something that nobody can read or judge from here: the node is neither clean nor faulty."""
    WARN = 2
    NOTE = 1


@dataclass(frozen=True, slots=True)
class Sign:
    """One finding in a sentence. `gpu` is the node's index, None where it concerns the node."""

    weight: Weight
    text: str
    gpu: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a site decides where the vendor leaves a choice. Sizes in bytes."""

    drain_on_pending_reset: bool = False
    drain_on_contained_error: bool = False
    """Xid 94."""
    drain_on_hidden_memory: bool = False
    hidden_memory_bytes: Bytes = Bytes(GIB)
    """Memory in use without a process that is worth a warning; a driver's own use stays below."""
    context_bytes: Bytes = Bytes(GIB // 2)
    """What a CUDA context may take beyond the figure that is listed for its process."""
    helper_bytes: Bytes = Bytes(GIB)
    """Monitoring and display processes below this are no tenants."""


@dataclass(frozen=True, slots=True)
class JobGpus:
    """Which GPUs of the node are the job's. `indexes` None: not known, so that every GPU of the node counts."""

    indexes: frozenset[int] | None
    whole_node: bool
    failing: int | None
    """Node index of the GPU that ran out of memory, where it is known."""

    def counts(self, gpu: int | None) -> bool:
        return gpu is None or gpu < 0 or self.indexes is None or gpu in self.indexes


def job_gpus(
    facts: NodeFacts, job: JobRecord, oom_device: int | None, given: tuple[int, ...] | None
) -> JobGpus:
    """The job's GPUs: as given in CUDA_VISIBLE_DEVICES order, else all of the node where the job had as many.

    `oom_device` is an index into the job's own GPUs; it is the node's index only when the job had the whole node."""
    count = 0 if isinstance(facts.gpus, Unknown) else len(facts.gpus)
    if given is not None:
        failing = given[oom_device] if oom_device is not None and 0 <= oom_device < len(given) else None
        return JobGpus(frozenset(given), set(given) >= set(range(count)), failing)
    whole = job.gpus_per_node is None or job.gpus_per_node >= max(count, facts.expected_gpus or 0)
    return JobGpus(None, whole, oom_device if whole and job.gpus_per_node is not None else None)


def gpu_name(gpu: GpuFacts) -> str:
    if gpu.index < 0:
        return f"the GPU at {gpu.bus_id}" if gpu.bus_id else "a GPU"
    return f"GPU {gpu.index}" + (f" ({gpu.bus_id})" if gpu.bus_id else "")


def size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"


def moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
