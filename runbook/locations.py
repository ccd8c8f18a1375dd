"""Where the documents are: beside the package when installed, at the repository's root in a checkout; where
libraries look for settings of their own; and which places of an inventory are nobody else's to write.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runbook.errors import NotAllowed

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder `playbooks`, `inventories`, `deploy` or `examples`, from wherever the package was installed."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def playbook_folder(chosen: Path | None = None) -> Path:
    """The playbook that is decided by: the folder that a person chose, else the one that is installed, of several the
    first by name."""
    return chosen or min(path.parent for path in data_folder("playbooks").glob("*/flow.yaml"))


@contextmanager
def without_a_home() -> Iterator[None]:
    """For imports: some libraries look into the home folder of whoever types a command as they are imported
    (ClusterShell for its settings, croniter by way of `file`), which holds the command up where the file system does
    not answer. How host lists are folded is no affair of a person's either; /etc/clustershell counts."""
    names = ("HOME", "XDG_CONFIG_HOME", "CLUSTERSHELL_CFGDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(kept)


def check_own(path: Path) -> None:
    """Raises `NotAllowed` where another user may write an inventory. It says which programs run, with the rights of
    whoever names it. So it, the folders above it and those behind a link on the way belong to root or to that user, and
    nobody else writes there (as sudo and ssh hold it). Whoever installed this program could have changed it anyway, and
    is believed too."""
    uid, groups = os.geteuid(), _own_groups()
    trusted = {0, uid, data_folder("inventories").stat().st_uid}
    whole = path.absolute()
    for place in dict.fromkeys((whole, *whole.parents, whole.resolve(), *whole.resolve().parents)):
        found = place.lstat()
        mode = 0 if stat.S_ISLNK(found.st_mode) else found.st_mode
        if mode & stat.S_ISVTX and stat.S_ISDIR(mode):
            mode = 0  # in such a folder nobody replaces what is another's
        others = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and found.st_gid not in groups)
        if found.st_uid not in trusted or others:
            whom = " and ".join(_owner(one) for one in sorted(trusted))
            raise NotAllowed(
                f"the inventory {path} is not used: others than {whom} may write it, and it says which programs run",
                where=f"{place} (owner {_owner(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o})",
                next_step="keep it where nobody else can write, as in /etc/runbook, or mend that place's owner or mode",
            )


def _own_groups() -> set[int]:
    """Root's, and of anybody else the one that has his name and nobody beside him."""
    if os.geteuid() == 0:
        return {0}
    try:
        group, user = grp.getgrgid(os.getegid()), pwd.getpwuid(os.geteuid())
    except KeyError:
        return {0}
    alone = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return {0, group.gr_gid} if alone else {0}


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
