"""The sandbox cluster does what the other cluster tests rely on. It has to be up; run as root."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path("/var/lib/runbook-sandbox")
SANDBOX = Path(__file__).resolve().parents[2] / "deploy" / "sandbox" / "sandbox"
SLURM = {"SLURM_CONF": str(ROOT / "etc" / "slurm.conf")}
HOME = ROOT / "home" / "sb-alice"
NODE = "gpu-24"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="the sandbox cluster needs root"),
    pytest.mark.skipif(not ROOT.exists(), reason="the sandbox cluster is not up"),
]


def run(*argv: str, user: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command with the cluster's configuration, as root or as one of the sandbox's users."""
    prefix = () if user is None else ("sudo", "-n", "-u", user)
    return subprocess.run(
        (*prefix, *argv), env={**os.environ, **SLURM}, cwd=HOME, capture_output=True, text=True, timeout=60, check=check
    )


def ssh(target: str, command: str, *, user: str = "root") -> subprocess.CompletedProcess[str]:
    """Run a command on a node."""
    folder = ROOT / "ssh" if user == "root" else ROOT / "ssh" / user
    return run("ssh", "-F", f"{folder}/ssh_config", target, command, user=None if user == "root" else user, check=False)


def submit(script: str, *options: str) -> str:
    """Submit a batch job as its owner; returns the job id."""
    body = f"#!/bin/bash\n{script}\n"
    argv = ("sudo", "-n", "-u", "sb-alice", "sbatch", "--parsable", "--mem=64M", *options)
    done = subprocess.run(
        argv, input=body, env={**os.environ, **SLURM}, cwd=HOME, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def eventually(ready: Callable[[], bool], timeout_s: float = 40) -> None:
    """Wait for something that Slurm does in its own time."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def accounting(job: str, *fields: str) -> list[list[str]]:
    """The job's rows of the accounting: the job, then its steps."""
    out = run("sacct", "-n", "-P", "-j", job, "-o", ",".join(fields)).stdout
    return [line.split("|") for line in out.splitlines()]


def wait_for_end(job: str) -> None:
    """Wait until the accounting knows how the job ended."""
    alive = ("", "PENDING", "RUNNING", "COMPLETING", "REQUEUED")
    eventually(lambda: bool(rows := accounting(job, "State")) and rows[0][0] not in alive)


@pytest.fixture
def simulated_gpus() -> Iterator[Callable[..., None]]:
    """Change the simulated GPUs of one node; they are healthy again afterwards."""

    def change(*options: str) -> None:
        subprocess.run((SANDBOX, "gpu", NODE, *options), check=True)

    yield change
    subprocess.run((SANDBOX, "gpu", NODE, "--reset"), check=True)


def test_job_on_three_nodes_sees_its_nodes_and_gpus() -> None:
    output = f"{uuid.uuid4().hex}.out"
    script = "srun --label bash -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES $SIMULATED_GPU_DIR; nvidia-smi -L | wc -l'"
    job = submit(script, "-N3", "--ntasks-per-node=1", "--gres=gpu:8", f"--output={output}")
    wait_for_end(job)
    lines = sorted((HOME / output).read_text().splitlines())
    # The accounting names only the first node of a short job for some seconds; the controller knows them all.
    nodes = run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").stdout.strip()
    hosts = run("scontrol", "show", "hostnames", nodes).stdout.split()
    expected = [f"{rank}: {host} 0,1,2,3,4,5,6,7 {ROOT}/gpus" for rank, host in enumerate(hosts)]
    assert lines == sorted([*expected, *(f"{rank}: 8" for rank in range(3))])


def test_memory_limit_kills_and_the_epilog_tells() -> None:
    job = submit('srun --label --mem=40M /usr/bin/python3 -c "b = bytearray(400 << 20)"')
    wait_for_end(job)
    rows = accounting(job, "State", "ExitCode", "DerivedExitCode")
    assert rows[0] == ["FAILED", "1:0", "0:125"]
    assert rows[-1][:2] == ["OUT_OF_MEMORY", "0:125"]
    event = ROOT / "spool" / f"sandbox-{job}-0.event"
    eventually(event.exists)
    assert f"job_id={job}\n" in event.read_text()
    assert "exit_code=1:0\nderived_exit_code=0:125\n" in event.read_text()
    read = run("cat", str(event), user="sb-runbook").stdout
    assert read == event.read_text()
    run("rm", str(event), user="sb-runbook")


def test_good_job_leaves_no_event() -> None:
    job = submit("true")
    wait_for_end(job)
    time.sleep(1)
    assert not (ROOT / "spool" / f"sandbox-{job}-0.event").exists()


def test_accounting_keeps_script_and_submit_line() -> None:
    job = submit("echo a-line-of-the-script", "--comment=some comment", "--output=/dev/null")
    wait_for_end(job)
    # The controller hands new jobs to the accounting every five seconds; until then the script is "NONE".
    eventually(lambda: "echo a-line-of-the-script" in run("sacct", "-B", "-j", job).stdout)
    assert "--output=/dev/null" in accounting(job, "SubmitLine")[0][0]
    assert accounting(job, "Comment")[0][0] == "some comment"


def test_running_job_survives_a_restart_of_the_controller() -> None:
    job = submit("sleep 6; exit 3")
    eventually(lambda: run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "RUNNING")
    subprocess.run((SANDBOX, "restart-slurmctld"), check=True)
    wait_for_end(job)
    assert accounting(job, "State", "ExitCode")[0] == ["FAILED", "3:0"]


def test_service_user_may_act_as_owners_only() -> None:
    for owner in ("sb-alice", "sb-bob"):
        assert run("sudo", "-n", "-u", owner, "id", "-un", user="sb-runbook").stdout.strip() == owner
    for other in ("root", "slurm", "sb-probe"):
        assert run("sudo", "-n", "-u", other, "id", "-un", user="sb-runbook", check=False).returncode != 0


def test_service_user_may_cancel_jobs_of_others() -> None:
    job = submit("sleep 100")
    run("scancel", job, user="sb-runbook")
    wait_for_end(job)
    assert accounting(job, "State")[0][0].startswith("CANCELLED")


@pytest.mark.parametrize(("user", "target"), [("root", NODE), ("sb-runbook", NODE), ("sb-runbook", f"sb-probe@{NODE}")])
def test_ssh_reaches_the_node_itself(user: str, target: str) -> None:
    done = ssh(target, "hostname; nvidia-smi -L | head -n 1", user=user)
    assert done.stdout.startswith(f"{NODE}\nGPU 0: Simulated H100")


def test_ssh_can_be_broken_and_mended() -> None:
    seen = {}
    for command in ("ssh-down", "ssh-newkey", "ssh-hang", "ssh-freeze", "ssh-up"):
        subprocess.run((SANDBOX, command, NODE), check=True)
        done = ssh(NODE, "hostname")
        seen[command] = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
    assert "refused" in seen["ssh-down"]
    assert seen["ssh-newkey"] == "Host key verification failed."
    assert "timed out" in seen["ssh-hang"]
    assert "timed out" in seen["ssh-freeze"]
    assert seen["ssh-up"] == NODE


def test_stand_ins_are_seen_in_nodes_only() -> None:
    assert subprocess.run(("sh", "-c", "command -v nvidia-smi"), capture_output=True, check=False).returncode != 0
    assert "imulated" not in run("dmesg", check=False).stdout


def test_processes_of_a_simulated_rank_show_in_nvidia_smi() -> None:
    with subprocess.Popen(("sleep", "60")) as process:
        entry = ROOT / "gpus" / NODE / "processes" / "5" / str(process.pid)
        entry.write_text(json.dumps({"bytes": 3 << 30, "name": "python3"}))
        query = "nvidia-smi -i 5 --query-compute-apps=pid,process_name,used_memory --format=csv,noheader"
        assert ssh(NODE, query).stdout == f"{process.pid}, python3, 3072 MiB\n"
        process.kill()
    assert ssh(NODE, query).stdout == ""
    entry.unlink()


def test_gpu_faults_show_in_nvidia_smi_and_dmesg(simulated_gpus: Callable[..., None]) -> None:
    simulated_gpus("--gpu", "3", "--xid", "79", "--pid", "4711")
    simulated_gpus("--gpu", "1", "--remap-pending", "--ecc-uncorrectable", "4", "--recovery-action", "Reset")
    fields = "index,remapped_rows.pending,ecc.errors.uncorrected.volatile.total,gpu_recovery_action"
    rows = ssh(NODE, f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits").stdout.splitlines()
    assert rows[:2] == ["0, No, 0, None", "1, Yes, 4, Reset"]
    line = "NVRM: Xid (PCI:0000:61:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    assert ssh(NODE, "dmesg --time-format iso").stdout.rstrip().endswith(line)
    log = ElementTree.fromstring(ssh(NODE, "nvidia-smi -q -x").stdout)
    assert [gpu.findtext("remapped_rows/remapped_row_pending") for gpu in log.findall("gpu")][:2] == ["No", "Yes"]


def test_lost_gpu_and_hanging_driver(simulated_gpus: Callable[..., None]) -> None:
    simulated_gpus("--gpu", "0", "--lost")
    done = ssh(NODE, "nvidia-smi")
    assert done.returncode == 255
    assert done.stdout == "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error\n"
    simulated_gpus("--reset", "--hang")
    assert ssh(NODE, "timeout 1 nvidia-smi -L").returncode == 124


def test_unknown_field_fails_the_whole_query() -> None:
    done = ssh(NODE, "nvidia-smi --query-gpu=index,bogus --format=csv")
    assert done.returncode == 2
    assert done.stdout.startswith('Field "bogus" is not a valid field to query.')
