"""Checkpoints of verl, by FSDP and by Megatron."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from runbook.checkpoints.folders import (
    TRACKER,
    Found,
    Listing,
    Sharding,
    Torn,
    check_dcp,
    check_not_empty,
    checkpoint_format,
    positive,
    torn,
    whole,
)

_STEP = re.compile(r"global_step_([0-9]{1,12})\Z")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_([0-9]{1,7})_rank_([0-9]{1,7})\.pt\Z")
_KINDS = ("model", "optim", "extra_state")
_WORDS = {"model": "the model", "optim": "the optimizer state", "extra_state": "the extra state"}
TIED = "verl's FSDP files carry the world size in their names, so another one cannot load"
MEGATRON = (
    "another number of data-parallel ranks loads; another tensor- or pipeline-parallel size only if it was saved with "
    "dist_ckpt_optim_fully_reshardable"
)


@checkpoint_format(asked=30, small_files=(TRACKER, "ckpt_contents.json", "fsdp_config.json"))
def judge_verl(listing: Listing, folder: str) -> Found | None:
    """`global_step_N` with a folder for each trained role, `data.pt`, and the tracker beside it, written last."""
    match = _STEP.fullmatch(posixpath.basename(folder))
    if match is None:
        return None
    step = int(match[1])
    roles = [path for path in listing.folders(folder) if _is_role(listing, path)]
    if not roles and any(entry.path.endswith("_states.pt") for entry in listing.files(folder)):
        return None  # a DeepSpeed tag with an underscore
    megatron = any(_is_megatron(listing, path) for path in roles)
    form = "verl_megatron" if megatron else "verl_fsdp"
    sizes: dict[str, int] = {}
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        if not roles:
            raise Torn("no folder of a trained role (actor, critic)")
        for path in roles:
            name = posixpath.basename(path)
            try:
                if _is_megatron(listing, path):
                    _check_megatron(listing, path)
                else:
                    sizes[name] = _check_fsdp(listing, path)
            except Torn as error:
                raise Torn(f"{name}: {error}") from error
        data = listing.file(f"{folder}/data.pt")
        if data is None:
            raise Torn("no data.pt: the save did not finish, or the data would start over")
        check_not_empty([data], "data.pt")
        tracked = listing.tracked(posixpath.dirname(folder))
        if tracked is None:
            raise Torn(f"there is no readable {TRACKER}, without which verl trains from scratch")
        if step > tracked:
            raise Torn(f"the tracker still names {tracked}: the save was not finished")
    except Torn as error:
        return torn(folder, step, str(error), sizes.get("actor"), form)
    world_size = sizes.get("actor") or next(iter(sizes.values()), None)
    sharding = Sharding(world_size, megatron, MEGATRON if megatron else TIED)
    return whole(folder, step, sharding, form=form, latest=tracked == step)


def _is_role(listing: Listing, path: str) -> bool:
    return (
        posixpath.basename(path) in ("actor", "critic")
        or _is_megatron(listing, path)
        or any(_SHARD.fullmatch(posixpath.basename(entry.path)) for entry in listing.files(path))
    )


def _is_megatron(listing: Listing, path: str) -> bool:
    if listing.has(f"{path}/ckpt_contents.json"):
        return True
    folders = {posixpath.basename(item) for item in listing.folders(path)}
    return "dist_ckpt" in folders or bool({"model", "optimizer", "extra"} & folders)


def _check_fsdp(listing: Listing, path: str) -> int:
    """The world size. Each rank writes three files, named after both."""
    shards = [
        (entry, match)
        for entry in listing.files(path)
        if (match := _SHARD.fullmatch(posixpath.basename(entry.path)))
    ]
    check_not_empty([entry for entry, _ in shards], "a file")
    found: dict[int, dict[str, set[int]]] = {}
    for _, match in shards:
        found.setdefault(int(match[2]), {}).setdefault(match[1], set()).add(int(match[3]))
    said = positive((listing.document(f"{path}/fsdp_config.json") or {}).get("world_size"))
    if not found:
        raise Torn("no state files: only weights for inference, or nothing yet")
    if said is None and len(found) > 1:
        raise Torn(f"files of several world sizes ({', '.join(str(size) for size in sorted(found))}) are mixed")
    size = said if said is not None else next(iter(found))
    kinds = found.get(size, {})
    for kind in _KINDS:
        if kind not in kinds:
            raise Torn(f"{_WORDS[kind]} of world size {size} is missing")
        missing = sorted(set(range(min(size, 1_000_000))) - kinds[kind])
        if missing:
            raise Torn(f"{_WORDS[kind]} of rank {missing[0]} is missing")
    return size


def _check_megatron(listing: Listing, path: str) -> None:
    """Layout 2: the manifest `ckpt_contents.json` is written last."""
    if not listing.has(f"{path}/ckpt_contents.json"):
        if f"{path}/dist_ckpt" in listing.folders(path):
            raise Torn("the layout before version 2, which newer verl refuses (migrate_megatron_checkpoint_layout.py)")
        raise Torn("no ckpt_contents.json: the save did not finish")
    manifest = listing.document(f"{path}/ckpt_contents.json")
    if manifest is None:
        raise Torn("ckpt_contents.json does not parse: the save did not finish")
    parts = _parts(listing, path)
    distributed = [part for part in parts if part.endswith("/dist_ckpt")]
    if not distributed:
        raise Torn("no folder dist_ckpt")
    for part in distributed:
        try:
            check_dcp(listing, part)
        except Torn as error:
            raise Torn(f"{posixpath.basename(posixpath.dirname(part))}: {error}") from error
    missing = sorted(name for name in set(_named_folders(manifest)) if f"{path}/{name}" not in parts)
    if missing:
        raise Torn(f"ckpt_contents.json names {missing[0]}, which is missing")


def _parts(listing: Listing, path: str) -> tuple[str, ...]:
    inner = listing.folders(path)
    return (*inner, *(folder for item in inner for folder in listing.folders(item)))


def _named_folders(manifest: object, depth: int = 0) -> Iterator[str]:
    """Relative folders that the manifest names, wherever in it they stand."""
    if isinstance(manifest, str):
        text = manifest.strip("/")
        if re.fullmatch(r"(?:model|optimizer|extra)/(?:dist_ckpt|huggingface)", text):
            yield text
    elif isinstance(manifest, dict | list) and depth < 6:
        for item in manifest.values() if isinstance(manifest, dict) else manifest:
            yield from _named_folders(item, depth + 1)
