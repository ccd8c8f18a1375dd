"""Which boxes are at work, for how long, and which are next: known to the service, and told to others by marks in
incidents' folders.

A mark also counts how often a box was begun without anybody having lived to see its end."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runbook.errors import BoxStopped, Unavailable
from runbook.flow import Box, Flow
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, UserName

_MARK = "reading.json"
_MOST_BEGUN = 3
"""A box that was begun so often and whose end no process lived to see is not begun again."""


@dataclass(frozen=True, slots=True)
class AtWork:
    """A box at work now. What waits for a place, a job or a person is not at work."""

    incident: IncidentId
    box: str
    for_s: float
    late_s: float
    """From when on that is too long, by the flow document."""

    @property
    def late(self) -> bool:
        return self.for_s > self.late_s

    def __str__(self) -> str:
        much = f", where {self.late_s:.0f} s are expected at most" if self.late else ""
        return f"{self.incident}: {self.box} for {self.for_s:.0f} s{much}"


class Waiting:
    """How long any of several questions, on as many threads, was open; and how many there were."""

    def __init__(self) -> None:
        self._lock, self._open, self._s, self._since_s, self.asked = threading.Lock(), 0, 0.0, 0.0, 0

    def __enter__(self) -> None:
        with self._lock:
            self._since_s = self._since_s if self._open else time.monotonic()
            self._open += 1
            self.asked += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            self._s += 0.0 if self._open else time.monotonic() - self._since_s

    def took_s(self) -> float:
        with self._lock:
            return self._s + (time.monotonic() - self._since_s if self._open else 0.0)


PATIENCE_S = 300.0
"""A box that has waited for so long waits no longer behind incidents that have no diagnosis yet."""
DEAR_S = 10.0
"""A box that used more CPU time is one of few (a log of 50 MiB takes one second): its owner is slow for a while."""
_DEAR_FOR_S = 600.0


@dataclass(eq=False)
class Turn:
    """A box that wants a place, or has one."""

    owner: UserName
    incident: IncidentId
    box: Box
    first: bool
    """Its incident has no diagnosis yet."""
    opened_s: float
    """When its incident was."""
    since_s: float = field(default_factory=time.monotonic)
    """When it came, and then when it got its place, by the machine's own clock."""
    place: int = -1
    """-1: none yet."""
    called: threading.Event = field(default_factory=threading.Event)
    fresh: bool = False
    """Nothing was read of its job yet, so that the incident takes no room to speak of."""


class Places:
    """Where boxes are at work: so many at a time, of one owner half of them at most, so that nobody waits behind one
    user's jobs. Free ones go to the owner who has fewest at work; then to incidents without a diagnosis, so that after
    a failure of many jobs each is told what it died of before any is relaunched; then to the owner whose last place
    was given the longest ago; of his, to the incident that was opened first, so that one after the other comes to its
    diagnosis and not all of them with the last. One whose boxes computed for long (`took`) comes after his others.
    The last free place is for an owner who has none, so that two of them do not take all.
    `slow`: owners whose files did not answer a moment ago, or late, whoever stopped them. They and those whose boxes
    computed for long (`took`) have one place each, and all of them together half of the places. What is `fresh` of
    crowded owners, whose incidents take too much room, waits.

    Whoever leaves calls the next one by name: to wake all that wait for each place would take longer than the boxes."""

    def __init__(self, most: int, slow: Callable[[UserName], bool] = lambda _owner: False) -> None:
        self._most, self._share, self._slow = most, max(1, most // 2), slow
        self._taken: dict[int, Turn] = {}
        self._waiting: list[Turn] = []
        self._given_s: dict[UserName, float] = {}
        self._dear_until_s: dict[UserName | IncidentId, float] = {}
        self._closed = False
        self._crowded: Container[UserName] = ()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Boxes that wait for a place."""
        return len(self._waiting)

    def at_work(self) -> tuple[AtWork, ...]:
        """The longest first."""
        now_s = time.monotonic()
        with self._lock:
            taken = sorted(self._taken.values(), key=lambda turn: turn.since_s)
        return tuple(AtWork(one.incident, one.box.name, now_s - one.since_s, one.box.late_s) for one in taken)

    def crowd(self, owners: Container[UserName]) -> None:
        """Whose incidents take too much room from now on."""
        with self._lock:
            self._crowded = owners
            self._call()

    def open(self) -> None:
        """After `close`, again."""
        self._closed = False

    def close(self) -> None:
        """Nobody gets a place any more, whoever waits is sent away."""
        with self._lock:
            self._closed = True
            for turn in self._waiting:
                turn.called.set()
            self._waiting.clear()

    @contextlib.contextmanager
    def taken(self, turn: Turn) -> Iterator[int]:
        """Waits for a place and yields its number, which no other at work has. Raises `Unavailable`."""
        with self._lock:
            self.check_open()
            self._waiting.append(turn)
            self._call()
        turn.called.wait()
        try:
            self.check_open()
            yield turn.place
        finally:
            with self._lock:
                self._taken.pop(turn.place, None)
                self._call()

    def took(self, owner: UserName, incident: IncidentId, cpu_s: float) -> None:
        """A box of the owner's has ended that used so much CPU time."""
        if cpu_s > DEAR_S:
            with self._lock:
                now_s = time.monotonic()
                self._dear_until_s = {one: until_s for one, until_s in self._dear_until_s.items() if until_s > now_s}
                self._dear_until_s |= dict.fromkeys((owner, incident), now_s + _DEAR_FOR_S)

    def check_open(self) -> None:
        """Raises `Unavailable` once it is closed."""
        if self._closed:
            raise Unavailable("the service ends", next_step="what was begun goes on when it is started again")

    def _call(self) -> None:
        """Give free places to those who are next."""
        while len(self._taken) < self._most:
            now_s, owners = time.monotonic(), [one.owner for one in self._taken.values()]
            counts = {owner: owners.count(owner) for owner in owners}

            def rank(
                turn: Turn, now_s: float = now_s, counts: dict[UserName, int] = counts
            ) -> tuple[int, bool, float, bool, float, float]:
                first = turn.first or now_s - turn.since_s > PATIENCE_S
                dear, given_s = turn.incident in self._dear_until_s, self._given_s.get(turn.owner, 0.0)
                return counts.get(turn.owner, 0), not first, given_s, dear, turn.opened_s, turn.since_s

            slow = {
                owner for owner in {*owners, *(turn.owner for turn in self._waiting)}
                if self._dear_until_s.get(owner, 0.0) > now_s or self._slow(owner)
            }
            last = len(self._taken) + 1 == self._most
            for_slow = 1 if sum(owner in slow for owner in owners) < self._share else 0
            able = [
                turn for turn in self._waiting
                if counts.get(turn.owner, 0) < (for_slow if turn.owner in slow else 1 if last else self._share)
                and not (turn.fresh and turn.owner in self._crowded)
            ]
            if not able:
                return
            turn = min(able, key=rank)
            self._waiting.remove(turn)
            turn.place = next(number for number in range(self._most) if number not in self._taken)
            turn.since_s = self._given_s[turn.owner] = now_s
            self._taken[turn.place] = turn
            turn.called.set()


@contextlib.contextmanager
def marked(folder: Path, incident: Incident, box: Box, function: str) -> Iterator[None]:
    """Marks in the incident's folder that a box is at work, until it has ended in whatever way. Where the service
    itself dies with it, again and again, the marks that nobody took away say so. Raises `BoxStopped`."""
    mark = folder / _MARK
    visit = f"{incident.run}/{len(incident.visits)}/{incident.box}/{function}"
    times = 0
    try:
        left = json.loads(mark.read_bytes())
        times = int(left["times"]) if left["visit"] == visit else 0
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if times >= _MOST_BEGUN:
        job = incident.failure.job.id if incident.failure is not None else incident.root_job
        raise BoxStopped(
            f"the service ended {times} times while it read what job {job} left behind",
            next_step="look at the job's script, configuration and logs yourself, and at the service's log",
        )
    # The monotonic clock is the machine's: others read from it for how long, whatever is done to the time of day.
    told = {"visit": visit, "times": times + 1, "box": box.name, "since_s": time.monotonic(), "pid": os.getpid()}
    with contextlib.suppress(OSError):
        # Not made durable: it is for a service that falls, not for a machine that does.
        new = mark.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            json.dump(told, stream)
        new.replace(mark)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def marked_at_work(
    flow: Flow, incidents: Iterable[IncidentId], folder_of: Callable[[IncidentId], Path], pid: int
) -> tuple[AtWork, ...]:
    """What the service with this process number has marked, for another process on its machine; the longest first."""
    now_s, found = time.monotonic(), []
    for incident in incidents:
        try:
            told = json.loads((folder_of(incident) / _MARK).read_bytes())
            box, since_s = flow.boxes[told["box"]], float(told["since_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # What a process that has ended left is no box at work.
        if told.get("pid") == pid and since_s <= now_s:
            found.append(AtWork(incident, box.name, now_s - since_s, box.late_s))
    return tuple(sorted(found, key=lambda one: -one.for_s))
