"""AReaL's recover checkpoint."""

from __future__ import annotations

import posixpath

from runbook.checkpoints.folders import (
    CLOCK_TOLERANCE_S,
    Found,
    Listing,
    Sharding,
    Torn,
    check_dcp,
    check_not_empty,
    checkpoint_format,
    torn,
    whole,
)

IN_PLACE = "AReaL overwrites it in place and asks for the same parallelism: copy it before anything is started"


@checkpoint_format(asked=20, small_files=("step_info.json", "dataloader_info.pkl"))
def judge_areal(listing: Listing, folder: str) -> Found | None:
    """A trial's folder: `recover_info/`, and `recover_checkpoint/` of each model. There is only one, written over at
    each save: first the models, then the files of recover_info, `dataloader_info.pkl` last (areal/utils/recover.py)."""
    roles = [path for path in listing.folders(folder) if f"{path}/recover_checkpoint" in listing.folders(path)]
    info = f"{folder}/recover_info"
    if not roles and not (listing.folders(folder) and info in listing.folders(folder)):
        return None
    state = listing.document(f"{info}/step_info.json")
    done = state.get("global_step") if state is not None else None
    # `global_step` is that of the last finished step, counted from 0; the log counts steps from 1.
    step = done + 1 if isinstance(done, int) and not isinstance(done, bool) and 0 <= done < 10**12 else None
    try:
        if not roles:
            raise Torn("no recover_checkpoint beside recover_info")
        last = listing.file(f"{info}/dataloader_info.pkl")
        newest = 0.0
        for path in roles:
            newest = max(newest, _check_recover(listing, f"{path}/recover_checkpoint", posixpath.basename(path)))
        if last is None:
            raise Torn("no dataloader_info.pkl, which is written last: the save did not finish")
        content = listing.small.get(last.path)
        if last.size_bytes == 0 or (content is not None and not content.endswith(b".")):
            raise Torn("dataloader_info.pkl is cut: the save did not finish")
        if step is None:
            raise Torn("step_info.json is missing or does not parse: the save did not finish")
        if newest > last.modified_s + CLOCK_TOLERANCE_S:
            raise Torn("the model is newer than recover_info: a save over it did not finish, and it was the only one")
    except Torn as error:
        return torn(folder, step, str(error))
    return whole(folder, step, Sharding(reshardable=False, why=IN_PLACE), latest=True)


def _check_recover(listing: Listing, path: str, role: str) -> float:
    """When its newest file was written."""
    files = tuple(listing.all_files(path))
    if not files:
        raise Torn(f"{role}: recover_checkpoint is empty")
    if any(entry.path.endswith((".distcp", "/.metadata.tmp")) for entry in listing.files(path)):
        try:
            check_dcp(listing, path)
        except Torn as error:
            raise Torn(f"{role}: {error}") from error
    check_not_empty(files, f"{role}: a file")
    return max(entry.modified_s for entry in files)
