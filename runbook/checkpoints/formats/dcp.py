"""Any folder of torch.distributed.checkpoint."""

from __future__ import annotations

import posixpath

from runbook.checkpoints.folders import (
    Found,
    Listing,
    Sharding,
    Torn,
    check_dcp,
    checkpoint_format,
    step_of,
    torn,
    whole,
)

TENSORS = "state that is no tensor (random numbers, data) is not resharded"


@checkpoint_format(asked=100, small_files=(".metadata",))
def judge_dcp(listing: Listing, folder: str) -> Found | None:
    """Any other folder of torch.distributed.checkpoint."""
    files = listing.files(folder)
    if not any(entry.path.endswith(".distcp") or entry.path.endswith("/.metadata.tmp") for entry in files):
        return None
    step = step_of(posixpath.basename(folder))
    try:
        check_dcp(listing, folder)
    except Torn as error:
        return torn(folder, step, str(error))
    return whole(folder, step, Sharding(reshardable=True, why=TENSORS))
