"""The whole loop with every box in the cage: from a job that died of memory to one that is proven, as its owner."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest

from runbook.cli.wiring import Application
from runbook.config import Inventory, NodesDocument, PathsDocument, PolicyDocument, SchedulerDocument
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.triggers import Terms, open_for
from tests.crash.test_killed_anywhere import SCRIPT
from tests.hostile.scene import Service, ended

TRAIN = Path(__file__).parents[1] / "crash" / "tiny_train.py"


def _walked(folder: Path) -> tuple[Application, Incident]:
    work = folder / "work"
    work.mkdir()
    shutil.copy(TRAIN, work / "tiny_train.py")
    script = work / "train.sbatch"
    script.write_text(
        SCRIPT.format(work=work, python=sys.executable, train=work / "tiny_train.py", before=""), encoding="utf-8"
    )
    app = Application(Inventory(
        version=1, id="here", title="", cluster="alpha", scheduler=SchedulerDocument(kind="local"),
        nodes=NodesDocument(kind="none"), policy=PolicyDocument(mode=Policy.APPLY, cancel_wait_s=20),
        paths=PathsDocument(state=str(folder / "state"), spool=str(folder / "spool")),
    ))
    job = app.local_scheduler.submit_script(str(script), work_dir=str(work))
    path = Path(app.scheduler.job(job).stdout_path)
    deadline = time.monotonic() + 30
    while not (path.exists() and "OutOfMemoryError" in path.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    terms = Terms(app.flow.id, "alpha", Policy.APPLY, "person", "test")
    try:
        with Service(app) as engine:
            incident = open_for(app.scheduler.job(job), app.store, terms, app.clock.now()).incident
            app.store.save(incident)
            engine.enqueue(incident)
            return app, ended(app, engine, incident)
    finally:
        for one in app.local_scheduler.jobs():
            if not one.state.job_class.ended:
                app.local_scheduler.cancel(one)


@pytest.mark.timeout(400)
def test_a_job_is_brought_back(tmp_path: Path) -> None:
    app, incident = _walked(tmp_path)
    assert incident.state is IncidentState.RECOVERED, (incident.conclusion, incident.notes)
    boxes = [visit.box for visit in incident.visits]
    assert boxes[:2] == ["identify", "read_error"] and {"patch", "relaunch", "verify"} <= set(boxes)
    assert [act.what for act in incident.acts] == ["cancel", "submit"]
    kept = app.store.read_file(incident.id, incident.evidence_files[0])
    assert b"OutOfMemoryError" in kept
    comments = [job.comment for job in app.local_scheduler.jobs() if job.comment]
    assert len(comments) == 1
