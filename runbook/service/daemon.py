"""The loop: look into the spool, open an incident for each event, forget the event. It outlives every bad file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runbook.errors import NotFound, RunbookError, Unavailable
from runbook.ports import Clock
from runbook.service.spool import SpoolEvent, SpoolStatus
from runbook.service.status import ServiceStatus
from runbook.service.systemd import tell_systemd

LOG = logging.getLogger("runbook.service")

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0
_PATIENCE_S = 3600.0
"""How long an event is tried whose job the scheduler does not know, or that this program stumbles over."""
_ALERT_PATIENCE_S = 300.0
"""An alert names a job that ran a moment ago; a job that Slurm still does not know then is nobody's."""
_WRITING_PATIENCE_S = 600.0
"""A job that still writes to its logs then has not stalled, whatever the alert saw. With the last pause this is less
than what RunbookSpoolGrowing (deploy/prometheus) calls too long."""


class Declined(RunbookError):
    """An alert that opens nothing and never will: which job it means is not known, or it is not of the job's time."""


class NotYet(RunbookError):
    """An alert about a job that runs and writes to its logs: it is looked at when they are silent."""


class Spool(Protocol):
    """Where events wait."""

    def scan(self, limit: int = ...) -> tuple[SpoolEvent, ...]: ...

    def status(self) -> SpoolStatus: ...

    def done(self, event: SpoolEvent) -> None: ...

    def set_aside(self, file: str, why: str) -> None: ...


class OpenIncident(Protocol):
    """Durably open, join or decline the incident of a failed job; called again for the same event after a crash.

    Raises `Unavailable` to be asked again later; `NotFound` when the scheduler does not know the job (yet); `Declined`
    for an alert that opens nothing, `NotYet` for one whose job still writes to its logs."""

    def __call__(self, event: SpoolEvent) -> object: ...


@dataclass
class _Trouble:
    """An event that could not be opened."""

    since_s: float
    again_s: float
    pause_s: float


@dataclass
class Daemon:
    """Runs in one thread until `stop`. All waiting is short, so that stopping is."""

    spool: Spool
    open_incident: OpenIncident
    clock: Clock
    status: ServiceStatus
    interval_s: float = 1.0
    batch: int = 200
    """Events looked at a round: a flood is worked off without starving the beat."""
    beat: Callable[[], object] = field(default=lambda: tell_systemd("WATCHDOG=1"))
    """Called every round that came to its end, and after every event."""
    _trouble: dict[str, _Trouble] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def run(self) -> None:
        """Until `stop` is called. Never raises for what is in the spool."""
        LOG.info("watching the spool")
        while not self._stop.is_set():
            self.round()
            self._stop.wait(self.interval_s)
        LOG.info("stopped")

    def stop(self) -> None:
        """End after the event at hand; those left stay in the spool."""
        self.status.stopping = True
        self._stop.set()

    def round(self) -> None:
        """One look into the spool."""
        try:
            waiting = self.spool.scan()
            self.status.spool_problem = ""
        except RunbookError as error:
            if not self.status.spool_problem:
                LOG.error("%s", error)
            self.status.spool_problem = error.what
            waiting = ()
        except Exception:
            LOG.exception("the spool could not be looked at")
            self.status.spool_problem = "a fault of this program; see its log"
            waiting = ()
        present = {event.file for event in waiting}
        self._trouble = {file: trouble for file, trouble in self._trouble.items() if file in present}
        # Those that wait to be tried again take no place in the batch: a new event must not wait for them.
        due = [(event, older) for event, older in _newest_of_each_job(waiting) if self._due(event)]
        for event, older in due[: self.batch]:
            if self._stop.is_set():
                break
            self._handle(event, older)
            # A long queue of slow questions to the scheduler is still a living daemon.
            self._beat()
        self._measure()
        self._beat()

    def _due(self, event: SpoolEvent) -> bool:
        trouble = self._trouble.get(event.file)
        return trouble is None or self.clock.now() >= trouble.again_s

    def _handle(self, event: SpoolEvent, older: Sequence[SpoolEvent]) -> None:
        try:
            self.open_incident(event)
            for told in (*older, event):
                self.spool.done(told)
        except Declined as error:
            self._decline(event, error.what)
        except NotYet as error:
            self._later(event, error.what, give_up=True, alert_patience_s=_WRITING_PATIENCE_S)
        except Unavailable as error:
            self._later(event, error.what, give_up=False)
        except NotFound as error:
            self._later(event, error.what, give_up=True)
        except RunbookError as error:
            self._later(event, error.what, give_up=True)
        except Exception as error:
            LOG.exception("event %s", event.file)
            self._later(event, f"a fault of this program: {type(error).__name__}", give_up=True)
        else:
            self._trouble.pop(event.file, None)
            self.status.events_opened += 1
            LOG.info("job %s of %s: incident opened or joined", event.job, event.cluster)

    def _decline(self, event: SpoolEvent, why: str) -> None:
        """Forget an alert, and say why."""
        LOG.warning("alert %s opens nothing: %s", event.alert, why)
        self.status.alerts_declined += 1
        self.status.last_declined = f"{event.alert}: {why}"
        self._trouble.pop(event.file, None)
        try:
            self.spool.done(event)
        except RunbookError as error:
            self._later(event, error.what, give_up=False)

    def _later(
        self, event: SpoolEvent, why: str, *, give_up: bool, alert_patience_s: float = _ALERT_PATIENCE_S
    ) -> None:
        """Ask again after a growing pause. What cannot come right is set aside after a while."""
        now = self.clock.now()
        self.status.last_problem = f"{event.file}: {why}"
        trouble = self._trouble.get(event.file)
        if trouble is None:
            self._trouble[event.file] = _Trouble(now, now + _FIRST_PAUSE_S, _FIRST_PAUSE_S)
            LOG.warning("job %s: %s; trying again", event.job, why)
            return
        if give_up and event.trigger == "alert" and now - trouble.since_s > alert_patience_s:
            self._decline(event, why)
            return
        if give_up and now - trouble.since_s > _PATIENCE_S:
            LOG.error("job %s: %s; set aside in bad/", event.job, why)
            try:
                self.spool.set_aside(event.file, why)
            except RunbookError as error:
                LOG.error("%s", error)
                trouble.again_s = now + _LONGEST_PAUSE_S
                return
            del self._trouble[event.file]
            return
        trouble.pause_s = min(trouble.pause_s * 2, _LONGEST_PAUSE_S)
        trouble.again_s = now + trouble.pause_s

    def _measure(self) -> None:
        self.status.events_waiting_again = len(self._trouble)
        try:
            measured = self.spool.status()
        except RunbookError:
            return
        self.status.spool_depth, self.status.spool_oldest_s = measured.depth, measured.oldest_s
        self.status.spool_bad = measured.bad

    def _beat(self) -> None:
        self.status.last_scan_s = self.clock.now()
        try:
            self.beat()
        except Exception:
            LOG.exception("the beat failed")


def _newest_of_each_job(events: Sequence[SpoolEvent]) -> list[tuple[SpoolEvent, tuple[SpoolEvent, ...]]]:
    """A job that was requeued and failed again is one failure: its newest event, with the older ones. An alert's word
    never stands for what the epilog saw, and comes after all of it, however many there are; else oldest first."""
    by_job: dict[tuple[str, str, str], list[SpoolEvent]] = {}
    for event in events:
        apart = event.file if event.trigger == "alert" else ""
        by_job.setdefault((event.cluster, event.raw_job_id, apart), []).append(event)
    together = []
    for same in by_job.values():
        same.sort(key=lambda event: event.restart_count)
        together.append((same[-1], tuple(same[:-1])))
    return sorted(together, key=lambda pair: (pair[0].trigger == "alert", pair[0].time_s))
