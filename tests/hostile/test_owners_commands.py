"""What runs with a job owner's rights on the service's word, such as `sbatch`, is out of reach of his other processes
where root started it: they cannot take its pipes, put code into it, or find keys of the administrator's in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.adapters.identity import identity_of, program_on_path
from runbook.adapters.process import Command, Completed, run
from runbook.errors import NotFound
from runbook.model.units import UserName

OWNER = UserName("nobody")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for two users")

_KEYRING = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall(ctypes.c_long({search}), ctypes.c_long(10), ctypes.c_long(-3), b"user", b"runbook-test-key", 0)
print("found" if key > 0 else "none")
"""
_FILLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in range(5000):
    name = b"fills-%d" % number
    if libc.syscall(ctypes.c_long({add}), b"user", name, b"x", ctypes.c_long(1), ctypes.c_long(-4)) < 0:
        break
assert ctypes.get_errno() == 122, ctypes.get_errno()
"""
_CLEARS = """
import ctypes
ctypes.CDLL(None).syscall(ctypes.c_long({control}), ctypes.c_long(7), ctypes.c_long(-4))
"""
_TAKES = """
import ctypes, os, sys
pid = int(sys.argv[1])
taken = []
try:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
    taken.append("memory")
except OSError:
    pass
for name in ("fd/1", "cwd", "environ"):
    try:
        (os.readlink if name != "environ" else open)(f"/proc/{pid}/{name}")
        taken.append(name)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(ctypes.c_long(16), ctypes.c_long(pid), 0, 0) == 0:
    taken.append("trace")
try:
    descriptor = os.pidfd_open(pid)
    if libc.syscall(ctypes.c_long(438), ctypes.c_long(descriptor), ctypes.c_long(1), ctypes.c_long(0)) >= 0:
        taken.append("pipe")
except OSError:
    pass
print(" ".join(taken) or "nothing")
"""


class _Running:
    """A command of the owner's, while it runs."""

    def __init__(self, *argv: str) -> None:
        self._done: list[Completed] = []
        command = Command(argv, as_user=identity_of(OWNER))
        self._thread = threading.Thread(target=lambda: self._done.append(run(command, 60)))
        self._thread.start()
        deadline = time.monotonic() + 30
        while (pid := self._find(argv)) is None:
            assert time.monotonic() < deadline and self._thread.is_alive()
            time.sleep(0.01)
        self.pid = pid

    def _find(self, argv: tuple[str, ...]) -> int | None:
        wanted = b"\0".join(word.encode() for word in argv) + b"\0"
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cmdline").read_bytes() == wanted:
                    return int(folder.name)
            except OSError:
                continue
        return None

    def close(self) -> None:
        os.kill(self.pid, 9)
        self._thread.join()


@pytest.fixture
def running() -> Iterator[_Running]:
    made = _Running(program_on_path("sleep") or "sleep", "47.11")
    yield made
    made.close()


def _by_the_owner(source: str, *arguments: str) -> str:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    done = subprocess.run(
        (python, "-I", "-S", "-c", source, *arguments), user=OWNER, capture_output=True, text=True, timeout=30, cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_of_it_is_to_be_taken(running: _Running) -> None:
    assert os.stat(f"/proc/{running.pid}/stat").st_uid == 0
    with Path(f"/proc/{running.pid}/status").open() as told:
        assert any(line.split()[:2] == ["Uid:", str(identity_of(OWNER).uid)] for line in told)
    assert _by_the_owner(_TAKES, str(running.pid)) == "nothing"


def test_the_attack_takes_what_is_open_to_it() -> None:
    """Else the test above would prove nothing."""
    with subprocess.Popen((program_on_path("sleep") or "sleep", "47.12"), user=OWNER, stdout=subprocess.PIPE) as own:
        try:
            assert "memory" in (taken := _by_the_owner(_TAKES, str(own.pid)).split())
            assert "pipe" in taken and "environ" in taken
        finally:
            own.kill()


def test_a_script_runs_though_it_cannot_be_closed(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    script = tmp_path / "sbatch"
    script.write_text("#!/bin/sh\necho wrapped $1\n")
    script.chmod(0o755)
    assert run(Command((str(script), "7"), as_user=identity_of(OWNER)), 30).text() == "wrapped 7\n"


@pytest.mark.parametrize("full", [False, True], ids=["as it is", "his quota of keys is used up"])
def test_no_key_of_the_administrators_session_is_in_reach(full: bool) -> None:
    keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine)
    assert keyctl is not None
    add, control = keyctl
    search = _KEYRING.format(search=control)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    filled = _FILLS.format(add=add)
    asked = f"""
import sys; sys.path[:0] = {sys.path!r}
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(ctypes.c_long({control}), ctypes.c_long(1), None)
made = libc.syscall(ctypes.c_long({add}), b"user", b"runbook-test-key", b"secret", ctypes.c_long(6), ctypes.c_long(-3))
if made < 0:
    print("no keys", ctypes.get_errno()); sys.exit()
exec({search!r})
if {full}:
    import subprocess
    subprocess.run(({python!r}, "-I", "-S", "-c", {filled!r}), user={OWNER!r}, check=True, cwd="/")
from runbook.adapters.identity import identity_of
from runbook.adapters.process import Command, run
print(run(Command(({python!r}, "-I", "-S", "-c", {search!r}), as_user=identity_of({OWNER!r})), 30).text())
"""
    try:
        done = subprocess.run((sys.executable, "-c", asked), capture_output=True, text=True, timeout=60, check=False)
    finally:
        _by_the_owner(_CLEARS.format(control=control))
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("\n")
    # Some containers have no keys at all: then there are none to take.
    assert told[0].startswith("no keys") or told[:2] == ["found", "none"], done.stdout


def test_a_program_that_looks_for_its_libraries_beside_itself_runs(tmp_path: Path) -> None:
    """As a Slurm that lies in a folder of its own: from a copy in memory it would find none."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    beside = tmp_path / "sleeps"
    beside.write_bytes(Path(program_on_path("sleep") or "sleep").read_bytes() + b"$ORIGIN/../lib")
    beside.chmod(0o755)
    assert run(Command((str(beside), "0"), as_user=identity_of(OWNER)), 30).exit_code == 0
    running = _Running(str(beside), "47.13")
    try:
        assert Path(f"/proc/{running.pid}/exe").resolve() == beside
    finally:
        running.close()


def test_a_programs_own_mode_decides_who_runs_it(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    roots = tmp_path / "roots"
    shutil.copy(program_on_path("true") or "true", roots)
    roots.chmod(0o700)
    with pytest.raises(NotFound, match="Permission denied"):
        run(Command((str(roots),), as_user=identity_of(OWNER)), 30)
