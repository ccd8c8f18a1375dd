"""Telling people: delivered through apprise's own transport to a real local server, never raising, never flooding."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from runbook.adapters.notify import AppriseNotify, LogNotify, NoNotify


class _Clock:
    def __init__(self) -> None:
        self.time_s = 1_000_000.0

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


class _Server(HTTPServer):
    received: list[dict[str, str]]
    status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as running:
        running.received = []
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()


def _notify(server: _Server, clock: _Clock, **more: float) -> AppriseNotify:
    return AppriseNotify([f"json://127.0.0.1:{server.server_port}/"], clock, **more)  # type: ignore[arg-type]


def test_a_message_arrives_cleaned_with_its_link(server: _Server) -> None:
    _notify(server, _Clock()).send("oom-alpha-1: a person\r\nBcc: all", "It \x1b[31mfailed\x1b[0m.", "http://x/1")
    (message,) = server.received
    assert message["title"] == "[runbook] oom-alpha-1: a person Bcc: all"
    assert message["message"] == "It failed.\n\nhttp://x/1"


def test_the_same_message_is_not_repeated_and_a_flood_is_held_back(server: _Server) -> None:
    clock = _Clock()
    notify = _notify(server, clock, per_hour=5)
    for _ in range(3):
        notify.send("the same", "body", "")
    assert len(server.received) == 1
    for number in range(20):
        notify.send(f"number {number}", "body", "")
    assert len(server.received) == 5
    clock.time_s += 3_601
    notify.send("later", "body", "")
    assert len(server.received) == 6
    assert "(2 more messages held back before this one.)" in server.received[1]["message"]
    assert "(16 more messages held back before this one.)" in server.received[-1]["message"]


def test_a_failure_is_logged_without_the_address_and_raises_nothing(
    server: _Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 500
    with caplog.at_level(logging.INFO, logger="runbook.notify"):
        _notify(server, _Clock()).send("title", "body", "")
        AppriseNotify(["nonsense://user:hunter2@x", "json://127.0.0.1:1/"], _Clock()).send("other", "body", "")
    assert "not delivered" in caplog.text
    assert "1 of 2 notification addresses are not understood" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name == "runbook.notify"]
    assert not [line for line in ours if "hunter2" in line or "127.0.0.1" in line]


def test_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    LogNotify().send("title\n", "two\nlines\x07", "http://x")
    assert caplog.messages == ["title: two lines (http://x)"]
    NoNotify().send("a", "b", "c")
