"""Checkpoints in the layout of Megatron's distributed format: ``iter_0000100/`` and a tracker, written last.

Each rank writes ``__<rank>_0.distcp``; when all have, rank 0 writes ``common.pt``, ``.metadata`` and
``metadata.json``, and only then the tracker. The contents are small JSON documents: nothing is trained here. As
with the real format, the number of ranks and of shards may differ between saving and loading.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

TRACKER = "latest_checkpointed_iteration.txt"


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the text says which and why."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What a checkpoint carries over."""

    iteration: int
    consumed_samples: int
    world_size: int
    shard_degree: int
    global_batch_size: int
    seed: int


def folder_of(root: str, iteration: int) -> str:
    """The folder of one checkpoint."""
    return os.path.join(root, f"iter_{iteration:07d}")


def write_shard(root: str, rank: int, state: TrainingState) -> None:
    """A rank's own part."""
    folder = folder_of(root, state.iteration)
    os.makedirs(folder, exist_ok=True)
    tensors = ["weights", "exp_avg", "exp_avg_sq"]
    part = {"simulated": True, "rank": rank, "iteration": state.iteration, "tensors": tensors}
    _write(os.path.join(folder, f"__{rank}_0.distcp"), json.dumps(part) + "\n")


def finalise(root: str, state: TrainingState) -> None:
    """Rank 0, after all shards are written: the common part, the index, the mark of completeness, the tracker."""
    folder = folder_of(root, state.iteration)
    _write(os.path.join(folder, "common.pt"), json.dumps({"simulated": True, **asdict(state)}) + "\n")
    shards = [f"__{rank}_0.distcp" for rank in range(state.world_size)]
    _write(os.path.join(folder, ".metadata"), json.dumps({"simulated": True, "shards": shards}) + "\n")
    kind = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
        "simulated": True,
        **asdict(state),
    }
    _write(os.path.join(folder, "metadata.json"), json.dumps(kind) + "\n")
    _write(os.path.join(root, TRACKER), str(state.iteration))


def latest_iteration(root: str) -> int | None:
    """What the tracker names, or None if there is none. Raises CheckpointError if it is not a number."""
    try:
        with open(os.path.join(root, TRACKER), encoding="utf-8") as file:
            text = file.read().strip()
    except FileNotFoundError:
        return None
    if not text.isdigit():
        raise CheckpointError(f"invalid metadata file {os.path.join(root, TRACKER)}: {text!r} is not an iteration")
    return int(text)


def load(root: str, iteration: int) -> TrainingState:
    """The state saved at an iteration. Raises CheckpointError if it is missing or torn."""
    folder = folder_of(root, iteration)
    try:
        with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
            values = json.load(file)
        with open(os.path.join(folder, ".metadata"), encoding="utf-8") as file:
            shards: list[str] = json.load(file)["shards"]
        missing = [name for name in shards if not os.path.isfile(os.path.join(folder, name))]
        if missing:
            raise CheckpointError(f"{folder} is not a distributed checkpoint: {missing[0]} is missing")
        return TrainingState(**{name: int(values[name]) for name in TrainingState.__dataclass_fields__})
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} is not a distributed checkpoint: {error}") from error


def _write(path: str, text: str) -> None:
    """The whole file or none of it."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
