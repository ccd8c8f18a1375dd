"""Checkpoint folders as listed → which are complete, at which step, and whether they can be resharded.

Each format has its own judge, which knows what is written last. A folder that one judge has taken is not looked at
by the next, so that DeepSpeed's folder in a Hugging Face checkpoint is a part of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runbook.checkpoints.formats.accelerate import judge_accelerate
from runbook.checkpoints.formats.areal import judge_areal
from runbook.checkpoints.formats.dcp import judge_dcp
from runbook.checkpoints.formats.deepspeed import judge_deepspeed
from runbook.checkpoints.formats.huggingface import judge_trainer
from runbook.checkpoints.formats.megatron import judge_iteration
from runbook.checkpoints.formats.nemo import UNFINISHED, judge_nemo
from runbook.checkpoints.formats.openrlhf import judge_openrlhf
from runbook.checkpoints.formats.single_files import judge_single_files
from runbook.checkpoints.formats.torchtitan import judge_torchtitan
from runbook.checkpoints.formats.verl import judge_verl
from runbook.checkpoints.listing import SMALL_FILE_BYTES, TRACKER, Found, Listing
from runbook.model.checkpoint import Checkpoint, DirectoryEntry
from runbook.model.units import Unknown

__all__ = ["SMALL_FILE_BYTES", "TRACKER", "choose_checkpoint", "judge_checkpoints", "wanted_small_files"]

_SMALL = frozenset({
    TRACKER, "latest", "latest_universal", "metadata.json", "trainer_state.json", "fsdp_config.json",
    "ckpt_contents.json", "step_info.json", "dataloader_info.pkl", ".metadata",
})
SHARD_INDEX_BYTES = 1 << 20
"""The index of shards is read only where it is small, for there can be hundreds of them."""
_JUDGES: tuple[Callable[[Listing, str], Found | None], ...] = (
    judge_areal, judge_verl, judge_iteration, judge_trainer, judge_nemo, judge_torchtitan, judge_accelerate,
    judge_deepspeed, judge_dcp,
)


def wanted_small_files(entries: Sequence[DirectoryEntry]) -> tuple[str, ...]:
    """Trackers and indexes whose contents the judgement needs."""
    return tuple(
        entry.path
        for entry in entries
        if not entry.is_dir
        and (name := posixpath.basename(entry.path)) in _SMALL
        and 0 < entry.size_bytes <= (SHARD_INDEX_BYTES if name == ".metadata" else SMALL_FILE_BYTES)
    )


def judge_checkpoints(entries: Sequence[DirectoryEntry], small_files: Mapping[str, bytes]) -> tuple[Checkpoint, ...]:
    """Every checkpoint of a listing, newest first, complete or not with the reason.

    Completeness is by each format's own last-written mark. `why` of a complete one says what limits another world size
    or sharding.
    """
    listing = Listing.of(entries, small_files)
    taken: set[str] = set()
    found: list[Found] = []
    for folder in listing.every_folder():
        if _within(folder, taken):
            continue
        pair = judge_openrlhf(listing, folder)
        if pair is not None:
            taken |= {f"{folder}/_actor", f"{folder}/_critic"}
            found += pair
            continue
        judged = next((one for judge in _JUDGES if (one := judge(listing, folder)) is not None), None)
        if judged is not None:
            taken.add(folder)
            found.append(judged)
            continue
        found += judge_single_files(listing, folder)
    found += _markers(listing, {item.checkpoint.path for item in found})
    found.sort(key=lambda item: (item.checkpoint.step is not None, item.order), reverse=True)
    return tuple(_tracked(item.checkpoint, listing) for item in found)


def _within(folder: str, taken: set[str]) -> bool:
    while folder not in ("", "/", "."):
        if folder in taken:
            return True
        folder = posixpath.dirname(folder)
    return False


def _markers(listing: Listing, judged: set[str]) -> list[Found]:
    """NeMo's markers of saves whose folder is not there yet."""
    markers = [
        entry.path.removesuffix(UNFINISHED)
        for folder in listing.every_folder()
        for entry in listing.files(folder)
        if entry.path.endswith(UNFINISHED)
    ]
    return [one for path in markers if path not in judged and (one := judge_nemo(listing, path)) is not None]


def _tracked(checkpoint: Checkpoint, listing: Listing) -> Checkpoint:
    """Whether the tracker beside it names it, also where it is torn: the program would take that."""
    if checkpoint.latest is not None or checkpoint.step is None:
        return checkpoint
    folder, name = posixpath.split(checkpoint.path)
    tracked, tag = listing.tracked(folder), listing.text(f"{folder}/latest")
    if tracked is not None:
        return replace(checkpoint, latest=tracked == checkpoint.step)
    return replace(checkpoint, latest=tag == name) if tag is not None else checkpoint


def choose_checkpoint(checkpoints: Sequence[Checkpoint], *, world_size_changes: bool) -> Checkpoint | Unknown:
    """The newest complete checkpoint that fits, or why there is none. Those without a step come in the order given."""
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not complete:
        if checkpoints:
            return Unknown(f"none of {len(checkpoints)} is complete: {checkpoints[0].path}: {checkpoints[0].why}")
        return Unknown("no checkpoint folder was found")
    if not world_size_changes:
        return max(complete, key=_step)
    fitting = [checkpoint for checkpoint in complete if checkpoint.reshardable]
    if not fitting:
        newest = max(complete, key=_step)
        reason = f" ({newest.path}: {newest.why})" if newest.why else ""
        return Unknown(f"no complete checkpoint is known to load with another world size or sharding{reason}")
    return max(fitting, key=_step)


def _step(checkpoint: Checkpoint) -> int:
    return checkpoint.step or 0
