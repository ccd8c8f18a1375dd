"""The local scheduler's state on disk: one folder a job, written by rename, numbered under a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runbook.adapters.local.supervisor import boot_id, process_start, write_json
from runbook.adapters.whole_file import private_folder, write_new
from runbook.errors import NotFound, Unavailable
from runbook.model.job import JobClass, JobState
from runbook.model.units import JobId
from runbook.slurm.states import job_state

_NOT_RECORDED = "the supervisor ended without recording how the job ended (it was killed, or the machine restarted)"


class LocalStore:
    """`jobs/ID/{job,environment,started,ended,cancel}.json` and `script`; `node.json` holds a drain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"

    def add(self, job: dict[str, Any], script: bytes, environment: dict[str, str]) -> JobId:
        """Store a new job under the next number. The `{id}` of texts that need it is filled in by `complete`."""
        with self._locked(), _full_disk(self.folder):
            number = self._next_number()
            folder = self.jobs / f".new-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            write_new(folder / "script", script, 0o700)
            descriptor = os.open(folder / "environment.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(environment, stream)
            write_json(folder / "job.json", {**job, "id": str(number)})
            folder.rename(self.jobs / str(number))
        return JobId(str(number))

    def complete(self, job: JobId, more: dict[str, Any]) -> None:
        """Fill in what depends on the job's number. A job without it is never started."""
        path = self.path(job) / "job.json"
        write_json(path, {**self.read(job, "job"), **more, "complete": True}, durable=False)

    def ids(self) -> list[JobId]:
        with contextlib.suppress(FileNotFoundError):
            numbers = (int(entry.name) for entry in self.jobs.iterdir() if entry.name.isdecimal())
            return [JobId(str(number)) for number in sorted(numbers)]
        return []

    def path(self, job: JobId) -> Path:
        folder = self.jobs / job
        if not (job.isascii() and job.isdecimal() and folder.is_dir()):
            raise NotFound(
                f"the local scheduler has no job {job!r}", where=str(self.folder), next_step="see `runbook jobs`"
            )
        return folder

    def read(self, job: JobId, name: str) -> dict[str, Any]:
        """One of the job's documents; empty where it was not written yet."""
        try:
            value = json.loads((self.path(job) / f"{name}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise Unavailable(f"the local scheduler's state cannot be read: {error}", where=str(self.folder)) from error
        return value if isinstance(value, dict) else {}

    def write(self, job: JobId, name: str, value: dict[str, Any]) -> None:
        with _full_disk(self.folder):
            write_json(self.path(job) / f"{name}.json", value)

    def supervised(self, job: JobId) -> bool:
        """Whether the supervisor lives: it holds its lock as long as it does."""
        try:
            descriptor = os.open(self.path(job) / "supervisor.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def process_alive(self, started: dict[str, Any]) -> bool:
        """Whether the job's own process is still the one that was started."""
        pid, start = started.get("pid"), started.get("pid_start")
        if not isinstance(pid, int) or start is None or started.get("boot_id") != boot_id():
            return False
        return bool(process_start(pid) == start)

    def state(self, job: JobId) -> tuple[JobState, dict[str, Any], dict[str, Any], str]:
        """(state, started, ended, reason). The end is looked for again after the supervisor was seen to be gone."""
        started = self.read(job, "started")
        ended = self.read(job, "ended")
        if not ended and not self.supervised(job):
            started = self.read(job, "started")
            ended = self.read(job, "ended")
            if not ended and not started:
                drained = self.drain_reason()
                return job_state("PENDING"), {}, {}, f"node drained: {drained}" if drained else "waiting to start"
            if not ended and self.process_alive(started):
                return job_state("RUNNING"), started, {}, "its supervisor is gone: how it ends will not be recorded"
            if not ended:
                return JobState("UNKNOWN", JobClass.UNKNOWN), started, {}, _NOT_RECORDED
        if ended:
            return job_state(str(ended.get("state", ""))), started, ended, str(ended.get("reason", ""))
        flags = ("COMPLETING",) if self.read(job, "cancel") else ()
        return JobState("RUNNING", JobClass.ACTIVE, flags), started, {}, ""

    def drain_reason(self) -> str:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return str(json.loads((self.folder / "node.json").read_text(encoding="utf-8"))["reason"])
        return ""

    @contextlib.contextmanager
    def draining(self) -> Iterator[str]:
        """The present drain reason, held still while it is decided upon."""
        with self._locked():
            yield self.drain_reason()

    def set_drain(self, reason: str, time_s: float) -> None:
        with _full_disk(self.folder):
            write_json(self.folder / "node.json", {"reason": reason, "time_s": time_s})

    def _next_number(self) -> int:
        counter = self.folder / "next.json"
        number = 1
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            number = int(json.loads(counter.read_text(encoding="utf-8"))["next"])
        number = max([number, *(int(job) + 1 for job in self.ids())])
        write_json(counter, {"next": number + 1}, durable=False)
        return number

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _full_disk(self.folder):
            private_folder(self.jobs, 0o700)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the local scheduler cannot write its state: {error.strerror}",
            where=str(folder),
            next_step="make room or mend the folder's rights, then try again",
        ) from error
