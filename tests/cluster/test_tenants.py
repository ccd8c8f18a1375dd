"""Memory in other hands on a real Slurm: a leaked process ended or left, a tenant waited for where there is no other
node. The GPUs are simulated; the jobs, the processes, their cgroups and their ends are real."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.test_killed import kill_at
from tests.cluster.test_loop import outcomes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

ALLOWED = pytest.mark.policy("may_end_leaked_processes: true")
NODE = "gpu-22"
TENANT = "python3 ../train/tenant.py --gib 60 --gpu-index 1 --seconds 200"


def holders(cluster: Cluster) -> list[int]:
    """Who holds memory of GPU 1, as the simulated GPU has it: what was killed leaves its file there for a while."""
    folder = cluster.state.parents[1] / "gpus" / NODE / "processes" / "1"
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal() and lives(int(path.name))]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def fresh_figures(cluster: Cluster) -> Iterator[None]:
    """On a cluster where nothing else happens, sinfo of Slurm 22.05 goes on to show a node as mixed after its last job
    has gone, until scontrol asks for it. A node that may have jobs is one where nothing is ended."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.5):
            cluster.slurm("scontrol", "show", "node", NODE)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


@dataclass
class Leak:
    job: str
    pid: int


@pytest.fixture
def leak(cluster: Cluster) -> Iterator[Leak]:
    """Bob's job is over, and what it started in a session of its own still holds 60 GiB of a GPU. It is where Slurm put
    it: in the cgroup of the job's batch step, which Slurm could not remove."""
    for path in (cluster.state.parents[1] / "gpus" / NODE / "processes" / "1").glob("*"):
        if path.name.isdecimal() and not lives(int(path.name)):
            path.unlink(missing_ok=True)  # root's to remove, not bob's: it would count as memory in use
    job = cluster.submit(
        f"--wrap=setsid -f {TENANT}; sleep 2", f"--nodelist={NODE}", "--output=/dev/null", "--job-name=bobs-server",
        user="sb-bob",
    )
    cluster.until(lambda: cluster.state_of(job) == "COMPLETED", "bob's job is over")
    cluster.until(lambda: holders(cluster), "what it left holds its memory")
    (pid,) = holders(cluster)
    assert f"/job_{job}/step_batch/" in Path(f"/proc/{pid}/cgroup").read_text()
    with fresh_figures(cluster):
        yield Leak(job, pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def dead_job(cluster: Cluster, *options: str) -> str:
    """Alice's job that found no memory on the node."""
    job = cluster.submit("healthy.sbatch", *options)
    cluster.until_dead(job, "healthy")
    return job


@ALLOWED
def test_a_leaked_process_is_ended_and_the_job_goes_back_to_its_nodes(cluster: Cluster, leak: Leak) -> None:
    job = dead_job(cluster)
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "co_tenant"
    assert outcomes(incident)["free_gpu"] == "freed"
    assert not lives(leak.pid)
    (act,) = [act for act in incident["acts"] if act["what"] == "end_process"]
    assert act["target"].startswith(f"{leak.pid} on {NODE} (")
    assert f"sb-bob, job {leak.job})" in act["target"]
    assert act["result"].startswith("terminated: it ended ")
    assert (incident["excluded_nodes"], incident["drained_nodes"]) == ([], [])
    assert incident["state"] == "recovered"
    assert cluster.field(incident["attempts"][-1]["job"], "ExcNodeList") in ("", "(null)")


def test_where_it_is_not_allowed_it_is_named_and_avoided(cluster: Cluster, leak: Leak) -> None:
    job = dead_job(cluster)
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    (judgement,) = incident["original"]["judgements"]
    (named,) = judgement["tenants"]
    assert (named["pid"], named["owner"], named["job"]) == (leak.pid, "sb-bob", leak.job)
    assert outcomes(incident)["free_gpu"] == "left"
    assert any("policy.may_end_leaked_processes" in note for note in incident["notes"])
    assert lives(leak.pid)
    assert not any(act["what"] == "end_process" for act in incident["acts"])
    assert incident["excluded_nodes"] == [NODE]


@ALLOWED
def test_a_person_is_asked_in_plain_words_and_may_say_no(cluster: Cluster, leak: Leak) -> None:
    text = cluster.inventory.read_text(encoding="utf-8")
    cluster.inventory.write_text(text.replace("mode: apply", "mode: approve"), encoding="utf-8")
    job = dead_job(cluster)
    cluster.slurm("scancel", job)
    running = subprocess.Popen(
        cluster.argv("oom", "--job", job), cwd=cluster.state, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )
    out, err = running.communicate(timeout=150)
    incident = cluster.incident(job)
    # Without a terminal it plans: what it would do is said in the same words.
    (act,) = [act for act in incident["acts"] if act["what"] == "end_process"]
    assert act["planned_only"], (out, err)
    assert lives(leak.pid)
    assert any(
        f"would end process {leak.pid} on {NODE} (python3" in visit["summary"]
        and f"of sb-bob, 60.0 GiB of GPU memory, 0.0 h old), which Slurm job {leak.job} left behind" in visit["summary"]
        for visit in incident["visits"]
    ), incident["visits"]


@ALLOWED
@pytest.mark.crash
@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_around_the_end_of_a_process(cluster: Cluster, leak: Leak, point: str) -> None:
    job = dead_job(cluster)
    kill_at(cluster, job, f"{point} nodes.end_process")
    if point == "before":
        assert lives(leak.pid)
    else:
        cluster.until(lambda: not lives(leak.pid), "the node went on with what it was asked to do")
    done = cluster.runbook("resume", f"oom-sandbox-{job}")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert not lives(leak.pid)
    assert outcomes(incident)["free_gpu"] == "freed"
    (act,) = [act for act in incident["acts"] if act["what"] == "end_process"]
    assert ("a run of this tool that was killed" in act["result"]) == (point == "after")
    assert len(cluster.relaunches(job)) == 1


@pytest.mark.policy("may_reduce_world: false")
def test_a_tenant_is_waited_for_where_the_job_needs_every_node(cluster: Cluster) -> None:
    tenant = cluster.submit(
        f"--wrap={TENANT}", f"--nodelist={NODE}", "--output=/dev/null", "--job-name=bobs-server", user="sb-bob"
    )
    cluster.until(lambda: holders(cluster), "the tenant holds its memory")
    job = dead_job(cluster, "--nodes=4")
    running = cluster.start_runbook("oom", "--job", job, "--yes")
    incident_file = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
    cluster.until(incident_file.exists, "the incident is open")
    cluster.until(lambda: cluster.incident(job)["box"] == "wait_for_tenant", "the tenant is waited for")
    cluster.until(lambda: any("waits up to" in note for note in cluster.incident(job)["notes"]), "it is named")
    assert cluster.state_of(tenant) == "RUNNING", "somebody else's job is none of ours"
    cluster.slurm("scancel", tenant, user="sb-bob")
    out, err = running.communicate(timeout=150)
    assert running.returncode == 0, (out, err)
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert outcomes(incident)["wait_for_tenant"] == "free"
    assert any(f"for job {tenant} of sb-bob (bobs-server) on {NODE}" in note for note in incident["notes"])
    assert (incident["excluded_nodes"], incident["drained_nodes"]) == ([], [])
    assert f"job {tenant} of sb-bob" in err, "whoever watches reads it, too"
