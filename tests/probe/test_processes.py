"""Whose a process on a GPU is, in every Slurm cgroup layout, from trees of /proc and /sys/fs/cgroup under --root."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from runbook.model.node import GpuProcess
from runbook.model.units import JobId, NodeName, Unknown
from runbook.node import job_of_cgroup, read_left_document
from runbook.probe import host
from tests.nvml.standin import hanging_directory, run_probe

pytestmark = pytest.mark.needs("gcc")

SLUID = "sEKNKTV3WPV500"
LAYOUTS: list[tuple[list[str], dict[str, Any] | None]] = [
    (["11:memory:/slurm/uid_1000/job_123/step_0/task_0", "1:name=systemd:/system.slice"],
     {"job": "123", "sluid": None, "step": "0", "task": "0", "version": 1}),
    (["4:devices:/slurm_gpu-22/uid_0/job_4/step_batch"],
     {"job": "4", "sluid": None, "step": "batch", "task": None, "version": 1}),
    (["0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_3"],
     {"job": "123", "sluid": None, "step": "0", "task": "3", "version": 2}),
    (["0::/system.slice/slurmstepd.scope/job_123/step_0/slurm"],
     {"job": "123", "sluid": None, "step": "0", "task": None, "version": 2}),
    (["0::/system.slice/gpu-22_slurmstepd.scope/job_77/step_extern/user/task_special"],
     {"job": "77", "sluid": None, "step": "extern", "task": "special", "version": 2}),
    (["0::/slurm.slice/slurmstepd.scope/job_9"], {"job": "9", "sluid": None, "step": None, "task": None, "version": 2}),
    (["0::/slurmstepd.scope/job_9/step_interactive"],
     {"job": "9", "sluid": None, "step": "interactive", "task": None, "version": 2}),
    ([f"0::/slurmstepd.scope/{SLUID}/step_0/user/task_0"],
     {"job": None, "sluid": SLUID, "step": "0", "task": "0", "version": 2}),
    ([f"0::/system.slice/gpu-22_slurmstepd.scope/{SLUID}/step_batch"],
     {"job": None, "sluid": SLUID, "step": "batch", "task": None, "version": 2}),
    # Hybrid: version 1 controllers beside an empty version 2 tree.
    (["9:memory:/slurm/uid_5/job_8/step_0", "0::/"],
     {"job": "8", "sluid": None, "step": "0", "task": None, "version": 1}),
    (["0::/user.slice/user-1000.slice/session-4.scope"], None),
    (["0::/system.slice/docker-aaaa.scope"], None),
    (["0::/home/job_5/x"], None),
    ([f"0::/user.slice/{SLUID}/step_0"], None),
    # The letters I, L, O and U are not of that alphabet.
    (["0::/slurmstepd.scope/sUKNKTV3WPV500/step_0"], {"unknown": "in a Slurm cgroup that names no job"}),
    (["0::/system.slice/slurmstepd.scope/system"], {"unknown": "in a Slurm cgroup that names no job"}),
    (["5:freezer:/slurm_gpu-21"], {"unknown": "in a Slurm cgroup that names no job"}),
]


@pytest.mark.parametrize(("lines", "found"), LAYOUTS)
def test_every_layout_of_slurm(lines: list[str], found: dict[str, Any] | None) -> None:
    assert host.job_of(lines) == found


@pytest.mark.parametrize(("lines", "found"), LAYOUTS)
def test_the_probe_and_the_reader_of_cgroups_agree(lines: list[str], found: dict[str, Any] | None) -> None:
    read = [job for line in lines if (job := job_of_cgroup(line)) is not None]
    if found is None:
        assert read == []
    elif found.get("job"):
        assert read == [found["job"]]
    else:
        assert isinstance(read[0], Unknown)
        assert (found.get("sluid") or "names no job") in read[0].unknown


def process(
    root: Path, pid: int, cgroup: str, uid: int = 1000, environ: str | None = "", comm: str = "python3"
) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "status").write_text(f"Name:\t{comm}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    stat = f"{pid} (a) b ({comm}) S 1 200 200 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 900000 1 1 1"
    (folder / "stat").write_text(stat)
    (folder / "cgroup").write_text(cgroup + "\n")
    (folder / "comm").write_text(comm + "\n")
    (folder / "cmdline").write_bytes(b"/usr/bin/" + comm.encode() + b"\0-d\0")
    if environ is not None:
        (folder / "environ").write_bytes(environ.replace("\n", "\0").encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with the processes of the scenario `h100_570_tenants`; 4204999 is not there."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text("10000.00 1.0\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\nShmem: 8 kB\n")
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/user.slice/session-1.scope\n")
    process(tmp_path, 4204711, "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0",
            environ="SLURM_JOB_ID=9\nSLURM_LOCALID=2\nSECRET_TOKEN=abc\n")
    process(tmp_path, 4204712, f"0::/slurmstepd.scope/{SLUID}/step_0", uid=1001, environ="SLURM_JOB_ID=77\n")
    process(tmp_path, 4204713, "0::/user.slice/user-7.slice", uid=7)
    process(tmp_path, 4204714, f"0::/slurmstepd.scope/{SLUID}/step_0", uid=1002, environ=None)
    scope = tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope"
    job = scope / "job_123"
    job.mkdir(parents=True)
    for name, text in {
        "cgroup.controllers": "memory", "memory.max": "1073741824", "memory.current": "900000000",
        "memory.peak": "1073741824", "memory.events": "low 0\nmax 3\noom 1\noom_kill 2\n",
    }.items():
        (job / name).write_text(text + "\n")
    sluid = tmp_path / "sys/fs/cgroup/slurmstepd.scope" / SLUID
    sluid.mkdir(parents=True)
    (sluid / "cgroup.controllers").write_text("memory\n")
    (sluid / "memory.max").write_text("max\n")
    old = tmp_path / "sys/fs/cgroup/memory/slurm_gpu-22/uid_1000/job_55"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory.usage_in_bytes").write_text("5000\n")
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    return tmp_path


def test_tenants_come_with_owner_job_and_age(root: Path) -> None:
    document = run_probe("h100_570_tenants", "--root", str(root))
    facts = read_left_document(json.dumps(document), NodeName("n"))
    assert not isinstance(facts.gpus, Unknown)
    processes = facts.gpus[0].processes
    assert not isinstance(processes, Unknown)
    by_pid: dict[int, GpuProcess] = {each.pid: each for each in processes}
    assert list(by_pid) == [4204711, 4204712, 4204713, 4204714, 4204999]
    # The cgroup wins over what the process says of itself; the environment names the number of a SLUID.
    assert (by_pid[4204711].job, by_pid[4204711].owner, by_pid[4204711].local_rank) == ("123", "1000", 2)
    assert by_pid[4204711].age_s == pytest.approx(10000 - 900000 / os.sysconf("SC_CLK_TCK"))
    assert by_pid[4204711].name == "python3"
    assert by_pid[4204712].job == JobId("77")
    assert by_pid[4204712].name == "/opt/env/bin/python, with a comma"
    assert by_pid[4204713].job is None
    sluid_only, gone = by_pid[4204714].job, by_pid[4204999].job
    assert isinstance(sluid_only, Unknown) and SLUID in sluid_only.unknown
    assert isinstance(gone, Unknown) and "no such process" in gone.unknown
    assert isinstance(by_pid[4204714].used_bytes, Unknown)


def test_no_other_variable_leaves_the_node(root: Path) -> None:
    assert "SECRET_TOKEN" not in json.dumps(run_probe("h100_570_tenants", "--root", str(root)))


def test_memory_of_the_jobs_cgroups(root: Path) -> None:
    jobs = {each["job"] or each["sluid"]: each for each in run_probe(None, "--root", str(root))["slurm"]["jobs"]}
    assert set(jobs) == {"123", "55", SLUID}
    assert (jobs["123"]["limit_bytes"], jobs["123"]["peak_bytes"], jobs["123"]["oom_kills"]) == (1 << 30, 1 << 30, 2)
    assert jobs[SLUID]["limit_bytes"] is None
    assert "unknown" in jobs[SLUID]["oom_kills"]
    assert (jobs["55"]["version"], jobs["55"]["limit_bytes"], jobs["55"]["oom_kills"]) == (1, None, 1)


def test_daemons_of_mps_and_holders_of_devices(root: Path) -> None:
    process(root, 600, "0::/", uid=1000, comm="nvidia-cuda-mps-server")
    (root / "proc/600/fd/7").symlink_to("/dev/nvidia0")
    (root / "proc/600/fd/8").symlink_to("/dev/nvidiactl")
    document = run_probe(None, "--root", str(root))
    assert document["mps"]["daemons"] == [{"pid": 600, "name": "nvidia-cuda-mps-server"}]
    assert document["device_holders"]["holders"] == [
        {"pid": 600, "name": "nvidia-cuda-mps-server", "devices": ["/dev/nvidia0"]}
    ]


def test_a_directory_service_that_hangs_costs_the_names_only() -> None:
    started = time.monotonic()
    document = run_probe("h100_570_healthy", "--deadline", "3", extra={"LD_PRELOAD": str(hanging_directory())})
    assert time.monotonic() - started < 10
    assert document["took_s"] <= 3
    assert document["node"]["user"] == str(os.geteuid())
    assert document["nvml"]["gpus"][1]["row_remap_failed"] is False


@pytest.mark.parametrize(
    ("prepare", "inside"),
    [
        ("", None), ("slurm", "slurm"), ("container", "container"), ("pid:[4026532201]", "namespace"),
        ("pid:[4026531836]", None),
    ],
)
def test_from_where_the_probe_looks(root: Path, prepare: str, inside: str | None) -> None:
    if prepare == "slurm":
        (root / "proc/self/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_1/step_extern\n")
    if prepare == "container":
        (root / ".dockerenv").write_text("")
    if prepare.startswith("pid:"):
        (root / "proc/self/ns").mkdir()
        (root / "proc/self/ns/pid").symlink_to(prepare)
    assert run_probe(None, "--root", str(root))["node"]["inside"] == inside


def test_the_bus_id_of_a_lost_gpu_comes_from_the_drivers_own_list(root: Path) -> None:
    for bus in ("0000:19:00.0", "0000:3b:00.0"):
        (root / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    document = run_probe("h100_570_lost", "--root", str(root))
    facts = read_left_document(json.dumps(document), NodeName("n"))
    assert not isinstance(facts.gpus, Unknown)
    assert (facts.gpus[1].lost, facts.gpus[1].bus_id) == (True, "0000:3b:00")
