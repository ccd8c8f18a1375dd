"""One visit of a box in the cage, on the service's side: the conversation with it, its answers, how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from runbook.adapters.files import OwnerFiles
from runbook.adapters.silent import hung
from runbook.cage.at_work import Waiting
from runbook.cage.calls import methods, packed_error, unpacked_error
from runbook.cage.inside import ANSWERS_S, OPENED, SEALS
from runbook.cage.leave import Leave, NotItsBusiness
from runbook.cage.wire import Broken, Channel
from runbook.config import CageDocument
from runbook.errors import BoxFault, BoxStopped, Hung, RunbookError, Unavailable
from runbook.model.incident import Incident
from runbook.model.units import UserName
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.steps.shared.base import StepContext

_LAST_WORDS_S = 2.0
_ASKING = 32
"""Calls that are answered at a time: a box asks nodes on so many threads."""
_MOST_OPEN = 128
"""Calls that a box may have open: as many as it may have threads that wait for an answer."""
FILES_S = 60.0
"""For which a box waits for the processes that touch its owner's files, which he can slow; and longer for each file:"""
_EACH_FILE_S = 0.25


def not_started(why: str) -> Unavailable:
    """The machine had no room for a box, whoever took it: nothing is said of the job."""
    return Unavailable(
        f"the process that reads jobs' files apart did not start: {why}", where="the service's machine",
        next_step="look at the machine's memory and process limits, and at the service's log",
    )


class Visit:
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
        self.cpu_s = 0.0
        """That the box used, once it is `gone`."""
        self.files = Waiting()
        """For the processes that touch its owner's files."""
        self._failed: BaseException | None = None
        self._opened: list[str] = []
        self._refused: dict[str, Hung] = {}
        """Paths that were not asked for, and why."""

    @property
    def last_opened(self) -> str:
        """The path that was opened last, "/" before the first."""
        return self._opened[-1] if self._opened else "/"

    def gone(self, timeout_s: float = 0.0) -> bool:
        """Whether the process is: the one that stands between lets go of the watch when it has ended. One that waits in
        the kernel for a file system cannot be ended."""
        deadline = time.monotonic() + timeout_s
        while self._watch.fileno() >= 0:
            ready, _, _ = select.select([self._watch], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            if self._heard():
                continue
            self._watch.close()
        return True

    def _heard(self) -> dict[str, Any]:
        """The next word of the one that stands between, or of the warm process; none where it has hung up."""
        told = b""
        with contextlib.suppress(OSError):
            told = self._watch.recv(1 << 12)
        found: dict[str, Any] = json.loads(told or b"{}")
        self.cpu_s = found.get("cpu_s", self.cpu_s)
        return found

    def ended(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The box's answer. Raises `BoxStopped`, `BoxFault`, and what the outside raised."""
        pool = ThreadPoolExecutor(_ASKING, thread_name_prefix="cage-call")
        try:
            self._channel.send(asked)
            answer = self._conversation(pool)
            if "spent" in answer:
                raise self._stopped(_SPENT.get(answer["spent"], "ended without an answer"))
            if "error" in answer:
                with none_other():
                    error = unpacked_error(answer["error"])
                if isinstance(error, Hung) and error.where in self._opened:
                    error = self._refused.get(error.where) or hung(error.where, ANSWERS_S)
                raise error
            if "fault" in answer:
                raise BoxFault(str(answer["fault"])[-20_000:])
            return answer
        except (Broken, NotItsBusiness) as error:
            raise self._told(self._failed or error) from error
        finally:
            # The one that stands between ends the box when this is hung up.
            with contextlib.suppress(OSError):
                self._watch.shutdown(socket.SHUT_WR)
            self._channel.close()
            pool.shutdown(wait=False, cancel_futures=True)

    def _told(self, error: BaseException) -> BaseException:
        if isinstance(error, NotItsBusiness):
            return self._stopped(f"asked for {error}")
        if not isinstance(error, Broken):
            return error
        if not error.gone:
            return self._stopped(f"gave {error.what}")
        last = self._last_words()
        if "not_started" in last:
            return not_started(str(last["not_started"]))
        return self._stopped(self._how_it_ended(last))

    def _conversation(self, pool: ThreadPoolExecutor) -> dict[str, Any]:
        whole_s = time.monotonic() + self._limits.whole_s
        while True:
            came = self._channel.receive(min(0.5, max(self._left_s(), 0.02)))
            if self._failed is not None:
                raise self._failed
            if self.files.took_s() > FILES_S + _EACH_FILE_S * self.files.asked:
                raise self._stopped(f"waited for its owner's files for more than {FILES_S:.0f} s")
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
                # One that was never begun still has its files to close.
                if self._begin() > _MOST_OPEN:
                    _close(descriptors)
                    raise NotItsBusiness(f"more than {_MOST_OPEN} answers at a time")
                pool.submit(self._perform, document, descriptors).add_done_callback(
                    partial(_close_if_cancelled, descriptors)
                )
                continue
            else:
                return document
            _close(descriptors)

    # -- what it asks for ------------------------------------------------------------------------------------

    def _perform(self, document: Mapping[str, Any], descriptors: tuple[int, ...]) -> None:
        waiting = self.files if document.get("port") == "files" else contextlib.nullcontext()
        try:
            with waiting:
                self._answer(document, descriptors)
        except BaseException as error:  # handed to whoever waits for the box
            with self._state:
                self._failed = self._failed or error
        finally:
            _close(descriptors)
            self._end()

    def _answer(self, document: Mapping[str, Any], descriptors: tuple[int, ...]) -> None:
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
            if how.returns.is_file:
                self._hand_over(number, *bound.args)
                return
            answer = getattr(getattr(self._context.ports, name[0]), name[1])(*bound.args, **bound.kwargs)
        except RunbookError as error:
            if isinstance(error, Hung):
                self._refused[error.where] = error
            self._channel.send({"id": number, "error": packed_error(error)})
            return
        finally:
            for stream in streams:
                stream.close()
        with self._state:
            self.leave.told(*name, bound, answer)
        self._channel.send({"id": number, "value": how.returns.dump(answer)})

    def _hand_over(self, number: int, path: str, owner: UserName) -> None:
        """A file of the owner's. Raises `RunbookError` where it could not be asked for; once the line to the owner's
        child is handed over, what goes wrong there ends the box."""
        self._opened.append(path)
        files = self._context.ports.files
        if not isinstance(files, OwnerFiles):
            with files.open(path, owner) as stream:
                self._channel.send({"id": number, "value": OPENED}, (stream.fileno(),))
            return
        handed = False
        try:
            with files.handed(path, owner) as line:
                handed = True
                self._channel.send({"id": number, "value": None}, (line.fileno(),))
        except RunbookError as error:
            if not handed:
                raise
            with self._state:
                self._failed = self._failed or error

    # -- time, and ends --------------------------------------------------------------------------------------

    def _begin(self) -> int:
        """How many are open with this one."""
        with self._state:
            if self._open == 0:
                self._computed_s += time.monotonic() - self._since_s
            self._open += 1
            return self._open

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

    def _last_words(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._watch], [], [], _LAST_WORDS_S)
        return self._heard() if ready else {}

    def _how_it_ended(self, last: Mapping[str, Any]) -> str:
        if not last:
            return "ended without an answer"
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


def _close_if_cancelled(descriptors: tuple[int, ...], call: Future[None]) -> None:
    if call.cancelled():
        _close(descriptors)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


@contextlib.contextmanager
def none_other() -> Iterator[None]:
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
