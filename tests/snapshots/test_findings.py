"""What a snapshot is said to show, on simulated ones whose truth is known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.allocator import AllocationFailedError
from runbook.cage import read_apart
from runbook.cage.walls import Limits
from runbook.errors import BoxStopped
from runbook.model.snapshots import Category, DeviceFindings, Phase, Shortage
from runbook.snapshots import findings_of, read_snapshot
from tests.json_answers import check_answer
from tests.snapshots.simulated import FORWARD, SimulatedJob, training

GIB, MIB = 1 << 30, 1 << 20


def found(job: SimulatedJob) -> DeviceFindings:
    return findings_of(read_snapshot(job.stream()), "simulated").devices[0]


def test_what_is_alive_at_the_peak_by_category() -> None:
    job = SimulatedJob(8 * GIB)
    training(job, 3)
    device = found(job)
    # At the end of a forward pass: weights, the optimizer's states, and every layer's activations and one gradient.
    assert device.moment.categories[Category.WEIGHTS] == 8 * 24 * MIB
    assert device.moment.categories[Category.OPTIMIZER] == 8 * 48 * MIB
    assert device.moment.categories[Category.ACTIVATIONS] == 8 * 64 * MIB
    assert device.highest == device.moment.size == sum(device.moment.categories.values())
    assert Category.UNKNOWN not in device.moment.categories
    assert device.growth.per_step == 0


def test_a_leak_has_a_size_and_a_holder() -> None:
    job = SimulatedJob(8 * GIB)
    training(job, 7, leak=40 * MIB)
    growth = found(job).growth
    assert growth.per_step == 40 * MIB
    assert [one.frames[0].name for one in growth.suspects] == ["remember"]


def test_a_trace_that_begins_in_the_middle() -> None:
    """The ring has lost its beginning: sizes stay right, and what was there before is said."""
    whole, late = SimulatedJob(8 * GIB), SimulatedJob(8 * GIB)
    training(whole, 4)
    training(late, 4)
    late.trace = late.trace[len(late.trace) * 2 // 3 :]
    full, ring = found(whole), found(late)
    assert ring.highest == full.highest
    assert ring.moment.before_recording >= 8 * (24 + 48) * MIB
    assert ring.moment.categories[Category.OPTIMIZER] == 8 * 48 * MIB


def test_a_request_that_no_arrangement_could_serve() -> None:
    job = SimulatedJob(GIB)
    with pytest.raises(AllocationFailedError):
        training(job, 3, activation=128 * MIB)
    device = found(job)
    assert device.shortage is Shortage.FULL
    assert device.request is not None
    assert device.deficit == device.request.size - device.request.device_free - device.use.free
    assert device.moment.at_failure
    assert device.moment.phases[Phase.FORWARD] > device.moment.phases[Phase.SETUP]


def test_enough_was_free_but_in_pieces() -> None:
    job = SimulatedJob(GIB)
    blocks = [job.allocate(6 * MIB, FORWARD) for _ in range(150)]
    job.free(blocks[::2])
    with pytest.raises(AllocationFailedError):
        job.allocate(200 * MIB, FORWARD)
    device = found(job)
    assert device.shortage is Shortage.PIECES
    assert device.use.free > 200 * MIB > device.use.largest_free


def test_the_command_tells_ranks_side_by_side(tmp_path: Path) -> None:
    for rank in range(2):
        job = SimulatedJob(GIB)
        with pytest.raises(AllocationFailedError):
            training(job, 3, activation=(128 + 32 * rank) * MIB)
        (tmp_path / f"oom_rank{rank}.pickle").write_bytes(job.stream().getvalue())
    command = [sys.executable, "-m", "runbook", "snapshot", str(tmp_path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("oom_rank0.pickle, GPU 0: ") == 1
    assert "was missing, however the memory had been arranged" in text
    assert "train/model.py:88 attend" in text
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    check_answer("schemas/snapshot.json", told)
    assert [one["file"] for one in told["snapshots"]] == ["oom_rank0.pickle", "oom_rank1.pickle"]
    device = told["snapshots"][1]["devices"][0]
    assert device["shortage"] == "full"
    assert device["alive"]["by_category"]["activations"] == 4 * 160 * MIB


def test_who_reads_apart_is_held_by_its_limits(tmp_path: Path) -> None:
    """As root reads a user's file: a file that takes more than it may ends that process, and is said."""
    path = tmp_path / "rank0.pickle"
    path.write_bytes(b"\x80\x04](" + b"]" * 6_000_000 + b"e.")
    limits = Limits(memory_bytes=64 << 20, cpu_s=60, file_bytes=1 << 20)
    with path.open("rb") as stream, pytest.raises(BoxStopped, match="took more memory or time"):
        read_apart(stream, path.name, always_replay=False, limits=limits)


def test_no_file_and_no_pickle_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path, says in ((tmp_path / "gone.pickle", "is not there"), (tmp_path, "no file of")):
        command = [sys.executable, "-m", "runbook", "snapshot", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 3
        assert says in done.stderr
