"""Checkpoint folders as listed, pure: which are complete, at which step, and whether they can be resharded.

Each format (`formats`, one module each) has its own judge, which looks at listed `folders` and knows what is written
last. A folder that one judge has taken is not looked into by any other, so that DeepSpeed's folder in a Hugging Face
checkpoint is a part of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runbook.checkpoints.folders import SMALL_FILE_BYTES, Format, Found, Listing
from runbook.checkpoints.formats import all_formats
from runbook.model.checkpoint import Checkpoint, DirectoryEntry
from runbook.model.units import Unknown

__all__ = ["SMALL_FILE_BYTES", "choose_checkpoint", "judge_checkpoints", "wanted_small_files"]

SHARD_INDEX_BYTES = 1 << 20
"""The index of shards is read only where it is small, for there can be hundreds of them."""


def wanted_small_files(entries: Sequence[DirectoryEntry]) -> tuple[str, ...]:
    """Trackers and indexes whose contents the judgement needs."""
    small = {name for one in all_formats() for name in one.small_files}
    return tuple(
        entry.path
        for entry in entries
        if not entry.is_dir
        and (name := posixpath.basename(entry.path)) in small
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
        for one in all_formats():
            judged = one.judge(listing, folder)
            if judged is not None:
                taken |= {f"{folder}/{part}" if part else folder for part in one.takes}
                found += _named([judged] if isinstance(judged, Found) else judged, one)
                break
    paths = {item.checkpoint.path for item in found}
    for one in all_formats():
        found += _marked(one, listing, paths) if one.marker else ()
    found.sort(key=lambda item: (item.checkpoint.step is not None, item.order), reverse=True)
    return tuple(_tracked(item.checkpoint, listing) for item in found)


def _named(found: Sequence[Found], one: Format) -> Iterator[Found]:
    """With the format's name where it has no other."""
    for each in found:
        name = each.checkpoint.format or one.name
        yield replace(each, checkpoint=replace(each.checkpoint, format=name))


def _within(folder: str, taken: set[str]) -> bool:
    while folder not in ("", "/", "."):
        if folder in taken:
            return True
        folder = posixpath.dirname(folder)
    return False


def _marked(one: Format, listing: Listing, judged: set[str]) -> Iterator[Found]:
    """What markers tell of saves whose folder is not there yet."""
    for folder in listing.every_folder():
        for entry in listing.files(folder):
            path = entry.path.removesuffix(one.marker)
            found = one.judge(listing, path) if path != entry.path and path not in judged else None
            if isinstance(found, Found):
                yield from _named([found], one)


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
