"""The judgement on a failure. Shapes are those of the diagnosis contract."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    TRUE_OOM = "true_oom"
    FRAGMENTATION = "fragmentation"
    CO_TENANT = "co_tenant"
    INFERENCE_RESERVATION = "inference_reservation"
    KV_CACHE_SIZING = "kv_cache_sizing"
    NCCL_BUFFERS = "nccl_buffers"
    PER_PROCESS_LIMIT = "per_process_limit"
    MEMORY_LEAK = "memory_leak"
    CUDA_CONTEXT_OR_DRIVER = "cuda_context_or_driver"
    HOST_OOM = "host_oom"
    SHM = "shm"
    HARDWARE_FAULT = "hardware_fault"
    NOT_OOM = "not_oom"
    UNDETERMINED = "undetermined"


class Detail(StrEnum):
    """What kind of its kind a diagnosis is. It chooses between levers that a kind alone leaves open."""

    STATIC = "static"
    """true_oom: before or within the first steps, so a size is wrong from the start."""
    GROWN = "grown"
    """true_oom: after completed steps."""
    IMPOSSIBLE_REQUEST = "impossible_request"
    """true_oom: one request larger than the card."""
    PRIVATE_POOLS = "private_pools"
    """true_oom: memory in pools of CUDA graphs, which only they may use again."""
    SEQUENCE_LENGTH = "sequence_length"
    """true_oom: memory follows the length of sequences, as tokens or lengths in the log show."""
    RAISE_SHARE = "raise_share"
    """kv_cache_sizing: the engine's share is too small; lowering it makes it worse."""
    LOWER_SHARE = "lower_share"
    """kv_cache_sizing, inference_reservation: the engine's share is too large for what else the card must hold."""
    RUN_TIME = "run_time"
    """kv_cache_sizing: the cache ran out of tokens while serving; fewer or shorter requests."""
    NCCL = "nccl"
    """nccl_buffers: NCCL's own allocation was refused."""
    LIBRARY = "library"
    """nccl_buffers: a handle or workspace of cuBLAS, cuDNN or the like."""
    OUTSIDE = "outside"
    """nccl_buffers: this process holds memory outside the caching allocator, whose it is not known."""
    RANKS_SHARE_GPU = "ranks_share_gpu"
    """cuda_context_or_driver: several ranks of the job made their context on one GPU."""
    CGROUP = "cgroup"
    """host_oom: the job's own limit."""
    NODE = "node"
    """host_oom: the node as a whole."""
    RAY_MONITOR = "ray_monitor"
    """host_oom: Ray killed workers before the kernel would."""
    PINNED = "pinned"
    """host_oom: pinned memory could not be had."""
    REFUSED = "refused"
    """host_oom: an allocation was refused (address space, overcommit, ulimit), nothing was killed."""
    NCCL_SEGMENT = "nccl_segment"
    """shm: NCCL's segments."""
    DATA_LOADER = "data_loader"
    """shm: tensors of data loading workers."""
    OBJECT_STORE = "object_store"
    """shm: Ray's object store."""
    HANG = "hang"
    """not_oom: ranks waited for one another until a timeout."""
    PROGRAM = "program"
    """not_oom: an exception of the program."""
    CONFIGURATION = "configuration"
    """not_oom: settings that exclude one another."""
    STOPPED = "stopped"
    """not_oom: time limit, cancellation, preemption."""
    FINISHED = "finished"
    """not_oom: the job ran to its end."""
    NONE = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One possible cause. `confidence` is in 0..1; those of one diagnosis sum to at most 1."""

    kind: Kind
    confidence: float
    reasons: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Evidence that would settle it."""
    detail: Detail = Detail.NONE

    @property
    def as_objection(self) -> str:
        """What it says against another hypothesis: "true_oom: …"; "" where it has no reason."""
        return f"{self.kind.value}: {self.reasons[0]}" if self.reasons else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranked hypotheses, best first."""

    best: Hypothesis
    runners_up: tuple[Hypothesis, ...] = ()
    rules: tuple[str, ...] = ()
    """Names of the rules that were applied, in order ("R-04 perfect defragmentation")."""
