"""A service of one machine whose first box does what the job's name says, with the real engine and the real cage."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from runbook.cli.wiring import Application
from runbook.config import CageDocument, Inventory, NodesDocument, PathsDocument, PolicyDocument, SchedulerDocument
from runbook.engine import Engine
from runbook.flow import Flow, load_flow
from runbook.flow.walking import Watcher, workflow_id
from runbook.locations import playbook_folder
from runbook.model.incident import Incident, Policy
from runbook.model.job import JobClass
from runbook.model.units import JobId
from runbook.triggers import Terms, open_for
from tests.hostile import steps

FLOW = """
version: 1
id: oom
title: A job that means no good
why: What it left behind is read.
source: These tests.
start: look
person: ask
boxes:
  look:
    title: Look at the job
    why: What it left behind is hostile.
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
LIMITS = CageDocument(memory_mib=192, cpu_s=2, wall_s=8, whole_s=60, file_mib=65, answer_mib=1)


def flow_of(folder: Path, module: ModuleType = steps) -> Flow:
    """The flow with the first box's work taken from a module of the tests."""
    document = folder / "flow.yaml"
    document.write_text(FLOW, encoding="utf-8")
    flow = load_flow(document)
    return replace(flow, boxes={**flow.boxes, "look": replace(flow.boxes["look"], run=module.run)})


def application(folder: Path, limits: CageDocument = LIMITS) -> Application:
    inventory = Inventory(
        version=1, id="here", title="", cluster="alpha", scheduler=SchedulerDocument(kind="local"),
        nodes=NodesDocument(kind="none"), policy=PolicyDocument(mode=Policy.PLAN), cage=limits, database="",
        paths=PathsDocument(state=str(folder / "state"), spool=str(folder / "spool")),
    )
    app = Application(inventory, playbook_folder=playbook_folder())
    app.__dict__["flow"] = flow_of(folder)
    return app


def failed_job(app: Application, folder: Path, name: str, says: str = "", runs: str = "") -> JobId:
    """One that has failed, with a line in its log where it `says` something; `runs`: a command in its script."""
    script = folder / f"{name}.sh"
    said = f"echo '{says}'\n" if says else ""
    script.write_text(f"#!/bin/sh\n{said}{runs and runs + chr(10)}exit 3\n", encoding="utf-8")
    job = app.local_scheduler.submit_script(str(script), work_dir=str(folder))
    deadline = time.monotonic() + 60
    while app.scheduler.job(job).state.job_class is not JobClass.FAILED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job


def opened(app: Application, job: JobId) -> Incident:
    terms = Terms(app.flow.id, app.inventory.cluster, Policy.PLAN, "epilog", "test")
    incident = open_for(app.scheduler.job(job), app.store, terms, app.clock.now()).incident
    app.store.save(incident)
    return incident


class Quiet:
    """A watcher that says what happens on standard error."""

    def entered(self, *_: object) -> None: ...
    def left(self, *_: object) -> None: ...
    def line(self, incident: object, text: str) -> None:
        print(incident, text, file=sys.stderr)

    def asked(self, *_: object) -> None: ...


@dataclass
class Service:
    """The engine with its queue, as the daemon has it."""

    app: Application
    begun: int = 32
    watcher: Watcher = Quiet()

    def __enter__(self) -> Engine:
        self.app.cage.walls()
        self.engine = self.app.engine(self.watcher, boxes=self.app.cage)
        self.engine.launch(
            self.app.inventory.database_url, executor=f"test-{time.time()}", queue_concurrency=self.begun
        )
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self.app.cage.close()


def ended(app: Application, engine: Engine, incident: Incident) -> Incident:
    engine.wait(workflow_id(incident))
    return app.store.load(incident.id)
