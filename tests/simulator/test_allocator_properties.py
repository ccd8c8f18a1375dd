"""What holds for the allocator whatever is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.allocator import AllocationFailedError, AllocatorConfig, Block, CachingAllocator, GpuMemory

MIB = 1 << 20
CAPACITY_BYTES = 1 << 30

configs = st.builds(
    AllocatorConfig,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([1 << 62, 64 * MIB, 256 * MIB]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.6]),
    roundup_power2_divisions=st.sampled_from([0, 4]),
    per_process_memory_fraction=st.sampled_from([None, 0.8]),
)
sizes = st.one_of(
    st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(MIB, 40 * MIB), st.integers(10 * MIB, 500 * MIB)
)
#: A size allocates; a number below 1 frees the block at that place among the live ones; None empties the cache.
actions = st.lists(st.one_of(sizes, st.integers(-1000, 0), st.none()), max_size=120)


@dataclass(frozen=True)
class Outcome:
    """What a sequence of actions led to."""

    allocator: CachingAllocator
    memory: GpuMemory
    live: list[Block]
    trace: list[int]


def play(config: AllocatorConfig, sequence: list[int | None], check: bool = False) -> Outcome:
    memory = GpuMemory(CAPACITY_BYTES)
    allocator = CachingAllocator(memory, config)
    live: list[Block] = []
    trace: list[int] = []
    for action in sequence:
        if action is None:
            allocator.empty_cache()
        elif action <= 0:
            if live:
                allocator.free(live.pop(-action % len(live)))
        else:
            try:
                block = allocator.allocate(action)
            except AllocationFailedError as error:
                assert error.free_bytes == memory.free_bytes()
                trace.append(-error.tried_bytes)
            else:
                assert block.size_bytes >= action
                live.append(block)
                trace.append(block.address)
        if check:
            check_invariants(allocator, memory, live)
    return Outcome(allocator, memory, live, trace)


def check_invariants(allocator: CachingAllocator, memory: GpuMemory, live: list[Block]) -> None:
    blocks = allocator.blocks()
    for before, after in pairwise(blocks):
        assert before.address + before.size_bytes <= after.address, "blocks overlap"
        if before.next is after:
            assert before.allocated or after.allocated, "free neighbours are not merged"
    allocated_bytes = sum(block.size_bytes for block in blocks if block.allocated)
    assert {block.address for block in blocks if block.allocated} == {block.address for block in live}
    assert allocated_bytes == allocator.allocated_bytes
    assert sum(block.size_bytes for block in blocks) == allocator.reserved_bytes == memory.used_bytes
    assert allocator.allocated_bytes <= allocator.reserved_bytes <= memory.total_bytes
    if allocator.allowed_bytes is not None and not allocator.config.expandable_segments:
        assert allocator.reserved_bytes <= allocator.allowed_bytes
    split_bytes = sum(b.size_bytes for b in blocks if not b.allocated and b.segment is None and b.is_split())
    assert split_bytes == allocator.statistics.inactive_split_bytes.all.current


@settings(max_examples=150, deadline=None)
@given(configs, actions)
def test_the_books_balance_after_every_action(config: AllocatorConfig, sequence: list[int | None]) -> None:
    play(config, sequence, check=True)


@settings(max_examples=100, deadline=None)
@given(configs, actions)
def test_free_everything_and_everything_goes_back(config: AllocatorConfig, sequence: list[int | None]) -> None:
    outcome = play(config, sequence)
    for block in outcome.live:
        outcome.allocator.free(block)
    assert outcome.allocator.allocated_bytes == 0
    assert all(not block.is_split() or block.segment is not None for block in outcome.allocator.blocks())
    outcome.allocator.empty_cache()
    assert outcome.memory.used_bytes == outcome.allocator.reserved_bytes == 0
    assert outcome.allocator.blocks() == []


@settings(max_examples=60, deadline=None)
@given(configs, actions)
def test_the_same_requests_get_the_same_addresses(config: AllocatorConfig, sequence: list[int | None]) -> None:
    assert play(config, sequence).trace == play(config, sequence).trace


@settings(max_examples=60, deadline=None)
@given(actions)
def test_a_request_fails_only_if_it_does_not_fit(sequence: list[int | None]) -> None:
    """After a failure no cached segment is left whole: what is unallocated is held by its neighbours."""
    memory = GpuMemory(CAPACITY_BYTES)
    allocator = CachingAllocator(memory)
    live: list[Block] = []
    for action in sequence:
        if action is not None and action > 0:
            try:
                live.append(allocator.allocate(action))
            except AllocationFailedError as error:
                assert error.free_bytes < error.tried_bytes
                assert all(block.allocated or block.is_split() for block in allocator.blocks())
        elif live and action is not None:
            allocator.free(live.pop(-action % len(live)))
