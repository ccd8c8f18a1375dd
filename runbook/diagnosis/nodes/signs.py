"""What the judgement on a node is made of: the rules, one sign a finding, what a site decides, the job's GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from runbook.model.node import GpuFacts, NodeAction, NodeFinding
from runbook.model.units import GIB, MIB, Bytes

# The rules of the node check: one for each row of the decision table, with what follows from it.
#
# The table says what to do about a finding on a GPU of the job; hardware is seldom the reason of an out-of-memory
# error, and a node drained for nothing costs all its GPUs. So only a rule whose weight is DRAIN drains, what nobody can
# read or has published a meaning for is UNDETERMINED, and no tenant is ever a reason to drain.

class Weight(IntEnum):
    """What a sign does to the verdict, the heaviest first."""

    DRAIN = 6
    """Faulty: the rule says drain."""
    ELSEWHERE = 5
    """Faulty: hardware hit the job; the next run goes to another node, the node itself is not drained."""
    OCCUPIED = 4
    """Memory of the job's GPU is in other hands."""
    UNDETERMINED = 3
    """Something that nobody can read or judge from here: the node is neither clean nor faulty."""
    WARN = 2
    NOTE = 1


class Rule(StrEnum):
    """Names of the rules, as the findings, the scenarios and docs/node-check.md use them."""

    ROW_REMAP_FAILED = "row_remap_failed"
    SRAM_THRESHOLD = "sram_threshold"
    UNREPAIRABLE_MEMORY = "unrepairable_memory"
    RETIREMENT_TABLE_FULL = "retirement_table_full"
    XID_FAILED_REPAIR = "xid_failed_repair"
    GPU_LOST = "gpu_lost"
    GPU_MISSING = "gpu_missing"
    XID_GPU_GONE = "xid_gpu_gone"
    RECOVERY_ACTION = "recovery_action"
    XID_RECOVERY_ACTION = "xid_recovery_action"
    XID_RESET_NEEDED = "xid_reset_needed"
    XID_RESET_SINCE = "xid_reset_since"
    XID_CONTAINED_ERROR = "xid_contained_error"
    ROW_REMAP_PENDING = "row_remap_pending"
    REPAIR_PENDING = "repair_pending"
    XID_PENDING_RESET = "xid_pending_reset"
    XID_LINK_FATAL = "xid_link_fatal"
    XID_LINK = "xid_link"
    XID_WATCH = "xid_watch"
    UNCORRECTABLE_ERRORS = "uncorrectable_errors"
    MANY_RETIRED_PAGES = "many_retired_pages"
    XID_APPLICATION = "xid_application"
    XID_INFORMATIONAL = "xid_informational"
    XID_QUALIFIER = "xid_qualifier"
    XID_REPEATED_IN_JOBS = "xid_repeated_in_jobs"
    XID_OTHER_TIME = "xid_other_time"
    XID_NO_TIME = "xid_no_time"
    XID_UNKNOWN = "xid_unknown"
    SWITCH_FATAL = "switch_fatal"
    SWITCH_EVENT = "switch_event"
    TENANT_RUNNING = "tenant_running"
    TENANT_ENDED_JOB = "tenant_ended_job"
    TENANT_NO_JOB = "tenant_no_job"
    TENANT_UNKNOWN_JOB = "tenant_unknown_job"
    OWN_PROCESS = "own_process"
    KNOWN_HELPER = "known_helper"
    PROCESS_UNKNOWN = "process_unknown"
    HIDDEN_MEMORY = "hidden_memory"
    MEMORY_BELOW_MODEL = "memory_below_model"
    MEMORY_RESERVED = "memory_reserved"
    MIG = "mig"
    ECC_UNREADABLE = "ecc_unreadable"
    DRIVER_MISMATCH = "driver_mismatch"
    NO_GPU = "no_gpu"
    NOT_READ = "not_read"
    NOT_REACHED = "not_reached"
    RULED_OUT = "ruled_out"


@dataclass(frozen=True, slots=True)
class RuleMeaning:
    """What a rule stands for, and what follows where no policy and no circumstance says otherwise."""

    shows: str
    """What was found, for docs/node-check.md."""
    row: str
    """Its row of the decision table."""
    weight: Weight
    action: NodeAction


_HARDWARE = "remap failure, SRAM threshold, unrepairable memory, Xid 64 (true failure), 157, 161 in the window"
_GONE = "NVML 14/15/16, GPU count below Gres, Xid 79, 143, 167"
_RESET = "Xid 48, 95, 140, 168; 46, 62, 110, 119, 120, 158, 169 in the window; recovery action not None"
_PENDING = "pending remap or retirement, Xid 63, 156, 160, 177, channel or TPC repair pending"
_LINK = "Xid 74, 136, 144-150"
_WATCH = "Xid 92, corrected counts rising, other weak evidence"
_LEAKED = "foreign PID, no job or dead job"
_UNREAD = "unknown Xid, unreadable log, SSH error, timeout"

RULES: dict[Rule, RuleMeaning] = {
    Rule.ROW_REMAP_FAILED: RuleMeaning(
        "remapping a memory row has failed", _HARDWARE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.SRAM_THRESHOLD: RuleMeaning(
        "SRAM has more uncorrectable errors than the vendor's threshold", _HARDWARE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.UNREPAIRABLE_MEMORY: RuleMeaning(
        "memory that cannot be repaired", _HARDWARE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.RETIREMENT_TABLE_FULL: RuleMeaning(
        "63 retired pages or more (Turing and older)", _HARDWARE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_FAILED_REPAIR: RuleMeaning(
        "Xid 64 (a true failure), 157, 161 in the window", _HARDWARE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.GPU_LOST: RuleMeaning(
        "NVML 14, 15, 16: the driver cannot reach the GPU", _GONE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.GPU_MISSING: RuleMeaning(
        "fewer GPUs than Slurm's Gres", _GONE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_GPU_GONE: RuleMeaning(
        "Xid 79, 143, 167 in the window", _GONE,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.RECOVERY_ACTION: RuleMeaning(
        "the driver asks for a recovery action now", _RESET,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_RECOVERY_ACTION: RuleMeaning(
        "Xid 154 in the window, its action not None and not done since", _RESET,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_RESET_NEEDED: RuleMeaning(
        "Xid 46, 48, 62, 95, 110, 119, 120, 140, 158, 168, 169 in the window", _RESET,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_RESET_SINCE: RuleMeaning(
        "such a code, or Xid 154, and the driver asks for nothing since", _RESET,
        Weight.ELSEWHERE, NodeAction.EXCLUDE,
    ),
    Rule.XID_CONTAINED_ERROR: RuleMeaning(
        "Xid 94 in the window: one program was hit", "Xid 94 in the window",
        Weight.ELSEWHERE, NodeAction.EXCLUDE,
    ),
    Rule.ROW_REMAP_PENDING: RuleMeaning(
        "a row or page waits to be taken out at the next reset", _PENDING,
        Weight.WARN, NodeAction.RESET_WHEN_IDLE,
    ),
    Rule.REPAIR_PENDING: RuleMeaning(
        "a memory channel or compute block waits for repair", _PENDING,
        Weight.WARN, NodeAction.RESET_WHEN_IDLE,
    ),
    Rule.XID_PENDING_RESET: RuleMeaning(
        "Xid 63, 156, 160, 177, 185 in the window, or 64 for a row that is pending already", _PENDING,
        Weight.WARN, NodeAction.RESET_WHEN_IDLE,
    ),
    Rule.XID_LINK_FATAL: RuleMeaning(
        "Xid 144 to 150 whose registers ask for a reset; Xid 136, and registers that are not published, whose line says"
        " Fatal",
        _LINK,
        Weight.DRAIN, NodeAction.DRAIN,
    ),
    Rule.XID_LINK: RuleMeaning(
        "a link event that is not fatal or is a program's doing, Xid 74 by its register; unknown without a severity",
        _LINK,
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.XID_WATCH: RuleMeaning(
        "Xid 92 and other weak evidence in the window", _WATCH,
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.UNCORRECTABLE_ERRORS: RuleMeaning(
        "uncorrectable ECC errors since the driver was loaded", _WATCH,
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.MANY_RETIRED_PAGES: RuleMeaning(
        "15 to 62 retired pages", _WATCH,
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.XID_APPLICATION: RuleMeaning(
        "Xid 8, 11, 13, 25, 31, 37, 43, 45, 69, 80, 137 in the window: a consequence",
        "Xid 13, 31, 43, 45, 8, 11, 25, 37, 69, 80, 137",
        Weight.NOTE, NodeAction.IGNORE,
    ),
    Rule.XID_INFORMATIONAL: RuleMeaning(
        "a code that says nothing about the hardware", "codes that say nothing about the hardware",
        Weight.NOTE, NodeAction.IGNORE,
    ),
    Rule.XID_QUALIFIER: RuleMeaning(
        "Xid 171 or 172 beside 48; alone it is unknown", "Xid 171 and 172 beside 48",
        Weight.NOTE, NodeAction.IGNORE,
    ),
    Rule.XID_REPEATED_IN_JOBS: RuleMeaning(
        "Xid 13 or 31 in this job and at another time on the same GPU",
        "the same GPU's Xid 13 or 31 in two unrelated jobs or more",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.XID_OTHER_TIME: RuleMeaning(
        "a heavy code outside the job's window", "a heavy Xid outside the job's window",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.XID_NO_TIME: RuleMeaning(
        "a code whose time, or whose place in the window, is not known", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.XID_UNKNOWN: RuleMeaning(
        "a code that nobody published what to do about", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.SWITCH_FATAL: RuleMeaning(
        "a fatal NVSwitch event in the window", "a fatal NVSwitch event: no published rule",
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.SWITCH_EVENT: RuleMeaning(
        "another NVSwitch event in the window", "an NVSwitch event that is not fatal",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.TENANT_RUNNING: RuleMeaning(
        "a process of another Slurm job that has not ended", "foreign PID with memory, live job",
        Weight.OCCUPIED, NodeAction.EXCLUDE,
    ),
    Rule.TENANT_ENDED_JOB: RuleMeaning(
        "a process whose Slurm job has ended: leaked", _LEAKED,
        Weight.OCCUPIED, NodeAction.REPORT_TO_OWNER,
    ),
    Rule.TENANT_NO_JOB: RuleMeaning(
        "a process of no Slurm job: leaked, or started beside Slurm", _LEAKED,
        Weight.OCCUPIED, NodeAction.REPORT_TO_OWNER,
    ),
    Rule.TENANT_UNKNOWN_JOB: RuleMeaning(
        "somebody's process whose Slurm job is not known", "foreign PID whose job is not known",
        Weight.OCCUPIED, NodeAction.REPORT_TO_OWNER,
    ),
    Rule.OWN_PROCESS: RuleMeaning(
        "a process of the job itself, or perhaps its leftover", "the job's own processes are no tenants",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.KNOWN_HELPER: RuleMeaning(
        "a small process of the driver, DCGM, MPS or a display",
        "DCGM, MPS daemons, Xorg and the driver's own are known",
        Weight.NOTE, NodeAction.IGNORE,
    ),
    Rule.PROCESS_UNKNOWN: RuleMeaning(
        "a process of which neither owner nor job, or not its memory, can be seen", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.HIDDEN_MEMORY: RuleMeaning(
        "memory in use that no listed process holds", "memory in use, no PIDs",
        Weight.OCCUPIED, NodeAction.RESET_WHEN_IDLE,
    ),
    Rule.MEMORY_BELOW_MODEL: RuleMeaning(
        "less memory than a sound GPU of the model shows", "memory lost against the model's capacity",
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.MEMORY_RESERVED: RuleMeaning(
        "more than 2 GiB neither free nor in use", "memory that the driver keeps for itself, above what is usual",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.MIG: RuleMeaning(
        "MIG is on", "MIG on but the job expected a whole GPU",
        Weight.WARN, NodeAction.WATCH,
    ),
    Rule.ECC_UNREADABLE: RuleMeaning(
        "the ECC mode says Unknown Error", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.DRIVER_MISMATCH: RuleMeaning(
        "NVML 18: a driver that was updated and not loaded anew; software, no fault of the hardware", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.NO_GPU: RuleMeaning(
        "no GPU, and not known how many there should be", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.NOT_READ: RuleMeaning(
        "something that decides was not read: kernel log, processes, state", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.NOT_REACHED: RuleMeaning(
        "the node did not answer", _UNREAD,
        Weight.UNDETERMINED, NodeAction.UNKNOWN,
    ),
    Rule.RULED_OUT: RuleMeaning(
        "all was read and nothing found", "all readable and clean, the log covers the window",
        Weight.NOTE, NodeAction.IGNORE,
    ),
}

ACTION_OF_WEIGHT = {
    Weight.DRAIN: NodeAction.DRAIN,
    Weight.ELSEWHERE: NodeAction.EXCLUDE,
    Weight.UNDETERMINED: NodeAction.UNKNOWN,
    Weight.WARN: NodeAction.WATCH,
    Weight.NOTE: NodeAction.IGNORE,
}
"""What follows where a policy or the place of a finding changes the weight that its rule has by itself."""


# What the judgement on a node is made of: one sign a finding, what a site decides, and which GPUs are the job's.

@dataclass(frozen=True, slots=True)
class Sign:
    """One finding of a rule in a sentence. `gpu` is the node's index, None where it concerns the node."""

    rule: Rule
    weight: Weight
    action: NodeAction
    text: str
    gpu: int | None = None
    source: str = ""

    def finding(self) -> NodeFinding:
        return NodeFinding(self.rule.value, self.action, self.text, self.gpu, self.source)


def sign(
    rule: Rule, text: str, gpu: int | None = None, source: str = "", *, weight: Weight | None = None,
    action: NodeAction | None = None,
) -> Sign:
    """A sign with what its rule says; `weight` and `action` where policy or circumstances say otherwise."""
    meaning = RULES[rule]
    given = meaning.weight if weight is None else weight
    follows = action or (meaning.action if given is meaning.weight else ACTION_OF_WEIGHT[given])
    return Sign(rule, given, follows, text, gpu, source)


def weakened(strong: Sign, weight: Weight, why: str) -> Sign:
    """The sign with a smaller weight and the reason for it at the end of its sentence."""
    return replace(strong, weight=weight, action=ACTION_OF_WEIGHT[weight], text=f"{strong.text}; {why}")


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a site decides where the vendor leaves a choice. Sizes in bytes."""

    drain_on_pending_reset: bool = False
    drain_on_contained_error: bool = False
    """Xid 94."""
    drain_on_hidden_memory: bool = False
    hidden_memory_bytes: Bytes = Bytes(GIB)
    """Memory in use without a process that is worth a warning; a driver's own use stays below."""
    context_bytes: Bytes = Bytes(GIB // 2)
    """What a CUDA context may take beyond the figure that is listed for its process."""
    helper_bytes: Bytes = Bytes(GIB)
    """Monitoring and display processes below this are no tenants."""
    reserved_bytes: Bytes = Bytes(2 * GIB)
    """What a driver may keep of a GPU's memory for itself (240 MiB on a V100, 614 MiB on an H200) and then some."""
    may_end_leaked_processes: bool = False


@dataclass(frozen=True, slots=True)
class JobGpus:
    """Which GPUs of the node are the job's. `indexes` None: not known, or all: every GPU of the node counts."""

    indexes: frozenset[int] | None
    whole_node: bool
    failing: int | None
    """Node index of the GPU that ran out of memory, where it is known."""
    source: str = ""
    """What told the job's GPUs; where nothing did, why not."""

    def counts(self, gpu: int | None) -> bool:
        return gpu is None or gpu < 0 or self.indexes is None or gpu in self.indexes


def gpu_name(gpu: GpuFacts) -> str:
    if gpu.index < 0:
        return f"the GPU at {gpu.bus_id}" if gpu.bus_id else "a GPU"
    return f"GPU {gpu.index}" + (f" ({gpu.bus_id})" if gpu.bus_id else "")


def size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / MIB:.0f} MiB"


def moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
