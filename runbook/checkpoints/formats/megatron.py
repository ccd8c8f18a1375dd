"""Checkpoints of Megatron-LM (torch_dist, torch_dcp, legacy) and Megatron-Bridge."""

from __future__ import annotations

import posixpath
import re

from runbook.checkpoints.folders import (
    CLOCK_TOLERANCE_S,
    TRACKER,
    Found,
    Listing,
    Sharding,
    Torn,
    check_contiguous,
    check_dcp,
    check_not_empty,
    checkpoint_format,
    positive,
    torn,
    whole,
)

_ITERATION = re.compile(r"iter_([0-9]{1,12})\Z")
_MODEL_PARALLEL = re.compile(r"mp_rank_([0-9]{1,6})(?:_([0-9]{1,6}))?(?:_([0-9]{1,6}))?\Z")
BRIDGE_TRACKER = "latest_train_state.pt"
RESHARD = (
    "another number of data-parallel ranks loads; another tensor- or pipeline-parallel size loads only if it was saved "
    "with --dist-ckpt-optim-fully-reshardable"
)
LEGACY = "the legacy layout has one file for each tensor- and pipeline-parallel rank, and is not resharded"


@checkpoint_format(asked=40, small_files=(TRACKER, "metadata.json"))
def judge_iteration(listing: Listing, folder: str) -> Found | None:
    """A folder `iter_0000100`; None when it is none. The tracker beside it is written when a save is finished."""
    match = _ITERATION.fullmatch(posixpath.basename(folder))
    if match is None:
        return None
    step = int(match[1])
    world_size = positive((listing.document(f"{folder}/metadata.json") or {}).get("world_size"))
    ranks = [path for path in listing.folders(folder) if _MODEL_PARALLEL.fullmatch(posixpath.basename(path))]
    form = "megatron_legacy" if ranks else "torch_dist"
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        if ranks:
            _check_legacy(listing, ranks)
        else:
            form = _check_distributed(listing, folder)
        _check_tracker(listing, folder, step)
    except Torn as error:
        return torn(folder, step, str(error), world_size, form)
    latest = _latest(listing, folder, step)
    if ranks:
        return whole(folder, step, Sharding(reshardable=False, why=LEGACY), form=form, latest=latest)
    why = RESHARD if form != "torch_dcp" else "the model-parallel sizes have to stay what they were"
    return whole(folder, step, Sharding(world_size, True, why), form=form, latest=latest)


def _check_distributed(listing: Listing, folder: str) -> str:
    """The format. `metadata.json` is written when a torch_dist save is finalised; torch_dcp and fsdp_dtensor have
    neither it nor `common.pt`."""
    check_dcp(listing, folder)
    if listing.has(f"{folder}/metadata.json"):
        check_not_empty([entry for entry in listing.files(folder) if entry.path.endswith(".json")], "metadata.json")
        return "torch_dist"
    if listing.has(f"{folder}/common.pt"):
        raise Torn("no metadata.json: the save was not finalised")
    return "torch_dcp"


def _check_legacy(listing: Listing, ranks: list[str]) -> None:
    """Every tensor- and pipeline-parallel rank has the same files."""
    grid: dict[tuple[int, ...], frozenset[str]] = {}
    for path in ranks:
        match = _MODEL_PARALLEL.fullmatch(posixpath.basename(path))
        files = listing.files(path)
        check_not_empty(files, "a file")
        if match is not None:
            grid[tuple(int(part) for part in match.groups() if part is not None)] = frozenset(
                posixpath.basename(entry.path) for entry in files
            )
    if len({len(place) for place in grid}) > 1:
        raise Torn("folders of two layouts are mixed")
    for axis in range(len(next(iter(grid)))):
        check_contiguous({place[axis] for place in grid}, ("tensor", "pipeline", "expert")[axis] + "-parallel rank")
    expected = 1
    for axis in range(len(next(iter(grid)))):
        expected *= len({place[axis] for place in grid})
    if len(grid) != expected:
        raise Torn(f"{len(grid)} folders of model-parallel ranks where {expected} belong together")
    wanted = max(grid.values(), key=len)
    if not any(name.startswith("model_") for name in wanted):
        raise Torn("no model file")
    for place, names in sorted(grid.items()):
        if names != wanted:
            shown = "_".join(str(part) for part in place)
            raise Torn(f"model-parallel rank {shown} lacks {sorted(wanted - names)[0]}")


def _check_tracker(listing: Listing, folder: str, step: int) -> None:
    parent = posixpath.dirname(folder)
    tracked = listing.tracked(parent)
    bridge = listing.file(f"{parent}/{BRIDGE_TRACKER}")
    if tracked is None and bridge is not None:
        if not listing.has(f"{folder}/train_state.pt"):
            raise Torn("no train_state.pt: the save did not finish")
        newest = max(entry.modified_s for entry in listing.all_files(folder))
        if newest > bridge.modified_s + CLOCK_TOLERANCE_S:
            raise Torn(f"it is newer than {BRIDGE_TRACKER}: the save was not finished")
        return
    if tracked is None:
        raise Torn("there is no readable tracker, by which the program would find it")
    if step > tracked:
        raise Torn(f"the tracker still names {tracked}: the save was not finished")


def _latest(listing: Listing, folder: str, step: int) -> bool:
    parent = posixpath.dirname(folder)
    tracked = listing.tracked(parent)
    if tracked is not None:
        return tracked == step
    others = [_ITERATION.fullmatch(posixpath.basename(path)) for path in listing.folders(parent)]
    return step == max(int(match[1]) for match in others if match is not None)
