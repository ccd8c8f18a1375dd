"""The part of the watch that reads: it follows the ends of running jobs' logs; standard library only, sent as source to
a child.

The child is one process for all owners where the service is root: it takes on each owner's rights on files
(setfsuid(2), setfsgid(2), setgroups(2)) before it touches that owner's, so that the kernel decides with them; it stays
root's process, so that no user can signal, trace or slow it, and a user's own FUSE mount is closed to it. Elsewhere it
is a process of each owner's. It reads bytes, looks for fixed words in them, and runs nothing that it reads.

A file is asked for its size; only what it grew by is read, and of more than `MOST_READ_BYTES` the last part. Whatever
the number of files the child takes less than a fifth of a processor, which the owners share: an owner whose files cost
more than his share (a path of forty links costs milliseconds) is asked less often, in slices, and no other waits for
him.

A job is suspected when a word of a memory failure is written, and told of at once. One that is then seen to go on
writing, later than it ever paused of late (`Rhythm`), is not suspected any more: a failure that was caught and retried,
a warning, a word in a data set.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import re
import resource
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Owner = tuple[int, int, tuple[int, ...]]
"""User, group, groups."""

MOST_READ_BYTES = 256 << 10
"""Of one file in one round; a rank's last words are shorter by far."""
BEFORE_BYTES = 300
"""Read once more in front of what is new: a word may be cut in two."""
MOST_OF_A_PROCESSOR = 0.18
SLICE_S = 0.05
"""Of a processor, for one owner's files before another's turn."""
LONGEST_SLICE_S = 0.25
"""By the clock: a file system may be slow without any work."""
ASKED_AT_A_TIME = 16
LEAST_BETWEEN_ROUNDS_S = 0.05
LEAST_PAUSES = 5
"""A job that wrote less often than this has no rhythm yet."""
LEAST_QUIET_S = 3.0
LONGEST_QUIET_S = 900.0
LONGER_THAN_EVER = 1.5
GONE_ON = 3
"""Rounds in which a suspected job was seen to write after the time that it would be still."""
MOST_FILES = 4096
"""Of one job."""
MOST_MEMORY_BYTES = 512 << 20
"""Addresses of a process that is an owner's: 64,000 files take half of it."""

CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID = 1, 2, 6, 7


class Rhythm:
    """When a job writes: the pauses between rounds in which any of its files grew, the last 64."""

    def __init__(self, unknown_s: float) -> None:
        self.unknown_s = unknown_s
        self.pauses: deque[float] = deque(maxlen=64)
        self.last_s: float | None = None

    def wrote(self, now_s: float) -> None:
        if self.last_s is not None and now_s > self.last_s:
            self.pauses.append(now_s - self.last_s)
        self.last_s = now_s

    def longest_s(self) -> float:
        """How long the job may be still before that is more than a pause."""
        if len(self.pauses) < LEAST_PAUSES:
            return self.unknown_s
        return min(max(LEAST_QUIET_S, LONGER_THAN_EVER * max(self.pauses)), LONGEST_QUIET_S)


class FollowedFile:
    __slots__ = ("grew_s", "path", "read_to", "size")

    def __init__(self, path: str) -> None:
        self.path, self.read_to, self.grew_s = path, 0, 0.0
        self.size: int | None = None


class FollowedJob:
    def __init__(self, job: str, owner: Owner, paths: Sequence[str], unknown_s: float) -> None:
        self.job, self.owner = job, owner
        self.files = [FollowedFile(path) for path in paths[:MOST_FILES]]
        self.rhythm = Rhythm(unknown_s)
        self.suspected_s: float | None = None
        """When the word was written; None: not suspected."""
        self.allowed_s = 0.0
        """How long it may be still, as its rhythm was when the word came."""
        self.gone_on = 0
        self.grew = False
        """Any of its files, of those asked this time so far."""
        self.tells: list[dict[str, Any]] = []

    def wrote(self, now_s: float) -> None:
        """Any of its files grew."""
        if self.suspected_s is not None and now_s - self.suspected_s > self.allowed_s:
            self.gone_on += 1
            if self.gone_on >= GONE_ON:
                self.suspected_s = None
                self.tells.append({"went_on": self.job})
        self.rhythm.wrote(now_s)

    def suspect(self, now_s: float, path: str, line: str) -> None:
        if self.suspected_s is None:
            self.suspected_s, self.allowed_s = now_s, self.rhythm.longest_s()
            self.gone_on = 0
            self.tells.append({"suspected": self.job, "path": path, "line": line})


class Share:
    """One owner's jobs, and what it costs to ask their files."""

    def __init__(self) -> None:
        self.jobs: dict[str, FollowedJob] = {}
        self.left: deque[tuple[str, int]] = deque()
        """Jobs that are still to be asked this time, each from one of its files on."""
        self.due_s = 0.0
        self.spent_s = self.cost_s = 0.0
        """Of a processor, so far and when all were asked the last time."""
        self.begun_s = self.took_s = 0.0
        """When asking them began, and how long it took the last time."""


class Follower:
    """All jobs that one process follows. `become(owner)` takes on an owner's rights."""

    def __init__(
        self, words: Sequence[str], unknown_s: float, become: Callable[[Owner | None], None], pause_s: float = 1.0
    ) -> None:
        self.words = re.compile(b"|".join(re.escape(word.encode()) for word in words))
        self.unknown_s = unknown_s
        self.become = become
        self.pause_s = pause_s
        """How often a file is asked where that costs little."""
        self.jobs: dict[str, FollowedJob] = {}
        self.shares: dict[Owner, Share] = {}
        self.at, self.at_since_s = "", 0.0
        """The job whose files are being asked: where it takes long, its file system does not answer."""

    def follow(self, job: str, owner: Owner, paths: Sequence[str]) -> None:
        self.forget(job)
        self.jobs[job] = FollowedJob(job, owner, paths, self.unknown_s)
        self.shares.setdefault(owner, Share()).jobs[job] = self.jobs[job]

    def forget(self, job: str) -> None:
        known = self.jobs.pop(job, None)
        if known is not None:
            del self.shares[known.owner].jobs[job]

    def round(self, now_s: float, time_s: float) -> list[dict[str, Any]]:
        """Ask the files of every owner who is due, read what is new. Returns what to tell. `now_s` only goes on;
        `time_s` is the time of day."""
        # An owner's debt outlives his last job.
        self.shares = {owner: share for owner, share in self.shares.items() if share.jobs or share.due_s > now_s}
        level = self._level()
        due = sorted((share for share in self.shares.values() if share.due_s <= now_s), key=lambda one: one.due_s)
        for share in due:
            self._go_on(share, level, now_s, time_s)
        self.become(None)
        self.at = ""
        told = [one for job in self.jobs.values() for one in job.tells]
        for job in self.jobs.values():
            job.tells = []
        return told

    def due_s(self, now_s: float) -> float:
        """When the next owner's files are to be asked."""
        return min((share.due_s for share in self.shares.values()), default=now_s + self.pause_s)

    def took_s(self) -> float:
        """How long it took to ask all files of the owner with whom it took longest."""
        return max((share.took_s for share in self.shares.values()), default=0.0)

    def files(self) -> int:
        return sum(len(job.files) for job in self.jobs.values())

    def _level(self) -> float:
        """What part of a processor one owner may take. Who wants less leaves the rest to the others."""
        left, wants = MOST_OF_A_PROCESSOR, len(self.shares)
        for cost_s in sorted(max(share.cost_s, share.spent_s) for share in self.shares.values()):
            if cost_s > self.pause_s * left / wants:
                return left / wants
            left -= cost_s / self.pause_s
            wants -= 1
        return MOST_OF_A_PROCESSOR

    def _go_on(self, share: Share, level: float, now_s: float, time_s: float) -> None:
        """Ask one owner's files where it was left off, for no longer than a slice: others wait behind it."""
        begun_s, until_s = time.thread_time(), time.monotonic() + LONGEST_SLICE_S
        if not share.left:
            share.left, share.begun_s = deque((job, 0) for job in share.jobs), time.monotonic()
        while share.left and time.thread_time() - begun_s < SLICE_S and time.monotonic() < until_s:
            name, first = share.left.popleft()
            job = share.jobs.get(name)
            if job is not None and first < len(job.files):
                self._enter(job)
                share.left.appendleft((name, self._ask(job, first, begun_s, until_s, now_s, time_s)))
        used_s = time.thread_time() - begun_s
        share.spent_s += used_s
        share.due_s = now_s + used_s / level
        if not share.left:
            share.cost_s, share.spent_s = share.spent_s, 0.0
            share.took_s = time.monotonic() - share.begun_s
            share.due_s = max(share.due_s, now_s + self.pause_s)

    def _enter(self, job: FollowedJob) -> None:
        self.at, self.at_since_s = job.job, time.monotonic()
        self.become(job.owner)

    def _ask(
        self, job: FollowedJob, first: int, begun_s: float, until_s: float, now_s: float, time_s: float
    ) -> int:
        """A few files of a job, of which what is new is read. Returns the next one's number."""
        if first == 0:
            job.grew = False
        unread = []
        for each in job.files[first:first + ASKED_AT_A_TIME]:
            first += 1
            job.grew |= self._grew(job, each, now_s, time_s)
            if each.size and each.read_to < each.size:
                unread.append(each)
            if time.thread_time() - begun_s >= SLICE_S or time.monotonic() >= until_s:
                break
        if job.grew and first >= len(job.files):
            job.wrote(now_s)
        for each in unread:
            self._read(job, each, now_s)
        return first

    def _grew(self, job: FollowedJob, each: FollowedFile, now_s: float, time_s: float) -> bool:
        try:
            status = os.stat(each.path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode) or planted(each.path, status.st_uid, job.owner[0]):
                return False
        except OSError:
            return False  # not there yet, or not its owner's to read: it is asked again
        before, each.size = each.size, status.st_size
        if before is None:
            # What stood there before was written when the file says so, as far as that can be.
            each.read_to = max(0, status.st_size - MOST_READ_BYTES)
            each.grew_s = now_s - min(max(time_s - status.st_mtime, 0.0), LONGEST_QUIET_S)
            if status.st_size:
                job.rhythm.last_s = max(job.rhythm.last_s or each.grew_s, each.grew_s)
            return False
        if status.st_size == before:
            return False
        each.grew_s = now_s
        if status.st_size < each.read_to:
            each.read_to = 0  # begun anew
        return True

    def _read(self, job: FollowedJob, each: FollowedFile, now_s: float) -> None:
        size = each.size or 0
        start = max(each.read_to, size - MOST_READ_BYTES)
        before = min(start, BEFORE_BYTES)
        each.read_to = size
        try:
            descriptor = os.open(each.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            status = os.fstat(descriptor)
            here = f"/proc/self/fd/{descriptor}"
            if not stat.S_ISREG(status.st_mode) or planted(here, status.st_uid, job.owner[0]):
                return
            data = os.pread(descriptor, before + size - start, start - before)
        except OSError:
            return
        finally:
            os.close(descriptor)
        for found in self.words.finditer(data):
            if found.end() > before:
                begin = data.rfind(b"\n", 0, found.start()) + 1
                line = data[begin: begin + 300].split(b"\n")[0].decode("utf-8", "replace")
                shown = "".join(char if char.isprintable() else " " for char in line)
                job.suspect(max(each.grew_s, now_s - LONGEST_QUIET_S), each.path, shown)
                break


def planted(path: str, user: int, owner: int) -> bool:
    """Whether a file is neither its job's owner's nor root's, below a folder in which anybody may make files: as
    `owner_side.planted`."""
    if user in (0, owner, os.geteuid()):
        return False
    path = os.path.realpath(path)
    while path != "/":
        path = os.path.dirname(path)  # noqa: PTH120
        if os.stat(path).st_mode & stat.S_IWOTH:  # noqa: PTH116
            return True
    return False


def _give_up_rights(libc: ctypes.CDLL) -> None:
    """setfsuid(2) takes on an owner's rights on files and leaves every other right of root's: with CAP_SYS_PTRACE
    /proc/PID/cwd and /proc/PID/root of anybody's process are ways into folders that are closed to that owner. What is
    left is what becoming an owner takes, and root's way into its own files. See capset(2). Ends this process where the
    kernel does not do it."""
    header, rights = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    kept = sum(1 << each for each in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID))
    if libc.capget(header, rights) != 0:
        os._exit(3)
    # Effective, permitted, inheritable; then the same of the upper 32.
    few = (ctypes.c_uint32 * 6)(rights[0] & kept, rights[1] & kept, 0, 0, 0, 0)
    if libc.capset(header, few) != 0:
        os._exit(3)


def becoming() -> Callable[[Owner | None], None]:
    """How this process takes on an owner's rights on files: root in earnest, and has none of its other rights then;
    anybody else not at all."""
    if os.geteuid() != 0:
        return lambda owner: None
    libc = ctypes.CDLL(None)
    libc.setfsuid.argtypes = libc.setfsgid.argtypes = [ctypes.c_uint]
    nobody = 0xFFFFFFFF
    """What no call sets: both answer what is in force."""
    now: list[Owner] = [(0, 0, ())]
    _give_up_rights(libc)

    def become(owner: Owner | None) -> None:
        """`owner`: user, group, groups; None: ourselves again. Ends this process where the kernel does not do it."""
        user, group, groups = owner or (0, 0, ())
        if (user, group, groups) == now[0]:
            return
        os.setgroups(list(groups))
        libc.setfsgid(group)
        libc.setfsuid(user)
        if (libc.setfsuid(nobody), libc.setfsgid(nobody)) != (user, group):
            os._exit(3)
        now[0] = (user, group, groups)

    return become


def main() -> NoReturn:
    line = socket.socket(fileno=0)
    asked = line.makefile("rb")
    first = json.loads(asked.readline())
    follower = Follower(first["words"], first["unknown_s"], becoming(), first["pause_s"])
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lock = threading.Lock()
    begun = {"rounds": 0.0, "took_s": 0.0}

    def tell(what: dict[str, Any]) -> None:
        with lock:
            line.sendall(json.dumps(what).encode("ascii") + b"\n")

    def report() -> NoReturn:
        while True:
            time.sleep(1.0)
            at, since_s = follower.at, follower.at_since_s
            tell({**begun, "files": follower.files(), "at": at, "at_s": time.monotonic() - since_s if at else 0.0})

    def listen() -> NoReturn:
        """Whatever ends the line ends this process, wherever its other threads wait: the service may have been killed,
        and the line is then reset where something that was told had not been read."""
        try:
            for read in asked:
                orders.put(json.loads(read))
        finally:
            os._exit(0)

    for work in (report, listen):
        threading.Thread(target=work, daemon=True).start()
    if os.geteuid() != 0:
        # What the owner's other processes could make of it, had they taken it over at its start: one process alone.
        limits = ((resource.RLIMIT_NPROC, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, MOST_MEMORY_BYTES))
        for what, most in limits:
            hard = resource.getrlimit(what)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (most, most))
    end_s = time.monotonic()
    while True:
        while True:
            try:
                said = orders.get(timeout=max(end_s - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if "follow" in said:
                owner = (said["user"], said["group"], tuple(said["groups"]))
                follower.follow(said["follow"], owner, [os.fsdecode(bytes.fromhex(path)) for path in said["paths"]])
            else:
                follower.forget(said["forget"])
        for told in follower.round(time.monotonic(), time.time()):
            tell(told)
        begun["rounds"] += 1
        begun["took_s"] = round(follower.took_s(), 6)
        now_s = time.monotonic()
        end_s = max(follower.due_s(now_s), now_s + LEAST_BETWEEN_ROUNDS_S)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
    # A thread that still tells or listens keeps nothing.
    os._exit(0)
