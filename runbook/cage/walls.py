"""The walls of the cage: what a process may still do once it has given up everything else.

Which of them this machine has is found out by trying, and told: an identity of its own where we are root, no network,
no other processes (namespaces), no files (landlock), and limits, which every machine has. Whatever is missing is left
out; nothing is believed to be there that was not tried."""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import pwd
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import landlockpy

from runbook.errors import Unavailable

_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_FIRST_ID, _LAST_ID = 60_600, 61_183
"""Numbers that distributions leave unused: systemd's UIDS-GIDS has them as free. Nothing belongs to such a number and
no other process has it, so that nobody can signal or trace the box, and the box nobody. The owner's own number would
let the owner's other processes reach a process that holds a line to the service; nobody's belongs to several."""
MOST_AT_ONCE = 64
_MOST_TASKS = 128
"""Threads and processes of one box: it asks nodes on threads."""
_MOST_OPEN = 1024
_READ = landlockpy.AccessFS.READ_FILE | landlockpy.AccessFS.READ_DIR
"""Libraries are mapped without the right to start programs."""
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one box may use."""

    memory_bytes: int
    """Beyond what the warm process has."""
    cpu_s: int
    file_bytes: int
    """The largest file that it may write into: copies of logs are made in memory files."""


@dataclass(frozen=True, slots=True)
class Walls:
    """Those that this machine has."""

    ids: tuple[int, ...] = ()
    """Users and groups without an account, one for each box at work; () where we are not root: the box runs as us."""
    namespaces: int = 0
    """What each box gets of its own beside the network: flags of unshare(2)."""
    no_network: bool = False
    landlock: int = 0
    """Version of its interface; 0: the kernel has none."""

    @property
    def there(self) -> str:
        """For a person."""
        return ", ".join([
            f"as a user without an account ({self.ids[-1]} to {self.ids[0]})" if self.ids else "as the service's user",
            *(["without network"] if self.no_network else []),
            *(["seeing no other process"] if self.namespaces & _CLONE_NEWPID else []),
            *([f"without files (landlock {self.landlock})"] if self.landlock else []),
            "within limits of memory, CPU time and file size",
        ])

    @property
    def missing(self) -> tuple[str, ...]:
        """What another kernel would give."""
        return (*(() if self.no_network else ("a network of its own",)), *(() if self.landlock else ("landlock",)))


def raise_walls() -> Walls:
    """Called once by the warm process, before the first box: it and all its children lose the network here."""
    root = os.geteuid() == 0
    apart = _CLONE_NEWNET | _CLONE_NEWIPC
    no_network = _unshare(apart if root else apart | _CLONE_NEWUSER)
    pids = _CLONE_NEWPID if _works(_CLONE_NEWPID) else 0
    return Walls(_free_ids() if root else (), pids, no_network, _landlock())


def _landlock() -> int:
    try:
        return landlockpy.abi_version()
    except PermissionError:
        # systemd's list of calls is older than landlock (libseccomp before 2.5.2).
        return 0


def ruleset(walls: Walls, readable: Sequence[str]) -> landlockpy.Ruleset | None:
    """What landlock leaves: programs and libraries may be read, as some are only imported when they are needed."""
    if not walls.landlock:
        return None
    rules = landlockpy.Ruleset(scoped=landlockpy.Scope.ABSTRACT_UNIX_SOCKET | landlockpy.Scope.SIGNAL)
    for path in dict.fromkeys((*_LIBRARIES, *readable)):
        with contextlib.suppress(OSError):
            rules.allow_path(path, _READ)
    return rules


def enter_namespaces(walls: Walls) -> None:
    """For the next child of the caller, not for the caller itself."""
    if walls.namespaces:
        _unshare(walls.namespaces)


def shut(walls: Walls, rules: landlockpy.Ruleset | None, limits: Limits, slot: int) -> None:
    """Give everything up, for good. Called in the process that will be the box, before it reads anything."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # Where memory runs out, this process goes and not the service.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError):
        os.nice(5)
    base = _address_space_bytes()
    for kind, limit in (
        (resource.RLIMIT_AS, base + limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, _MOST_OPEN),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        *(((resource.RLIMIT_NPROC, _MOST_TASKS),) if walls.ids else ()),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    # A second more for the hard limit: the soft one's signal says what it was.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    os.umask(0o077)
    os.chdir("/")
    if walls.ids:
        own = walls.ids[slot % len(walls.ids)]
        os.setgroups([])
        os.setresgid(own, own, own)
        os.setresuid(own, own, own)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    if rules is not None:
        rules.restrict()


def die_with_parent() -> None:
    """For the process between: it ends the box when it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ids() -> tuple[int, ...]:
    free: list[int] = []
    for number in range(_LAST_ID, _FIRST_ID, -1):
        if _unknown(pwd.getpwuid, number) and _unknown(grp.getgrgid, number):
            free.append(number)
        if len(free) == MOST_AT_ONCE:
            return tuple(free)
    raise Unavailable(
        f"no {MOST_AT_ONCE} numbers from {_FIRST_ID} to {_LAST_ID} are free of accounts", where="getent passwd",
        next_step="run the service as a user of its own instead of root (deploy/systemd/README.md)",
    )


def _unknown(ask: object, number: int) -> bool:
    try:
        ask(number)  # type: ignore[operator]
    except KeyError:
        return True
    return False


def _works(flags: int) -> bool:
    """Tried in a child that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _unshare(flags) else 1)
    return os.waitpid(child, 0)[1] == 0


def _unshare(flags: int) -> bool:
    return bool(_libc().unshare(flags) == 0)


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


@cache
def _libc() -> ctypes.CDLL:
    """Opened once, in the warm process: each box and whoever stands before it would make one several times."""
    return ctypes.CDLL(None, use_errno=True)


def _address_space_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 12
