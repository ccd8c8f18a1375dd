"""The service's side of the cage: starts boxes, answers what they may ask, ends those that use more than they may."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from runbook.adapters import process
from runbook.cage.at_work import AtWork, marked
from runbook.cage.calls import methods, packed_error, unpacked_error
from runbook.cage.inside import SEALS, packed_settings
from runbook.cage.leave import Leave, NotItsBusiness, check_result
from runbook.cage.wire import Broken, Channel
from runbook.config import CageDocument
from runbook.errors import BoxFault, BoxStopped, RunbookError, Unavailable
from runbook.flow import Box, Flow
from runbook.model.incident import Incident
from runbook.model.units import IncidentId
from runbook.report.json_documents import dump_incident, load_incident
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.steps.shared.base import Proposal, StepContext, StepResult

_BOOT = "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); " \
        "from runbook.cage.server import main; sys.exit(main())"
_START_S = 120.0
_LAST_WORDS_S = 2.0
_ASKING = 32
"""Calls that a box may have open at a time: it asks nodes on so many threads."""


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
        with _none_other():
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
        with _none_other():
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
            visit = _Visit(Channel(line, self.limits.answer_mib << 20), watch, context, self.limits, Leave(
                context.incident, acts
            ))
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


class _Visit:
    """One box at work: from its start to its answer or its end."""

    def __init__(
        self, channel: Channel, watch: socket.socket, context: StepContext, limits: CageDocument, leave: Leave
    ) -> None:
        self.leave = leave
        self._channel, self._watch, self._context, self._limits = channel, watch, context, limits
        self._state = threading.Condition()
        self._open = 0
        self._computed_s = 0.0
        self._since_s = time.monotonic()
        self._failed: BaseException | None = None

    def ended(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The box's answer. Raises `BoxStopped`, `BoxFault`, and what the outside raised."""
        pool = ThreadPoolExecutor(_ASKING, thread_name_prefix="cage-call")
        try:
            self._channel.send(asked)
            answer = self._conversation(pool)
            if "spent" in answer:
                raise self._stopped(_SPENT.get(answer["spent"], "ended without an answer"))
            if "error" in answer:
                with _none_other():
                    error = unpacked_error(answer["error"])
                raise error
            if "fault" in answer:
                raise BoxFault(str(answer["fault"])[-20_000:])
            return answer
        except (Broken, NotItsBusiness) as error:
            raise self._told(self._failed or error) from error
        finally:
            # The one that stands between ends the box when this is hung up.
            self._watch.close()
            self._channel.close()
            pool.shutdown(wait=False, cancel_futures=True)

    def _told(self, error: BaseException) -> BaseException:
        if isinstance(error, NotItsBusiness):
            return self._stopped(f"asked for {error}")
        if isinstance(error, Broken):
            return self._stopped(self._how_it_ended() if error.gone else f"gave {error.what}")
        return error

    def _conversation(self, pool: ThreadPoolExecutor) -> dict[str, Any]:
        whole_s = time.monotonic() + self._limits.whole_s
        while True:
            came = self._channel.receive(min(0.5, max(self._left_s(), 0.02)))
            if self._failed is not None:
                raise self._failed
            if came is None:
                if self._left_s() <= 0:
                    raise self._stopped(f"computed for more than {self._limits.wall_s} s")
                if time.monotonic() > whole_s:
                    raise self._stopped(f"had not ended after {self._limits.whole_s} s")
                continue
            document, descriptors = came
            if "tell" in document:
                self._context.tell(shorten(clean_line(str(document["tell"])), 400))
            elif "port" in document:
                self._begin()
                pool.submit(self._perform, document, descriptors)
                continue
            else:
                return document
            _close(descriptors)

    # -- what it asks for ------------------------------------------------------------------------------------

    def _perform(self, document: Mapping[str, Any], descriptors: tuple[int, ...]) -> None:
        given: tuple[int, ...] = ()
        try:
            answer, given = self._answered(document, descriptors)
            self._channel.send(answer, given)
        except BaseException as error:  # handed to whoever waits for the box
            with self._state:
                self._failed = self._failed or error
        finally:
            _close((*descriptors, *given))
            self._end()

    def _answered(
        self, document: Mapping[str, Any], descriptors: tuple[int, ...]
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        kinds, name = self._context.playbook.signatures.kinds, (str(document.get("port")), str(document.get("method")))
        try:
            number, how = int(document["id"]), methods()[name]
            if name == ("folder", "copy_stream"):
                _check_sealed(descriptors, self._limits.file_mib << 20)
            bound = how.unpack(document["arguments"], kinds, descriptors)
        except Exception as error:
            raise Broken("a question that is none") from error
        with self._state:
            self.leave.check(*name, bound)
        streams = [value for value in bound.arguments.values() if hasattr(value, "fileno")]
        try:
            answer = getattr(getattr(self._context.ports, name[0]), name[1])(*bound.args, **bound.kwargs)
        except RunbookError as error:
            return {"id": number, "error": packed_error(error)}, ()
        finally:
            for stream in streams:
                stream.close()
        with self._state:
            self.leave.told(*name, bound, answer)
        if how.returns.is_file:
            with answer:
                return {"id": number, "value": None}, (os.dup(answer.fileno()),)
        return {"id": number, "value": how.returns.dump(answer)}, ()

    # -- time, and ends --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._state:
            if self._open == 0:
                self._computed_s += time.monotonic() - self._since_s
            self._open += 1

    def _end(self) -> None:
        with self._state:
            self._open -= 1
            if self._open == 0:
                self._since_s = time.monotonic()

    def _left_s(self) -> float:
        """How long it may still compute: waiting for the outside is not its time."""
        with self._state:
            running_s = time.monotonic() - self._since_s if self._open == 0 else 0.0
            return self._limits.wall_s - self._computed_s - running_s

    def _how_it_ended(self) -> str:
        ready, _, _ = select.select([self._watch], [], [], _LAST_WORDS_S)
        told = b""
        with contextlib.suppress(OSError):
            told = self._watch.recv(1 << 12) if ready else b""
        if not told:
            return "ended without an answer"
        last = json.loads(told)
        if os.WIFEXITED(last["status"]):
            return f"ended without an answer (exit status {os.WEXITSTATUS(last['status'])})"
        number = os.WTERMSIG(last["status"])
        if last["cpu_s"] >= self._limits.cpu_s or number == signal.SIGXCPU:
            return f"used more than {self._limits.cpu_s} s of CPU time"
        if number == signal.SIGKILL:
            return "was killed, as the system does where memory runs out"
        return f"ended by {signal.Signals(number).name}, as where recursion goes too deep"

    def _stopped(self, what: str) -> BoxStopped:
        spent = {
            "needed more memory than it may": f"needed more than {self._limits.memory_mib} MiB of memory",
            "wrote a larger file than it may": f"wrote a file of more than {self._limits.file_mib} MiB",
        }
        return BoxStopped(
            f"reading what job {_job(self._context.incident)} left behind {spent.get(what, what)} and was ended",
            next_step="look at the job's script, configuration and logs yourself; `cage` of the inventory has the "
            "limits, should these be honest",
        )


_SPENT = {
    "memory": "needed more memory than it may",
    "depth": "went deeper than it may (nesting)",
    "file": "wrote a larger file than it may",
}


def _owner(context: StepContext) -> str:
    """Whose share a box takes. Before its job was looked at, the scheduler is asked."""
    known = context.incident.original or context.incident.failure
    return known.job.owner if known is not None else context.ports.scheduler.job(context.incident.root_job).owner


def _job(incident: Incident) -> str:
    return incident.failure.job.id if incident.failure is not None else incident.root_job


def _check_sealed(descriptors: tuple[int, ...], limit_bytes: int) -> None:
    """Raises `ValueError` for anything but a memory file that nobody can change any more: whatever else it was, reading
    it could wait forever."""
    if len(descriptors) != 1:
        raise ValueError("one file was to come")
    try:
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
    except OSError as error:
        raise ValueError("no memory file") from error
    if seals & SEALS != SEALS or os.fstat(descriptors[0]).st_size > limit_bytes + (1 << 16):
        raise ValueError("it may still change, or is too large")


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


@contextlib.contextmanager
def _none_other() -> Iterator[None]:
    """What a box answered, read as hostile: whatever is wrong with it, the box has not answered."""
    try:
        yield
    except Exception as error:
        words = shorten(clean_line(str(error).partition("\n")[0]), 200)
        raise BoxStopped(
            f"reading what the job left behind gave an answer that is not believed: {words}",
            next_step="look at the job's script, configuration and logs yourself; this should not happen, please "
            "report it",
        ) from error


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
