"""The Scheduler and Nodes ports over files alone: what `runbook oom --log` works with. Every act is refused."""

from __future__ import annotations

import getpass
import hashlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from runbook.adapters.silent import PATIENCE_S, within
from runbook.errors import NotAllowed, NotFound
from runbook.model.job import Claim, JobClass, JobEnvironment, JobRecord, JobScript, JobState, NodeState, Submission
from runbook.model.node import EndedHow, GpuProcess, NodeFacts, ProcessEnd, ProcessView, Reach
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName


class FilesScheduler:
    """One ended job, made of its log files and its template."""

    def __init__(self, logs: tuple[Path, ...], template: Path | None) -> None:
        self._logs = logs
        self._template = template
        digest = hashlib.sha256("\0".join(str(path) for path in logs).encode("utf-8", "surrogateescape")).hexdigest()
        self.job_id = JobId(digest[:8])

    def describe(self) -> str:
        return "no scheduler: log files and a template only"

    def job(self, job: JobId) -> JobRecord:
        if job != self.job_id:
            raise NotFound(f"no job {job} among the files")
        return JobRecord(
            id=job,
            cluster="files",
            name=(self._template or self._logs[0]).name,
            owner=UserName(getpass.getuser()),
            state=JobState("FAILED", JobClass.FAILED),
            uid=os.getuid(),
            gid=os.getgid(),
            work_dir=str((self._template or self._logs[0]).parent),
            stdout_path=str(self._logs[0]),
            stderr_path=str(self._logs[1]) if len(self._logs) > 1 else "",
            more_log_paths=tuple(str(path) for path in self._logs[2:]),
            command=str(self._template) if self._template else "",
            source="files",
        )

    def script(self, job: JobId) -> JobScript | Unknown:
        if self._template is None:
            return Unknown("no --template was given")
        try:
            text = within(PATIENCE_S, str(self._template), self._template.read_bytes).decode("utf-8", "surrogateescape")
            return JobScript(text, "file")
        except OSError as error:
            return Unknown(f"{self._template} cannot be read: {error.strerror}")

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        return Unknown("no scheduler")

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        raise _no_scheduler()

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        return ()

    def hold(self, job: JobRecord) -> bool:
        raise _no_scheduler()

    def release(self, job: JobRecord) -> bool:
        raise _no_scheduler()

    def cancel(self, job: JobRecord) -> None:
        raise _no_scheduler()

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        return ()

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return None

    def drain(self, node: NodeName, reason: str) -> None:
        raise _no_scheduler()

    def undrain(self, node: NodeName, token: str) -> None:
        raise _no_scheduler()


class NoNodes:
    """Nodes that cannot be asked: every figure is unknown."""

    def __init__(self, why: str = "the inventory names no way to reach nodes (nodes.kind: none)") -> None:
        self._why = why

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        return NodeFacts(node=node, reach=Reach.ERROR, reach_detail=self._why)

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        return Unknown(self._why)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        return ProcessEnd(EndedHow.REFUSED, self._why)


def _no_scheduler() -> NotAllowed:
    return NotAllowed("there is no scheduler here", next_step="submit the patched template yourself")
