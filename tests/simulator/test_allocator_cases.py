"""The allocator's rules, one case each: requests and releases, and the counters that PyTorch would show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runbook.allocator import AllocationFailedError, Block, CachingAllocator, GpuMemory
from simulator.allocator_config import parse_config
from simulator.device import H100_TOTAL_BYTES
from simulator.versions import TorchVersion

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "allocator.json").read_text())


def figures(allocator: CachingAllocator) -> dict[str, int]:
    statistics = allocator.statistics
    return {
        "allocated_bytes": statistics.allocated_bytes.all.current,
        "reserved_bytes": statistics.reserved_bytes.all.current,
        "requested_bytes": statistics.requested_bytes.all.current,
        "inactive_split_bytes": statistics.inactive_split_bytes.all.current,
        "segments": statistics.segment.all.current,
        "free_blocks": sum(not block.allocated for block in allocator.blocks()),
        "num_alloc_retries": statistics.num_alloc_retries,
        "num_ooms": statistics.num_ooms,
    }


@pytest.mark.parametrize("case", CASES, ids=[case["title"] for case in CASES])
def test_allocator(case: dict[str, Any]) -> None:
    memory = GpuMemory(total_bytes=case["capacity_mib"] << 20)
    allocator = CachingAllocator(memory, parse_config(case["config"], TorchVersion.parse(case["version"])))
    blocks: dict[str, Block] = {}
    addresses: dict[str, int] = {}
    for step in case["steps"]:
        if "allocate" in step:
            block = allocator.allocate(step["bytes"])
            blocks[step["allocate"]], addresses[step["allocate"]] = block, block.address
        elif "free" in step:
            allocator.free(blocks[step["free"]])
        elif "fails" in step:
            with pytest.raises(AllocationFailedError) as caught:
                allocator.allocate(step["fails"])
            for name in ("tried_bytes", "free_bytes", "allowed_bytes"):
                if name in step:
                    assert getattr(caught.value, name) == step[name]
        elif "same_address" in step:
            one, other = step["same_address"]
            assert addresses[one] == addresses[other]
        else:
            expected = step["expect"]
            assert {name: figures(allocator)[name] for name in expected} == expected
        assert memory.used_bytes == allocator.reserved_bytes


def test_a_block_cannot_be_freed_twice() -> None:
    allocator = CachingAllocator(GpuMemory(H100_TOTAL_BYTES))
    block = allocator.allocate(1 << 20)
    allocator.free(block)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(block)


def test_statistics_have_the_names_of_torch_cuda_memory_stats() -> None:
    allocator = CachingAllocator(GpuMemory(H100_TOTAL_BYTES))
    block = allocator.allocate(30 << 20)
    flat = allocator.statistics.as_dictionary()
    assert flat["allocated_bytes.all.current"] == flat["allocated_bytes.large_pool.peak"] == 30 << 20
    assert flat["reserved_bytes.small_pool.current"] == 0
    assert flat["num_alloc_retries"] == flat["num_ooms"] == 0
    allocator.free(block)
    allocator.statistics.reset_peaks()
    assert allocator.statistics.as_dictionary()["allocated_bytes.all.peak"] == 0
    allocator.empty_cache()
    assert allocator.statistics.as_dictionary()["segment.all.current"] == 0
