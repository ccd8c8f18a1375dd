"""The first hour on a real cluster: what `runbook setup` finds and writes there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runbook.config import load_inventory
from runbook.model.incident import Policy
from tests.cluster.conftest import ROOT, SLURM, Cluster
from tests.programs import find

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_setup_finds_the_cluster_its_rights_and_its_nodes(cluster: Cluster) -> None:
    target = cluster.state / "made.yaml"
    done = subprocess.run(
        (
            *(sys.executable, "-m", "runbook", "setup", "--json", "--user", "sb-runbook", "--group", "sb-alice"),
            *("--spool", str(ROOT / "spool"), "--state", str(cluster.state / "incidents"), "--ssh-user", "root"),
            *("--ssh-key", str(ROOT / "ssh" / "id_ed25519"), "-o", str(target)),
        ),
        cwd=cluster.state, capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cluster.state), **SLURM},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["cluster"], made["slurm_conf"]) == ("sandbox", SLURM["SLURM_CONF"])
    assert made["slurm_conf_lines"] == [] and not any("runbook-epilog" in line for line in made["commands"])
    said = {title: [c for c in made["checks"] if c["title"] == title] for title in {c["title"] for c in made["checks"]}}
    assert [c["mark"] for c in said["cancel, drain"]] == ["ok", "ok"]
    assert "Administrator" in said["cancel, drain"][0]["what"]
    assert "(sb-alice, sb-bob) NOPASSWD" in said["sudo to owners"][0]["what"]
    assert [c["mark"] for c in said["spool"]] == ["ok"]
    # This user's own known_hosts has none of the nodes, and setup takes no key unseen.
    assert {c["what"].partition(":")[0] for c in said["SSH to nodes"]} == {"gpu-21", "gpu-24"}
    assert "checking nodes for GPU faults and co-tenants" in {one["what"] for one in made["not_possible_yet"]}
    assert load_inventory(str(target)).policy.mode is Policy.PLAN
    assert not (cluster.state / "incidents").exists()


def test_the_canary_shows_the_chain_and_goes_away_again(cluster: Cluster) -> None:
    # The site's own spool, which the cluster's epilog writes into.
    text = cluster.inventory.read_text(encoding="utf-8").replace(f"{cluster.state}/spool", f"{ROOT}/spool")
    cluster.inventory.write_text(text, encoding="utf-8")
    before = {path.name for path in cluster.home.iterdir()}
    done = cluster.runbook(
        "canary", "--as", "sb-alice", "--folder", str(cluster.home), "--only", "gpu-oom", "--only", "healthy", "--json"
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    made = json.loads(done.stdout)
    works = {one["part"]: one["works"] for one in made["chain"]}
    told = ("jobs", "epilog", "spool", "healthy jobs", "log", "node check", "patch", "relaunch", "proof", "report")
    for part in told:
        assert works[part] == "works", made["chain"]
    assert made["left_behind"] == [] and {path.name for path in cluster.home.iterdir()} == before
    jobs = [one["job"] for one in made["jobs"]]
    assert not [path for job in jobs for path in (ROOT / "spool").glob(f"*-{job}-*")]
    assert not cluster.slurm("squeue", "--noheader", "--user=sb-alice")
    assert not (cluster.state / "incidents").exists(), "it is no incident of the site"


def with_an_sbatch(cluster: Cluster, script: str) -> None:
    """Slurm's commands come from a folder whose sbatch is this one."""
    folder = Path(tempfile.mkdtemp(prefix="runbook-commands-"))
    folder.chmod(0o755)
    for name in ("sacct", "scancel", "scontrol", "sinfo", "squeue"):
        (folder / name).symlink_to(find(name) or name)
    sbatch = folder / "sbatch"
    sbatch.write_text(script, encoding="utf-8")
    sbatch.chmod(0o755)
    text = cluster.inventory.read_text(encoding="utf-8")
    changed = text.replace("kind: slurm", f"kind: slurm, commands_folder: {folder}", 1)
    assert changed != text
    cluster.inventory.write_text(changed, encoding="utf-8")


def test_a_number_that_sbatch_prints_makes_no_job_the_canarys(cluster: Cluster) -> None:
    """sbatch runs as a user, whose other processes may have taken its pipe."""
    words = ("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300")
    others = cluster.slurm(*words, user="sb-bob").partition(";")[0]
    with_an_sbatch(cluster, f"#!/bin/sh\nprintf '{others};'\nexec {find('sbatch')} \"$@\"\n")
    done = cluster.runbook("canary", "--as", "sb-alice", "--folder", str(cluster.home), "--only", "healthy", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    made = json.loads(done.stdout)
    assert [one["job"] != others and one["state"] == "COMPLETED" for one in made["jobs"]] == [True], made["jobs"]
    assert cluster.state_of(others) in ("PENDING", "RUNNING"), "the job that was named is another's"


def test_a_job_that_a_site_gives_another_comment_is_told_of(cluster: Cluster) -> None:
    """It cannot be known as the canary's, so it is not cancelled, and whoever ran the canary hears where to look."""
    with_an_sbatch(cluster, f'#!/bin/sh\nexec {find("sbatch")} "$1" --comment=site "$3"\n')
    done = cluster.runbook("canary", "--as", "sb-alice", "--folder", str(cluster.home), "--only", "healthy")
    assert done.returncode not in (0, 6), (done.stdout, done.stderr)
    left, _, error = done.stderr.partition("runbook: ")
    assert "squeue --user=sb-alice --name=runbook-canary-healthy" in left, done.stderr
    assert "changes the comments of jobs" in error
    listed = cluster.slurm("scontrol", "show", "job", "-o").splitlines()
    (made,) = [line for line in listed if "JobName=runbook-canary-healthy" in line and "Comment=site" in line]
    assert "JobState=CANCELLED" not in made, "it was not known as the canary's"
