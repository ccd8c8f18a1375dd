"""Two jobs on one node: the neighbour on its own GPUs is left out of it, the one on the failed job's GPU is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conftest import Cluster

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
