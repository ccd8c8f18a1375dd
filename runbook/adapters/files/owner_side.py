"""The part of the Files port that runs with the owner's rights; standard library only, sent as source to a child.

Also called directly where the owner is ourselves. Failures are `OSError`s; those that are not the kernel's carry an
errno of the same meaning and a sentence. The child speaks one JSON line each way over the socket on its standard
input, and for a listing one more for each entry; an opened file travels beside the answer (SCM_RIGHTS).

What is only asked ends where the line does: nobody waits for it, and whoever asked may have been killed while a file
system held it. A replacement that was begun is brought to its end.

The child has its owner's user id: his other processes may stop it, and behind sudo, in the moments in which it
starts, take it over with its socket. So whoever listens takes what it says as a stranger's; and before it does anything
it gives up for good what it does not need (`bounded`): it stays a single process, with little memory.
"""
# ruff: noqa: PTH105, PTH108, PTH116, PTH118

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import resource
import select
import socket
import stat
import sys
from _thread import start_new_thread  # `threading` would have to be read from disk for every file that is opened

NOT_REGULAR = "it is not a regular file"
CHANGED = "its content is not what was expected"
PATH_LENGTH = 250
"""Letters that a path of a listing may have in the mean."""
MOST_MEMORY_BYTES = 512 << 20
"""Addresses, of which a listing of 100,000 paths takes a third."""
MOST_CPU_S = 120


def open_regular(path: str) -> int:
    """A descriptor of a regular file. FIFOs do not block, terminals are not taken over, devices are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        must_be_a_file_to_read(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def must_be_a_file_to_read(descriptor: int, path: str) -> None:
    """Raises `OSError` for a descriptor of anything else: reading a FIFO or a terminal may never end."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) or fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_PATH) != os.O_RDONLY:
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EPERM, NOT_REGULAR, path)
    os.set_blocking(descriptor, True)


def list_entries(folder: str, depth: int, limit: int) -> list[tuple[str, bool, int, float]]:
    """(path, is folder, bytes, modified) level by level, so that a cut at `limit` entries, or at as much text as that
    many paths of `PATH_LENGTH` have, loses the deepest first.

    Links are followed, each folder is entered once. What cannot be read below the top is listed, not entered."""
    found: list[tuple[str, bool, int, float]] = []
    seen: set[tuple[int, int]] = set()
    level = [folder]
    room = limit * PATH_LENGTH
    for distance in range(depth):
        below: list[str] = []
        for here in level:
            try:
                information = os.stat(here)
                if (information.st_dev, information.st_ino) in seen:
                    continue
                seen.add((information.st_dev, information.st_ino))
                with os.scandir(here) as children:
                    for child in children:
                        room -= len(child.path)
                        if len(found) >= limit or room < 0:
                            return found
                        try:
                            facts = child.stat()
                        except OSError:
                            try:
                                facts = child.stat(follow_symlinks=False)
                            except OSError:
                                continue
                        is_folder = stat.S_ISDIR(facts.st_mode)
                        found.append((child.path, is_folder, facts.st_size, facts.st_mtime))
                        if is_folder:
                            below.append(child.path)
            except OSError:
                if distance == 0:
                    raise
        level = below
    return found


def replace_file(path: str, content: bytes, expected_sha256: str) -> str:
    """Write a file atomically, mode kept, and return the path of the backup of what was there.

    The link, not its target, stays a link. Done once already (same new content, backup there) is success. On any
    failure the original is as it was and nothing of ours stays behind."""
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    before, facts = _read(target)
    digest = hashlib.sha256(before).hexdigest()
    backup = os.path.join(folder, f"{name}.runbook-{expected_sha256[:8]}.bak")
    if digest != expected_sha256:
        if before == content and _sha256_of(backup) == expected_sha256:
            return backup
        raise OSError(errno.EPERM, CHANGED, path)
    backup_was_there = _sha256_of(backup) == expected_sha256
    if not backup_was_there:
        _write_beside(backup, before, facts, replace=False)
    try:
        _write_beside(target, content, facts, replace=True, must_be=expected_sha256)
    except BaseException:
        if not backup_was_there:
            with contextlib.suppress(OSError):
                os.unlink(backup)
        raise
    return backup


def _read(path: str) -> tuple[bytes, os.stat_result]:
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(), os.fstat(descriptor)


def _sha256_of(path: str) -> str:
    try:
        return hashlib.sha256(_read(path)[0]).hexdigest()
    except OSError:
        return ""


def _write_beside(path: str, content: bytes, facts: os.stat_result, replace: bool, must_be: str = "") -> None:
    folder, name = os.path.split(path)
    # A name may have 255 bytes, and a letter may have four.
    temporary = os.path.join(folder, f".{name[:50]}.runbook-{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            if os.fstat(descriptor).st_gid != facts.st_gid:
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, -1, facts.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) & 0o777)
            os.fsync(descriptor)
        if replace:
            if _sha256_of(path) != must_be:
                raise OSError(errno.EPERM, CHANGED, path)
            os.replace(temporary, path)
        else:
            # A link, not a rename: a file of that name that is not ours must not be lost.
            os.link(temporary, path)
            os.unlink(temporary)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(holder)
    finally:
        os.close(holder)


def bounded(writes: bool) -> None:
    """Limits that nobody raises again: no process or thread more than there are, however many its owner has on this
    machine, so much memory, and nothing written by what only asks."""
    limits = [(resource.RLIMIT_NPROC, 0), (resource.RLIMIT_AS, MOST_MEMORY_BYTES), (resource.RLIMIT_CPU, MOST_CPU_S)]
    if not writes:
        limits.append((resource.RLIMIT_FSIZE, 0))
    for what, most in limits:
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def end_with(connection: socket.socket) -> None:
    """Wait until the other end is closed, then end this process."""
    hung_up = select.poll()
    hung_up.register(connection, 0)
    hung_up.poll()
    os._exit(0)


def answer_one(connection: socket.socket) -> None:
    """Read one request, do it, answer. The request's bytes of content follow its JSON line."""
    stream = connection.makefile("rb")
    request = json.loads(stream.readline())
    descriptor = -1
    answer: dict[str, object] = {}
    found: list[tuple[str, bool, int, float]] = []
    if request["do"] != "replace":
        start_new_thread(end_with, (connection,))
    bounded(writes=request["do"] == "replace")
    try:
        path = os.fsdecode(bytes.fromhex(request["path"]))
        if request["do"] == "open":
            descriptor = open_regular(path)
        elif request["do"] == "entries":
            found = list_entries(path, request["depth"], request["limit"])
            answer["entries"] = len(found)
        else:
            content = stream.read(request["size"])
            if len(content) != request["size"]:
                raise OSError(errno.EPIPE, "the request was cut short", path)
            answer["backup"] = replace_file(path, content, request["expected_sha256"])
    except OSError as error:
        answer = {"errno": error.errno or errno.EIO, "words": error.strerror or str(error)}
    except ValueError as error:
        answer = {"errno": errno.EINVAL, "words": str(error)}
    line = json.dumps(answer).encode("ascii") + b"\n"
    if descriptor >= 0:
        rights = array.array("i", [descriptor])
        connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        with connection.makefile("wb", 1 << 16) as told:
            told.write(line)
            for entry in found:
                told.write(json.dumps(entry).encode("ascii") + b"\n")


if __name__ == "__main__":
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        sys.exit("standard input is not the socket we were given (sudo's log_input or use_pty replaces it)")
    answer_one(socket.socket(fileno=0))
