"""Checkpoints in the layouts of two real formats. The contents are small JSON documents: nothing is trained here.

``torch_dist``, Megatron's distributed format: ``iter_0000100/`` and a tracker. Each rank writes ``__<rank>_0.distcp``;
when all have, rank 0 writes ``common.pt``, ``.metadata`` and ``metadata.json``, and only then the tracker. As with the
real format, the number of ranks and of shards may differ between saving and loading.

``deepspeed``, ZeRO's: ``global_step100/`` with a file of optimizer states for each rank, and ``latest``. As with the
real format, only as many ranks as wrote it can load it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

TRACKER = "latest_checkpointed_iteration.txt"
FORMATS = ("torch_dist", "deepspeed")
_LATEST = "latest"
_STATES = "mp_rank_00_model_states.pt"


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


def folder_of(root: str, iteration: int, kind: str = "torch_dist") -> str:
    """The folder of one checkpoint."""
    return os.path.join(root, f"iter_{iteration:07d}" if kind == "torch_dist" else f"global_step{iteration}")


def write_shard(root: str, rank: int, state: TrainingState, kind: str = "torch_dist") -> None:
    """A rank's own part."""
    folder = folder_of(root, state.iteration, kind)
    os.makedirs(folder, exist_ok=True)
    tensors = ["weights", "exp_avg", "exp_avg_sq"]
    part = {"simulated": True, "rank": rank, "iteration": state.iteration, "tensors": tensors}
    _write(os.path.join(folder, _shard(rank, kind)), json.dumps(part) + "\n")


def finalise(root: str, state: TrainingState, kind: str = "torch_dist") -> None:
    """Rank 0, after all shards are written: the common part, the index, the mark of completeness, the tracker."""
    folder = folder_of(root, state.iteration, kind)
    values = {"simulated": True, **asdict(state)}
    if kind == "deepspeed":
        _write(os.path.join(folder, _STATES), json.dumps(values) + "\n")
        _write(os.path.join(root, _LATEST), os.path.basename(folder))
        return
    _write(os.path.join(folder, "common.pt"), json.dumps(values) + "\n")
    shards = [_shard(rank, kind) for rank in range(state.world_size)]
    _write(os.path.join(folder, ".metadata"), json.dumps({"simulated": True, "shards": shards}) + "\n")
    form = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
        **values,
    }
    _write(os.path.join(folder, "metadata.json"), json.dumps(form) + "\n")
    _write(os.path.join(root, TRACKER), str(state.iteration))


def latest_iteration(root: str, kind: str = "torch_dist") -> int | None:
    """What the tracker names, or None if there is none. Raises CheckpointError if it is not a number."""
    path = os.path.join(root, TRACKER if kind == "torch_dist" else _LATEST)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip().removeprefix("" if kind == "torch_dist" else "global_step")
    except FileNotFoundError:
        return None
    if not text.isdigit():
        raise CheckpointError(f"invalid metadata file {path}: {text!r} is not an iteration")
    return int(text)


def load(root: str, iteration: int, world_size: int | None = None, kind: str = "torch_dist") -> TrainingState:
    """The state saved at an iteration, for a job of `world_size` ranks (None: any). Raises CheckpointError if it is
    missing, torn, or tied to another number of ranks."""
    folder = folder_of(root, iteration, kind)
    try:
        with open(os.path.join(folder, "metadata.json" if kind == "torch_dist" else _STATES), encoding="utf-8") as file:
            values = json.load(file)
        state = TrainingState(**{name: int(values[name]) for name in TrainingState.__dataclass_fields__})
        missing = [
            name for rank in range(state.world_size) for name in [_shard(rank, kind)]
            if not os.path.isfile(os.path.join(folder, name))
        ]
        if missing:
            raise CheckpointError(f"{folder} is not a distributed checkpoint: {missing[0]} is missing")
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} is not a distributed checkpoint: {error}") from error
    if kind == "deepspeed" and world_size not in (None, state.world_size):
        raise CheckpointError(
            f"The checkpoint being loaded used a DP world size of {state.world_size} but the current world size is "
            f"{world_size}. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not "
            "currently supported."
        )
    return state


def _shard(rank: int, kind: str) -> str:
    return f"__{rank}_0.distcp" if kind == "torch_dist" else f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def _write(path: str, text: str) -> None:
    """The whole file or none of it."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
