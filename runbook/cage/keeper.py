"""The service's side of the cage: starts boxes, answers what they may ask, ends those that use more than they may."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from runbook.adapters import process
from runbook.adapters.silent import FileSystems
from runbook.cage.at_work import AtWork, Places, Turn, marked
from runbook.cage.calls import methods
from runbook.cage.inside import packed_settings
from runbook.cage.leave import Leave, check_result
from runbook.cage.visit import FILES_S, Visit, none_other, not_started
from runbook.cage.wire import Channel
from runbook.config import CageDocument
from runbook.errors import BoxStopped
from runbook.flow import Box, Flow
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, UserName
from runbook.report.json_documents import pack_incident, unpack_incident
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
    _places: Places = field(init=False, repr=False)
    _owners: dict[IncidentId, UserName] = field(default_factory=dict, init=False, repr=False)
    """Of jobs that no box has looked at yet."""
    _asking: threading.Semaphore = field(init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self._places, self._asking = Places(self.places, self.systems.slow), threading.Semaphore(self.places)

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
        self._places.open()
        with self._lock:
            self._warm()
            return self._kept

    def at_work(self) -> tuple[AtWork, ...]:
        """The boxes at work, the longest first."""
        return self._places.at_work()

    @property
    def waiting(self) -> int:
        """Boxes that wait for a place."""
        return self._places.waiting

    def crowd(self, owners: Container[UserName]) -> None:
        """Owners whose incidents take too much room: of theirs nothing is looked at that was not before."""
        self._places.crowd(owners)

    def tell_owner(self, incident: IncidentId, owner: UserName) -> None:
        """Whose the job of a new incident is, by the scheduler's word, for whoever knows: it need not be asked again
        to see to it that each owner has his share."""
        self._owners[incident] = owner

    def owner_told(self, incident: IncidentId) -> UserName:
        """What `tell_owner` was told, as long as no box has looked at the job; else ""."""
        return self._owners.get(incident, UserName(""))

    def close(self) -> None:
        """End the warm process, and with it whatever still runs: that counts as not begun."""
        self._places.close()
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
        folder, owner = context.ports.folder.folder(context.incident.id), self._owner(context)
        first = context.incident.original is None or context.incident.original.diagnosis is None
        with (
            self._places.taken(Turn(
                owner, context.incident.id, box, first, context.incident.opened_s,
                fresh=context.incident.failure is None,
            )) as slot,
            marked(folder, context.incident, box, function.__name__),
        ):
            line, watch = self._start(slot)
            visit = Visit(
                Channel(line, self.limits.answer_mib << 20), watch, context, self.limits, Leave(context.incident, acts)
            )
            asked = {
                "module": function.__module__, "function": function.__name__,
                "incident": pack_incident(context.incident),
                "settings": packed_settings(context.settings), "history": context.ports.history is not None,
            }
            try:
                return visit.ended(asked), visit.leave
            except BoxStopped:
                self._places.check_open()
                raise
            finally:
                if visit.files.took_s() > FILES_S:
                    self.systems.took_long(owner)
                if not visit.gone(_ENDS_S):
                    self.systems.given_up(visit.last_opened, owner, visit.gone)
                self._places.took(owner, context.incident.id, visit.cpu_s)

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
                            raise not_started(error.strerror or str(error)) from error
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
            raise not_started(str(error)) from error
        if "there" not in told:
            ours.close()
            raise not_started("it ended; the service's log has its words")
        self._control, self._kept = ours, Kept(told["there"], tuple(told["missing"]))

    def _owner(self, context: StepContext) -> UserName:
        """Whose share a box takes. Before its job was looked at, the scheduler is asked, for a few at a time."""
        incident = context.incident
        known = incident.original or incident.failure
        if known is not None:
            self._owners.pop(incident.id, None)
            return known.job.owner
        if incident.id not in self._owners:
            with self._asking:
                self._owners[incident.id] = context.ports.scheduler.job(incident.root_job).owner
        return self._owners[incident.id]


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1 << 16:
        raise ValueError("no text where one was to be")
    return value


def _incident(text: Any, context: StepContext) -> Incident:
    return unpack_incident(_whole(text), "the cage", context.playbook.signatures.kinds)


def _whole(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("no incident")
    return text
