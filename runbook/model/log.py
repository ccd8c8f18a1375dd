"""What was read from launcher logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from runbook.model.diagnosis import Kind, Kinds
from runbook.model.sentences import Sentence
from runbook.model.units import Bytes, NodeName


class Phase(StrEnum):
    """Where in the training loop a process was. The words of the diagnosis contract."""

    INIT = "init"
    RESUME = "resume"
    """A checkpoint is loaded: what is read stands beside what is there already."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    VALIDATION = "validation"
    """An evaluation loop of the training job, with its own batch size."""
    LOG_PROBS = "log_probs"
    WEIGHT_SYNC = "weight_sync"
    ROLLOUT = "rollout"
    CHECKPOINT = "checkpoint"
    DATA_LOADING = "data_loading"
    COLLECTIVE = "collective"
    UNKNOWN = "unknown"


class Event(StrEnum):
    """What a log line reports, beyond what it means: the words of `reports` in a signature's document."""

    TRACEBACK = "traceback"
    """A Python traceback begins."""
    EXCEPTION = "exception"
    """An exception that no signature knows by its words; `detail` is what it says."""
    OTHER_FILE = "other_file"
    """What follows is of the file that the line names (`where`)."""
    RESTART = "restart"
    """The job's processes were started again."""
    WORKER = "worker"
    """A launcher's list of its workers: rank, process and address (`detail`)."""
    VISIBLE_DEVICES = "visible_devices"
    """The GPUs that a process was given (`detail`)."""
    DEVICE_SET = "device_set"
    """A rank sets its device."""
    COMMUNICATOR = "communicator"
    """A process becomes a member of a communicator: its node's GPU, its number there."""
    GPU_PROCESS = "gpu_process"
    """The driver's list of processes, printed into the log, names one with its memory."""
    ENGINE_STARTS = "engine_starts"
    """An inference engine of the job's own starts; `framework` names it."""
    CHECKPOINT_SAVED = "checkpoint_saved"
    """A checkpoint was written, at the step that was done last where the line names none."""
    FROM_SCRATCH = "from_scratch"
    """No checkpoint was loaded; training begins anew."""
    FAILURE_ROW = "failure_row"
    """A row of a launcher's table of failures: rank, node, process and exit code."""
    PROCESS_EXIT = "process_exit"
    """A launcher saw a process of its own leave, with the exit code; `tasks` where it is a task."""
    SHM_ROOM = "shm_room"
    """A table says how large shared memory is."""
    GROUP_ROOM = "group_room"
    """The kernel says what a control group may hold."""
    CARD_ROOM = "card_room"
    """A table says how large a card or an allocator's pool is."""
    LAST_WORD = "last_word"
    """An error that a program reports at its end: it counts where nothing else tells what ended it."""
    OWN_END = "own_end"
    """A process's own last words: it left with an error."""
    TASK_END = "task_end"
    """srun saw a task end."""
    OWN_TASK = "own_task"
    """Whom a report of the OOM killer blames is a task of the step itself, never a helper."""
    CLOSING = "closing"
    """A launcher ends the process that the line names: that one did not end by itself."""
    TAKES_DOWN = "takes_down"
    """A launcher ends the others; a line that names no rank says nothing of anybody."""
    SIGKILL = "sigkill"
    """A process received SIGKILL."""
    NCCL = "nccl"
    """NCCL or its watchdog speaks: a rank in such a line is numbered within its process group."""
    PEER = "peer"
    """What became of another process, as one hears of it that worked with it."""
    COLLECTIVE_FAILED = "collective_failed"
    """A collective broke off."""
    WATCHDOG = "watchdog"
    """A collective's watchdog speaks: its own rank was waiting."""
    WATCHDOG_TIMEOUT = "watchdog_timeout"
    """And its patience was over: all who wait in one collective say so at about the same time."""
    KERNEL_XID = "kernel_xid"
    """The kernel's own record of an XID."""
    CUDA_CALL = "cuda_call"
    """A CUDA call of a process that the card did not answer."""
    GARBAGE_SIZE = "garbage_size"
    """The size that was asked for is none."""
    LOADER_BUS_ERROR = "loader_bus_error"
    """A data loading worker died of a bus error: by its own word, or by that of the rank whose worker it was."""
    ABORT = "abort"
    """A process aborted itself, as a watchdog makes it do, too."""
    OWN_STATUS = "own_status"
    """A program says with which status it leaves."""
    EXPANDABLE_SEGMENTS = "expandable_segments"
    """A call failed that only expandable segments make."""
    ALLOCATOR_RETRIES = "allocator_retries"
    """The allocator tried again, or handled a failure: pressure from fragments."""
    FREE_ESTIMATED = "free_estimated"
    """Its free memory is an estimate: the device's capacity less what PyTorch reserved."""
    CARD_OR_PINNED = "card_or_pinned"
    """The same words are printed for the card's memory and for pinned memory of the host."""
    KERNEL_STAMP = "kernel_stamp"
    """The line stands in the kernel's own form."""
    NO_KERNEL_STAMP = "no_kernel_stamp"
    """The line reads like the kernel's, without its stamp: anybody may print it."""
    CAPTURE_ADVICE = "capture_advice"
    """What an engine advises when it could not capture its graphs."""
    TRANSFER_BROKE = "transfer_broke"
    """A transfer between ranks timed out or broke."""
    CONNECTION_LOST = "connection_lost"
    """A rank lost the connection to another one."""
    STEP_CANCELLED = "step_cancelled"
    """Slurm cancelled the step, by whomever and for whatever reason."""
    PROBES = "probes"
    """An allocator asked for less and less until it was given something; it counts where nothing else failed."""
    BY_CANCELLING = "by_cancelling"
    """What cancelling a step does to all of its processes alike; without a failure, too."""


class FrameworkRole(StrEnum):
    """What a program of a training job does with the cards."""

    TRAINER = "trainer"
    COLOCATED = "colocated"
    """It trains, and puts an inference engine on the same cards, by default or by an option."""
    ENGINE = "engine"
    """It infers, for rollouts."""


@dataclass(frozen=True)
class Framework:
    """A program that training jobs run, as the documents know it."""

    id: str
    role: FrameworkRole
    folder: str = ""
    """Folder of its sources, as paths in its frames show it; "" where other paths hold that word, too."""
    words: tuple[str, ...] = ()
    """Of an engine: words in a traceback, in small letters, any of which shows that the engine is in it."""

    @cached_property
    def in_frames(self) -> re.Pattern[str]:
        """Finds one of its sources; only where it has a folder."""
        return re.compile(rf"[/ .(]{re.escape(self.folder)}/[\w/]{{1,200}}\.py")


@dataclass(frozen=True, slots=True)
class SignatureTraits:
    """What a signature's document says of every line that matches."""

    reports: frozenset[Event] = frozenset()
    engine: str = ""
    """The inference engine that prints it."""
    general: bool = False
    """It reads the shape of a failure, whoever printed it."""


_NO_TRAITS = SignatureTraits()


@dataclass(frozen=True, slots=True)
class Meanings:
    """What the documents of a playbook say of what a story names: kinds, signatures, programs."""

    kinds: Kinds
    signatures: Mapping[str, SignatureTraits]
    frameworks: tuple[Framework, ...]

    def of(self, signature: str) -> SignatureTraits:
        """Findings that follow from several lines have none."""
        return self.signatures.get(signature, _NO_TRAITS)

    def reports(self, signature: str, *events: Event) -> bool:
        """Whether lines of a signature tell any of these."""
        return not self.of(signature).reports.isdisjoint(events)

    def framework(self, name: str) -> Framework | None:
        """The program that a story names, if the documents know it."""
        return next((one for one in self.frameworks if one.id == name.lower()), None)


class DerivedSignature(StrEnum):
    """Names of findings that follow from several lines, so that no signature document holds them."""

    RANK_SILENT = "RANK-SILENT"
    """A rank that printed no timeout, or stopped printing, while the others went on."""
    RANK_BEHIND = "RANK-BEHIND"
    """A rank that queued less work than the others."""
    RANK_ENDED = "RANK-ENDED"
    """A rank that ended by itself without a word."""
    RANK_KILLED = "RANK-KILLED"
    """A rank that died by SIGKILL."""
    RANK_SPOKE = "RANK-SPOKE"
    """The rank whose end is told first, by itself or by its launcher, where none of them says why."""


SUSPECTED_RANKS = frozenset(DerivedSignature)
"""Those that name a rank to look at, without a line of its own."""
ENDED_RANKS = frozenset({DerivedSignature.RANK_ENDED, DerivedSignature.RANK_KILLED})
"""Of these, those whose end a launcher reports: who failed first is known, and not why."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that the message lists on the same GPU."""

    pid: int
    bytes: Bytes | None
    """None where NVML gave a sentinel (17179869184.00 GiB) instead of a size."""


@dataclass(frozen=True, slots=True)
class MemoryFields:
    """The figures of an out-of-memory message in bytes; None is "the message does not say"."""

    tried_bytes: Bytes | None = None
    capacity_bytes: Bytes | None = None
    free_bytes: Bytes | None = None
    allocated_bytes: Bytes | None = None
    reserved_unallocated_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    process_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    private_pool_bytes: Bytes | None = None
    shared_bytes: Bytes | None = None
    """Of host memory of the process: shared memory (tmpfs, /dev/shm, shared mappings), as the kernel counts it."""
    other_processes: tuple[ProcessUse, ...] = ()
    rounding_bytes: Bytes | None = None
    """Largest error that the message's print format (two decimals of a unit) puts on a sum of its figures."""

    @property
    def reserved(self) -> int | None:
        """R-01: by PyTorch; of a message that says only what of it is allocated and what is not, their sum."""
        if self.reserved_bytes is None and None not in (self.allocated_bytes, self.reserved_unallocated_bytes):
            return (self.allocated_bytes or 0) + (self.reserved_unallocated_bytes or 0)
        return self.reserved_bytes

    @property
    def unallocated(self) -> int | None:
        """R-01: reserved and not allocated; of a message that prints both (before PyTorch 2.0) what lies between
        them, which rounding never makes negative."""
        if self.reserved_unallocated_bytes is None and None not in (self.reserved_bytes, self.allocated_bytes):
            return max(0, (self.reserved_bytes or 0) - (self.allocated_bytes or 0))
        return self.reserved_unallocated_bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One match of a signature in a log, attributed as far as the log allows."""

    signature: str
    means: Kind
    """What the signature says it is: a diagnosis kind, "consequence", "harmless" or "framing"."""
    file: str
    offset: int
    line: int
    excerpt: str
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    device: int | None = None
    """GPU index inside the process's CUDA_VISIBLE_DEVICES, not the node's."""
    node_device: str | None = None
    """The node's GPU (index, or the GPU-… or MIG-… name) where the log shows the process's CUDA_VISIBLE_DEVICES."""
    time_s: float | None = None
    step: int | None = None
    phase: Phase = Phase.UNKNOWN
    fields: MemoryFields = field(default_factory=MemoryFields)
    framework_version: str | None = None
    detail: str = ""
    """What kind of its kind the line alone shows (a value of the diagnosis's detail); "" where it leaves that open."""
    firmness: float | None = None
    """How firm the line alone is in what it means, 0 to 1; null where its signature does not say."""
    frames: tuple[str, ...] = ()
    """Names of the functions in the traceback that belongs to the line, outermost first, at most 80."""
    quoted: bool = False
    """It stands inside a sentence of the job's own text, which may quote it: a sample, a chat, a data set."""
    speaker: str = ""
    """The process that says it, by the name in its prefix: "WorkerDict", "RolloutManager", "EngineCore"."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """A memory figure that the framework printed: bytes at a step of a rank."""

    rank: int | None
    step: int | None
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    max_allocated_bytes: Bytes | None = None
    max_reserved_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None
    """All that is in use on the card, whoever holds it."""
    host_used_bytes: Bytes | None = None
    """Host memory of the process or the node, as the framework prints it."""
    tokens: int | None = None
    """Tokens of this step, or the longest sequence in it, where the framework prints it."""
    where: str = ""
    """The place in the program that the line names ("After update_actor"), numbers as "#"."""
    source: str = ""
    """Signature of the line. Figures of different lines are not compared."""
    peaks: str = ""
    """Of the greatest values: "reset" after each print, "running" since the start, "" not known."""
    host_is_process: bool = False
    """`host_used_bytes` is of this process alone, not of the node."""
    device_total_bytes: Bytes | None = None
    time_s: float | None = None
    """Stamp of the line, as epoch seconds."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step took, as the log gives it or as the stamps of its lines tell."""

    step: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job came. `last_step` is the last *completed* step over all ranks that print one."""

    last_step: int | None = None
    total_steps: int | None = None
    first_step: int | None = None
    last_step_by_rank: dict[int, int] = field(default_factory=dict)
    step_duration_s: float | None = None
    step_times: tuple[StepTime, ...] = ()
    """Along the steps of one rank, at most 256 of the lines that were read (of a long log, samples), the slowest and
    fastest among them. Where no line prints a duration, it is the time from one line to the next, a step's share."""
    resumed_from_step: int | None = None
    from_scratch: bool = False
    """The log says that no checkpoint was loaded and training begins anew."""
    saved_steps: tuple[int, ...] = ()
    """Steps at which the log says that a checkpoint was written."""
    memory: tuple[MemorySample, ...] = ()
    numbered_from: int = 1
    """How the program numbers its first step, 0 or 1; steps here are the program's own numbers."""


@dataclass(frozen=True, slots=True)
class Collateral:
    """A rank that hung or died because of the root cause."""

    rank: int | None
    node: NodeName | None
    why: Sentence
    signature: str = ""
    signal: str = ""
    """Name of the signal that ended it ("SIGKILL"), where a line tells."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """One log file that was read."""

    path: str
    size_bytes: int
    bytes_read: int
    note: str = ""
    """What a reader must know: "binary data skipped", "read the last 64 MiB only"."""
    cut: bool = False
    """More is there that was not read, as it is too much: that no failure was seen says nothing."""


@dataclass(frozen=True, slots=True)
class LogStory:
    """All that the logs of one job say: the first failure, what followed, and how far it came."""

    root_cause: Finding | None
    candidates: tuple[Finding, ...] = ()
    """Other findings that could be first, with the reason in `notes` when there was a tie."""
    collateral: tuple[Collateral, ...] = ()
    harmless: tuple[Finding, ...] = ()
    progress: Progress = field(default_factory=Progress)
    framework: str | None = None
    framework_version: str | None = None
    """PyTorch version where the log or the wording tells it: "2.6.0" or a range "2.4-2.13"."""
    world_size: int | None = None
    rank_nodes: dict[int, NodeName] = field(default_factory=dict)
    rank_pids: dict[int, int] = field(default_factory=dict)
    """Process ids that the log itself gives for ranks: a process of a message that is one of these is the job's own."""
    own_pids: tuple[int, ...] = ()
    """Process ids in the prefixes of the job's own lines, ranks or not: its engines, its helpers."""
    engines: tuple[str, ...] = ()
    """Inference engines that speak in these logs ("vllm", "sglang"): the job has one of its own."""
    settings: dict[str, str] = field(default_factory=dict)
    """Allocator variables that the log itself shows, and what it says of them."""
    process_ended: bool = False
    """A launcher, Slurm or the process itself says that one ended, other than well."""
    sources: tuple[LogSource, ...] = ()
    notes: tuple[Sentence, ...] = ()

    @property
    def ended_first(self) -> Finding | None:
        """Where no line tells the first failure: the process that a launcher reports to have ended first."""
        first = self.suspected_first
        return first if first is not None and first.signature in ENDED_RANKS else None

    @property
    def suspected_first(self) -> Finding | None:
        """Where no line tells the first failure: whom to look at first, by whose end is told first and by who waited
        for whom; it may follow from another's."""
        if self.root_cause is not None:
            return None
        return next((one for one in self.candidates if one.signature in SUSPECTED_RANKS), None)
