"""Acting as another local user: who that is, how a process becomes them, and what to allow when we cannot."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runbook.errors import NotAllowed
from runbook.model.units import UserName

LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def program_on_path(name: str, then: str = LOGIN_PATH) -> str | None:
    """Full path of a program: on this process' PATH, then on `then`. An empty or relative entry of the PATH
    would mean the working folder, which may be anybody's: such entries count for nothing."""
    entries = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    return shutil.which(name, path=os.pathsep.join((*entries, *filter(None, [then])))) if entries or then else None


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of this machine with everything that the kernel needs to run a process as them."""

    name: UserName
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def login_environment(self) -> dict[str, str]:
        """What a fresh login has at the least. Nothing of our own environment is in it."""
        return {
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "LOGNAME": self.name,
            "PATH": LOGIN_PATH,
            "SHELL": self.shell or "/bin/sh",
            "USER": self.name,
        }


class PrivilegeMode(StrEnum):
    """How a process gets another user's rights."""

    SAME = "same user"
    ROOT = "setuid from root"
    SUDO = "sudo -n"


def identity_of(user: UserName) -> Identity:
    """The local account of a job's owner. Raises `NotAllowed` when this machine does not know the user."""
    try:
        return _identity(pwd.getpwnam(user))
    except (KeyError, ValueError) as error:
        raise _nobody(user) from error


def identity_of_uid(uid: int) -> Identity:
    """The local account with this number. Raises `NotAllowed` when there is none."""
    try:
        return _identity(pwd.getpwuid(uid))
    except KeyError as error:
        raise _nobody(uid) from error


def _nobody(user: str | int) -> NotAllowed:
    return NotAllowed(
        f"this machine has no user {user!r}",
        where="the system's user database (getent passwd)",
        next_step="run on a machine that knows the cluster's users",
    )


def current_identity() -> Identity:
    """The user that this process runs as."""
    uid = os.geteuid()
    try:
        return _identity(pwd.getpwuid(uid))
    except KeyError:
        # Containers run as numbers without an account: the process still has one identity.
        home = os.environ.get("HOME", "/")
        return Identity(UserName(str(uid)), uid, os.getegid(), tuple(os.getgroups()), home, "/bin/sh")


def privilege_mode(identity: Identity) -> PrivilegeMode:
    """How to become `identity`; whether sudo really lets us is only known once it has been tried."""
    if identity.uid == os.geteuid():
        return PrivilegeMode.SAME
    return PrivilegeMode.ROOT if os.geteuid() == 0 else PrivilegeMode.SUDO


def sudo_refused(identity: Identity, words: str) -> NotAllowed:
    """The error when sudo does not let us act as `identity`, with the line that would."""
    ours = current_identity().name
    return NotAllowed(
        f"may not act as user {identity.name}" + (f": {words}" if words else ""),
        where=f"sudo -n -u {identity.name}, run by {ours}",
        next_step=(
            f"let an administrator add to /etc/sudoers.d/runbook: `{ours} ALL=({identity.name}) NOPASSWD: ALL`, "
            f"or run as root or as {identity.name}"
        ),
    )


def stage_interpreter() -> str:
    """A Python that other users can run too: ours may lie in a private folder, the system's does not."""
    for candidate in (getattr(sys, "_base_executable", "") or sys.executable, "/usr/bin/python3"):
        if candidate and _reachable_by_all(Path(candidate)):
            return candidate
    return sys.executable


def _reachable_by_all(path: Path) -> bool:
    try:
        real = path.resolve(strict=True)
        return all(part.stat().st_mode & stat.S_IXOTH for part in (real, *real.parents))
    except OSError:
        return False


def _identity(entry: pwd.struct_passwd) -> Identity:
    try:
        groups = tuple(sorted(set(os.getgrouplist(entry.pw_name, entry.pw_gid))))
    except OSError:
        groups = (entry.pw_gid,)
    return Identity(
        name=UserName(entry.pw_name),
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=groups,
        home=entry.pw_dir,
        shell=entry.pw_shell,
    )
