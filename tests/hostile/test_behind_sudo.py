"""What hostile jobs leave behind, read by the daemon as a service user who becomes their owners by sudo."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bench.stand_in import write_commands, write_event, write_failed_job
from tests.hostile import test_restarts_in_the_spool as left_behind
from tests.hostile.hanging_files import Place, place
from tests.hostile.service_user import OTHER, OWNER, SERVICE, ServiceUser, give, service_user
from tests.hostile.test_hostile_scripts import MERGES, SCRIPTS
from tests.loopback import free_port

__all__ = ["place", "service_user"]

pytestmark = [pytest.mark.needs("setpriv", "sudo", "unshare"), pytest.mark.timeout(300)]
OOM = left_behind.OOM
SECRET = "of-the-service-alone"
GOOD = 900
SERVES = "import sys; from runbook.cli.main import main; main(sys.argv[1:])"


def _nests(log: Path, script: Path) -> None:
    log.write_text(OOM)
    script.write_text("#!/bin/bash\n" + SCRIPTS["nests"])


def _merges(log: Path, script: Path) -> None:
    log.write_text(OOM)
    (script.parent / "merges.yaml").write_text(MERGES)
    script.write_text(f"#!/bin/bash\npython train.py --config {script.parent}/merges.yaml\n")


HOSTILE = (*left_behind.HOSTILE, _nests, _merges)


@dataclass
class Site:
    """A stand-in Slurm, a daemon and the files of two owners, each of which its owner alone may read."""

    user: ServiceUser

    def __post_init__(self) -> None:
        self.state, self.spool = self.user.own("state"), self.user.own("spool")
        self.commands, self.port = self.user.folder / "bin", free_port()
        self.inventory, self.said = self.user.folder / "alpha.yaml", self.user.folder / "service.log"
        write_commands(self.commands, nodes=10)
        self.inventory.write_text(
            "version: 1\nid: alpha\ntitle: A stand-in\ncluster: alpha\n"
            f"scheduler: {{kind: slurm, adapter: commands, commands_folder: {self.commands}}}\nnodes: {{kind: none}}\n"
            f"policy: {{mode: plan}}\npaths: {{state: {self.state}, spool: {self.spool}}}\n"
            "cage: {memory_mib: 256, cpu_s: 4, wall_s: 20}\n"
        )

    def fail(self, number: int, owner: str, leave: Callable[[Path, Path], None]) -> None:
        """A job of that owner's which left these files behind, and the epilog's word of it."""
        home = self.user.folder / str(number)
        home.mkdir()
        log, script = home / "train.log", home / "train.sh"
        log.touch()
        script.touch()
        leave(log, script)
        write_failed_job(self.commands, number, pwd.getpwnam(owner), log, script.read_text())
        for path in (home, *home.iterdir()):
            give(path, owner)
            if not path.is_symlink():
                path.chmod(0o700 if path.is_dir() else 0o600)
        write_event(self.spool, number, pwd.getpwnam(owner).pw_uid)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with self.said.open("ab") as stream:
            self._service = self.user.start(
                *("-c", SERVES, "serve", "--inventory", str(self.inventory), "--port", str(self.port)),
                stdout=stream.fileno(), stderr=stream.fileno(),
            )
        try:
            yield
        finally:
            self._service.kill()
            self._service.wait()

    def until(self, ready: Callable[[], object], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            told = {number: (self.told(number).get("box"), self.told(number).get("state")) for number in self.jobs()}
            assert self._service.poll() is None, self.said.read_text()[-3000:]
            assert time.monotonic() < deadline, (told, self.said.read_text()[-3000:])
            time.sleep(0.02)

    def jobs(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.commands / "jobs").glob("*.sacct"))

    def told(self, number: int) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(
                (self.state / "incidents" / f"oom-alpha-{number}" / "incident.json").read_text()
            )
            return found
        return {}

    def went(self, number: int) -> list[tuple[str, str]]:
        """Boxes that it has left, each with its outcome."""
        return [(visit["box"], visit["outcome"]) for visit in self.told(number).get("visits", ())]

    def over(self, number: int) -> bool:
        told = self.told(number)
        return told.get("closed_s") is not None or told.get("state") == "interrupted"

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def most_bytes(self) -> int:
        """Of memory that the daemon itself has had at a time."""
        status = Path(f"/proc/{self._service.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10


def _good(log: Path, script: Path) -> None:
    log.write_text(OOM)
    script.write_text("#!/bin/bash\n" + SCRIPTS["honest"])


def test_hostile_jobs_are_read_through_sudo_and_a_good_one_beside_them_has_its_diagnosis(
    service_user: ServiceUser,
) -> None:
    site = Site(service_user)
    private = site.user.folder / "private.log"
    private.write_text(f"{SECRET} {OOM}")
    private.chmod(0o600)
    give(private, SERVICE)

    def _a_link(log: Path, _script: Path) -> None:
        log.unlink()
        log.symlink_to(private)

    leaves = dict(enumerate((*HOSTILE, _a_link), start=1))
    with site.serving():
        for number, leave in leaves.items():
            site.fail(number, OWNER, leave)
        site.until(lambda: any(site.told(number).get("box") == "read_error" for number in leaves))
        site.fail(GOOD, OTHER, _good)
        site.until(lambda: ("classify", "true_oom") in site.went(GOOD))
        site.until(lambda: all(site.over(number) for number in (*leaves, GOOD)))
        assert site.health()["events_opened"] == len(leaves) + 1
        assert site.most_bytes() < 400 << 20
    for number, leave in leaves.items():
        told = site.told(number)
        assert told["conclusion"] and "fault of this tool" not in told["conclusion"], (leave.__name__, told)
        # Where a log is nothing of the owner's to read, nothing is made of it.
        read = ("read_error", "unreadable") not in site.went(number)
        assert read == (leave.__name__ not in ("_fifo", "_a_link")), (leave.__name__, told["conclusion"])
    for path in site.state.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


# What a shell starts in the background ignores SIGINT, and so would Python below it.
RUNS = """
import signal, sys
from runbook.adapters.identity import identity_of
from runbook.adapters.process import Command, run
signal.signal(signal.SIGINT, signal.default_int_handler)
begun, owner = sys.argv[1:]
run(Command(("sh", "-c", "echo $$ > $0; exec sleep 1000", begun), as_user=identity_of(owner)), 600.0)
"""


def test_a_command_that_is_given_up_is_ended_and_not_sudo_alone(service_user: ServiceUser) -> None:
    begun = service_user.folder / "begun"
    os.mkfifo(begun)
    begun.chmod(0o666)
    with service_user.start("-c", RUNS, str(begun), OWNER, stderr=subprocess.DEVNULL) as service:
        command = os.pidfd_open(int(begun.read_text()))
        try:
            service.send_signal(signal.SIGINT)
            service.wait(60)
            assert select.select([command], [], [], 20)[0], "it is still there"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(command, signal.SIGKILL)
            os.close(command)


OPENS = """
import sys
from runbook.adapters.files import OwnerFiles
from runbook.adapters.silent import FileSystems
from runbook.errors import Hung
path, owner = sys.argv[1:]
systems = FileSystems()
try:
    OwnerFiles(timeout_s=5.0, systems=systems, apart=True).open(path, owner)
except Hung:
    print(*systems.waiting())
"""


@pytest.mark.needs("fusermount3")
def test_what_cannot_be_ended_is_counted(service_user: ServiceUser, place: Place) -> None:
    """A helper that waits in the kernel for its owner's file system: beyond a few of them no more is read there."""
    path = place.file("hangs-at-open.log")
    with service_user.start("-c", OPENS, path, OWNER, stdout=subprocess.PIPE) as service:
        said, _ = service.communicate(timeout=60)
    assert said.decode() == f"1 of {OWNER} for {place.shown}\n"
