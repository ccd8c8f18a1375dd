"""The node's own epilog: what it leaves, when it leaves nothing, that it ends in time and with status 0."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from runbook.adapters.node_access import NodesWithLeft
from runbook.adapters.offline import NoNodes
from runbook.model.node import Reach
from runbook.model.units import NodeName, Unknown
from runbook.node import read_left_document
from runbook.service.spool import SpoolReader
from tests.nvml.standin import environment, probe_file

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "runbook-node-epilog"
FAILED_JOB = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_EXIT_CODE2": "1:0", "SLURM_JOB_DERIVED_EC": "0", "SLURM_JOB_RESTART_COUNT": "2",
    "SLURM_CLUSTER_NAME": "training", "SLURMD_NODENAME": "gpu-21", "SLURM_JOB_START_TIME": "1795156888",
}
NODE = NodeName("gpu-21")
pytestmark = pytest.mark.needs("gcc")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    (folder / "nodes").mkdir(parents=True)
    return folder


def run(spool: Path, scenario: str | None = "h100_570_sram_threshold", **variables: str) -> float:
    """Run it as slurmd does; how long it took, in seconds."""
    settings = {"RUNBOOK_SPOOL": str(spool), "RUNBOOK_PROBE": str(probe_file())}
    started = time.monotonic()
    done = subprocess.run(
        ("/bin/sh", str(SCRIPT)), env={**environment(scenario), **FAILED_JOB, **settings, **variables},
        capture_output=True, timeout=60, check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return time.monotonic() - started


def test_the_probe_is_looked_for_beside_the_script(spool: Path, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "epilog")
    shutil.copy(probe_file(), tmp_path / "runbook-probe.pyz")
    settings = {**environment(None), **FAILED_JOB, "RUNBOOK_SPOOL": str(spool)}
    subprocess.run((str(tmp_path / "epilog"),), env=settings, timeout=60, check=True)
    assert names(spool) == ["training-4711-2.gpu-21.json"]


@pytest.mark.needs("unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay a folder over /usr/local")
def test_a_linked_script_finds_the_probe_where_the_set_up_puts_it(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "epilog.d").mkdir()
    (tmp_path / "epilog.d" / "50-runbook").symlink_to(SCRIPT)
    (tmp_path / "local" / "libexec").mkdir(parents=True)
    shutil.copy(probe_file(), tmp_path / "local" / "libexec" / "runbook-probe.pyz")
    laid = 'mount --bind "$0/local" /usr/local && exec "$0/epilog.d/50-runbook"'
    settings = {**environment(None), **FAILED_JOB, "RUNBOOK_SPOOL": str(spool)}
    argv = ("unshare", "--mount", "sh", "-c", laid, str(tmp_path))
    subprocess.run(argv, env=settings, timeout=60, check=True)
    assert names(spool) == ["training-4711-2.gpu-21.json"]


def names(spool: Path) -> list[str]:
    return sorted(path.name for path in (spool / "nodes").iterdir())


def test_a_failed_job_leaves_the_probes_answer_beside_the_spools_events(spool: Path) -> None:
    run(spool)
    assert names(spool) == ["training-4711-2.gpu-21.json"]
    path = spool / "nodes" / "training-4711-2.gpu-21.json"
    assert path.stat().st_mode & 0o777 == 0o640
    facts = read_left_document(path.read_text(), NODE)
    assert not isinstance(facts.gpus, Unknown)
    assert [gpu.sram_threshold_exceeded for gpu in facts.gpus] == [False, True]
    # The daemon that reads the spool leaves the folder alone.
    assert SpoolReader(spool).scan() == ()
    assert SpoolReader(spool).status().depth == 0
    assert names(spool) == ["training-4711-2.gpu-21.json"]


def test_slurms_numbers_of_the_jobs_gpus_are_left_first_and_without_a_probe_too(spool: Path) -> None:
    run(spool, None, SLURM_JOB_GPUS="0,3", RUNBOOK_PROBE="/nonexistent/probe")
    assert names(spool) == ["training-4711-2.gpu-21.gpus"]
    assert (spool / "nodes" / "training-4711-2.gpu-21.gpus").read_text() == "0,3\n"


@pytest.mark.parametrize("value", ["", "MIG-1234", "0;reboot", "$(id)", "0," * 600])
def test_what_are_no_numbers_of_gpus_is_not_left(spool: Path, value: str) -> None:
    run(spool, None, SLURM_JOB_GPUS=value, RUNBOOK_PROBE="/nonexistent/probe")
    assert names(spool) == []


def test_a_driver_that_hangs_does_not_hold_the_node(spool: Path) -> None:
    took_s = run(spool, "h100_570_hung_init", RUNBOOK_PROBE_DEADLINE="2")
    assert took_s < 10
    (name,) = names(spool)
    nvml = json.loads((spool / "nodes" / name).read_text())["nvml"]
    assert "asked for nvmlInit" in nvml["gpus"]["unknown"]


def test_a_probe_that_keeps_no_deadline_is_ended(spool: Path, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck.py"
    stuck.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{')\ntime.sleep(60)\n")
    assert run(spool, RUNBOOK_PROBE=str(stuck), RUNBOOK_PROBE_DEADLINE="2") < 15
    assert names(spool) == []


@pytest.mark.parametrize("shell", [("/bin/dash",), ("/bin/bash", "--posix")], ids=["dash", "bash"])
def test_a_file_system_that_does_not_answer_does_not_hold_the_node(spool: Path, shell: tuple[str, ...]) -> None:
    """The spool is shared as a rule. Here a write there waits for a reader that does not come."""
    nodes = spool / "nodes"
    settings = {"RUNBOOK_SPOOL": str(spool), "RUNBOOK_PROBE_DEADLINE": "2", "SLURM_JOB_GPUS": "0"}
    stuck = f'mkfifo "{nodes}/.training-4711-2.gpu-21.$$"; exec {" ".join(shell)} {SCRIPT}'
    started = time.monotonic()
    try:
        done = subprocess.run(
            ("/bin/sh", "-c", stuck), env={**environment(None), **FAILED_JOB, **settings}, timeout=30, check=False
        )
        assert done.returncode == 0
        assert time.monotonic() - started < 15
    finally:
        for fifo in nodes.glob(".*"):
            os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("shell", [("/bin/dash",), ("/bin/bash", "--posix")], ids=["dash", "bash"])
def test_nothing_is_waited_for_when_the_work_is_done(spool: Path, shell: tuple[str, ...]) -> None:
    settings = {"RUNBOOK_SPOOL": str(spool), "SLURM_JOB_EXIT_CODE2": "0:0", "RUNBOOK_PROBE_DEADLINE": "20"}
    subprocess.run((*shell, str(SCRIPT)), env={**os.environ, **FAILED_JOB, **settings}, timeout=10, check=True)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_EXIT_CODE2": "0:0"},
        {"SLURM_JOB_ID": "4711; reboot"},
        {"SLURM_JOB_ID": ""},
        {"SLURMD_NODENAME": "../../etc"},
        {"SLURMD_NODENAME": ".hidden"},
        {"RUNBOOK_PROBE": "/nonexistent.pyz"},
        {"RUNBOOK_SPOOL": "/nonexistent"},
    ],
)
def test_when_it_leaves_nothing(spool: Path, variables: dict[str, str]) -> None:
    run(spool, **variables)
    assert names(spool) == []


def test_a_probe_that_fails_leaves_nothing(spool: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("print('half'); raise SystemExit(1)\n")
    run(spool, RUNBOOK_PROBE=str(broken))
    assert names(spool) == []


def test_a_job_of_another_kind_of_failure_is_looked_at_and_a_hostile_cluster_name_is_not_used(spool: Path) -> None:
    run(spool, SLURM_JOB_EXIT_CODE2="0:0", SLURM_JOB_DERIVED_EC="256", SLURM_CLUSTER_NAME="../x")
    assert names(spool) == ["unknown-4711-2.gpu-21.json"]


def test_it_calls_no_slurm_command() -> None:
    words = set(SCRIPT.read_text().replace("$", " ").replace("(", " ").split())
    assert not words & {"scontrol", "squeue", "sacct", "sinfo", "srun", "sbatch", "scancel", "sacctmgr", "sstat"}
    assert shutil.which("timeout")


@pytest.mark.parametrize(
    ("change", "taken"), [("", True), ("window", False), ("node", False), ("owner", False), ("link", False)]
)
def test_a_node_that_does_not_answer_any_more_speaks_through_what_was_left(
    spool: Path, change: str, taken: bool
) -> None:
    run(spool)
    path = spool / "nodes" / "training-4711-2.gpu-21.json"
    nodes = NodesWithLeft(NoNodes(), spool / "nodes")
    since_s, until_s = time.time() - 60, time.time() + 60
    if change == "window":
        since_s, until_s = 0.0, 1000.0
    if change == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 12345, 12345)
    if change == "link":
        path.rename(spool / "elsewhere")
        path.symlink_to(spool / "elsewhere")
    node = NodeName("gpu-22") if change == "node" else NODE
    facts = nodes.check(node, since_s=since_s, until_s=until_s)
    assert (facts.reach is Reach.OK) is taken
    if taken:
        assert "left by the epilog" in facts.reach_detail
        assert "now the node does not answer" in facts.reach_detail
        assert not isinstance(facts.gpus, Unknown)
        assert facts.gpus[1].sram_threshold_exceeded is True
    else:
        assert isinstance(facts.gpus, Unknown)
