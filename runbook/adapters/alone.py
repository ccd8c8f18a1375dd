"""One at a time across processes: a lock that a child keeps for as long as it lives, even when we are killed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from runbook.errors import Unavailable

_POLL_S = 0.05


@contextlib.contextmanager
def alone(folder: Path, name: str, timeout_s: float) -> Iterator[int]:
    """Hold the lock of `name` and yield its descriptor, to be handed to the child that acts.

    The kernel keeps an flock until the last process that inherited the descriptor has ended. So whoever resumes after
    a kill waits here until an orphaned `sbatch` is done, and then finds what it submitted. Raises `Unavailable` when
    that takes longer than `timeout_s`."""
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"a lock cannot be made: {error.strerror}", where=str(path)) from error
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"an earlier submission of {name} has not ended yet",
                        where=str(path),
                        next_step="look for an sbatch process that hangs, then try again",
                    ) from None
                time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)
