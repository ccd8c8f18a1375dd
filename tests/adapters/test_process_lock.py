"""The lock that keeps a killed process's orphan and the resumed process from submitting beside each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runbook.adapters.whole_file import process_lock
from runbook.errors import Unavailable

PARENT = """
import sys, time
from pathlib import Path
from runbook.adapters.process import Command, run
from runbook.adapters.whole_file import process_lock
with process_lock(Path(sys.argv[1]), "token", 5) as held:
    print("holding", flush=True)
    run(Command(("sh", "-c", "sleep 1.5; echo submitted >> " + sys.argv[2]), hold=held), 30)
"""


def test_a_resumed_process_waits_for_the_orphan_of_a_killed_one(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    parent = subprocess.Popen(
        (sys.executable, "-c", PARENT, str(tmp_path / "locks"), str(jobs)),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"holding\n"
    time.sleep(0.3)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not jobs.exists(), "the orphan is still at it"
    with process_lock(tmp_path / "locks", "token", 20):
        assert jobs.read_text() == "submitted\n", "it must be done before anybody else goes on"


def test_another_token_does_not_wait(tmp_path: Path) -> None:
    with process_lock(tmp_path, "one", 1), process_lock(tmp_path, "two", 1):
        pass


def test_patience_ends_with_a_clear_word(tmp_path: Path) -> None:
    with (
        process_lock(tmp_path, "one", 1),
        pytest.raises(Unavailable, match="has not ended"),
        process_lock(tmp_path, "one", 0.2),
    ):
        pass
