"""Another playbook through the same engine, store, pages and metrics: its name is in all of them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from runbook.adapters.metrics import IncidentMetrics, Labels
from runbook.cli.incident.drive import bring_back
from runbook.cli.incident.terminal import View
from runbook.cli.wiring import Application, flow_picture
from runbook.config import Inventory, NodesDocument, PathsDocument, PolicyDocument, SchedulerDocument
from runbook.locations import data_folder
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.model.job import JobClass
from runbook.model.units import JobId
from runbook.service.app import Shown, create_app
from runbook.service.daemon import Opener
from runbook.service.spool import SpoolEvent, SpoolReader, parse_event
from runbook.triggers import Opening, Terms, open_for

FLOW = """
version: 1
id: stall
title: A job that stands still
why: Somebody has to look at it.
source: This test.
start: whose
boxes:
  whose:
    title: Whose job it is
    why: The owner is the one to ask.
    step: identify
    next: {identified: ask, cancelled_by_user: tell, succeeded: tell, waiting: tell, relaunch_waits: tell,
           interactive: tell, no_logs: ask}
  ask:
    title: Ask a person
    why: Nobody else knows.
    step: escalate
    next: {told: tell}
  tell:
    title: Write it down
    why: So that it is not asked again.
    step: report
    next: {written: end}
"""


@pytest.fixture
def app(tmp_path: Path) -> Application:
    """An application that decides by the second playbook; what it does not name is the first one's."""
    folder = tmp_path / "playbooks" / "stall"
    shutil.copytree(data_folder("playbooks") / "oom", folder)
    (folder / "flow.yaml").write_text(FLOW, encoding="utf-8")
    inventory = Inventory(
        version=1, id="here", title="", cluster="alpha", scheduler=SchedulerDocument(kind="local"),
        nodes=NodesDocument(kind="none"), policy=PolicyDocument(mode=Policy.PLAN),
        paths=PathsDocument(state=str(tmp_path / "state"), spool=str(tmp_path / "spool")),
    )
    return Application(inventory, playbook_folder=folder)


def _failed(app: Application, tmp_path: Path) -> JobId:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    job = app.local_scheduler.submit_script(str(script), work_dir=str(tmp_path))
    while app.scheduler.job(job).state.job_class is not JobClass.FAILED:
        app.clock.sleep(0.01)
    return job


def _walked(app: Application, job: JobId) -> Incident:
    terms = Terms(app.flow.id, app.inventory.cluster, Policy.PLAN, "person", "test")
    opened = open_for(app.scheduler.job(job), app.store, terms, app.clock.now())
    assert opened.opening is Opening.NEW
    return bring_back(app, opened, View(quiet=True), interactive=False)


def test_its_incidents_its_pages_and_its_metrics_carry_its_name(app: Application, tmp_path: Path) -> None:
    job = _failed(app, tmp_path)
    incident = _walked(app, job)
    assert incident.id == f"stall-alpha-{job}"
    assert incident.state is IncidentState.ESCALATED
    assert [(visit.box, visit.outcome) for visit in incident.visits] == [
        ("whose", "identified"), ("ask", "told"), ("tell", "written"),
    ]
    assert [row.id for row in app.read_model.rows()] == [incident.id]

    labels = Labels(app.inventory.cluster, app.flow.id, tuple(app.flow.boxes))
    metrics = IncidentMetrics(app.read_model, labels)
    site = TestClient(create_app(
        Shown(app.store, app.read_model, partial(flow_picture, app.flow), lambda: {"ok": True}, metrics.text),
        hosts=("testserver",),
    ))
    assert f'href="/incidents/{incident.id}"' in site.get("/").text
    page = site.get(f"/incidents/{incident.id}").text
    assert "A job that stands still" in page and "Ask a person" in page
    found = site.get("/metrics").text
    assert 'runbook_incidents_opened_total{cluster="alpha",flow="stall"} 1.0' in found
    assert 'runbook_box_outcomes_total{box="ask",cluster="alpha",outcome="told"} 1.0' in found
    assert 'flow="oom"' not in found


def test_an_event_of_the_spool_may_name_it(app: Application, tmp_path: Path) -> None:
    job = _failed(app, tmp_path)
    opener = Opener(app.scheduler, app.store, app.clock, app.flow.id, "alpha", Policy.PLAN)

    def event(playbook: str) -> SpoolEvent:
        text = f"format=1\njob_id={job}\nrestart_count=0\ncluster=alpha\n{playbook}"
        found = parse_event(f"alpha-{job}-0.event", text.encode(), 1.0)
        assert isinstance(found, SpoolEvent)
        return found

    for named in ("", "playbook=stall\n"):
        assert opener.decide(event(named)).incident.id == f"stall-alpha-{job}"
    with pytest.raises(Exception, match="for the playbook 'oom'"):
        opener.decide(event("playbook=oom\n"))
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "alpha-1-0.event").write_text(
        "format=1\njob_id=1\nrestart_count=0\ncluster=alpha\nplaybook=../x\n", encoding="ascii"
    )
    assert SpoolReader(tmp_path / "spool").scan() == ()
    assert "playbook" in (tmp_path / "spool" / "bad" / "alpha-1-0.event.reason").read_text()
