"""What a submission for fewer nodes says anew on sbatch's command line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.model.job import JobClass, JobRecord, JobState, Submission
from runbook.model.units import JobId, NodeName, UserName
from runbook.remedy import Refused, world_options
from runbook.report.vocabulary.sentences import in_words
from runbook.slurm.submit import options_in_force, sbatch_command
from tests.contract.fakes import claimed

JOB = JobRecord(
    JobId("7"), "c", "n", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=4, gpus_per_node=8,
    work_dir="/home/ada", command="/home/ada/job.sh",
)

NODES = tuple(NodeName(f"gpu-{number}") for number in range(21, 25))


@pytest.mark.parametrize(("line", "header", "left", "said"), [
    ("", "", 3, ()),
    ("-N 4 --ntasks-per-node=8", "", 3, ()),
    ("-N4 -n 32", "", 3, ("--ntasks=24",)),
    ("", "#SBATCH --ntasks=32 --gpus=32", 2, ("--ntasks=16", "--gpus=16")),
    ("--ntasks=16", "#SBATCH --ntasks=32", 2, ("--ntasks=8",)),
    ("-G a100:8,h100:8", "", 2, ("--gpus=a100:4,h100:4",)),
    ("--segment=2", "", 2, ()),
])
def test_totals_follow_the_nodes(line: str, header: str, left: int, said: tuple[str, ...]) -> None:
    assert world_options(_asked(line, header), 4, left) == said


@pytest.mark.parametrize(("line", "left", "why"), [
    ("-n 30", 3, "--ntasks=30 does not go with 3 of 4 nodes"),
    ("--gpus=a100", 3, "--gpus=a100 does not go with"),
    ("--nodefile=hosts", 3, "names the job's nodes"),
    ("-m arbitrary", 3, "places the ranks on named nodes"),
    ("--segment=2", 3, "does not divide 3 nodes"),
])
def test_what_does_not_go_with_fewer_nodes_is_refused(line: str, left: int, why: str) -> None:
    with pytest.raises(Refused) as refused:
        world_options(_asked(line, ""), 4, left)
    assert why in in_words(refused.value.refusal.why)


def test_nodes_asked_for_by_name_lose_the_one_that_is_gone() -> None:
    asked = _asked("", "#SBATCH --nodelist=gpu-[21-24]")
    assert world_options(asked, 4, 3, wanted_nodes=NODES, gone=NODES[1:2]) == ("--nodelist=gpu-21,gpu-23,gpu-24",)
    with pytest.raises(Refused) as refused:
        world_options(asked, 4, 2, wanted_nodes=NODES, gone=NODES[1:2])
    assert "asks for 3 of the nodes, and 2 are free" in in_words(refused.value.refusal.why)


def test_sbatch_is_given_the_smaller_totals_in_place_of_the_original_s() -> None:
    job = replace(JOB, submit_line="sbatch -N 4 -n 32 --exclusive job.sh")
    options = ("--exclude=gpu-22", "--nodes=3", *_options(job, 3))
    command = sbatch_command(Submission(claimed("ada", "t"), "/home/ada", "/x/job.sh", options), job)
    assert [word for word in command.argv if word.startswith(("--n", "--e"))] == [
        "--exclusive", "--nodes=3", "--ntasks=24", "--exclude=gpu-22",
    ]


def _options(job: JobRecord, left: int) -> tuple[str, ...]:
    return world_options(options_in_force(job, "", {}), 4, left)


def _asked(line: str, header: str) -> dict[str, str]:
    words = f"sbatch {line} job.sh".replace("  ", " ")
    return options_in_force(replace(JOB, submit_line=words), f"#!/bin/bash\n{header}\nsrun x\n", {})
