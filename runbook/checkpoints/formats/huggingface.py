"""Checkpoints of the Hugging Face trainer (TRL with it)."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from runbook.checkpoints.folders import (
    Found,
    Listing,
    Sharding,
    Torn,
    check_contiguous,
    check_dcp,
    check_not_empty,
    checkpoint_format,
    torn,
    whole,
)
from runbook.checkpoints.formats.deepspeed import check_states, tied_to

_TRAINER = re.compile(r"checkpoint-([0-9]{1,12})\Z")
_RANDOM = re.compile(r"rng_state_([0-9]{1,7})\.pth\Z")
_PART = re.compile(r"(.{1,80})-([0-9]{5})-of-([0-9]{5})\.(?:safetensors|bin)\Z")
_FEWER = "ranks that are added find no state of random numbers, which is only warned of"
ONLY_MODEL = "it holds only the model (save_only_model), from which the optimizer cannot go on"


@checkpoint_format(asked=50, small_files=("trainer_state.json", "latest"))
def judge_trainer(listing: Listing, folder: str) -> Found | None:
    """`checkpoint-N`. `trainer_state.json` is written late; rank by rank the random states come beside it. The trainer
    itself takes the greatest N without a look (trainer_utils.get_last_checkpoint)."""
    match = _TRAINER.fullmatch(posixpath.basename(folder))
    if match is None:
        return None
    step = int(match[1])
    world_size = None
    try:
        if not listing.inside(folder):
            raise Torn("the folder is empty")
        _check_trainer_state(listing, folder, step)
        check_weights(listing, folder)
        sharding = check_optimizer(listing, folder, "scheduler.pt", scheduler_needed=True)
        world_size = sharding.world_size
        world_size = _check_random(listing, folder) or world_size
    except Torn as error:
        return torn(folder, step, str(error), world_size)
    return whole(folder, step, replace(sharding, world_size=world_size))


def _check_trainer_state(listing: Listing, folder: str, step: int) -> None:
    path = f"{folder}/trainer_state.json"
    entry = listing.file(path)
    if entry is None:
        raise Torn("trainer_state.json is missing: the save did not finish")
    content = listing.small.get(path)
    if entry.size_bytes and (content is None or len(content) < entry.size_bytes):
        # A long log history makes it larger than what is read; then nothing is concluded from it.
        raise Torn(f"trainer_state.json ({entry.size_bytes} bytes) was not read whole, so nothing is known of it")
    state = listing.document(path)
    if state is None:
        raise Torn("trainer_state.json does not parse: the save did not finish")
    if state.get("global_step") != step:
        raise Torn(f"trainer_state.json names step {str(state.get('global_step'))[:40]}")


def check_weights(listing: Listing, folder: str) -> None:
    """There are weights, and they are whole: of `…-00001-of-00004` all four, none of them empty."""
    parts: dict[tuple[str, int], set[int]] = {}
    weights = [entry for entry in listing.files(folder) if entry.path.endswith((".safetensors", ".bin", ".pt"))]
    check_not_empty(weights, "a file")
    if not any("model" in posixpath.basename(entry.path) for entry in weights) and not any(
        posixpath.basename(path).startswith(("pytorch_model", "global_step")) for path in listing.folders(folder)
    ):
        raise Torn("no weights")
    for entry in weights:
        match = _PART.fullmatch(posixpath.basename(entry.path))
        if match is not None:
            parts.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (name, count), present in parts.items():
        missing = sorted(set(range(1, min(count, 100_000) + 1)) - present)
        if missing:
            raise Torn(f"part {missing[0]} of {count} of {name} is missing")


def check_optimizer(
    listing: Listing, folder: str, scheduler: str, *, scheduler_needed: bool
) -> Sharding:
    """Who can load it. Raises `Torn`."""
    inside = listing.folders(folder)
    sharded = [path for path in inside if re.search(r"/(?:optimizer|pytorch_model_fsdp)_[0-9]{1,3}\Z", path)]
    engine = _engine_folder(listing, folder)
    has_scheduler = listing.has(f"{folder}/{scheduler}")
    if engine is not None:
        world_size = check_states([entry for entry in listing.files(engine) if entry.path.endswith("_states.pt")])
        return tied_to(world_size)
    single = any(listing.has(f"{folder}/{name}") for name in ("optimizer.pt", "optimizer.bin"))
    if sharded:
        for path in sharded:
            check_dcp(listing, path)
        if not single and not any(path.rpartition("/")[2].startswith("optimizer_") for path in sharded):
            raise Torn("the optimizer's folder is missing: the save did not finish")
    elif not single:
        raise Torn(ONLY_MODEL if not has_scheduler else "the optimizer state is missing: the save did not finish")
    if scheduler_needed and not has_scheduler:
        raise Torn(f"{scheduler} is missing: the save did not finish")
    return Sharding(reshardable=True, why=_FEWER)


def _engine_folder(listing: Listing, folder: str) -> str | None:
    """DeepSpeed's folder inside: `global_stepN` named by `latest`, or accelerate's `pytorch_model`."""
    tag = listing.text(f"{folder}/latest")
    folders = {posixpath.basename(path): path for path in listing.folders(folder)}
    if tag is not None:
        if tag not in folders:
            raise Torn(f"`latest` names {tag[:60]!r}, which is missing")
        return folders[tag]
    steps = [name for name in folders if name.startswith("global_step")]
    if steps:
        raise Torn("there is no `latest` beside DeepSpeed's states: the save did not finish")
    if "pytorch_model" in folders and any(
        entry.path.endswith("_states.pt") for entry in listing.files(folders["pytorch_model"])
    ):
        return folders["pytorch_model"]
    return None


def _check_random(listing: Listing, folder: str) -> int | None:
    """The number of ranks by their random states; every rank writes one."""
    names = [posixpath.basename(entry.path) for entry in listing.files(folder)]
    ranks = {int(match[1]) for name in names if (match := _RANDOM.fullmatch(name))}
    if ranks:
        return check_contiguous(ranks, "the random state of rank")
    if "rng_state.pth" not in names:
        raise Torn("no state of random numbers (rng_state): the save did not finish")
    return 1
