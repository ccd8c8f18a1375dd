"""Checkpoints of torchtitan: `step-N`, folders of torch.distributed.checkpoint."""

from __future__ import annotations

import posixpath
import re

from runbook.checkpoints.folders import Found, Listing, Sharding, Torn, check_dcp, checkpoint_format, torn, whole

_TORCHTITAN = re.compile(r"step-([0-9]{1,12})\Z")
DATA_ORDER = "the data loader's state is kept by data-parallel rank: another number of them loads only without it"


@checkpoint_format(asked=70)
def judge_torchtitan(listing: Listing, folder: str) -> Found | None:
    """`step-N`, which torchtitan takes when it has `.metadata` (components/checkpoint.py)."""
    match = _TORCHTITAN.fullmatch(posixpath.basename(folder))
    if match is None:
        return None
    step = int(match[1])
    shards = any(entry.path.endswith(".distcp") for entry in listing.files(folder))
    if not shards and listing.has(f"{folder}/model.safetensors.index.json"):
        return torn(folder, step, "it holds only weights in Hugging Face's format, without optimizer")
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        check_dcp(listing, folder)
    except Torn as error:
        return torn(folder, step, str(error))
    taken = [
        int(found[1])
        for path in listing.folders(posixpath.dirname(folder))
        if (found := _TORCHTITAN.fullmatch(posixpath.basename(path))) and listing.has(f"{path}/.metadata")
    ]
    sharding = Sharding(reshardable=True, why=DATA_ORDER)
    return whole(folder, step, sharding, latest=step == max(taken))
