"""A service whose machine is so tight that it falls with what it reads: it kills itself as soon as it is in each box.

    driver.py FOLDER JOB

Ends by itself, with status 0, once the incident has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from runbook.errors import NotFound
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, JobId
from tests.hostile.scene import Service, application, ended, opened


def main() -> int:
    folder, job = Path(sys.argv[1]), JobId(sys.argv[2])
    app = application(folder)
    mark = app.store.folder(IncidentId(f"oom-alpha-{job}")) / "reading.json"

    left = mark.read_bytes() if mark.exists() else b""

    def fall() -> None:
        while not mark.exists() or mark.read_bytes() == left or b"/look/" not in mark.read_bytes():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        incident: Incident = app.store.load(IncidentId(f"oom-alpha-{job}"))
    except NotFound:
        incident = opened(app, job)
    app.cage.walls()
    with Service(app) as engine:
        if incident.box in ("", "look") and not incident.finished:
            threading.Thread(target=fall, daemon=True).start()
        engine.adopt()
        engine.ensure(incident, lambda left: left)
        last = ended(app, engine, incident)
        print(last.state, len([visit for visit in last.visits if visit.box == "look"]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
