"""Slurm's own numbers of a job's GPUs, as `scontrol show job -d` prints them in the versions that there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runbook.model.job import GpuIndices, JobClass, JobRecord, JobState
from runbook.model.units import JobId, NodeName, UserName
from runbook.slurm.controller import index_list, read_gpu_indices

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm" / "22.05.8"
LINE = "     Nodes={} CPU_IDs=0-3 Mem=64 GRES={} \n"


def told(text: str) -> dict[str, tuple[int, ...]]:
    return {one.node: one.indices for one in read_gpu_indices(text)}


def test_a_job_that_shares_a_node_as_recorded() -> None:
    text = (RECORDED / "scontrol_job_detail_shared.txt").read_text()
    assert told(text) == {"gpu-23": (0, 1, 2), "gpu-24": (2, 3, 4)}


def test_when_the_job_has_ended_slurm_has_forgotten_them() -> None:
    assert told((RECORDED / "scontrol_job_detail_ended.txt").read_text()) == {}


@pytest.mark.parametrize(
    ("gres", "indices"),
    [
        ("gpu:2(IDX:0-1)", (0, 1)),
        ("gpu:h100:2(IDX:0,3)", (0, 3)),
        ("gpu:1(IDX:6)", (6,)),
        ("gpu(IDX:0-1)", (0, 1)),
        ("gres:gpu:2(IDX:4-5)", (4, 5)),
        ("gres/gpu:h100:2(IDX:4-5)", (4, 5)),
        ("gpu:h100:4(IDX:0-2,7)(S:0)", (0, 1, 2, 7)),
        ("gpu:nvidia_h100_80gb_hbm3:2(S:0-1)(IDX:2-3)", (2, 3)),
        ("gpu:h100:2(IDX:0,3),nic:1(IDX:0)", (0, 3)),
        ("nic:1(IDX:0),gpu:a100:1(IDX:1),gpu:h100:2(IDX:4-5)", (1, 4, 5)),
    ],
)
def test_the_ways_in_which_a_share_is_written(gres: str, indices: tuple[int, ...]) -> None:
    assert told(LINE.format("gpu-21", gres)) == {"gpu-21": indices}


@pytest.mark.parametrize(
    "gres",
    ["", "(null)", "gpu:2(CNT:2)", "gpu:2", "shard:h100:4(4/32,0/32)", "gpu:1(IDX:0),shard:4(IDX:1)", "gpu:2(IDX:)",
     "gpu:1(IDX:3-1)", "gpu:1(IDX:99999)", "gpu:1(IDX:0),gpu:a:1(IDX:0)", "nic:1(IDX:0)"],
)  # fmt: skip
def test_a_share_without_whole_gpus_says_nothing(gres: str) -> None:
    assert told(LINE.format("gpu-21", gres)) == {}


def test_a_line_for_several_nodes_and_one_without_gpus() -> None:
    text = LINE.format("gpu-[21-22,24]", "gpu:2(IDX:0-1)") + LINE.format("cpu-1", "")
    assert told(text) == {"gpu-21": (0, 1), "gpu-22": (0, 1), "gpu-24": (0, 1)}


def test_one_share_that_is_not_understood_makes_all_unknown() -> None:
    assert told(LINE.format("gpu-21", "gpu:2(IDX:0-1)") + LINE.format("gpu-22", "gpu:2(CNT:2)")) == {}


@pytest.mark.parametrize("own", ["gpu:2(IDX:0-1)", ""])
def test_a_name_that_imitates_a_line_moves_no_gpu(own: str) -> None:
    forged = "JobId=7 JobName=x\n" + LINE.format("gpu-21", "gpu:2(IDX:6-7)")
    assert told(forged + "   UserId=root(0)\n" + LINE.format("gpu-21", own)) == {}


def test_several_jobs_on_the_same_node_are_not_one() -> None:
    assert told(LINE.format("gpu-21", "gpu:1(IDX:0)") + "\n" + LINE.format("gpu-21", "gpu:1(IDX:1)")) == {}


def test_lists_of_numbers() -> None:
    assert index_list("0-2,5") == (0, 1, 2, 5)
    assert index_list("0-999999999") is None
    assert index_list("all") is None


def test_a_later_record_of_the_same_run_keeps_what_slurm_has_forgotten() -> None:
    running = JobRecord(
        JobId("7"), "c", "n", UserName("ada"), JobState("RUNNING", JobClass.ACTIVE), start_time_s=100.0,
        gpu_indices=(GpuIndices(NodeName("gpu-21"), (0, 3)),),
    )
    ended = replace(running, state=JobState("FAILED", JobClass.FAILED), gpu_indices=())
    assert ended.knowing(running).indices_on(NodeName("gpu-21")) == (0, 3)
    assert ended.knowing(None) == ended
    for other in (replace(ended, restarts=1), replace(ended, start_time_s=200.0), replace(ended, id=JobId("8"))):
        assert other.knowing(running) == other, "another run may have had other GPUs"
