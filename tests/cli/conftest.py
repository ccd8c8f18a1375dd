"""The real command in a child process, with a state folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import warm

INVENTORY = """\
version: 1
id: here
title: This machine, for a test
cluster: here
scheduler: {{kind: local}}
nodes: {{kind: none}}
policy: {{mode: {mode}, cancel_wait_s: 20}}
paths: {{state: {state}, spool: {state}/spool}}
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
exec {python} {train} "${{TRAIN_ARGS[@]}}" {more}
"""

TINY = Path(__file__).resolve().parents[1] / "crash" / "tiny_train.py"


@dataclass
class Shell:
    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def inventory(self) -> Path:
        return self.folder / "here.yaml"

    def write_inventory(self, mode: str = "approve") -> None:
        self.inventory.write_text(INVENTORY.format(mode=mode, state=self.state), encoding="utf-8")

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            (*warm.runbook(), *arguments),
            cwd=self.work,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env={**os.environ, "RUNBOOK_INVENTORY": str(self.inventory), **environment},
        )
        assert "Traceback (most recent call last)" not in done.stderr, done.stderr
        return done

    def failed_job(self, more: str = "") -> str:
        """Submit the tiny training job and wait until it has died."""
        script = self.work / "train.sbatch"
        script.write_text(SCRIPT.format(work=self.work, python=sys.executable, train=TINY, more=more), encoding="utf-8")
        if "--hang" not in more:
            return self("submit", "--wait", str(script)).stdout.strip()
        job = self("submit", str(script)).stdout.strip()
        log = self.work / f"tiny-{job}.out"
        deadline = time.monotonic() + 20
        while not (log.exists() and "OutOfMemoryError" in log.read_text(encoding="utf-8")):
            assert time.monotonic() < deadline, "the job did not fail"
            time.sleep(0.02)
        return job


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.work.mkdir()
    made.write_inventory()
    return made
