"""Two real daemons over one PostgreSQL and one state folder, each behind a line to the database that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.crash.test_killed_anywhere import INVENTORY, Place
from tests.loopback import free_port
from tests.service.notify_servers import HttpServer

LIMIT_S = 90.0
"""For the machine's sake: what is asserted of time is read from records."""


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


class Line:
    """Hands bytes on between a port of its own and the database, until it is cut: then nothing comes through, and
    nothing says so."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._cut, self._cut_after = threading.Event(), b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()

    def cut_after(self, words: bytes) -> None:
        """From when these have been handed on to the database: the transaction that they are of stays open there."""
        self._cut_after = words

    def is_cut(self) -> bool:
        return self._cut.is_set()

    def mend(self) -> None:
        self._cut_after = b""
        self._cut.clear()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(self._to) as far:
            while True:
                for ready in select.select([near, far], [], [], 0.5)[0]:
                    data = ready.recv(1 << 16)
                    while self._cut.is_set():
                        time.sleep(0.05)
                    if not data:
                        return
                    (far if ready is near else near).sendall(data)
                    if ready is near and self._cut_after and self._cut_after in data:
                        self._cut.set()


class Daemon:
    """`runbook serve` of one host."""

    def __init__(self, place: Place, name: str, database: str, more: str, mode: str, spool: Path) -> None:
        address = urlsplit(database)
        self.line = Line(str(address.hostname), int(address.port or 0))
        here = urlunsplit(address._replace(netloc=f"{address.username}@127.0.0.1:{self.line.port}"))
        self._place, self._name, self.port = place, name, free_port()
        self.inventory = place.folder / f"{name}.yaml"
        self.spool = spool
        self.spool.mkdir(exist_ok=True)
        text = INVENTORY.format(state=place.state).replace("paths: {", f"paths: {{spool: {self.spool}, ")
        text = text.replace("mode: apply", f"mode: {mode}")
        self.inventory.write_text(text + more + f"database: {here}\n", encoding="utf-8")
        self.log = place.folder / f"{name}.log"
        self._running: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        argv = (sys.executable, "-m", "runbook", "serve", "--port", str(self.port), "--inventory", str(self.inventory))
        with self.log.open("ab") as log:
            self._running.append(subprocess.Popen(argv, cwd=self._place.work, stdout=log, stderr=log))

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._running[-1]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def gone(self) -> bool:
        return self.process.poll() is not None

    def get(self, path: str) -> str:
        """The body of a page; "" where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())
        except OSError:
            return ""

    def health(self) -> dict[str, Any]:
        body = self.get("/healthz")
        found: dict[str, Any] = json.loads(body) if body else {}
        return found

    def drives(self) -> bool:
        return self.health().get("drives") is True

    def end(self) -> None:
        for each in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT) if each.poll() is None else None
            each.kill()
            each.wait(30)
        self.line.close()


class TwoDaemons:
    """A wedged job 1, and both daemons at work."""

    def __init__(
        self, folder: Path, database: str, told: HttpServer, mode: str = "apply", *, one_spool: bool = False
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.place, self.told = Place(folder), told
        self.path = f"to/{folder.name}"
        name = re.sub(r"\W", "_", folder.name)
        database = urlunsplit(urlsplit(database)._replace(path=f"/two_{name}_{os.getpid()}"))
        more = f"notify: {{urls: ['{told.url(self.path)}']}}\n"
        self.daemons = tuple(
            Daemon(self.place, each, database, more, mode, folder / ("spool" if one_spool else f"spool-{each}"))
            for each in ("one", "two")
        )

    def __enter__(self) -> TwoDaemons:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self.daemons:
            daemon.end()
        self.place.end()

    def both_up(self) -> None:
        until(lambda: all(daemon.health() for daemon in self.daemons), "both daemons answer")
        until(lambda: any(daemon.drives() for daemon in self.daemons), "one of them drives")

    def driving(self) -> Daemon:
        found: list[Daemon] = []

        def looked() -> bool:
            found[:] = [daemon for daemon in self.daemons if not daemon.gone() and daemon.drives()]
            return len(found) == 1

        until(looked, "one of them drives")
        return found[0]

    def other(self, daemon: Daemon) -> Daemon:
        return self.daemons[1 - self.daemons.index(daemon)]

    def event(self) -> None:
        """The same, to both."""
        for spool in dict.fromkeys(daemon.spool for daemon in self.daemons):
            (spool / ".crash-1-0").write_text("format=1\njob_id=1\nrestart_count=0\ncluster=crash\n", encoding="ascii")
            (spool / ".crash-1-0").rename(spool / "crash-1-0.event")

    def waiting_events(self) -> list[str]:
        folders = [*(daemon.spool for daemon in self.daemons), self.place.state / "handed-over"]
        return [path.name for folder in folders for path in folder.glob("**/*.event")]

    def state(self) -> str:
        try:
            return str(self.place.incident()["state"])
        except FileNotFoundError:
            return ""

    def titles(self) -> list[str]:
        """Of the messages that reached the people of this pair."""
        return [each["title"] for each in self.told.received if each["path"] == f"/{self.path}"]

    def relaunches(self) -> list[str]:
        """The comments of jobs that are relaunches, as the scheduler has them."""
        return [comment for comment in self.place.comments() if comment.startswith("runbook:")]
