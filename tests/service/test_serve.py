"""The whole service as a process: listens, opens from the spool, tells systemd, and ends cleanly when told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from dataclasses import replace
from runbook.adapters.clock import SystemClock
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.model.units import IncidentId
from runbook.service.app import Shown, create_app
from runbook.service.daemon import Daemon
from runbook.service.serve import serve
from runbook.service.spool import SpoolReader
from runbook.service.daemon import ServiceStatus
from tests.report.sample_incidents import FLOW, just_opened
root = Path(sys.argv[1])
clock = SystemClock()
status = ServiceStatus(clock.now())
store = IncidentStore(root / "state")
def opened(event):
    store.save(replace(just_opened(), id=IncidentId(f"oom-{event.cluster}-{event.job}")))
daemon = Daemon(SpoolReader(root / "spool"), opened, clock, status, 0.05)
health = lambda: status.document(clock.now())
app = create_app(Shown(store, ReadModel(store), lambda incident: FLOW, health, lambda: b""))
serve(app, daemon, port=int(sys.argv[2]), on_ready=lambda address: print(address, flush=True))
print("ended", flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path


@pytest.fixture
def said(tmp_path: Path) -> Iterator[list[str]]:
    """systemd's side of the notify socket: each kind of message once, in the order of its first coming."""
    messages: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while message := channel.recv(100).decode():
                if message not in messages:
                    messages.append(message)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield messages
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(tmp_path / "notify"))
        thread.join(5)


@contextlib.contextmanager
def _start(root: Path, port: int = 0, program: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root), str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "NOTIFY_SOCKET": str(root / "notify")},
    ) as service:
        try:
            yield service
        finally:
            service.kill()


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=5) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize(
    "begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"], ids=["nothing", "half a head"]
)
def test_connections_that_never_ask_do_not_keep_others_out(root: Path, begun: bytes) -> None:
    impatient = PROGRAM.replace("serve(app", "from runbook.service.serve import TimedConnection\n"
                                "TimedConnection.arrival_s = 0.5\nserve(app")
    with _start(root, program=impatient) as service, contextlib.ExitStack() as held:
        assert service.stdout is not None
        address = service.stdout.readline().strip()
        where = ("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))
        for _ in range(70):
            held.enter_context(socket.create_connection(where, timeout=5)).sendall(begun)
        end = time.monotonic() + 10
        answered = b""
        while not answered and time.monotonic() < end:
            with contextlib.suppress(urllib.error.HTTPError):
                answered = _get(address + "healthz")
            time.sleep(0.1)
        assert answered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_from_the_spool_to_the_page_and_to_a_clean_end(
    root: Path, said: list[str], number: signal.Signals
) -> None:
    with _start(root) as service:
        assert service.stdout is not None
        address = service.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        (root / "spool" / "alpha-5-0.event").write_text("format=1\njob_id=5\nrestart_count=0\ncluster=alpha\n")
        end = time.monotonic() + 10
        while b"oom-alpha-5" not in _get(address) and time.monotonic() < end:
            time.sleep(0.05)
        assert b"Identify the job" in _get(address + "incidents/oom-alpha-5")
        assert json.loads(_get(address + "healthz"))["ok"] is True
        assert list((root / "spool").iterdir()) == []
        service.send_signal(number)
        out, problems = service.communicate(timeout=20)
        assert (service.returncode, out) == (0, "ended\n"), problems
    assert sorted(said) == ["READY=1", "STOPPING=1", "WATCHDOG=1"]
    assert said[-1] == "STOPPING=1"


def test_with_the_local_inventory_nothing_has_to_be_prepared(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    for name in ("XDG_STATE_HOME", "RUNBOOK_INVENTORY"):
        environment.pop(name, None)
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", "0", "--inventory", "local"), cwd=tmp_path, text=True,
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as service:
        try:
            assert service.stderr is not None
            told = next(line for line in service.stderr if "reports and metrics at" in line)
            assert json.loads(_get(told.split()[-1].rstrip("/") + "/healthz"))["ok"] is True
        finally:
            service.terminate()
    spool = tmp_path / ".local" / "state" / "runbook" / "local" / "spool"
    assert spool.stat().st_mode & 0o777 == 0o700


def test_a_taken_port_is_said(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with _start(root, taken.getsockname()[1]) as service:
            _, problems = service.communicate(timeout=20)
    assert service.returncode != 0
    assert "the web server cannot listen there" in problems
