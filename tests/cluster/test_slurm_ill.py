"""Slurm is ill while a job is brought back: accounting is away as it dies, the controller says nothing for a minute, it
has forgotten the job, or its clock is another. What is asked is asked again, and what is done is done once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT, SLURM, Cluster
from tests.service.signed_in import address_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SILENT_S = 40.0
PIDS = Path("/run/runbook-sandbox/pids")
CONFIGURATION = ROOT / "etc" / "slurm.conf"


def pid_of(daemon: str) -> int:
    return int((PIDS / daemon).read_text(encoding="ascii").split()[0])


def recovered(cluster: Cluster, job: str) -> None:
    incident = cluster.incident(job)
    assert incident["state"] == "recovered", (incident["conclusion"], incident["notes"])
    assert len(cluster.relaunches(job)) == len(incident["attempts"]) == 1
    assert [act["what"] for act in incident["acts"]].count("submit") == 1


def test_a_job_that_dies_while_accounting_is_away_comes_back_when_that_is_there_again(cluster: Cluster) -> None:
    """Nobody types anything: the epilog's word is kept, though what the relaunch needs is in accounting alone."""
    text = cluster.inventory.read_text(encoding="utf-8")
    cluster.inventory.write_text(text.replace(f"spool: {cluster.state}/spool", f"spool: {ROOT}/spool"), "utf-8")
    for left in (ROOT / "spool").glob("*.event"):
        left.unlink()
    daemon = cluster.start_runbook("serve", "--port", "0")
    try:
        address_of(daemon)
        os.kill(pid_of("slurmdbd"), signal.SIGTERM)
        job = cluster.submit("true-oom.sbatch", SLURM_KILL_BAD_EXIT="1")
        cluster.until(lambda: cluster.state_of(job) == "FAILED", "the job has died")
        cluster.until(lambda: [*(ROOT / "spool").glob("*.event")], "the epilog told of it")
        time.sleep(5)
        assert cluster.relaunches(job) == []
        cluster.sandbox("up")
        opened = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
        cluster.until(opened.exists, "the daemon opened the incident", 90)
        cluster.until(lambda: cluster.incident(job)["state"] in ("recovered", "escalated", "closed"), "it ended", 150)
        recovered(cluster, job)
    finally:
        cluster.sandbox("up")
        daemon.terminate()
        _, said = daemon.communicate(timeout=60)
    assert "Traceback" not in said


def test_a_controller_that_says_nothing_for_a_while_in_the_middle_of_an_incident(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    running = cluster.start_runbook("oom", "--job", job, "--yes")
    opened = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
    cluster.until(opened.exists, "the incident is open")
    controller = pid_of("slurmctld")
    os.kill(controller, signal.SIGSTOP)
    try:
        time.sleep(SILENT_S)
        assert running.poll() is None, running.communicate()
    finally:
        os.kill(controller, signal.SIGCONT)
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, (out, err)
    recovered(cluster, job)


@contextmanager
def forgetful() -> Iterator[None]:
    """The controller forgets jobs some seconds after their end."""
    before = CONFIGURATION.read_text(encoding="utf-8")
    assert "MinJobAge=300" in before
    try:
        CONFIGURATION.write_text(before.replace("MinJobAge=300", "MinJobAge=2"), encoding="utf-8")
        reconfigure()
        yield
    finally:
        CONFIGURATION.write_text(before, encoding="utf-8")
        reconfigure()


def reconfigure() -> None:
    subprocess.run(("scontrol", "reconfigure"), env={**os.environ, **SLURM}, check=True, timeout=60)


def test_a_job_that_the_controller_has_forgotten_comes_back_by_what_accounting_kept(cluster: Cluster) -> None:
    with forgetful():
        job = cluster.submit("true-oom.sbatch", SLURM_KILL_BAD_EXIT="1")
        cluster.until_dead(job, "true-oom")

        def forgotten() -> bool:
            listed = cluster.slurm("squeue", "--noheader", "--states=all", "--format=%i")
            return job not in listed.split()

        cluster.until(forgotten, "the controller has forgotten it", 120)
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert cluster.incident(job)["original"]["job"]["source"] == "sacct"
    recovered(cluster, job)


@pytest.mark.needs("faketime")
@pytest.mark.parametrize("apart", ["-50s", "+50s"], ids=["behind", "ahead"])
def test_a_clock_that_is_not_the_controllers(cluster: Cluster, apart: str) -> None:
    """Of this machine, less than a minute off: whose job the relaunch is and how old logs are goes by both clocks."""
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    done = subprocess.run(
        ("faketime", "-f", apart, *cluster.argv("oom", "--job", job, "--yes")), cwd=cluster.state,
        capture_output=True, text=True, timeout=150, check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    recovered(cluster, job)
