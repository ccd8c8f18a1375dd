"""From an event of the spool to an incident that is durably open, joined, or declined; whose wait for room, and what
was left open before."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from sqlalchemy.exc import DBAPIError

from runbook import __version__
from runbook.errors import BadInput, RunbookError, Unavailable
from runbook.model.incident import Policy
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import IncidentId, JobId, NodeName, UserName, size
from runbook.ports import Clock, Files, Scheduler
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.service.spool import WATCH, SpoolEvent
from runbook.steps.shared.job_logs import silent_s
from runbook.triggers import Known, Opened, Opening, Terms, open_for

_AFTER_END_S = 3600.0
"""An alert may begin this long after its job ended: rules look back over minutes, not over days."""
_BEFORE_START_S = 60.0
_SHARE = 3

JobsOnNode = Callable[[NodeName, float], tuple[JobId, ...]]


class Declined(RunbookError):
    """An alert that opens nothing and never will: which job it means is not known, or it is not of the job's time."""


class NoPlace(Unavailable):
    """The owner has his share of the places in which incidents are begun, or his incidents take too much room."""

    def __init__(self, owner: UserName, what: str, *, next_step: str) -> None:
        super().__init__(what, next_step=next_step)
        self.owner = owner


class NotYet(RunbookError):
    """An alert about a job that runs and writes to its logs: it is looked at when they are silent."""


_LOOK_S = 1.0
_MOST_LOOKS = 8
_MOST_KEPT = 256
"""Answers that nobody came back for."""
_TAIL_BYTES = 64 << 10
_MOST_TAILS = 64

Answer = TypeVar("Answer")


@dataclass
class _Look:
    owner: UserName
    ended: threading.Event = field(default_factory=threading.Event)
    told: object = None
    problem: Exception | None = None

    def run(self, ask: Callable[[], object]) -> None:
        try:
            self.told = ask()
        except Exception as error:
            self.problem = error
        finally:
            self.ended.set()


class _Looks:
    """Looks at jobs' logs aside: a look has its owner's rights, so his processes can hold it up for as long as they
    like, folder by folder. Nobody waits for one more than a second; an owner has one at a time."""

    def __init__(self) -> None:
        self._of: dict[tuple[JobId, str], _Look] = {}

    def told(self, record: JobRecord, question: str, ask: Callable[[], Answer]) -> Answer:
        """What was answered when this question was asked first of a job, which is raised for as that was. Raises
        `NotYet` while there is no answer."""
        key = (record.id, question)
        look = self._of.get(key)
        if look is None:
            running = {asked: one for asked, one in self._of.items() if not one.ended.is_set()}
            if len(self._of) > _MOST_KEPT:
                self._of = dict(running)
            if len(running) >= _MOST_LOOKS or any(one.owner == record.owner for one in running.values()):
                raise NotYet(f"other logs are looked at before those of job {record.id}")
            look = self._of[key] = _Look(record.owner)
            threading.Thread(target=look.run, args=(ask,), daemon=True).start()
        if not look.ended.wait(_LOOK_S):
            raise NotYet(f"the logs of job {record.id} did not answer yet")
        self._of.pop(key, None)
        if look.problem is not None:
            raise look.problem
        return cast(Answer, look.told)


def tells_of_memory(files: Files, record: JobRecord, words: re.Pattern[bytes]) -> bool:
    """Whether the end of any of a job's logs holds a word of a memory failure: the last 64 KiB of 64 of them at most. A
    log that cannot be read tells nothing."""
    for path in record.log_paths[:_MOST_TAILS]:
        try:
            with files.open(path, record.owner) as stream:
                stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
                if words.search(stream.read(_TAIL_BYTES)):
                    return True
        except Unavailable:
            raise
        except (RunbookError, OSError):
            continue
    return False


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
    words: re.Pattern[bytes] | None = None
    """What a line of a memory failure holds; None: the logs of jobs that completed are not looked at."""
    quiet_s: float = 120.0
    """A running job is looked at on an alert's word once none of its logs was written to for so long."""
    begun: Callable[[], Mapping[UserName, int]] = dict
    """How many incidents of an owner's jobs are at work or wait for an answer: each has one of the places in which
    incidents are begun."""
    places: int = 1024
    """Of all owners. One may have a third of those that nobody has, so that incidents of however many owners that all
    wait for a yes leave some to the next."""
    crowded: Callable[[], Mapping[UserName, str]] = dict
    """Owners whose incidents take too much of the memory or of the disk, each with the reason."""
    looks: _Looks = field(default_factory=_Looks)

    def decide(self, event: SpoolEvent) -> Opened:
        """Raises `Unavailable`, `NotFound`, `NotYet`, and `Declined` for an alert whose job is not certain."""
        if event.playbook not in ("", self.playbook):
            raise BadInput(f"it is for the playbook {event.playbook!r}, and this service walks {self.playbook!r}")
        record = self.scheduler.job(event.job or self._job_of(event))
        if event.uid is not None and record.uid is not None and event.uid != record.uid:
            raise BadInput(f"Slurm's epilog told of a job of user {event.uid}, and the job is of {record.uid}")
        leader, _, component = record.id.partition("+")
        if component not in ("", "0"):
            if event.trigger == "epilog":
                raise Declined(
                    f"it is a component of the heterogeneous job {leader}, whose first one's end is told too"
                )
            record = self.scheduler.job(JobId(leader))  # the first, in which the script runs
        if event.is_suspicion:
            _check_time(record, event)
        if event.trigger == "alert":
            self._check_quiet(record)
        if event.trigger == WATCH and record.state.job_class is not JobClass.ACTIVE:
            raise Declined(f"job {record.id} is {record.state.name} by now: its end is the epilog's to tell")
        if event.trigger == "epilog" and event.ended_well:
            _check_end(record, event)
            self._check_completed(record)
        terms = Terms(self.playbook, self.cluster, self.policy, event.trigger, __version__)
        opened = open_for(record, self.known, terms, self.clock.now())
        if opened.opening is Opening.NEW:
            self.check_place(opened.owner)
        return opened

    def check_place(self, owner: UserName) -> None:
        """Raises `NoPlace`."""
        if why := self.crowded().get(owner, ""):
            raise NoPlace(owner, f"{why}; the next is opened when some end or go", next_step="answer what waits")
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
        files, now_s = self.files, self.clock.now()
        quiet_s = self.looks.told(record, "silence", lambda: silent_s(files, record, now_s))
        if quiet_s is not None and quiet_s < self.quiet_s:
            raise NotYet(
                f"job {record.id} runs and wrote to its log {quiet_s:.0f} s ago; it is looked at when that is "
                f"{self.quiet_s:.0f} s"
            )

    def _check_completed(self, record: JobRecord) -> None:
        """Raises `Declined` for a job that completed and whose logs do not end with a word of a memory failure. Slurm
        says COMPLETED of a script whose last command ended well, and behind `srun … | tee` that is tee."""
        if record.state.job_class is not JobClass.SUCCEEDED or record.derived_exit_code:
            return
        files, words = self.files, self.words
        if files is None or words is None or not self.looks.told(
            record, "memory", lambda: tells_of_memory(files, record, words)
        ):
            raise Declined(f"job {record.id} completed")

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
    """Of an end whose codes are 0:0, which a site may ask to be told of. Raises `Declined` for a job that runs anew,
    and `NotYet` while Slurm does not say how it ended."""
    if record.restarts > event.restart_count:
        raise Declined(f"job {record.id} was started again since")
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


# What incidents take of the memory and of the disk: whose next ones wait for room, and how those that were left
# unfinished are taken up. How much an incident takes its owner decides, by what his scripts name; logs have bounds
# of their own (`LogsKept`).

LOG = logging.getLogger("runbook.service")
HELD_BYTES = 128 << 20
"""Of all incidents that are begun, as they are held: packed. A usual one has 20 kB."""
_LEAST_PARTS = 64
"""So small a part of it every owner may have, whatever the others do."""
_SMALL_BYTES = 1 << 20
"""An owner of so little on disk is in nobody's way."""
_LOOKED_FOR_S = 1.0


class Disk(NamedTuple):
    """Where incidents are stored."""

    free_bytes: int
    reserve_bytes: int
    """What no log is copied into: it is for the incidents."""


@dataclass
class Room:
    """Owners whose incidents take so much that no further one of theirs is begun until some end or go."""

    held: Callable[[], Mapping[UserName, int]]
    """Bytes in memory, by owner."""
    stored: Callable[[], Mapping[UserName, int]]
    """Bytes on disk of incidents' documents and of what the workflow database holds of them, by owner."""
    disk: Callable[[], Disk]
    owner_bytes: int
    """On disk, the incidents of one owner."""
    held_bytes: int = HELD_BYTES
    _looked: tuple[float, Mapping[UserName, str]] = field(default=(-1e9, {}), init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def crowded(self) -> Mapping[UserName, str]:
        """By owner why, as it was a second ago at most. Raises `Unavailable`."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked[0] > _LOOKED_FOR_S:
                self._looked = now_s, {**self._on_disk(), **self._in_memory()}
            return self._looked[1]

    def _in_memory(self) -> dict[UserName, str]:
        held = self.held()
        free = max(self.held_bytes - sum(held.values()), self.held_bytes // _LEAST_PARTS)
        return {
            owner: f"the incidents of {owner} that are at work hold {size(mine)} of memory"
            for owner, mine in held.items() if mine * _SHARE >= free
        }

    def _on_disk(self) -> dict[UserName, str]:
        stored = self.stored()
        found = {
            owner: f"the incidents of {owner} take {size(mine)} on disk without their logs, and one owner has "
            f"{size(self.owner_bytes)} (keep.owner_gib)"
            for owner, mine in stored.items() if mine >= self.owner_bytes
        }
        free_bytes, reserve_bytes = self.disk()
        if free_bytes < reserve_bytes // 2:
            part = max(sum(stored.values()) // max(len(stored), 1), _SMALL_BYTES)
            found |= {
                owner: f"{size(free_bytes)} are free where incidents are stored, and those of {owner} take {size(mine)}"
                for owner, mine in stored.items() if mine >= part and owner not in found
            }
        return found


_MOST_RISING = 32
_MOST_RISING_BYTES = 16 << 20
_MOST_FAILING = 4
"""In a round: where none can be taken up the loop still comes round."""
_AGAIN_S = 60.0


@dataclass
class TakingUp:
    """Goes on with what an earlier process left, after the service answers: so many at a time, by number and by bytes,
    as a run that is taken up goes through all that was recorded of it."""

    left: deque[tuple[IncidentId, int]]
    """Each with its bytes on disk."""
    rising: set[IncidentId]
    """Taken up, and not yet where they were: whoever drives takes out what has arrived."""
    take_up: Callable[[IncidentId], None]
    at_last: Callable[[Collection[IncidentId]], object]
    """Called once, when each was tried, with those that could not be taken up: they are tried again."""
    _bytes: dict[IncidentId, int] = field(default_factory=dict, init=False, repr=False)
    _again_s: dict[IncidentId, float] = field(default_factory=dict, init=False, repr=False)
    """When what could not be taken up is tried again."""
    _over: bool = field(default=False, init=False)

    def some(self) -> None:
        """As many as there is room for now. One that cannot be taken up goes behind the others. Raises what `at_last`
        does, and is called again then."""
        self._bytes = {name: taken for name, taken in self._bytes.items() if name in self.rising}
        now_s, failing = time.monotonic(), 0
        for name, taken in tuple(self.left):
            if now_s < self._again_s.get(name, now_s):
                continue
            many = len(self._bytes) >= _MOST_RISING or sum(self._bytes.values()) + taken > _MOST_RISING_BYTES
            if many and self._bytes:
                return
            self.left.remove((name, taken))
            try:
                self.take_up(name)
            except Exception as error:
                # Whatever it is, it keeps none of the others.
                self.rising.discard(name)
                self.left.append((name, taken))
                if name not in self._again_s:
                    bug = not isinstance(error, RunbookError | DBAPIError)
                    LOG.warning("%s: cannot be taken up: %s; it is tried again", name, error, exc_info=bug)
                self._again_s[name] = now_s + _AGAIN_S
                failing += 1
                if failing >= _MOST_FAILING:
                    break
            else:
                self._again_s.pop(name, None)
                self._bytes[name] = taken
        if not self._over and all(name in self._again_s for name, _ in self.left):
            self.at_last([name for name, _ in self.left])
            self._over = True


def in_turn(incidents: Iterable[tuple[UserName, IncidentId, int]]) -> deque[tuple[IncidentId, int]]:
    """One of each owner after the other: who has many keeps nobody else's waiting."""
    counted: dict[UserName, int] = {}
    turns = []
    for owner, name, taken in incidents:
        counted[owner] = counted.get(owner, 0) + 1
        turns.append((counted[owner], name, taken))
    turns.sort(key=lambda turn: turn[0])
    return deque((name, taken) for _, name, taken in turns)
