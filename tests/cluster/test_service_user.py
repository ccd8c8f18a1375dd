"""As a site runs it: not root but a service user, who may become the job's owner and nobody else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cluster.conftest import REPOSITORY, ROOT, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PYTHON = Path("/usr/bin/python3")


@pytest.fixture(scope="module")
def packages() -> Path:
    """The package and its libraries where the service user can read them."""
    version = subprocess.run(
        (str(PYTHON), "-c", "import sys; print(sys.version_info[:2])"), capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == str(sys.version_info[:2]), "Debian's python3 has to be the environment's version"
    place = ROOT / "tests" / "packages"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(mode=0o711, exist_ok=True)
    place.parent.chmod(0o711)
    shutil.copytree(sysconfig.get_path("purelib"), place, symlinks=True)
    for name in ("runbook", "playbooks", "inventories"):
        shutil.rmtree(place / name, ignore_errors=True)
        shutil.copytree(REPOSITORY / name, place / name)
    subprocess.run(("chmod", "-R", "a+rX", str(place)), check=True)
    return place


def as_service(packages: Path, cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (
            *("sudo", "-n", "-u", "sb-runbook", f"PYTHONPATH={packages}", "HOME=/nonexistent"),
            *(str(PYTHON), "-m", "runbook", arguments[0], "--inventory", str(cluster.inventory), *arguments[1:]),
        ),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def prepare(cluster: Cluster) -> None:
    text = cluster.inventory.read_text(encoding="utf-8")
    text = text.replace(f"{ROOT}/ssh/id_ed25519", f"{ROOT}/ssh/sb-runbook/id_ed25519")
    cluster.inventory.write_text(text, encoding="utf-8")
    subprocess.run(("chown", "-R", "sb-runbook:sb-runbook", str(cluster.state)), check=True)


def test_the_service_user_brings_a_job_back_as_its_owner(cluster: Cluster, packages: Path) -> None:
    prepare(cluster)
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--usable-gib", "30")
    job = cluster.submit("healthy.sbatch")
    cluster.until(lambda: cluster.state_of(job) == "RUNNING", "the job runs")
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--xid", "79")
    cluster.until_dead(job, "healthy")
    done = as_service(packages, cluster, "oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert cluster.node_field("gpu-22", "Reason").startswith(f"runbook:oom-sandbox-{job}")
    relaunched = incident["attempts"][0]["job"]
    assert cluster.field(relaunched, "UserId").startswith("sb-alice(")
    assert cluster.field(relaunched, "JobName") == "healthy"


def test_its_copies_and_logs_are_nobody_elses_to_read(cluster: Cluster, packages: Path) -> None:
    prepare(cluster)
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    done = as_service(packages, cluster, "oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    folder = cluster.state / "incidents" / f"oom-sandbox-{job}"
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        assert path.stat().st_mode & 0o077 == 0, path
    script = cluster.slurm("scontrol", "write", "batch_script", cluster.incident(job)["attempts"][0]["job"], "-")
    assert "--micro-batch-size 2" in script


def test_a_person_without_rights_is_told_so_before_anything_is_touched(cluster: Cluster, packages: Path) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    subprocess.run(("chown", "-R", "sb-bob:sb-bob", str(cluster.state)), check=True)
    done = subprocess.run(
        (
            *("sudo", "-n", "-u", "sb-bob", f"PYTHONPATH={packages}", f"HOME={cluster.state}"),
            *(str(PYTHON), "-m", "runbook", "oom", "--inventory", str(cluster.inventory), "--job", job, "--yes"),
        ),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "sb-alice" in done.stderr
    assert "Traceback" not in done.stderr
    assert cluster.state_of(job) == "RUNNING"
    assert json.dumps(os.listdir(cluster.state)).find("oom-sandbox") < 0
