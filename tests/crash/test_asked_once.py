"""A daemon that waits for a yes and is killed: the question was told and is not told again by the next one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.test_killed_anywhere import INVENTORY, Place
from tests.service.notify_servers import http_server

pytestmark = pytest.mark.crash


@contextlib.contextmanager
def _daemon(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", "0", "--inventory", str(place.inventory)),
        cwd=place.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_a_question_is_told_once_though_the_daemon_is_killed_while_it_waits(tmp_path: Path) -> None:
    place = Place(tmp_path)
    spool = tmp_path / "spool"
    spool.mkdir()
    with http_server() as server:
        inventory = INVENTORY.replace("mode: apply", "mode: approve").format(state=place.state)
        inventory = inventory.replace("paths: {", f"paths: {{spool: {spool}, ")
        place.inventory.write_text(inventory + f"notify: {{urls: ['{server.url()}']}}\n", encoding="utf-8")

        def asked() -> int:
            return sum("waits for your yes" in title for title in server.titles)

        def answer(number: int) -> None:
            until(lambda: asked() == number and place.incident()["awaiting"] != "", f"question {number}")
            done = place.run("approve", "oom-crash-1")
            assert done.returncode in (0, 4), done.stderr

        try:
            with _daemon(place):
                (spool / "crash-1-0.event").write_text("format=1\njob_id=1\nrestart_count=0\ncluster=crash\n")
                until(lambda: asked() == 1, "the first question")
                # At least once: killed before it is written down that it was told, it would be told again.
                until(lambda: any(place.state.rglob("told.json")), "the first question is remembered")
            with _daemon(place) as second:
                lock = place.state / "driver.lock"
                until(lambda: f'"pid": {second.pid}}}' in lock.read_text(encoding="utf-8"), "the second daemon")
                answer(1)
                answer(2)
                until(lambda: any("runs again" in title for title in server.titles), "runs again")
        finally:
            place.end()
        assert [one["type"] for one in server.received] == ["failure", "failure", "info", "info"]
        assert len(set(server.titles)) == 4
