"""A state folder with incidents that were closed long ago, for what is removed of them and what is not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from runbook.adapters.store import IncidentStore
from runbook.cli.wiring import Application, application
from runbook.model.incident import Attempt, Incident, IncidentState
from runbook.model.units import IncidentId, JobId, UserName
from tests.cli.conftest import INVENTORY
from tests.report.sample_incidents import recovered

DAY_S = 86_400.0
LOG_BYTES = 256 << 10


def closed(number: int, days: float, owner: str = "alice", jobs: tuple[str, ...] = ()) -> Incident:
    """One that was closed so many days ago. `jobs`: its relaunches."""
    made = recovered()
    assert made.failure is not None
    closed_s = time.time() - days * DAY_S
    job = replace(made.failure.job, owner=UserName(owner), cluster="here")
    return replace(
        made, id=IncidentId(f"oom-here-{number}"), cluster="here", root_job=JobId(str(number)), drained_nodes=(),
        opened_s=closed_s - 600, updated_s=closed_s, closed_s=closed_s, original=None,
        failure=replace(made.failure, job=job), evidence_files=("evidence/job.out",),
        attempts=tuple(Attempt(at, job=JobId(relaunched)) for at, relaunched in enumerate(jobs, start=1)),
    )


def still_open(number: int, days: float, owner: str = "alice") -> Incident:
    return replace(closed(number, days, owner), state=IncidentState.INTERRUPTED, closed_s=None)


def put(store: IncidentStore, *incidents: Incident) -> None:
    """Each with a kept log and a patched copy."""
    for incident in incidents:
        store.save(incident)
        store.write_file(incident.id, "evidence/job.out", b"x" * LOG_BYTES)
        store.write_file(incident.id, "attempts/1/train.sh", b"#!/bin/sh\n")


def place(folder: Path, keep: str = "") -> Application:
    """An application over a state folder of its own, with keys of `keep`."""
    inventory = folder / "here.yaml"
    text = INVENTORY.format(mode="approve", state=folder / "state") + f"keep: {{{keep}}}\n"
    inventory.write_text(text, encoding="utf-8")
    (folder / "state").mkdir(exist_ok=True)
    return application(str(inventory))


def there(state: Path) -> dict[str, set[str]]:
    """What lies in the folder of each incident; a file that was being written has a dot in front of its name."""
    folders = (state / "incidents").iterdir()
    return {
        folder.name: {str(path.relative_to(folder)) for path in folder.rglob("[!.]*") if path.is_file()}
        for folder in folders
    }


WHOLE = {"incident.json", "evidence/job.out", "attempts/1/train.sh"}
THINNED = WHOLE - {"evidence/job.out"} | {"report.html", "evidence-removed.txt"}
