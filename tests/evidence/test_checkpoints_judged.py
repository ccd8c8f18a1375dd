"""Checkpoint folders: which can be resumed from, told from a listing; the example job's own saves among them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runbook.evidence.checkpoints import choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.locations import data_folder
from runbook.model.checkpoint import Checkpoint, DirectoryEntry
from runbook.model.units import Unknown

TRACKER = "latest_checkpointed_iteration.txt"


def listing(files: dict[str, bytes | int], times: dict[str, float] | None = None) -> list[DirectoryEntry]:
    """Entries under /c for files (contents, or only a size) and the folders above them."""
    entries: dict[str, DirectoryEntry] = {}
    for name, content in files.items():
        path = f"/c/{name}"
        for folder in [str(parent) for parent in Path(path).parents if str(parent) not in ("/", "/c")]:
            entries.setdefault(folder, DirectoryEntry(folder, True, 0, 1000.0))
        if name.endswith("/"):
            entries.setdefault(path.rstrip("/"), DirectoryEntry(path.rstrip("/"), True, 0, 1000.0))
            continue
        size = content if isinstance(content, int) else len(content)
        entries[path] = DirectoryEntry(path, False, size, (times or {}).get(name, 1000.0))
    return list(entries.values())


def judged(files: dict[str, bytes | int], times: dict[str, float] | None = None) -> dict[int | None, Checkpoint]:
    entries = listing(files, times)
    small = {
        path: content
        for path in wanted_small_files(entries)
        if isinstance(content := files[path.removeprefix("/c/")], bytes)
    }
    return {item.step: item for item in judge_checkpoints(entries, small)}


def megatron(step: int, ranks: int = 2, **extra: int) -> dict[str, bytes | int]:
    folder = f"iter_{step:07d}"
    return {
        **{f"{folder}/__{rank}_0.distcp": 10 for rank in range(ranks)},
        f"{folder}/.metadata": 10,
        f"{folder}/common.pt": 10,
        f"{folder}/metadata.json": json.dumps({"world_size": ranks, **extra}).encode(),
    }


def deepspeed(step: int, ranks: int = 2) -> dict[str, bytes | int]:
    folder = f"global_step{step}"
    return {
        f"{folder}/mp_rank_00_model_states.pt": 10,
        **{f"{folder}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": 10 for rank in range(ranks)},
    }


def hugging_face(step: int) -> dict[str, bytes | int]:
    folder = f"checkpoint-{step}"
    return {
        f"{folder}/trainer_state.json": json.dumps({"global_step": step}).encode(),
        f"{folder}/optimizer.pt": 10, f"{folder}/scheduler.pt": 10, f"{folder}/model.safetensors": 10,
    }


def without(files: dict[str, bytes | int], end: str) -> dict[str, bytes | int]:
    return {name: content for name, content in files.items() if not name.endswith(end)}


def test_megatron_with_its_tracker() -> None:
    found = judged({**megatron(100), **megatron(200), TRACKER: b"200\n"})
    assert list(found) == [200, 100]
    assert all(item.complete and item.reshardable and item.world_size == 2 for item in found.values())
    assert (found[200].latest, found[100].latest) == (True, False)


TORN: list[tuple[str, dict[str, bytes | int], str]] = [
    ("newer than the tracker", {**megatron(100), **megatron(200), TRACKER: b"100"}, "tracker still names 100"),
    ("no index", {**without(megatron(200), ".metadata"), TRACKER: b"200"}, "no .metadata"),
    ("not finalised", {**without(megatron(200), "metadata.json"), TRACKER: b"200"}, "no metadata.json"),
    ("no shards", {**without(megatron(200), ".distcp"), TRACKER: b"200"}, "no shard files"),
    ("no tracker", megatron(200), "no readable tracker"),
    ("a tracker that is no number", {**megatron(200), TRACKER: "²⁰⁰".encode()}, "no readable tracker"),
    ("an endless tracker", {**megatron(200), TRACKER: b"2" * 9000}, "no readable tracker"),
    ("an empty shard", {**megatron(200), "iter_0000200/__1_0.distcp": 0, TRACKER: b"200"}, "shard file is empty"),
    ("an empty folder", {"iter_0000200/": 0, TRACKER: b"200"}, "folder is empty"),
    ("deepspeed: latest names an older one", {**deepspeed(200), "latest": b"global_step100"}, "did not finish"),
    ("deepspeed: no latest", deepspeed(200), "no readable `latest`"),
    (
        "deepspeed: a rank is missing",
        {**without(deepspeed(200, 3), "rank_1_mp_rank_00_optim_states.pt"), "latest": b"global_step200"},
        "data-parallel rank 1 is missing",
    ),
    (
        "deepspeed: no model", {**without(deepspeed(200), "_model_states.pt"), "latest": b"global_step200"},
        "no model-state file",
    ),
    ("hf: no trainer state", without(hugging_face(200), "trainer_state.json"), "trainer_state.json is missing"),
    ("hf: half a state", {**hugging_face(200), "checkpoint-200/trainer_state.json": b'{"global_'}, "does not parse"),
    ("hf: nested beyond reason", {**hugging_face(200), "checkpoint-200/trainer_state.json": b"[" * 90000}, "not parse"),
    ("hf: another step", {**hugging_face(200), "checkpoint-200/trainer_state.json": b'{"global_step": 9}'}, "step 9"),
    ("hf: only the model", without(hugging_face(200), "optimizer.pt"), "optimizer or scheduler"),
    ("hf: too large to read", {**hugging_face(200), "checkpoint-200/trainer_state.json": 9 << 20}, "not read whole"),
    ("no known format", {"global_step200/weights.bin": 10}, "no model-state file"),
]


@pytest.mark.parametrize(("files", "why"), [pytest.param(files, why, id=name) for name, files, why in TORN])
def test_a_torn_checkpoint_is_named_with_the_reason(files: dict[str, bytes | int], why: str) -> None:
    found = judged(files)[200]
    assert not found.complete
    assert why in found.why


def test_a_save_over_an_old_one_that_did_not_finish() -> None:
    files: dict[str, bytes | int] = {"step-50/__0_0.distcp": 10, "step-50/__1_0.distcp": 10, "step-50/.metadata": 10}
    assert judged(files)[50].complete
    torn = judged(files, {"step-50/__1_0.distcp": 1060.0})[50]
    assert not torn.complete and "newer than .metadata" in torn.why


def test_deepspeed_and_hugging_face() -> None:
    plain = judged({**deepspeed(100, 4), **deepspeed(50, 4), "latest": b"global_step100"})
    assert [(item.complete, item.world_size, item.reshardable) for item in plain.values()] == [(True, 4, False)] * 2
    assert judged(hugging_face(500))[500].complete


def test_a_deepspeed_folder_inside_a_hugging_face_checkpoint_is_a_part_of_it() -> None:
    inner = {f"checkpoint-500/{name}": content for name, content in deepspeed(500).items()}
    found = judged({**without(hugging_face(500), "optimizer.pt"), **inner, "checkpoint-500/latest": b"global_step500"})
    assert [item.path for item in found.values()] == ["/c/checkpoint-500"]
    assert found[500].complete


def test_the_newest_complete_one_is_chosen() -> None:
    torn = without(megatron(300), ".metadata")
    found = tuple(judged({**megatron(100), **megatron(200), **torn, TRACKER: b"200"}).values())
    chosen = choose_checkpoint(found, world_size_changes=False)
    assert isinstance(chosen, Checkpoint) and chosen.step == 200


def test_another_world_size_needs_one_that_is_known_to_reshard() -> None:
    tied = tuple(judged({**deepspeed(100), "latest": b"global_step100"}).values())
    unknown = tuple(judged(hugging_face(100)).values())
    for checkpoints in (tied, unknown):
        assert isinstance(choose_checkpoint(checkpoints, world_size_changes=False), Checkpoint)
        refused = choose_checkpoint(checkpoints, world_size_changes=True)
        assert isinstance(refused, Unknown) and "another world size" in refused.unknown


def test_nothing_there() -> None:
    assert judge_checkpoints([], {}) == ()
    assert isinstance(choose_checkpoint((), world_size_changes=False), Unknown)


def _example() -> Any:
    path = data_folder("examples") / "train" / "checkpoints.py"
    spec = importlib.util.spec_from_file_location("example_checkpoints", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_checkpoints"] = module
    spec.loader.exec_module(module)
    return module


def test_what_the_example_job_saves_is_judged_as_it_judges_itself(tmp_path: Path) -> None:
    example = _example()
    for iteration in (10, 20, 30):
        state = example.TrainingState(iteration, iteration * 32, 2, 2, 32, 1)
        for rank in range(2):
            example.write_shard(str(tmp_path), rank, state)
        if iteration < 30:  # the last save dies between the shards and the index
            example.finalise(str(tmp_path), state)
    entries = [
        DirectoryEntry(str(path), path.is_dir(), path.stat().st_size, path.stat().st_mtime)
        for path in sorted(tmp_path.rglob("*"))
    ]
    small = {path: Path(path).read_bytes() for path in wanted_small_files(entries)}
    found = {item.step: item for item in judge_checkpoints(entries, small)}
    assert {step: item.complete for step, item in found.items()} == {30: False, 20: True, 10: True}
    assert found[20].latest and found[20].world_size == 2
    assert example.load(str(tmp_path), 20).iteration == 20
    with pytest.raises(example.CheckpointError):
        example.load(str(tmp_path), 30)
