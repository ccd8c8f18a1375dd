"""What a node says about its GPUs, the judgement on it, and what `runbook node` answers.

Every figure may be `Unknown`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from runbook.model.catalogues import XidClass
from runbook.model.job import NodeState
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName
from runbook.model.units import NodeVerdict as NodeVerdict


class Reach(StrEnum):
    """Whether the node answered. Anything but OK makes every figure unknown, never clean."""

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    HOST_KEY = "host_key"
    AUTHENTICATION = "authentication"
    ERROR = "error"


LEFT_BY_EPILOG = "left by the epilog"
"""How the detail of facts begins that were written on the node when its job ended, and are no look of ours."""


class Cause(Enum):
    """Causes for which a figure could not be read that the judgement asks for."""

    DRIVER_MISMATCH = auto()
    """A driver that was updated and not loaded anew: its library does not fit it (NVML error 18)."""
    UNKNOWN_ERROR = auto()
    """The driver's tool says "Unknown Error", which it does not for a healthy GPU."""


@dataclass(frozen=True, slots=True)
class Unread(Unknown):
    """A figure that could not be read, for one of these causes."""

    cause: Cause


IN_TEXT_ONLY = Unknown(
    "it stands only in the text of the kernel log, where a user of the node can have a line of his own (a line break "
    "in a mount option); a record of /dev/kmsg would tell"
)
"""Why an event is evidence for a person and never for a drain."""


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
    witness: bool | Unknown = IN_TEXT_ONLY
    """True: the kernel's own whole record says so, which no user can be the author of. Else why that is not known."""


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
    gpu_instance: int | None = None
    """Of a GPU in MIG mode, the instance that it runs on; None: the whole GPU, or not told."""
    compute_instance: int | None = None
    mps_client: bool = False
    """It shares the GPU through MPS."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of a GPU in MIG mode, with memory of its own."""

    uuid: str = ""
    name: str = ""
    """With the profile at its end: "NVIDIA H100 80GB HBM3 MIG 3g.40gb"."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    total_bytes: Bytes | Unknown = Unknown("not read")
    used_bytes: Bytes | Unknown = Unknown("not read")
    free_bytes: Bytes | Unknown = Unknown("not read")


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
    minor: int | Unknown = Unknown("not read")
    """N of its device file /dev/nvidiaN. It need not be `index`, which is the driver's own order, by PCI bus."""
    mig_instances: tuple[MigInstance, ...] | Unknown = Unknown("not read")
    """() where MIG is off."""
    ecc_enabled: bool | Unknown = Unknown("not read")
    compute_mode: str | Unknown = Unknown("not read")
    """"default", "exclusive_process", "prohibited": who may start a program on it."""


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A process of MPS on the node."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What the memory cgroup of a job that is on the node now says: main memory, not the GPU's."""

    job: JobId | Unknown
    limit_bytes: Bytes | None | Unknown = Unknown("not read")
    """None: there is no limit."""
    used_bytes: Bytes | Unknown = Unknown("not read")
    peak_bytes: Bytes | Unknown = Unknown("not read")
    oom_kills: int | Unknown = Unknown("not read")
    """How often the kernel killed a process there for want of memory."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """A process that the node's kernel killed for want of main memory."""

    pid: int
    time_s: float | None
    name: str = ""
    """As the process called itself."""
    job: JobId | None | Unknown = Unknown("the line names no cgroup")
    """None: it was in no cgroup of Slurm's."""
    whole_node: bool | Unknown = Unknown("the line does not say")
    """The node's memory was used up (True), or the limit of a cgroup (False)."""
    in_window: bool | Unknown = True


@dataclass(frozen=True, slots=True)
class SlurmGpus:
    """How the node's slurmd numbers GPUs, from its gres.conf: index i of a job's `IDX` is the i-th of them."""

    path: str
    """The gres.conf that was read."""
    autodetect: str = ""
    """"nvml", "nvidia", …: slurmd finds the GPUs itself and, with NVML, numbers them in the driver's order. "": off."""
    files: tuple[str, ...] = ()
    """Device files in the file's order, without AutoDetect."""
    constrained: bool | Unknown = Unknown("not read")
    """Whether Slurm keeps a job from the device files of GPUs that it was not given (ConstrainDevices)."""


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
    software_fault: str = ""
    """Why no program can use the GPUs though nothing says that the hardware is at fault: a driver that was updated and
    not loaded anew."""
    mps: tuple[DaemonProcess, ...] | Unknown = Unknown("not read")
    job_memory: tuple[JobMemory, ...] | Unknown = Unknown("not read")
    oom_kills: tuple[OomKill, ...] | Unknown = Unknown("not read")
    """Oldest first, of all times that the kernel log covers."""
    slurm_gpus: SlurmGpus | Unknown = Unknown("not read")

    @property
    def left_by_epilog(self) -> bool:
        """The node's own epilog wrote them when the job ended: they tell nothing of how the node looks now."""
        return self.reach_detail.startswith(LEFT_BY_EPILOG)


class JobStanding(StrEnum):
    """Whether the job of a process still runs."""

    LIVE = "live"
    """It has not ended: running, completing, suspended, or in a state that nobody knows."""
    ENDED = "ended"
    FORGOTTEN = "forgotten"
    """The scheduler knows no such job any more."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The job of a process that was found on a GPU, as the scheduler sees it."""

    id: JobId
    standing: JobStanding
    detail: str = ""
    """The scheduler's state ("COMPLETED"), or why it is not known."""


class NodeAction(StrEnum):
    """What to do about one finding, or about the node."""

    DRAIN = auto()
    EXCLUDE = auto()
    """The next attempt goes to other nodes; this one stays in service."""
    END_LEAKED_PROCESS = auto()
    """Only where the inventory allows it and the second look agrees with the first."""
    WAIT_FOR_TENANT = auto()
    REPORT_TO_OWNER = auto()
    RESET_WHEN_IDLE = auto()
    WATCH = auto()
    IGNORE = auto()
    UNKNOWN = auto()
    """A person decides: it could not be read, or nobody has published what it means."""


class Reports(StrEnum):
    """What the finding of a rule says, for those who ask a judgement that was made."""

    TENANT = auto()
    """A process of a job that runs."""
    LEAK = auto()
    """A process of a job that has ended."""
    OWN_PROCESS = auto()
    HIDDEN_MEMORY = auto()
    """Memory in use by no process."""
    MEMORY_IN_DOUBT = auto()
    """The memory cannot be said to be free."""
    WITHOUT_WINDOW = auto()
    """An event of which nobody says whether it counts."""
    WORTH_A_DIAGNOSIS = auto()
    """A warning that a diagnostic run may explain."""
    OF_NO_ACCOUNT = auto()
    """In order: no reason of a verdict."""


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
    job_gpus: tuple[int, ...] | Unknown = Unknown("not judged")
    """The node's indices of the GPUs that counted as the job's; Unknown: which they are is not known, and all did."""
    job_gpus_source: str = ""
    """What told them."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of a job as `/proc` shows it: the receipt that a lever reached the ranks."""

    node: NodeName
    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Only the variables that were asked for."""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """One node."""

    facts: NodeFacts
    judgement: NodeJudgement
    state: NodeState | None = None
    """As the scheduler sees it; None: not known, see `NodeCheck.scheduler_unknown`."""


@dataclass(frozen=True, slots=True)
class XidWords:
    """What an Xid code means by itself."""

    xid_class: XidClass
    title: str
    action: str = ""
    """The vendor's action, in the vendor's words."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """All nodes of one question, in the order in which they were named."""

    nodes: tuple[CheckedNode, ...]
    checked_at_s: float
    job: JobId | None = None
    """The job whose nodes, window and processes are meant; None: nobody's."""
    job_state: str = ""
    since_s: float | None = None
    """From when to when the kernel log counts. Both None without job and time: nothing counts for anybody."""
    until_s: float | None = None
    jobs: tuple[FoundJob, ...] = ()
    """Of the processes that were found on the GPUs."""
    scheduler_unknown: str = ""
    """Why node states and jobs are not known; "": they are."""
    not_answered: tuple[NodeName, ...] = ()
    """Nodes that had not answered when the check was interrupted."""
    xids: Mapping[int, XidWords] = field(default_factory=dict)
    """The codes that stand in the nodes' kernel logs."""
    reports: Mapping[str, frozenset[Reports]] = field(default_factory=dict)
    """What a finding says, by its rule. Not part of the document."""

    def says(self, finding: NodeFinding, what: Reports) -> bool:
        return what in self.reports.get(finding.rule, ())


class EndedHow(StrEnum):
    TERMINATED = "terminated"
    """It ended after SIGTERM."""
    KILLED = "killed"
    """It ended by SIGKILL, after the time of grace."""
    GONE = "gone"
    """There was nothing to end any more."""
    REFUSED = "refused"
    """Nothing was sent: the node's own look spoke against it, or it was not allowed."""
    STILL_THERE = "still_there"
    """It was sent a signal and has not ended."""
    UNKNOWN = "unknown"
    """The node did not answer; what was sent is not known."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The node's answer, with a sentence on it."""

    how: EndedHow
    detail: str = ""
