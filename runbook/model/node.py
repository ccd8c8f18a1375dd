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
    last_time_s: float | None = None
    """Of repeated lines the last one's; None for a single line."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with memory on a GPU, with whose it is."""

    pid: int
    used_bytes: Bytes | Unknown
    name: str = ""
    owner: UserName | Unknown = Unknown("not looked up")
    job: JobId | None | Unknown = Unknown("not looked up")
    """None: it belongs to no Slurm job. A job id: the job's, running or ended."""
    age_s: float | Unknown = Unknown("not looked up")
    local_rank: int | None = None
    start_ticks: int | Unknown = Unknown("not looked up")
    """Field 22 of /proc/PID/stat: with the number it names the process and no later one of the same number."""
    cgroup: str | Unknown = Unknown("not looked up")
    """The path that names its Slurm job, else its last one."""


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
    retired_pages: int | Unknown = Unknown("not read")
    """Pages taken out so far, for single-bit and double-bit errors together: Turing and older."""


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


class NodeAction(StrEnum):
    """What to do about one finding, or about the node."""

    DRAIN = "drain"
    EXCLUDE = "exclude"
    """The next attempt goes to other nodes; this one stays in service."""
    END_LEAKED_PROCESS = "end_leaked_process"
    """Only where the inventory allows it and the second look agrees with the first."""
    WAIT_FOR_TENANT = "wait_for_tenant"
    REPORT_TO_OWNER = "report_to_owner"
    RESET_WHEN_IDLE = "reset_when_idle"
    WATCH = "watch"
    IGNORE = "ignore"
    UNKNOWN = "unknown"
    """A person decides: it could not be read, or nobody has published what it means."""


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One rule that found something on the node."""

    rule: str
    """Its name, as docs/node-check.md lists it."""
    action: NodeAction
    text: str
    gpu: int | None = None
    """The node's index; None where it concerns the node."""
    source: str = ""


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
    action: NodeAction = NodeAction.UNKNOWN
    """What follows for the node."""
    findings: tuple[NodeFinding, ...] = ()
    """Every rule that found something, the one that decided first."""
    hidden_bytes: Bytes = Bytes(0)
    """Memory in use that no listed process holds, where it is more than a driver's own: on the failing GPU, or on all
    of the job's where that is not known."""
    failing_gpu: int | None = None
    """The node's index of the GPU that ran out of memory, where it is known."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of a job as `/proc` shows it: the receipt that a lever reached the ranks."""

    node: NodeName
    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Only the variables that were asked for."""
    rank: int | None = None
