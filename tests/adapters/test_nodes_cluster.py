"""The node check on the sandbox cluster: its sshd, its stand-in nvidia-smi and dmesg, and real Slurm jobs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import SshNodes
from runbook.adapters.ssh import SshSettings
from runbook.diagnosis.nodes import FailureClues, NodePolicy, judge_node
from runbook.fan_out import check_many
from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import GpuProcess, NodeFacts, NodeJudgement, NodeVerdict, Reach
from runbook.model.units import GIB, JobId, NodeName, Unknown, UserName
from runbook.node.catalogues import load_node_documents
from tests.adapters.jobs import running

ROOT = Path("/var/lib/runbook-sandbox")
SANDBOX = Path(__file__).resolve().parents[2] / "deploy" / "sandbox" / "sandbox"
SLURM_CONF = str(ROOT / "etc" / "slurm.conf")
NODE = NodeName("gpu-23")
ALL = tuple(NodeName(f"gpu-{number}") for number in range(21, 25))

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="the sandbox cluster needs root"),
    pytest.mark.skipif(not ROOT.exists(), reason="the sandbox cluster is not up"),
]

SETTINGS = SshSettings(
    user="root", key_file=str(ROOT / "ssh" / "id_ed25519"), known_hosts_file=str(ROOT / "ssh" / "known_hosts"),
    config_file=os.devnull, use_agent=False, connect_timeout_s=2,
)

Gpu = Callable[..., None]


def sandbox(*argv: str) -> None:
    subprocess.run((str(SANDBOX), *argv), check=True, capture_output=True, timeout=60)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """Change the node's simulated GPUs; they are healthy before and after."""
    sandbox("gpu", NODE, "--reset")
    yield lambda *options: sandbox("gpu", NODE, *options)
    sandbox("gpu", NODE, "--reset")


@pytest.fixture
def ssh_server() -> Iterator[Callable[[str], None]]:
    yield lambda how: sandbox(f"ssh-{how}", NODE)
    sandbox("ssh-up", NODE)


def check(settings: SshSettings = SETTINGS) -> NodeFacts:
    now = time.time()
    return SshNodes(settings).check(NODE, since_s=now - 600, until_s=now + 600)


def judge(facts: NodeFacts, job: str = "4711") -> NodeJudgement:
    boot_s = next(float(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if "btime" in line)
    record = JobRecord(
        id=JobId(job), cluster="sandbox", name="train", owner=UserName("sb-alice"),
        state=JobState("FAILED", JobClass.FAILED), gpus_per_node=8, start_time_s=max(time.time() - 600, boot_s + 5),
    )
    return judge_node(
        facts, record, load_node_documents(data_folder("playbooks") / "oom"), NodePolicy(), FailureClues(oom_device=3)
    )


@pytest.mark.usefixtures("gpu")
def test_a_healthy_node_is_clean_and_marked_as_simulated() -> None:
    facts = check()
    assert facts.reach is Reach.OK
    assert facts.simulated
    assert not isinstance(facts.gpus, Unknown)
    assert len(facts.gpus) == 8
    judgement = judge(facts)
    assert (judgement.verdict, judgement.drain) == (NodeVerdict.CLEAN, False), judgement


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--xid", "79", "--pid", "4711"), "fallen off the bus"),
        (("--xid", "48"), "double-bit"),
        (("--remap-failed",), "remapping a memory row has failed"),
        (("--recovery-action", "Reset"), "Reset"),
        (("--lost",), "cannot reach"),
    ],
)
def test_a_faulty_gpu_is_found_and_drains(gpu: Gpu, options: tuple[str, ...], words: str) -> None:
    gpu("--gpu", "3", *options)
    judgement = judge(check())
    assert (judgement.verdict, judgement.drain) == (NodeVerdict.FAULTY, True), judgement
    assert any(words in reason for reason in judgement.reasons), judgement


def test_what_a_dying_program_leaves_behind_does_not_drain(gpu: Gpu) -> None:
    for code in ("31", "43", "45"):
        gpu("--gpu", "3", "--xid", code)
    gpu("--gpu", "3", "--remap-pending")
    judgement = judge(check())
    assert (judgement.verdict, judgement.drain) == (NodeVerdict.CLEAN, False), judgement
    assert sum("consequence" in reason for reason in judgement.reasons) == 3
    assert judgement.warnings


def test_a_tenant_is_named_with_owner_bytes_and_age(gpu: Gpu) -> None:
    tenant = subprocess.Popen(("sudo", "-n", "-u", "sb-bob", "sleep", "60"))
    try:
        pid = wait_for(lambda: child_of(tenant.pid))
        gpu("--gpu", "3", "--tenant", f"{pid}:20")
        judgement = judge(check())
    finally:
        tenant.terminate()
        tenant.wait()
    assert judgement.verdict is NodeVerdict.OCCUPIED, judgement
    (process,) = judgement.tenants
    assert (process.pid, process.used_bytes, process.owner, process.job) == (pid, 20 * GIB, "sb-bob", None)
    assert "leaked" in judgement.reasons[0]


def test_a_process_of_a_slurm_job_is_known_by_its_cgroup(gpu: Gpu) -> None:
    job, pid = running_job("exec sleep 120")
    try:
        gpu("--gpu", "3", "--tenant", f"{pid}:20")
        facts = check()
        mine, foreign = judge(facts, job), judge(facts)
        views = SshNodes(SETTINGS).processes(NODE, running(job, "sb-alice"), ("SLURM_JOB_NAME",))
        unprivileged = SshNodes(replace(SETTINGS, user="sb-probe")).processes(
            NODE, running(job, "sb-alice"), ("SLURM_JOB_NAME",)
        )
    finally:
        subprocess.run(("scancel", job), env={**os.environ, "SLURM_CONF": SLURM_CONF}, check=False)
    process = on_gpu(facts, 3)
    assert (process.owner, process.job) == ("sb-alice", job)
    assert (mine.verdict, foreign.verdict) == (NodeVerdict.CLEAN, NodeVerdict.OCCUPIED), (mine, foreign)
    assert f"of Slurm job {job}" in foreign.reasons[0]
    assert not isinstance(views, Unknown), views
    sleeper = next(view for view in views if view.pid == pid)
    assert sleeper.argv == ("sleep", "120")
    assert sleeper.environment == {"SLURM_JOB_NAME": "node-check"}
    assert sleeper.rank == 0
    assert isinstance(unprivileged, Unknown)
    assert "may not be read by sb-probe" in unprivileged.unknown


def on_gpu(facts: NodeFacts, index: int) -> GpuProcess:
    assert not isinstance(facts.gpus, Unknown)
    processes = facts.gpus[index].processes
    assert not isinstance(processes, Unknown)
    (process,) = processes
    return process


def child_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        return None
    # sudo keeps a monitor process of its own between itself and the command where it uses a terminal.
    return child_of(int(children[0])) or int(children[0])


def wait_for(probe: Callable[[], int | None]) -> int:
    deadline = time.monotonic() + 30
    while True:
        found = probe()
        if found is not None:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.1)


def running_job(command: str) -> tuple[str, int]:
    """Submit a job to the node as its owner; the id, and the PID of the command when it runs."""
    script = f"#!/bin/sh\n{command}\n"
    environment = {**os.environ, "SLURM_CONF": SLURM_CONF}
    job = subprocess.run(
        ("sudo", "-n", "-u", "sb-alice", "sbatch", "--parsable", "--mem=64M", "-w", NODE, "-J", "node-check", "-o",
         "/dev/null"),
        input=script, text=True, capture_output=True, env=environment, cwd=ROOT / "home" / "sb-alice", check=True,
    ).stdout.strip()

    def command_pid() -> int | None:
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            try:
                if f"/job_{job}/" in path.read_text() and (path.parent / "comm").read_text() == "sleep\n":
                    return int(path.parent.name)
            except OSError:
                continue
        return None

    return job, wait_for(command_pid)


@pytest.mark.usefixtures("gpu")
def test_a_user_without_rights_sees_the_gpus_and_says_what_it_does_not_see() -> None:
    facts = check(replace(SETTINGS, user="sb-probe"))
    assert facts.reach is Reach.OK
    assert not isinstance(facts.gpus, Unknown)
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1"
    assert isinstance(facts.xids, Unknown) is restricted
    assert judge(facts).verdict is (NodeVerdict.UNKNOWN if restricted else NodeVerdict.CLEAN)


@pytest.mark.parametrize(
    ("how", "reach"), [("down", Reach.REFUSED), ("hang", Reach.TIMEOUT), ("newkey", Reach.HOST_KEY)]
)
def test_a_node_that_is_not_reached_is_unknown(
    ssh_server: Callable[[str], None], how: str, reach: Reach
) -> None:
    ssh_server(how)
    started = time.monotonic()
    facts = check()
    assert time.monotonic() - started < 6
    assert facts.reach is reach, facts.reach_detail
    judgement = judge(facts)
    assert (judgement.verdict, judgement.drain) == (NodeVerdict.UNKNOWN, False)


def test_an_nvidia_smi_that_hangs_leaves_the_log(gpu: Gpu) -> None:
    gpu("--gpu", "3", "--xid", "119")
    gpu("--hang")
    started = time.monotonic()
    judgement = judge(check(replace(SETTINGS, command_timeout_s=6)))
    assert time.monotonic() - started < 7
    assert judgement.verdict is NodeVerdict.FAULTY
    assert any("nvidia-smi did not answer" in gap for gap in judgement.missing)


@pytest.mark.usefixtures("gpu")
def test_four_nodes_are_checked_at_once() -> None:
    facts = check_many(SshNodes(SETTINGS), ALL, since_s=None, until_s=None)
    assert [(fact.node, fact.reach) for fact in facts] == [(node, Reach.OK) for node in ALL]
