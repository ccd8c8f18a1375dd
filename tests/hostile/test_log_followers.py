"""The process that follows an owner's logs with his rights, where he stops it or speaks in its place: the watch over
others goes on, and he fills no memory."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runbook.adapters import log_watch
from runbook.adapters.clock import SystemClock
from runbook.adapters.log_watch import MOST_PATH_BYTES, LogFollowers, Suspicion
from runbook.model.units import JobId, UserName

EVE, BOB = UserName("nobody"), UserName("daemon")
DEEP = "/" + "/".join(["d" * 250] * 14)
SPAM = """
import json, socket
line = socket.socket(fileno=0)
word = json.dumps({"suspected": "401", "line": "x" * 300}).encode() + b"\\n"
other = json.dumps({"suspected": "1", "line": "x" * 300}).encode() + b"\\n"
while True:
    line.sendall((word + other) * 100)
"""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights"),
    pytest.mark.timeout(120),
]


class Ahead(SystemClock):
    by_s = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.by_s


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch, clock: Ahead) -> Iterator[LogFollowers]:
    """As a service that is not root has them: a process for each owner, with his rights."""
    monkeypatch.setattr(LogFollowers, "_key", staticmethod(lambda owner: owner))
    made = LogFollowers(["out of memory"], 60.0, clock, pause_s=0.05)
    yield made
    made.close()


@pytest.fixture
def log() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "bob.log")
        path.write_text("step 1\n")
        path.chmod(0o644)
        yield path


def _until(followers: LogFollowers, ready: Callable[[list[Suspicion]], bool]) -> list[Suspicion]:
    told: list[Suspicion] = []
    deadline = time.monotonic() + 40
    while not ready(told):
        assert time.monotonic() < deadline
        told.extend(followers.look())
        time.sleep(0.05)
    return told


def _as_its_owner(owner: UserName, *argv: str) -> None:
    subprocess.run(argv, user=pwd.getpwnam(owner).pw_uid, check=True, timeout=20)


def test_an_owner_who_stops_his_own_keeps_nobody_else_from_being_watched(
    followers: LogFollowers, clock: Ahead, log: Path
) -> None:
    followers.follow(JobId("1"), EVE, (DEEP,))
    _until(followers, lambda _: followers.figures().files == 1)
    stopped = followers._children[EVE].started
    _as_its_owner(EVE, "kill", "-STOP", str(stopped.pid))
    for number in range(2, 102):
        followers.follow(JobId(str(number)), EVE, (DEEP, DEEP))
    followers.follow(JobId("900"), BOB, (str(log),))
    with log.open("a") as stream:
        stream.write("CUDA out of memory\n")
    assert [one.job for one in _until(followers, lambda told: bool(told))] == ["900"]

    clock.by_s += log_watch.HELD_S + 1
    followers.look()
    assert stopped.poll() is not None
    assert followers.figures().held == 101
    followers.follow(JobId("102"), EVE, (DEEP,))
    assert EVE not in followers._children
    clock.by_s += 20 * 60
    followers.look()
    assert followers.figures().held == 0
    _until(followers, lambda _: followers.figures().files == 203)


def test_who_tells_without_end_is_ended_and_his_latest_word_counts(
    monkeypatch: pytest.MonkeyPatch, followers: LogFollowers, log: Path
) -> None:
    followers.follow(JobId("1"), BOB, (str(log),))
    monkeypatch.setattr(log_watch, "_source", lambda: SPAM)
    followers.follow(JobId("401"), EVE, (DEEP,))
    words = _until(followers, lambda _: followers.figures().held == 1)
    assert {one.job for one in words} == {"401"}
    assert len(words) < 20
    assert EVE not in followers._children and BOB in followers._children


def test_the_links_of_anothers_process_lead_nowhere(clock: Ahead, log: Path) -> None:
    """/proc/PID/cwd goes past the folders above, and the kernel asks for root's right to trace, not for the owner's
    rights on files."""
    private = log.parent / "private"
    (private / "work").mkdir(parents=True)
    secret = private / "work" / "run.log"
    secret.write_text("step 1\n")
    secret.chmod(0o644)
    bob = pwd.getpwnam(BOB)
    os.chown(private, bob.pw_uid, bob.pw_gid)
    private.chmod(0o700)
    (private / "work").chmod(0o755)
    at_work = subprocess.Popen(("sleep", "100"), cwd=private / "work", user=bob.pw_uid, group=bob.pw_gid)
    followers = LogFollowers(["out of memory"], 60.0, clock, pause_s=0.05)
    try:
        links = tuple(f"/proc/{at_work.pid}/{way}/run.log" for way in ("cwd", f"root{private}/work"))
        followers.follow(JobId("1"), EVE, links)
        followers.follow(JobId("2"), BOB, links)
        followers.follow(JobId("3"), EVE, (str(log),))
        _until(followers, lambda _: followers.figures().files == 5)
        for path in (secret, log):
            with path.open("a") as stream:
                stream.write("CUDA out of memory\n")
        words = _until(followers, lambda told: {"2", "3"} <= {one.job for one in told})
        assert {one.job for one in words} == {"2", "3"}
    finally:
        followers.close()
        at_work.kill()
        at_work.wait()


def test_who_has_long_paths_for_thousands_of_tasks_fills_no_memory_and_keeps_nobody_out(
    followers: LogFollowers, log: Path
) -> None:
    paths = [f"/tmp/{'x' * 240}/{'x' * 240}/{task}.log" for task in range(4096)]
    for number in range(20):
        followers.follow(JobId(str(number)), EVE, [str(log), *paths])
    followers.follow(JobId("900"), BOB, [str(log)])
    held = sum(len(path) for followed in followers._jobs.values() for path in followed.paths)
    assert held < MOST_PATH_BYTES // 3, "a third of what all may have"
    words = followers.problem()
    assert f"not all logs of jobs of {EVE} are watched" in words and BOB not in words
    with log.open("a") as stream:
        stream.write("CUDA out of memory\n")
    _until(followers, lambda told: any(one.job == "900" for one in told))
    for number in range(20):
        followers.forget(JobId(str(number)))
    assert not followers.problem()
    followers.follow(JobId("901"), EVE, paths)
    assert not followers.problem()
