"""Checkpoint folders as listed → which are complete, at which step, and whether they can be resharded."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.checkpoint import Checkpoint, DirectoryEntry
from runbook.model.units import Unknown

TRACKER = "latest_checkpointed_iteration.txt"
_STEP_FOLDER = re.compile(r"(?P<kind>iter_|global_step_?|checkpoint-|step-)(?P<step>[0-9]{1,12})\Z")
_NUMBER = re.compile(r"[0-9]{1,12}")
_SMALL = frozenset({TRACKER, "latest", "metadata.json", "trainer_state.json"})
SMALL_FILE_BYTES = 4 << 20
"""A Hugging Face trainer_state.json holds the whole log history and must be read whole to be judged."""
_ZERO_RANK = re.compile(r"zero_pp_rank_([0-9]{1,7})_mp_rank_")
_CLOCK_TOLERANCE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str
    kind: str
    step: int
    entries: tuple[DirectoryEntry, ...]

    def has(self, name: str) -> bool:
        return any(posixpath.basename(entry.path) == name and not entry.is_dir for entry in self.entries)

    def named(self, suffix: str) -> tuple[DirectoryEntry, ...]:
        return tuple(entry for entry in self.entries if entry.path.endswith(suffix) and not entry.is_dir)


def wanted_small_files(entries: Sequence[DirectoryEntry]) -> tuple[str, ...]:
    """Trackers and indexes whose contents the judgement needs."""
    return tuple(
        entry.path
        for entry in entries
        if not entry.is_dir and posixpath.basename(entry.path) in _SMALL and 0 < entry.size_bytes <= SMALL_FILE_BYTES
    )


def judge_checkpoints(entries: Sequence[DirectoryEntry], small_files: Mapping[str, bytes]) -> tuple[Checkpoint, ...]:
    """Every checkpoint folder of a listing, newest step first, complete or not with the reason.

    Completeness is by each format's own last-written mark: Megatron's `metadata.json` and tracker, DCP's `.metadata`
    (torch/distributed/checkpoint/filesystem.py), DeepSpeed's `latest`, HF's `trainer_state.json`.
    """
    judged = [_with_tracker(_judge(folder, entries, small_files), small_files) for folder in _folders(entries)]
    return tuple(sorted(judged, key=lambda checkpoint: checkpoint.step or 0, reverse=True))


def _with_tracker(checkpoint: Checkpoint, small: Mapping[str, bytes]) -> Checkpoint:
    """Whether the tracker beside the folder names it."""
    folder, name = posixpath.split(checkpoint.path)
    for tracker in (TRACKER, "latest"):
        content = small.get(f"{folder}/{tracker}")
        if content is not None:
            text = content.decode("utf-8", "replace").strip()
            named = text == name or (bool(_NUMBER.fullmatch(text)) and checkpoint.step == int(text))
            return replace(checkpoint, latest=named)
    return checkpoint


def choose_checkpoint(checkpoints: Sequence[Checkpoint], *, world_size_changes: bool) -> Checkpoint | Unknown:
    """The newest complete checkpoint that fits, or why there is none."""
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not complete:
        if checkpoints:
            return Unknown(f"none of {len(checkpoints)} is complete: {checkpoints[0].path}: {checkpoints[0].why}")
        return Unknown("no checkpoint folder was found")
    if not world_size_changes:
        return max(complete, key=lambda checkpoint: checkpoint.step or 0)
    fitting = [checkpoint for checkpoint in complete if checkpoint.reshardable]
    if not fitting:
        return Unknown("no complete checkpoint is known to load with another world size or sharding")
    return max(fitting, key=lambda checkpoint: checkpoint.step or 0)


def _folders(entries: Sequence[DirectoryEntry]) -> list[_Folder]:
    """Checkpoint folders with all that lies in them. One inside another (DeepSpeed's in a Hugging Face checkpoint)
    is a part of the outer one."""
    names: dict[str, re.Match[str]] = {}
    for entry in entries:
        match = _STEP_FOLDER.fullmatch(posixpath.basename(entry.path)) if entry.is_dir else None
        if match:
            names[entry.path] = match
    inside: dict[str, list[DirectoryEntry]] = {path: [] for path in names if _outermost(path, names) == path}
    for entry in entries:
        outer = _outermost(posixpath.dirname(entry.path), names)
        if outer is not None:
            inside[outer].append(entry)
    return [
        _Folder(path, names[path]["kind"].rstrip("_-"), int(names[path]["step"]), tuple(found))
        for path, found in inside.items()
    ]


def _outermost(path: str, names: Mapping[str, object]) -> str | None:
    """The highest checkpoint folder on the way to a path, the path itself included."""
    found = None
    while path not in ("", "/", "."):
        if path in names:
            found = path
        path = posixpath.dirname(path)
    return found


def _judge(folder: _Folder, entries: Sequence[DirectoryEntry], small: Mapping[str, bytes]) -> Checkpoint:
    if not folder.entries:
        return Checkpoint(folder.path, folder.step, False, "the folder is empty")
    if folder.kind == "iter" or folder.named(".distcp"):
        return _megatron_or_dcp(folder, small)
    if folder.kind == "checkpoint":
        return _hugging_face(folder, small)
    if folder.kind == "global_step":
        return _deepspeed(folder, small)
    return Checkpoint(folder.path, folder.step, False, "no known format: completeness cannot be told")


def _megatron_or_dcp(folder: _Folder, small: Mapping[str, bytes]) -> Checkpoint:
    shards = folder.named(".distcp")
    metadata = next((entry for entry in folder.entries if entry.path == f"{folder.path}/.metadata"), None)
    world_size = _world_size(small.get(f"{folder.path}/metadata.json"))
    form = "torch_dist" if folder.kind == "iter" else "dcp"

    def torn(why: str) -> Checkpoint:
        return Checkpoint(folder.path, folder.step, False, why, form, world_size)

    if not shards:
        if folder.kind == "iter" and any("mp_rank_" in entry.path for entry in folder.entries):
            return _legacy_megatron(folder, small)
        return torn("no shard files")
    if metadata is None:
        return torn("no .metadata: the save did not finish")
    newest = max(shard.modified_s for shard in shards)
    if newest > metadata.modified_s + _CLOCK_TOLERANCE_S:
        return torn("shards are newer than .metadata: a save over it did not finish")
    if any(shard.size_bytes == 0 for shard in shards):
        return torn("a shard file is empty")
    if folder.kind == "iter":
        if not folder.has("metadata.json"):
            return torn("no metadata.json: the save was not finalised")
        tracked = _tracked(folder, small)
        if tracked is None:
            return torn("there is no readable tracker, by which the program would find it")
        if folder.step > tracked:
            return torn(f"the tracker still names {tracked}: the save was not finished")
    return Checkpoint(folder.path, folder.step, True, "", form, world_size, reshardable=True)


def _legacy_megatron(folder: _Folder, small: Mapping[str, bytes]) -> Checkpoint:
    tracked = _tracked(folder, small)
    complete = tracked is not None and folder.step <= tracked
    why = "" if complete else "the tracker does not name it: the save may not have finished"
    return Checkpoint(folder.path, folder.step, complete, why, "megatron_legacy", reshardable=False)


def _hugging_face(folder: _Folder, small: Mapping[str, bytes]) -> Checkpoint:
    path = f"{folder.path}/trainer_state.json"

    def torn(why: str) -> Checkpoint:
        return Checkpoint(folder.path, folder.step, False, why, "huggingface")

    entry = next((item for item in folder.entries if item.path == path), None)
    if entry is None:
        return torn("trainer_state.json is missing: the save did not finish")
    content = small.get(path)
    if content is None or len(content) < entry.size_bytes:
        # A long log history makes it larger than what is read; then nothing is concluded from it.
        return torn(f"trainer_state.json ({entry.size_bytes} bytes) was not read whole, so nothing is known of it")
    state = _json(content)
    if state is None:
        return torn("trainer_state.json does not parse: the save did not finish")
    if state.get("global_step") != folder.step:
        return torn(f"trainer_state.json names step {str(state.get('global_step'))[:40]}")
    sharded = any(item.path.endswith("/.metadata") for item in folder.entries)
    optimizer = sharded or folder.has("optimizer.pt") or folder.has("optimizer.bin") or folder.has("latest")
    if not (optimizer and folder.has("scheduler.pt")):
        return torn("optimizer or scheduler state is missing: the save did not finish, or saved only the model")
    return Checkpoint(folder.path, folder.step, True, "", "huggingface", reshardable=True if sharded else None)


def _deepspeed(folder: _Folder, small: Mapping[str, bytes]) -> Checkpoint:
    """`latest` is written by rank 0 after all ranks saved; each data-parallel rank has one optimizer-state file."""
    tracker = small.get(f"{posixpath.dirname(folder.path)}/latest")
    ranks = {
        int(match[1])
        for item in folder.named("_optim_states.pt")
        if (match := _ZERO_RANK.search(posixpath.basename(item.path)))
    }
    world_size = len(ranks) or None

    def torn(why: str) -> Checkpoint:
        return Checkpoint(folder.path, folder.step, False, why, "deepspeed", world_size)

    if not folder.named("_model_states.pt"):
        return torn("no model-state file")
    if tracker is None:
        return torn("there is no readable `latest`, by which the program would find it")
    if ranks != set(range(len(ranks))):
        missing = sorted(set(range(max(ranks) + 1)) - ranks)
        return torn(f"the optimizer state of data-parallel rank {missing[0]} is missing")
    if any(item.size_bytes == 0 for item in folder.named("_states.pt")):
        return torn("a state file is empty")
    shown = tracker.decode("utf-8", "replace").strip()
    match = re.search(r"([0-9]{1,12})\Z", shown)
    if match is None or folder.step > int(match[1]):
        return torn(f"`latest` names {shown[:60]!r}: this save did not finish")
    return Checkpoint(folder.path, folder.step, True, "", "deepspeed", world_size, reshardable=False)


def _tracked(folder: _Folder, small: Mapping[str, bytes]) -> int | None:
    text = small.get(f"{posixpath.dirname(folder.path)}/{TRACKER}", b"").decode("utf-8", "replace").strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def _world_size(content: bytes | None) -> int | None:
    value = (_json(content) or {}).get("world_size")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _json(content: bytes | None) -> dict[str, object] | None:
    if content is None:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
