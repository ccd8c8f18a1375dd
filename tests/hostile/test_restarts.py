"""A service that falls, or is started again, with a hostile job in its queue."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from dbos import DBOS

from runbook.flow.walking import workflow_id
from runbook.model.incident import IncidentState
from runbook.model.units import IncidentId
from tests.hostile.scene import Service, application, ended, failed_job, opened


@pytest.mark.timeout(400)
def test_a_job_that_takes_the_service_with_it_is_given_up(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "hangs")
    falls = 0
    while True:
        run = subprocess.run(
            (sys.executable, "-m", "tests.hostile.driver", str(tmp_path), job), capture_output=True, text=True,
            timeout=120, check=False, cwd=Path(__file__).parents[2],
        )
        if run.returncode != -9:
            break
        falls += 1
        assert falls < 6, "it is read again and again"
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "state" / "incidents" / f"oom-alpha-{job}" / "incident.json").read_text())
    assert falls == 3
    assert document["state"] == "escalated" and document["closed_s"] is not None
    assert "the service ended 3 times while it read what job" in document["conclusion"]


@pytest.mark.timeout(200)
def test_what_a_command_left_of_files_alone_is_not_gone_on_with(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "hangs")
    with Service(app) as engine:
        incident = opened(app, job)
        of_files = replace(incident, id=IncidentId("oom-files-0badcafe"), trigger="files", cluster="files")
        app.store.save(of_files)
        for one in (incident, of_files):
            engine.enqueue(one)
        until_s = time.monotonic() + 60
        while len(DBOS.list_workflows(status=["PENDING"])) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    again = application(tmp_path)
    with Service(again) as engine:
        assert engine.adopt() == (incident.id,)


@pytest.mark.timeout(200)
def test_a_job_that_was_given_up_is_not_tried_again_after_a_restart(tmp_path: Path) -> None:
    app = application(tmp_path)
    with Service(app) as engine:
        incident = opened(app, failed_job(app, tmp_path, "exits"))
        engine.enqueue(incident)
        first = ended(app, engine, incident)
        assert first.state is IncidentState.ESCALATED
    again = application(tmp_path)
    with Service(again) as engine:
        # As the daemon does with what is in its queue and in its spool.
        engine.adopt()
        assert again.store.load(incident.id).finished
        engine.wait(workflow_id(incident))
        assert opened(again, incident.root_job).finished
    assert again.store.load(incident.id).updated_s == first.updated_s
