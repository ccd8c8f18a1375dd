"""Lives of jobs replayed in time: the log is written and the ranks' processes are started and ended as told, while the
watch follows it and its first boxes decide. Time passes as fast as that takes.

    python -m tests.service.replay          all of them: a line of what became of each
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from runbook.adapters.log_watch import LogFollowers, Suspicion
from runbook.adapters.log_watch.follower import Follower
from runbook.adapters.metrics import WatchFigures
from runbook.adapters.node_access import LocalNodes
from runbook.config import WatchDocument
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.incident import Failure, Incident, Policy
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import IncidentId, JobId, NodeName, UserName
from runbook.ports import Scheduler
from runbook.service.job_watch import JobWatch, memory_words
from runbook.service.spool import SpoolEvent
from runbook.steps import read_error
from runbook.steps.shared.base import Ports, StepContext
from tests.contract.fakes import FakeClock, FakeFile, FakeFiles
from tests.flow.inventory import inventory
from tests.flow.test_resuming import PLAYBOOK, OnePlace
from tests.service.lives import Life, lives

WORDS = sorted(memory_words(load_signatures(playbook_folder() / "signatures", load_kinds())))
_JOB = 990_000_000
"""Numbers that no job has whose processes are looked for here."""


class InTime:
    """The follower, asked in a time that is told."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock, self._follower = clock, Follower(WORDS, 120.0, lambda owner: None)
        self.woken = threading.Event()

    def follow(self, job: JobId, owner: UserName, paths: Sequence[str]) -> None:
        self._follower.follow(job, (0, 0, ()), paths)

    def forget(self, job: JobId) -> tuple[JobId, ...]:
        self._follower.forget(job)
        return ()

    def look(self) -> tuple[Suspicion, ...]:
        told = self._follower.round(self._clock.elapsed(), self._clock.now())
        return tuple(
            Suspicion(JobId(one["suspected"]), one["line"]) if "suspected" in one else Suspicion(JobId(one["went_on"]))
            for one in told
        )

    def figures(self) -> WatchFigures:
        return WatchFigures()

    def problem(self) -> str:
        return ""


@dataclass
class Seen:
    """What became of one life."""

    life: Life
    told_s: list[float] = field(default_factory=list)
    """When the watch told of it, after the job's start."""
    ended: str = ""
    """The outcome that ended it; "" where it was left alone to its end."""
    ended_s: float = 0.0
    why: str = ""

    @property
    def acted(self) -> bool:
        return self.ended in ("memory_error", "gpu_fault")

    @property
    def asked(self) -> bool:
        return self.ended == "unreadable"

    @property
    def right(self) -> bool:
        """A healthy job is not cancelled, and of one that hangs at least a person hears."""
        return not self.acted if self.life.hangs_s is None else self.acted or self.asked


class Replay:
    """One life; `seen` is what became of it."""

    def __init__(self, life: Life, number: int, folder: Path) -> None:
        self.seen, self.clock = Seen(life), FakeClock(life.begins_s)
        self._began_s = life.begins_s
        self._log = folder / "out.log"
        self._log.touch()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._job = JobRecord(
            JobId(str(_JOB + number)), "alpha", "train", UserName(pwd.getpwuid(os.geteuid()).pw_name),
            JobState("RUNNING", JobClass.ACTIVE), uid=os.geteuid(), submit_time_s=life.begins_s, partition="gpu",
            start_time_s=life.begins_s, stdout_path=str(self._log), work_dir=str(folder), nodes=(NodeName("gpu-21"),),
        )
        self._wrote_s = life.begins_s
        self._nodes = LocalNodes(probe=False)
        self._incident: Incident | None = None
        self._look_s = 0.0
        self._watch = JobWatch(
            WatchDocument(partitions=("gpu",)), lambda: (self._job,), cast(Scheduler, self), self._nodes,
            cast(LogFollowers, InTime(self.clock)), self._open, "alpha", "oom", self.clock,
        )

    def job(self, job: JobId) -> JobRecord:
        return self._job

    def run(self) -> Seen:
        life = self.seen.life
        try:
            for moment in life.moments:
                self._until(moment.at_s)
                if self.seen.ended:
                    break
                for rank in moment.ends:
                    self._processes.pop(rank).kill()
                for rank in moment.starts:
                    self._processes[rank] = self._start(rank, life)
                if moment.text:
                    with self._log.open("a") as stream:
                        stream.write(moment.text)
                    self._wrote_s = self.clock.now()
            if self._processes:
                self._until(life.now_s)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        return self.seen

    def _until(self, at_s: float) -> None:
        """Rounds of the watch, each second where something is to be seen, and looks of the box when they are due."""
        while (left_s := self._began_s + at_s - self.clock.now()) > 0 and not self.seen.ended:
            self.clock.sleep(min(left_s, 1.0 if self._watch._suspects else 5.0))
            self._round()
            if self._incident is not None and self.clock.now() >= self._look_s:
                self._read()

    def _round(self) -> None:
        self._watch.round()
        looks = [one.look for one in self._watch._suspects.values() if one.look is not None]
        looks += [one.look for one in self._watch._first.values() if one.look is not None]
        for look in looks:
            look.result()
        if looks:
            self._watch.round()

    def _open(self, event: SpoolEvent) -> None:
        now_s = self.clock.now()
        self.seen.told_s.append(now_s - self._began_s)
        self._incident = Incident(
            IncidentId("i1"), "alpha", self._job.id, Policy.APPLY, event.trigger, now_s, failure=Failure(self._job)
        )
        self._look_s = now_s

    def _read(self) -> None:
        assert self._incident is not None
        files, place = FakeFiles(), cast(Any, OnePlace())
        files.files[str(self._log)] = FakeFile(self._log.read_bytes(), modified_s=self._wrote_s)
        ports = Ports(cast(Scheduler, self), self._nodes, files, place, self.clock)
        found = read_error.run(StepContext(self._incident, ports, PLAYBOOK, inventory()))
        if found.outcome == "waiting":
            self._incident, self._look_s = found.incident, self.clock.now() + found.poll_s
            return
        self._incident = None
        self.seen.why = found.summary
        if found.outcome != "healthy":
            self.seen.ended, self.seen.ended_s = str(found.outcome), self.clock.now() - self._began_s

    def _start(self, rank: int, life: Life) -> subprocess.Popen[bytes]:
        world = life.world // life.groups
        own = {"RANK": str(rank % world), "WORLD_SIZE": str(world), "SLURM_JOB_ID": self._job.id}
        return subprocess.Popen(("sleep", "86400"), env={**os.environ, **own})


def replayed(life: Life, number: int) -> Seen:
    """What becomes of a life."""
    folder = Path(tempfile.mkdtemp(prefix="runbook-life-"))
    try:
        return Replay(life, number, folder).run()
    finally:
        shutil.rmtree(folder)


def main(every: int = 1) -> int:
    """A line for each, `every` as in `lives`; 1 where a healthy one would have been cancelled or a hang was missed."""
    healthy = hung = false = persons = missed = 0
    opened_s: list[float] = []
    for number, life in enumerate(lives(every)):
        seen = replayed(life, number)
        hangs = life.hangs_s is not None
        healthy, hung = healthy + (not hangs), hung + hangs
        false += seen.acted and not hangs
        missed += hangs and not seen.right
        persons += seen.asked and not hangs
        after = ""
        if hangs and seen.told_s:
            opened_s.append(seen.told_s[0] - cast(float, life.hangs_s))
            after = f"told after {opened_s[-1]:.0f} s, decided after {seen.ended_s - cast(float, life.hangs_s):.0f} s"
        wrong = "" if seen.right else "WRONG "
        print(f"{wrong}{life.name} ({life.style}): {seen.ended or 'left alone'} {after or seen.why}", flush=True)
    print(
        f"{healthy} healthy jobs: {false} would have been cancelled, of {persons} a person is asked\n"
        f"{hung} jobs that hang: {missed} missed"
    )
    return int(bool(false or missed))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
