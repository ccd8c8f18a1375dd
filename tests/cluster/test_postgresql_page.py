"""A yes from the page of one process reaches the daemon that drives the incident, through their PostgreSQL database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cluster.test_postgresql import database

__all__ = ["database"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

ELSEWHERE = """
import sys
from runbook.cli.serve import LogWatcher
from runbook.cli.wiring import application
from runbook.model.units import IncidentId
from runbook.service.decisions import answer_here
app = application(None)
engine = app.engine(LogWatcher())
engine.launch(app.inventory.database_url, executor="a-page-elsewhere")
for _ in range(2):
    answer_here(app.store.load(IncidentId(sys.argv[1])), True, "carol")
engine.close()
"""


def _until(state: Path, wanted: str, limit_s: float = 90.0) -> dict[str, object]:
    deadline = time.monotonic() + limit_s
    while True:
        for path in (state / "incidents").glob("*/incident.json"):
            incident: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
            if wanted in (incident["state"], str(incident["awaiting"])[:6]):
                return incident
        assert time.monotonic() < deadline, wanted
        time.sleep(0.1)


def test_an_answer_given_elsewhere_reaches_the_daemon_that_drives(tmp_path: Path, database: str) -> None:
    shell = Shell(tmp_path)
    shell.work.mkdir()
    shell.write_inventory()
    spool = tmp_path / "spool"
    spool.mkdir()
    text = shell.inventory.read_text(encoding="utf-8").replace(f"spool: {shell.state}/spool", f"spool: {spool}")
    shell.inventory.write_text(text + f"database: {database}\n", encoding="utf-8")
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}
    job = shell.failed_job()
    event = f"format=1\njob_id={job}\nrestart_count=0\ncluster=here\n"
    (spool / f"here-{job}-0.event").write_text(event, encoding="ascii")
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", "0"), env=environment, cwd=shell.work
    ) as daemon:
        try:
            waiting = _until(shell.state, "submit")
            answer = (sys.executable, "-c", ELSEWHERE, str(waiting["id"]))
            subprocess.run(answer, env=environment, check=True, timeout=60)
            incident = _until(shell.state, "recovered")
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
    acts = incident["acts"]
    assert isinstance(acts, list)
    assert [(act["what"], act["approved_by"]) for act in acts] == [("submit", "carol")]
