"""The fakes of the ports, held to the same contract tests as the real adapters; for everybody's tests."""

from __future__ import annotations

import hashlib
import io
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from runbook.adapters.drain_guards import drain_wanted, undrain_wanted
from runbook.errors import NotAllowed, NotFound
from runbook.model.checkpoint import DirectoryEntry
from runbook.model.job import (
    Claim,
    JobClass,
    JobEnvironment,
    JobRecord,
    JobScript,
    NodeClass,
    NodeState,
    Submission,
)
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName
from runbook.slurm.ownership import carries, check_same_run
from runbook.slurm.sbatch_options import parse_arguments
from runbook.slurm.states import job_state, starts_by_itself
from runbook.slurm.submit import sbatch_command


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self, now_s: float = 1_795_000_000.0) -> None:
        self.now_s = now_s
        self.slept_s: list[float] = []
        self._set_s = 0.0

    def now(self) -> float:
        return self.now_s

    def elapsed(self) -> float:
        return self.now_s - self._set_s

    def set(self, seconds: float) -> None:
        """Set the time of day forward, or back, which lets no time pass."""
        self.now_s += seconds
        self._set_s += seconds

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += max(seconds, 0.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a job is from `after_s` seconds after its submission on."""

    after_s: float
    state: str
    exit_code: int = 0
    signal: int = 0


RUNS_ON = (Moment(0, "PENDING"), Moment(1, "RUNNING"))


def ends(state: str = "COMPLETED", exit_code: int = 0, *, after_s: float = 10.0) -> tuple[Moment, ...]:
    """The life of a job that runs from second 1 and ends."""
    return (*RUNS_ON, Moment(after_s, state, exit_code))


@dataclass
class FakeJob:
    record: JobRecord
    life: tuple[Moment, ...]
    script: str | None = None
    environment: dict[str, str] | None = None
    submission: Submission | None = None
    cancelled_s: float | None = None


@dataclass
class FakeScheduler:
    """A scheduler whose jobs live the lives that a test wrote down. `acts` has every effect, in order."""

    clock: FakeClock = field(default_factory=FakeClock)
    node_names: tuple[str, ...] = ("gpu-21", "gpu-22", "gpu-23", "gpu-24")
    cluster: str = "fake"
    lives: list[tuple[Moment, ...]] = field(default_factory=list)
    """Lives of the jobs that will be submitted, in order; `RUNS_ON` when it is empty."""
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    drains: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a node; those without are in `gpu`."""
    acts: list[tuple[str, ...]] = field(default_factory=list)
    next_id: int = 1

    def add(
        self,
        record: JobRecord | None = None,
        *,
        life: tuple[Moment, ...] = RUNS_ON,
        script: str | None = "#!/bin/bash\ntrue\n",
        environment: dict[str, str] | None = None,
        **changes: object,
    ) -> JobId:
        """A job that somebody submitted now. `changes` are fields of its record."""
        job = record.id if record else JobId(str(self.next_id))
        self.next_id = max(self.next_id, int("".join(filter(str.isdigit, job)) or 0)) + 1
        base = record or JobRecord(
            id=job, cluster=self.cluster, name="train", owner=UserName("alice"), state=job_state("PENDING"), uid=1000,
            gid=1000, num_nodes=1, num_tasks=1, work_dir="/home/alice", stdout_path=f"/home/alice/slurm-{job}.out",
            command="/home/alice/train.sh", submit_line="sbatch train.sh", submit_time_s=self.clock.now(),
            source="fake",
        )  # fmt: skip
        self.jobs[job] = FakeJob(replace(base, **changes), life, script, environment)  # type: ignore[arg-type]
        return job

    def describe(self) -> str:
        return "a scheduler in memory"

    def job(self, job: JobId) -> JobRecord:
        found = self._find(job)
        born = found.record.submit_time_s or 0.0
        moments = [moment for moment in found.life if born + moment.after_s <= self.clock.now()]
        if found.cancelled_s is not None:
            before = [moment for moment in found.life if born + moment.after_s <= found.cancelled_s]
            moments = [*before, Moment(found.cancelled_s - born, "CANCELLED", 0, 15)]
        if not moments:
            return found.record
        last = moments[-1]
        state = job_state(last.state)
        started = next((born + moment.after_s for moment in moments if moment.state == "RUNNING"), None)
        ended = state.job_class.ended
        count = found.record.num_nodes or 1
        nodes = found.record.nodes or tuple(NodeName(name) for name in self.node_names[:count] if started is not None)
        return replace(
            found.record,
            state=state,
            nodes=nodes if started is not None else (),
            start_time_s=started,
            end_time_s=born + last.after_s if ended else None,
            exit_code=last.exit_code if ended else None,
            signal=last.signal if ended else None,
        )

    def script(self, job: JobId) -> JobScript | Unknown:
        found = self.jobs.get(job)
        if found is None or found.script is None:
            return Unknown("the script was not kept")
        return JobScript(found.script, "fake")

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        found = self.jobs.get(job)
        if found is None or found.environment is None:
            return Unknown("the environment was not kept")
        return JobEnvironment(dict(found.environment), "fake")

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        argv = sbatch_command(submission, original).argv
        parsed = parse_arguments(argv[1:])
        job = self.add(
            life=self.lives.pop(0) if self.lives else RUNS_ON,
            script=self._read(submission.script_path),
            environment=submission.environment.variables if submission.environment else {},
            name=parsed.value("job-name") or "",
            owner=submission.claim.owner,
            cluster=original.cluster,
            uid=original.uid,
            comment=parsed.value("comment") or "",
            work_dir=submission.work_dir,
            command=submission.script_path,
            submit_line=" ".join(argv),
            num_nodes=int(parsed.value("nodes") or original.num_nodes or 1),
        )
        self.jobs[job].submission = submission
        self.acts.append(("submit", job, submission.claim.token))
        return job

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        matching = [found.record for found in self.jobs.values() if carries(found.record.comment, claim.token)]
        return tuple(record.id for record in sorted(matching, key=lambda record: record.submit_time_s or 0.0))

    def hold(self, job: JobRecord) -> bool:
        return self._let(job, "hold", starts_by_itself, "JobHeldUser")

    def release(self, job: JobRecord) -> bool:
        return self._let(job, "release", lambda reason_code: reason_code == "JobHeldUser", "")

    def _let(self, job: JobRecord, act: str, may: Callable[[str], bool], reason: str) -> bool:
        if job.id not in self.jobs or self.job(job.id).state.job_class is not JobClass.WAITING:
            return False
        check_same_run(self.job(job.id), job, "held" if act == "hold" else "released")
        found = self.jobs[job.id]
        if not may(found.record.reason_code):
            return False
        found.record = replace(found.record, reason=reason)
        self.acts.append((act, job.id))
        return True

    def cancel(self, job: JobRecord) -> None:
        if job.id not in self.jobs:
            return
        now = self.job(job.id)
        check_same_run(now, job)
        if not now.state.job_class.ended:
            self.jobs[job.id].cancelled_s = self.clock.now()
            self.acts.append(("cancel", job.id))

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        chosen = self.node_names if names is None else tuple(dict.fromkeys(names))
        records = [self.job(JobId(job)) for job in self.jobs]
        busy = {node for record in records if record.state.job_class is JobClass.ACTIVE for node in record.nodes}
        return tuple(self._node(NodeName(name), NodeName(name) in busy) for name in chosen)

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return None

    def drain(self, node: NodeName, reason: str) -> None:
        (present,) = self.nodes((node,))
        if drain_wanted(present, reason):
            self.drains[node] = reason
            self.acts.append(("drain", node, reason))

    def undrain(self, node: NodeName, token: str) -> None:
        (present,) = self.nodes((node,))
        if undrain_wanted(present, token):
            del self.drains[node]
            self.acts.append(("undrain", node))

    def _node(self, name: NodeName, busy: bool) -> NodeState:
        if name not in self.node_names:
            raise NotFound(f"no node {name!r}")
        reason = self.drains.get(name, "")
        node_class = NodeClass.DRAINED if reason else NodeClass.BUSY if busy else NodeClass.AVAILABLE
        words = ("MIXED" if busy else "IDLE", *(("DRAIN",) if reason else ()))
        return NodeState(name, node_class, words, reason, 8, 0, self.partitions.get(name, ("gpu",)))

    def _find(self, job: JobId) -> FakeJob:
        if job not in self.jobs:
            raise NotFound(f"no job {job}")
        return self.jobs[job]

    def _read(self, path: str) -> str | None:
        try:
            with open(path, encoding="utf-8") as stream:
                return stream.read()
        except OSError:
            return None


@dataclass
class FakeFile:
    content: bytes
    readable_by: frozenset[str] | None = None
    """None: by everybody."""
    regular: bool = True
    modified_s: float = 1_795_000_000.0


class FakeFiles:
    """Files in memory. Folders exist where a file lies below them."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {path: FakeFile(content) for path, content in (files or {}).items()}

    def open(self, path: str, owner: UserName) -> BinaryIO:
        return io.BytesIO(self._readable(path, owner).content)

    def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
        base = folder.rstrip("/") + "/"
        found: dict[str, DirectoryEntry] = {}
        for path, file in self.files.items():
            if not path.startswith(base):
                continue
            parts = path[len(base) :].split("/")
            for level in range(1, min(depth, len(parts)) + 1):
                here = base + "/".join(parts[:level])
                is_file = level == len(parts)
                size = len(file.content) if is_file else 4096
                found.setdefault(here, DirectoryEntry(here, not is_file, size, file.modified_s))
        if not found:
            raise NotFound("no such folder", where=folder)
        return tuple(sorted(found.values(), key=lambda entry: entry.path))

    def read_small(self, path: str, owner: UserName, limit: int = 1 << 20) -> bytes:
        return self._readable(path, owner).content[:limit]

    def replace(self, path: str, owner: UserName, content: bytes, expected_sha256: str) -> str:
        file = self._readable(path, owner)
        folder, name = posixpath.split(path)
        backup = posixpath.join(folder, f"{name}.runbook-{expected_sha256[:8]}.bak")
        if _sha256(file.content) != expected_sha256:
            kept = self.files.get(backup)
            if file.content == content and kept is not None and _sha256(kept.content) == expected_sha256:
                return backup
            raise NotAllowed("the file has changed since it was read", where=path)
        self.files[backup] = replace(file)
        self.files[path] = replace(file, content=content)
        return backup

    def _readable(self, path: str, owner: UserName) -> FakeFile:
        if not path.startswith("/"):
            raise NotAllowed("a path named by a job must be absolute", where=path)
        if path not in self.files:
            if any(other.startswith(path.rstrip("/") + "/") for other in self.files):
                raise NotAllowed("not a regular file", where=path)
            raise NotFound("no such file", where=path)
        file = self.files[path]
        if not file.regular:
            raise NotAllowed("not a regular file", where=path)
        if file.readable_by is not None and owner not in file.readable_by:
            raise NotAllowed(f"{owner} may not read it", where=path)
        return file


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(entries: Iterable[DirectoryEntry]) -> list[str]:
    """Paths of a listing, for comparisons."""
    return [entry.path for entry in entries]


def claimed(owner: str, token: str, *, cluster: str = "", uid: int | None = None, written_s: float = 0.0) -> Claim:
    """A claim as an attempt's is, on whatever cluster."""
    return Claim(UserName(owner), uid, cluster, token, written_s)
