"""kill -9 at every point of the loop; each time the resumed incident ends right, with one relaunch an attempt."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli import warm

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
KILLED = 128 + signal.SIGKILL

INVENTORY = """\
version: 1
id: crash
title: One machine for crash tests
cluster: crash
scheduler: {{kind: local}}
nodes: {{kind: none}}
policy: {{mode: apply, cancel_wait_s: 20}}
paths: {{state: {state}}}
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --output=%x-%j.out
TRAIN_ARGS=(
    --micro-batch-size 8
    --gradient-accumulation-steps 1
    --activation-checkpointing none
    --save {work}/ckpt
    --load {work}/ckpt
)
{before}
exec {python} {train} "${{TRAIN_ARGS[@]}}" --hang
"""


class Place:
    """A state folder with a wedged job 1 in it. `before`: a line of its script before the training."""

    def __init__(self, folder: Path, before: str = "") -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.state = folder / "state"
        self.inventory = folder / "crash.yaml"
        self.inventory.write_text(INVENTORY.format(state=self.state), encoding="utf-8")
        script = self.work / "train.sbatch"
        script.write_text(
            SCRIPT.format(work=self.work, python=sys.executable, train=HERE / "tiny_train.py", before=before),
            encoding="utf-8",
        )
        self.run("submit", str(script))
        log = self.work / "tiny-1.out"
        deadline = time.monotonic() + 20
        while not (log.exists() and "OutOfMemoryError" in log.read_text(encoding="utf-8")):
            assert time.monotonic() < deadline, "the job did not fail"
            time.sleep(0.02)

    def run(self, *arguments: str, inventory: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*warm.runbook(), arguments[0], "--inventory", str(inventory or self.inventory), *arguments[1:]),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def drive(self, point: int | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*warm.runbook(), str(HERE / "driver.py"), str(self.inventory), str(point), str(self.folder / "points")),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def incident(self) -> dict[str, Any]:
        path = self.state / "incidents" / "oom-crash-1" / "incident.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def comments(self) -> list[str]:
        """The comment of every job that the scheduler ever had."""
        from runbook.adapters.local import LocalScheduler

        return [job.comment for job in LocalScheduler(self.state / "scheduler", cluster="crash").jobs()]

    def end(self) -> None:
        from runbook.adapters.local import LocalScheduler

        scheduler = LocalScheduler(self.state / "scheduler", cluster="crash")
        for job in scheduler.jobs():
            if not job.state.job_class.ended:
                scheduler.cancel(job)


@functools.cache
def _points() -> list[str]:
    """The names of all points, from one run that is not killed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            done = place.drive(-1)
            assert done.returncode == 0, done.stderr
            return (Path(folder) / "points").read_text(encoding="utf-8").splitlines()
        finally:
            place.end()


_SHARE = int(os.environ.get("RUNBOOK_CRASH_SHARES", "6"))


@pytest.mark.parametrize("share", range(_SHARE))
@pytest.mark.timeout(400)
def test_resumed_after_a_kill_at_every_point(share: int, tmp_path: Path) -> None:
    points = _points()
    assert any("scheduler.submit" in point for point in points)
    assert any("scheduler.cancel" in point for point in points)
    for point in range(share, len(points), _SHARE):
        folder = tmp_path / str(point)
        folder.mkdir()
        place = Place(folder)
        try:
            killed = place.drive(point)
            where = f"point {point}, {points[point]}"
            if killed.returncode == 0:
                # How often a running job is looked at depends on the machine: this run had come to its end before.
                assert len((folder / "points").read_text(encoding="utf-8").splitlines()) <= point, where
                assert place.incident()["state"] == "recovered", where
                continue
            assert killed.returncode == KILLED, (where, killed.stderr)
            # Before the incident was stored at all there is nothing to resume: the engineer types the same again.
            stored = (place.state / "incidents" / "oom-crash-1" / "incident.json").exists()
            again = place.run("resume", "oom-crash-1") if stored else place.run("oom", "--job", "1", "--yes")
            assert again.returncode == 0, (where, again.stdout, again.stderr)
            incident = place.incident()
            assert incident["state"] == "recovered", (where, incident["conclusion"])
            relaunches = [comment for comment in place.comments() if comment.startswith("runbook:")]
            expected = [attempt["claim"]["token"] for attempt in incident["attempts"]]
            assert sorted(relaunches) == sorted(expected), where
            assert len(expected) == 1, where
            assert [act["what"] for act in incident["acts"]].count("submit") == 1, where
        finally:
            place.end()
