"""File systems that do not answer, under what a person's command reads: it ends, says which one, and Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runbook.adapters.identity import current_identity
from runbook.adapters.store import IncidentStore
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId
from tests.bench.stand_in import write_commands
from tests.cli.conftest import Shell, shell
from tests.flow.test_promoting import MICRO, scene
from tests.hostile.hanging_files import Place, place

__all__ = ["place", "shell"]

pytestmark = [
    pytest.mark.needs("fusermount3"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be opened here"),
]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SCRIPT = "#!/bin/bash\ntorchrun train.py --micro-batch-size 8"


@dataclass
class Commands:
    """Real ones, several at a time, as each waits for as long as a file system is given."""

    shell: Shell

    def __post_init__(self) -> None:
        self._begun: dict[str, tuple[subprocess.Popen[bytes], Path, str]] = {}

    def begin(self, name: str, path: str, *arguments: str, **environment: str) -> None:
        """`path`: what does not answer."""
        said = self.shell.folder / f"{name}.said"
        with said.open("wb") as stream:
            command = subprocess.Popen(
                (sys.executable, "-m", "runbook", *arguments), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                cwd=self.shell.work, env=_environment(self.shell, environment), start_new_session=True,
            )
        self._begun[name] = command, said, path

    def ended(self) -> Iterator[tuple[str, int | None, str, str]]:
        """Name, exit code (None: it did not end), what it said, and what did not answer."""
        until_s = time.monotonic() + 120
        for name, (command, said, path) in self._begun.items():
            try:
                code: int | None = command.wait(max(0.1, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            yield name, code, " ".join(said.read_text().split()), path

    def kill(self) -> None:
        for command, _, _ in self._begun.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


def _environment(shell: Shell, other: dict[str, str]) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    state = {} if "HOME" in other else {"XDG_STATE_HOME": str(shell.state), "RUNBOOK_INVENTORY": str(shell.inventory)}
    return {**os.environ, "PYTHONPATH": root, **state, **other}


@pytest.fixture
def commands(shell: Shell) -> Iterator[Commands]:
    made = Commands(shell)
    yield made
    made.kill()


def _stored(shell: Shell, number: int, script: str, *, promoted: str = "") -> Incident:
    """One whose change was proven, of a script that lies there."""
    made = scene(MICRO).incident
    assert made.original is not None
    job = replace(made.original.job, command=script, owner=current_identity().name, uid=os.getuid())
    made = replace(
        made, id=IncidentId(f"oom-here-{number}"), cluster="here", original=replace(made.original, job=job),
        state=IncidentState.RECOVERED, closed_s=made.opened_s, promoted=promoted,
    )
    IncidentStore(shell.state).save(made)
    return made


@pytest.mark.timeout(300)
def test_a_command_says_which_file_system_does_not_answer(shell: Shell, place: Place, commands: Commands) -> None:
    good, script = shell.work / "good.log", shell.work / "good.sh"
    good.write_text(OOM)
    script.write_text(f"{SCRIPT}\n")
    logs = {what: place.file(f"hangs-at-{what}.log", OOM) for what in ("stat", "open", "read", "close")}
    scripts = {what: place.file(f"hangs-at-{what}.sh", f"{SCRIPT}\n") for what in ("stat", "open", "read")}
    companion = place.file("hangs-at-read.yaml", "micro_batch_size: 4\n")
    naming = shell.work / "naming.sh"
    naming.write_text(f"{SCRIPT} --config {companion}\n")
    listed, home = place.folder("hangs-at-list"), place.folder("hangs-at-stat")
    for what, path in logs.items():
        commands.begin(f"diagnose-{what}", path, "diagnose", path)
    commands.begin("diagnose-folder", listed, "diagnose", listed)
    commands.begin("diagnose-template", scripts["read"], "diagnose", str(good), "--template", scripts["read"])
    for what, path in scripts.items():
        commands.begin(f"show-{what}", path, "template", "show", path)
    commands.begin("patch", scripts["open"], "patch", "--set", "micro_batch_size=4", "--template", scripts["open"])
    commands.begin("files-log", logs["read"], "oom", "--log", logs["read"])
    commands.begin("files-template", scripts["stat"], "oom", "--log", str(good), "--template", scripts["stat"])
    commands.begin("files-output", home, "oom", "--log", str(good), "--template", str(script), "--output", home)
    commands.begin("submit", scripts["read"], "submit", scripts["read"])
    commands.begin("backup", home, "backup", f"{home}/b.zst")
    for what, number in (("open", 1), ("read", 2)):
        taken_back = _stored(shell, number + 10, scripts[what], promoted="an earlier one")
        commands.begin(f"promote-{what}", scripts[what], "promote", _stored(shell, number, scripts[what]).id, "--yes")
        commands.begin(f"rollback-{what}", scripts[what], "rollback", taken_back.id, "--yes")
    for name, arguments in (
        ("doctor", ("doctor",)), ("canary", ("canary",)), ("prune", ("prune",)),
        ("home-files", ("oom", "--log", str(good))), ("home-job", ("oom", "--job", "1")),
        ("incidents", ("incidents",)),
    ):
        commands.begin(name, home, *arguments, HOME=home, XDG_STATE_HOME="", RUNBOOK_INVENTORY="")
    wrong = {}
    for name, code, said, path in commands.ended():
        told = f"the file system of {path}" in said and f"see whether what is mounted at {place.shown}" in said
        if code != 6 or not told or "did not answer" not in said or "Traceback" in said:
            wrong[name] = (code, said[-400:])
    assert not wrong


@pytest.mark.timeout(120)
def test_setup_does_without_the_home_folder_and_says_what_for(shell: Shell, place: Place, commands: Commands) -> None:
    """SSH's own settings are in it, and the nodes may be reached with them alone."""
    home, slurm, written = place.folder("hangs-at-stat"), shell.folder / "slurm", shell.work / "made.yaml"
    write_commands(slurm, nodes=1)
    (slurm / "slurm.conf").write_text("ClusterName=alpha\n")
    commands.begin(
        "setup", f"{home}/.ssh", "setup", "--yes", "--conf", str(slurm / "slurm.conf"), "--output", str(written),
        HOME=home, PATH=f"{slurm}:{os.environ['PATH']}",
    )
    ((_, code, said, path),) = commands.ended()
    assert code == 0 and written.exists(), said
    assert f"the file system of {path} did not answer" in said
    assert f"see whether what is mounted at {place.shown}" in said and "Traceback" not in said


@pytest.mark.timeout(300)
def test_what_a_job_left_behind_hangs(shell: Shell, place: Place, commands: Commands) -> None:
    text = shell.inventory.read_text(encoding="utf-8")
    shell.inventory.write_text(text.replace("cancel_wait_s: 20", "unavailable_patience_s: 0"), encoding="utf-8")
    for what in ("open", "read"):
        job = shell.failed_job()
        log = shell.work / f"tiny-{job}.out"
        log.unlink()
        log.symlink_to(place.file(f"hangs-at-{what}.log", OOM))
        commands.begin(what, str(log), "oom", "--job", job, "--plan")
    for name, code, said, path in commands.ended():
        assert code == 6, (name, said[-1000:])
        assert f"the file system of {path} did not answer within 20 s" in said, name


def _interruptible() -> None:
    """Also where the tests themselves run in the background of a shell, which has them ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _at_a_terminal() -> None:
    _interruptible()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("what", ["stat", "open", "read", "close"])
@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_command_that_waits_for_one(shell: Shell, place: Place, what: str) -> None:
    path = place.file(f"hangs-at-{what}.log", OOM)
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        (sys.executable, "-m", "runbook", "diagnose", path), stdin=theirs, stdout=theirs, stderr=theirs,
        cwd=shell.work, env=_environment(shell, {}), start_new_session=True,
        preexec_fn=_at_a_terminal,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        deadline = time.monotonic() + 60
        while not place.waits.exists():
            assert command.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.write(ours, b"\x03")
        assert command.wait(15) == 130
        said = os.read(ours, 1 << 16)
    finally:
        command.kill()
        os.close(ours)
    assert b"interrupted" in said and b"Traceback" not in said


def test_who_kills_a_command_ends_it_whole(shell: Shell, tmp_path: Path) -> None:
    """It works in a child of the process that was started."""
    fifo = tmp_path / "pipe.log"
    os.mkfifo(fifo)
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)):
        command = subprocess.Popen(
            (sys.executable, "-m", "runbook", "diagnose", str(fifo)), cwd=shell.work, env=_environment(shell, {}),
            stderr=subprocess.DEVNULL, preexec_fn=_interruptible,
        )
        with fifo.open("wb", buffering=0) as stream:  # open on both sides: it is being read
            command.send_signal(number)
            assert command.wait(30) == code
            with pytest.raises(BrokenPipeError):
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline:
                    stream.write(b"x\n")
                    time.sleep(0.02)
