"""Users of the sandbox against each other through this tool: as root, and as a service user with sudo."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.test_killed import kill_at as killed_at
from tests.cluster.test_service_user import as_service, prepare

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DECOY = """\
#!/bin/bash
#SBATCH --job-name=decoy
#SBATCH --output=/tmp/decoy-%j.out
echo "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
sleep {seconds}
exit {code}
"""
LOADED = """\
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 6 || strncmp(path + length - 6, "sbatch", 6) != 0) return;
    FILE *marker = fopen("%(marker)s", "a");
    if (marker) fclose(marker);
    puts("%(job)s");
    fflush(stdout);
    _exit(0);
}
"""
Drive = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["root", "service"])
def drive(request: pytest.FixtureRequest, cluster: Cluster, packages: Path) -> Drive:
    if request.param == "root":
        return cluster.runbook
    prepare(cluster)
    return lambda *arguments: as_service(packages, cluster, *arguments)


def kill_at(cluster: Cluster, job: str, point: str) -> None:
    """Of a tool that root runs, for which the inventory has to be root's; what it kept goes to whom it belonged to."""
    owner = cluster.state.owner()
    give(cluster, "root")
    killed_at(cluster, job, point)
    give(cluster, owner)


def give(cluster: Cluster, owner: str) -> None:
    subprocess.run(("chown", "-R", f"{owner}:{owner}", str(cluster.state)), check=True)


def decoy(cluster: Cluster, comment: str, *, code: int = 1, seconds: int = 0) -> str:
    """A job of the other user's."""
    script = Path("/tmp") / f"decoy-{cluster.name}.sbatch"
    script.write_text(DECOY.format(seconds=seconds, code=code), encoding="utf-8")
    script.chmod(0o644)
    options = (f"--comment={comment}", "--mem=64M", "--chdir=/tmp")
    return cluster.submit(str(script), *options, user="sb-bob")


def files_of(user: str, folder: Path) -> str:
    return subprocess.run(("find", str(folder), "-user", user), capture_output=True, text=True, check=True).stdout


def brought_back(cluster: Cluster, job: str, done: subprocess.CompletedProcess[str]) -> str:
    """The relaunched job, once it is seen that it is the owner's."""
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    (attempt,) = incident["attempts"]
    relaunched: str = attempt["job"]
    assert cluster.field(relaunched, "UserId").startswith("sb-alice(")
    assert files_of("sb-bob", cluster.state) == ""
    return relaunched


def test_a_job_with_a_guessed_comment_is_not_taken_for_the_relaunch(cluster: Cluster, drive: Drive) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    decoys = [decoy(cluster, f"runbook:oom-sandbox-{job}:{attempt}") for attempt in (1, 2)]
    cluster.until(lambda: all(cluster.state_of(one) == "FAILED" for one in decoys), "the decoys have failed")
    relaunched = brought_back(cluster, job, drive("oom", "--job", job, "--yes"))
    assert relaunched not in decoys


def test_a_job_with_the_copied_comment_is_left_alone(cluster: Cluster, drive: Drive) -> None:
    """Comments of jobs can be read: while the tool, which was killed as it had submitted, does not know the relaunch's
    number yet, the other user copies its comment."""
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    kill_at(cluster, job, "after scheduler.submit")
    (line,) = cluster.relaunches(job)
    submitted = line.split()[0].removeprefix("JobId=")
    copied = decoy(cluster, cluster.field(submitted, "Comment"), seconds=300)
    cluster.until(lambda: cluster.state_of(copied) == "RUNNING", "the copy runs")
    before = cluster.incident(job)
    asked = drive("oom", "--job", copied, "--plan")
    assert "Traceback" not in asked.stderr
    own = cluster.incident(copied)
    assert own["root_job"] == copied and own["attempts"] == [], "not taken for the incident whose comment it carries"
    assert cluster.incident(job) == before
    relaunched = brought_back(cluster, job, drive("resume", f"oom-sandbox-{job}"))
    assert relaunched == submitted
    assert cluster.state_of(copied) == "RUNNING", "another user's job was touched"


def test_sbatch_loads_nothing_of_the_owners_and_its_words_are_not_believed(cluster: Cluster, drive: Drive) -> None:
    """The owner's environment names a library that prints another user's job in sbatch's place."""
    victim = decoy(cluster, "mine", seconds=600)
    cluster.until(lambda: cluster.state_of(victim) == "RUNNING", "the other user's job runs")
    source, library, marker = (cluster.jobs / name for name in ("evil.c", "evil.so", "loaded"))
    source.write_text(LOADED % {"marker": marker, "job": victim}, encoding="utf-8")
    subprocess.run(("gcc", "-shared", "-fPIC", "-o", str(library), str(source)), check=True)
    shutil.chown(cluster.jobs, "sb-alice", "sb-alice")
    loads = ("sudo", "-n", "-u", "sb-alice", "env", f"LD_PRELOAD={library}", "sbatch", "--version")
    said = subprocess.run(loads, capture_output=True, text=True, check=True, cwd="/").stdout
    assert victim in said and marker.exists(), "where it is loaded, it does what it is made for"
    marker.unlink()
    job = cluster.submit("true-oom.sbatch", "--export=ALL,LD_PRELOAD=" + str(library), RUNBOOK_MARK="kept")
    cluster.until_dead(job, "true-oom")
    relaunched = brought_back(cluster, job, drive("oom", "--job", job, "--yes"))
    assert relaunched != victim
    assert cluster.state_of(victim) == "RUNNING"
    assert not marker.exists(), "the owner's library was loaded into sbatch"
    kept = cluster.slurm("sacct", f"--jobs={relaunched}", "--env-vars")
    assert f"LD_PRELOAD={library}" in kept, "the job itself keeps its environment"
    assert "RUNBOOK_MARK=kept" in kept
