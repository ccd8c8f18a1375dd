"""The part of the Files port that runs with the owner's rights; standard library only, sent as source to a child.

Also called directly where the owner is ourselves. Failures are `OSError`s; those that are not the kernel's carry an
errno of the same meaning and a sentence. The child reads one line of words from the socket on its standard input and
answers a line of JSON, and for a listing one more for each entry; an opened file travels beside it (SCM_RIGHTS).

A child is there for every file that is opened, behind sudo with an interpreter of its own (elsewhere see
`process.helpers`), so nothing is imported but what is part of the interpreter or nearly so: `json`, `socket`, `array`
and `contextlib` took twice as long as the interpreter itself.

What is only asked ends where the line does: nobody waits for it, and whoever asked may have been killed while a file
system held it. A replacement that was begun is brought to its end.

The child has its owner's user id: his other processes may stop it, and behind sudo, in the moments in which it
starts, take it over with its socket. So whoever listens takes what it says as a stranger's; and before it does anything
it gives up for good what it does not need (`bounded`): it stays a single process, with little memory.
"""
# ruff: noqa: PTH105, PTH108, PTH115, PTH116, PTH118, PTH120, SIM105

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import resource
import select
import stat
import sys
from _json import encode_basestring_ascii
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NOT_REGULAR = "it is not a regular file"
PLANTED = "it is another user's, below a folder in which anybody may make files"
_PIECE_BYTES = 1 << 16
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


def open_as_owner(path: str) -> int:
    """As `open_regular`, of a file that a job names: what anybody could have put there tells nothing of the job."""
    descriptor = open_regular(path)
    try:
        if planted(descriptor, os.geteuid()):
            raise OSError(errno.EPERM, PLANTED, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def planted(descriptor: int, owner: int) -> bool:
    """Whether an opened file is neither this user's nor root's, and a folder on its way, links followed, is one in
    which anybody may make files. A group's own folders hold files of others that are meant."""
    if os.fstat(descriptor).st_uid in (0, owner):
        return False
    folder = os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))
    while not os.stat(folder).st_mode & stat.S_IWOTH:
        if folder == "/":
            return False
        folder = os.path.dirname(folder)
    return True


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
    digest = _sha256(before)
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
            _unlink(backup)
        raise
    return backup


def _read(path: str) -> tuple[bytes, os.stat_result]:
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(), os.fstat(descriptor)


def _sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _sha256_of(path: str) -> str:
    try:
        return _sha256(_read(path)[0])
    except OSError:
        return ""


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


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
                try:
                    os.fchown(descriptor, -1, facts.st_gid)
                except OSError:
                    pass
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
        _unlink(temporary)
        raise
    holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(holder)
    except OSError:
        pass
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


def end_with(connection: _socket.socket) -> None:
    """Wait until the other end is closed, then end this process."""
    hung_up = select.poll()
    hung_up.register(connection.fileno(), 0)
    hung_up.poll()
    os._exit(0)


def request_line(do: str, path: str, first: int = 0, second: object = "") -> bytes:
    """What the child reads: "open", "named" (the same of a path that no job named), "entries" (depth, most entries) or
    "replace" (bytes of the content that follows, what the file is expected to be)."""
    return f"{do} {first} {second} {os.fsencode(path).hex()}\n".encode("ascii")


def answer_one(connection: _socket.socket) -> None:
    """Read one request, do it, answer. The request's bytes of content follow its line."""
    line, _, content = _received(connection, lambda data: b"\n" in data).partition(b"\n")
    do, first, second, path_hex = line.decode("ascii").split(" ")
    descriptor = -1
    answer = "{}"
    found: list[tuple[str, bool, int, float]] = []
    if do != "replace":
        start_new_thread(end_with, (connection,))
    bounded(writes=do == "replace")
    try:
        path = os.fsdecode(bytes.fromhex(path_hex))
        if do == "open":
            descriptor = open_as_owner(path)
        elif do == "named":
            descriptor = open_regular(path)
        elif do == "entries":
            found = list_entries(path, int(first), int(second))
            answer = f'{{"entries": {len(found)}}}'
        else:
            size = int(first)
            content = _received(connection, lambda data: len(data) >= size, content)
            if len(content) != size:
                raise OSError(errno.EPIPE, "the request was cut short", path)
            answer = f'{{"backup": {encode_basestring_ascii(replace_file(path, content, second))}}}'
    except OSError as error:
        answer = _failed(error.errno or errno.EIO, error.strerror or str(error))
    except ValueError as error:
        answer = _failed(errno.EINVAL, str(error))
    told = answer.encode("ascii") + b"\n"
    if descriptor >= 0:
        rights = descriptor.to_bytes(4, sys.byteorder)
        connection.sendmsg([told], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    else:
        part = bytearray(told)
        for name, is_folder, size, modified_s in found:
            told_is = "true" if is_folder else "false"
            line = f"[{encode_basestring_ascii(name)}, {told_is}, {size}, {modified_s!r}]\n".encode("ascii")
            if len(part) + len(line) > _PIECE_BYTES:
                connection.sendall(part)
                part.clear()
            part += line
        connection.sendall(part)


def _failed(number: int, words: str) -> str:
    return f'{{"errno": {number}, "words": {encode_basestring_ascii(words)}}}'


def _received(connection: _socket.socket, enough: Callable[[bytearray], bool], data: bytes = b"") -> bytes:
    """What comes until it is enough, or nothing more comes."""
    parts = bytearray(data)
    while not enough(parts):
        part = connection.recv(1 << 16)
        if not part:
            break
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        sys.exit("standard input is not the socket we were given (sudo's log_input or use_pty replaces it)")
    answer_one(_socket.socket(fileno=0))
