"""The lines a run writes while it goes well, in Megatron-LM's form."""

from __future__ import annotations

import math
import time

import simulation_path  # noqa: F401

# isort: split
from runbook.allocator import CachingAllocator
from simulator.batches import uniform

_MIB = 1 << 20
_WARMUP_ITERATIONS = 20


def iteration_line(
    iteration: int, last_iteration: int, consumed_samples: int, elapsed_s: float, global_batch_size: int, seed: int
) -> str:
    """The progress line; loss and learning rate depend on iteration, samples and seed only."""
    loss = 2.0 + 8.7 * math.exp(-consumed_samples / 6000.0) + 0.05 * uniform(seed, iteration)
    rate = 3.0e-4 * min(1.0, iteration / _WARMUP_ITERATIONS)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    return (
        f" [{stamp}] iteration {iteration:8d}/{last_iteration:8d} | consumed samples: {consumed_samples:12d} | "
        f"elapsed time per iteration (ms): {elapsed_s * 1000:.1f} | learning rate: {rate:.6E} | "
        f"global batch size: {global_batch_size:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | "
        f"grad norm: {1.0 + uniform(seed, iteration, 1):.3f} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    )


def memory_line(rank: int, iteration: int, allocator: CachingAllocator) -> str:
    """The memory of one rank; as in Megatron-LM a "MB" is 2^20 bytes and the peaks are since the start."""
    statistics = allocator.statistics
    return (
        f"[Rank {rank}] (after {iteration} iterations) memory (MB)"
        f" | allocated: {statistics.allocated_bytes.all.current / _MIB:.2f}"
        f" | max allocated: {statistics.allocated_bytes.all.peak / _MIB:.2f}"
        f" | reserved: {statistics.reserved_bytes.all.current / _MIB:.2f}"
        f" | max reserved: {statistics.reserved_bytes.all.peak / _MIB:.2f}"
    )
