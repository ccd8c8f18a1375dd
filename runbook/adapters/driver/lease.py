"""Who drives, over any number of hosts: a lease in the workflow database, renewed every 2 s for 15 s.

A holder that cannot renew ends itself 2 s before the lease does, so that nobody else can have it while it still acts:
by a thread where that runs, and by a timer of the kernel that kills the process where it does not (it was stopped, or
the machine slept). Before each act the database is asked once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, TypeVar, cast

from runbook.adapters.driver import Holder
from runbook.adapters.driver.lease_tables import LEASE_S, Asker, LeaseTables, Seen
from runbook.adapters.process import awake_s
from runbook.adapters.store import Contract, IncidentStore, LogsKept
from runbook.adapters.whole_file import write_new
from runbook.errors import Unavailable
from runbook.model.units import IncidentId

LOG = logging.getLogger("runbook")
_MARGIN_S = 2.0
"""A holder ends this long before the database gives the lease to another: for a kill, and for clocks of other pace."""
_RENEW_S = 2.0
_LAST_ACTS_S = 10.0
"""How long a holder that is asked to stop waits for acts under way before it leaves the lease to lapse by itself."""


def store_id(state: Path) -> str:
    """What a state folder is known by, wherever it is mounted; made when it is first asked for."""
    path = state / "store.id"
    try:
        with contextlib.suppress(FileExistsError):
            write_new(path, f"{secrets.token_hex(16)}\n".encode())
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Unavailable(
            f"the state folder cannot be told from others: {error.strerror}", where=str(path),
            next_step="run as the user that the state folder belongs to",
        ) from error


class DriverLease:
    """In place of `DriverLock` where a database serves several hosts. A process has one."""

    def __init__(self, url: str, kind: str, cluster: str, state: Path) -> None:
        self._kind, self._cluster, self._state = kind, cluster, state
        self.here = Holder(kind, os.getpid(), socket.gethostname())
        self._tables = LeaseTables(url)
        self._token = ""
        self._until_s = 0.0
        """By `awake_s`: this process ends then."""
        self._over = False
        """It was held, and is given back."""
        self._under_way = 0
        self._changed = threading.Condition()
        self._last_resort = _LastResort()

    def take(self) -> bool:
        """Whether it is ours now. Raises `Unavailable` while the database does not answer, and `BadInput` where whoever
        holds it works over another state folder or for another cluster."""
        if self.held:
            return True
        token, asked_s = secrets.token_hex(16), awake_s()
        if not self._tables.take(self._asker(), token):
            return False
        self._token, self._until_s, self._over = token, asked_s + LEASE_S - _MARGIN_S, False
        self._last_resort.at(self._until_s)
        threading.Thread(target=self._hold, args=(token,), name="lease", daemon=True).start()
        return True

    def _asker(self) -> Asker:
        return Asker(self._cluster, store_id(self._state), self._kind, self.here.host, self.here.pid)

    def holder(self) -> Holder | None:
        """Who drives, where anybody does. Raises `Unavailable`."""
        return self._tables.seen().holder

    def seen(self) -> Seen:
        """Who drives and who waits. Raises `Unavailable`."""
        return self._tables.seen()

    @property
    def held(self) -> bool:
        return bool(self._token) and not self._over

    def ends_s(self) -> float | None:
        """When this process ends unless the lease is renewed, by `awake_s`; None: it never held one, so that nothing
        hangs on it."""
        return self._until_s if self._token else None

    def check(self) -> None:
        """Raises `Unavailable` where it was held and is not any more: nothing may be written then."""
        if self._token and (self._over or awake_s() >= self._until_s):
            raise _not_ours()

    @contextlib.contextmanager
    def act(self) -> Iterator[None]:
        """Around each act: it begins only with a lease that the database has just renewed, and the lease is not given
        back under it. Raises `Unavailable`."""
        with self._changed:
            self._under_way += 1
        try:
            self.check()
            if self._token and not self._renewed():
                self._end("another one drives by now")
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def keep(self, incident: IncidentId, place: str, content: bytes) -> None:
        """Keep a small document of an incident where no file system can show it late. Raises `Unavailable`."""
        self.check()
        if not self._tables.keep(self._token, incident, place, content):
            raise _not_ours()

    def kept(self, incident: IncidentId, place: str) -> bytes | None:
        """What was kept. Raises `Unavailable`."""
        return self._tables.kept(incident, place)

    def kept_of(self, prefix: str) -> dict[tuple[str, str], bytes]:
        """All that was kept of incidents whose id begins so, by incident and place. Raises `Unavailable`."""
        return self._tables.kept_of(prefix)

    def forget(self, incident: IncidentId) -> None:
        """Keep nothing more of an incident that is removed. Raises `Unavailable`."""
        self._tables.forget(incident)

    def _hold(self, token: str) -> None:
        """Renew for as long as it is held; end the process in time where that cannot be done."""
        told = ""
        while self.held and self._token == token:
            time.sleep(max(0.0, min(_RENEW_S, self._until_s - awake_s() - 1.0)))
            try:
                if self.held and not self._renewed() and self.held:
                    self._end("another one drives by now")
                told = ""
            except Unavailable as error:
                if not told:
                    LOG.error("the lease could not be renewed: %s", error.what)
                told = error.what
                if self.held and self._until_s - awake_s() < 1.5:
                    self._end(told)

    def _renewed(self) -> bool:
        asked_s = awake_s()
        renewed = self._tables.renew(self._token)
        if renewed and not self._over:
            self._until_s = max(self._until_s, asked_s + LEASE_S - _MARGIN_S)
            self._last_resort.at(self._until_s)
        return renewed

    def _end(self, why: str) -> NoReturn:
        """Nothing of this process may go on; whoever drives next takes up what it had begun."""
        sys.stderr.write(f"runbook ends, as it may drive {self._cluster} no longer: {why}\n")
        sys.stderr.flush()
        os._exit(Unavailable.exit_code)

    def release(self) -> None:
        """Give it back, once no act is under way; else it lapses by itself. Never raises."""
        if self.held:
            self._over = True
            with self._changed:
                done = self._changed.wait_for(lambda: self._under_way == 0, _LAST_ACTS_S)
            with contextlib.suppress(Unavailable):
                self._last_resort.at(0.0)
                if done:
                    self._tables.give_back(self._token)
        elif self._kind == "daemon" and not self._token:
            with contextlib.suppress(Unavailable):
                self._tables.waits_no_more(self._asker())
        self._tables.close()

    def __enter__(self) -> DriverLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _not_ours() -> Unavailable:
    return Unavailable(
        "this process drives no longer, so it changes nothing", where="database of the inventory",
        next_step="whoever drives now goes on with it",
    )


class _LastResort:
    """A timer of the kernel that kills this process in whatever state it is, stopped as well."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer: ctypes.c_void_p | None = None
        self._lock = threading.Lock()

    def at(self, end_s: float) -> None:
        """Kill this process when `awake_s()` is this; 0: no more. Raises `Unavailable` where the kernel has no timer
        for us."""
        with self._lock:
            if self._timer is None:
                timer = ctypes.c_void_p()
                # struct sigevent: a value of 8 bytes, the signal, SIGEV_SIGNAL.
                event = (ctypes.c_int * 16)(0, 0, int(signal.SIGKILL), 0)
                self._call("timer_create", time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer))
                self._timer = timer
            whole, part = divmod(end_s, 1.0)
            # struct itimerspec: again every 0 s, first then.
            when = (ctypes.c_long * 4)(0, 0, int(whole), int(part * 1e9))
            self._call("timer_settime", self._timer, 1, ctypes.byref(when), None)

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            raise Unavailable(f"the kernel gives no timer: {os.strerror(ctypes.get_errno())}", where=f"{name}(2)")


# What the holder alone may do: act outside, and write into the store.

_ACTS = frozenset({"submit", "cancel", "hold", "release", "drain", "undrain", "replace", "end_process"})
_DECIDING = ("claim.json", "told.json")
"""Documents that decide whether an act or a message is repeated."""
_Port = TypeVar("_Port")


def fenced(port: _Port, lease: DriverLease) -> _Port:
    """The same port, whose acts begin only while the lease is held."""
    return cast(_Port, _Fenced(port, lease))


class _Fenced:
    def __init__(self, inner: object, lease: DriverLease) -> None:
        self._inner, self._lease = inner, lease

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _ACTS:
            return found

        def act(*arguments: Any, **named: Any) -> Any:
            with self._lease.act():
                return found(*arguments, **named)

        return act


class LeasedStore(IncidentStore):
    """The store of several daemons: one that lost the lease writes nothing. What decides whether an act or a message is
    repeated is in the database, too, and read there, as a shared file system may show a file late."""

    def __init__(
        self, root: Path, contract_of: Contract | None, lease_of: Callable[[], DriverLease],
        logs: LogsKept | None = None,
    ) -> None:
        super().__init__(root, contract_of, logs)
        self._lease_of = lease_of

    def write_file(
        self,
        incident: IncidentId,
        relative: str,
        content: bytes,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        lease = self._lease_of()
        lease.check()
        if lease.held and relative.endswith(_DECIDING):
            lease.keep(incident, relative, content)
            # The file is a copy for people from here on: a full disk keeps nobody from going on.
            with contextlib.suppress(Unavailable):
                super().write_file(incident, relative, content, mode, owner)
            return self.path(incident, relative)
        return super().write_file(incident, relative, content, mode, owner)

    def copy_stream(
        self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int
    ) -> tuple[Path, bool]:
        self._lease_of().check()
        return super().copy_stream(incident, relative, stream, limit_bytes)

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        if relative.endswith(_DECIDING) and (lease := self._lease_of()).held:
            kept = lease.kept(incident, relative)
            if kept is not None:
                return kept
        return super().read_file(incident, relative)
