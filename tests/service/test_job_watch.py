"""The watch: a job of which a rank is gone while the others wait is told of; no log alone is believed."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runbook.adapters.clock import SystemClock
from runbook.adapters.log_watch import MOST_PATH_BYTES, LogFollowers, Suspicion
from runbook.adapters.log_watch.follower import MOST_READ_BYTES, Follower, Owner
from runbook.adapters.metrics import WatchFigures
from runbook.config import WatchDocument
from runbook.errors import NotFound, Unavailable
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import ProcessView
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.ports import Nodes, Scheduler
from runbook.service.job_watch import JobWatch, is_watched, memory_words
from runbook.service.spool import SpoolReader
from runbook.steps.shared.ranks import RanksSeen, ranks_among
from tests.contract.fakes import FakeClock
from tests.service.lives import STYLES, Life, lives
from tests.service.replay import replayed

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
        self.suspected: list[tuple[float, str]] = []
        self.went_on: list[float] = []

    def follow(self) -> None:
        self.follower.follow("7", (0, 0, ()), [str(path) for path in self.paths])

    def write(self, rank: int, text: str) -> None:
        with self.paths[rank].open("a") as stream:
            stream.write(text)

    def run(self, seconds: int, each: Callable[[int], None] = lambda _second: None) -> None:
        for second in range(seconds):
            each(second)
            for told in self.follower.round(self.now_s, time.time()):
                if "went_on" in told:
                    self.went_on.append(self.now_s)
                else:
                    self.suspected.append((self.now_s, str(told["path"])))
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


def test_a_job_whose_log_tells_of_a_memory_failure_is_suspected_at_once_and_once(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, OOM)
    died_s = replay.now_s
    replay.run(300)
    assert replay.suspected == [(died_s, str(replay.paths[2]))]
    assert replay.went_on == []


def test_one_that_goes_on_writing_is_suspected_no_more_until_it_fails_again(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, OOM)
    replay.run(60, steps(replay))
    assert len(replay.suspected) == len(replay.went_on) == 1
    replay.run(1200)
    replay.write(1, OOM)
    replay.run(30)
    assert [path for _, path in replay.suspected] == [str(replay.paths[2]), str(replay.paths[1])]
    assert len(replay.went_on) == 1


def test_one_last_word_of_every_rank_is_no_going_on(tmp_path: Path) -> None:
    """As a watchdog of every rank writes once; case: a job of more files than are asked in one go was let off by it."""
    replay = Replay(tmp_path, files=64)
    replay.follow()
    replay.run(60, steps(replay, ranks=tuple(range(64))))
    replay.write(2, OOM)
    replay.run(20)
    for rank in range(64):
        replay.write(rank, "[E ProcessGroupNCCL.cpp] Watchdog caught collective operation timeout\n")
    replay.run(300)
    assert len(replay.suspected) == 1 and replay.went_on == []


def test_what_is_a_pause_is_learned_from_the_job(replay: Replay) -> None:
    replay.run(600, steps(replay, every_s=40))
    replay.write(2, OOM)
    replay.run(40, steps(replay, every_s=40))  # within the pause of a step: it may be the last one's line
    assert replay.went_on == []
    replay.run(200, steps(replay, every_s=40))
    assert len(replay.went_on) == 1


def test_what_happened_before_the_watch_began_is_found(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.write(0, "step 4 | loss 2.2\n" * 50_000)
    replay.write(2, "step 4 | loss 2.2\n" * 50_000 + OOM)
    for path in replay.paths:
        os.utime(path, (time.time() - 600, time.time() - 600))
    replay.follow()
    replay.run(3)
    assert [path for _, path in replay.suspected] == [str(replay.paths[2])]


def test_a_word_in_two_writes_is_one_word(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.write(2, "torch.OutOfMemoryError: CUDA out o")
    replay.run(1)
    replay.write(2, "f memory. Tried to allocate 2.00 GiB.\n")
    replay.run(30)
    assert len(replay.suspected) == 1


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(replay: Replay) -> None:
    replay.run(60, steps(replay))
    replay.paths[2].write_text(OOM)
    replay.run(30)
    assert len(replay.suspected) == 1


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


def _costly(folder: Path) -> Path:
    """A folder behind a chain of links, each of which takes the kernel hundreds of steps."""
    (folder / "logs").mkdir()
    last = "logs"
    for number in range(38):
        (folder / f"l{number}").symlink_to("logs/../" * ((4000 - len(last)) // 8) + last)
        last = f"l{number}"
    return folder / last


def test_an_owner_whose_files_cost_much_to_ask_slows_down_his_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _costly(tmp_path)
    mine = tmp_path / "mine.log"
    mine.write_text("step 1\n")
    (folder / "out-1999").write_text("step 1\n")
    follower = Follower(WORDS, 120.0, lambda owner: None)
    follower.follow("1", (1001, 100, ()), [str(folder / f"out-{number}") for number in range(2000)])
    follower.follow("2", (1002, 100, ()), [str(mine)])
    stat, asked, told = os.stat, [], []

    def counted(path: str, **how: bool) -> os.stat_result:
        asked.append(path)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", counted)
    for second in range(5):
        told += follower.round(1000.0 + second, time.time())
        assert asked.count(str(mine)) == 1, "it is asked every second"
        assert len(asked) < 2000, "and not behind all of the other's"
        asked.clear()
    with mine.open("a") as stream:
        stream.write(OOM)
    told += follower.round(1005.0, time.time())
    assert [one["suspected"] for one in told] == ["2"]
    with (folder / "out-1999").open("a") as stream:
        stream.write(OOM)
    for second in range(6, 2000):
        if told := follower.round(1000.0 + second, time.time()):
            break
    assert [one["suspected"] for one in told] == ["1"], "his are asked, too"


def test_an_owner_with_many_jobs_has_them_all_asked(tmp_path: Path) -> None:
    follower = Follower(WORDS, 120.0, lambda owner: None)
    for job in range(40):
        (tmp_path / f"{job}.log").write_text("step 1\n")
        follower.follow(str(job), (1001, 100, ()), [str(tmp_path / f"{job}.log")] * 30)
    follower.round(1000.0, time.time())
    follower.forget("7")
    for job in range(40):
        with (tmp_path / f"{job}.log").open("a") as stream:
            stream.write(OOM)
    told = [one["suspected"] for second in range(1, 60) for one in follower.round(1000.0 + second, time.time())]
    assert sorted(told, key=int) == [str(job) for job in range(40) if job != 7]


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
    assert len(replay.suspected) == 1


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
        self.down = self.silent = False
        self.unlisted: set[JobId] = set()
        """Whose rows cannot be read."""

    def running(self) -> list[JobRecord | Unknown]:
        if self.down:
            raise Unavailable("Slurm does not answer")
        strange = [Unknown("rows of squeue's list of running jobs that are of none: 1")] if self.unlisted else []
        return [*(job for job in self.jobs if job.id not in self.unlisted), *strange]

    def job(self, job: JobId) -> JobRecord:
        if self.silent:
            raise Unavailable("Socket timed out")
        found = next((one for one in self.jobs if one.id == job), None)
        if found is None:
            raise NotFound(f"Slurm knows no job {job}")
        return found


@dataclass
class Processes:
    """Nodes that show the processes of a job: rank and process id."""

    ranks: dict[int, int] | None
    """None: they cannot be seen."""
    world: int = 4
    asked: int = 0

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        self.asked += 1
        if self.ranks is None:
            return Unknown("gpu-1 was not reached")
        shown = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}  # the launcher's own
        views = [ProcessView(node, 1, ("torchrun",), shown)]
        for rank, pid in self.ranks.items():
            own = {**shown, "RANK": str(rank), "WORLD_SIZE": str(self.world)}
            views.append(ProcessView(node, pid, ("python",), own))
        return tuple(views)


@pytest.fixture
def spool(tmp_path: Path) -> SpoolReader:
    (tmp_path / "spool").mkdir()
    return SpoolReader(tmp_path / "spool")


ALIVE = {0: 100, 1: 101, 2: 102, 3: 103}
ONE_GONE = {0: 100, 1: 101, 3: 103}


class Scene:
    """A job on the watched partition whose log has told of a memory failure."""

    late: JobRecord

    def __init__(
        self, folder: Path, followers: LogFollowers, spool: SpoolReader, ranks: dict[int, int] | None, *,
        seen_alive: bool = True,
    ) -> None:
        self.log = folder / "out.log"
        self.log.write_text("step 1\n")
        node = (NodeName("gpu-1"),)
        self.jobs = OneJob(
            _job(7, partition="gpu", stdout_path=str(self.log), nodes=node),
            _job(8, partition="cpu", stdout_path=str(self.log), nodes=node),
        )
        self.nodes = Processes(ALIVE if seen_alive else ranks)
        self.spool = spool
        self.clock = FakeClock(2000.0)
        self.watch = JobWatch(
            WatchDocument(partitions=("gpu",), list_s=1), self.jobs.running, cast(Scheduler, self.jobs),
            cast(Nodes, self.nodes), followers, spool.write, "alpha", "oom", self.clock,
        )
        if seen_alive:
            self.looks(1)
        self.nodes.ranks = ranks
        self.fail()

    def fail(self) -> None:
        with self.log.open("a") as stream:
            stream.write(OOM)

    def goes_on(self, line: str) -> None:
        """It writes such lines until the watch has seen that it goes on."""

        def seen() -> bool:
            with self.log.open("a") as stream:
                stream.write(line)
            self.watch.round()
            return self.watch._suspects[JobId("7")].looks_left is not None

        _until(seen)

    def looks(self, number: int) -> None:
        """Rounds until the nodes were asked so often, and what they answered was heard."""
        wanted = self.nodes.asked + number

        def ready() -> bool:
            self.watch.round()
            at_work = any(one.look is not None for one in self.watch._suspects.values())
            at_work = at_work or any(one.look is not None for one in self.watch._first.values())
            if not at_work:
                self.clock.sleep(1)
            return self.nodes.asked >= wanted and not at_work

        _until(ready)


def test_a_job_of_which_a_rank_is_gone_while_others_wait_is_told_of_once(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ONE_GONE)
    scene.looks(1)
    assert spool.scan() == (), "one look may fall into a start or an end"
    scene.looks(1)
    (event,) = spool.scan()
    assert (event.job, event.trigger, event.playbook, event.is_suspicion) == ("7", "watch", "oom", True)
    for _ in range(20):
        scene.watch.round()
        scene.clock.sleep(10)
    assert len(spool.scan()) == 1
    assert scene.watch.figures.jobs == 1
    scene.jobs.jobs.clear()
    scene.clock.sleep(2)
    scene.watch.round()
    assert scene.watch.figures.jobs == 0


@pytest.mark.parametrize("ranks", [{0: 100}, ONE_GONE])
def test_a_rank_that_was_never_seen_alive_is_not_gone(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader, ranks: dict[int, int]
) -> None:
    """What a process says of its rank may have come to it from elsewhere: a script that exports it, a job that was
    submitted from within another's rank."""
    scene = Scene(tmp_path, followers, spool, ranks, seen_alive=False)
    scene.looks(4)
    assert spool.scan() == ()
    said = f"job 7: {4 - len(ranks)} of its 4 ranks show no process, and were not seen alive before"
    assert scene.watch.problem == f"which ranks live is not known: {said}"
    scene.nodes.ranks = ALIVE
    scene.looks(1)
    scene.nodes.ranks = ranks
    scene.looks(2)
    assert len(spool.scan()) == 1, "since they were seen, they are"


def test_a_job_whose_ranks_all_live_is_left_alone_and_asked_ever_more_seldom(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    began_s = scene.clock.now()
    scene.looks(6)
    assert spool.scan() == ()
    assert scene.clock.now() - began_s > 6 + 12 + 24 + 48
    scene.nodes.ranks = ONE_GONE
    scene.looks(2)
    assert len(spool.scan()) == 1


def test_a_job_that_starts_its_ranks_anew_is_left_alone(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ONE_GONE)
    scene.looks(1)
    scene.nodes.ranks = {0: 200, 1: 201, 3: 203}
    scene.looks(1)
    assert spool.scan() == ()


def test_a_job_whose_ranks_cannot_be_seen_is_a_problem_and_no_event(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, None)
    scene.looks(2)
    assert scene.watch.problem == "which ranks live is not known: job 7: gpu-1: gpu-1 was not reached"
    assert spool.scan() == ()
    scene.nodes.ranks = {}
    scene.looks(1)
    assert spool.scan() == ()


def test_a_job_that_went_on_is_asked_a_few_times_more_and_then_forgotten(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    scene.looks(1)

    scene.goes_on("step 2\n")
    asked = scene.nodes.asked

    def forgotten() -> bool:
        scene.clock.sleep(10)
        scene.watch.round()
        return not scene.watch._suspects

    _until(forgotten)
    assert asked < scene.nodes.asked <= asked + 4
    asked = scene.nodes.asked
    for _ in range(5):
        scene.clock.sleep(300)
        scene.watch.round()
    assert scene.nodes.asked == asked


def test_survivors_that_go_on_printing_do_not_hide_the_rank_that_is_gone(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    """A heartbeat is no step, and a process may take its time to end: a core is written first."""
    scene = Scene(tmp_path, followers, spool, ALIVE)
    scene.looks(1)

    scene.goes_on("[rank0] still waiting in all_reduce\n")
    scene.nodes.ranks = ONE_GONE
    scene.looks(2)
    (event,) = spool.scan()
    assert event.job == "7"


def test_what_is_told_is_looked_at_without_waiting_for_the_next_round(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE, seen_alive=False)
    watch = replace(scene.watch, round_s=30.0, clock=SystemClock())
    began_s = time.monotonic()
    thread = threading.Thread(target=watch.run)
    thread.start()
    _until(lambda: scene.nodes.asked == 1)
    scene.nodes.ranks = ONE_GONE
    scene.fail()
    _until(lambda: len(spool.scan()) == 1)
    watch.stop()
    thread.join(10)
    assert time.monotonic() - began_s < 15 and not thread.is_alive()


def test_a_scheduler_that_does_not_answer_is_a_problem_and_passes(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    scene.watch.round()
    scene.jobs.down = True
    scene.clock.sleep(2)
    scene.watch.round()
    assert (scene.watch.problem, scene.watch.figures.ok) == ("Slurm does not answer", False)
    assert scene.watch.figures.jobs == 1
    scene.jobs.down = False
    scene.clock.sleep(2)
    scene.watch.round()
    assert (scene.watch.problem, scene.watch.figures.ok) == ("", True)


def test_a_job_is_watched_on_though_slurm_did_not_answer_for_it_once(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE, seen_alive=False)
    scene.jobs.silent = True
    scene.watch.round()
    assert scene.watch.figures.jobs == 0
    scene.jobs.silent = False
    scene.clock.sleep(70)
    scene.watch.round()
    assert scene.watch.figures.jobs == 1, "a new one is asked about again"
    scene.jobs.silent = True
    scene.clock.sleep(70)  # when its steps' logs are asked for
    scene.watch.round()
    scene.jobs.silent = False
    scene.clock.sleep(70)
    scene.watch.round()
    assert scene.watch.figures.jobs == 1, "one that is followed is not dropped"


def test_a_list_that_is_not_whole_is_told_of_and_takes_no_job_out_of_the_watch(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    scene.watch.round()
    scene.jobs.unlisted = {JobId("7")}
    for _ in range(3):
        scene.clock.sleep(70)
        scene.watch.round()
    assert scene.watch.figures.jobs == 1
    assert scene.watch.problem == "rows of squeue's list of running jobs that are of none: 1"
    assert not scene.watch.figures.ok
    scene.jobs.jobs = [job for job in scene.jobs.jobs if job.id != "7"]
    scene.clock.sleep(2)
    scene.watch.round()
    assert scene.watch.figures.jobs == 0, "one that ended is let go all the same"
    scene.jobs.unlisted = set()
    scene.clock.sleep(2)
    scene.watch.round()
    assert scene.watch.problem == ""


def test_more_jobs_than_may_be_are_told_of(tmp_path: Path, followers: LogFollowers, spool: SpoolReader) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    scene.jobs.jobs = [
        _job(number, partition="gpu", stdout_path=str(tmp_path / f"{number}.log")) for number in range(30)
    ]
    scene.watch.rule = WatchDocument(partitions=("gpu",), list_s=1, most_jobs=25)
    for _ in range(3):
        scene.watch.round()
        scene.clock.sleep(1)
    assert scene.watch.figures.jobs == 25
    assert scene.watch.problem == "5 running jobs are not watched: watch.most_jobs is 25"


def test_logs_for_which_there_was_no_room_are_followed_once_the_owners_other_jobs_end(
    tmp_path: Path, followers: LogFollowers, spool: SpoolReader
) -> None:
    scene = Scene(tmp_path, followers, spool, ALIVE)
    deep = "/".join(["d" * 250] * 15)
    many = tuple(f"/{deep}/{task}" for task in range(MOST_PATH_BYTES // 3 // len(deep)))
    late = tmp_path / "late.log"
    late.write_text("step 1\n")
    node = (NodeName("gpu-1"),)
    scene.jobs.jobs = [_job(20, partition="gpu", more_log_paths=many, nodes=node)]
    scene.watch.round()
    scene.jobs.jobs.append(_job(21, partition="gpu", stdout_path=many[0], stderr_path=str(late), nodes=node))

    def rounds(ready: Callable[[], bool]) -> None:
        def ready_after_one() -> bool:
            scene.watch.round()
            scene.clock.sleep(1)
            return ready()

        _until(ready_after_one)

    rounds(lambda: scene.watch.figures.jobs == 2)
    rounds(lambda: "not all logs of jobs" in scene.watch.problem)
    # It is asked for once more when its steps have begun.
    scene.clock.sleep(600)
    for _ in range(5):
        scene.watch.round()
        scene.clock.sleep(1)
    del scene.jobs.jobs[0]
    rounds(lambda: not scene.watch.problem)
    late.write_text(OOM)
    rounds(lambda: "21" in scene.watch._suspects)


class Told:
    """Followers of logs of several owners, all of which tell of a memory failure."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, UserName] = {}

    def follow(self, job: JobId, owner: UserName, paths: Sequence[str]) -> None:
        self.jobs[job] = owner

    def forget(self, job: JobId) -> tuple[JobId, ...]:
        del self.jobs[job]
        return ()

    def look(self) -> tuple[Suspicion, ...]:
        return tuple(Suspicion(job, "out of memory") for job in self.jobs)

    def figures(self) -> WatchFigures:
        return WatchFigures(jobs=len(self.jobs))

    def problem(self) -> str:
        return ""


@pytest.fixture
def crowd(tmp_path: Path, followers: LogFollowers, spool: SpoolReader) -> Scene:
    """Eighty running jobs of one owner, before anybody else's."""
    scene = Scene(tmp_path, followers, spool, ALIVE, seen_alive=False)
    scene.watch.followers = cast(LogFollowers, Told())
    where: dict[str, object] = {"partition": "gpu", "stdout_path": "/dev/null", "nodes": (NodeName("gpu-1"),)}
    scene.jobs.jobs = [_job(number, owner=UserName("eve"), **where) for number in range(100, 180)]
    scene.late = _job(998, owner=UserName("alice"), **where)
    return scene


def told(crowd: Scene) -> dict[JobId, UserName]:
    """The jobs that are followed."""
    return cast(Told, crowd.watch.followers).jobs


def test_who_has_many_jobs_keeps_nobodys_out_of_the_watch(crowd: Scene) -> None:
    """Slurm is asked for twenty jobs a round."""
    crowd.watch.rule = WatchDocument(partitions=("gpu",), list_s=1, most_jobs=40)
    crowd.watch.round()
    crowd.jobs.jobs.append(crowd.late)
    crowd.clock.sleep(1)
    crowd.watch.round()
    assert "998" in told(crowd)
    for _ in range(3):
        crowd.clock.sleep(2)
        crowd.watch.round()
    assert len(told(crowd)) == 40 and "998" in told(crowd)
    assert crowd.watch.problem == "41 running jobs are not watched: watch.most_jobs is 40"


def test_a_job_of_which_slurm_tells_slowly_holds_up_no_other(crowd: Scene) -> None:
    """Its owner can make its answer long: steps of thousands of tasks with a path each."""
    crowd.watch.rule = WatchDocument(partitions=("gpu",), list_s=1)
    answers, quick = threading.Event(), crowd.jobs.job

    def job(asked: JobId) -> JobRecord:
        if asked == "100":
            answers.wait(60)
        return quick(asked)

    crowd.watch.scheduler = cast(Scheduler, SimpleNamespace(job=job))
    crowd.jobs.jobs = [crowd.jobs.jobs[0], crowd.late]
    try:
        begun_s = time.monotonic()
        for _ in range(3):
            crowd.watch.round()
            crowd.clock.sleep(1)
        assert time.monotonic() - begun_s < 30
        assert told(crowd) == {"998": "alice"}
    finally:
        answers.set()

    def both() -> bool:
        crowd.watch.round()
        crowd.clock.sleep(1)
        return set(told(crowd)) == {"100", "998"}

    _until(both)


def test_whose_logs_take_too_much_is_said_and_the_watch_is_well(crowd: Scene) -> None:
    crowd.watch.rule = WatchDocument(partitions=("gpu",), list_s=1)
    crowd.watch.followers.problem = lambda: "9 logs of eve"  # type: ignore[method-assign]
    crowd.watch.round()
    assert crowd.watch.problem == "9 logs of eve" and crowd.watch.figures.ok


def test_slurm_is_not_asked_for_its_running_jobs_without_a_pause(crowd: Scene) -> None:
    """Case: after a restart, with many new jobs, every round listed anew, ten a second."""
    crowd.watch.rule = WatchDocument(partitions=("gpu",), list_s=30, most_jobs=80)
    lists = 0

    def listed() -> list[JobRecord | Unknown]:
        nonlocal lists
        lists += 1
        return crowd.jobs.running()

    crowd.watch.running = listed
    for _ in range(31):
        crowd.watch.round()
        crowd.clock.sleep(0.1)
    assert lists in (3, 4) and len(told(crowd)) == 20 * lists


def test_who_comes_when_every_place_is_taken_is_watched(crowd: Scene) -> None:
    crowd.watch.rule = WatchDocument(partitions=("gpu",), list_s=1, most_jobs=40)
    for _ in range(3):
        crowd.watch.round()
        crowd.clock.sleep(1)
    crowd.jobs.jobs.append(crowd.late)
    crowd.clock.sleep(2)
    crowd.watch.round()
    assert len(told(crowd)) == 40 and "998" in told(crowd)


def test_who_has_many_suspected_jobs_keeps_nobodys_from_being_looked_at(crowd: Scene) -> None:
    begun: list[UserName] = []
    goes_on = threading.Event()

    def processes(node: NodeName, job: JobRecord, variables: Sequence[str]) -> Unknown:
        begun.append(job.owner)
        goes_on.wait(60)
        return Unknown("slow")

    crowd.nodes.processes = processes  # type: ignore[method-assign]
    try:
        for _ in range(5):
            crowd.watch.round()
        crowd.jobs.jobs.append(crowd.late)
        crowd.clock.sleep(2)
        crowd.watch.round()
        crowd.watch.round()
        _until(lambda: len(begun) == 5)
    finally:
        goes_on.set()
    assert sorted(begun) == ["alice", *["eve"] * 4]


def test_root_takes_on_nobodys_rights_without_being_told(tmp_path: Path) -> None:
    owners: list[Owner | None] = []
    follower = Follower(WORDS, 1.0, owners.append)
    follower.follow("1", (1001, 100, (100,)), [str(tmp_path / "a")])
    follower.follow("2", (1002, 100, (100,)), [str(tmp_path / "b")])
    follower.round(0.0, 0.0)
    assert owners == [(1001, 100, (100,)), (1002, 100, (100,)), None]


# Whole lives of jobs, with real processes: one of each kind, in another style each.

@pytest.mark.timeout(600)
@pytest.mark.parametrize("life", list(lives(every=len(STYLES))), ids=lambda life: f"{life.name}-{life.style}")
def test_no_healthy_job_is_cancelled_and_no_hang_is_missed(life: Life) -> None:
    seen = replayed(life, int(hashlib.sha256(life.name.encode()).hexdigest()[:5], 16))
    assert seen.right, seen.why


# The ranks that processes show.

def _views(*shown: dict[str, str]) -> list[ProcessView]:
    return [ProcessView(NodeName("n"), pid, ("python",), variables) for pid, variables in enumerate(shown)]


def test_ranks_are_those_of_the_workers_and_not_of_their_launchers() -> None:
    agent = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    workers = [{**agent, "RANK": str(rank), "WORLD_SIZE": "4"} for rank in (0, 1, 3)]
    seen = ranks_among(_views(agent, *workers))
    assert isinstance(seen, RanksSeen)
    assert (seen.world, seen.missing, len(seen.living)) == (4, (2,), 3)
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
    tasks = [{**batch, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "3"} for rank in (0, 1, 2)]
    for gone in (0, 1):
        seen = ranks_among(_views(batch, *(one for at, one in enumerate(tasks) if at != gone)))
        assert isinstance(seen, RanksSeen) and seen.missing == (gone,)
    assert isinstance(ranks_among(_views(batch)), Unknown), "the batch script is no rank"


def test_a_step_that_slurm_started_has_had_all_of_its_tasks() -> None:
    step = [{"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "3"} for rank in (0, 2)]
    by_hand = [{"RANK": str(rank), "WORLD_SIZE": "3"} for rank in (0, 2)]
    for shown, started, gone in ((step, {3}, True), (step, {8}, False), (step, (), False), (by_hand, {3}, False)):
        seen = ranks_among(_views(*shown), started)
        assert isinstance(seen, RanksSeen)
        assert seen.gone_of(None) is gone
        assert (seen.gone_of(3) and not seen.gone_of(8)) or gone


@pytest.mark.parametrize(("rank", "world"), [
    ("0", "200000000000"), ("1" * 5000, "2"), ("0", "1" * 5000), ("7", "4"), ("\u0661", "2"), ("0", "0"),
])
def test_what_a_process_says_of_its_rank_may_be_anything(rank: str, world: str) -> None:
    assert isinstance(ranks_among(_views({"RANK": rank, "WORLD_SIZE": world})), Unknown)


def test_worlds_that_differ_and_processes_without_a_rank_are_unknown() -> None:
    two = _views({"RANK": "0", "WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "8"})
    for views in (two, _views({}), [], _views({"RANK": "x", "WORLD_SIZE": "4"})):
        assert isinstance(ranks_among(views), Unknown)
