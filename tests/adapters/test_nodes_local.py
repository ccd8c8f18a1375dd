"""The node check's script, run by this machine's shell with commands that answer like nvidia-smi and dmesg."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import LocalNodes
from runbook.model.node import Reach
from runbook.model.units import GIB, NodeName, Unknown, UserName
from tests.adapters.jobs import running
from tests.nvml.standin import NO_KMSG

HERE = NodeName("gpu-21")
ME = UserName(getpass.getuser())
ROW = "0, GPU-a, 00000000:19:00.0, NVIDIA H100 80GB HBM3, {driver}, 81559, 1, 81090, 0, 0, Disabled"
LOG = "2026-11-20T06:41:28,000000+00:00 Linux version 6.8.0"

Tools = Callable[..., LocalNodes]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """LocalNodes whose PATH begins with a folder of the given shell scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(environment: dict[str, str] | None = None, **scripts: str) -> LocalNodes:
        commands = {"dmesg": f"echo '{LOG}'", "journalctl": "exit 1", **scripts}
        for name, body in commands.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {tmp_path}/{path.name}.calls\n{body}\n")
            path.chmod(0o755)
        usual = {"PATH": f"{folder}:/usr/bin:/bin", "RUNBOOK_KMSG": NO_KMSG}
        return LocalNodes(environment={**usual, **(environment or {})})

    return make


def calls(tmp_path: Path, tool: str) -> list[str]:
    path = tmp_path / f"{tool}.calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_machine_without_nvidia_smi_knows_nothing_of_gpus(tools: Tools) -> None:
    facts = tools().check(HERE, since_s=None, until_s=None)
    assert facts.reach is Reach.OK
    assert facts.gpus == Unknown("no nvidia-smi on this machine")
    assert facts.xids == ()
    assert not facts.simulated


def test_an_old_driver_is_asked_again_with_the_fields_it_knows(tools: Tools, tmp_path: Path) -> None:
    nodes = tools(
        nvidia_smi=f"""case "$*" in
*gpu_recovery_action*) echo 'Field "gpu_recovery_action" is not a valid field to query.'; exit 2 ;;
*--query-gpu*) echo '{ROW.format(driver='535.161.08')}' ;;
*compute-apps*) ;;
*) printf 'GPU 00000000:19:00.0\\n    Remapped Rows\\n        Pending                 : No\\n' ;;
esac"""
    )
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert facts.driver == "535.161.08"
    assert not isinstance(facts.gpus, Unknown)
    (gpu,) = facts.gpus
    assert (gpu.uuid, gpu.row_remap_pending, gpu.processes) == ("GPU-a", False, ())
    assert isinstance(gpu.recovery_action, Unknown)
    assert len(calls(tmp_path, "nvidia-smi")) == 4


def test_an_nvidia_smi_that_hangs_is_asked_once_and_the_log_is_read_all_the_same(
    tools: Tools, tmp_path: Path
) -> None:
    nodes = tools(
        nvidia_smi="exec sleep 60",
        dmesg=f"echo '{LOG}'; echo '2026-11-21T09:00:00,5+00:00 NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, GSP'",
    )
    started = time.monotonic()
    facts = replace(nodes, command_timeout_s=4.0).check(HERE, since_s=None, until_s=None)
    assert time.monotonic() - started < 4
    assert facts.gpus == Unknown("nvidia-smi did not answer within the time that was given")
    assert not isinstance(facts.xids, Unknown)
    assert [event.code for event in facts.xids] == [119]
    assert len(calls(tmp_path, "nvidia-smi")) == 1


def test_a_command_that_reads_its_standard_input_does_not_take_the_rest_of_the_script(tools: Tools) -> None:
    facts = tools(dmesg=f"cat >/dev/null; echo '{LOG}'").check(HERE, since_s=None, until_s=None)
    assert facts.gpus == Unknown("no nvidia-smi on this machine")
    assert "cut off" not in facts.reach_detail


def test_a_log_that_may_not_be_read_is_unknown(tools: Tools) -> None:
    nodes = tools(dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert isinstance(facts.xids, Unknown)
    assert "dmesg_restrict" in facts.xids.unknown


def test_a_dmesg_that_knows_no_iso_times_is_asked_otherwise(tools: Tools, tmp_path: Path) -> None:
    nodes = tools(
        dmesg="""case "$1" in
--time-format) echo 'dmesg: unknown option' >&2; exit 1 ;;
-T) echo '[Fri Nov 20 06:41:28 2026] Linux version 6.8.0' ;;
esac"""
    )
    assert nodes.check(HERE, since_s=None, until_s=None).log_covers_since_s == 1795156888 - offset_s()
    assert calls(tmp_path, "dmesg") == ["--time-format iso", "-T"]


def offset_s() -> int:
    text = subprocess.run(("date", "+%z"), capture_output=True, text=True, check=True).stdout.strip()
    seconds = int(text[1:3]) * 3600 + int(text[3:5]) * 60
    return -seconds if text.startswith("-") else seconds


def test_a_storm_of_lines_is_cut_at_the_oldest_and_its_reach_is_said(tools: Tools) -> None:
    stamp = "2026-11-21T09:%02d:%02d,000000+00:00"
    line = f"{stamp} NVRM: Xid (PCI:0000:3b:00): 74, pid=1, name=x, NVLink on link %d(0x1, 0x2)\\n"
    nodes = tools(
        dmesg=f"""echo '{LOG}'
awk 'BEGIN {{ for (i = 0; i < 9000; i++) printf "{line}", (i / 180) % 60, i / 3 % 60, i }}'"""
    )
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert not isinstance(facts.xids, Unknown)
    assert sum(event.count for event in facts.xids) == 4000
    assert isinstance(facts.log_covers_since_s, float)
    assert facts.log_covers_since_s > 1795156888


def test_a_process_that_vanished_between_two_questions_is_asked_for_again(tools: Tools, tmp_path: Path) -> None:
    """nvidia-smi lists a dead process for a moment after it ended."""
    nodes = tools(
        nvidia_smi=f"""case "$*" in
*--query-gpu*) echo '{ROW.format(driver='570.1')}, None' ;;
*compute-apps*) [ -e {tmp_path}/asked ] || echo 'GPU-a, 4194303, 1000, python'; touch {tmp_path}/asked ;;
*) echo 'GPU 00000000:19:00.0' ;;
esac"""
    )
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert not isinstance(facts.gpus, Unknown)
    assert facts.gpus[0].processes == ()
    assert sum("compute-apps" in call for call in calls(tmp_path, "nvidia-smi")) == 2


def test_processes_on_a_gpu_come_with_owner_and_age(tools: Tools) -> None:
    nodes = tools(
        nvidia_smi=f"""case "$*" in
*--query-gpu*) echo '{ROW.format(driver='570.1')}, None' ;;
*compute-apps*) echo 'GPU-a, {os.getpid()}, 2048, python' ;;
*) echo 'GPU 00000000:19:00.0' ;;
esac"""
    )
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert not isinstance(facts.gpus, Unknown)
    processes = facts.gpus[0].processes
    assert not isinstance(processes, Unknown)
    (process,) = processes
    assert (process.pid, process.used_bytes, process.owner) == (os.getpid(), 2 * GIB, ME)
    assert isinstance(process.age_s, float)
    assert 0 <= process.age_s < 3600


def simulated(folder: Path, host: str, pids: dict[int, str]) -> dict[str, str]:
    """A state folder of two simulated GPUs; GPU 1 has a fault, `pids` hold a GiB each on GPU 0."""
    home = folder / "gpus" / host
    (home / "processes" / "0").mkdir(parents=True)
    gpus = [
        {
            "index": index, "name": "Simulated H100", "uuid": f"GPU-{index}", "bus_id": f"00000000:1{index}:00.0",
            "total_bytes": 80 * GIB, "usable_bytes": 80 * GIB, "lost": False, "mig": False,
            "recovery_action": "None", "extra_processes": [],
            "ecc": {"volatile_uncorrectable": 0, "aggregate_uncorrectable": 0, "sram_threshold_exceeded": False},
            "row_remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": index == 1},
        }
        for index in range(2)
    ]
    line = "NVRM: Xid (PCI:0000:11:00): 64, Row Remapper: all reserved rows of the bank are used"
    state = {"gpus": gpus, "kernel_log": [{"time": time.time(), "line": line}], "driver": "570.0", "hang": False}
    (home / "state.json").write_text(json.dumps(state))
    for pid, name in pids.items():
        (home / "processes" / "0" / str(pid)).write_text(json.dumps({"bytes": GIB, "name": name}))
    return {"SIMULATED_GPU_DIR": str(folder / "gpus")}


@pytest.mark.parametrize("host", [HERE, platform.node()])
def test_simulated_gpus_stand_in_and_are_marked(tools: Tools, tmp_path: Path, host: str) -> None:
    dead = subprocess.Popen((sys.executable, "-c", ""))
    dead.wait()
    environment = simulated(tmp_path, host, {os.getpid(): "train", dead.pid: "dead"})
    facts = tools(environment).check(HERE, since_s=time.time() - 60, until_s=time.time() + 60)
    assert facts.simulated
    assert not isinstance(facts.gpus, Unknown)
    first, second = facts.gpus
    assert (first.row_remap_failed, second.row_remap_failed) == (False, True)
    assert first.used_bytes == GIB
    assert not isinstance(first.processes, Unknown)
    assert [(process.pid, process.name, process.owner) for process in first.processes] == [(os.getpid(), "train", ME)]
    assert not isinstance(facts.xids, Unknown)
    assert [(event.code, event.in_window) for event in facts.xids] == [(64, True)]


@pytest.mark.parametrize("content", [None, "", "{", '{"gpus": [{"index": "x"}]}', '{"gpus": 5}', "[]"])
def test_a_state_of_simulated_gpus_that_cannot_be_read_is_unknown(
    tools: Tools, tmp_path: Path, content: str | None
) -> None:
    environment = simulated(tmp_path, HERE, {})
    state = tmp_path / "gpus" / HERE / "state.json"
    state.unlink()
    if content is not None:
        state.write_text(content)
    facts = tools(environment).check(HERE, since_s=None, until_s=None)
    assert facts.simulated
    assert isinstance(facts.gpus, Unknown)
    assert isinstance(facts.xids, Unknown)


@pytest.mark.parametrize(
    ("job", "environment", "found"),
    [
        ("777001", {"SLURM_JOB_ID": "777001"}, True),
        ("777001", {"SLURM_JOB_ID": "7770011"}, False),
        ("777001", {"X_SLURM_JOB_ID": "777001", "NOTE": "SLURM_JOB_ID=777001"}, False),
        ("777001_4", {"SLURM_JOB_ID": "777005", "SLURM_ARRAY_JOB_ID": "777001", "SLURM_ARRAY_TASK_ID": "4"}, True),
        ("777001_4", {"SLURM_JOB_ID": "777005", "SLURM_ARRAY_JOB_ID": "777001", "SLURM_ARRAY_TASK_ID": "44"}, False),
    ],
)
def test_the_processes_of_a_job_are_those_that_carry_its_number(
    tools: Tools, job: str, environment: dict[str, str], found: bool
) -> None:
    process = subprocess.Popen(
        (sys.executable, "-c", "import time; time.sleep(60)", "--flag", "two words\nand lines"), env=environment
    )
    try:
        views = tools().processes(HERE, running(job, ME), ("NOTE",))
    finally:
        process.kill()
        process.wait()
    assert not isinstance(views, Unknown)
    assert [view.pid for view in views] == ([process.pid] if found else [])
    if found:
        assert views[0].argv[-2:] == ("--flag", "two words\nand lines")
        assert views[0].node == HERE


def test_processes_of_other_users_that_carry_its_number_are_not_looked_into(tools: Tools) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to start processes of a number without a name")
    environment = {"SLURM_JOB_ID": "777002", "RANK": "0", "WORLD_SIZE": "2"}
    sleep = ("setpriv", "--reuid=100001", "--regid=100001", "--clear-groups", "sleep", "60")
    foreign = [subprocess.Popen(sleep, env={**environment, "PATH": "/usr/bin:/bin"}) for _ in range(20)]
    own = subprocess.Popen(("sleep", "60"), env=environment)
    try:
        views = tools().processes(HERE, running("777002", ME), ("RANK",))
    finally:
        for process in (*foreign, own):
            process.kill()
            process.wait()
    assert not isinstance(views, Unknown) and [view.pid for view in views] == [own.pid]


def test_an_id_that_is_no_job_is_unknown_and_nothing_is_run(tools: Tools) -> None:
    views = tools().processes(HERE, running("1; touch /tmp/x", ME), ())
    assert isinstance(views, Unknown)
    assert "not a Slurm job id" in views.unknown


def test_a_sudo_that_refuses_is_said_and_the_rest_is_asked_without_it(tools: Tools) -> None:
    nodes = replace(tools(sudo="echo 'sudo: a password is required' >&2; exit 1"), sudo=True)
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert facts.reach is Reach.OK
    assert "sudo -n was refused" in facts.reach_detail
    assert facts.xids == ()


def test_a_sudo_that_allows_runs_the_whole_question(tools: Tools, tmp_path: Path) -> None:
    nodes = replace(tools(sudo='shift; exec "$@"'), sudo=True)
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert "refused" not in facts.reach_detail
    assert facts.xids == ()
    assert calls(tmp_path, "sudo") == ["-n sh -c :", "-n sh -s sudo"]


def test_a_machine_that_does_not_answer_in_time_is_a_timeout(tools: Tools) -> None:
    nodes = replace(tools(date="sleep 60"), command_timeout_s=1.0)
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert facts.reach is Reach.TIMEOUT
    assert isinstance(facts.gpus, Unknown)
