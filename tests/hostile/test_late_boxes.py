"""A box that takes too long is seen: by health, metrics, the log, and whoever asks from another process."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.driver import DriverLock
from runbook.cli.daemon_seen import at_work_elsewhere
from runbook.cli.main import main
from runbook.cli.monitoring import box_figures
from runbook.cli.wiring import Application
from runbook.engine import Engine
from runbook.model.incident import Incident
from runbook.service.daemon import Daemon, ServiceStatus
from runbook.service.spool import SpoolReader
from tests.hostile.scene import Service, application, failed_job, opened

LATE_S = 0.3


def _application(folder: Path) -> Application:
    app = application(folder)
    look = replace(app.flow.boxes["look"], late_s=LATE_S)
    app.__dict__["flow"] = replace(app.flow, boxes={**app.flow.boxes, "look": look})
    return app


@pytest.fixture
def late(tmp_path: Path) -> Iterator[tuple[Application, Engine, Incident]]:
    """A service in which a job's file hangs for longer than is expected, and the box is not yet ended."""
    app = _application(tmp_path)
    job = failed_job(app, tmp_path, "hangs")
    with DriverLock(app.state, "daemon") as lock, Service(app) as engine:
        assert lock.take()
        incident = opened(app, job)
        engine.enqueue(incident)
        deadline = time.monotonic() + 20
        while not any(one.late for one in app.cage.at_work()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield app, engine, incident


def test_health_the_log_and_the_metrics_name_it(
    late: tuple[Application, Engine, Incident], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, _, incident = late
    status = ServiceStatus(app.clock.now(), at_work=app.cage.at_work, places=app.inventory.workers)
    (tmp_path / "spool").mkdir()
    daemon = Daemon(SpoolReader(tmp_path / "spool"), lambda _event: None, app.clock, status)
    with caplog.at_level(logging.INFO, "runbook.service"):
        daemon.round()
        daemon.round()
    told = [record.getMessage() for record in caplog.records if "too long" in record.getMessage()]
    assert len(told) == 1 and f"{incident.id}: look for " in told[0], "once, and not each second"
    document = status.document(app.clock.now())
    assert document["boxes_late"] == document["boxes_at_work"] == 1 and document["oldest_box_s"] > LATE_S
    assert f"{incident.id}: look for" in document["late_boxes"]
    assert document["ok"], "the others still have places"
    status.places = 1
    assert not status.document(app.clock.now())["ok"], "nothing is driven any more"
    (figures,) = box_figures(app.cage.at_work())
    assert (figures.box, figures.late) == ("look", 1) and figures.oldest_s > LATE_S


def test_another_process_sees_which_incident_and_box(
    late: tuple[Application, Engine, Incident], tmp_path: Path
) -> None:
    _, _, incident = late
    (seen,) = at_work_elsewhere(_application(tmp_path))
    assert (seen.incident, seen.box, seen.late) == (incident.id, "look", True)


@pytest.mark.parametrize("command", ["incidents", "doctor"])
def test_a_person_is_told_which_incident_and_box(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool").mkdir()
    inventory = tmp_path / "here.yaml"
    inventory.write_text(
        "version: 1\nid: here\ntitle: here\ncluster: alpha\nscheduler: {kind: local}\nnodes: {kind: none}\n"
        f"paths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
    )
    app = application(tmp_path)
    incident = opened(app, failed_job(app, tmp_path, "honest"))
    mark = {"visit": "1/0/read_error/run", "times": 1, "box": "read_error", "since_s": time.monotonic() - 400}
    (app.store.folder(incident.id) / "reading.json").write_text(json.dumps({**mark, "pid": os.getpid()}))
    with DriverLock(app.state, "daemon") as lock:
        assert lock.take()
        with pytest.raises(SystemExit):
            main([command, "--inventory", str(inventory)])
    said = "".join(capsys.readouterr())
    assert re.search(rf"at work for too long: {incident.id}: read_error for 4\d\d s, where 300 s are expected", said)


def test_a_mark_that_another_process_left_is_no_box_at_work(tmp_path: Path) -> None:
    app = _application(tmp_path)
    incident = opened(app, failed_job(app, tmp_path, "honest"))
    mark = app.store.folder(incident.id) / "reading.json"
    mark.write_text('{"visit": "1/0/look/run", "times": 1, "box": "look", "since_s": 1.0, "pid": 1}')
    with DriverLock(app.state, "daemon") as lock:
        assert lock.take()
        assert at_work_elsewhere(app) == ()
