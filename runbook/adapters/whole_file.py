"""Files that are ours, as they are written and as they are found: a reader, or a machine after a crash, finds each
whole or as it was before; nobody else reads them, whatever the umask; and no planted link is followed.

A folder that a user may write to can hold a link by the time it is used, made so that root writes where it leads. So
such a folder is entered part by part, a link only where it belongs to root or to whoever runs this, and a file in it is
made new: it follows nothing and takes nothing's place. A lock file says which process is at it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runbook.errors import Unavailable

FOLDER_MODE = 0o711
"""Passable: a job's owner reaches the patched copy that is submitted for him."""
_MOST_LINKS = 40
_PASSED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def whole_file(
    path: Path, mode: int = 0o600, owner: tuple[int, int] | None = None, *, durable: bool = True,
    reader: tuple[int, int] | None = None,
) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well. `owner`: user and group, where root asks.
    `reader`: user and group who may read it beside us, and write nothing. `durable`: it is on disk before it takes the
    place, and so is the place. Raises `OSError`; nothing is left then."""
    # A name may have 255 bytes, and a letter may have four.
    temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            if owner is not None and os.geteuid() == 0:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)
            if reader is not None:
                let_read(stream.fileno(), reader[0])
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


_ACCESS = "system.posix_acl_access"
_OURS, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def let_read(descriptor: int, uid: int) -> None:
    """Let one user read a file that stays ours, by an access list (acl(5); the kernel's form: a version, then tag,
    permissions and number of each entry). Raises `OSError`, ENOTSUP on a file system without them: were the file his,
    he could write it, too, and fill a disk that is not his to fill."""
    if uid == os.geteuid():
        return
    rights = ((_OURS, 6, _NOBODY), (_USER, 4, uid), (_GROUP, 0, _NOBODY), (_MASK, 4, _NOBODY), (_OTHERS, 0, _NOBODY))
    try:
        os.setxattr(descriptor, _ACCESS, struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in rights))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        raise OSError(
            errno.ENOTSUP, "its file system has no access lists (POSIX ACLs), by which the job's owner alone could "
            "read it; `paths.state` has to lie on one that has, as ext4 and XFS"
        ) from error


def reader_of(path: Path) -> int | None:
    """Whom `let_read` has let read a file; None: nobody."""
    try:
        found = os.getxattr(path, _ACCESS, follow_symlinks=False)
    except OSError:
        return None
    entries = struct.iter_unpack("<HHI", found[4:]) if len(found) % 8 == 4 else ()
    return next((int(number) for tag, _, number in entries if tag == _USER), None)


_HOLE_BYTES = 1 << 16


def put_sparse(target: IO[bytes], data: bytes) -> None:
    """Write where there is anything but zeros: what is sparse stays sparse. The caller ends the file where it is."""
    for at in range(0, len(data), _HOLE_BYTES):
        piece = data[at : at + _HOLE_BYTES]
        if piece[0] == 0 and piece.count(0) == len(piece):
            target.seek(len(piece), os.SEEK_CUR)
        else:
            target.write(piece)


def sync_folder(folder: Path) -> None:
    """A rename is only durable once its folder is. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(folder: Path, mode: int = FOLDER_MODE) -> None:
    """A folder, with those above it that are missing, of exactly this mode; one that is there is left as it is. Raises
    `OSError`."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            if not each.is_dir():
                raise
            continue  # another process was quicker
        each.chmod(mode)


def private_file(path: Path) -> None:
    """An empty file that only its owner may read, for whoever opens it by its name later (SQLite gives what it puts
    beside it the same mode). One that is there is left as it is. Raises `OSError`."""
    with contextlib.suppress(FileExistsError):
        os.close(_made(str(path), 0o600))


@contextlib.contextmanager
def settled_folder(folder: Path) -> Iterator[Path]:
    """A path that leads to this very folder while the block lasts, whatever becomes of its name: made where it is
    missing, reached through no link of another user's. Raises `OSError`."""
    descriptor = os.open("/", _PASSED | os.O_DIRECTORY)
    parts = deque(part for part in folder.absolute().parts[1:] if part != ".")
    links = 0
    try:
        while parts:
            part = parts.popleft()
            if part == "..":
                descriptor = _instead(descriptor, os.open("..", _PASSED | os.O_DIRECTORY, dir_fd=descriptor))
                continue
            with contextlib.suppress(FileExistsError, PermissionError):
                if not _there(part, descriptor):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            following = os.open(part, _PASSED, dir_fd=descriptor)
            status = os.fstat(following)
            if not stat.S_ISLNK(status.st_mode):
                descriptor = _instead(descriptor, following)
                continue
            os.close(following)
            links += 1
            if links > _MOST_LINKS or status.st_uid not in (0, os.geteuid()):
                raise OSError(errno.ELOOP, "a link of another user is in the way", str(folder))
            target = Path(os.readlink(part, dir_fd=descriptor))
            if target.is_absolute():
                descriptor = _instead(descriptor, os.open("/", _PASSED | os.O_DIRECTORY))
            parts.extendleft(reversed([each for each in target.parts if each != "/"]))
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file that was not there, of exactly this mode. Raises `OSError`, `FileExistsError` for whatever has the name, a
    link as well."""
    descriptor = _made(str(path), 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        os.fchmod(descriptor, mode)


def is_own_file(path: Path) -> bool:
    """A plain file of whoever runs this, under this name alone: it may be replaced."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def _made(path: str, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def _there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _instead(before: int, after: int) -> int:
    os.close(before)
    return after


# What lies there already: whose it is, and who else may read or change it.


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something of the state folder that others can read or change, or that another user has put there."""

    path: Path
    why: str
    mode: int | None = None
    """The mode that mends it; None: a person has to look."""


def wrong_in(root: Path, apart: Path | None = None) -> Iterator[Wrong]:
    """What is wrong in a state folder and all below it, but for `apart`. Folders may be passed through by all
    and listed by their owner alone, files are their owner's alone; that is the folder's, or the job's for a patched
    copy. Raises `OSError`."""
    status = root.stat()
    yield from _folder_wrong(root, status)
    owner = status.st_uid
    if owner not in (0, os.geteuid()) and os.geteuid() != 0:
        yield Wrong(root, f"it belongs to user {owner}, not to you")
    folders, roots = [root], set[Path]()
    while folders:
        folder = folders.pop()
        if folder in roots and not os.access(folder, os.R_OK | os.X_OK):
            continue  # root's alone, as after a `canary` of root: what nobody can list or pass through is private
        with os.scandir(folder) as entries:
            for entry in entries:
                path, found = Path(entry.path), entry.stat(follow_symlinks=False)
                if path == apart:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    folders.append(path)
                    roots |= {path} if found.st_uid == 0 else set()
                    yield from _folder_wrong(path, found)
                    yield from _owner_wrong(path, found.st_uid, owner)
                elif not stat.S_ISREG(found.st_mode):
                    yield Wrong(path, "it is neither a file nor a folder, and nothing here makes such a thing")
                else:
                    # Where somebody was let read, the group's bits are those of the list's mask.
                    let = 0o040 if "attempts" in path.parts and reader_of(path) is not None else 0
                    if stat.S_IMODE(found.st_mode) & ~(0o700 | let):
                        yield _open_to_others(path, found, 0o700)
                    if "attempts" not in path.parts:
                        yield from _owner_wrong(path, found.st_uid, owner)


def mend(wrong: Wrong) -> None:
    """Give the mode. Nothing is followed, and a file with a second name is left. Raises `OSError`."""
    if wrong.mode is None:
        return
    descriptor = os.open(wrong.path, _PASSED)
    try:
        status = os.fstat(descriptor)
        several = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        if several or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise OSError(errno.EPERM, "it is not what it was, or has a second name", str(wrong.path))
        Path(f"/proc/self/fd/{descriptor}").chmod(wrong.mode)
    finally:
        os.close(descriptor)


def _folder_wrong(path: Path, status: os.stat_result) -> Iterator[Wrong]:
    allowed = 0o700 if path.name == "evidence" else FOLDER_MODE
    if stat.S_IMODE(status.st_mode) & ~allowed & 0o777:
        yield _open_to_others(path, status, allowed)


def _open_to_others(path: Path, status: os.stat_result, allowed: int) -> Wrong:
    mode = stat.S_IMODE(status.st_mode)
    return Wrong(path, f"others can read or change it (mode {mode:04o})", mode & allowed)


def _owner_wrong(path: Path, found: int, wanted: int) -> Iterator[Wrong]:
    if found not in (0, wanted):
        yield Wrong(path, f"it belongs to user {found}, the state folder to user {wanted}")


# One at a time across processes: a lock that a child keeps for as long as it lives, even when we are killed.

_POLL_S = 0.05


def _lockable(path: Path) -> int:
    """A descriptor that can be locked. For reading where that is enough, as the owner's process inherits it and may
    write what it can be written to; NFS locks nothing that is open for reading alone."""
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, os.O_RDONLY | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        return os.open(path, os.O_RDWR | flags, 0o600)
    return descriptor


class Locked(Unavailable):
    """Another process has the lock."""


@contextlib.contextmanager
def process_lock(folder: Path, name: str, timeout_s: float) -> Iterator[int]:
    """Hold the lock of `name` and yield its descriptor, to be handed to the child that acts.

    The kernel keeps an flock until the last process that inherited the descriptor has ended. So whoever resumes after
    a kill waits here until an orphaned `sbatch` is done, and then finds what it submitted. Raises `Locked` when that
    takes longer than `timeout_s`, and `Unavailable` where no lock can be made."""
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
    try:
        private_folder(folder, 0o700)
        descriptor = _lockable(path)
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
                    raise Locked(
                        f"an earlier submission of {name} has not ended yet",
                        where=str(path),
                        next_step="look for an sbatch process that hangs, then try again",
                    ) from None
                time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)
