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

from sqlalchemy.exc import OperationalError

from runbook import __version__
from runbook.cage import AtWork
from runbook.errors import BadInput, NotFound, RunbookError, Unavailable
from runbook.model.incident import Policy
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import JobId, NodeName, UserName
from runbook.ports import Clock, Files, Scheduler
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.service.spool import WATCH, SpoolEvent, SpoolStatus
from runbook.steps.shared.job_logs import silent_s
from runbook.triggers import Known, Opened, Opening, Terms, open_for

# What the daemon knows about itself: for /healthz, the metrics and systemd's watchdog.

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
    watch: Callable[[], str] = field(default=lambda: "")
    """What keeps running jobs from being watched as the inventory says."""
    places: int = 0
    """Boxes that may be at work at a time; 0: not known."""

    def healthy(self, now_s: float) -> bool:
        """The loop comes round, the spool can be read, incidents are driven, and not every place is taken by a box that
        takes too long."""
        last_s = self.last_scan_s if self.last_scan_s is not None else self.started_s
        in_time = not self.spool_problem and not self.stopping and now_s - last_s < LATE_S
        return in_time and self.driver_alive() and not 0 < self.places <= len(self.late())

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
            "watch_problem": self.watch(),
            "uptime_s": round(now_s - self.started_s, 3),
        }


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

_MOST_NAMED = 10
_MOST_AGAIN = 20
"""Events that are tried again in a round, after those that come for the first time."""
_ROUND_S = 3.0
"""For events that come for the first time, and for those tried again, before the spool is looked into again."""
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


class NoPlace(Unavailable):
    """The owner has his share of the places in which incidents are begun."""

    def __init__(self, owner: UserName, what: str, *, next_step: str) -> None:
        super().__init__(what, next_step=next_step)
        self.owner = owner


class NotYet(RunbookError):
    """An alert about a job that runs and writes to its logs: it is looked at when they are silent."""


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
    beat: Callable[[], object] = field(default=lambda: tell_systemd("WATCHDOG=1"))
    """Called every round that came to its end, and after every event."""
    _trouble: dict[str, _Trouble] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _told_late: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)

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
        self._measure()
        self._tell_late()
        self._beat()

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
        except OperationalError as error:
            # Full, away or locked: no fault of the program, and it may be used again in a moment.
            self._later(event, f"the workflow database cannot be written: {error.orig}", give_up=False)
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


# From an event of the spool to an incident that is durably open, joined, or declined.

_AFTER_END_S = 3600.0
"""An alert may begin this long after its job ended: rules look back over minutes, not over days."""
_BEFORE_START_S = 60.0
_SHARE = 3

JobsOnNode = Callable[[NodeName, float], tuple[JobId, ...]]


_LOOK_S = 1.0
_MOST_LOOKS = 8
_MOST_KEPT = 256
"""Answers that nobody came back for."""


@dataclass
class _Look:
    owner: UserName
    ended: threading.Event = field(default_factory=threading.Event)
    told: float | None = None
    problem: Exception | None = None


class _Looks:
    """Asks aside when a job last wrote: a look at its logs has its owner's rights, so his processes can hold it up for
    as long as they like, folder by folder. Nobody waits for one more than a second; an owner has one at a time."""

    def __init__(self) -> None:
        self._of: dict[JobId, _Look] = {}

    def silent_s(self, files: Files, record: JobRecord, now_s: float) -> float | None:
        """As `job_logs.silent_s`, which it raises for, at the moment when it was asked first. Raises `NotYet` while
        there is no answer."""
        look = self._of.get(record.id)
        if look is None:
            running = {job: one for job, one in self._of.items() if not one.ended.is_set()}
            if len(self._of) > _MOST_KEPT:
                self._of = dict(running)
            if len(running) >= _MOST_LOOKS or any(one.owner == record.owner for one in running.values()):
                raise NotYet(f"other logs are looked at before those of job {record.id}, which runs")
            look = self._of[record.id] = _Look(record.owner)
            threading.Thread(target=_look, args=(look, files, record, now_s), daemon=True).start()
        if not look.ended.wait(_LOOK_S):
            raise NotYet(f"the logs of job {record.id}, which runs, did not answer yet")
        self._of.pop(record.id, None)
        if look.problem is not None:
            raise look.problem
        return look.told


def _look(look: _Look, files: Files, record: JobRecord, now_s: float) -> None:
    try:
        look.told = silent_s(files, record, now_s)
    except Exception as error:
        look.problem = error
    finally:
        look.ended.set()


@dataclass(frozen=True)
class Opener:
    """Decides about one event; whoever calls acts on it."""

    scheduler: Scheduler
    known: Known
    clock: Clock
    playbook: str
    """The id of the flow that is walked here."""
    cluster: str
    policy: Policy
    jobs_on_node: JobsOnNode | None = None
    """None: this scheduler is not asked which job had a node."""
    files: Files | None = None
    quiet_s: float = 120.0
    """A running job is looked at on an alert's word once none of its logs was written to for so long."""
    begun: Callable[[], Mapping[UserName, int]] = dict
    """How many incidents of an owner's jobs are at work or wait for an answer: each has one of the places in which
    incidents are begun."""
    places: int = 1024
    """Of all owners. One may have a third of those that nobody has, so that incidents of however many owners that all
    wait for a yes leave some to the next."""
    looks: _Looks = field(default_factory=_Looks)

    def decide(self, event: SpoolEvent) -> Opened:
        """Raises `Unavailable`, `NotFound`, `NotYet`, and `Declined` for an alert whose job is not certain."""
        if event.playbook not in ("", self.playbook):
            raise BadInput(f"it is for the playbook {event.playbook!r}, and this service walks {self.playbook!r}")
        record = self.scheduler.job(event.job or self._job_of(event))
        if event.uid is not None and record.uid is not None and event.uid != record.uid:
            raise BadInput(f"Slurm's epilog told of a job of user {event.uid}, and the job is of {record.uid}")
        if event.is_suspicion:
            _check_time(record, event)
        if event.trigger == "alert":
            self._check_quiet(record)
        if event.trigger == WATCH and record.state.job_class is not JobClass.ACTIVE:
            raise Declined(f"job {record.id} is {record.state.name} by now: its end is the epilog's to tell")
        if event.trigger == "epilog" and event.ended_well:
            _check_end(record, event)
        terms = Terms(self.playbook, self.cluster, self.policy, event.trigger, __version__)
        opened = open_for(record, self.known, terms, self.clock.now())
        if opened.opening is Opening.NEW:
            self.check_place(opened.owner)
        return opened

    def check_place(self, owner: UserName) -> None:
        """Raises `NoPlace`."""
        begun = self.begun()
        mine, free = begun.get(owner, 0), self.places - sum(begun.values())
        if free > 0 and (mine == 0 or mine * _SHARE < free):
            return
        raise NoPlace(
            owner,
            f"{mine} incidents of {owner} are at work or wait for an answer, and {max(free, 0)} of {self.places} places"
            " are free for everybody; the next is opened when some end",
            next_step="answer what waits (`runbook incidents --state awaiting_approval`)",
        )

    def _check_quiet(self, record: JobRecord) -> None:
        """Raises `NotYet` for a job that runs and writes: it has not stalled, and a failure in its log may be one that
        it caught. Logs that cannot be looked at are left to the flow, which says so to a person."""
        if record.state.job_class is not JobClass.ACTIVE or self.files is None:
            return
        quiet_s = self.looks.silent_s(self.files, record, self.clock.now())
        if quiet_s is not None and quiet_s < self.quiet_s:
            raise NotYet(
                f"job {record.id} runs and wrote to its log {quiet_s:.0f} s ago; it is looked at when that is "
                f"{self.quiet_s:.0f} s"
            )

    def _job_of(self, event: SpoolEvent) -> JobId:
        """The one job that had the event's node at its time."""
        node = _shown(event.node)
        if self.jobs_on_node is None:
            raise Declined(f"it names {node} and no job, and this scheduler is not asked which job had a node")
        try:
            jobs = self.jobs_on_node(event.node, event.time_s)
        except Unavailable:
            raise
        except RunbookError as error:
            raise Declined(f"it names {node} and no job: {error.what}") from error
        if len(jobs) != 1:
            held = f"{len(jobs)} jobs had {node} then ({', '.join(jobs[:5])})" if jobs else f"no job had {node} then"
            raise Declined(f"{held}, so which one it means is not known")
        return jobs[0]


def _check_end(record: JobRecord, event: SpoolEvent) -> None:
    """Of an end whose codes are 0:0, which a site may ask to be told of. Raises `Declined` for a job that completed or
    runs anew, and `NotYet` while Slurm does not say how it ended."""
    if record.restarts > event.restart_count:
        raise Declined(f"job {record.id} was started again since")
    if record.state.job_class is JobClass.SUCCEEDED and not record.derived_exit_code:
        raise Declined(f"job {record.id} completed")
    if not record.state.job_class.ended:
        raise NotYet(f"Slurm does not say yet how job {record.id} ended: it is {record.state.name}")


def _check_time(record: JobRecord, event: SpoolEvent) -> None:
    """Raises `Declined` for an alert from outside the job's time: job ids come round again, and rules lag."""
    started_s, ended_s = record.start_time_s, record.end_time_s
    ended = record.state.job_class.ended and ended_s is not None
    if ended and ended_s is not None and event.time_s > ended_s + _AFTER_END_S:
        raise Declined(f"job {record.id} had ended {(event.time_s - ended_s) / 3600:.1f} hours before it")
    if started_s is not None and event.time_s < started_s - _BEFORE_START_S:
        raise Declined(f"job {record.id} started {(started_s - event.time_s) / 60:.0f} minutes after it")


def _shown(text: str) -> str:
    return shorten(clean_line(text), 80)
