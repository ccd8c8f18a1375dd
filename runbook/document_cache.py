"""What was made of documents, remembered between runs in the user's cache folder: plain JSON, trusted only if his own.

A cache is only ever a shortcut: where it cannot be read, is damaged, is older than the documents or might have been
written by somebody else, the documents are read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import __version__

_LARGEST_BYTES = 16 << 20
_KEPT = 8
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Cached:
    """The place of one result in the cache, and what it was made of."""

    path: Path
    key: str

    @classmethod
    def of(
        cls, name: str, folder: Path, documents: Iterable[Path], made_by: Sequence[Path], words: Iterable[str]
    ) -> Cached | None:
        """`documents` count by their contents, `made_by` (the program's own files) by size and time of change, `words`
        as they are. None where no cache folder may be used or a document cannot be read."""
        place = _folder()
        if place is None:
            return None
        key = hashlib.sha256()
        try:
            for path in documents:
                content = path.read_bytes()
                key.update(f"{path.name}\0{len(content)}\0".encode() + content)
            for path in made_by:
                status = path.stat()
                key.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\0".encode())
        except OSError:
            return None
        key.update("\0".join([__version__, *words]).encode())
        of_folder = hashlib.sha256(str(folder.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return cls(place / f"{name}-{of_folder}.json", key.hexdigest())

    def read(self) -> Any:
        """What was written for the same key; None where nothing can be trusted to be that."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _own(status) or status.st_size > _LARGEST_BYTES:
                return None
            try:
                content = json.loads(file.read(_LARGEST_BYTES))
            except (OSError, ValueError, RecursionError):
                return None
        return content.get("content") if isinstance(content, dict) and content.get("key") == self.key else None

    def write(self, content: object) -> None:
        """Remember `content`, at once or not at all. What stands in the way of it is no concern of the caller's."""
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _own(self.path.parent.lstat()):
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump({"key": self.key, "content": content}, file, separators=(",", ":"))
            temporary.replace(self.path)
            self._prune()
        except (OSError, TypeError, ValueError):
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _prune(self) -> None:
        """Folders of documents come and go; the newest results are kept."""
        pattern = f"{self.path.name.rpartition('-')[0]}-*"
        newest_last = sorted(self.path.parent.glob(pattern), key=lambda path: path.lstat().st_mtime_ns)
        for path in newest_last[:-_KEPT]:
            path.unlink()


def _folder() -> Path | None:
    """The user's cache folder for this program; None where it is not his alone to write, or he has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        base = Path(given)
    else:
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = Path(home) / ".cache"
    folder = base / "runbook"
    for place in (folder, base, base.parent):
        try:
            # Under sudo with the caller's HOME the folder is another's: nothing is read there, nothing left there.
            return folder if _own(place.stat() if place is not folder else place.lstat()) else None
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
