"""What a node says about its GPUs. Every figure may be `Unknown`, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName


class Reach(StrEnum):
    """Whether the node answered. Anything but OK makes every figure unknown, never clean."""

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    HOST_KEY = "host_key"
    AUTHENTICATION = "authentication"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID line of the kernel log; repeated lines are one event with a count."""

    code: int
    time_s: float | None
    bus_id: str
    line: str
    count: int = 1
    pid: int | None = None
    in_window: bool | Unknown = True
    on_job_gpu: bool | Unknown = True


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a GPU, with whose it is."""

    pid: int
    used_bytes: Bytes | Unknown
    name: str = ""
    owner: UserName | Unknown = Unknown("not looked up")
    job: JobId | None | Unknown = Unknown("not looked up")
    """None: it belongs to no Slurm job. A job id: the job's, running or ended."""
    age_s: float | Unknown = Unknown("not looked up")
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of the node; index is the node's own, -1 for a lost GPU whose number nobody can tell."""

    index: int
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    total_bytes: Bytes | Unknown = Unknown("not read")
    used_bytes: Bytes | Unknown = Unknown("not read")
    free_bytes: Bytes | Unknown = Unknown("not read")
    ecc_uncorrectable_volatile: int | Unknown = Unknown("not read")
    ecc_uncorrectable_aggregate: int | Unknown = Unknown("not read")
    sram_threshold_exceeded: bool | Unknown = Unknown("not read")
    row_remap_pending: bool | Unknown = Unknown("not read")
    row_remap_failed: bool | Unknown = Unknown("not read")
    recovery_action: str | Unknown = Unknown("not read")
    mig_enabled: bool | Unknown = Unknown("not read")
    lost: bool = False
    processes: tuple[GpuProcess, ...] | Unknown = Unknown("not read")
    unrepairable_memory: bool | Unknown = Unknown("not read")
    repair_pending: bool | Unknown = Unknown("not read")
    """A memory channel or compute block marked for repair at the next reset (driver 590 and later)."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The answer of one node check."""

    node: NodeName
    reach: Reach
    reach_detail: str = ""
    checked_at_s: float | None = None
    driver: str | Unknown = Unknown("not read")
    gpus: tuple[GpuFacts, ...] | Unknown = Unknown("not read")
    expected_gpus: int | None = None
    xids: tuple[XidEvent, ...] | Unknown = Unknown("not read")
    log_covers_since_s: float | None | Unknown = Unknown("not read")
    """Oldest time that the kernel log still covers; later than the job's start means "window not covered"."""
    commands: tuple[str, ...] = ()
    """What was run there, for the report."""
    simulated: bool = False
    partial_view: str = ""
    """Why this session may not have seen all GPUs: it ran inside a job's cgroup or a container."""


class NodeVerdict(StrEnum):
    """What follows for the node from its facts."""

    CLEAN = "clean"
    """No hardware evidence found; not "the hardware is fine"."""
    FAULTY = "faulty"
    OCCUPIED = "occupied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeJudgement:
    """The pure judgement on `NodeFacts`: verdict, why, and what was not seen."""

    node: NodeName
    verdict: NodeVerdict
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    tenants: tuple[GpuProcess, ...] = ()
    faulty_gpus: tuple[int, ...] = ()
    drain: bool = False
    """True only for a fault whose rule says drain; never for unknown, never for a tenant."""
    source: str = ""
    """The rule that decided, with the vendor's document."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of a job as `/proc` shows it: the receipt that a lever reached the ranks."""

    node: NodeName
    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Only the variables that were asked for."""
    rank: int | None = None
