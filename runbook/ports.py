"""What the flow needs from the outside. Adapters implement these; steps see nothing else.

Every method may raise `errors.Unavailable` when the outside does not answer. Times are epoch seconds (UTC).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import BinaryIO, Protocol

from runbook.model.checkpoint import DirectoryEntry
from runbook.model.job import Claim, JobEnvironment, JobRecord, JobScript, NodeState, Submission
from runbook.model.node import GpuProcess, NodeFacts, ProcessEnd, ProcessView
from runbook.model.remedy import Remembered
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName


class Scheduler(Protocol):
    """Slurm, or the local scheduler with the same manners."""

    def describe(self) -> str:
        """Which adapter answers, its version, and why it was chosen, in a sentence."""

    def job(self, job: JobId) -> JobRecord:
        """The record of a job, running or ended. Raises `NotFound`."""

    def script(self, job: JobId) -> JobScript | Unknown:
        """The script as submitted, or why the scheduler no longer has it."""

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        """The submitter's environment, or why it was not kept."""

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        """Submit as the owner, from `work_dir`, with the options of `original.submit_line` less what changes. The job
        is the one that the scheduler itself knows under the claim, whatever the program that submits prints.

        Raises `NotAllowed` when the scheduler refuses, with its words."""

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        """Jobs of the claim's owner, live or ended, whose comment begins with its token; oldest first. The memory of
        `submit`."""

    def cancel(self, job: JobRecord) -> None:
        """End a job, as it was judged. A job already gone is fine. Raises `NotAllowed` when the number is another
        owner's or another run's by now."""

    def hold(self, job: JobRecord) -> bool:
        """Keep a job that would start by itself from starting until it is released, by us or by its owner. False: it
        does not wait any more, or is held already, or this scheduler holds nothing. Raises `NotAllowed` as `cancel`
        does."""

    def release(self, job: JobRecord) -> bool:
        """Let a job that waits because it is held so start again; False for any other. Raises `NotAllowed` as `cancel`
        does."""

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        """State of the named nodes, or of all."""

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        """The most main memory that a job of this partition can have on each of the job's nodes, whoever holds it now;
        None where the scheduler does not say."""

    def drain(self, node: NodeName, reason: str) -> None:
        """Take a node out with this reason. Raises `NotAllowed` when it is already drained by somebody else."""

    def undrain(self, node: NodeName, token: str) -> None:
        """Give a node back, only if it was drained with this token; `NotAllowed` otherwise."""


class Nodes(Protocol):
    """The nodes of the cluster, over SSH or here."""

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        """GPU facts and the kernel log's XIDs of a time window. Never raises: `reach` says how it went."""

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """Processes of a running job on a node with argv and the named environment variables: of its owner's user
        number only, as the scheduler tells it. Whatever else says that it is the job's is another user's word."""

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """End exactly this process: the node looks at it again and signals it in one go, SIGTERM first, SIGKILL after
        `grace_s`. Refused where start time, owner or cgroup differ, for root's, for programs named in `spared`, and
        where the node cannot be sure of the process. Safe to repeat. Never raises."""


class Files(Protocol):
    """Files that a job names, always touched with its owner's rights."""

    def open(self, path: str, owner: UserName) -> BinaryIO:
        """Open for reading as `owner`. Raises `NotFound`, `NotAllowed` (owner may not read; not a regular file)."""

    def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
        """What lies under a folder, at most `depth` levels down, at most 100,000 entries. Raises `NotFound`."""

    def read_small(self, path: str, owner: UserName, limit: int = 1 << 20) -> bytes:
        """A small file's first `limit` bytes, as `open`."""

    def replace(self, path: str, owner: UserName, content: bytes, expected_sha256: str) -> str:
        """Write a file as its owner, atomically, mode kept, with a backup beside it; returns the backup's path.

        Raises `NotAllowed` when the file's present SHA-256 is not `expected_sha256`."""


class History(Protocol):
    """What earlier incidents were like and how they ended."""

    def like(self, now: Remembered) -> tuple[Remembered, ...]:
        """Earlier incidents of the same kind and framework, newest first, at most 1,200: those of the same script or
        series, and the newest of the others. Which of them count is the caller's to judge."""

    def drains_since(self, time_s: float) -> int:
        """How many nodes all incidents together have drained from then on, also those given back since."""


class Clock(Protocol):
    """Time, so that no test waits for it."""

    def now(self) -> float:
        """Epoch seconds: for what is told and compared with others' times. It may be set back and forward."""

    def elapsed(self) -> float:
        """Seconds since some moment, which only pass: for how long something is waited for."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
