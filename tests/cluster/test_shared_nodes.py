"""Two jobs on one node: the neighbour on its own GPUs is left out of it, the one on the failed job's GPU is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.slurm.scheduler import SlurmCli
from runbook.model.units import JobId, NodeName
from tests.cluster.conftest import ROOT, SLURM, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SHARED = "gpu-22"


def bobs_job(cluster: Cluster, *options: str) -> str:
    """A job of sb-bob with two of the shared node's GPUs, whose one process holds 60 GiB."""
    job = cluster.submit(
        f"--wrap=python3 ../train/tenant.py --gib 60 --seconds 150 {' '.join(options)}",
        f"--nodelist={SHARED}", "--gpus-per-node=2", "--output=/dev/null", "--job-name=bobs-server", user="sb-bob",
    )  # fmt: skip
    places = cluster.state.parents[1] / "gpus" / SHARED / "processes"
    cluster.until(lambda: any(path.is_file() for path in places.glob("*/*")), "bob's process holds its memory")
    return job


def shared_indices(incident: dict[str, Any]) -> list[int]:
    """Slurm's own numbers of the job's GPUs on the shared node, as the incident kept them past the job's end."""
    found: list[int] = next(
        one["indices"] for one in incident["original"]["job"]["gpu_indices"] if one["node"] == SHARED
    )
    return found


def test_a_neighbour_on_its_own_gpus_is_no_tenant(cluster: Cluster) -> None:
    bob = bobs_job(cluster)
    job = cluster.submit("true-oom.sbatch", "--nodelist=gpu-[21-22]")
    cluster.until_dead(job, "true-oom")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "true_oom"
    assert shared_indices(incident) == [2, 3, 4, 5]
    (judgement,) = incident["original"]["judgements"]
    assert judgement["node"] == SHARED
    assert (judgement["verdict"], judgement["tenants"]) == ("clean", [])
    assert judgement["job_gpus"] == [2, 3, 4, 5]
    assert not any("which of the node's GPUs" in text for text in judgement["missing"])
    assert incident["excluded_nodes"] == [] and cluster.state_of(bob) == "RUNNING"


def test_a_neighbour_that_strayed_onto_the_jobs_gpu_is_named(cluster: Cluster) -> None:
    bob = bobs_job(cluster, "--gpu-index", "3")
    job = cluster.submit("healthy.sbatch", "--nodelist=gpu-[21-22]")
    cluster.until_dead(job, "healthy")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert shared_indices(incident) == [2, 3, 4, 5]
    (judgement,) = incident["original"]["judgements"]
    assert judgement["verdict"] == "occupied"
    (tenant,) = judgement["tenants"]
    assert (tenant["owner"], tenant["job"]) == ("sb-bob", bob)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "co_tenant"
    assert incident["excluded_nodes"] == [SHARED] and incident["drained_nodes"] == []
    assert cluster.state_of(bob) == "RUNNING", "somebody else's job is none of ours"


@pytest.fixture
def left() -> Iterator[Path]:
    """The folder of the spool where the nodes' epilogs leave files; they leave none where it is missing."""
    folder = ROOT / "spool" / "nodes"
    there = folder.exists()
    folder.mkdir(mode=0o750, exist_ok=True)
    yield folder
    if not there:
        shutil.rmtree(folder)


def test_the_nodes_epilog_tells_the_gpus_of_a_job_that_is_over(cluster: Cluster, left: Path) -> None:
    bob = bobs_job(cluster)
    job = cluster.submit("--wrap=exit 7", "--nodelist=gpu-[21-22]", "--gpus-per-node=2", "--output=/dev/null")
    cluster.until(lambda: cluster.state_of(job) == "FAILED", "the job is over")
    cluster.until(lambda: len(list(left.glob(f"*-{job}-0.*.gpus"))) == 2, "both nodes have left their word")
    slurm = SlurmCli(SlurmCommands(slurm_conf=SLURM["SLURM_CONF"]), left=left)
    record = slurm.job(JobId(job))
    assert record.state.name == "FAILED"
    assert [record.indices_on(NodeName(node)) for node in ("gpu-21", SHARED)] == [(0, 1), (2, 3)]
    live = slurm.job(JobId(bob))
    assert live.indices_on(NodeName(SHARED)) == (0, 1)
