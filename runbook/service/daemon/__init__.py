"""The loop: look into the spool, open an incident for each event, forget the event. It outlives every bad file."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

from sqlalchemy.exc import DBAPIError

from runbook.adapters.store.workflow_database import in_words
from runbook.cage import AtWork
from runbook.errors import BadInput, NotFound, RunbookError, Unavailable
from runbook.model.units import IncidentId, UserName
from runbook.ports import Clock
from runbook.service.daemon.opening import Declined as Declined
from runbook.service.daemon.opening import NoPlace as NoPlace
from runbook.service.daemon.opening import NotYet as NotYet
from runbook.service.daemon.opening import Opener as Opener
from runbook.service.spool import SpoolEvent, SpoolStatus

# What the daemon knows about itself: for /healthz, the metrics and systemd's watchdog.

_MOST_NAMED = 10
LATE_S = 60.0
"""A loop that has not come round for this long is stuck."""


@dataclass
class ServiceStatus:
    """Written by the daemon's loop, read by the web server's threads; every field is replaced whole."""

    started_s: float
    last_scan_s: float | None = None
    """The last time that the loop came round, whether the spool could be read or not."""
    spool_problem: str = ""
    spool_depth: int = 0
    spool_oldest_s: float | None = None
    spool_bad: int = 0
    """Files that were set aside in bad/."""
    events_opened: int = 0
    events_waiting_again: int = 0
    """Events whose incident could not be opened yet and that are tried again."""
    held: Mapping[UserName, int] = field(default_factory=dict)
    """Of these, by owner: those whose owner has his share of the places in which incidents are begun."""
    alerts_declined: int = 0
    """Alerts that opened nothing."""
    last_declined: str = ""
    last_problem: str = ""
    stopping: bool = False
    driver_alive: Callable[[], bool] = field(default=lambda: True)
    """Whether incidents are being worked on; wiring says how that is known."""
    at_work: Callable[[], Sequence[AtWork]] = field(default=lambda: ())
    """Boxes at work, the longest first."""
    waiting: Callable[[], int] = field(default=lambda: 0)
    """Boxes that wait for a place."""
    given_up: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Reads that wait for a file system and could not be ended, in words by owner and mount."""
    stopped: Callable[[], Mapping[IncidentId, str]] = field(default=dict)
    """Incidents that do not go on, as nothing can be recorded of them, each with the reason."""
    watch: Callable[[], str] = field(default=lambda: "")
    """What keeps running jobs from being watched as the inventory says."""
    places: int = 0
    """Boxes that may be at work at a time; 0: not known."""

    def healthy(self, now_s: float) -> bool:
        """The loop comes round, the spool can be read, incidents are driven, and not every place is taken by a box that
        takes too long."""
        last_s = self.last_scan_s if self.last_scan_s is not None else self.started_s
        in_time = not self.spool_problem and not self.stopping and now_s - last_s < LATE_S
        return in_time and self.driver_alive() and not self.stopped() and not 0 < self.places <= len(self.late())

    def late(self) -> tuple[AtWork, ...]:
        """Boxes that take too long, by the flow document."""
        return tuple(one for one in self.at_work() if one.late)

    def document(self, now_s: float) -> dict[str, Any]:
        """The body of /healthz."""
        at_work = self.at_work()
        return {
            "ok": self.healthy(now_s),
            "driver_alive": self.driver_alive(),
            "last_scan_s": self.last_scan_s,
            "last_scan_age_s": None if self.last_scan_s is None else round(now_s - self.last_scan_s, 3),
            "spool_depth": self.spool_depth,
            "spool_oldest_age_s": (
                None if self.spool_oldest_s is None else round(max(now_s - self.spool_oldest_s, 0.0), 3)
            ),
            "spool_problem": self.spool_problem,
            "events_opened": self.events_opened,
            "spool_bad": self.spool_bad,
            "events_waiting_again": self.events_waiting_again,
            "events_held": sum(self.held.values()),
            "held_owners": ", ".join(f"{owner}: {count}" for owner, count in list(self.held.items())[:_MOST_NAMED]),
            "alerts_declined": self.alerts_declined,
            "last_declined": self.last_declined,
            "last_problem": self.last_problem,
            "boxes_at_work": len(at_work),
            "boxes_waiting": self.waiting(),
            "boxes_late": sum(one.late for one in at_work),
            "oldest_box_s": round(max((one.for_s for one in at_work), default=0.0), 3),
            "late_boxes": "; ".join(str(one) for one in at_work if one.late),
            "reads_given_up": "; ".join(self.given_up()),
            "incidents_stopped": _some_words(self.stopped()),
            "watch_problem": self.watch(),
            "uptime_s": round(now_s - self.started_s, 3),
        }


def _some_words(stopped: Mapping[IncidentId, str]) -> str:
    return "; ".join(f"{incident}: {why}" for incident, why in list(stopped.items())[:_MOST_NAMED])


# Talk to systemd, where there is one: ready, alive, stopping.

def tell_systemd(message: str) -> bool:
    """Send one line of sd_notify(3), such as "READY=1". False where nobody listens; never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # A leading @ stands for the NUL byte of an abstract socket.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(0.2)
            channel.sendto(message.encode(), target)
    except OSError:
        return False
    return True


LOG = logging.getLogger("runbook.service")

_MOST_AGAIN = 20
"""Events that are tried again in a round, after those that come for the first time."""
_ROUND_S = 3.0
"""For events that come for the first time, and for those tried again, before the spool is looked into again."""
_MAKE_ROOM = "make room there, or see whether it answers; it goes on by itself"
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0
_PATIENCE_S = 3600.0
"""How long an event is tried whose job the scheduler does not know, or that this program stumbles over."""
_ALERT_PATIENCE_S = 300.0
"""An alert names a job that ran a moment ago; a job that Slurm still does not know then is nobody's."""
_WRITING_PATIENCE_S = 600.0
"""A job that still writes to its logs then has not stalled, whatever the alert saw. With the last pause this is less
than what RunbookSpoolGrowing (deploy/prometheus) calls too long."""


class Spool(Protocol):
    """Where events wait."""

    def scan(self, limit: int = ..., later: Container[str] = ...) -> tuple[SpoolEvent, ...]: ...

    def read(self, files: Iterable[str]) -> tuple[SpoolEvent, ...]: ...

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

    event: SpoolEvent
    since_s: float
    """This and the next by the clock that only goes on: whoever sets the time of day back makes nobody wait."""
    again_s: float
    pause_s: float
    held: NoPlace | None = None
    """Why, where it waits for a place."""


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
    go_on: Callable[[], object] = lambda: None
    """Takes up what had stopped; called every round."""
    beat: Callable[[], object] = field(default=lambda: tell_systemd("WATCHDOG=1"))
    """Called every round that came to its end, and after every event."""
    woken: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set by whoever of this program has left an event: it is looked at without waiting for the next round."""
    _trouble: dict[str, _Trouble] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _told_stopped: set[IncidentId] = field(default_factory=set, init=False, repr=False)
    _told_late: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)

    def run(self) -> None:
        """Until `stop` is called. Never raises for what is in the spool."""
        LOG.info("watching the spool")
        while not self._stop.is_set():
            self.woken.clear()
            self.round()
            self.woken.wait(self.interval_s)
        LOG.info("stopped")

    def stop(self) -> None:
        """End after the event at hand; those left stay in the spool."""
        self.status.stopping = True
        self._stop.set()
        self.woken.set()

    def round(self) -> None:
        """One look into the spool."""
        again: tuple[SpoolEvent, ...] = ()
        try:
            # Those that wait to be tried again take no place among the others: a new event must not wait for them.
            waiting = self.spool.scan(later=self._trouble)
            again = self._tried_again()
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
        without: dict[int, NoPlace] = {}
        for some in (_newest_of_each_job(waiting)[: self.batch], _newest_of_each_job(again)):
            began_s = self.clock.elapsed()
            for event, older in some:
                if event.uid is not None and event.uid in without:
                    # Slurm is not asked of each of a thousand.
                    self._later(event, without[event.uid].what, give_up=False, held=without[event.uid])
                    continue
                # Whoever comes meanwhile waits for no more than this: the next look takes one of each owner first.
                if self._stop.is_set() or self.clock.elapsed() - began_s > _ROUND_S:
                    break
                self._handle(event, older)
                found = self._trouble.get(event.file)
                if event.uid is not None and found is not None and found.held is not None:
                    without[event.uid] = found.held
                # A long queue of slow questions to the scheduler is still a living daemon.
                self._beat()
        self._go_on()
        self._measure()
        self._tell_late()
        self._beat()

    def _go_on(self) -> None:
        try:
            self.go_on()
        except (RunbookError, DBAPIError):
            LOG.debug("what had stopped cannot go on yet", exc_info=True)
        except Exception:
            LOG.exception("what had stopped cannot go on")
        stopped = dict(self.status.stopped())
        for incident in stopped.keys() - self._told_stopped:
            LOG.error("%s: stopped: %s; %s", incident, stopped[incident], _MAKE_ROOM)
        self._told_stopped = set(stopped)

    def _tell_late(self) -> None:
        """Once for each box that takes too long, and once more when it is no longer at work."""
        late = {(str(one.incident), one.box): one for one in self.status.late()}
        for which in late.keys() - self._told_late:
            LOG.warning("%s: at work for too long; see docs/alerts.md, RunbookBoxLate", late[which])
        for incident, box in self._told_late - late.keys():
            LOG.info("%s: %s has ended at last", incident, box)
        self._told_late = set(late)

    def _tried_again(self) -> tuple[SpoolEvent, ...]:
        """Events whose pause is over, of owners in turn, and of each those that waited longest first. One whose file is
        gone is forgotten."""
        now = self.clock.elapsed()
        over = sorted((trouble.again_s, file) for file, trouble in self._trouble.items() if now >= trouble.again_s)
        by_owner: dict[int | None, list[str]] = {}
        for _, file in over:
            by_owner.setdefault(self._trouble[file].event.uid, []).append(file)
        files = [file for turn in zip_longest(*by_owner.values()) for file in turn if file is not None][:_MOST_AGAIN]
        found = self.spool.read(files)
        for file in set(files) - {event.file for event in found}:
            del self._trouble[file]
        return found

    def _handle(self, event: SpoolEvent, older: Sequence[SpoolEvent]) -> None:
        try:
            self.open_incident(event)
            for told in (*older, *self._earlier(event), event):
                self.spool.done(told)
                self._trouble.pop(told.file, None)
        except Declined as error:
            self._decline(event, error.what)
        except NotYet as error:
            self._later(event, error.what, give_up=True, alert_patience_s=_WRITING_PATIENCE_S)
        except NoPlace as error:
            self._later(event, error.what, give_up=False, held=error)
        except Unavailable as error:
            self._later(event, error.what, give_up=False)
        except NotFound as error:
            self._later(event, error.what, give_up=True)
        except BadInput as error:
            self._set_aside(event, error.what)
        except RunbookError as error:
            self._later(event, error.what, give_up=True)
        except DBAPIError as error:
            # Full, away or locked: no fault of the program, and it may be used again in a moment.
            self._later(event, in_words(error), give_up=False)
        except Exception as error:
            LOG.exception("event %s", event.file)
            self._later(event, f"a fault of this program: {type(error).__name__}", give_up=True)
        else:
            self.status.events_opened += 1
            LOG.info("job %s of %s: incident opened or joined", event.job, event.cluster)

    def _earlier(self, event: SpoolEvent) -> list[SpoolEvent]:
        """Earlier failures of the same job that still wait to be tried again: what was opened stands for them."""
        return [
            trouble.event for trouble in self._trouble.values()
            if _same_job(trouble.event) == _same_job(event) and trouble.event.restart_count < event.restart_count
        ]

    def _set_aside(self, event: SpoolEvent, why: str) -> None:
        """What will never come right is not tried again."""
        LOG.error("job %s: %s; set aside in bad/", event.job, why)
        self.status.last_problem = f"{event.file}: {why}"
        try:
            self.spool.set_aside(event.file, why)
        except RunbookError as error:
            LOG.error("%s", error)
            now = self.clock.elapsed()
            self._trouble[event.file] = _Trouble(event, now, now + _LONGEST_PAUSE_S, _LONGEST_PAUSE_S)
            return
        self._trouble.pop(event.file, None)

    def _decline(self, event: SpoolEvent, why: str) -> None:
        """Forget an alert, and say why; or the end of a job that completed."""
        if event.is_suspicion:
            LOG.warning("alert %s opens nothing: %s", event.alert, why)
            self.status.alerts_declined += 1
            self.status.last_declined = f"{event.alert}: {why}"
        self._trouble.pop(event.file, None)
        try:
            self.spool.done(event)
        except RunbookError as error:
            self._later(event, error.what, give_up=False)

    def _later(
        self, event: SpoolEvent, why: str, *, give_up: bool, alert_patience_s: float = _ALERT_PATIENCE_S,
        held: NoPlace | None = None,
    ) -> None:
        """Ask again after a growing pause. What cannot come right is set aside after a while."""
        now = self.clock.elapsed()
        self.status.last_problem = f"{event.file}: {why}"
        trouble = self._trouble.get(event.file)
        if trouble is None:
            self._trouble[event.file] = _Trouble(event, now, now + _FIRST_PAUSE_S, _FIRST_PAUSE_S, held)
            LOG.warning("job %s: %s; trying again", event.job, why)
            return
        trouble.held = held
        if give_up and event.is_suspicion and now - trouble.since_s > alert_patience_s:
            self._decline(event, why)
            return
        if give_up and now - trouble.since_s > _PATIENCE_S:
            self._set_aside(event, why)
            return
        trouble.pause_s = min(trouble.pause_s * 2, _LONGEST_PAUSE_S)
        trouble.again_s = now + trouble.pause_s

    def _measure(self) -> None:
        self.status.events_waiting_again = len(self._trouble)
        held = Counter(trouble.held.owner for trouble in self._trouble.values() if trouble.held is not None)
        self.status.held = dict(held.most_common())
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
    never stands for what the epilog saw, and comes after all of it, however many there are; else in their order."""
    by_job: dict[tuple[str, str, str], list[SpoolEvent]] = {}
    for event in events:
        by_job.setdefault(_same_job(event), []).append(event)
    together = []
    for same in by_job.values():
        same.sort(key=lambda event: event.restart_count)
        together.append((same[-1], tuple(same[:-1])))
    return sorted(together, key=lambda pair: pair[0].is_suspicion)


def _same_job(event: SpoolEvent) -> tuple[str, str, str]:
    return event.cluster, event.raw_job_id, event.file if event.is_suspicion else ""
