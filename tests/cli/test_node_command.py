"""`runbook node` as a person runs it: over real SSH servers, with the stand-in NVML behind them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli import warm
from tests.cli.node_servers import Servers, servers
from tests.json_answers import check_answer
from tests.nvml.standin import SCENARIOS, library_folder

pytestmark = pytest.mark.needs("sshd", "gcc")

XID_79 = "2026-11-21T02:12:01,000000+00:00 NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.\n"
KMSG_48 = (
    "6,1,1000000,-;Linux version\n4,2,2000000,-;NVRM: Xid (PCI:0000:19:00): 48, pid=7000, name=python, DBE (double bit "
    "error) detected in framebuffer at physAddr 0x0 partition 1, subpartition 0\n"
)
HOSTILE = "\x1b[31mevil\x1b]0;title\x07\u202etrain"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("nodes")) as made, tenants(made):
        made.node("gpu-21", "h100_570_healthy")
        made.node("gpu-22", "h100_550_failed_remap")
        made.node("gpu-23", "tenants")
        made.node("gpu-24", "h100_590_mig")
        made.node("gpu-25", "driver_mismatch")
        made.node("gpu-26", "h100_570_healthy", XID_79)
        made.node("gpu-27", "h100_570_healthy", kmsg=KMSG_48)
        made.refused("gpu-28")
        made.changed_key("gpu-29", "h100_570_healthy")
        yield made


class tenants:
    """Two processes that really run on this machine, as the GPU's list has them: nobody's, and Slurm job 4711's."""

    def __init__(self, made: Servers) -> None:
        self.processes = [
            subprocess.Popen(("sleep", "300"), env=environment) for environment in ({}, {"SLURM_JOB_ID": "4711"})
        ]
        nobody, of_job = (process.pid for process in self.processes)
        base = (SCENARIOS / "h100_570_tenants.txt").read_text()
        made.scenario("tenants", (
            f"{base}gpu.0.memory = 81559 40960 40131 468\ngpu.0.compute = {nobody}:20480, {of_job}:20480\n"
            f"process.{nobody} = {HOSTILE}\nprocess.{of_job} = python3\n"
        ))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def runbook(nodes: Servers, *arguments: str, inventory: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        (*warm.runbook(), "node", *arguments), capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "RUNBOOK_INVENTORY": str(inventory or nodes.folder / "inventory.yaml")},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def document(nodes: Servers, *arguments: str) -> dict[str, Any]:
    found = json.loads(runbook(nodes, *arguments, "--json").stdout)
    assert isinstance(found, dict)
    check_answer("schemas/node.json", found)
    return found


def test_a_clean_node_is_a_few_lines_and_no_scheduler_is_needed(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-21")
    assert done.returncode == 0, done.stdout
    assert "gpu-21: clean. What to do: nothing." in done.stdout
    assert "GPUs 0-1: NVIDIA H100 80GB HBM3, 79.65 GiB each; nothing found, no process on them" in done.stdout
    assert "simulated" in done.stdout and "none is blamed on a job" in done.stdout


def test_where_slurm_is_not_installed_the_states_are_unknown_and_it_says_so(nodes: Servers) -> None:
    (nodes.folder / "no_commands").mkdir()
    before = (nodes.folder / "inventory.yaml").read_text()
    other = nodes.folder / "slurm.yaml"
    other.write_text(before.replace("{kind: local}", f"{{kind: slurm, adapter: commands, "
                                    f"commands_folder: {nodes.folder}/no_commands}}"))
    done = runbook(nodes, "gpu-21", inventory=other)
    assert done.returncode == 0, done.stdout
    assert "Node states and whether jobs run are not known" in done.stdout


def test_a_faulty_gpu_is_told_with_what_to_do(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-22")
    assert done.returncode == 4
    assert "gpu-22: FAULTY. What to do: drain." in done.stdout
    assert "remapping a memory row has failed" in done.stdout
    assert "\n      scontrol update NodeName=gpu-22 State=DRAIN Reason='GPU 1" in done.stdout
    assert "row remapping FAILED" in done.stdout


def test_whose_the_memory_is_and_no_terminal_command_from_a_process_name(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-23")
    assert done.returncode == 4
    row = next(line for line in done.stdout.split("\n") if "evil" in line and "none" in line)
    assert "20.00 GiB" in row
    assert "4711, runs?" in done.stdout and "whether it still runs is not known" in done.stdout
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)


def test_mig_instances_have_their_memory_and_processes_their_instance(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-24")
    assert done.returncode == 6
    assert "1/0       20.03 of 39.38 GiB  MIG 3g.40gb" in done.stdout
    assert "0 i1  4204711  20.00 GiB" in done.stdout


def test_a_driver_that_does_not_fit_is_software_and_drains_nothing(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-25")
    assert done.returncode == 6
    assert "software, not a hardware fault" in " ".join(done.stdout.split())
    assert "scontrol" not in done.stdout


@pytest.mark.parametrize(("node", "why"), [("gpu-28", "connection refused"), ("gpu-29", "host key")])
def test_a_node_that_is_not_reached_is_unknown_and_says_what_to_look_at(nodes: Servers, node: str, why: str) -> None:
    done = runbook(nodes, node)
    assert done.returncode == 6
    assert f"{node}: unknown. What to do: look yourself." in done.stdout and why in done.stdout
    assert "State=DRAIN" not in done.stdout


def test_several_nodes_have_an_overview_and_the_worst_decides(nodes: Servers) -> None:
    done = runbook(nodes, "gpu-[21-22,28]")
    assert done.returncode == 4
    lines = done.stdout.split("\n")
    assert "3 nodes: 1 FAULTY, 1 unknown, 1 clean" in lines
    overview = [line.split()[:2] for line in lines if line.startswith("  gpu-")]
    assert overview == [["gpu-21", "clean"], ["gpu-22", "FAULTY"], ["gpu-28", "unknown"]]
    headings = [line.partition(":")[0] for line in lines if "What to do: " in line]
    assert headings == ["gpu-22", "gpu-28"]


def test_an_event_counts_for_nobody_until_a_time_is_named(nodes: Servers) -> None:
    whenever = runbook(nodes, "gpu-26")
    assert "runbook node gpu-26 --since" in whenever.stdout and "seen as root" not in whenever.stdout
    assert whenever.returncode == 6 and "fallen off the bus" in whenever.stdout
    assert "State=DRAIN" not in whenever.stdout
    since = runbook(nodes, "gpu-26", "--since", "2026-11-21T00:00+00:00")
    # The text of a kernel log may be a user's.
    assert since.returncode == 6 and "State=DRAIN" not in since.stdout
    assert "for a person, and no ground for a drain" in " ".join(since.stdout.split())
    later = runbook(nodes, "gpu-26", "--since", "2026-11-21T03:00+00:00")
    assert later.returncode == 0 and "before the time that was asked for" in " ".join(later.stdout.split())


def test_a_record_of_the_kernel_is_a_reason_to_drain_from_the_time_that_is_named(nodes: Servers) -> None:
    started_s = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    since = runbook(nodes, "gpu-27", "--since", _time(started_s - 60))
    assert since.returncode == 4 and "State=DRAIN" in since.stdout
    later = runbook(nodes, "gpu-27", "--since", _time(started_s + 20))
    assert "State=DRAIN" not in later.stdout and "before the time that was asked for" in " ".join(later.stdout.split())


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, tz=UTC).isoformat()


def test_the_document_holds_facts_judgement_and_what_the_codes_mean(nodes: Servers) -> None:
    found = document(nodes, "gpu-[22,26,28]")
    assert found["version"] == 1
    assert [one["facts"]["node"] for one in found["nodes"]] == ["gpu-22", "gpu-26", "gpu-28"]
    assert [one["judgement"]["verdict"] for one in found["nodes"]] == ["faulty", "unknown", "unknown"]
    assert found["nodes"][2]["facts"]["reach"] == "refused"
    assert "unknown" in found["nodes"][2]["facts"]["gpus"]
    assert found["xids"]["79"]["xid_class"] == "drain"
    assert found["job"] is None and found["since_s"] is None


@pytest.mark.parametrize("arguments", [
    (), ("root@gpu-21",), ("gpu-[21",), ("@all",), ("gpu-21;id",), ("--", "-oProxyCommand=id"),
    ("gpu-21", "--since", "tomorrow"), ("gpu-21", "--since", "2999-01-01"), ("gpu-[1-9999]",),
])
def test_bad_input_says_what_to_write_and_contacts_nobody(nodes: Servers, arguments: tuple[str, ...]) -> None:
    done = runbook(nodes, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "next:" in done.stderr


def test_a_job_that_is_not_known_is_not_found(nodes: Servers) -> None:
    assert runbook(nodes, "--job", "99999").returncode == 3


def test_a_local_inventory_never_shows_this_machine_under_another_name(nodes: Servers, tmp_path: Path) -> None:
    local = tmp_path / "local.yaml"
    local.write_text(
        "version: 1\nid: here\ntitle: here\ncluster: here\nscheduler: {kind: local}\nnodes: {kind: local}\n"
        f"paths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
    )
    done = runbook(nodes, "gpu-21", inventory=local)
    assert done.returncode == 2 and "this machine" in done.stderr
    own = runbook(nodes, socket.gethostname(), inventory=local)
    assert own.returncode == 6 and "no nvidia-smi on this machine" in own.stdout


def test_a_job_that_the_local_scheduler_does_not_know_is_not_called_ended(nodes: Servers, tmp_path: Path) -> None:
    """It may be Slurm's: whether its process is leaked is unknown then."""
    local = tmp_path / "local.yaml"
    local.write_text(
        "version: 1\nid: here\ntitle: here\ncluster: here\nscheduler: {kind: local}\nnodes: {kind: local}\n"
        f"paths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
    )
    here = {
        "PATH": f"{nodes.folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(library_folder()), "STANDIN_NVML_SCENARIO": str(nodes.folder / "tenants.txt"),
    }
    done = subprocess.run(
        (sys.executable, "-m", "runbook", "node", "localhost", "--json"), capture_output=True, text=True, timeout=90,
        check=False, env={**os.environ, **here, "RUNBOOK_INVENTORY": str(local)},
    )
    found = json.loads(done.stdout)
    assert [(job["id"], job["standing"]) for job in found["jobs"]] == [("4711", "unknown")]
    texts = {finding["text"] for finding in found["nodes"][0]["judgement"]["findings"]}
    assert any("4711; whether it still runs is not known" in text for text in texts)
    assert not any("leaked: its Slurm job" in text for text in texts)


def test_ctrl_c_ends_at_once_with_what_is_known(nodes: Servers) -> None:
    """One node accepts the connection and never says a word; the other has answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nodes.silent("gpu-30", int(listener.getsockname()[1]))
        slow = nodes.folder / "slow.yaml"
        text = (nodes.folder / "inventory.yaml").read_text()
        slow.write_text(text.replace("connect_timeout_s: 2", "connect_timeout_s: 60"))
        started = subprocess.Popen(
            (sys.executable, "-m", "runbook", "node", "gpu-21", "gpu-30"), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "RUNBOOK_INVENTORY": str(slow)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert started.stderr is not None and started.stdout is not None
        told = ""
        while "1 of 2 nodes have answered; waiting for gpu-30" not in told:
            told = started.stderr.readline()
            assert told
        interrupted_s = time.monotonic()
        started.send_signal(signal.SIGINT)
        shown = started.stdout.read()
        assert started.wait(20) == 130
        assert time.monotonic() - interrupted_s < 10  # not the sixty seconds of the connection
        assert "Interrupted; not answered: gpu-30" in shown and "gpu-21: clean" in shown
        started.stderr.close()
