"""The loop: durable before forgetting, patient with what is down, deaf to what is broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runbook.errors import NotFound, Unavailable
from runbook.service.daemon import LATE_S, Daemon, ServiceStatus
from runbook.service.spool import SpoolEvent, SpoolReader
from tests.contract.fakes import FakeClock

NOW_S = 1_000_000.0


@dataclass
class Opener:
    """Opens incidents, or fails as told; remembers what it was asked."""

    problem: Callable[[SpoolEvent], Exception | None] = field(default=lambda _event: None)
    asked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def __call__(self, event: SpoolEvent) -> object:
        self.asked.append(event.job)
        problem = self.problem(event)
        if problem is not None:
            raise problem
        self.opened.append(event.job)
        return None


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def _write(spool: Path, job: int, restart: int = 0) -> None:
    text = f"format=1\njob_id={job}\nrestart_count={restart}\ncluster=alpha\n"
    (spool / f"alpha-{job}-{restart}.event").write_text(text)


def _daemon(spool: Path, opener: Opener, clock: FakeClock | None = None) -> Daemon:
    clock = clock or FakeClock(NOW_S)
    return Daemon(SpoolReader(spool), opener, clock, ServiceStatus(clock.now()), interval_s=0.01)


def _events(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir() if path.name != "bad")


def test_an_event_is_forgotten_only_after_its_incident_is_open(spool: Path) -> None:
    _write(spool, 1)
    there: list[bool] = []

    def look(event: SpoolEvent) -> None:
        there.append((spool / event.file).exists())

    opener = Opener(look)
    _daemon(spool, opener).round()
    assert there == [True]
    assert _events(spool) == []


def test_events_of_before_the_start_are_taken_up(spool: Path) -> None:
    for job in range(5):
        _write(spool, job)
    opener = Opener()
    _daemon(spool, opener).round()
    assert sorted(opener.opened) == ["0", "1", "2", "3", "4"]


def test_a_requeued_job_is_one_failure(spool: Path) -> None:
    for restart in range(3):
        _write(spool, 7, restart)
    opener = Opener()
    _daemon(spool, opener).round()
    assert opener.asked == ["7"]
    assert _events(spool) == []


def test_what_is_down_is_asked_again_with_growing_pauses_and_never_given_up(spool: Path) -> None:
    _write(spool, 1)
    clock = FakeClock(NOW_S)
    opener = Opener(lambda _event: Unavailable("Slurm does not answer"))
    daemon = _daemon(spool, opener, clock)
    for _ in range(7_200):
        daemon.round()
        clock.now_s += 1
    assert 20 < len(opener.asked) < 50
    assert _events(spool) == ["alpha-1-0.event"]
    assert daemon.status.events_waiting_again == 1
    assert "Slurm does not answer" in daemon.status.last_problem
    opener.problem = lambda _event: None
    clock.now_s += 301
    daemon.round()
    assert opener.opened == ["1"]
    assert daemon.status.events_waiting_again == 0


@pytest.mark.parametrize("problem", [NotFound("no such job"), ZeroDivisionError(), KeyError("x")])
def test_what_cannot_come_right_is_set_aside_after_an_hour(spool: Path, problem: Exception) -> None:
    _write(spool, 1)
    _write(spool, 2)
    clock = FakeClock(NOW_S)
    opener = Opener(lambda event: problem if event.job == "1" else None)
    daemon = _daemon(spool, opener, clock)
    daemon.round()
    assert opener.opened == ["2"]
    assert _events(spool) == ["alpha-1-0.event"]
    for _ in range(4_500):
        clock.now_s += 1
        daemon.round()
    assert _events(spool) == []
    assert (spool / "bad" / "alpha-1-0.event").exists()
    assert daemon.status.spool_bad == 1


def test_many_that_wait_to_be_tried_again_do_not_hold_up_a_new_one(spool: Path) -> None:
    for job in range(1, 6):
        _write(spool, job)
    opener = Opener(lambda event: NotFound("no such job") if event.job != "9" else None)
    daemon = _daemon(spool, opener)
    daemon.batch = 5
    daemon.round()
    _write(spool, 9)
    daemon.round()
    assert opener.opened == ["9"]


def test_who_comes_while_many_of_another_are_opened_waits_for_a_few_of_them(spool: Path) -> None:
    clock = FakeClock(NOW_S)
    for job in range(1, 41):
        text = f"format=1\njob_id={job}\nrestart_count=0\ncluster=alpha\nuid=1001\n"
        (spool / f"alpha-{job}-0.event").write_text(text)

    class Slow(Opener):
        def __call__(self, event: SpoolEvent) -> object:
            clock.sleep(0.5)
            if len(self.opened) == 1:
                text = "format=1\njob_id=99\nrestart_count=0\ncluster=alpha\nuid=1002\n"
                (spool / "alpha-99-0.event").write_text(text)
            return super().__call__(event)

    opener = Slow()
    daemon = _daemon(spool, opener, clock)
    while _events(spool):
        daemon.round()
    assert "99" in opener.opened[:10] and len(opener.opened) == 41


def test_a_flood_of_alerts_does_not_hold_up_what_the_epilog_saw(spool: Path) -> None:
    for number in range(30):
        began = 1_000_000 + number
        (spool / f"alpha-{number:016x}-{began}.alert").write_text(
            f"format=1\ncluster=alpha\njob_id={number}\nalert=X\ntime={began}\n"
        )
    (spool / "alpha-99-0.event").write_text("format=1\njob_id=99\nrestart_count=0\ncluster=alpha\ntime=2000000\n")
    opener = Opener()
    daemon = _daemon(spool, opener)
    daemon.batch = 5
    daemon.round()
    assert opener.asked[0] == "99"
    (spool / "alpha-99-1.event").write_text("format=1\njob_id=99\nrestart_count=1\ncluster=alpha\ntime=2000000\n")
    assert "99" in [event.job for event in SpoolReader(spool).scan(limit=3)]


def test_a_lost_spool_is_unhealthy_and_comes_back(spool: Path) -> None:
    clock = FakeClock(NOW_S)
    daemon = _daemon(spool, Opener(), clock)
    daemon.round()
    assert daemon.status.healthy(clock.now())
    spool.rename(spool.with_name("away"))
    daemon.round()
    assert not daemon.status.healthy(clock.now())
    assert "spool" in str(daemon.status.document(clock.now())["spool_problem"])
    spool.with_name("away").rename(spool)
    daemon.round()
    assert daemon.status.healthy(clock.now())


def test_a_loop_that_stands_still_is_unhealthy(spool: Path) -> None:
    clock = FakeClock(NOW_S)
    daemon = _daemon(spool, Opener(), clock)
    daemon.round()
    assert not daemon.status.healthy(clock.now() + LATE_S + 1)
    daemon.status.driver_alive = lambda: False
    assert not daemon.status.healthy(clock.now())


def test_the_measures_are_those_of_the_spool(spool: Path) -> None:
    for job in range(3):
        _write(spool, job)
    (spool / "junk").write_text("x")
    daemon = _daemon(spool, Opener(lambda _event: Unavailable("later")))
    daemon.round()
    assert (daemon.status.spool_depth, daemon.status.spool_bad) == (3, 1)


def test_a_beat_that_fails_stops_nothing(spool: Path) -> None:
    _write(spool, 1)
    opener = Opener()
    daemon = _daemon(spool, opener)

    def broken() -> None:
        raise OSError("no")

    daemon.beat = broken
    daemon.round()
    daemon.round()
    assert opener.opened == ["1"]


def test_stop_ends_the_loop_after_the_event_at_hand(spool: Path) -> None:
    for job in range(3):
        _write(spool, job)
    began, go_on = threading.Event(), threading.Event()

    def slow(_event: SpoolEvent) -> Exception | None:
        began.set()
        go_on.wait(5)
        return None

    opener = Opener(slow)
    daemon = _daemon(spool, opener)
    loop = threading.Thread(target=daemon.run)
    loop.start()
    assert began.wait(5)
    daemon.stop()
    go_on.set()
    loop.join(5)
    assert not loop.is_alive()
    assert len(opener.opened) == 1
    assert len(_events(spool)) == 2


def test_a_new_event_is_seen_within_a_second(spool: Path) -> None:
    opener = Opener()
    daemon = _daemon(spool, opener)
    daemon.interval_s = 0.2
    loop = threading.Thread(target=daemon.run)
    loop.start()
    try:
        time.sleep(0.05)
        _write(spool, 9)
        end = time.monotonic() + 2
        while not opener.opened and time.monotonic() < end:
            time.sleep(0.01)
        assert opener.opened == ["9"]
    finally:
        daemon.stop()
        loop.join(5)


def test_with_the_time_of_day_set_back_an_hour_nothing_waits_for_it(spool: Path) -> None:
    _write(spool, 1)
    clock, down = FakeClock(NOW_S), [True]
    opener = Opener(lambda _event: Unavailable("the controller does not answer") if down else None)
    daemon = _daemon(spool, opener, clock)
    daemon.round()
    clock.set(-3600)
    down.clear()
    clock.now_s += 3
    daemon.round()
    assert opener.opened == ["1"] and _events(spool) == []


def test_with_the_time_of_day_set_forward_an_hour_nothing_is_given_up(spool: Path) -> None:
    _write(spool, 1)
    clock, unknown = FakeClock(NOW_S), [True]
    opener = Opener(lambda _event: NotFound("no such job yet") if unknown else None)
    daemon = _daemon(spool, opener, clock)
    daemon.round()
    clock.set(3700)
    clock.now_s += 3
    daemon.round()
    assert daemon.status.spool_bad == 0 and _events(spool) == ["alpha-1-0.event"]
    unknown.clear()
    clock.now_s += 5
    daemon.round()
    assert opener.opened == ["1"]
