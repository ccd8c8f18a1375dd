"""Checkpoints of PyTorch itself: torchtitan's steps, folders of torch.distributed.checkpoint, single files."""

from __future__ import annotations

import posixpath
import re

from runbook.checkpoints.listing import Found, Listing, Torn, check_dcp, step_of, torn, whole

_TORCHTITAN = re.compile(r"step-([0-9]{1,12})\Z")
_SINGLE = re.compile(
    r"(?:.{0,80}[-_.])?(?:checkpoint|ckpt|step|iter|iteration|epoch|state)[-_=]?([0-9]{1,12})\.(?:pt|pth|ckpt)\Z"
)
_SMALLEST_SHARE = 0.9
"""A single file is taken as written whole when it has this share of the largest one's size."""
DATA_ORDER = "the data loader's state is kept by data-parallel rank: another number of them loads only without it"
TENSORS = "state that is no tensor (random numbers, data) is not resharded"


def judge_torchtitan(listing: Listing, folder: str) -> Found | None:
    """`step-N`, which torchtitan takes when it has `.metadata` (components/checkpoint.py)."""
    match = _TORCHTITAN.fullmatch(posixpath.basename(folder))
    if match is None:
        return None
    step = int(match[1])
    shards = any(entry.path.endswith(".distcp") for entry in listing.files(folder))
    if not shards and listing.has(f"{folder}/model.safetensors.index.json"):
        return torn(folder, step, "it holds only weights in Hugging Face's format, without optimizer", "torchtitan")
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        check_dcp(listing, folder)
    except Torn as error:
        return torn(folder, step, str(error), "torchtitan")
    taken = [
        int(found[1])
        for path in listing.folders(posixpath.dirname(folder))
        if (found := _TORCHTITAN.fullmatch(posixpath.basename(path))) and listing.has(f"{path}/.metadata")
    ]
    return whole(folder, step, "torchtitan", reshardable=True, why=DATA_ORDER, latest=step == max(taken))


def judge_dcp(listing: Listing, folder: str) -> Found | None:
    """Any other folder of torch.distributed.checkpoint."""
    files = listing.files(folder)
    if not any(entry.path.endswith(".distcp") or entry.path.endswith("/.metadata.tmp") for entry in files):
        return None
    step = step_of(posixpath.basename(folder))
    try:
        check_dcp(listing, folder)
    except Torn as error:
        return torn(folder, step, str(error), "dcp")
    return whole(folder, step, "dcp", reshardable=True, why=TENSORS)


def judge_single_files(listing: Listing, folder: str) -> tuple[Found, ...]:
    """Files such as `ckpt_100.pt`. Nothing in a listing shows that one is whole but the size of the others."""
    named = [
        (entry, int(match[1]))
        for entry in listing.files(folder)
        if (match := _SINGLE.fullmatch(posixpath.basename(entry.path)))
    ]
    largest = max((entry.size_bytes for entry, _ in named), default=0)
    found = []
    for entry, step in named:
        if entry.size_bytes == 0:
            found.append(torn(entry.path, step, "the file is empty", "full"))
        elif entry.size_bytes < _SMALLEST_SHARE * largest:
            found.append(torn(entry.path, step, "it is shorter than the others: it was not written whole", "full"))
        elif len(named) == 1:
            why = "a single file, with no other to compare its size with: whether it was written whole cannot be told"
            found.append(torn(entry.path, step, why, "full"))
        else:
            found.append(whole(entry.path, step, "full", reshardable=True))
    return tuple(found)
