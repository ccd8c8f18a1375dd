"""A job's logs as the boxes read them: where a relaunch's own output begins, and how long a job has been silent.

With `--output=train.log` and `--open-mode=append` (or JobFileAppend=1) the words of the job that died stand in
the file of the job that replaces it, and must not be read as the new one's.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
from typing import BinaryIO, cast

from runbook.errors import RunbookError, Unavailable
from runbook.logs.search import Parts, parts_of
from runbook.model.incident import LogMark
from runbook.model.job import JobRecord
from runbook.model.units import UserName
from runbook.ports import Files
from runbook.steps.shared.base import StepContext

_TAIL_BYTES = 4096
STEPS_TOLD_WITHIN_S = 60.0
"""How long Slurm's accounting is waited for to tell where the tasks of an ended job's steps wrote."""


def take_marks(context: StepContext, paths: tuple[str, ...], owner: UserName) -> tuple[LogMark, ...]:
    """Size and last words of each log as they are before the relaunch is submitted."""
    marks: list[LogMark] = []
    for path in paths:
        try:
            with context.ports.files.open(path, owner) as stream:
                size = stream.seek(0, 2)
                marks.append(LogMark(path, size, _tail(stream, size)))
        except RunbookError:
            continue
    return tuple(marks)


def after_mark(stream: BinaryIO, mark: LogMark | None) -> BinaryIO:
    """The part of a log that was written after the mark: all of it when the file was begun anew since."""
    if mark is None or mark.size_bytes == 0:
        return stream
    size = stream.seek(0, 2)
    appended = size >= mark.size_bytes and _tail(stream, mark.size_bytes) == mark.tail_sha256
    stream.seek(0)
    if not appended:
        return stream
    parts = parts_of(stream)
    from_mark = _From(stream, mark.size_bytes) if parts is None else _PartsFrom(stream, mark.size_bytes, parts)
    return cast(BinaryIO, io.BufferedReader(from_mark))


def _tail(stream: BinaryIO, end: int) -> str:
    stream.seek(max(0, end - _TAIL_BYTES))
    return hashlib.sha256(stream.read(end - max(0, end - _TAIL_BYTES))).hexdigest()


class _From(io.RawIOBase):
    """A stream that begins at an offset of another."""

    def __init__(self, inner: BinaryIO, start: int) -> None:
        self._inner, self._start = inner, start
        inner.seek(start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0:
            return self._inner.seek(self._start + offset) - self._start
        position = self._inner.seek(offset, whence)
        if position < self._start:
            position = self._inner.seek(self._start)
        return position - self._start

    def tell(self) -> int:
        return self._inner.tell() - self._start

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


class _PartsFrom(_From):
    """The same of a file of which any part can be read: see `logs.search.Parts`."""

    def __init__(self, inner: BinaryIO, start: int, parts: Parts) -> None:
        super().__init__(inner, start)
        self._parts = parts
        self.size_bytes = max(parts.size_bytes - start, 0)

    def read_at(self, space: memoryview, offset: int) -> int:
        return self._parts.read_at(space, self._start + offset)

    def next_data(self, offset: int) -> int:
        return self._parts.next_data(self._start + offset) - self._start


def silent_s(files: Files, job: JobRecord, now_s: float) -> float | None:
    """Seconds since any of the job's logs was written to, by the files' own times; None where none can be looked at.
    Raises `Unavailable`."""
    written_s: list[float] = []
    paths = frozenset(job.log_paths)
    for folder in dict.fromkeys(posixpath.dirname(path) or "/" for path in job.log_paths):
        try:
            listed = files.entries(folder, job.owner)
        except Unavailable:
            raise
        except RunbookError:
            continue
        written_s += [entry.modified_s for entry in listed if entry.path in paths]
    return max(now_s - max(written_s), 0.0) if written_s else None
