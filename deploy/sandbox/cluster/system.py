"""Running commands, writing files and telling the user what goes on."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.settings import LOCK, SLURM_CONF


class SandboxError(Exception):
    """An expected problem: what went wrong and where, and what to do next."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.next_step = next_step


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A small environment for daemons and tools, so that the caller's shell stays out of the cluster."""
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "SLURM_CONF": str(SLURM_CONF),
    }
    environment.update(extra or {})
    return environment


def run(argv: Sequence[str], *, timeout_s: float = 60, stdin: str = "", next_step: str = "") -> str:
    """Run a command and return its stdout; a failure or a timeout is a SandboxError with its last words."""
    status, out, err = attempt(argv, timeout_s=timeout_s, stdin=stdin)
    if status != 0:
        words = (err.strip() or out.strip() or "no output").splitlines()
        raise SandboxError(
            f"`{' '.join(argv)}` ended with status {status}: {' / '.join(words[-3:])}",
            next_step or "correct the cause and run the same command again",
        )
    return out


def attempt(argv: Sequence[str], *, timeout_s: float = 60, stdin: str = "") -> tuple[int, str, str]:
    """Run a command; returns (exit status, stdout, stderr), 124 for a timeout, 127 for a missing command."""
    try:
        done = subprocess.run(
            tuple(argv),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=clean_environment(),
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout_s:g} s"
    except FileNotFoundError:
        return 127, "", f"command not found: {argv[0]}"
    return done.returncode, done.stdout, done.stderr


def write_file(path: Path, text: str, *, mode: int = 0o644, owner: str = "root", group: str | None = None) -> None:
    """Write a file by temporary file and rename, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, mode)
    shutil.chown(temporary, owner, group or owner)
    temporary.replace(path)


def make_directory(path: Path, *, mode: int = 0o755, owner: str = "root", group: str | None = None) -> None:
    """Make a directory with exactly this mode and owner, whether or not it stood already."""
    path.mkdir(parents=True, exist_ok=True)
    shutil.chown(path, owner, group or owner)
    os.chmod(path, mode)


def require_root() -> None:
    """Refuse to go on for anyone but root."""
    if os.geteuid() != 0:
        raise SandboxError(
            "the sandbox needs root: it makes network namespaces, users and cgroups",
            f"run it again as root, for example: sudo {' '.join(sys.argv)}",
        )


@contextmanager
def only_one() -> Iterator[None]:
    """Let one command at a time change the cluster; others wait their turn."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with LOCK.open("w", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for another sandbox command to finish", flush=True)
                fcntl.flock(stream, fcntl.LOCK_EX)
            # `down` removes the file; a lock on a removed file locks nobody out.
            if LOCK.exists() and LOCK.samefile(f"/proc/self/fd/{stream.fileno()}"):
                yield
                return


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Print one line for a phase of the work, with the seconds that it took."""
    started = time.monotonic()
    print(f"  {title:<44}", end="", flush=True)
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - started:5.1f} s", flush=True)


def wait_until(ready: Callable[[], bool], *, timeout_s: float, problem: str, next_step: str) -> None:
    """Poll until `ready` answers True; a SandboxError with `problem` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise SandboxError(f"{problem} (waited {timeout_s:g} s)", next_step)
        time.sleep(0.05)
