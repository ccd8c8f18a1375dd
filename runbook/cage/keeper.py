"""The service's side of the cage: starts boxes, answers what they may ask, ends those that use more than they may."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from runbook.adapters import process
from runbook.adapters.silent import FileSystems
from runbook.cage.at_work import AtWork, marked
from runbook.cage.calls import methods
from runbook.cage.inside import packed_settings
from runbook.cage.leave import Leave, check_result
from runbook.cage.visit import Visit, none_other
from runbook.cage.wire import Channel
from runbook.config import CageDocument
from runbook.errors import BoxStopped, Unavailable
from runbook.flow import Box, Flow
from runbook.model.incident import Incident
from runbook.model.units import IncidentId
from runbook.report.json_documents import dump_incident, load_incident
from runbook.steps.shared.base import Proposal, StepContext, StepResult

_BOOT = "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); " \
        "from runbook.cage.server import main; sys.exit(main())"
_START_S = 120.0
_ENDS_S = 2.0
"""A process that was killed and is there after this waits in the kernel."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What keeps a box in on this machine, in words: found out by trying."""

    there: str
    missing: tuple[str, ...]
    """What this machine does not give it."""


@dataclass
class Cage:
    """Runs boxes apart from the service. One warm process for all of them, started on first use and again when it is
    gone."""

    flow: Flow
    playbook: Path
    """The playbook's folder."""
    limits: CageDocument
    places: int
    """Boxes at work at a time; one owner's take at most half of them, so that nobody waits behind one user's jobs."""
    systems: FileSystems = field(default_factory=FileSystems)
    """Which file systems do not answer: boxes that hang there are counted."""
    _control: socket.socket | None = field(default=None, init=False, repr=False)
    _server: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _kept: Kept = field(default=Kept("", ()), init=False)
    _taken: dict[int, _Place] = field(default_factory=dict, init=False, repr=False)
    _waiting: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _place: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def run(self, box: Box, context: StepContext) -> StepResult:
        """As `box.run`. Raises `BoxStopped` when it used more than it may, and what `box.run` raises."""
        answer, leave = self._visit(box, box.run, context, frozenset(box.acts))
        with none_other():
            result = answer["result"]
            found = StepResult(
                outcome=_text(result["outcome"]), incident=_incident(result["incident"], context),
                summary=_text(result["summary"]), poll_s=min(max(float(result["poll_s"]), 0.0), 86_400.0),
            )
            if found.outcome not in box.next:
                raise ValueError(f"an outcome that {box.name} does not have")
            if problem := check_result(leave, found.incident):
                raise ValueError(problem)
        return found

    def propose(self, box: Box, context: StepContext) -> Proposal | None:
        """As `box.propose`. Nothing is done, whatever the box asks for."""
        if box.propose is None:
            return None
        answer, _ = self._visit(box, box.propose, context, frozenset())
        with none_other():
            return TypeAdapter(Proposal | None).validate_python(answer["proposal"])

    def walls(self) -> Kept:
        """Starts the warm process, also after it was closed. Raises `Unavailable`."""
        self._closed = False
        with self._lock:
            self._warm()
            return self._kept

    def at_work(self) -> tuple[AtWork, ...]:
        """The boxes at work, the longest first."""
        now_s = time.monotonic()
        with self._place:
            taken = sorted(self._taken.values(), key=lambda place: place.since_s)
        return tuple(AtWork(one.incident, one.box.name, now_s - one.since_s, one.box.late_s) for one in taken)

    @property
    def waiting(self) -> int:
        """Boxes that wait for a place."""
        return self._waiting

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the service ends", next_step="what was begun goes on when it is started again")

    def close(self) -> None:
        """End the warm process, and with it whatever still runs: that counts as not begun."""
        with self._place:
            self._closed = True
            self._place.notify_all()
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._server is not None:
                process.stop(self._server)
                self._server = None

    # -- one visit -------------------------------------------------------------------------------------------

    def _visit(
        self, box: Box, function: Any, context: StepContext, acts: frozenset[str]
    ) -> tuple[dict[str, Any], Leave]:
        place = context.ports.folder.folder(context.incident.id)
        with (
            self._slot(_owner(context), context.incident.id, box) as slot,
            marked(place, context.incident, box, function.__name__),
        ):
            line, watch = self._start(slot)
            visit = Visit(
                Channel(line, self.limits.answer_mib << 20), watch, context, self.limits, Leave(context.incident, acts)
            )
            asked = {
                "module": function.__module__, "function": function.__name__,
                "incident": dump_incident(context.incident).decode("utf-8"),
                "settings": packed_settings(context.settings), "history": context.ports.history is not None,
            }
            try:
                return visit.ended(asked), visit.leave
            except BoxStopped:
                self._check_open()
                raise
            finally:
                if not visit.gone(_ENDS_S):
                    self.systems.given_up(visit.last_opened, _owner(context), visit.gone)

    def _start(self, slot: int) -> tuple[socket.socket, socket.socket]:
        """The line to a new box, and the watch over it. Raises `Unavailable`."""
        message = json.dumps({
            "memory_bytes": self.limits.memory_mib << 20, "cpu_s": self.limits.cpu_s,
            "file_bytes": self.limits.file_mib << 20, "slot": slot,
        }).encode()
        ours, line = socket.socketpair()
        watch, watched = socket.socketpair()
        try:
            with line, watched, self._lock:
                for last in (False, True):
                    self._warm()
                    assert self._control is not None
                    try:
                        socket.send_fds(self._control, [message], [line.fileno(), watched.fileno()])
                        return ours, watch
                    except OSError as error:
                        self._control.close()
                        self._control = None
                        if last:
                            raise _not_started(error.strerror or str(error)) from error
        except BaseException:
            ours.close()
            watch.close()
            raise
        raise AssertionError

    def _warm(self) -> None:
        if self._control is not None:
            return
        if self._server is not None:
            process.stop(self._server)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
        streams = process.Streams(theirs, subprocess.DEVNULL, 2)
        # Arenas of memory would count as used by every thread.
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
        with theirs:
            self._server = process.start((sys.executable, "-I", "-c", _BOOT, paths), streams, env=environment, cwd="/")
        modules = sorted({box.run.__module__ for box in self.flow.boxes.values()})
        try:
            ours.settimeout(_START_S)
            ours.send(json.dumps({
                "playbook": str(self.playbook.resolve()), "modules": modules, "limit_bytes": 256 << 20,
            }).encode())
            # While that one starts: what every call is read by.
            methods()
            told = json.loads(ours.recv(1 << 16) or b"{}")
            ours.settimeout(None)
        except (OSError, ValueError) as error:
            ours.close()
            raise _not_started(str(error)) from error
        if "there" not in told:
            ours.close()
            raise _not_started("it ended; the service's log has its words")
        self._control, self._kept = ours, Kept(told["there"], tuple(told["missing"]))

    @contextlib.contextmanager
    def _slot(self, owner: str, incident: IncidentId, box: Box) -> Iterator[int]:
        """A place, waited for where all are taken, or the owner has his share. Each has a user of its own."""
        share = max(1, self.places // 2)

        def free() -> bool:
            mine = sum(place.owner == owner for place in self._taken.values())
            return self._closed or (len(self._taken) < self.places and mine < share)

        with self._place:
            self._waiting += 1
            try:
                self._place.wait_for(free)
            finally:
                self._waiting -= 1
            self._check_open()
            slot = next(number for number in range(self.places) if number not in self._taken)
            self._taken[slot] = _Place(owner, incident, box, time.monotonic())
        try:
            yield slot
        finally:
            with self._place:
                del self._taken[slot]
                self._place.notify_all()


@dataclass(frozen=True, slots=True)
class _Place:
    """Who has one of the places, and since when by the machine's own clock."""

    owner: str
    incident: IncidentId
    box: Box
    since_s: float


def _owner(context: StepContext) -> str:
    """Whose share a box takes. Before its job was looked at, the scheduler is asked."""
    known = context.incident.original or context.incident.failure
    return known.job.owner if known is not None else context.ports.scheduler.job(context.incident.root_job).owner


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1 << 16:
        raise ValueError("no text where one was to be")
    return value


def _incident(text: Any, context: StepContext) -> Incident:
    return load_incident(_whole(text).encode("utf-8"), "the cage", context.playbook.signatures.kinds)


def _whole(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("no incident")
    return text


def _not_started(why: str) -> Unavailable:
    return Unavailable(
        f"the process that reads jobs' files apart did not start: {why}", where="the service's machine",
        next_step="look at the machine's memory and process limits, and at the service's log",
    )
