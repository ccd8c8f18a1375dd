"""The workflow database on a real PostgreSQL, as a fleet with several daemons has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.loopback import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

DRIVER = Path(__file__).resolve().parents[1] / "crash" / "driver.py"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A server of its own, on a port of its own, gone afterwards."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert binaries, "Debian's postgresql is not installed: apt-get install postgresql"
    folder = Path(tempfile.mkdtemp(prefix="runbook-pg-"))
    shutil.chown(folder, "postgres", "postgres")
    port = free_port()

    def run(*argv: str) -> None:
        command = ("runuser", "-u", "postgres", "--", str(binaries[-1].parent / argv[0]), *argv[1:])
        subprocess.run(command, cwd="/", check=True, capture_output=True, timeout=60)

    data = str(folder / "data")
    run("initdb", "-D", data, "--auth=trust", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield f"postgresql://postgres@127.0.0.1:{port}/runbook"
    run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shell(tmp_path: Path, database: str) -> Shell:
    made = Shell(tmp_path)
    made.work.mkdir()
    made.write_inventory("apply")
    cluster = tmp_path.name.replace("_", "-")[:40]
    text = made.inventory.read_text(encoding="utf-8").replace("cluster: here", f"cluster: {cluster}")
    made.inventory.write_text(text + f"database: {database}\n", encoding="utf-8")
    return made


def incident_of(shell: Shell) -> dict[str, object]:
    (path,) = (shell.state / "incidents").glob("*/incident.json")
    document: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return document


def test_the_loop_runs_on_postgresql(shell: Shell) -> None:
    job = shell.failed_job()
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    assert incident_of(shell)["state"] == "recovered"
    # What the list is answered from is made anew from the incidents; the work itself is in PostgreSQL alone.
    assert {path.name for path in shell.state.glob("*.sqlite")} <= {"incidents.sqlite"}


def test_a_killed_run_is_taken_up_from_postgresql(shell: Shell) -> None:
    job = shell.failed_job()
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), "after scheduler.submit", str(shell.folder / "p"), job),
        cwd=shell.work,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert killed.returncode == -9, killed.stderr
    done = shell("resume", str(incident_of(shell)["id"]))
    assert done.returncode == 0, done.stderr
    incident = incident_of(shell)
    assert incident["state"] == "recovered"
    attempts = incident["attempts"]
    assert isinstance(attempts, list)
    assert len(attempts) == 1


def test_a_database_that_does_not_answer_is_told_plainly(shell: Shell) -> None:
    job = shell.failed_job()
    text = shell.inventory.read_text(encoding="utf-8").replace("127.0.0.1:", "127.0.0.1:1")
    shell.inventory.write_text(text, encoding="utf-8")
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode in (2, 6), done.stderr
    assert "database" in done.stderr
