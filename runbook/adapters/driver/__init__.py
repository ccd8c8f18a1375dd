"""One driver a database: the daemon, or one command under a lock. Others put their incident on the queue."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from runbook.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Holder:
    """Who drives."""

    kind: str
    """"daemon" or "command"."""
    pid: int
    host: str = ""
    """"": this one."""

    def __str__(self) -> str:
        return f"{self.kind}, pid {self.pid}" + (f" on {self.host}" if self.host else "")


class DriverLock:
    """An advisory lock on `driver.lock`; the kernel lets go of it when the process dies, however it dies."""

    def __init__(self, state: Path, kind: str) -> None:
        self._path = state / "driver.lock"
        self._kind = kind
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is ours now."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(
                f"the driver's lock cannot be opened: {error.strerror}",
                where=str(self._path),
                next_step="run as the user that the state folder belongs to",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        # Who holds it is a courtesy to others: a full disk must not keep us from the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"kind": self._kind, "pid": os.getpid()}).encode(), 0)
        self._descriptor = descriptor
        return True

    def holder(self) -> Holder | None:
        """Who wrote the lock last, if it can be read."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return Holder(str(document["kind"]), int(document["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DriverLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
