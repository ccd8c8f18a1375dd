"""Servers that notifications really go to: HTTP for `json://` and `form://`, SMTP for `mailto://`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.loopback import free_port


class Clock:
    def __init__(self) -> None:
        self.time_s = 1_000_000.0

    def now(self) -> float:
        return self.time_s

    def elapsed(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


class HttpServer(ThreadingHTTPServer):
    """Answers with `status`, after `delay_s`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, str]] = []
        self.status = 200
        self.delay_s = 0.0

    def url(self, path: str = "", scheme: str = "json") -> str:
        return f"{scheme}://127.0.0.1:{self.server_port}/{path}"

    @property
    def titles(self) -> list[str]:
        return [message["title"].removeprefix("[runbook] ") for message in self.received]


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay_s)
        if self.server.status == 200:
            is_json = self.headers["Content-Type"] == "application/json"
            fields = json.loads(body) if is_json else {"form": body.decode()}
            self.server.received.append({"path": self.path, **fields})
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def http_server() -> Iterator[HttpServer]:
    with HttpServer() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


class Mailbox:
    """What an aiosmtpd controller hands over."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content)
        mail["X-To"] = ",".join(envelope.rcpt_tos)
        self.mails.append(mail)
        return "250 taken"


@contextmanager
def smtp_server() -> Iterator[tuple[Mailbox, int]]:
    from aiosmtpd.controller import Controller

    port = free_port()
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()


def inventory_with(folder: Path, notify: str) -> Path:
    """A local inventory whose `notify:` section is this text."""
    path = folder / "site.yaml"
    path.write_text(
        "version: 1\nid: site\ntitle: A test\ncluster: alpha\nscheduler: {kind: local}\nnodes: {kind: none}\n"
        f"paths: {{state: {folder / 'state'}}}\nnotify:\n{notify}",
        encoding="utf-8",
    )
    return path
