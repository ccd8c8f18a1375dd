"""One bench for each Scheduler: how a test starts a job there, waits for it, and which node it may drain."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from runbook.adapters.local import LocalScheduler
from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.slurm.pyslurm import PyslurmModule, SlurmPyslurm
from runbook.adapters.slurm.scheduler import SlurmCli
from runbook.model.job import JobRecord
from runbook.model.units import JobId, NodeName, UserName
from runbook.ports import Scheduler
from tests.contract import standin_pyslurm
from tests.contract.fakes import RUNS_ON, FakeClock, FakeScheduler, ends

SANDBOX = Path("/var/lib/runbook-sandbox")


@dataclass
class Bench:
    scheduler: Scheduler
    owner: UserName
    work_dir: Path
    node: NodeName
    start: Callable[..., JobId]
    """start(body, *options, name=…): a job's first submission by its owner."""
    wait: Callable[[float], None]
    started: list[JobId] = field(default_factory=list)
    """Ended when the test is over."""

    def until(self, job: JobId, ready: Callable[[JobRecord], bool], timeout_s: float = 30.0) -> JobRecord:
        for _ in range(int(timeout_s / 0.05)):
            record = self.scheduler.job(job)
            if ready(record):
                return record
            self.wait(0.05)
        raise AssertionError(f"job {job} stayed {self.scheduler.job(job).state}")

    def until_ended(self, job: JobId) -> JobRecord:
        return self.until(job, lambda record: record.state.job_class.ended)

    def write(self, name: str, body: str) -> str:
        path = self.work_dir / name
        path.write_text(body)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(self.owner)
            os.chown(path, owner.pw_uid, owner.pw_gid)
        return str(path)


def _fake_start(scheduler: FakeScheduler, work_dir: Path) -> Callable[..., JobId]:
    def start(body: str, *options: str, name: str = "train") -> JobId:
        code = int(body.rpartition("exit ")[2]) if "exit " in body else 0
        life = RUNS_ON if "sleep" in body else ends("FAILED" if code else "COMPLETED", code, after_s=1.5)
        path = work_dir / f"{name}.sh"
        path.write_text(body)
        comment = next((option[10:] for option in options if option.startswith("--comment=")), "")
        return scheduler.add(
            life=life, script=body, environment={"MARK": "kept"}, name=name, owner=UserName(getpass.getuser()),
            work_dir=str(work_dir), stdout_path=f"{work_dir}/{name}.out", command=str(path), comment=comment,
            submit_line=" ".join(("sbatch", f"--job-name={name}", *options, str(path))),
        )  # fmt: skip

    return start


def _fake(folder: Path, standin: bool) -> Bench:
    clock = FakeClock()
    controller = FakeScheduler(clock)
    scheduler: Scheduler = controller
    if standin:
        module = cast(PyslurmModule, standin_pyslurm.connect(controller))
        scheduler = SlurmPyslurm(module, controller, cluster="fake", version=standin_pyslurm.__version__)
    start = _fake_start(controller, folder)
    return Bench(scheduler, UserName(getpass.getuser()), folder, NodeName("gpu-24"), start, clock.sleep)


def _local(folder: Path) -> Bench:
    scheduler = LocalScheduler(folder / "state", node="here", kill_wait_s=0.5)

    def start(body: str, *options: str, name: str = "train") -> JobId:
        path = folder / f"{name}.sh"
        path.write_text(body)
        return scheduler.submit_script(
            str(path),
            options=(f"--job-name={name}", f"--output={folder}/{name}.out", *options),
            environment={**os.environ, "MARK": "kept"},
            work_dir=str(folder),
        )

    return Bench(scheduler, UserName(getpass.getuser()), folder, NodeName("here"), start, time.sleep)


def sandbox_is_up() -> bool:
    return os.geteuid() == 0 and (SANDBOX / "etc" / "slurm.conf").exists()


def _sandbox(folder: Path) -> Bench:
    if not sandbox_is_up():
        pytest.skip("the sandbox cluster is not up")
    conf = str(SANDBOX / "etc" / "slurm.conf")
    scheduler = SlurmCli(SlurmCommands(slurm_conf=conf), cluster="sandbox")

    def start(body: str, *options: str, name: str = "train") -> JobId:
        path = folder / f"{name}.sh"
        path.write_text(body)
        path.chmod(0o755)
        given = (f"--job-name={name}", f"--output={folder}/{name}.out", "--mem=64M", *options)
        done = subprocess.run(
            ("sudo", "-n", "-u", "sb-alice", "env", "MARK=kept", "sbatch", "--parsable", *given, str(path)),
            env={**os.environ, "SLURM_CONF": conf}, cwd=folder, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        return JobId(done.stdout.strip())

    return Bench(scheduler, UserName("sb-alice"), folder, NodeName("gpu-22"), start, time.sleep)


@pytest.fixture(
    params=["fake", "local", "pyslurm_standin", pytest.param("slurm", marks=pytest.mark.cluster)],
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made: Bench
    match request.param:
        case "fake":
            made = _fake(tmp_path, standin=False)
        case "pyslurm_standin":
            made = _fake(tmp_path, standin=True)
        case "local":
            made = _local(tmp_path)
        case _:
            folder = Path(subprocess.run(
                ("mktemp", "-d", "/tmp/runbook-contract-XXXXXX"), capture_output=True, text=True, check=True
            ).stdout.strip())  # fmt: skip
            made = _sandbox(folder)
            entry = pwd.getpwnam("sb-alice")
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            folder.chmod(0o755)
    yield made
    for job in made.started:
        made.scheduler.cancel(made.scheduler.job(job))
    if made.work_dir != tmp_path:
        shutil.rmtree(made.work_dir, ignore_errors=True)
