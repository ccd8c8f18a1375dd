"""Files that a reader, or a machine after a crash, finds whole or as they were before."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(
    path: Path, mode: int = 0o600, owner: tuple[int, int] | None = None, *, durable: bool = True
) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well. `owner`: user and group, where root asks.
    `durable`: it is on disk before it takes the place, and so is the place. Raises `OSError`; nothing is left then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            if owner is not None and os.geteuid() == 0:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename is only durable once its folder is. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
