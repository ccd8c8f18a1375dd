"""Checkpoints of accelerate's `save_state`: the trainer's parts without its state."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from runbook.checkpoints.folders import Found, Listing, Torn, check_contiguous, checkpoint_format, torn, whole
from runbook.checkpoints.formats.huggingface import check_optimizer, check_weights

_ACCELERATE = re.compile(r"(checkpoint|step|epoch)_([0-9]{1,12})\Z")
_RANDOM_ACCELERATE = re.compile(r"random_states_([0-9]{1,7})\.pkl\Z")


@checkpoint_format(asked=80)
def judge_accelerate(listing: Listing, folder: str) -> Found | None:
    """A folder of `Accelerator.save_state`. The number of `checkpoint_N` counts the saves, not the steps."""
    match = _ACCELERATE.fullmatch(posixpath.basename(folder))
    names = [posixpath.basename(entry.path) for entry in listing.files(folder)]
    random = {int(found[1]) for name in names if (found := _RANDOM_ACCELERATE.fullmatch(name))}
    its_own = bool(random) or "scheduler.bin" in names or "sampler.bin" in names or "optimizer.bin" in names
    its_own = its_own or any(path.endswith(("/optimizer_0", "/pytorch_model")) for path in listing.folders(folder))
    if match is None or not its_own:
        return None
    number = int(match[2])
    step = number if match[1] == "step" else None
    try:
        check_weights(listing, folder)
        sharding = check_optimizer(listing, folder, "scheduler.bin", scheduler_needed=False)
        # Written last, by every rank for itself.
        if not random:
            raise Torn("no state of random numbers (random_states): the save did not finish")
        world_size = check_contiguous(random, "the random state of rank")
    except Torn as error:
        return Found(torn(folder, step, str(error)).checkpoint, number)
    return whole(folder, step, replace(sharding, world_size=world_size), order=number)
