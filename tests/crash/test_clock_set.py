"""The time of day is set by an hour under a daemon with an incident in flight, which is killed and started again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.test_asked_once import until
from tests.crash.test_killed_anywhere import INVENTORY, Place
from tests.loopback import free_port

pytestmark = [pytest.mark.crash, pytest.mark.needs("gcc")]


@contextlib.contextmanager
def _daemon(place: Place, clock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One whose time of day is off by the seconds that the file says, and whose monotonic clock is the machine's."""
    library = clock.with_name("set_clock.so")
    if not library.exists():
        program = str(Path(__file__).with_name("set_clock.c"))
        subprocess.run(("gcc", "-shared", "-fPIC", "-o", str(library), program), check=True)
    port = free_port()
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFF": str(clock)}

    def healthy() -> bool:
        address = f"http://127.0.0.1:{port}/healthz"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as page:
            return bool(page.status == 200)
        return False

    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", str(port), "--inventory", str(place.inventory)),
        cwd=place.work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:
        try:
            until(healthy, "the daemon is well")
            yield running
            until(healthy, "it is well with its clock set")
        finally:
            running.kill()


@pytest.mark.parametrize("shift", ["-3600", "+3600"])
@pytest.mark.timeout(300)
def test_nothing_waits_for_the_hour_and_nothing_is_submitted_twice(tmp_path: Path, shift: str) -> None:
    held, clock, spool = tmp_path / "held", tmp_path / "clock", tmp_path / "spool"
    place = Place(tmp_path, f"while [ -e {held} ]; do sleep 0.05; done")
    spool.mkdir()
    text = INVENTORY.format(state=place.state).replace("paths: {", f"paths: {{spool: {spool}, ")
    place.inventory.write_text(text, encoding="utf-8")
    held.touch()
    clock.write_text("+0\n")
    try:
        with _daemon(place, clock):
            (spool / "crash-1-0.event").write_text("format=1\njob_id=1\nrestart_count=0\ncluster=crash\n")
            # Between two looks at the relaunched job, which is held, the daemon waits.
            until(lambda: _looks(place) > 1, "the relaunched job is looked at")
            clock.write_text(f"{shift}\n")
        with _daemon(place, clock):
            looks = _looks(place)
            until(lambda: _looks(place) > looks, "it is looked at again")
            clock.write_text("+0\n")
            held.unlink()
            until(lambda: place.incident()["closed_s"] is not None, "it comes to its end")
    finally:
        held.unlink(missing_ok=True)
        place.end()
    assert place.incident()["state"] == "recovered"
    assert len([comment for comment in place.comments() if comment]) == 1


@pytest.mark.parametrize("shift", ["-3600", "+3600"])
@pytest.mark.timeout(300)
def test_a_question_neither_lapses_nor_misses_its_answer(tmp_path: Path, shift: str) -> None:
    clock, spool = tmp_path / "clock", tmp_path / "spool"
    place = Place(tmp_path)
    spool.mkdir()
    text = INVENTORY.replace("mode: apply", "mode: approve").format(state=place.state)
    place.inventory.write_text(text.replace("paths: {", f"paths: {{spool: {spool}, "), encoding="utf-8")
    clock.write_text("+0\n")

    def asks(box: str) -> None:
        until(lambda: place.incident()["awaiting"] != "" and place.incident()["box"] == box, f"{box}: a question")

    try:
        with _daemon(place, clock):
            (spool / "crash-1-0.event").write_text("format=1\njob_id=1\nrestart_count=0\ncluster=crash\n")
            until(lambda: any(place.state.rglob("incident.json")), "the incident is there")
            until(lambda: place.incident()["awaiting"] != "", "the first question")
            first = str(place.incident()["box"])
            clock.write_text(f"{shift}\n")
        with _daemon(place, clock):
            asks(first)
            assert place.run("approve", "oom-crash-1").returncode in (0, 4)
            until(lambda: place.incident()["box"] != first and place.incident()["awaiting"] != "", "the next question")
            clock.write_text("+0\n")
            assert place.run("approve", "oom-crash-1").returncode in (0, 4)
            until(lambda: place.incident()["closed_s"] is not None, "it comes to its end")
    finally:
        place.end()
    assert place.incident()["state"] == "recovered"
    assert len([comment for comment in place.comments() if comment]) == 1


def _looks(place: Place) -> int:
    """How often the relaunched job was looked at."""
    with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(
        sqlite3.connect(f"file:{place.state}/workflows.sqlite?mode=ro", uri=True)
    ) as database:
        (count,) = database.execute("SELECT count(*) FROM operation_outputs WHERE function_name = 'verify'").fetchone()
        return int(count)
    return 0
