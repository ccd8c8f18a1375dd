"""A service user with a real sudoers file: it is laid over the machine's own for what is started here and nobody else,
in a mount namespace, so that nothing of it is left on the machine however the tests end."""

from __future__ import annotations

import os
import platform
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook.adapters.identity import stage_interpreter

SERVICE, OWNER, OTHER = "news", "games", "daemon"
"""Accounts that every Debian has: the service's, and those of two owners of jobs, whom it may become."""
_BECOMES = (
    'mount --bind "$1" /etc/sudoers; shift; '
    f'exec setpriv --reuid={SERVICE} --regid={SERVICE} --clear-groups "$@"'
)
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ServiceUser:
    folder: Path
    """Its own, which others may pass through."""

    def start(self, *python: str, stdout: int | None = None, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Python with these arguments, as this user."""
        words = ("unshare", "--mount", "sh", "-ec", _BECOMES, "sh", str(self.folder / "sudoers"), _interpreter())
        surroundings = environment(self.folder)
        return subprocess.Popen((*words, *python), cwd=_ROOT, env=surroundings, stdout=stdout, stderr=stderr)

    def own(self, name: str) -> Path:
        """A new folder of this user's."""
        made = self.folder / name
        made.mkdir(mode=0o700)
        give(made, SERVICE)
        return made


def give(path: Path, user: str) -> None:
    entry = pwd.getpwnam(user)
    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def _interpreter() -> str:
    """Python for any user of this machine, of the version of the libraries here."""
    python = stage_interpreter()
    version = subprocess.run((python, "--version"), capture_output=True, text=True, check=True).stdout.split()[1]
    if version.split(".")[:2] != platform.python_version().split(".")[:2]:
        pytest.skip(f"the Python that other users can run here is {version}")
    return python


def environment(home: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"],
        "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture
def service_user() -> Iterator[ServiceUser]:
    if os.geteuid() != 0:
        pytest.skip("becomes other users")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        sudoers = folder / "sudoers"
        sudoers.write_text(f"{SERVICE} ALL=({OWNER},{OTHER}) NOPASSWD: ALL\n")
        sudoers.chmod(0o440)
        yield ServiceUser(folder)
