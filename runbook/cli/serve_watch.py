"""The daemon's watch over itself, as `runbook serve` wires it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runbook.cli.wiring import Application
from runbook.engine import Engine
from runbook.model.incident import Incident, IncidentState
from runbook.service.daemon import LATE_S, ServiceStatus
from runbook.service.serve import Watch

_ANSWER_S = 10.0
_LATE_S = 30.0


def watch_of(app: Application, engine: Engine, status: ServiceStatus) -> Watch | None:
    """None where nobody is told."""
    if not app.notify.reaches:
        return None
    telling, database = app.telling(), DatabaseProbe(engine.ask_database)

    def awaiting() -> tuple[Incident, ...]:
        rows = [row for row in app.store.list() if row.state is IncidentState.AWAITING_APPROVAL]
        return tuple(app.store.load(row.id) for row in rows)

    def troubles() -> dict[str, str]:
        found: dict[str, str] = {}
        if status.spool_problem:
            found["spool"] = f"the spool cannot be read: {status.spool_problem}"
        last_s = status.last_scan_s or status.started_s
        if app.clock.now() - last_s > LATE_S:
            found["loop"] = "the daemon's loop does not come round"
        if problem := database.problem():
            found["workflow database"] = problem
        return found

    limit_s = app.settings.acts.approval_limit_s
    return Watch(
        app.inventory.cluster, app.notify, app.clock, troubles, awaiting,
        lambda incident: telling.remind(incident, limit_s),
    )


@dataclass
class DatabaseProbe:
    """Asks the database in a thread of its own: the library waits for one that is gone, for as long as that takes."""

    ask: Callable[[], None]
    answer_s: float = _ANSWER_S
    late_s: float = _LATE_S
    _asked_s: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)
    _failed: str = field(default="", init=False, repr=False)

    def problem(self) -> str:
        """What is wrong with it, in words; "" when it answers."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="database-probe", daemon=True)
            self._thread.start()
        self._thread.join(self.answer_s)
        if self._thread.is_alive():
            return "the workflow database does not answer"
        return f"the workflow database does not answer ({self._failed})" if self._failed else ""

    def answers(self) -> bool:
        """Whether it answered when it was last asked, without waiting: each call asks anew. False, too, once a question
        has been without an answer for half a minute."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                well = not self._failed
                self._asked_s = time.monotonic()
                self._thread = threading.Thread(target=self._look, name="database-probe", daemon=True)
                self._thread.start()
                return well
            return not self._failed and time.monotonic() - self._asked_s < self.late_s

    def _look(self) -> None:
        try:
            self.ask()
            self._failed = ""
        except Exception as error:
            # Its text may hold the address with the password.
            self._failed = type(error).__name__
