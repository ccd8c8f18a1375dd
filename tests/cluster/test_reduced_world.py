"""A node is lost and there is no spare: on with fewer nodes at exactly the same global batch, or not at all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cluster.conftest import NODES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def lose_a_gpu(cluster: Cluster, name: str) -> str:
    """A job on all four nodes that has saved, and then loses a GPU of gpu-22 as a real one does."""
    job = cluster.submit(f"{name}.sbatch")
    cluster.until_dead(job, name, "successfully saved checkpoint from iteration      10")
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--lost", "--xid", "79")
    cluster.until_dead(job, name, "Traceback")
    return job


def words_of_ranks(cluster: Cluster, job: str) -> list[str]:
    """The command lines of the job's ranks as the kernel has them, on all nodes: they share its process numbers."""
    listed = cluster.slurm("ps", "-eo", "pid=,args=", "-ww")
    ranks = [line for line in listed.splitlines() if "train.py" in line and re.match(r" *\d+ \S*python3 ", line)]
    mine = f"SLURM_JOB_ID={job}\0".encode()
    found = []
    for line in ranks:
        try:
            with open(f"/proc/{line.split()[0]}/environ", "rb") as variables:
                if mine in variables.read():
                    found.append(line)
        except OSError:
            continue
    return found


def test_a_job_goes_on_with_three_of_four_nodes_and_the_same_global_batch(cluster: Cluster) -> None:
    job = lose_a_gpu(cluster, "reduced-world")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, (done.stdout, done.stderr)
    incident = cluster.incident(job)
    assert incident["state"] == "recovered", incident["conclusion"]
    assert incident["drained_nodes"] == ["gpu-22"]
    assert (incident["num_nodes"], incident["world_options"]) == (3, ["--ntasks=6"])
    (attempt,) = incident["attempts"]
    relaunched = attempt["job"]
    # Slurm's word: three nodes, six tasks, not the drained one.
    assert (cluster.field(relaunched, "NumNodes"), cluster.field(relaunched, "NumTasks")) == ("3", "6")
    hosts = cluster.slurm("scontrol", "show", "hostnames", cluster.field(relaunched, "NodeList")).split()
    assert hosts == [node for node in NODES if node != "gpu-22"]
    # The job's own word, before and after.
    before, after = cluster.log(job, "reduced-world"), cluster.log(relaunched, "reduced-world")
    assert "micro-batch 2 x accumulation 3 x ranks 8 = global batch 48" in before
    assert "micro-batch 2 x accumulation 4 x ranks 6 = global batch 48" in after
    assert re.search(r"resharding checkpoint: 8 ranks, shard degree 8 -> 6 ranks, shard degree 6", after)
    step = attempt["checkpoint"]["step"]
    first = re.search(r"iteration +(\d+)/ +\d+ \| consumed samples: +(\d+) \|", after)
    assert first is not None
    assert (int(first[1]), int(first[2])) == (step + 1, (step + 1) * 48), "samples go on where they were"
    # The processes' word.
    ranks = words_of_ranks(cluster, relaunched)
    assert len(ranks) == 6, ranks
    assert all("--gradient-accumulation-steps 4 " in words for words in ranks)
    seen = {item["where"] for item in attempt["receipts"] if item["seen"]}
    assert seen == {"script", "process arguments"}, attempt["receipts"]
    script = cluster.slurm("scontrol", "write", "batch_script", relaunched, "-")
    assert "#SBATCH --nodes=3\n#SBATCH --ntasks=6\n#SBATCH --ntasks-per-node=2\n" in script
    assert "srun --nodes=3 --ntasks=6 " in script
    # Told, and not the owner's to keep.
    told = "\n".join(incident["to_do"])
    assert "The job goes on with 3 of 4 nodes and is not switched back by itself" in told
    assert "3 nodes instead of 4" in incident["conclusion"]
    assert "runbook promote" not in told
    assert cluster.runbook("promote", incident["id"], "--yes").returncode != 0


def test_a_job_whose_checkpoint_is_tied_to_its_ranks_is_not_made_smaller(cluster: Cluster) -> None:
    job = lose_a_gpu(cluster, "tied-checkpoint")
    done = cluster.runbook("oom", "--job", job, "--yes", timeout_s=150)
    incident = cluster.incident(job)
    assert done.returncode == 4, (done.stdout, done.stderr)
    assert incident["state"] == "escalated"
    assert incident["drained_nodes"] == ["gpu-22"]
    assert (incident["num_nodes"], incident["world_plan"], incident["attempts"]) == (None, None, [])
    assert cluster.relaunches(job) == []
    assert "universal checkpoint" in reasons(incident)


def reasons(incident: dict[str, Any]) -> str:
    return "\n".join((*incident["notes"], *incident["to_do"], incident["conclusion"]))
