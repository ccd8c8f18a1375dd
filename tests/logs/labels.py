"""Labels of logs by people who do not know the tool's words: which of its answers are theirs."""

from __future__ import annotations

from collections.abc import Callable

_GPU = frozenset({
    "true_oom", "inference_reservation", "kv_cache_sizing", "nccl_buffers", "per_process_limit", "memory_leak",
    "cuda_context_or_driver",
})
RIGHT = {
    "gpu_oom": _GPU, "gpu_fragmentation": {"fragmentation"}, "gpu_cotenant": {"co_tenant"},
    "host_oom": {"host_oom", "memory_leak"}, "shm": {"shm"}, "disk_full": {"not_oom"},
    "not_oom": {"not_oom", "hardware_fault"}, "undetermined": {"undetermined"},
}
"""Which kinds of the tool answer a label's, in words that somebody wrote who did not know them."""
FIGURES = {
    "asked_bytes": "tried_bytes", "total_bytes": "capacity_bytes", "free_bytes": "free_bytes",
    "allocated_bytes": "allocated_bytes", "reserved_bytes": "reserved_bytes", "limit_bytes": "limit_bytes",
    "reserved_unallocated_bytes": "reserved_unallocated_bytes",
}
_AS_WELL = {"allocated_bytes": ("process_bytes",)}
"""A writer's word for what a process holds, whether its allocator or the system counts it."""
_TOLERANCE = 0.02


def same_figure(name: str, value: int, read: Callable[[str], int | None]) -> bool:
    """Whether a label's figure is what was read, by the name that the tool has for it, within the print's rounding."""
    fields = (FIGURES[name], *_AS_WELL.get(name, ())) if name in FIGURES else (name,)
    return any((got := read(field)) is not None and abs(got - value) <= _TOLERANCE * value for field in fields)
