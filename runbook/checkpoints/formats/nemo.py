"""Checkpoints of NeMo 2."""

from __future__ import annotations

import posixpath
import re

from runbook.checkpoints.folders import Found, Listing, Sharding, Torn, check_dcp, checkpoint_format, torn, whole
from runbook.checkpoints.formats.megatron import RESHARD

_NEMO_STEP = re.compile(r"step=([0-9]{1,12})")
UNFINISHED = "-unfinished"


@checkpoint_format(asked=60, marker=UNFINISHED)
def judge_nemo(listing: Listing, folder: str) -> Found | None:
    """NeMo 2: `weights/` and `context/`, with a marker `<name>-unfinished` beside the folder while it is written."""
    weights = f"{folder}/weights"
    name = posixpath.basename(folder)
    unfinished = listing.file(f"{folder}{UNFINISHED}")
    is_one = weights in listing.folders(folder) and (
        f"{folder}/context" in listing.folders(folder) or listing.has(f"{weights}/metadata.json")
    )
    if not is_one and unfinished is None:
        return None
    steps = _NEMO_STEP.findall(name)
    step = int(steps[-1]) if steps else None
    try:
        if unfinished is not None:
            raise Torn(f"its marker {name}{UNFINISHED} is still there: the save did not finish, and NeMo removes it")
        check_dcp(listing, weights)
        if not listing.has(f"{weights}/metadata.json"):
            raise Torn("no metadata.json in weights: the save was not finalised")
    except Torn as error:
        return torn(folder, step, str(error))
    siblings = [posixpath.basename(path) for path in listing.folders(posixpath.dirname(folder))]
    has_last = any(item.endswith("-last") for item in siblings)
    latest = name.endswith("-last") if has_last else None
    return whole(folder, step, Sharding(reshardable=True, why=RESHARD), latest=latest)
