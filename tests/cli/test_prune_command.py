"""`runbook prune` as it is typed: what it shows, whom it refuses, and what the engine's own database keeps."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runbook.adapters.store import IncidentStore
from runbook.cli.prune import look_at, remove
from runbook.cli.wiring import application
from tests.cli.conftest import Shell
from tests.report.stored_long_ago import DAY_S, LOG_BYTES, THINNED, WHOLE, closed, put, still_open, there


def test_what_goes_is_shown_before_it_goes(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 800), closed(2, 100, "bob"), closed(3, 1), still_open(4, 900))
    shown = shell("prune", "--dry-run").stdout
    assert "goes: 1 whole incident, the kept logs of 1 more," in shown and "alice:" in shown and "bob:" in shown
    assert len(there(shell.state)) == 4
    done = shell("prune")
    assert done.returncode == 0 and done.stdout.startswith(shown), done.stderr
    assert "removed: 1 whole incident, the kept logs of 1 more," in done.stdout
    assert there(shell.state) == {"oom-here-2": THINNED, "oom-here-3": WHOLE, "oom-here-4": WHOLE}
    assert "kept: evidence" not in shell("show", "oom-here-2").stdout


def test_the_document_for_machines(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 800), closed(2, 100, "bob"))
    document: dict[str, Any] = json.loads(shell("prune", "--json").stdout)
    assert (document["going"]["incidents"], document["going"]["evidence_of"]) == (1, 1)
    assert document["going"]["bytes"] >= 2 * LOG_BYTES and document["stored_bytes"] > document["going"]["bytes"]
    assert [(one["incident"], one["what"], one["why"]) for one in document["incidents"]] == [
        ("oom-here-1", "all", "age"), ("oom-here-2", "evidence", "age"),
    ]
    assert {one["owner"]: one["incidents"] for one in document["by_owner"]} == {"alice": 1, "bob": 0}
    assert document["removed"] == {**document["going"], "workflows": 0}


def test_an_incident_stays_while_its_relaunched_job_runs(shell: Shell) -> None:
    script = shell.work / "long.sbatch"
    script.write_text("#!/bin/bash\nsleep 300\n")
    job = shell("submit", str(script)).stdout.strip()
    put(IncidentStore(shell.state), closed(1, 800, jobs=(job,)))
    shown = shell("prune").stdout
    assert f"stays: oom-here-1: its relaunched job {job} has not ended" in shown
    assert there(shell.state) == {"oom-here-1": THINNED}
    app = application(str(shell.inventory))
    relaunched = app.store.load(closed(1, 0).id).attempts[0].job
    assert relaunched is not None
    app.scheduler.cancel(app.scheduler.job(relaunched))
    while not app.scheduler.job(relaunched).state.job_class.ended:
        time.sleep(0.05)
    assert shell("prune").returncode == 0
    assert there(shell.state) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.needs("setpriv")
def test_another_user_is_refused(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 800))
    for path in (shell.state, *shell.state.rglob("*")):
        shutil.chown(path, "daemon")
    done = shell("prune")
    assert done.returncode == 3
    assert "the stored incidents belong to daemon" in done.stderr and "sudo -u daemon runbook prune" in done.stderr
    assert there(shell.state) == {"oom-here-1": WHOLE}


def test_where_nothing_is_stored_it_says_so(shell: Shell) -> None:
    done = shell("prune")
    assert done.returncode == 3 and "there is no state folder" in done.stderr
    assert not shell.state.exists()


@pytest.mark.parametrize("wrong", ["{days: 3}", "{evidence_days: 900}", "{total_gib: 0}"])
def test_limits_that_make_no_sense_are_refused(shell: Shell, wrong: str) -> None:
    shell.inventory.write_text(shell.inventory.read_text(encoding="utf-8") + f"keep: {wrong}\n", encoding="utf-8")
    done = shell("prune", "--dry-run")
    assert done.returncode == 2 and "keep" in done.stderr


@dataclass
class Later:
    """The clock, so many days on."""

    days: float

    def now(self) -> float:
        return time.time() + self.days * DAY_S

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def _workflows(state: Path) -> int:
    with closing(sqlite3.connect(state / "workflows.sqlite")) as database:
        tables = ("workflow_status", "operation_outputs", "workflow_input", "workflow_output")
        return sum(int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in tables)


def test_the_engine_forgets_what_was_closed_and_nothing_else(shell: Shell) -> None:
    shell.write_inventory("apply")
    done = shell("oom", "--job", shell.failed_job(), "--yes")
    assert done.returncode == 0, done.stderr
    app = application(str(shell.inventory))
    assert _workflows(shell.state) > 0
    app.__dict__["clock"] = Later(1 / 1440)
    assert remove(app, look_at(app)).workflows == 0
    app.__dict__["clock"] = Later(20 / 1440)
    assert remove(app, look_at(app)).workflows == 1
    assert _workflows(shell.state) == 0
    assert len(there(shell.state)) == 1
    # What is left of it is enough to go on with, should a person wish to.
    (incident,) = there(shell.state)
    assert "is recovered already" in shell("resume", incident).stderr
    app.__dict__["clock"] = Later(800)
    remove(app, look_at(app))
    assert there(shell.state) == {}


def test_the_record_of_a_run_that_has_not_ended_stays(shell: Shell) -> None:
    shell.write_inventory("apply")
    driver = Path(__file__).resolve().parents[1] / "crash" / "driver.py"
    killed = subprocess.run(
        (sys.executable, str(driver), str(shell.inventory), "after scheduler.submit", str(shell.folder / "p"),
         shell.failed_job()), cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -9
    before = _workflows(shell.state)
    app = application(str(shell.inventory))
    app.__dict__["clock"] = Later(2000)
    gone = remove(app, look_at(app))
    assert (gone.going, gone.workflows, _workflows(shell.state)) == ((), 0, before)
    (incident,) = there(shell.state)
    assert shell("resume", incident).returncode == 0
    assert len(app.store.load(app.read_model.rows()[0].id).attempts) == 1
