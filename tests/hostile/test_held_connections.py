"""Whoever opens connections and asks for nothing, or reads nothing of what he asked for, keeps nobody else out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from runbook.adapters.store import IncidentStore
from runbook.model.incident import Incident
from runbook.model.units import IncidentId
from runbook.service.app import create_app
from tests.report.sample_incidents import recovered
from tests.service.shown import shown
from tests.service.test_serve import PROGRAM, _start


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path


def listening(service: subprocess.Popen[str]) -> tuple[str, tuple[str, int]]:
    """The address that the service tells, and what to connect to."""
    assert service.stdout is not None
    address = service.stdout.readline().strip()
    return address, ("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))


def get(address: str) -> int:
    with urllib.request.urlopen(address, timeout=5) as answer:
        answer.read()
        return int(answer.status)


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9999\r\n\r\nx"],
    ids=["nothing", "half a head", "half a body"],
)
def test_idle_connections_never_shut_out_health_and_metrics(root: Path, begun: bytes) -> None:
    """At once, and not only when the time of the idle ones is up."""
    with _start(root) as service, contextlib.ExitStack() as held:
        address, where = listening(service)
        for _ in range(200):
            connection = held.enter_context(socket.create_connection(where, timeout=5))
            with contextlib.suppress(ConnectionError):
                connection.sendall(begun)
        for name in ("healthz", "metrics", "healthz", "metrics"):
            assert get(address + name) == 200


def test_an_answer_that_nobody_reads_is_given_up(root: Path) -> None:
    impatient = PROGRAM.replace(
        "serve(app",
        "from runbook.service.serve import TimedConnection\nTimedConnection.arrival_s = 0.5\n"
        "page = app\n"
        "async def app(scope, receive, send):\n"
        "    if scope['path'] != '/big':\n"
        "        return await page(scope, receive, send)\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    for _ in range(1000):\n"
        "        await send({'type': 'http.response.body', 'body': b'x' * 65536, 'more_body': True})\n"
        "    await send({'type': 'http.response.body', 'body': b''})\n"
        "serve(app",
    )
    with _start(root, program=impatient) as service, contextlib.ExitStack() as held:
        address, where = listening(service)
        asking = [held.enter_context(socket.create_connection(where, timeout=10)) for _ in range(100)]
        for connection in asking:
            connection.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2)
        assert get(address + "healthz") == 200
        read = 0
        with contextlib.suppress(ConnectionError):
            while block := asking[0].recv(1 << 20):
                read += len(block)
        assert read < 1000 * 65536


def test_the_last_bytes_of_an_answer_that_nobody_reads_hold_no_place(root: Path) -> None:
    """Less than asyncio would pause for is left unsent, and the connection is about to be closed."""
    leaving_some = PROGRAM.replace(
        "serve(app",
        "import socket\nfrom runbook.service.serve import TimedConnection\nTimedConnection.arrival_s = 0.5\n"
        "made = TimedConnection.connection_made\n"
        "def small(self, transport):\n"
        "    made(self, transport)\n"
        "    transport.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)\n"
        "TimedConnection.connection_made = small\n"
        "page = app\n"
        "async def app(scope, receive, send):\n"
        "    if scope['path'] != '/some':\n"
        "        return await page(scope, receive, send)\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'connection', b'close')]})\n"
        "    await send({'type': 'http.response.body', 'body': b'x' * 50_000})\n"
        "serve(app",
    )
    with _start(root, program=leaving_some) as service, contextlib.ExitStack() as held:
        address, where = listening(service)
        for _ in range(100):
            connection = held.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(10)
            connection.connect(where)
            connection.sendall(b"GET /some HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(1)
        deadline = time.monotonic() + 20
        while (status := status_of(address + "healthz")) != 200:
            assert time.monotonic() < deadline, status
            time.sleep(0.2)


def status_of(address: str) -> int:
    try:
        return get(address)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class _Slow:
    """A store whose documents take until they are let go."""

    def __init__(self, store: IncidentStore) -> None:
        self._store = store
        self.let_go = threading.Event()
        self.at_work = self.most_at_work = 0
        self._lock = threading.Lock()

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            assert self.let_go.wait(60)
            return self._store.read_file(incident, relative)
        finally:
            with self._lock:
                self.at_work -= 1

    def evidence_gone(self, incident: IncidentId) -> bool:
        return self._store.evidence_gone(incident)

    def as_kept(self, incident: Incident) -> Incident:
        return self._store.as_kept(incident)


def test_who_asks_for_many_pages_at_once_is_sent_away_and_health_answers(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path / "state")
    store.save(recovered())
    slow = _Slow(store)
    app = create_app(replace(shown(store), folders=slow))
    page = f"/incidents/{recovered().id}"

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            asked = [asyncio.create_task(client.get(page if at % 2 else f"{page}/incident.json")) for at in range(90)]
            while sum(one.done() for one in asked) < 60:
                await asyncio.sleep(0.01)
            for name in ("/healthz", "/metrics"):
                assert (await client.get(name)).status_code == 200
            slow.let_go.set()
            return list(await asyncio.gather(*asked))

    answers = asyncio.run(ask())
    sent_away = [one for one in answers if one.status_code == 503]
    assert slow.most_at_work == 3
    assert {one.status_code for one in answers} == {200, 503}
    assert len(sent_away) == 63
    assert all(int(one.headers["Retry-After"]) > 0 for one in sent_away)
