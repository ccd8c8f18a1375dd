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
    """One checkpoint folder. `complete` is False with the reason in `why`."""

    path: str
    step: int | None
    complete: bool
    why: str = ""
    format: str = ""
    world_size: int | None = None
    reshardable: bool | None = None
    """None: unknown, so a changed world size needs a person."""
    latest: bool | None = None
    """Whether the program's own tracker (`latest`, `latest_checkpointed_iteration.txt`) names this one; None: the
    format has none. Where it names another, the program has to be told the step."""
