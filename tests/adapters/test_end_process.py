"""Ending one leaked process: real processes, by a real sshd and by this machine's shell."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import LocalNodes, NodesWithLeft, SshNodes
from runbook.adapters.offline import NoNodes
from runbook.locations import data_folder
from runbook.model.node import EndedHow, GpuProcess, ProcessEnd
from runbook.model.units import GIB, Bytes, JobId, NodeName, Unknown, UserName
from runbook.node.catalogues import load_node_documents
from runbook.ports import Nodes
from tests.adapters.sshd import Server
from tests.adapters.test_ssh import HOST, server
from tests.loopback import free_port

HELPERS = load_node_documents(data_folder("playbooks") / "oom").rules.helpers
__all__ = ["server"]

pytestmark = pytest.mark.needs("sshd")

SOMEBODY = "nobody" if os.geteuid() == 0 else getpass.getuser()
DEAF = "trap '' TERM; "
SLEEPER = "echo $$; exec -a {name} sleep 60"

Leak = Callable[..., GpuProcess]


@pytest.fixture
def leak(tmp_path: Path) -> Iterator[Leak]:
    """A process that nobody waits for and that is below no session, as one that an ended job left behind."""
    started: list[int] = []

    def start(before: str = "", *, user: str = SOMEBODY, name: str = "python3") -> GpuProcess:
        said = tmp_path / f"pid-{len(started)}"
        with said.open("wb") as out:
            subprocess.run(
                ("setsid", "-f", "bash", "-c", before + SLEEPER.format(name=name)), stdout=out, check=True, cwd="/",
                user=user if os.geteuid() == 0 else None,
            )
        for _ in range(100):
            if said.read_bytes().endswith(b"\n"):
                break
            time.sleep(0.05)
        pid = int(said.read_text())
        started.append(pid)
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        cgroup = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[0]
        return GpuProcess(
            pid, Bytes(GIB), "python3", UserName(user), JobId("7"), 60.0, start_ticks=ticks, cgroup=cgroup
        )

    yield start
    for pid in started:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(nodes: Nodes, process: GpuProcess, grace_s: float = 5.0) -> ProcessEnd:
    return nodes.end_process(HOST, process, spared=HELPERS, grace_s=grace_s)


@pytest.fixture(params=["ssh", "local"])
def nodes(request: pytest.FixtureRequest, server: Server) -> Nodes:
    return SshNodes(server.settings) if request.param == "ssh" else LocalNodes()


def test_it_ends_by_a_term_and_its_neighbour_stays(nodes: Nodes, leak: Leak) -> None:
    process, neighbour = leak(), leak()
    ended = end(nodes, process)
    assert ended.how is EndedHow.TERMINATED, ended
    assert not lives(process.pid)
    assert lives(neighbour.pid)
    assert end(nodes, process).how is EndedHow.GONE, "asked again it finds nothing to end"


def test_one_that_is_deaf_to_term_is_killed_after_the_time_of_grace(nodes: Nodes, leak: Leak) -> None:
    process = leak(DEAF)
    ended = end(nodes, process, grace_s=0.5)
    assert ended.how is EndedHow.KILLED, ended
    assert not lives(process.pid)


@pytest.mark.parametrize(("change", "words"), [
    ({"start_ticks": 1}, "its start time differs"),
    ({"owner": UserName("daemon")}, "does not run as daemon"),
    ({"cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0"}, "in another cgroup"),
    ({"start_ticks": Unknown("not read")}, "must be known"),
    ({"cgroup": Unknown("not read")}, "must be known"),
    ({"job": None}, "must be known"),
])
def test_a_process_that_is_not_the_one_that_was_meant_stays(
    nodes: Nodes, leak: Leak, change: dict[str, object], words: str
) -> None:
    process = leak()
    ended = end(nodes, replace(process, **change))  # type: ignore[arg-type]
    assert (ended.how, words in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)


def test_a_program_of_monitoring_stays_whoever_runs_it(nodes: Nodes, leak: Leak) -> None:
    process = leak(name="/usr/bin/dcgm-exporter")
    ended = end(nodes, process)
    assert (ended.how, "of monitoring" in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of root's")
def test_root_s_process_stays(nodes: Nodes, leak: Leak) -> None:
    process = leak(user=pwd.getpwuid(0).pw_name)
    ended = end(nodes, process)
    assert (ended.how, "root" in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)


def test_a_process_of_a_living_session_stays(server: Server) -> None:
    """A shell that somebody has open on the node, though its start time, owner and cgroup are given right."""
    became = f"exec setpriv --reuid={SOMEBODY} --clear-groups " if os.geteuid() == 0 else "exec "
    connection = subprocess.Popen(
        ("ssh", "-F", os.devnull, "-i", server.settings.key_file, "-p", str(server.port), "-o",
         f"UserKnownHostsFile={server.settings.known_hosts_file}", "127.0.0.1",
         f"{became} sh -c 'echo $$; exec sleep 60'"),
        stdout=subprocess.PIPE,
    )
    try:
        assert connection.stdout is not None
        pid = int(connection.stdout.readline())
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        cgroup = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[0]
        process = GpuProcess(
            pid, Bytes(1), owner=UserName(SOMEBODY), job=JobId("7"), start_ticks=ticks, cgroup=cgroup
        )
        ended = end(SshNodes(server.settings), process)
        assert (ended.how, "a living sshd" in ended.detail) == (EndedHow.REFUSED, True), ended
    finally:
        connection.kill()
        connection.wait()


@pytest.mark.parametrize(("title", "refused"), [
    (("slurmstepd: [7.0]", "9"), True), (("slurmstepd: [7.batch]", "9"), True), (("/usr/sbin/slurmstepd", "9"), True),
    (("slurmstepd: [77.0]", "9"), False), (("/usr/sbin/slurmstepd", "infinity"), False),
])
def test_a_daemon_of_a_job_whose_step_lives_stays(
    nodes: Nodes, leak: Leak, tmp_path: Path, title: tuple[str, str], refused: bool
) -> None:
    """A program that made itself a daemon is below no slurmstepd, and its job may be one of another cluster."""
    program = tmp_path / "slurmstepd"
    shutil.copy("/bin/sleep", program)
    process = leak()
    with subprocess.Popen(title, executable=program) as step:
        try:
            ended = end(nodes, process)
        finally:
            step.kill()
    assert (ended.how is EndedHow.REFUSED, lives(process.pid)) == (refused, refused), ended
    assert not refused or "step that lives here" in ended.detail


def test_a_step_that_has_ended_and_that_nobody_waited_for_keeps_nothing(
    nodes: Nodes, leak: Leak, tmp_path: Path
) -> None:
    program = tmp_path / "slurmstepd"
    shutil.copy("/bin/true", program)
    process = leak()
    with subprocess.Popen(("slurmstepd: [7.0]",), executable=program) as step:
        while lives(step.pid):
            time.sleep(0.01)
        assert Path(f"/proc/{step.pid}/stat").exists(), "a zombie"
        ended = end(nodes, process)
    assert ended.how is EndedHow.TERMINATED, ended


def with_python(folder: Path, text: str) -> Nodes:
    """A node whose `python3` is a script."""
    (folder / "python3").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "python3").chmod(0o755)
    return LocalNodes(environment={"PATH": f"{folder}:/usr/bin:/bin"})


@pytest.mark.skipif(Path("/usr/libexec/platform-python").exists(), reason="this system has a Python of its own")
def test_a_node_without_python_ends_nothing(leak: Leak, tmp_path: Path) -> None:
    process = leak()
    ended = end(with_python(tmp_path, "exit 127"), process)
    assert (ended.how, "no Python" in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)


def test_a_node_that_is_not_reached_ends_nothing(server: Server, leak: Leak, tmp_path: Path) -> None:
    process = leak()
    unreached = SshNodes(replace(server.settings, port=free_port()))
    for nodes in (unreached, NodesWithLeft(unreached, tmp_path), NoNodes()):
        assert end(nodes, process).how is EndedHow.REFUSED
    assert lives(process.pid)


def test_an_answer_that_breaks_off_is_unknown(leak: Leak, tmp_path: Path) -> None:
    """The signal may have been sent: nobody may say that it was not."""
    process = leak()
    nodes = with_python(tmp_path, '[ "$3" = -c ] && exit 0\ncat >/dev/null\nexit 1')
    ended = end(nodes, process)
    assert (ended.how, "broke off" in ended.detail) == (EndedHow.UNKNOWN, True), ended


CHANGED = """[ "$3" = -c ] && exit 0
shift 4
exec {python} -I -S -c 'import errno, os, signal, sys
{change}
exec(sys.stdin.read())' "$@"
"""


def test_pythons_before_3_9_hold_the_process_just_so(leak: Leak, tmp_path: Path) -> None:
    """They have the two calls by their numbers only."""
    process = leak(DEAF)
    change = "del os.pidfd_open, signal.pidfd_send_signal"
    ended = end(with_python(tmp_path, CHANGED.format(python=sys.executable, change=change)), process, grace_s=0.2)
    assert ended.how is EndedHow.KILLED, ended


def test_a_kernel_without_a_hold_on_processes_ends_nothing(leak: Leak, tmp_path: Path) -> None:
    process = leak()
    change = "def no(*_): raise OSError(errno.ENOSYS, \"no\")\nos.pidfd_open = no"
    ended = end(with_python(tmp_path, CHANGED.format(python=sys.executable, change=change)), process)
    assert (ended.how, "Linux 5.3" in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)


def test_a_name_that_is_only_that_of_a_node(nodes: Nodes) -> None:
    gone = GpuProcess(2**22 - 3, Bytes(1), owner=UserName(SOMEBODY), job=JobId("7"), start_ticks=5, cgroup="0::/")
    assert nodes.end_process(NodeName("127.0.0.1"), gone, spared=(), grace_s=1).how is EndedHow.GONE


def test_a_process_stays_where_those_above_it_cannot_be_seen(leak: Leak, tmp_path: Path) -> None:
    """As with hidepid=2: the sshd or slurmstepd that it may be below is root's."""
    process = leak()
    change = """import builtins
seen = open
def hides(path, *more, **named):
    if path == "/proc/1/stat": raise FileNotFoundError(path)
    return seen(path, *more, **named)
builtins.open = hides"""
    ended = end(with_python(tmp_path, CHANGED.format(python=sys.executable, change=change)), process)
    assert (ended.how, "cannot be seen" in ended.detail) == (EndedHow.REFUSED, True), ended
    assert lives(process.pid)
