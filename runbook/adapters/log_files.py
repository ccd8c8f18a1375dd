"""Logs named on the command line: folders walked, streams opened, any number of files with few handles."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from runbook.adapters.silent import PATIENCE_S, PatientFile, each_within, next_data, within
from runbook.errors import BadInput, NotFound

if TYPE_CHECKING:
    from runbook.logs.search import InOrder

STDIN = "-"
_HELD_OPEN = 200
"""More files than this are opened for each piece that is read, so that no limit on open files is met."""
_DEEPEST = 12
_MOST_FILES = 200_000
_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
_AS_ANOTHER = "run as a user who may read it"

_PACKED = re.compile(r"\.(?:gz|zst|zstd)$", re.IGNORECASE)
_LOG = re.compile(
    r"""(?:
        \.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,6})?        # train.log, slurm-1.out, raylet.out.1
      | \.(?:log|out|err)[._-][\w.-]{1,80}                       # out.0, train.log-20261121
      | (?:^|[._-])[oe]\d{1,12}(?:[._-]\d{1,6})?                 # job.o123456, PBS and SGE style, also used on Slurm
      | ^(?:stdout|stderr|nohup|dmesg|syslog|messages|journal)[\w.-]{0,60}
      | ^(?:rank|task|node|out|err|log)[._-]?\d{1,6}             # rank.3, one file a task
    )$""",
    re.VERBOSE | re.IGNORECASE,
)
_NOT_A_LOG = re.compile(
    r"\.(?:py|pyc|sh|sbatch|slurm|ya?ml|toml|jsonl?|csv|tsv|parquet|arrow|npy|npz|pt|pth|bin|safetensors|ckpt|distcp"
    r"|pkl|pickle|model|png|svg|html|tar|zip|db|sqlite|so|md|lock|pid|sock|nsys-rep|ncu-rep)$|^core\.\d+$"
    r"|\.tfevents\.|^requirements[\w.-]*\.txt$|^(?:vocab|merges)\.txt$",
    re.IGNORECASE,
)
_JOB = re.compile(r"^slurm-(\d{1,12}(?:_\d{1,9})?)(?!\d)")
_ERROR_FILE = "error.json"
"""torchelastic's own record of a failure: the whole message with its time."""

Source = tuple[str, BinaryIO, int]
THREADS = 2
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file to read. `size_bytes` 0 for standard input, whose size is not known. `refused` says in words why a
    file or a folder inside a folder that was named cannot be read; what is named itself must be readable."""

    path: str
    size_bytes: int
    refused: str = ""
    pipe: bool = False
    """A FIFO that was named: its opening waits for a writer."""
    target: tuple[int, int] | None = None
    """Inside a folder: device and number of the file that had this name when it was judged. Whoever writes the folder
    may give the name to another file since, of which he may read nothing himself."""


def find_logs(paths: Sequence[str]) -> tuple[LogFile, ...]:
    """The files that are named, and the logs of the folders that are named, each once.

    Raises NotFound for a path that is not there or may not be read, BadInput for what is no log, or no folder of the
    logs of one job."""
    found: dict[tuple[int, int], LogFile] = {}
    for path in paths:
        if path == STDIN:
            found.setdefault((-1, -1), LogFile(STDIN, 0))
            continue
        try:
            status = within(PATIENCE_S, path, Path(path).stat)
        except OSError as error:
            raise NotFound(
                f"{path} cannot be read: {_words(error)}",
                next_step="name a log file, a folder of logs, or - for standard input",
            ) from error
        if stat.S_ISDIR(status.st_mode):
            found_inside = each_within(PATIENCE_S, path, partial(_inside, path))
            inside = sorted(found_inside, key=lambda pair: natural_order(pair[0].path))
            if all(file.refused for file, _ in inside) and inside:
                raise NotFound(f"nothing in {path} can be read: {inside[0][0].refused}", next_step=_AS_ANOTHER)
            _one_job(path, inside)
            if not inside:
                raise BadInput(
                    f"no logs in {path}",
                    next_step="of a folder, files named as logs are taken (*.log, *.out, *.err, *.txt, stdout*, rank*, "
                    "error.json, also .gz and .zst); name others one by one",
                )
            for file, entry in inside:
                found.setdefault((entry.st_dev, entry.st_ino), file)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            pipe = stat.S_ISFIFO(status.st_mode)
            found.setdefault((status.st_dev, status.st_ino), LogFile(path, size, pipe=pipe))
        else:
            raise BadInput(f"{path} is neither a file nor a folder", next_step="name a log file or a folder of logs")
    return tuple(found.values())


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _one_job(folder: str, inside: Sequence[tuple[LogFile, os.stat_result]]) -> None:
    """Logs of several jobs would be told as one story, with times and ranks of both. Files that are named one by one
    are taken as one job's, so a person can always say so."""
    newest: dict[str, tuple[float, str]] = {}
    for file, entry in inside:
        job = job_of_name(Path(file.path).name)
        if job is not None:
            newest[job] = max(newest.get(job, (0.0, "")), (entry.st_mtime, file.path))
    # slurm-7_0.out beside slurm-7.out is a task of job 7 (%j_%t); alone it is as likely task 0 of the array 7 (%A_%a).
    jobs = {job for job in newest if job.partition("_")[0] == job or job.partition("_")[0] not in newest}
    if len(jobs) < 2:
        return
    array = {job.partition("_")[0] for job in jobs}
    last = max(jobs, key=lambda job: newest[job])
    path = newest[last][1]
    if len(array) == 1:
        raise BadInput(
            f"{folder} holds logs of {len(jobs)} tasks of the Slurm job array {min(array)}",
            next_step=f"name the files of one, the newest is {path}; "
            f"if they are the ranks of one job, name them all: {folder.rstrip('/')}/slurm-{min(array)}_*",
        )
    raise BadInput(
        f"{folder} holds logs of {len(jobs)} Slurm jobs",
        next_step=f"name the files of one job; the newest are those of {last}: {path}",
    )


def _link_out(entry: os.DirEntry[str], top: str) -> str:
    """Why a link below a folder is not followed; "" where it is. Whoever writes the folder would else choose which of
    the reader's files are read: the target must lie inside, or belong to the one who made the link."""
    target, inside = os.path.realpath(entry.path), os.path.realpath(top)
    if os.path.commonpath((target, inside)) == inside:
        return ""
    if any(os.path.commonpath((target, system)) == system for system in _SYSTEM_FOLDERS):
        return "a link to a file of the system"
    status = entry.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != entry.stat(follow_symlinks=False).st_uid:
        return "a link out of the folder to a file of another owner"
    return ""


def _inside(folder: str, depth: int = 0, top: str = "") -> Iterator[tuple[LogFile, os.stat_result]]:
    """Logs below a folder. Links to folders are not followed (Ray's session_latest would come twice)."""
    top = top or folder
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if depth == 0:
            raise NotFound(f"{folder} cannot be listed: {_words(error)}", next_step=_AS_ANOTHER) from error
        if not isinstance(error, FileNotFoundError):
            yield LogFile(folder, 0, _words(error)), Path(folder).lstat()
        return
    for number, entry in enumerate(entries):
        if number >= _MOST_FILES or depth > _DEEPEST:
            reason = f"more than {_MOST_FILES} entries" if number else "too many folders inside one another"
            yield LogFile(folder, 0, reason), Path(folder).lstat()
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _inside(entry.path, depth + 1, top)
            elif is_log_name(entry.name) and entry.is_file():
                # What is no link is asked of as none: it may have become one since it was listed.
                status = entry.stat(follow_symlinks=entry.is_symlink())
                if not stat.S_ISREG(status.st_mode):
                    continue
                refused = "" if os.access(entry.path, os.R_OK) else os.strerror(errno.EACCES).lower()
                out = _link_out(entry, top) if entry.is_symlink() else ""
                if out:
                    yield LogFile(entry.path, 0, out), entry.stat(follow_symlinks=False)
                    continue
                yield LogFile(entry.path, status.st_size, refused, target=(status.st_dev, status.st_ino)), status
        except OSError:
            continue  # gone since it was listed


def _opened(path: str, target: tuple[int, int] | None) -> int:
    """A descriptor of a regular file. Raises OSError where the name is another file's by now: opening a FIFO would wait
    for a writer, and a link may point elsewhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (target is not None and target != (status.st_dev, status.st_ino)):
        os.close(descriptor)
        raise OSError(errno.ESTALE, "another file took its name")
    return descriptor


class PathStream(io.RawIOBase):
    """A file that is opened for each piece that is read and closed again, so that it holds no handle."""

    def __init__(self, path: str, size_bytes: int, target: tuple[int, int] | None = None) -> None:
        super().__init__()
        self._path = path
        self._target = target
        self._size = self.size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        got = self.read_at(buffer, self._position)
        self._position += got
        return got

    def read_at(self, buffer: memoryview, offset: int) -> int:
        """Bytes from an offset; several threads may read at a time."""

        def read() -> int:
            descriptor = _opened(self._path, self._target)
            try:
                return os.preadv(descriptor, [buffer], offset)
            finally:
                os.close(descriptor)

        return within(PATIENCE_S, self._path, read)

    def next_data(self, offset: int) -> int:
        """Where there are blocks from an offset on. The offset where it cannot be opened any more: reading says so."""

        def look() -> int:
            try:
                descriptor = _opened(self._path, self._target)
            except OSError:
                return offset
            try:
                return next_data(descriptor, offset, self.size_bytes)
            finally:
                os.close(descriptor)

        return within(PATIENCE_S, self._path, look)


def open_logs(files: Sequence[LogFile], stack: ExitStack) -> list[Source]:
    """Sources for the reader, without files that are refused. Raises NotFound for a file that may not be opened."""
    sources: list[Source] = []
    many = len(files) > _HELD_OPEN
    for file in files:
        if file.refused:
            continue
        if file.path == STDIN:
            if sys.stdin is None:
                raise BadInput("standard input is closed", next_step="name a log file or a folder of logs")
            sources.append((STDIN, sys.stdin.buffer, 0))
            continue
        try:
            if many and file.size_bytes:
                if not within(PATIENCE_S, file.path, partial(os.access, file.path, os.R_OK)):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                stream = cast(BinaryIO, PathStream(file.path, file.size_bytes, file.target))
            elif file.pipe:
                stream = cast(BinaryIO, stack.enter_context(Path(file.path).open("rb", buffering=0)))  # noqa: SIM115
            else:
                descriptor = within(PATIENCE_S, file.path, partial(_opened, file.path, file.target))
                opened = PatientFile(descriptor, file.path, PATIENCE_S)
                stream = cast(BinaryIO, stack.enter_context(opened))
        except OSError as error:
            raise NotFound(f"{file.path} cannot be opened: {_words(error)}", next_step=_AS_ANOTHER) from error
        sources.append((file.path, stream, file.size_bytes))
    return sources


def on_threads(threads: int) -> InOrder:
    """Work done ahead on so many threads, only a few results waiting at a time. With one, the caller does it all."""
    return map if threads <= 1 else cast("InOrder", partial(_in_order, threads))


def _in_order(threads: int, do: Callable[[_Work], _Result], work: Iterable[_Work]) -> Iterator[_Result]:
    tasks: SimpleQueue[tuple[_Work, SimpleQueue[tuple[_Result | None, Exception | None]]] | None] = SimpleQueue()

    def toil() -> None:
        while (task := tasks.get()) is not None:
            piece, answer = task
            try:
                answer.put((do(piece), None))
            except Exception as error:  # handed to the caller
                answer.put((None, error))

    waiting: deque[SimpleQueue[tuple[_Result | None, Exception | None]]] = deque()
    started = 0
    try:
        for piece in work:
            if started < threads:
                Thread(target=toil, daemon=True, name="runbook-log-search").start()
                started += 1
            answer: SimpleQueue[tuple[_Result | None, Exception | None]] = SimpleQueue()
            waiting.append(answer)
            tasks.put((piece, answer))
            if len(waiting) > threads:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        for _ in range(started):
            tasks.put(None)


def _result(answer: SimpleQueue[tuple[_Result | None, Exception | None]]) -> _Result:
    result, error = answer.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def is_log_name(name: str) -> bool:
    """Whether a file of this name (without its folder) is read when a folder is given. Files that are named one by
    one are always read."""
    plain = _PACKED.sub("", name)
    if plain == _ERROR_FILE:
        return True
    return bool(_LOG.search(plain)) and not _NOT_A_LOG.search(plain)


def job_of_name(name: str) -> str | None:
    """The job (or task of an array) that Slurm's own name for an output file speaks of: slurm-123_4.out."""
    found = _JOB.search(name)
    return found.group(1) if found else None


def natural_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts rank 2 before rank 10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", path) if part
    )


def total_bytes(files: Iterable[LogFile]) -> int:
    """Bytes of all files on disk; 0 where standard input makes the sum unknown."""
    every = list(files)
    if any(file.path == STDIN for file in every):
        return 0
    return sum(file.size_bytes for file in every if not file.refused)
