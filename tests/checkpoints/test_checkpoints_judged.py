"""Checkpoint folders: which can be resumed from, told from a listing; the example job's own saves among them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runbook.checkpoints import choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.locations import data_folder
from runbook.model.checkpoint import Checkpoint, DirectoryEntry
from runbook.model.units import Unknown

DOCUMENT: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parent / "checkpoints.yaml")
LAYOUTS: dict[str, dict[str, str | int]] = DOCUMENT["layouts"]
CASES: list[dict[str, Any]] = DOCUMENT["cases"]


def expanded(name: str) -> list[str]:
    """The names that {0..3} or {00..01} in a name stand for."""
    ranges = re.findall(r"\{(\d+)\.\.(\d+)\}", name)
    parts = re.split(r"\{\d+\.\.\d+\}", name)
    numbers = [[str(i).zfill(len(low)) for i in range(int(low), int(high) + 1)] for low, high in ranges]
    return ["".join(itertools.chain(*zip(parts, (*chosen, ""), strict=True))) for chosen in itertools.product(*numbers)]


def files_of(case: dict[str, Any]) -> dict[str, bytes | int]:
    files = _contents(LAYOUTS.get(case.get("layout", ""), {}))
    for ending in case.get("without", []):
        gone = {name for name in files if name.endswith(ending)}
        assert gone, f"{ending} is no file of {case['title']}"
        files = {name: content for name, content in files.items() if name not in gone}
    return {**files, **_contents(case.get("files", {}))}


def _contents(named: dict[str, str | int]) -> dict[str, bytes | int]:
    files: dict[str, bytes | int] = {}
    for key, content in named.items():
        for name in expanded(key):
            binary = name.endswith((".pkl", ".metadata"))
            files[name] = content.encode("latin-1" if binary else "utf-8") if isinstance(content, str) else content
    return files


def listing(
    files: dict[str, bytes | int], times: dict[str, float] | None = None, folders: list[str] | None = None
) -> list[DirectoryEntry]:
    """Entries under /c for files (contents, or only a size) and the folders above them."""
    entries: dict[str, DirectoryEntry] = {}
    for name, content in [*files.items(), *((f"{folder}/", 0) for folder in folders or [])]:
        path = f"/c/{name}"
        for folder in [str(parent) for parent in Path(path).parents if str(parent) not in ("/", "/c")]:
            entries.setdefault(folder, DirectoryEntry(folder, True, 0, 1000.0))
        if name.endswith("/"):
            entries.setdefault(path.rstrip("/"), DirectoryEntry(path.rstrip("/"), True, 0, 1000.0))
            continue
        size = content if isinstance(content, int) else len(content)
        time_s = next((time for ending, time in (times or {}).items() if name.endswith(ending)), 1000.0)
        entries[path] = DirectoryEntry(path, False, size, time_s)
    return list(entries.values())


def judged(case: dict[str, Any]) -> tuple[Checkpoint, ...]:
    files = files_of(case)
    entries = listing(files, case.get("times"), case.get("folders"))
    small = {
        path: content
        for path in wanted_small_files(entries)
        if isinstance(content := files[path.removeprefix("/c/")], bytes)
    }
    return judge_checkpoints(entries, small)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["title"]) for case in CASES])
def test_a_listing(case: dict[str, Any]) -> None:
    found = judged(case)
    assert len(found) == len(case["found"]), found
    for one, wanted in zip(found, case["found"], strict=True):
        for key, value in wanted.items():
            if key == "why":
                assert one.complete is (value == ""), one
                assert value in one.why
            elif key == "limit":
                assert value in one.why
            elif key == "path":
                assert one.path == f"/c/{value}".rstrip("/")
            else:
                assert getattr(one, key) == value, (key, one)


NOT_TOLD = re.compile(
    r"step-100|common\.pt|saver_info|fsdp_config|recover_checkpoint/model|\.yaml$|/config\.json$|step_200/latest"
    # Without the contents of .metadata nothing says which shards there were.
    r"|\.distcp$"
    # The last rank of a format that does not say how many there are; what only one of several ranks has.
    r"|(?:rank_[13]_mp_rank_\d\d_optim|random_states_1|rng_state_3|mp_rank_01|optim_world_size_2_rank|scheduler\.bin)"
    r"|_critic/|critic/recover_checkpoint"
)
"""Files whose loss a listing cannot show, or whose loss does no harm."""


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_no_file_can_be_lost_unseen(layout: str) -> None:
    files = files_of({"title": layout, "layout": layout})
    for name in [name for name in files if not NOT_TOLD.search(name)]:
        left = {key: content for key, content in files.items() if key != name}
        entries = listing(left)
        small = {
            path: content
            for path in wanted_small_files(entries)
            if isinstance(content := left[path.removeprefix("/c/")], bytes)
        }
        newest = choose_checkpoint(judge_checkpoints(entries, small), world_size_changes=False)
        assert isinstance(newest, Unknown) or newest.step == 100, name


_NAMES = st.sampled_from((
    "iter_0000001", "global_step_1", "global_step1", "checkpoint-1", "checkpoint_1", "step-1", "actor", "_actor",
    "_critic", "recover_info", "recover_checkpoint", "mp_rank_00", "mp_rank_00_001", "weights", "context", "default",
    "dist_ckpt", "latest", ".metadata", "__0_0.distcp", "metadata.json", "trainer_state.json",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "mp_rank_00_model_states.pt", "optimizer.pt", "optimizer_0", "a-unfinished", "latest_checkpointed_iteration.txt",
    "latest_train_state.pt", "step_info.json", "ckpt_contents.json", "model_world_size_2_rank_0.pt", "fsdp_config.json",
))


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.lists(_NAMES, min_size=1, max_size=5).map("/".join), st.sampled_from((b"", b"1", b"{}", b"[[[")), max_size=14
    )
)
def test_any_listing_is_judged(files: dict[str, bytes]) -> None:
    """Whatever lies there, in whatever nesting, a folder and a file of one name included."""
    entries = listing(dict(files))
    small = {path: files[path.removeprefix("/c/")] for path in wanted_small_files(entries)}
    found = judge_checkpoints(entries, small)
    assert all(item.complete or item.why for item in found)
    assert len({item.path for item in found}) == len(found)
    assert all(not item.complete for item in judge_checkpoints(listing({f"{name}/x": 0 for name in files}), {}))


def test_documents_nested_beyond_reason_and_endless_trackers() -> None:
    deep = {"layout": "huggingface", "title": "", "files": {"checkpoint-200/trainer_state.json": "[" * 90000}}
    endless = {"layout": "torch_dist", "title": "", "files": {"latest_checkpointed_iteration.txt": "2" * 9000}}
    assert not any(item.complete for case in (deep, endless) for item in judged(case))


def test_the_newest_complete_one_is_chosen() -> None:
    found = judged({
        "title": "", "layout": "torch_dist",
        "files": {"iter_0000300/__0_0.distcp": 10, "iter_0000100/__0_0.distcp": 10, "iter_0000100/.metadata": 10},
    })
    assert [(item.step, item.complete) for item in found] == [(300, False), (200, True), (100, True)]
    chosen = choose_checkpoint(found, world_size_changes=False)
    assert isinstance(chosen, Checkpoint) and chosen.step == 200


@pytest.mark.parametrize(
    ("layout", "word"),
    [("deepspeed", "universal"), ("legacy", "legacy layout"), ("verl_fsdp", "in their names"),
     ("areal", "same parallelism"), ("openrlhf", "universal"), ("huggingface_deepspeed", "universal")],
)
def test_another_world_size_needs_one_that_is_known_to_reshard(layout: str, word: str) -> None:
    found = judged({"title": "", "layout": layout})
    assert isinstance(choose_checkpoint(found, world_size_changes=False), Checkpoint)
    refused = choose_checkpoint(found, world_size_changes=True)
    assert isinstance(refused, Unknown) and "another world size" in refused.unknown and word in refused.unknown


@pytest.mark.parametrize(
    "layout", ["torch_dist", "torchtitan", "huggingface_fsdp", "deepspeed_universal", "verl_megatron"]
)
def test_what_reshards_is_taken_with_another_world_size(layout: str) -> None:
    chosen = choose_checkpoint(judged({"title": "", "layout": layout}), world_size_changes=True)
    assert isinstance(chosen, Checkpoint)


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


@pytest.mark.parametrize(("kind", "loads_elsewhere"), [("torch_dist", True), ("deepspeed", False)])
def test_what_the_example_job_saves_is_judged_as_it_judges_itself(
    tmp_path: Path, kind: str, loads_elsewhere: bool
) -> None:
    example = _example()
    for iteration in (10, 20, 30):
        state = example.TrainingState(iteration, iteration * 32, 2, 2, 32, 1)
        for rank in range(2):
            example.write_shard(str(tmp_path), rank, state, kind)
        if iteration < 30:  # the last save dies between the shards and the index
            example.finalise(str(tmp_path), state, kind)
    entries = [
        DirectoryEntry(str(path), path.is_dir(), path.stat().st_size, path.stat().st_mtime)
        for path in sorted(tmp_path.rglob("*"))
    ]
    small = {path: Path(path).read_bytes() for path in wanted_small_files(entries)}
    found = {item.step: item for item in judge_checkpoints(entries, small)}
    assert {step: item.complete for step, item in found.items()} == {30: False, 20: True, 10: True}
    assert found[20].latest and found[20].world_size == 2
    assert found[20].reshardable is loads_elsewhere
    assert example.load(str(tmp_path), 20, 2, kind).iteration == 20
    if loads_elsewhere:
        assert example.load(str(tmp_path), 20, 3, kind).world_size == 2
    else:
        with pytest.raises(example.CheckpointError, match="DP world size of 2"):
            example.load(str(tmp_path), 20, 3, kind)
    with pytest.raises(example.CheckpointError):
        example.load(str(tmp_path), 30, 2, kind)
