"""Works on a job as `runbook oom --job ID --yes` does, and kills itself at one point.

    driver.py INVENTORY POINT COUNT_FILE [JOB]

A point is a moment just before or just after a write to the store or an effect on the scheduler: a number, or the
name of one ("after scheduler.submit", its first time). When it was not killed it writes the names of all points to
COUNT_FILE.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from runbook.cli.incident import code_of
from runbook.cli.incident.drive import bring_back
from runbook.cli.incident.terminal import View
from runbook.cli.wiring import application
from runbook.model.incident import Policy
from runbook.model.units import JobId
from runbook.triggers import Terms, open_for

EFFECTS = frozenset(
    {
        "submit", "cancel", "hold", "release", "drain", "undrain", "save", "write_file", "copy_stream", "replace",
        "end_process",
    }
)


class Deadly:
    """A port that passes every call on, and kills the process at the chosen point."""

    def __init__(self, inner: Any, name: str, point: str, seen: list[str]) -> None:
        self._inner, self._name, self._point, self._seen = inner, name, point, seen

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._inner, method)
        if method not in EFFECTS:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._reach(f"before {self._name}.{method}")
            result = found(*arguments, **named)
            self._reach(f"after {self._name}.{method}")
            return result

        return call

    def _reach(self, where: str) -> None:
        if self._point in (str(len(self._seen)), where):
            os.kill(os.getpid(), signal.SIGKILL)
        self._seen.append(where)


def main() -> int:
    inventory, point, count_file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    job = JobId(sys.argv[4] if len(sys.argv) > 4 else "1")
    seen: list[str] = []
    app = application(inventory, Policy.APPLY)
    parts: dict[str, Any] = app.__dict__
    parts["scheduler"] = Deadly(app.scheduler, "scheduler", point, seen)
    parts["nodes"] = Deadly(app.nodes, "nodes", point, seen)
    parts["store"] = Deadly(app.store, "store", point, seen)
    opened = open_for(
        app.scheduler.job(job),
        app.store,
        Terms(app.flow.id, app.inventory.cluster, Policy.APPLY, "person", "test"),
        app.clock.now(),
    )
    incident = bring_back(app, opened, View(quiet=True), interactive=False)
    count_file.write_text("\n".join(seen), encoding="utf-8")
    return code_of(incident)


if __name__ == "__main__":
    sys.exit(main())
