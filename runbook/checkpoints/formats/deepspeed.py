"""Checkpoints of DeepSpeed's engine, plain and universal."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from runbook.checkpoints.folders import (
    CLOCK_TOLERANCE_S,
    Found,
    Listing,
    Sharding,
    Torn,
    check_contiguous,
    check_not_empty,
    checkpoint_format,
    torn,
    whole,
)
from runbook.model.checkpoint import DirectoryEntry

_TAG = re.compile(r"global_step([0-9]{1,12})\Z")
_UNIVERSAL = re.compile(r"global_step([0-9]{1,12})_universal\Z")
_SHARD = re.compile(r"zero_pp_rank_([0-9]{1,7})_mp_rank_([0-9]{1,5})_(model|optim)_states\.pt\Z")
_MODEL = re.compile(r"mp_rank_([0-9]{1,5})_model_states\.pt\Z")
UNIVERSAL = "deepspeed_universal"
TIED = (
    "DeepSpeed loads optimizer states only with the same number of data-parallel ranks; another number needs a "
    "universal checkpoint (ds_to_universal.py)"
)


@checkpoint_format(asked=90, small_files=("latest", "latest_universal"))
def judge_deepspeed(listing: Listing, folder: str) -> Found | None:
    """`global_stepN` with its state files; None when it is none."""
    name = posixpath.basename(folder)
    universal = _UNIVERSAL.fullmatch(name)
    if universal is not None:
        return _universal(listing, folder, int(universal[1]))
    match = _TAG.fullmatch(name)
    files = [entry for entry in listing.files(folder) if entry.path.endswith("_states.pt")]
    if match is None and not any(_SHARD.search(entry.path) for entry in files):
        return None
    step = int(match[1]) if match is not None else None
    world_size = None
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        world_size = check_states(files)
        latest = _check_latest(listing, folder, step, files)
    except Torn as error:
        return torn(folder, step, str(error), world_size)
    return whole(folder, step, tied_to(world_size), latest=latest)


def tied_to(world_size: int | None) -> Sharding:
    """Of states that only as many data-parallel ranks load; None: ZeRO is off."""
    return Sharding(world_size, False, TIED) if world_size else Sharding()


def check_states(files: Sequence[DirectoryEntry]) -> int | None:
    """The number of data-parallel ranks; None where ZeRO is off and no rank has a file of its own. Raises `Torn`."""
    check_not_empty(files, "a state file")
    names = [posixpath.basename(entry.path) for entry in files]
    models = {int(match[1]) for name in names if (match := _MODEL.fullmatch(name))}
    optimizer: dict[int, set[int]] = {}
    sharded: dict[int, set[int]] = {}
    for name in names:
        match = _SHARD.search(name)
        if match is not None:
            kind = optimizer if match[3] == "optim" else sharded
            kind.setdefault(int(match[2]), set()).add(int(match[1]))
    if not models and not sharded:
        raise Torn("no model-state file")
    check_contiguous(models or set(sharded), "the model state of model-parallel rank")
    for ranks in optimizer.values():
        check_contiguous(ranks, "the optimizer state of data-parallel rank")
    if not optimizer:
        if sharded:
            raise Torn("no optimizer state")
        return None
    check_contiguous(optimizer, "the optimizer state of model-parallel rank")
    if models and len(optimizer) != len(models):
        raise Torn(f"optimizer states of {len(optimizer)} model-parallel ranks beside models of {len(models)}")
    sizes = {len(ranks) for ranks in optimizer.values()}
    if len(sizes) > 1:
        raise Torn(f"model-parallel ranks have optimizer states of {min(sizes)} and of {max(sizes)} ranks")
    for rank, ranks in sharded.items():
        missing = sorted(optimizer.get(rank, set()) - ranks)
        if missing:
            raise Torn(f"the model state of data-parallel rank {missing[0]} is missing")
    return sizes.pop()


def _check_latest(listing: Listing, folder: str, step: int | None, files: Sequence[DirectoryEntry]) -> bool:
    """`latest` is written by rank 0 after all ranks saved."""
    path = f"{posixpath.dirname(folder)}/latest"
    tag = listing.text(path)
    if not tag:
        raise Torn("there is no readable `latest`, by which the program would find it")
    named = tag == posixpath.basename(folder)
    number = re.search(r"([0-9]{1,12})\Z", tag)
    if not named and (number is None or step is None or step > int(number[1])):
        raise Torn(f"`latest` names {tag[:60]!r}: this save did not finish")
    written = listing.file(path)
    if named and written is not None:
        newest = max(entry.modified_s for entry in files)
        if newest > written.modified_s + CLOCK_TOLERANCE_S:
            raise Torn("it is newer than `latest`: a save over it did not finish")
    return named


def _universal(listing: Listing, folder: str, step: int) -> Found:
    tag = listing.text(f"{posixpath.dirname(folder)}/latest_universal")
    try:
        if tag is None:
            raise Torn("there is no readable `latest_universal`, which the conversion writes last")
        if not any(True for _ in listing.all_files(f"{folder}/zero")) and not listing.folders(f"{folder}/zero"):
            raise Torn("its folder zero is empty or missing: the conversion did not finish")
        if not any(_MODEL.fullmatch(posixpath.basename(entry.path)) for entry in listing.files(folder)):
            raise Torn("no model-state file")
    except Torn as error:
        return torn(folder, step, str(error), form=UNIVERSAL)
    why = "it is loaded with checkpoint.load_universal true"
    named = tag == posixpath.basename(folder)
    return whole(folder, step, Sharding(reshardable=True, why=why), form=UNIVERSAL, latest=named)
