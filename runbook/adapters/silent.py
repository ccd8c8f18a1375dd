"""File systems that do not answer: who waits for one is given up after a while, and little more is asked of it.

A process that waits in the kernel for a file system cannot be ended by anybody but that file system. So such waiting is
done by helpers, never by whoever must go on. Helpers that were given up are counted by owner and mount; beyond a few,
nothing more is read there until some of them are gone."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from typing import TypeVar

from runbook.errors import Hung

PATIENCE_S = 20.0
"""For one answer of a file system."""
MOST_AN_OWNER = 4
"""Helpers of one owner's files that were given up and are still there."""
_MOST_A_MOUNT = 16
_TRIALS = 2
"""Reads at a time of a mount that did not answer the last one, of one owner not more than one: whoever reads elsewhere
finds places, and who planted a link into a mount of his own keeps nobody from the mount where the link lies."""
_SELDOM_S = 60.0
"""Between two trials of a mount where too many were given up."""
_SLOW_S = 300.0
"""An owner whose files did not answer in time counts as slow for so long."""
_SLOW_ANSWER_S = 5.0
_ESCAPED = re.compile(r"\\([0-7]{3})")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Mount:
    """As the kernel lists it."""

    point: str
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind} {self.source})"


def mount_of(path: str) -> Mount:
    """The mount that a path lies on by its words alone: links are not followed, as that would ask the file system."""
    best, path = Mount("/", "unknown", "unknown"), os.path.abspath(path)  # noqa: PTH100
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            # 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw
            before, _, after = line.partition(" - ")
            places, kinds = before.split(" "), after.split(" ")
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), places[4])
            if len(point) >= len(best.point) and PurePosixPath(path).is_relative_to(point):
                best = Mount(point, kinds[0], _ESCAPED.sub(lambda found: chr(int(found[1], 8)), kinds[1]))
    return best


def hung(path: str, limit_s: float) -> Hung:
    """The error of a file system that did not answer in time."""
    return Hung(
        f"the file system of {path} did not answer within {limit_s:g} s", where=path,
        next_step=f"see whether what is mounted at {mount_of(path)} answers there and on its server",
    )


@dataclass
class _Silent:
    """A mount that did not answer the last question."""

    of: set[str] = field(default_factory=set)
    """Owners whose questions were not answered. A stopped helper looks the same, and any owner can stop his: an owner
    who had none of these is asked for, whatever became of others', until many helpers could not even be ended."""
    trying: set[str] = field(default_factory=set)
    tried_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Left:
    owner: str
    mount: str
    gone: Callable[[], bool]


@dataclass
class FileSystems:
    """What is known of them by those who read; for any number of threads."""

    _silent: dict[str, _Silent] = field(default_factory=dict, init=False, repr=False)
    _hung_s: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """By owner: when a question was not answered last, or late."""
    _left: list[_Left] = field(default_factory=list, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @contextlib.contextmanager
    def asked(self, path: str, owner: str) -> Iterator[None]:
        """While the file system of a path is asked for an owner. Raises `Hung` at once where enough wait for it."""
        mount, asked_s = mount_of(path).point, time.monotonic()
        with self._lock:
            self._check(path, owner, mount)
            if (silent := self._silent.get(mount)) is not None:
                silent.trying.add(owner)
                silent.tried_s = time.monotonic()
        try:
            yield
        except Hung:
            with self._lock:
                self._hung_s[owner] = time.monotonic()
                silent = self._silent.setdefault(mount, _Silent(tried_s=time.monotonic()))
                silent.trying.discard(owner)
                silent.of.add(owner)
            raise
        except BaseException:
            self._answered(mount, owner, asked_s)
            raise
        self._answered(mount, owner, asked_s)

    def took_long(self, owner: str) -> None:
        """An owner's files did, in one answer or in all."""
        with self._lock:
            self._hung_s[owner] = time.monotonic()

    def given_up(self, path: str, owner: str, gone: Callable[[], bool]) -> None:
        """A helper that waits for a path could not be ended. `gone` says later whether it is, without waiting."""
        with self._lock:
            self._left.append(_Left(owner, mount_of(path).point, gone))

    def slow(self, owner: str) -> bool:
        """Whether a question for this owner's files was not answered a moment ago, or late. Answers since then change
        nothing: who stops some of his own processes lets others go on."""
        with self._lock:
            return time.monotonic() - self._hung_s.get(owner, -math.inf) < _SLOW_S

    def waiting(self) -> tuple[str, ...]:
        """Those that were given up and are still there, in words by owner and mount."""
        with self._lock:
            self._prune()
            pairs = [(one.owner, one.mount) for one in self._left]
        return tuple(
            f"{pairs.count(pair)} of {pair[0]} for {pair[1]}" for pair in sorted(set(pairs))
        )

    @property
    def left(self) -> int:
        """How many were given up and are still there."""
        with self._lock:
            self._prune()
            return len(self._left)

    def _answered(self, mount: str, owner: str, asked_s: float) -> None:
        with self._lock:
            self._silent.pop(mount, None)
        if time.monotonic() - asked_s >= _SLOW_ANSWER_S:
            self.took_long(owner)

    def _check(self, path: str, owner: str, mount: str) -> None:
        self._prune()
        of_owner = sum(one.owner == owner for one in self._left)
        if of_owner >= MOST_AN_OWNER:
            raise Hung(
                f"the file system of {path} is not asked: {of_owner} earlier reads of {owner}'s files still wait for "
                "file systems that do not answer",
                where=path,
                next_step=f"see whether what is mounted at {mount_of(path)} answers there and on its server, and where "
                "else this user's files lie",
            )
        silent = self._silent.get(mount)
        if silent is None:
            return
        many = sum(one.mount == mount for one in self._left) >= _MOST_A_MOUNT
        seldom = many and time.monotonic() - silent.tried_s < _SELDOM_S
        if owner not in silent.of and not many:
            return
        if owner in silent.trying or len(silent.trying & silent.of) >= _TRIALS or seldom:
            raise Hung(
                f"the file system of {path} did not answer others a moment ago", where=path,
                next_step=f"see whether what is mounted at {mount_of(path)} answers there and on its server",
            )

    def _prune(self) -> None:
        self._left = [one for one in self._left if not one.gone()]


class _Helper:
    """A thread that does what may never come back; forgotten with whoever asks it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.pid = os.getpid()
        threading.Thread(target=_toil, args=(self._work,), name="runbook-files", daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def __del__(self) -> None:
        self._work.put(None)


def _toil(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := tasks.get()) is not None:
        work()


_HELPERS = threading.local()


def within(limit_s: float, path: str, work: Callable[[], _T]) -> _T:
    """What `work` gives, done in a thread that may be left behind. Raises `Hung`, and what `work` raises."""
    done: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()

    def attempt() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))

    helper = getattr(_HELPERS, "helper", None)
    if helper is None or helper.pid != os.getpid():  # a fork has no thread of its parent's
        helper = _HELPERS.helper = _Helper()
    helper.do(attempt)
    try:
        result, error = done.get(timeout=limit_s)
    except Empty:
        _HELPERS.helper = None
        raise hung(path, limit_s) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def each_within(limit_s: float, path: str, items: Callable[[], Iterator[_T]]) -> Iterator[_T]:
    """What an iterator gives, which is gone through in a thread that may be left behind. Raises `Hung` where the next
    one takes longer than that, and what the iterator raises."""
    done: SimpleQueue[tuple[tuple[_T, ...], BaseException | None]] = SimpleQueue()

    def go() -> None:
        try:
            for item in items():
                done.put(((item,), None))
            done.put(((), None))
        except BaseException as error:  # handed to whoever waits
            done.put(((), error))

    threading.Thread(target=go, name="runbook-files", daemon=True).start()
    while True:
        try:
            found, error = done.get(timeout=limit_s)
        except Empty:
            raise hung(path, limit_s) from None
        if error is not None:
            raise error
        if not found:
            return
        yield found[0]


def must_answer(*paths: str | Path, limit_s: float = PATIENCE_S) -> None:
    """Raises `Hung` where the file system of one of them does not say what it is, or does not list it where it is a
    folder, or does not give a file's first byte. What is wrong with it otherwise, whoever opens it says."""
    for path in paths:
        within(limit_s, str(path), partial(_look_at, str(path)))


def _look_at(path: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        mode = os.stat(path).st_mode  # noqa: PTH116
        if stat.S_ISDIR(mode):
            with os.scandir(path) as entries:
                next(entries, None)
        elif stat.S_ISREG(mode):
            with open(path, "rb", buffering=0) as stream:
                stream.read(1)


def next_data(descriptor: int, offset: int, size: int) -> int:
    """Where a file has blocks from an offset on, `size` where it has none; the offset itself on a file system that
    cannot say. The descriptor's own position stays."""
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset
    finally:
        os.lseek(descriptor, here, os.SEEK_SET)


class PlainFile(io.FileIO):
    """A regular file that is open for reading, of which several threads may read any part at a time."""

    def __init__(self, file: int | str | Path) -> None:
        """A descriptor or a path."""
        super().__init__(file, "rb")
        self.size_bytes = os.fstat(self.fileno()).st_size

    def read_at(self, buffer: memoryview, offset: int) -> int:
        """Bytes from an offset, wherever the stream itself stands."""
        return os.preadv(self.fileno(), [buffer], offset)

    def next_data(self, offset: int) -> int:
        """Where there are blocks from an offset on."""
        return next_data(self.fileno(), offset, self.size_bytes)


class PatientFile(PlainFile):
    """A file whose reading and closing wait for its file system only so long, and then raise `Hung`."""

    _silent = False

    def __init__(self, descriptor: int, path: str, limit_s: float) -> None:
        """The descriptor is taken over."""
        self._path, self._limit_s = path, limit_s
        self._asked(lambda: PlainFile.__init__(self, descriptor))

    def _asked(self, work: Callable[[], _T]) -> _T:
        try:
            return within(self._limit_s, self._path, work)
        except Hung:
            self._silent = True
            raise

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._asked(lambda: PlainFile.readinto(self, buffer))

    def read(self, size: int | None = -1) -> bytes:
        return self._asked(lambda: PlainFile.read(self, -1 if size is None else size))

    def readall(self) -> bytes:
        return self._asked(lambda: PlainFile.readall(self))

    def read_at(self, buffer: memoryview, offset: int) -> int:
        return self._asked(lambda: PlainFile.read_at(self, buffer, offset))

    def next_data(self, offset: int) -> int:
        return self._asked(lambda: PlainFile.next_data(self, offset))

    def close(self) -> None:
        """A file that did not answer is left open: whoever waits for it still has it."""
        if sys.is_finalizing():
            super().close()
        elif not self.closed and not self._silent:
            self._asked(lambda: PlainFile.close(self))
