"""Checkpoints of OpenRLHF: DeepSpeed's, of actor and critic in pairs."""

from __future__ import annotations

import posixpath

from runbook.checkpoints.folders import Found, Listing, Sharding, checkpoint_format, torn, whole
from runbook.checkpoints.formats.deepspeed import judge_deepspeed


@checkpoint_format(asked=10, takes=("_actor", "_critic"), small_files=("latest",))
def judge_openrlhf(listing: Listing, folder: str) -> tuple[Found, ...] | None:
    """OpenRLHF's folder with `_actor` and, where a critic is trained, `_critic`: both at the same step."""
    actor, critic = f"{folder}/_actor", f"{folder}/_critic"
    inside = listing.folders(folder)
    if actor not in inside:
        return None
    found = []
    for path in listing.folders(actor):
        judged = judge_deepspeed(listing, path)
        if judged is None:
            continue
        one = judged.checkpoint
        if not one.complete:
            found.append(torn(path, one.step, f"actor: {one.why}", one.world_size))
            continue
        problem = ""
        other = None
        if critic in inside:
            other = judge_deepspeed(listing, f"{critic}/{posixpath.basename(path)}")
            if other is None or not listing.inside(other.checkpoint.path):
                problem = f"critic: there is none of step {one.step}"
            elif not other.checkpoint.complete:
                problem = f"critic: {other.checkpoint.why}"
            elif other.checkpoint.latest is not one.latest:
                problem = "`latest` of actor and critic name different steps"
        if problem:
            found.append(torn(path, one.step, problem, one.world_size))
        else:
            sharding = Sharding(one.world_size, one.reshardable, one.why)
            found.append(whole(path, one.step, sharding, latest=one.latest))
    return tuple(found)
