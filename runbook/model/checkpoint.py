"""Checkpoints on disk: which can be resumed from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A file or folder as listed: what the pure judgement on checkpoints works from."""

    path: str
    is_dir: bool
    size_bytes: int
    modified_s: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, a folder or a file. Where it is not complete, `why` is the reason; else it says what limits
    another world size or sharding."""

    path: str
    step: int | None
    complete: bool
    why: str = ""
    format: str = ""
    """Who wrote it: torch_dist, torch_dcp, megatron_legacy, nemo, torchtitan, dcp, full, deepspeed,
    deepspeed_universal, huggingface, accelerate, openrlhf, verl_fsdp, verl_megatron, areal."""
    world_size: int | None = None
    """Ranks that wrote it; of DeepSpeed the data-parallel ones. None: not known."""
    reshardable: bool | None = None
    """None: unknown, so a changed world size needs a person."""
    latest: bool | None = None
    """Whether the program's own tracker (`latest`, `latest_checkpointed_iteration.txt`) names this one; None: the
    format has none. Where it names another, the program has to be told the step."""
