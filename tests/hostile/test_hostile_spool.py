"""A spool that somebody fills: whoever has many events waits for himself, and what cannot come right delays nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runbook.errors import BadInput, NotFound
from runbook.service.daemon import Daemon, ServiceStatus
from runbook.service.spool import SpoolEvent, SpoolReader
from tests.contract.fakes import FakeClock

MALLORY, ALICE = 1001, 1002
NOW_S = 2_000_000.0


@dataclass
class Controller:
    """Knows some jobs and remembers in which order it was asked."""

    answer: Callable[[SpoolEvent], Exception | None]
    asked: list[str] = field(default_factory=list)

    def __call__(self, event: SpoolEvent) -> object:
        self.asked.append(event.job)
        if (problem := self.answer(event)) is not None:
            raise problem
        return None


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def write(spool: Path, job: int, owner: int, age_s: float, *, writer: int | None = None) -> None:
    path = spool / f"alpha-{job}-0.event"
    path.write_text(f"format=1\njob_id={job}\nuid={owner}\nrestart_count=0\ncluster=alpha\n")
    os.utime(path, (2_000_000 - age_s, 2_000_000 - age_s))
    if writer is not None:
        os.chown(path, writer, -1)


@pytest.mark.parametrize(("writer", "believed"), [(None, True), (MALLORY, False)])
def test_the_watchs_word_is_believed_of_the_service_alone(spool: Path, writer: int | None, believed: bool) -> None:
    """It says that ranks of a job were seen alive, on which a job is cancelled."""
    path = spool / f"alpha-{'0' * 16}-2000000.alert"
    path.write_text(
        "format=1\ncluster=alpha\njob_id=7\nalert=memory-failure-and-a-rank-gone\ntime=2000000\nby=watch\n"
    )
    if writer is not None:
        os.chown(path, writer, -1)
    assert [event.trigger for event in SpoolReader(spool).scan()] == (["watch"] if believed else [])
    assert (spool / "bad" / path.name).exists() is not believed


def daemon_of(spool: Path, controller: Controller, clock: FakeClock) -> Daemon:
    return Daemon(SpoolReader(spool), controller, clock, ServiceStatus(clock.now()))


def test_a_good_job_behind_1100_unknown_ones_of_another_is_opened_in_the_first_round(spool: Path) -> None:
    for job in range(1_100):
        write(spool, job, MALLORY, age_s=100)
    write(spool, 9_999, ALICE, age_s=1)
    clock = FakeClock(NOW_S)
    controller = Controller(lambda event: None if event.job == "9999" else NotFound("no such job"))
    daemon_of(spool, controller, clock).round()
    assert controller.asked.index("9999") < 2


def test_unknown_jobs_do_not_hold_up_those_of_the_same_owner_for_long(spool: Path) -> None:
    for job in range(1_100):
        write(spool, job, MALLORY, age_s=100)
    clock = FakeClock(NOW_S)
    controller = Controller(lambda event: None if event.job == "9999" else NotFound("no such job"))
    daemon = daemon_of(spool, controller, clock)
    for _ in range(30):
        daemon.round()
        clock.now_s += 1
    write(spool, 9_999, MALLORY, age_s=0)
    before = len(controller.asked)
    daemon.round()
    assert controller.asked[before] == "9999"


def test_the_owners_events_are_taken_in_turn_and_each_oldest_first(spool: Path) -> None:
    for job, age_s in ((1, 90), (2, 80), (3, 70)):
        write(spool, job, MALLORY, age_s)
    for job, age_s in ((4, 50), (5, 60)):
        write(spool, job, ALICE, age_s)
    assert [event.job for event in SpoolReader(spool).scan()] == ["1", "5", "2", "4", "3"]
    assert [event.job for event in SpoolReader(spool).scan(limit=3)] == ["1", "5", "2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_who_wrote_a_file_decides_and_not_what_it_says(spool: Path) -> None:
    for job in range(1, 40):
        write(spool, job, owner=job, age_s=100 - job, writer=MALLORY)
    write(spool, 50, ALICE, age_s=1)
    assert [event.job for event in SpoolReader(spool).scan()][1] == "50"


def test_what_can_never_come_right_is_set_aside_at_once_with_its_reason(spool: Path) -> None:
    write(spool, 1, MALLORY, age_s=1)
    why = "the job is heterogeneous: its submit line has several components"
    controller = Controller(lambda event: BadInput(why))
    daemon = daemon_of(spool, controller, FakeClock(NOW_S))
    daemon.round()
    daemon.round()
    assert controller.asked == ["1"] and daemon.status.spool_bad == 1
    assert why in (spool / "bad" / "alpha-1-0.event.reason").read_text()


def test_in_a_flood_of_20_000_files_every_owner_is_heard_within_seconds(spool: Path) -> None:
    text = f"format=1\njob_id=%d\nuid={MALLORY}\nrestart_count=0\ncluster=alpha\n"
    for job in range(20_000):
        (spool / f"alpha-{job}-0.event").write_text(text % job)
    write(spool, 99_999, ALICE, age_s=0)
    clock = FakeClock(NOW_S)
    controller = Controller(lambda event: None)
    daemon = daemon_of(spool, controller, clock)
    for _ in range(5):
        daemon.round()
    assert "99999" in controller.asked
