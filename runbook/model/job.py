"""What the scheduler knows about a job and a node, in words that do not depend on the Slurm version."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from runbook.model.units import Bytes, JobId, NodeName, UserName


class JobClass(StrEnum):
    """Disjoint classes of job states. An unknown state is a class of its own and decides nothing."""

    WAITING = "waiting"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Ended by the scheduler for a reason that is not the job's own: TIMEOUT, PREEMPTED, NODE_FAIL, DEADLINE."""
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({JobClass.SUCCEEDED, JobClass.FAILED, JobClass.CANCELLED, JobClass.STOPPED})


@dataclass(frozen=True, slots=True)
class JobState:
    """A base state with its class; flags such as COMPLETING or REQUEUED stand beside it."""

    name: str
    job_class: JobClass
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a job from accounting ("123.batch", "123.0")."""

    id: str
    state: JobState
    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: Bytes | None = None
    nodes: tuple[NodeName, ...] = ()
    tasks: int | None = None
    """How many tasks Slurm started in it; None: not told, or the batch script, which is none."""


@dataclass(frozen=True, slots=True)
class GpuIndices:
    """Which GPUs of a node the scheduler gave a job, by the scheduler's own numbers: `IDX` of `scontrol show job -d`.

    They count the entries of the node's gres.conf. Which GPU of the driver each is, is for the node check to find."""

    node: NodeName
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dependent:
    """A job of the same owner that waits for another, or that the scheduler cancelled because it waited in vain."""

    id: JobId
    name: str
    condition: str
    """"afterok", "afterany", "singleton", …"""
    cancelled: bool = False

    @property
    def in_vain(self) -> bool:
        """Whether a failure of the other is the end of it."""
        return self.cancelled or self.condition in ("afterok", "aftercorr")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, running or ended. None and "" mean that the scheduler did not say. Times are epoch seconds."""

    id: JobId
    cluster: str
    name: str
    owner: UserName
    state: JobState
    uid: int | None = None
    gid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    reason: str = ""
    nodes: tuple[NodeName, ...] = ()
    """Allocated nodes in rank order of a block distribution, expanded from the host list."""
    num_nodes: int | None = None
    num_tasks: int | None = None
    gpus_per_node: int | None = None
    memory_limit_bytes_per_node: Bytes | None = None
    submit_time_s: float | None = None
    start_time_s: float | None = None
    end_time_s: float | None = None
    time_limit_s: float | None = None
    work_dir: str = ""
    stdout_path: str = ""
    """Patterns (%x, %j, …) already expanded."""
    stderr_path: str = ""
    """Empty when it is the same file as stdout."""
    more_log_paths: tuple[str, ...] = ()
    """Further logs of the same job: per-node and per-rank files."""
    command: str = ""
    """Path of the script as submitted; the file may have changed or gone since."""
    submit_line: str = ""
    comment: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    excluded_nodes: tuple[NodeName, ...] = ()
    restarts: int = 0
    requeueable: bool | None = None
    array_job_id: JobId | None = None
    steps: tuple[StepRecord, ...] = ()
    source: str = ""
    """Which question was answered: "squeue", "sacct", "squeue+sacct", "pyslurm", "local"."""
    gpu_indices: tuple[GpuIndices, ...] = ()
    """One a node; () where the scheduler did not say. Slurm forgets them when the job ends, so that only a record that
    was taken while the job ran has them."""

    dependents: tuple[Dependent, ...] = ()
    """Told of a job that has ended."""

    @property
    def steps_to_come(self) -> bool:
        """Whether Slurm's accounting, which may be seconds or hours behind, has not told of all its steps yet: where
        their tasks wrote, if not to the job's own log, is not known before."""
        if not self.state.job_class.ended or not self.nodes or not self.source.startswith("squeue"):
            return False
        return not self.steps or not all(step.state.job_class.ended for step in self.steps)

    @property
    def reason_code(self) -> str:
        """Slurm's word for why it waits, without the nodes that may follow it."""
        return self.reason.split(",")[0]

    @property
    def array_task(self) -> str:
        """The index of the one task of an array that the job is, or ""."""
        task = self.id.partition("_")[2]
        return task if task.isascii() and task.isdecimal() else ""

    def indices_on(self, node: NodeName) -> tuple[int, ...] | None:
        """The scheduler's indices of the job's GPUs on a node; None where it did not say."""
        return next((one.indices for one in self.gpu_indices if one.node == node), None)

    def knowing(self, earlier: JobRecord | None) -> JobRecord:
        """With what an earlier record of the same run still knew: its GPUs, and who waited for it, which Slurm
        forgets."""
        if earlier is None:
            return self
        same = (self.id, self.restarts, self.start_time_s) == (earlier.id, earlier.restarts, earlier.start_time_s)
        if not same:
            return self
        return replace(
            self, gpu_indices=self.gpu_indices or earlier.gpu_indices, dependents=self.dependents or earlier.dependents
        )

    @property
    def log_paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.stdout_path, self.stderr_path, *self.more_log_paths) if path))

    def own_node(self, named: str) -> NodeName | None:
        """The job's node of this name, with or without a domain; None where it has none such.

        What a log names is its author's text: only a node that the scheduler gave to the job is contacted, drained or
        avoided."""
        short = named.partition(".")[0]
        return next((node for node in self.nodes if node == named or node.partition(".")[0] == short), None)


@dataclass(frozen=True, slots=True)
class JobScript:
    """The batch script as the scheduler kept it at submission."""

    text: str
    source: str
    """"sacct -B", "scontrol write batch_script", "local", "file"."""


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The submitter's environment, where accounting kept it (`AccountingStoreFlags=job_env`)."""

    variables: dict[str, str] = field(default_factory=dict, repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What was written down before a job was submitted: what the controller has to say of it for it to be ours."""

    owner: UserName
    """The original job's."""
    uid: int | None
    cluster: str
    token: str
    """`runbook:<incident>:<attempt>:<random>`, with which the job's comment begins."""
    written_s: float


@dataclass(frozen=True, slots=True)
class Submission:
    """What to submit. The scheduler adapter runs it as the claim's owner from `work_dir`."""

    claim: Claim
    work_dir: str
    script_path: str
    options: tuple[str, ...] = ()
    """sbatch options that replace or add to those of the original submit line."""
    script_arguments: tuple[str, ...] = ()
    environment: JobEnvironment | None = None
    takes_dependents: bool = False
    """Whether the owner's jobs that wait for the original by afterok are to wait for this one."""


MARK = "runbook:"
"""With this begin the tokens that this tool leaves outside, by which it finds again what it did."""


class NodeClass(StrEnum):
    """What a node can be used for, judged from its Slurm state and flags."""

    AVAILABLE = "available"
    BUSY = "busy"
    DRAINED = "drained"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the scheduler sees it. `reason` is whoever's reason for a drain, verbatim."""

    name: NodeName
    node_class: NodeClass
    states: tuple[str, ...] = ()
    reason: str = ""
    gpus: int | None = None
    gpus_allocated: int | None = None
    partitions: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """The token in front of the reason where this tool drained the node; "" where somebody else did."""
        first = self.reason.split(" ")[0]
        return first if first.startswith(MARK) else ""
