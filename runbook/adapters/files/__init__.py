"""The Files port on this machine: files that a job names, touched with the rights of the job's owner and no others."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import inspect
import io
import json
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import BinaryIO, TypeVar

from runbook.adapters import process
from runbook.adapters.files import owner_side
from runbook.adapters.identity import (
    Identity,
    PrivilegeMode,
    current_identity,
    identity_of,
    privilege_mode,
    stage_interpreter,
    sudo_refused,
)
from runbook.adapters.process.helpers import Helper, Helpers
from runbook.adapters.silent import PATIENCE_S, FileSystems, PatientFile, hung, within
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.checkpoint import DirectoryEntry
from runbook.model.units import UserName

MOST_ENTRIES = 100_000
_LINE_BYTES = 64 << 10
"""Of an answer: more than the longest path has, escaped."""
_T = TypeVar("_T")


class OwnerFiles:
    """Opens, lists and replaces as the owner: directly when that is us, else through a child with their identity.

    The kernel decides with the owner's rights, so a link or a path of a job leads nowhere that its owner may not go.
    `timeout_s` bounds every call and every read of an opened file, as a path may lie on a file system that hangs
    (`Hung`). With `apart` our own files are opened by a child, too: a thread that hangs in the kernel would keep this
    process from being ended. A folder of more than `most_entries` is listed level by level and cut there. `ours`: paths
    that whoever runs us has named, which our own rights are for, whatever owner is told.
    """

    def __init__(
        self,
        *,
        timeout_s: float = PATIENCE_S,
        most_entries: int = MOST_ENTRIES,
        identify: Callable[[UserName], Identity] = identity_of,
        systems: FileSystems | None = None,
        apart: bool = False,
        ours: Collection[str] = (),
    ) -> None:
        self._timeout_s = timeout_s
        self._most_entries = most_entries
        self._identify = identify
        self._systems = systems or FileSystems()
        self._apart = apart
        self._ours = frozenset(ours)
        self._helpers = Helpers(_source)

    def open(self, path: str, owner: UserName) -> BinaryIO:
        identity = self._checked(path, owner)
        if self._is_here(identity):
            opens = owner_side.open_regular if path in self._ours else owner_side.open_as_owner
            descriptor = self._here(lambda: opens(path), path, owner)
        else:
            _, descriptor, _ = self._there(self._opens(path), path, identity)
        return received_file(descriptor, path, owner, self._timeout_s)

    @contextlib.contextmanager
    def handed(self, path: str, owner: UserName) -> Iterator[socket.socket]:
        """As `open`, for another process to receive: a socket on which the answer of the owner's child comes, to be
        handed on within the block and read by `receive_file`. The file is never opened in this process, which could not
        be ended any more if closing it hung. At the end of the block the child has ended, or `Hung` is raised."""
        identity = self._checked(path, owner)
        with self._systems.asked(path, owner):
            ours, child = self._started(self._opens(path), path, identity)
            try:
                with ours:
                    yield ours
                    try:
                        ended = child.wait(self._timeout_s)
                    except subprocess.TimeoutExpired:
                        raise hung(path, self._timeout_s) from None
                if ended != 0:
                    raise _no_answer(child, identity)
            finally:
                self._end(child, path, identity)

    def _opens(self, path: str) -> bytes:
        return owner_side.request_line("named" if path in self._ours else "open", path)

    def _is_here(self, identity: Identity) -> bool:
        return privilege_mode(identity) is PrivilegeMode.SAME and not self._apart

    def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
        identity = self._checked(folder, owner)
        depth = max(1, depth)
        if self._is_here(identity):
            found: list[Entry] = self._here(
                lambda: owner_side.list_entries(folder, depth, self._most_entries), folder, owner
            )
        else:
            request = owner_side.request_line("entries", folder, depth, self._most_entries)
            _, _, found = self._there(request, folder, identity)
        return tuple(sorted((DirectoryEntry(*item) for item in found), key=lambda entry: entry.path))

    def read_small(self, path: str, owner: UserName, limit: int = 1 << 20) -> bytes:
        with self.open(path, owner) as stream:
            return self._here(lambda: stream.read(limit), path, owner)

    def replace(self, path: str, owner: UserName, content: bytes, expected_sha256: str) -> str:
        identity = self._checked(path, owner)
        if self._is_here(identity):
            return self._here(
                lambda: owner_side.replace_file(path, content, expected_sha256), path, owner, expected_sha256
            )
        request = owner_side.request_line("replace", path, len(content), expected_sha256)
        answer, _, _ = self._there(request + content, path, identity)
        if "backup" not in answer:
            raise NotAllowed(
                "whether it was written is not known", where=path, next_step="see what this user's processes do here"
            )
        return str(answer.get("backup", ""))

    def _checked(self, path: str, owner: UserName) -> Identity:
        if not path.startswith("/") or "\0" in path:
            raise NotAllowed(
                "a path named by a job must be absolute", where=repr(path), next_step="resolve it against WorkDir"
            )
        return current_identity() if path in self._ours else self._identify(owner)

    def _here(self, work: Callable[[], _T], path: str, owner: UserName, expected_sha256: str = "") -> _T:
        """Run in a thread that may be left behind: a hung file system must not hang us."""
        with self._systems.asked(path, owner):
            try:
                return within(self._timeout_s, path, work)
            except OSError as error:
                raise translated(error.errno or 0, error.strerror or str(error), path, owner) from error

    def _there(
        self, request: bytes, path: str, identity: Identity
    ) -> tuple[dict[str, object], int, list[Entry]]:
        """Ask a child that runs as the owner. Returns its answer, the descriptor that came with it, or -1, and what it
        listed."""
        with self._systems.asked(path, identity.name):
            ours, child = self._started(request, path, identity)
            answered = _Answer(ours, self._timeout_s)
            entries: list[Entry] = []
            try:
                with ours:
                    answer = answered.first(with_file=request.startswith((b"open ", b"named ")))
                    if answer is not None and request.startswith(b"entries ") and "errno" not in answer:
                        entries = answered.entries(answer, self._most_entries, path)
                if answer is None:
                    raise _no_answer(child, identity)
            except TimeoutError:
                answered.close()
                raise hung(path, self._timeout_s) from None
            except BaseException:
                answered.close()
                raise
            finally:
                self._end(child, path, identity)
        return *_checked_answer(answer, answered, path, identity.name), entries

    def _started(
        self, request: bytes, path: str, identity: Identity
    ) -> tuple[socket.socket, subprocess.Popen[bytes] | Helper]:
        """A child that runs as the owner and has been asked, and the socket on which it answers."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                asks = not request.startswith(b"replace ")
                if asks and privilege_mode(identity) is not PrivilegeMode.SUDO:
                    child: subprocess.Popen[bytes] | Helper = self._helpers.start(identity, theirs)
                else:
                    child = process.start_as(_source(), identity, theirs)
        except BaseException:
            ours.close()
            raise
        try:
            ours.settimeout(self._timeout_s)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.sendall(request)
        except BaseException as error:
            ours.close()
            self._end(child, path, identity)
            raise hung(path, self._timeout_s) if isinstance(error, TimeoutError) else error from None
        return ours, child

    def _end(self, child: subprocess.Popen[bytes] | Helper, path: str, identity: Identity) -> None:
        gone = child.stop() if isinstance(child, Helper) else process.stop(child, identity)
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        if not gone:
            self._systems.given_up(path, identity.name, lambda: child.poll() is not None)


def receive_file(connection: socket.socket, path: str, owner: UserName, limit_s: float) -> BinaryIO:
    """The file that was opened for this process (`OwnerFiles.handed`). Raises as `open` does."""
    answered = _Answer(connection, limit_s)
    try:
        answer = answered.first(with_file=True)
    except TimeoutError:
        answered.close()
        raise hung(path, limit_s) from None
    if answer is None:
        answered.close()
        raise Unavailable(
            f"could not open files as user {owner}: the helper process ended without an answer", where=path,
            next_step="try again",
        )
    _, descriptor = _checked_answer(answer, answered, path, owner)
    return received_file(descriptor, path, owner, limit_s)


def received_file(descriptor: int, path: str, owner: UserName, limit_s: float) -> BinaryIO:
    """A stream of what came opened, once it is seen to be a file: it is a process of the owner's that sent it, who may
    have it send what he likes."""
    if descriptor < 0:
        raise Unavailable("the opened file did not arrive", where=path, next_step="try again")
    try:
        within(limit_s, path, lambda: owner_side.must_be_a_file_to_read(descriptor, path))
        return io.BufferedReader(PatientFile(descriptor, path, limit_s))
    except OSError as error:
        os.close(descriptor)
        raise translated(error.errno or 0, error.strerror or str(error), path, owner) from error


def _checked_answer(
    answer: dict[str, object], answered: _Answer, path: str, owner: str
) -> tuple[dict[str, object], int]:
    if "errno" in answer:
        answered.close()
        number = answer["errno"]
        raise translated(number if isinstance(number, int) else 0, str(answer.get("words")), path, owner)
    return answer, answered.descriptor


def sha256(content: bytes) -> str:
    """The check value that `replace` wants."""
    return hashlib.sha256(content).hexdigest()


@cache
def _source() -> str:
    return inspect.getsource(owner_side)


Entry = tuple[str, bool, int, float]
"""Path, is folder, bytes, modified."""


class _Answer:
    """What comes over a socket whose other end the owner's processes may hold: all of it within `limit_s`, in lines of
    bounded size, with one file at most."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection = connection
        self._ends_s = time.monotonic() + limit_s
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self.descriptor = -1

    def first(self, *, with_file: bool) -> dict[str, object] | None:
        """The answer's first line; None when there is none. Raises `TimeoutError`."""
        line = self._line(with_file=with_file)
        try:
            answer = json.loads(line) if line is not None else None
        except (ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None

    def entries(self, answer: dict[str, object], most: int, folder: str) -> list[Entry]:
        """What was listed, a line each. Raises `TimeoutError`, and `NotAllowed` where it is nothing that our own
        program says."""
        found: list[Entry] = []
        below, room = os.path.join(folder, ""), most * owner_side.PATH_LENGTH  # noqa: PTH118
        number = answer.get("entries")
        for _ in range(number if isinstance(number, int) and 0 <= number <= most else most + 1):
            line = self._line(with_file=False)
            try:
                entry = json.loads(line) if line is not None else None
            except (ValueError, RecursionError):
                entry = None
            match entry:
                case [str(path), bool(is_folder), int(size), float(modified_s)] if (
                    len(found) < most and len(path) <= room and path.startswith(below)
                    and 0 <= size < 1 << 63 and abs(modified_s) < 1 << 40
                ):
                    room -= len(path)
                    found.append((path, is_folder, size, modified_s))
                case _:
                    raise NotAllowed(
                        "the list of files is none", where=folder, next_step="see what this user's processes do here"
                    )
        return found

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _line(self, *, with_file: bool) -> bytes | None:
        while not self._lines:
            left_s = self._ends_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            try:
                data = self._more(with_file=with_file)
            except ConnectionResetError:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
            if not data or len(self._rest) > _LINE_BYTES:
                return None
        return self._lines.popleft()

    def _more(self, *, with_file: bool) -> bytes:
        if not with_file or self.descriptor >= 0:
            return self._connection.recv(_LINE_BYTES)  # what else comes with it the kernel throws away
        data, came, _, _ = socket.recv_fds(self._connection, _LINE_BYTES, 1)
        for one in came[1:]:
            os.close(one)
        self.descriptor = came[0] if came else -1
        return data


def _no_answer(child: subprocess.Popen[bytes] | Helper, identity: Identity) -> RunbookError:
    words = b""
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        child.wait(2.0)
        if child.stderr is not None:
            # Once and no more: another process of the owner's may hold the other end, and write on.
            os.set_blocking(child.stderr.fileno(), False)
            words = os.read(child.stderr.fileno(), _LINE_BYTES)
    text = words.decode("utf-8", "replace").strip()[-300:]
    if privilege_mode(identity) is PrivilegeMode.SUDO and "Traceback" not in text and "standard input" not in text:
        return sudo_refused(identity, text)
    return Unavailable(
        f"could not open files as user {identity.name}: {text or 'the helper process ended without an answer'}",
        where=stage_interpreter(),
        next_step="see whether that Python runs for this user, and whether sudo logs input (log_input must be off)",
    )


def translated(number: int, words: str, path: str, owner: str) -> RunbookError:
    """The kernel's answer as one of ours."""
    where = f"{path} (as {owner})"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"no such file or folder: {words}", where=where, next_step="see whether it was moved")
    if words == owner_side.CHANGED:
        return NotAllowed(
            "the file has changed since it was read", where=where, next_step="look at it, then start over"
        )
    if words == owner_side.PLANTED:
        return NotAllowed(
            f"it is not this owner's: {words}", where=where,
            next_step="see whose it is; let the job's files lie in a folder of its owner's",
        )
    if words == owner_side.NOT_REGULAR or number in (errno.ENXIO, errno.EISDIR):
        return NotAllowed(f"not a regular file: {words}", where=where, next_step="name the job's log or script")
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Unavailable(
            f"no room to write: {words}; the original is untouched", where=where, next_step="make room, then try again"
        )
    if number in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EROFS, errno.EEXIST, errno.ETXTBSY, errno.EINVAL):
        return NotAllowed(f"{owner} may not do this: {words}", where=where, next_step="check owner and mode")
    return Unavailable(f"the file system failed: {words}", where=where, next_step="try again, or look at the disk")
