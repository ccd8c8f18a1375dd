"""The simulated GPU: what is on it, who shares it, and what is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.device import (
    CONTEXT_BYTES,
    H100_TOTAL_BYTES,
    CudaOutOfMemoryError,
    GpuLostError,
    SimulatedGpu,
    gpu_of_rank,
    read_gpu_state,
)

GIB = 1 << 30


def write_state(root: Path, **values: object) -> None:
    folder = root / "gpu-21"
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"gpus": [{"index": 0}, {"index": 2, **values}]}))


def gpu(root: Path) -> SimulatedGpu:
    return SimulatedGpu.on_host("gpu-21", 2, {"SIMULATED_GPU_DIR": str(root)})


def register(root: Path, pid: int, size_bytes: int) -> Path:
    entry = root / "gpu-21" / "processes" / "2" / str(pid)
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(json.dumps({"bytes": size_bytes, "name": "python3"}) + "\n")
    return entry


def test_without_a_folder_the_card_is_ours() -> None:
    card = SimulatedGpu.on_host("gpu-21", 0, {})
    card.create_context()
    assert card.total_bytes == H100_TOTAL_BYTES
    assert card.free_bytes() == H100_TOTAL_BYTES - CONTEXT_BYTES
    assert card.take(GIB)
    assert card.process_bytes == CONTEXT_BYTES + GIB
    assert not card.take(H100_TOTAL_BYTES)
    assert card.others() == ()


def test_a_missing_or_broken_state_file_means_a_healthy_card(tmp_path: Path) -> None:
    assert read_gpu_state(str(tmp_path), 0).total_bytes == H100_TOTAL_BYTES
    (tmp_path / "state.json").write_text("{")
    assert not read_gpu_state(str(tmp_path), 0).lost


def test_lost_memory_is_missing_from_free_but_not_from_the_capacity(tmp_path: Path) -> None:
    write_state(tmp_path, total_bytes=80 * GIB, usable_bytes=70 * GIB)
    card = gpu(tmp_path)
    assert card.total_bytes == 80 * GIB
    assert card.free_bytes() == 70 * GIB


def test_a_lost_card_raises(tmp_path: Path) -> None:
    write_state(tmp_path, lost=True)
    with pytest.raises(GpuLostError, match="CUDA error: unknown error"):
        gpu(tmp_path).check()


def test_processes_of_the_state_file_and_living_ones_take_memory(tmp_path: Path) -> None:
    write_state(tmp_path, total_bytes=80 * GIB, extra_processes=[{"pid": 1, "bytes": 5 * GIB, "name": "python"}])
    with subprocess.Popen(["sleep", "60"]) as neighbour:
        try:
            register(tmp_path, neighbour.pid, 30 * GIB)
            card = gpu(tmp_path)
            assert [(p.pid, p.used_bytes) for p in card.others()] == [(1, 5 * GIB), (neighbour.pid, 30 * GIB)]
            assert card.free_bytes() == 45 * GIB
        finally:
            neighbour.kill()


def test_dead_processes_are_removed_and_rubbish_is_ignored(tmp_path: Path) -> None:
    write_state(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    entry = register(tmp_path, dead.pid, 30 * GIB)
    (entry.parent / "notes.txt").write_text("not a process")
    (entry.parent / "1").write_text("not JSON")
    assert gpu(tmp_path).others() == ()
    assert not entry.exists()


def test_a_process_registers_what_it_uses_and_leaves(tmp_path: Path) -> None:
    write_state(tmp_path)
    card = gpu(tmp_path)
    card.create_context()
    entry = tmp_path / "gpu-21" / "processes" / "2" / str(os.getpid())
    assert json.loads(entry.read_text())["bytes"] == CONTEXT_BYTES
    assert card.take(2 * GIB)
    assert json.loads(entry.read_text()) == {"bytes": CONTEXT_BYTES + 2 * GIB, "name": "python3"}
    card.close()
    assert not entry.exists()


def test_a_folder_that_may_not_be_written_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "gpu-21").write_text("a file where the folder should be")
    card = gpu(tmp_path)
    card.create_context()
    assert card.take(GIB)
    card.close()


def test_the_context_needs_memory_too(tmp_path: Path) -> None:
    write_state(tmp_path, total_bytes=80 * GIB, extra_processes=[{"pid": 1, "bytes": 80 * GIB}])
    with pytest.raises(CudaOutOfMemoryError, match="CUDA error: out of memory"):
        gpu(tmp_path).create_context()


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [(None, 3, (3, 3)), ("4,5,6,7", 1, (1, 5)), ("6", 0, (0, 6)), ("6", 3, (0, 6)), ("0, 1", 1, (1, 1))],
)
def test_which_gpu_a_rank_has(visible: str | None, local_rank: int, expected: tuple[int, int]) -> None:
    assert gpu_of_rank(visible, local_rank) == expected


def test_too_few_visible_gpus() -> None:
    with pytest.raises(IndexError, match="invalid device ordinal"):
        gpu_of_rank("0,1", 2)


def test_the_simulator_imports_the_allocator_alone_of_runbook() -> None:
    script = (
        "import sys, simulator.workload, simulator.messages, simulator.tracebacks\n"
        "print([n for n in sys.modules if n.startswith('runbook.') and not n.startswith('runbook.allocator')])"
    )
    answer = subprocess.run([sys.executable, "-S", "-E", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
