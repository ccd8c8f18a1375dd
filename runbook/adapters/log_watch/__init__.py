"""Following the ends of running jobs' logs: the processes that do it (`follower`), started, asked, replaced.

A file system that does not answer holds the process that asks it, and with it every job that it follows. So one that is
held for `HELD_S` is given up and replaced, and the job at which it was held is left out for a while.

Where the service is not root the process is one of the owner's, who may stop it, or have another speak in its place.
So nobody waits for it to take a request, what it says is counted, and of a job its latest word alone is kept. One that
does not do its part is ended, and its owner's jobs are left out for a while.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import queue
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from runbook.adapters import process
from runbook.adapters.identity import Identity, current_identity, identity_of
from runbook.adapters.log_watch import follower
from runbook.adapters.metrics import WatchFigures
from runbook.errors import RunbookError, Unavailable
from runbook.model.units import JobId, UserName
from runbook.ports import Clock

LOG = logging.getLogger("runbook.watch")
HELD_S = 20.0
_SILENT_S = 30.0
"""A process that tells nothing for so long is no longer there in earnest."""
_LEFT_OUT_S = 900.0
MOST_HELD = 8
"""Processes that hang in the kernel and cannot be ended; with so many the watch is over until they are gone."""
_MOST_HELD_OF_ONE = 2
_MOST_LINE_BYTES = 1 << 16
_MOST_NAMED = 5
_MOST_LINES = 100
"""In a second, and one more for each job: all may fail at once."""
_MOST_FILES_TOLD = 1 << 20
_LONGEST_ROUND_TOLD_S = 3600.0
MOST_PATH_BYTES = 64 << 20
"""Of the logs of all jobs that are followed, with what else a file takes. One owner has a third of what the others
leave: how long a path is, and how many tasks write to one each, is his to choose."""
_SHARE = 3
_LEAST_OF_ONE = 1 << 20
_EACH_FILE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A job that wrote a word of a memory failure; or, where `line` is empty, one that went on since."""

    job: JobId
    line: str = ""


@dataclass(slots=True)
class _Followed:
    owner: UserName
    paths: tuple[str, ...]
    size_bytes: int = 0
    """Of the paths, as they count."""
    cut: int = 0
    """Files that are not followed, as its owner's paths take too much."""
    left_out_until_s: float = 0.0


@dataclass
class _Child:
    """One process, and what it told."""

    started: subprocess.Popen[bytes]
    line: socket.socket
    identity: Identity
    heard_s: float
    woken: threading.Event
    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: set[JobId] = field(default_factory=set)
    """That it was told to follow. What it says of others is not believed."""
    told: dict[JobId, Suspicion] = field(default_factory=dict)
    """The latest word on each job."""
    requests: queue.SimpleQueue[tuple[float, bytes]] = field(default_factory=queue.SimpleQueue)
    taking_s: float = math.inf
    """When the request was made that it has not taken yet."""
    fault: str = ""
    """What it does that is none of our program's ways."""
    at: str = ""
    at_s: float = 0.0
    files: int = 0
    round_s: float = 0.0

    def tell(self, what: dict[str, Any], now_s: float) -> None:
        """Nobody waits until it takes it."""
        self.requests.put((now_s, json.dumps(what).encode("ascii") + b"\n"))

    def follow(self, job: JobId, what: dict[str, Any], now_s: float) -> None:
        with self.lock:
            self.jobs.add(job)
        self.tell({"follow": job, **what}, now_s)

    def forget(self, job: JobId, now_s: float) -> None:
        with self.lock:
            self.jobs.discard(job)
            self.told.pop(job, None)
        self.tell({"forget": job}, now_s)

    def speak(self) -> None:
        """Requests, as it takes them, until an empty one or its end."""
        with contextlib.suppress(OSError):
            while (request := self.requests.get())[1]:
                self.taking_s = request[0]
                self.line.sendall(request[1])
                self.taking_s = math.inf

    def listen(self, clock: Clock) -> None:
        """Until it ends. A process of the owner's may say what it likes: what is no answer of ours ends it."""
        ends = contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
        second_s, lines = clock.elapsed(), 0
        with self.line.makefile("rb") as stream, ends:
            while read := stream.readline(_MOST_LINE_BYTES):
                now_s = clock.elapsed()
                if now_s - second_s >= 1.0:
                    second_s, lines = now_s, 0
                lines += 1
                if lines > _MOST_LINES + len(self.jobs):
                    self.fault = "it tells more than our program would"
                    return
                said = json.loads(read)
                with self.lock:
                    self.heard_s = now_s
                    if "suspected" in said:
                        self._keep(Suspicion(JobId(str(said["suspected"])), str(said["line"])[:300] or "?"))
                    elif "went_on" in said:
                        self._keep(Suspicion(JobId(str(said["went_on"]))))
                    else:
                        self.at, self.at_s = str(said["at"]), float(said["at_s"])
                        self.files = min(max(int(said["files"]), 0), _MOST_FILES_TOLD)
                        self.round_s = min(max(float(said["took_s"]), 0.0), _LONGEST_ROUND_TOLD_S)

    def _keep(self, word: Suspicion) -> None:
        if word.job in self.jobs:
            self.told[word.job] = word
            self.woken.set()


class LogFollowers:
    """Not for several threads at once. `words`: what a memory failure's line holds; `unknown_s`: how long a job may be
    still of which no rhythm is known."""

    def __init__(self, words: Sequence[str], unknown_s: float, clock: Clock, *, pause_s: float = 1.0) -> None:
        self._first = {"words": sorted(words), "unknown_s": unknown_s, "pause_s": pause_s}
        self._clock = clock
        self._jobs: dict[JobId, _Followed] = {}
        self._children: dict[str, _Child] = {}
        self._held: list[tuple[_Child, UserName]] = []
        """Processes that could not be ended, and whose files hold each."""
        self.woken = threading.Event()
        """Set when something is told; whoever waits for it clears it."""
        self._paused_until_s: dict[UserName, float] = {}
        """Owners whose process did not do its part."""

    def follow(self, job: JobId, owner: UserName, paths: Sequence[str]) -> None:
        """From now on; as many of the paths, the first ones, as the owner has room for. Raises `NotAllowed` where the
        owner's rights cannot be had, `Unavailable`."""
        followed = self._fitting(job, owner, [path for path in paths if path.startswith("/")])
        before = self._jobs.get(job)
        if before is not None and (before.owner, before.paths) == (owner, followed.paths):
            before.cut = followed.cut
            return
        followed.left_out_until_s = self._none_until_s(owner, self._clock.elapsed())
        if not followed.left_out_until_s:
            self._tell_of(job, followed)
        self._jobs[job] = followed

    def _fitting(self, job: JobId, owner: UserName, paths: Sequence[str]) -> _Followed:
        sizes: Counter[UserName] = Counter()
        for other, followed in self._jobs.items():
            if other != job:
                sizes[followed.owner] += followed.size_bytes
        mine = sizes.pop(owner, 0)
        room, taken, count = max((MOST_PATH_BYTES - sizes.total()) // _SHARE, _LEAST_OF_ONE) - mine, 0, 0
        for path in paths:
            size_bytes = len(path.encode("utf-8", "surrogateescape")) + _EACH_FILE_BYTES
            if taken + size_bytes > room:
                break
            taken += size_bytes
            count += 1
        return _Followed(owner, tuple(paths[:count]), taken, len(paths) - count)

    def problem(self) -> str:
        """Whose jobs' logs are not all followed; "" where all are."""
        owners = sorted({followed.owner for followed in self._jobs.values() if followed.cut})[:_MOST_NAMED]
        # Without numbers, which change: it is said once.
        words = f"not all logs of jobs of {', '.join(owners)} are watched: their paths take more than one may have"
        return words if owners else ""

    def forget(self, job: JobId) -> tuple[JobId, ...]:
        """Returns the jobs of the same owner of which not all logs are followed: there may be room for more now."""
        followed = self._jobs.pop(job, None)
        if followed is None:
            return ()
        if child := self._children.get(self._key(followed.owner)):
            child.forget(job, self._clock.elapsed())
        return tuple(name for name, one in self._jobs.items() if one.cut and one.owner == followed.owner)

    def look(self) -> tuple[Suspicion, ...]:
        """What was told since, and a process that is held or has ended replaced. Raises `Unavailable` where too many
        are held."""
        now_s = self._clock.elapsed()
        told: list[Suspicion] = []
        for key, child in list(self._children.items()):
            with child.lock:
                told += [one for one in child.told.values() if self._is_followed(one.job, key)]
                child.told.clear()
                held = child.at if child.at and child.at_s > HELD_S else ""
                silent = now_s - child.heard_s > _SILENT_S
            fault = child.fault or ("it takes no requests" if now_s - child.taking_s > HELD_S else "")
            if held or silent or fault or child.started.poll() is not None:
                del self._children[key]
                at = JobId(held) if self._is_followed(JobId(held), key) else JobId("")
                self._end(child, self._jobs[at].owner if at else UserName(key))
                self._leave_out(at, now_s)
                if fault and key:
                    self._pause(UserName(key), fault, now_s)
                self._again(key)
        again = set()
        for followed in self._jobs.values():
            if 0 < followed.left_out_until_s <= now_s and not self._none_until_s(followed.owner, now_s):
                followed.left_out_until_s = 0.0
                again.add(self._key(followed.owner))
        for key in again:
            self._again(key)
        self._held = [(child, owner) for child, owner in self._held if child.started.poll() is None]
        if len(self._held) >= MOST_HELD:
            raise Unavailable(
                f"{len(self._held)} processes that followed logs hang in a file system",
                next_step="see `runbook doctor`",
            )
        return tuple(told)

    def figures(self) -> WatchFigures:
        children = list(self._children.values())
        return WatchFigures(
            jobs=len(self._jobs), files=sum(child.files for child in children),
            round_s=max((child.round_s for child in children), default=0.0),
            held=sum(followed.left_out_until_s > 0 for followed in self._jobs.values()),
        )

    def close(self) -> None:
        for child in self._children.values():
            self._end(child)
        self._children.clear()

    def _is_followed(self, job: JobId, key: str) -> bool:
        return job in self._jobs and self._key(self._jobs[job].owner) == key

    @staticmethod
    def _key(owner: UserName) -> str:
        """Whose process follows an owner's jobs: root's own is one for all."""
        return "" if os.geteuid() == 0 else owner

    def _again(self, key: str) -> None:
        """The jobs of a process that was replaced, or that are no longer left out, told anew."""
        for job, followed in self._jobs.items():
            if self._key(followed.owner) == key and not followed.left_out_until_s:
                try:
                    self._tell_of(job, followed)
                except RunbookError as error:
                    LOG.warning("the logs of job %s are not followed: %s", job, error.what)

    def _leave_out(self, job: JobId, now_s: float) -> None:
        if job in self._jobs:
            LOG.warning("the file system of the logs of job %s does not answer; it is left out for a while", job)
            owner = self._jobs[job].owner
            for other, followed in self._jobs.items():
                if other == job or (followed.owner == owner and self._none_until_s(owner, now_s)):
                    followed.left_out_until_s = now_s + _LEFT_OUT_S

    def _pause(self, owner: UserName, fault: str, now_s: float) -> None:
        LOG.warning("the process that follows the logs of user %s: %s; they are left out for a while", owner, fault)
        self._paused_until_s[owner] = now_s + _LEFT_OUT_S
        for followed in self._jobs.values():
            if followed.owner == owner:
                followed.left_out_until_s = now_s + _LEFT_OUT_S

    def _none_until_s(self, owner: UserName, now_s: float) -> float:
        """Until when no more is tried of an owner's, as his files hold many processes or his own did not do its part:
        others are followed on. 0.0: it is tried."""
        if sum(whose == owner for _, whose in self._held) >= _MOST_HELD_OF_ONE:
            return now_s + _LEFT_OUT_S
        until_s = self._paused_until_s.get(owner, 0.0)
        return until_s if until_s > now_s else 0.0

    def _tell_of(self, job: JobId, followed: _Followed) -> None:
        owner = identity_of(followed.owner)
        what = {
            "user": owner.uid, "group": owner.gid, "groups": list(owner.groups),
            "paths": [os.fsencode(path).hex() for path in followed.paths],
        }
        self._child(owner).follow(job, what, self._clock.elapsed())

    def _child(self, owner: Identity) -> _Child:
        key = self._key(owner.name)
        child = self._children.get(key)
        if child is None:
            identity = owner if key else current_identity()
            ours, theirs = socket.socketpair()
            with theirs:
                started = process.start_as(_source(), identity, theirs)
            child = _Child(started, ours, identity, self._clock.elapsed(), self.woken)
            child.tell(self._first, child.heard_s)
            threading.Thread(target=child.listen, args=(self._clock,), name="log-follower", daemon=True).start()
            threading.Thread(target=child.speak, name="log-requests", daemon=True).start()
            self._children[key] = child
        return child

    def _end(self, child: _Child, owner: UserName | None = None) -> None:
        gone = process.stop(child.started, child.identity)
        # Another process may hold the other end: the threads that wait for it end by this alone.
        with contextlib.suppress(OSError):
            child.line.shutdown(socket.SHUT_RDWR)
        child.requests.put((0.0, b""))
        child.line.close()
        for stream in (child.started.stdout, child.started.stderr):
            if stream is not None:
                stream.close()
        if not gone:
            self._held.append((child, owner or child.identity.name))


@cache
def _source() -> str:
    return inspect.getsource(follower)
