"""`runbook node` on a real Slurm with real sshd: the eyes of a job, of another one, and of nobody."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_a_jobs_nodes_its_own_processes_and_a_fault_in_its_time(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    hanging = cluster.runbook("node", "--job", job)
    assert hanging.returncode == 0, hanging.stdout + hanging.stderr
    assert f"For job {job} (RUNNING): GPU events count from" in hanging.stdout
    assert f"{job}, this job" in hanging.stdout
    assert "2 nodes: 2 clean" in hanging.stdout
    assert "gpu-21: clean. What to do: nothing." in hanging.stdout, "its own processes are where they belong"
    assert "job's GPUs  0, 1, 2, 3" in hanging.stdout

    nobody = cluster.runbook("node", "gpu-21")
    assert nobody.returncode == 0, nobody.stdout
    assert f"{job}, runs" in nobody.stdout and "sb-alice" in nobody.stdout
    assert "Slurm       " in nobody.stdout

    assert cluster.runbook("node", "gpu-24", "--job", job).returncode == 2
    cluster.sandbox("gpu", "gpu-22", "--gpu", "3", "--xid", "79")
    document = json.loads(cluster.runbook("node", "--job", job, "--json").stdout)
    assert {one["facts"]["node"]: one["judgement"]["verdict"] for one in document["nodes"]} == {
        "gpu-21": "clean", "gpu-22": "faulty",
    }
    assert document["job"] == job and document["jobs"] == [{"id": job, "standing": "live", "detail": "RUNNING"}]
    assert document["nodes"][1]["state"]["gpus"] == 8
    assert cluster.runbook("node", "gpu-[21-22]").returncode == 6, "an Xid of some time is nobody's"
    assert "DRAIN" not in cluster.node_field("gpu-22", "State"), "it touches nothing"


def test_a_node_that_slurm_does_not_have_is_asked_all_the_same(cluster: Cluster) -> None:
    done = cluster.runbook("node", "gpu-21", "gpu-99")
    assert done.returncode == 6
    assert "gpu-99: unknown" in done.stdout and "gpu-21  clean" in done.stdout
