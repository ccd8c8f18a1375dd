"""kill -9 around every effect on a real Slurm; the resumed incident does each of them once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.crash, pytest.mark.timeout(240)]

DRIVER = Path(__file__).resolve().parents[1] / "crash" / "driver.py"


def kill_at(cluster: Cluster, job: str, point: str) -> None:
    done = subprocess.run(
        (sys.executable, str(DRIVER), str(cluster.inventory), point, str(cluster.state / "points"), job),
        cwd=cluster.state,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == -9, (point, done.stdout, done.stderr)


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("effect", ["cancel", "submit"])
def test_killed_around_cancel_and_submit(cluster: Cluster, effect: str, point: str) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    kill_at(cluster, job, f"{point} scheduler.{effect}")
    done = cluster.runbook("resume", f"oom-sandbox-{job}")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert len(cluster.relaunches(job)) == len(incident["attempts"]) == 1
    assert cluster.state_of(job) == "CANCELLED"


@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_around_a_drain(cluster: Cluster, point: str) -> None:
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--usable-gib", "30")
    job = cluster.submit("healthy.sbatch")
    cluster.until(lambda: cluster.state_of(job) == "RUNNING", "the job runs")
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--xid", "79")
    cluster.until_dead(job, "healthy")
    kill_at(cluster, job, f"{point} scheduler.drain")
    done = cluster.runbook("resume", f"oom-sandbox-{job}")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert cluster.node_field("gpu-22", "Reason").startswith(f"runbook:oom-sandbox-{job}")
    assert incident["drained_nodes"] == ["gpu-22"], "a drain that was done before the kill is still known as ours"
    assert len(cluster.relaunches(job)) == 1
