"""The watch: a job whose rank died while the others wait is told of within seconds; one that goes on never is."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.clock import SystemClock
from runbook.adapters.log_watch import LogFollowers
from runbook.adapters.log_watch.follower import MOST_READ_BYTES, Follower, Owner
from runbook.config import WatchDocument
from runbook.errors import Unavailable
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import JobId, UserName
from runbook.service.job_watch import JobWatch, is_watched, memory_words
from runbook.service.spool import SpoolReader
from tests.contract.fakes import FakeClock

WORDS = sorted(memory_words(load_signatures(playbook_folder() / "signatures", load_kinds())))
OOM = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/home/a/train.py", line 210, in step\n'
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of "
    "79.10 GiB of which 1.20 GiB is free.\n"
)


class Replay:
    """Files that are written to in time, and asked every second of it."""

    def __init__(self, folder: Path, files: int = 4, unknown_s: float = 120.0) -> None:
        self.paths = [folder / f"rank{rank}.log" for rank in range(files)]
        for path in self.paths:
            path.touch()
        self.now_s = 1000.0
        self.follower = Follower(WORDS, unknown_s, lambda owner: None)
        self.told: list[tuple[float, str]] = []

    def follow(self) -> None:
        self.follower.follow("7", (0, 0, ()), [str(path) for path in self.paths])

    def write(self, rank: int, text: str) -> None:
        with self.paths[rank].open("a") as stream:
            stream.write(text)

    def run(self, seconds: int, each: Callable[[int], None] = lambda _second: None) -> None:
        for second in range(seconds):
            each(second)
            for told in self.follower.round(self.now_s, time.time()):
                self.told.append((self.now_s, str(told["path"])))
            self.now_s += 1.0


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    made = Replay(tmp_path)
    made.follow()
    return made


def steps(replay: Replay, every_s: int = 1, ranks: Iterable[int] = (0, 1, 2, 3)) -> Callable[[int], None]:
    def each(second: int) -> None:
        if second % every_s == 0:
            for rank in ranks:
                replay.write(rank, f"[rank{rank}]: step {second // every_s} | loss 2.3\n")

    return each


def test_a_rank_that_died_while_the_others_wait_is_told_of_within_five_seconds(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, OOM)
    died_s = replay.now_s
    replay.run(300)
    ((told_s, path),) = replay.told
    assert told_s - died_s <= 5
    assert path == str(replay.paths[2])


def test_one_that_was_caught_is_not_told_of_however_long_it_is_silent_later(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, OOM)
    replay.run(60, steps(replay))
    replay.run(1200)  # a checkpoint, an evaluation without a word
    replay.run(60, steps(replay))
    assert replay.told == []


def test_what_is_a_pause_is_learned_from_the_job(replay: Replay) -> None:
    replay.run(600, steps(replay, every_s=40))
    replay.write(2, OOM)
    died_s = replay.now_s
    replay.run(39)
    assert replay.told == []
    replay.run(40, steps(replay, every_s=40))  # it went on: the next step came in its time
    replay.run(100, steps(replay, every_s=40))
    assert replay.told == []
    replay.write(1, OOM)
    died_s = replay.now_s
    replay.run(200)
    assert [told_s - died_s for told_s, _ in replay.told] == [pytest.approx(60, abs=5)]


def test_a_job_that_died_in_its_first_seconds_has_to_be_still_for_long(replay: Replay) -> None:
    replay.write(0, "loading weights\n")
    replay.run(2)
    replay.write(2, OOM)
    died_s = replay.now_s
    replay.run(300)
    assert [told_s - died_s for told_s, _ in replay.told] == [pytest.approx(120, abs=3)]


def test_what_happened_before_the_watch_began_is_found(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.write(0, "step 4 | loss 2.2\n" * 50_000)
    replay.write(2, "step 4 | loss 2.2\n" * 50_000 + OOM)
    for path in replay.paths:
        os.utime(path, (time.time() - 600, time.time() - 600))
    replay.follow()
    replay.run(3)
    assert [path for _, path in replay.told] == [str(replay.paths[2])]


def test_followers_of_the_failure_are_no_going_on(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, OOM)
    replay.run(2)
    replay.write(0, "[rank0]:[W1123 05:10:00 ProcessGroupNCCL.cpp:1779] still waiting in a collective\n")
    replay.run(30)
    assert len(replay.told) == 1


def test_a_word_in_two_writes_is_one_word(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, "torch.OutOfMemoryError: CUDA out o")
    replay.run(1)
    replay.write(2, "f memory. Tried to allocate 2.00 GiB.\n")
    replay.run(30)
    assert len(replay.told) == 1


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.paths[2].write_text(OOM)
    replay.run(30)
    assert len(replay.told) == 1


def test_only_the_end_of_a_flood_is_read(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    replay.run(10, steps(replay))
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    with replay.paths[1].open("ab") as stream:
        stream.truncate(15 << 40)  # fifteen terabytes, hardly a block of them
    replay.run(1)
    assert max(read) <= MOST_READ_BYTES + 300


@pytest.mark.timeout(30)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.paths[1].unlink()
    os.mkfifo(replay.paths[1])
    replay.paths[3].unlink()
    replay.follow()
    replay.run(20, steps(replay, ranks=(0, 2)))
    replay.write(2, OOM)
    replay.run(20)
    assert len(replay.told) == 1


# Its processes, with real owners.

def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def followers() -> Iterator[LogFollowers]:
    made = LogFollowers(WORDS, 2.0, SystemClock(), pause_s=0.05)
    yield made
    made.close()


def _me() -> UserName:
    return UserName(pwd.getpwuid(os.geteuid()).pw_name)


def test_a_process_of_its_own_follows_and_tells(followers: LogFollowers, tmp_path: Path) -> None:
    log = tmp_path / "a\udcff\n.log"
    log.write_text("step 1\n")
    followers.follow(JobId("7"), _me(), (str(log),))
    with log.open("a") as stream:
        stream.write(OOM)
    told: list[str] = []

    def ready() -> bool:
        told.extend(one.job for one in followers.look())
        return bool(told)

    _until(ready)
    assert told == ["7"]
    _until(lambda: not followers.look() and followers.figures().files == 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights")
def test_a_job_is_followed_with_its_owners_rights_and_no_others(followers: LogFollowers) -> None:
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        place.chmod(0o755)
        private = place / "private.log"
        private.write_text(OOM)
        private.chmod(0o600)  # root's own
        (place / "link.log").symlink_to(private)
        own = place / "own.log"
        own.write_text(OOM)
        nobody = pwd.getpwnam("nobody")
        os.chown(own, nobody.pw_uid, nobody.pw_gid)
        own.chmod(0o600)
        followers.follow(JobId("1"), UserName("nobody"), (str(place / "link.log"),))
        followers.follow(JobId("2"), UserName("nobody"), (str(own),))
        told: list[str] = []

        def ready() -> bool:
            told.extend(one.job for one in followers.look())
            return bool(told)

        _until(ready)
        time.sleep(0.5)
        assert told == ["2"]
        assert followers.look() == ()
    finally:
        shutil.rmtree(place)


# Which jobs, and what is left in the spool.

PENDING = JobState("PENDING", JobClass.WAITING)


def _job(number: int, **more: object) -> JobRecord:
    record = JobRecord(
        JobId(str(number)), "alpha", "train", _me(), JobState("RUNNING", JobClass.ACTIVE), submit_time_s=5.0,
    )
    return replace(record, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "more", "watched"),
    [
        (WatchDocument(partitions=("gpu",)), {"partition": "gpu"}, True),
        (WatchDocument(partitions=("gpu",)), {"partition": "cpu"}, False),
        (WatchDocument(accounts=("llm",)), {"account": "llm"}, True),
        (WatchDocument(opt_in="runbook"), {"comment": "prio,runbook"}, True),
        (WatchDocument(opt_in="runbook"), {"comment": "runbook:oom-alpha-7:1"}, False),
        (WatchDocument(opt_in="runbook"), {"comment": "norunbook"}, False),
        (WatchDocument(), {"comment": "", "partition": "", "account": ""}, False),
        (WatchDocument(partitions=("gpu",)), {"partition": "gpu", "state": PENDING}, False),
    ],
)  # fmt: skip
def test_the_inventory_says_which_jobs_are_watched(rule: WatchDocument, more: dict[str, object], watched: bool) -> None:
    assert is_watched(_job(7, **more), rule) is watched


class OneJob:
    """A scheduler that knows the jobs that run."""

    def __init__(self, *jobs: JobRecord) -> None:
        self.jobs = list(jobs)
        self.down = False

    def running(self) -> list[JobRecord]:
        if self.down:
            raise Unavailable("Slurm does not answer")
        return self.jobs

    def job(self, job: JobId) -> JobRecord:
        return next(one for one in self.jobs if one.id == job)


@pytest.fixture
def spool(tmp_path: Path) -> SpoolReader:
    (tmp_path / "spool").mkdir()
    return SpoolReader(tmp_path / "spool")


def _watch(jobs: OneJob, followers: LogFollowers, spool: SpoolReader) -> JobWatch:
    rule = WatchDocument(partitions=("gpu",), list_s=1)
    scheduler: object = jobs
    return JobWatch(rule, jobs.running, scheduler, followers, spool.write, "alpha", "oom", FakeClock(2000.0))  # type: ignore[arg-type]


def test_one_event_waits_in_the_spool_for_a_job_that_is_still(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    log = tmp_path / "out.log"
    log.write_text("step 1\n" + OOM)
    jobs = OneJob(_job(7, partition="gpu", stdout_path=str(log)), _job(8, partition="cpu", stdout_path=str(log)))
    watch = _watch(jobs, followers, spool)

    def ready() -> bool:
        watch.round()
        return bool(spool.scan())

    _until(ready)
    for _ in range(20):
        watch.round()
    (event,) = spool.scan()
    assert (event.job, event.trigger, event.playbook, event.is_suspicion) == ("7", "watch", "oom", True)
    assert watch.figures.jobs == 1
    jobs.jobs.clear()
    watch.clock.sleep(2)
    watch.round()
    assert watch.figures.jobs == 0


def test_a_scheduler_that_does_not_answer_is_a_problem_and_passes(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    jobs = OneJob(_job(7, partition="gpu", stdout_path=str(tmp_path / "out.log")))
    watch = _watch(jobs, followers, spool)
    watch.round()
    jobs.down = True
    watch.clock.sleep(2)
    watch.round()
    assert (watch.problem, watch.figures.ok, watch.figures.jobs) == ("Slurm does not answer", False, 1)
    jobs.down = False
    watch.clock.sleep(2)
    watch.round()
    assert (watch.problem, watch.figures.ok) == ("", True)


def test_more_jobs_than_may_be_are_told_of(tmp_path: Path, followers: LogFollowers, spool: SpoolReader) -> None:
    jobs = OneJob(*(_job(number, partition="gpu", stdout_path=str(tmp_path / f"{number}.log")) for number in range(30)))
    watch = _watch(jobs, followers, spool)
    watch.rule = WatchDocument(partitions=("gpu",), list_s=1, most_jobs=25)
    for _ in range(3):
        watch.round()
    assert watch.figures.jobs == 25
    assert watch.problem == "5 running jobs are not watched: watch.most_jobs is 25"


def test_root_takes_on_nobodys_rights_without_being_told(tmp_path: Path) -> None:
    owners: list[Owner | None] = []
    follower = Follower(WORDS, 1.0, owners.append)
    follower.follow("1", (1001, 100, (100,)), [str(tmp_path / "a")])
    follower.follow("2", (1002, 100, (100,)), [str(tmp_path / "b")])
    follower.round(0.0, 0.0)
    assert owners == [(1001, 100, (100,)), (1002, 100, (100,)), None]
