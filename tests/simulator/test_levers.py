"""The job scripts as shipped: each dies the way it says, and only the right remedy helps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulator.jobs import Result, run_script

GIB = 1 << 30
HALF = ("--micro-batch-size", "2", "--gradient-accumulation-steps", "2")
EXPANDABLE = "expandable_segments:True"


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """A script's first run and its checkpoints; each script runs once, each caller gets a copy of the checkpoints."""
    root = tmp_path_factory.mktemp("first-runs")
    results: dict[str, Result] = {}

    def first_run(script: str) -> tuple[Result, Path]:
        if script not in results:
            results[script] = run_script(script, root / script)
        copy = tmp_path_factory.mktemp("again") / "checkpoints"
        if (root / script).exists():
            shutil.copytree(root / script, copy)
        return results[script], copy

    return first_run


Died = Callable[[str], tuple[Result, Path]]


class TestFragmentation:
    def test_one_rank_dies_with_room_that_it_cannot_use(self, died: Died) -> None:
        result, _ = died("fragmentation.sbatch")
        assert result.status == 1
        assert result.iterations()[-1] == 10
        assert result.failed_ranks() == {6}
        assert result.available_bytes() > 2 * result.tried_bytes()
        assert "cross_entropy" in result.log

    def test_expandable_segments_carry_it_past_and_to_the_end(self, died: Died) -> None:
        _, checkpoints = died("fragmentation.sbatch")
        result = run_script("fragmentation.sbatch", checkpoints, conf=EXPANDABLE)
        assert "successfully loaded checkpoint" in result.log
        assert result.iterations() == list(range(11, 61))
        assert result.status == 0

    def test_expandable_segments_from_the_start(self, tmp_path: Path) -> None:
        result = run_script("fragmentation.sbatch", tmp_path / "new", conf=EXPANDABLE, iterations=30)
        assert result.status == 0

    def test_half_the_micro_batch_dies_at_the_same_iteration(self, died: Died) -> None:
        _, checkpoints = died("fragmentation.sbatch")
        result = run_script("fragmentation.sbatch", checkpoints, *HALF)
        assert result.status == 1
        assert result.iterations() == []
        assert result.available_bytes() > result.tried_bytes()

    def test_half_the_micro_batch_dies_from_the_start_too(self, tmp_path: Path) -> None:
        result = run_script("fragmentation.sbatch", tmp_path / "new", *HALF)
        assert result.status == 1
        assert result.available_bytes() > result.tried_bytes()

    def test_nothing_changed_dies_again(self, died: Died) -> None:
        _, checkpoints = died("fragmentation.sbatch")
        result = run_script("fragmentation.sbatch", checkpoints)
        assert result.status == 1
        assert result.iterations()[-1] == 13


class TestTrueShortage:
    def test_one_rank_dies_when_the_full_length_begins(self, died: Died) -> None:
        result, checkpoints = died("true-oom.sbatch")
        assert result.iterations()[-1] == 39
        assert result.failed_ranks() == {5}
        assert result.available_bytes() < 0.6 * result.tried_bytes()
        assert "_engine_run_backward" in result.log
        assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == "30"

    def test_half_the_micro_batch_resumes_and_passes(self, died: Died) -> None:
        _, checkpoints = died("true-oom.sbatch")
        result = run_script("true-oom.sbatch", checkpoints, *HALF, iterations=50)
        assert result.status == 0
        assert result.iterations() == list(range(31, 51))
        assert "global batch size:    32 |" in result.log

    def test_checkpointing_passes_too(self, died: Died) -> None:
        _, checkpoints = died("true-oom.sbatch")
        changes = ("--activation-checkpointing", "selective")
        assert run_script("true-oom.sbatch", checkpoints, *changes, iterations=45).status == 0

    def test_expandable_segments_do_not_help(self, died: Died) -> None:
        _, checkpoints = died("true-oom.sbatch")
        result = run_script("true-oom.sbatch", checkpoints, conf=EXPANDABLE)
        assert result.status == 1
        assert result.iterations()[-1] == 39
        assert result.available_bytes() < result.tried_bytes()


class TestTwoLevers:
    ONE = ("--micro-batch-size", "1", "--gradient-accumulation-steps", "2")

    def test_dies_truly(self, died: Died) -> None:
        result, _ = died("two-levers.sbatch")
        assert result.iterations()[-1] == 19
        assert result.available_bytes() < result.tried_bytes()

    def test_one_sequence_is_still_too_much(self, died: Died) -> None:
        _, checkpoints = died("two-levers.sbatch")
        result = run_script("two-levers.sbatch", checkpoints, *self.ONE)
        assert result.status == 1
        assert result.iterations()[-1] == 19
        assert result.available_bytes() < result.tried_bytes()

    @pytest.mark.parametrize("checkpointing", ["selective", "full"])
    def test_one_sequence_with_checkpointing_passes(self, died: Died, checkpointing: str) -> None:
        _, checkpoints = died("two-levers.sbatch")
        changes = (*self.ONE, "--activation-checkpointing", checkpointing)
        assert run_script("two-levers.sbatch", checkpoints, *changes, iterations=30).status == 0

    def test_full_checkpointing_alone_passes_and_selective_does_not(self, died: Died) -> None:
        for checkpointing, status in (("full", 0), ("selective", 1)):
            _, checkpoints = died("two-levers.sbatch")
            changes = ("--activation-checkpointing", checkpointing)
            assert run_script("two-levers.sbatch", checkpoints, *changes, iterations=24).status == status

    def test_expandable_segments_do_not_help(self, died: Died) -> None:
        _, checkpoints = died("two-levers.sbatch")
        assert run_script("two-levers.sbatch", checkpoints, *self.ONE, conf=EXPANDABLE).status == 1


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("micro_batch_size", ["2", "1"])
@pytest.mark.parametrize("conf", [None, EXPANDABLE])
def test_exhausted_dies_with_every_lever(
    tmp_path: Path, checkpointing: str, micro_batch_size: str, conf: str | None
) -> None:
    accumulation = str(2 // int(micro_batch_size))
    batch = ("--micro-batch-size", micro_batch_size, "--gradient-accumulation-steps", accumulation)
    shipped = ("--activation-checkpointing", checkpointing, *batch)
    for options in (shipped, (*shipped, "--seq-length", "2048")):
        result = run_script("exhausted.sbatch", tmp_path / "none", *options, conf=conf)
        assert result.status == 1
        assert result.iterations() == []


def test_healthy_finishes(tmp_path: Path) -> None:
    result = run_script("healthy.sbatch", tmp_path / "new", iterations=20)
    assert result.status == 0
    assert "OutOfMemory" not in result.log
