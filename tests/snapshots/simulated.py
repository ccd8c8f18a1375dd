"""Simulated snapshots: a job's allocations through the model of the allocator, written as PyTorch writes them.

No GPU had a part in them: sizes, addresses and stacks are made up here, and the pickle says so in its settings."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runbook.allocator import AllocationFailedError, AllocatorConfig, Block, CachingAllocator, GpuMemory

_SITE = "/opt/env/lib/python3.12/site-packages"
FORWARD = (
    ("linear", f"{_SITE}/torch/nn/modules/linear.py", 125), ("attend", "/home/ada/train/model.py", 88),
    ("forward", "/home/ada/train/model.py", 120), ("_call_impl", f"{_SITE}/torch/nn/modules/module.py", 1784),
    ("main", "/home/ada/train/train.py", 40),
)
BACKWARD = (
    ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0),
    ("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0),
)
OPTIMIZER = (
    ("_init_group", f"{_SITE}/torch/optim/adamw.py", 171), ("step", f"{_SITE}/torch/optim/adamw.py", 220),
    ("wrapper", f"{_SITE}/torch/optim/optimizer.py", 526), ("main", "/home/ada/train/train.py", 44),
)
WEIGHTS = (
    ("convert", f"{_SITE}/torch/nn/modules/module.py", 1355), ("to", f"{_SITE}/torch/nn/modules/module.py", 1369),
    ("main", "/home/ada/train/train.py", 22),
)
LOGGING = (("remember", "/home/ada/train/metrics.py", 9), ("main", "/home/ada/train/train.py", 46))
Call = tuple[tuple[str, str, int], ...]


@dataclass
class SimulatedJob:
    """One process on one device; sizes in bytes."""

    total_bytes: int
    config: AllocatorConfig = field(default_factory=AllocatorConfig)
    device: int = 0
    trace: list[dict[str, Any]] = field(default_factory=list)
    allocator: CachingAllocator = field(init=False)
    _memory: GpuMemory = field(init=False)
    _frames: dict[Call, list[dict[str, Any]]] = field(default_factory=dict)
    _stack_of: dict[int, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._memory = GpuMemory(self.total_bytes)
        self.allocator = CachingAllocator(self._memory, self.config)

    def allocate(self, size: int, call: Call, stream: int = 0) -> Block:
        """Raises AllocationFailedError, with the entry that PyTorch leaves then."""
        before, used = self._starts(), self._memory.used_bytes
        try:
            block = self.allocator.allocate(size, stream)
        except AllocationFailedError as error:
            self._segments(before)
            rounded = self.allocator.round_size(size)
            self._note("oom", size=rounded, stream=stream, call=call, device_free=error.free_bytes)
            raise
        if self._memory.used_bytes != used:
            self._segments(before)
        self._note("alloc", addr=block.address, size=size, stream=stream, call=call)
        self._stack_of[block.address] = call
        return block

    def free(self, blocks: Iterable[Block]) -> None:
        """Give blocks back."""
        for block in blocks:
            address, size, stream = block.address, block.requested_bytes, block.stream
            call = self._stack_of.pop(address)
            for action in ("free_requested", "free_completed"):
                self._note(action, addr=address, size=size, stream=stream, call=call)
            self.allocator.free(block)

    def empty_cache(self) -> None:
        """As `torch.cuda.empty_cache`."""
        before = self._starts()
        self.allocator.empty_cache()
        self._segments(before)

    def document(self) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot` gives it."""
        limit = self.config.max_split_size_bytes
        return {
            "segments": list(self._told_segments()), "device_traces": [*([[]] * self.device), self.trace],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "simulated", "expandable_segments": self.config.expandable_segments,
                "max_split_size": limit if limit < 1 << 62 else -1,
                "garbage_collection_threshold": self.config.garbage_collection_threshold,
            },
            "external_annotations": [],
        }

    def stream(self, protocol: int = 4) -> io.BytesIO:
        """The pickle."""
        return io.BytesIO(pickle.dumps(self.document(), protocol))

    def _note(self, action: str, *, size: int, stream: int, call: Call, **where: int) -> None:
        frames = self._frames.setdefault(call, [{"name": n, "filename": f, "line": line} for n, f, line in call])
        self.trace.append({
            "action": action, **where, "size": size, "stream": stream, "time_us": len(self.trace), "frames": frames,
        })

    def _starts(self) -> dict[int, tuple[int, int]]:
        """What the driver gave: size and stream by address; of an expandable segment each mapped run."""
        return {one["address"]: (one["total_size"], one["stream"]) for one in self._told_segments()}

    def _segments(self, before: dict[int, tuple[int, int]]) -> None:
        after = self._starts()
        taken, given = ("map", "unmap") if self.config.expandable_segments else ("alloc", "free")
        for word, there, gone in ((given, before, after), (taken, after, before)):
            for address, (size, stream) in there.items():
                for start, stop in _left_of((address, address + size), gone):
                    self._note(f"segment_{word}", addr=start, size=stop - start, stream=stream, call=())

    def _told_segments(self) -> Iterable[dict[str, Any]]:
        run: list[Block] = []
        for block in self.allocator.blocks():
            if run and (block.previous is not run[-1] or not block.mapped):
                yield self._told(run)
                run = []
            run.append(block)
        if run:
            yield self._told(run)

    def _told(self, run: list[Block]) -> dict[str, Any]:
        blocks = [
            {
                "address": one.address, "size": one.size_bytes, "requested_size": one.requested_bytes,
                "state": "active_allocated" if one.allocated else "inactive",
                "frames": self._frames.get(self._stack_of.get(one.address, ()), []),
            }
            for one in run
        ]
        allocated = sum(one.size_bytes for one in run if one.allocated)
        return {
            "device": self.device, "address": run[0].address, "total_size": sum(one.size_bytes for one in run),
            "allocated_size": allocated, "active_size": allocated,
            "requested_size": sum(one.requested_bytes for one in run if one.allocated), "stream": run[0].stream,
            "segment_type": "small" if run[0].pool.is_small else "large", "segment_pool_id": (0, 0),
            "is_expandable": run[0].segment is not None, "frames": [], "blocks": blocks,
        }


def training(job: SimulatedJob, steps: int, *, leak: int = 0, activation: int = 64 << 20, layers: int = 8) -> None:
    """Weights, then steps of forward, backward and optimizer; the first step makes the optimizer's states."""
    weights = [job.allocate(24 << 20, WEIGHTS) for _ in range(layers)]
    kept: list[Block] = []
    states: list[Block] = []
    for _ in range(steps):
        activations = []
        for _layer in range(layers):
            work = job.allocate(activation // 4, FORWARD[1:])
            activations.append(job.allocate(activation, FORWARD))
            job.free([work])
        gradients = []
        for block in reversed(activations):
            gradients.append(job.allocate(weights[0].requested_bytes, BACKWARD))
            job.free([block])
        if not states:
            states = [job.allocate(48 << 20, OPTIMIZER) for _ in weights]
        else:
            job.free([job.allocate(1 << 20, OPTIMIZER[1:])])
        job.free(gradients)
        if leak:
            kept.append(job.allocate(leak, LOGGING))


def _left_of(one: tuple[int, int], others: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """What of a range of addresses is in none of the others."""
    left = [one]
    for address, (size, _) in others.items():
        left = [
            part for start, stop in left
            for part in ((start, min(stop, address)), (max(start, address + size), stop)) if part[0] < part[1]
        ]
    return left
