"""Backup and restore where the engine's records are in PostgreSQL: all of ours, nobody else's, and no job twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runbook.adapters.driver.lease import DriverLease
from runbook.cli.backup import restore
from runbook.cli.prune import look_at, remove
from runbook.cli.wiring import application
from runbook.errors import NotAllowed
from runbook.model.units import IncidentId
from tests.cli.conftest import Shell
from tests.cli.test_prune_command import Later
from tests.cluster.test_postgresql import DRIVER, database, incident_of, shell
from tests.report.stored_long_ago import closed

__all__ = ["database", "shell"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def _rows(database: str, cluster: str) -> dict[str, list[str]]:
    with psycopg.connect(database) as db:
        return {
            table: sorted(
                repr(row) for row in db.execute(f"SELECT * FROM dbos.{table} WHERE {key} LIKE 'oom-{cluster}-%'")
            )
            for table, key in (
                ("workflow_status", "workflow_uuid"), ("operation_outputs", "workflow_uuid"),
                ("workflow_input", "workflow_uuid"), ("notifications", "destination_uuid"),
            )
        }


def _lose(shell: Shell, database: str, cluster: str) -> None:
    for path in shell.state.iterdir():
        if path.name != "scheduler":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with psycopg.connect(database) as db:
        db.execute(f"DELETE FROM dbos.workflow_status WHERE workflow_uuid LIKE 'oom-{cluster}-%'")
        for table in ("workflow_input", "workflow_output", "operation_outputs"):
            db.execute(f"DELETE FROM dbos.{table} WHERE workflow_uuid LIKE 'oom-{cluster}-%'")


def test_what_was_submitted_since_is_found_and_the_rows_come_back(shell: Shell, database: str) -> None:
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), "after store.write_file", str(shell.folder / "p"),
         shell.failed_job()), cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    incident = incident_of(shell)
    name, cluster = str(incident["id"]), str(incident["cluster"])
    recorded = _rows(database, cluster)
    assert recorded["operation_outputs"]
    done = shell("backup", "b.zst")
    assert done.returncode == 0, done.stderr
    assert shell("resume", name).returncode == 0
    jobs = shell("jobs").stdout
    refused = shell("restore", "b.zst")
    assert refused.returncode == 3 and "there are incidents there already" in refused.stderr
    _lose(shell, database, cluster)
    with psycopg.connect(database) as db:
        others = db.execute("SELECT count(*) FROM dbos.workflow_status").fetchone()
    done = shell("restore", "b.zst")
    assert done.returncode == 0, done.stderr
    assert _rows(database, cluster) == recorded
    with psycopg.connect(database) as db:
        now = db.execute("SELECT count(*) FROM dbos.workflow_status").fetchone()
    assert others is not None and now is not None and now[0] == others[0] + len(recorded["workflow_status"])
    done = shell("resume", name)
    assert done.returncode == 0, done.stderr
    assert shell("jobs").stdout == jobs
    restored = incident_of(shell)
    assert restored["state"] == "recovered"
    # The same archive fits a folder of its own, with SQLite.
    elsewhere = shell.folder / "elsewhere"
    assert shell("restore", "b.zst", "--into", str(elsewhere)).returncode == 0
    assert (elsewhere / "workflows.sqlite").is_file() and (elsewhere / "incidents" / name / "incident.json").is_file()


def _lease(shell: Shell, database: str) -> DriverLease:
    app = application(str(shell.inventory))
    return DriverLease(database, "daemon", app.inventory.cluster, app.state)


def _lapse(database: str, seconds: int) -> None:
    """As if whoever holds the lease had been killed, and it had so long to go."""
    with psycopg.connect(database) as db:
        db.execute("UPDATE runbook_driver SET until = clock_timestamp() + %s * interval '1 second'", [seconds])


def test_what_decides_on_repeating_an_act_is_taken_from_the_database(shell: Shell, database: str) -> None:
    """The file beside it is a copy, which a full disk or a shared file system may lack, or have late."""
    app = application(str(shell.inventory))
    incident = replace(closed(1, 3), id=IncidentId(f"oom-{app.inventory.cluster}-1"), cluster=app.inventory.cluster)
    claims = {f"attempts/{number}/claim.json": b'{"token": "t%d", "written_s": 1.0}' % number for number in (1, 2)}
    with _lease(shell, database) as lease:
        assert lease.take()
        app.__dict__["lease"] = lease
        app.store.save(incident)
        for place, content in claims.items():
            app.store.write_file(incident.id, place, content)
    folder = shell.state / "incidents" / incident.id
    (folder / "attempts/1/claim.json").unlink()
    (folder / "attempts/2/claim.json").write_bytes(b"late")
    assert shell("backup", "b.zst").returncode == 0
    shutil.rmtree(shell.state / "incidents")
    with psycopg.connect(database) as db:
        db.execute("DELETE FROM runbook_kept")
    assert shell("restore", "b.zst").returncode == 0
    assert {place: (folder / place).read_bytes() for place in claims} == claims


def test_nothing_is_restored_while_a_daemon_drives_and_a_dead_one_is_not_waited_for_longer_than_its_turn(
    shell: Shell, database: str
) -> None:
    shell.state.mkdir()
    assert shell("backup", "b.zst").returncode == 0
    with _lease(shell, database) as lease:
        assert lease.take()
        refused = shell("restore", "b.zst")
        assert refused.returncode == 6 and f"a daemon drives over that database (pid {os.getpid()} on" in refused.stderr
        assert not (shell.state / "incidents").exists()
    died = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from tests.cluster.test_postgresql_backup import Shell, _lease\n"
        "assert _lease(Shell(Path(sys.argv[1])), sys.argv[2]).take()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    gone = subprocess.run((sys.executable, "-c", died, str(shell.folder), database), check=False, timeout=60,
                          cwd=Path(__file__).parents[2])
    assert gone.returncode == -signal.SIGKILL
    _lapse(database, 3)
    # Another folder than the dead one's: it was lost with the machine.
    (shell.state / "store.id").unlink()
    done = shell("restore", "b.zst")
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database) as db:
        left = db.execute("SELECT until > clock_timestamp() FROM runbook_driver").fetchone()
    assert left == (False,), "the next daemon waits for nobody"


def _jobs(shell: Shell) -> list[str]:
    return [line.split()[0] for line in shell("jobs").stdout.splitlines()[1:]]


EFFECTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"})


def _restored(shell: Shell, *, killed_at: int = 0) -> int:
    """`runbook restore` in a process that ends itself just before its effect of this number: its exit status, negative
    where it was ended."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, _arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in EFFECTS:
                seen += 1
                if seen == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.addaudithook(watch)
        code = 70
        try:
            code = restore(shell.work / "b.zst", None, str(shell.inventory))
        except NotAllowed as refused:
            code = refused.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.timeout(600)
def test_killed_before_any_effect_a_restore_is_begun_again_and_nothing_is_submitted_twice(
    shell: Shell, database: str
) -> None:
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), "after scheduler.submit", str(shell.folder / "p"),
         shell.failed_job()), cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    _lapse(database, 0)
    incident = incident_of(shell)
    name, cluster = str(incident["id"]), str(incident["cluster"])
    recorded, jobs = _rows(database, cluster), _jobs(shell)
    assert shell("backup", "b.zst").returncode == 0
    point, begun_again = 1, 0
    while _restored(shell, killed_at=point) < 0:
        _lapse(database, 0)
        status = _restored(shell)
        # Killed while it cleaned up, everything is in its place, and a second restore finds it there.
        assert status in (0, NotAllowed.exit_code)
        assert _rows(database, cluster) == recorded and incident_of(shell)["id"] == name
        begun_again += status == 0
        _lose(shell, database, cluster)
        _lapse(database, 0)
        point += 4
    assert begun_again > 4
    done = shell("resume", name)
    assert done.returncode == 0, done.stderr
    assert _jobs(shell) == jobs and incident_of(shell)["state"] == "recovered"


def test_a_backup_from_sqlite_goes_on_in_postgresql(shell: Shell, database: str) -> None:
    text = shell.inventory.read_text(encoding="utf-8")
    shell.inventory.write_text(text.replace(f"database: {database}\n", ""), encoding="utf-8")
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), "after scheduler.submit", str(shell.folder / "p"),
         shell.failed_job()), cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert shell("backup", "b.zst").returncode == 0
    for path in shell.state.iterdir():
        if path.name != "scheduler":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shell.inventory.write_text(text, encoding="utf-8")
    assert shell("restore", "b.zst").returncode == 0
    name = str(incident_of(shell)["id"])
    done = shell("resume", name)
    assert done.returncode == 0, done.stderr
    attempts = incident_of(shell)["attempts"]
    assert isinstance(attempts, list) and len(attempts) == 1
    assert json.loads((shell.state / "incidents" / name / "incident.json").read_text())["state"] == "recovered"


def test_rows_of_what_was_closed_long_ago_go_and_those_of_other_clusters_stay(
    shell: Shell, database: str
) -> None:
    done = shell("oom", "--job", shell.failed_job(), "--yes")
    assert done.returncode == 0, done.stderr
    app = application(str(shell.inventory))
    with psycopg.connect(database) as db:
        counted = "SELECT count(*) FROM dbos.workflow_status WHERE workflow_uuid NOT LIKE %s"
        others = db.execute(counted, (f"oom-{app.inventory.cluster}-%",)).fetchone()
    assert any(_rows(database, app.inventory.cluster).values())
    app.__dict__["clock"] = Later(8)
    assert remove(app, look_at(app)).workflows == 1
    assert not any(_rows(database, app.inventory.cluster).values())
    with psycopg.connect(database) as db:
        assert db.execute("SELECT count(*) FROM dbos.workflow_status").fetchone() == others
