"""Which boxes are at work, and for how long: known to the service, and told to others by marks in incidents' folders.

A mark also counts how often a box was begun without anybody having lived to see its end."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.errors import BoxStopped
from runbook.flow import Box, Flow
from runbook.model.incident import Incident
from runbook.model.units import IncidentId

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
