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


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One possible cause. `confidence` is in 0..1; those of one diagnosis sum to at most 1."""

    kind: Kind
    confidence: float
    reasons: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Evidence that would settle it."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranked hypotheses, best first."""

    best: Hypothesis
    runners_up: tuple[Hypothesis, ...] = ()
    rules: tuple[str, ...] = ()
    """Names of the rules that were applied, in order ("R-04 perfect defragmentation")."""
