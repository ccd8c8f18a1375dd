"""A daemon that is killed leaves no process of its own behind, whatever that one was doing."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runbook.adapters.files import OwnerFiles, receive_file
from tests.hostile.service_user import OWNER, ServiceUser, service_user
from tests.hostile.test_owners_side import ME

__all__ = ["service_user"]

ROOT = Path(__file__).parents[2]
BEGIN = """
import json, select, signal, socket, sys
from runbook.adapters import files, log_watch, process
from runbook.adapters.identity import current_identity, identity_of

def begun(source):
    ours, theirs = socket.socketpair()
    owner = identity_of(sys.argv[1]) if sys.argv[1:] else current_identity()
    child = process.start_as(source, owner, theirs)
    theirs.close()
    print(child.pid, flush=True)
    return ours
"""
FOLLOWS = """
line = begun(log_watch._source())
line.sendall(b'{"words": ["out of memory"], "unknown_s": 60, "pause_s": 1.0}\\n')
select.select([line], [], [])  # it has told something, which nobody reads any more
print("now", flush=True)
signal.pause()
"""
LISTS = """
line = begun(files._source())
line.sendall(files.owner_side.request_line("entries", "/", 1 << 20, 1 << 30))
assert not select.select([line], [], [], 0.5)[0]
print("now", flush=True)
signal.pause()
"""
OPENS = """
from runbook.adapters.process.helpers import Helpers
helpers = Helpers(files._source)
ours, theirs = socket.socketpair()
helper = helpers.start(current_identity(), theirs)
theirs.close()
print(helpers._process.pid, flush=True)
ours.sendall(files.owner_side.request_line("entries", "/", 1 << 20, 1 << 30))
assert not select.select([ours], [], [], 0.5)[0]
print("now", flush=True)
signal.pause()
"""
LOADS = """
from pathlib import Path
from runbook.cage.keeper import _BOOT
import os
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
child = process.start((sys.executable, "-I", "-c", _BOOT, paths), process.Streams(theirs, -3, 2), cwd="/")
theirs.close()
print(child.pid, flush=True)
load = {"playbook": str(Path("playbooks/oom").resolve()), "modules": [], "limit_bytes": 1 << 20}
ours.send(json.dumps(load).encode())
select.select([ours], [], [])
print("now", flush=True)
signal.pause()
"""
PROXIES = """
from runbook.adapters.process import end_questions_with_us
from runbook.adapters.ssh import connect
end_questions_with_us()
hop = connect.Connection("node")
connect._start_proxy(hop, "sleep 1000")
print(hop.proxy_process.pid, flush=True)
print("now", flush=True)
signal.pause()
"""


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for one: it has started a child, which is at work."""
    started = subprocess.Popen(
        (sys.executable, "-c", BEGIN + request.param), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with started:
        yield started
        started.kill()


@pytest.mark.parametrize(
    "daemon", [FOLLOWS, LISTS, OPENS, LOADS, PROXIES], indirect=True,
    ids=["logs", "a listing", "who starts those that list", "warm process", "proxy"],
)
@pytest.mark.timeout(120)
def test_its_children_end_with_it(daemon: subprocess.Popen[bytes]) -> None:
    _kill_and_see(daemon)


@pytest.mark.parametrize("source", [FOLLOWS, LISTS], ids=["logs", "a listing"])
@pytest.mark.needs("setpriv", "sudo", "unshare")
@pytest.mark.timeout(120)
def test_those_behind_sudo_end_with_it(service_user: ServiceUser, source: str) -> None:
    """sudo waits for its command, and ends after it."""
    words = ("-c", BEGIN + source, OWNER)
    with service_user.start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        try:
            _kill_and_see(daemon)
        finally:
            daemon.kill()


def _kill_and_see(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    child = os.pidfd_open(int(daemon.stdout.readline()))
    try:
        assert daemon.stdout.readline() == b"now\n"
        assert not select.select([child], [], [], 0)[0], "it had ended before"
        daemon.kill()
        ended = select.select([child], [], [], 20)[0]
        if not ended:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        assert ended, "it is still there"
    finally:
        os.close(child)


ASKS = """
import sys
from runbook.adapters.identity import identity_of
from runbook.adapters.process import end_questions_with_us
from runbook.adapters.slurm.commands import SlurmCommands
end_questions_with_us()
folder, user, name, *arguments = sys.argv[1:]
SlurmCommands(bin_dir=folder).ask(name, arguments, identity_of(user) if user else None)
"""


@pytest.mark.parametrize(
    "user", ["own", "another", pytest.param("by sudo", marks=pytest.mark.needs("setpriv", "sudo", "unshare"))]
)
@pytest.mark.parametrize(
    ("command", "ends"),
    [("squeue", True), ("scontrol show job 7", True), ("scancel 7", False), ("scontrol update JobId=7", False)],
)
@pytest.mark.timeout(120)
def test_what_asks_slurm_ends_with_it_and_what_acts_comes_to_its_end(
    request: pytest.FixtureRequest, command: str, ends: bool, user: str
) -> None:
    """As where slurmctld does not answer."""
    if user != "own" and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    owner = "" if user == "own" else OWNER
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for fifo in ("begun", "answer"):
            os.mkfifo(folder / fifo)
            (folder / fifo).chmod(0o666)
        slurm = folder / command.split()[0]
        answers = f"read said < {folder}/answer\necho $said > {folder}/done\n"
        # What is said to it ends once it is held: a daemon that dies in the millisecond before leaves it.
        slurm.write_text(f"#!/bin/sh\ncat > /dev/null\n(echo $$ > {folder}/begun)\n{answers}")
        slurm.chmod(0o755)
        words = ("-c", ASKS, name, owner, *command.split())
        if user == "by sudo":
            daemon = request.getfixturevalue("service_user").start(*words)
        else:
            daemon = subprocess.Popen((sys.executable, *words), cwd=ROOT)
        with daemon:
            child = os.pidfd_open(int((folder / "begun").read_text()))
            daemon.kill()
        try:
            if ends:
                assert select.select([child], [], [], 20)[0], "it is still there"
            else:
                (folder / "answer").write_text("cancelled\n")
                assert select.select([child], [], [], 20)[0]
                assert (folder / "done").read_text() == "cancelled\n"
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


def test_what_was_opened_for_another_process_still_arrives(tmp_path: Path) -> None:
    """The line of a child that opens a file is handed on, and closed here first."""
    log = tmp_path / "out.log"
    log.write_text("step 1\n")
    with OwnerFiles(apart=True).handed(str(log), ME) as line:
        other = socket.socket(fileno=os.dup(line.fileno()))
    with other, receive_file(other, str(log), ME, 5.0) as stream:
        assert stream.read() == b"step 1\n"
