"""Signs of a hardware fault: the GPUs' own state first, the kernel log's Xids in the job's window second.

Rules: NVIDIA's GPU Memory Error Management (remapping, SRAM threshold, recovery action) and Xid catalogue. A row that
waits to be remapped costs a reset, never gigabytes, so that it is a warning; Xid 13, 31, 43 and 45 are what a dying
program leaves behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from runbook.diagnosis.nodes_signs import JobGpus, NodePolicy, Sign, Weight, gpu_name, moment
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, NodeFacts, XidEvent
from runbook.model.units import Unknown
from runbook.model.xid import XidCatalogue, XidClass, XidMeaning

STATE_SOURCE = "NVIDIA GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"
_NVML_SOURCE = "NVML: GPU lost, reset required, fewer GPUs than Slurm's Gres"
_FATAL = re.compile(r"(?<!Non-)\bFatal\b")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.I)
_ACTION = re.compile(r"\bto\s+0x[0-9a-fA-F]+\s+\((?P<action>[^)]*)\)")
_REGISTERS = re.compile(r"\(0x(?P<first>[0-9a-fA-F]{1,8})\s")
_DOUBLE_BIT = 48
_LINK_DOWN = 149
_NOT_THE_GPU = frozenset({0b100110, 0b101000})
"""Sub-reasons of Xid 149 (bits 25 to 20 of its first register) that are a user's or the host's doing."""
_REPEATS_ARE_SUSPICIOUS = frozenset({13, 31})
_HEAVY = frozenset({XidClass.DRAIN, XidClass.RESET, XidClass.RECOVERY_ACTION})


def state_signs(facts: NodeFacts, policy: NodePolicy) -> list[Sign]:
    """Signs from the GPUs' own figures, lost and missing GPUs included. Unknown figures give no sign here."""
    if isinstance(facts.gpus, Unknown):
        return []
    signs = [sign for gpu in facts.gpus for sign in _gpu_signs(gpu, policy)]
    expected, seen = facts.expected_gpus, len(facts.gpus)
    if any(gpu.lost for gpu in facts.gpus):
        # nvidia-smi may stop at the lost GPU and name no other: how many are there cannot be told then.
        return signs
    if expected is not None and seen < expected:
        text = f"{seen} of {expected} GPUs are there"
        if facts.partial_view:
            signs.append(Sign(Weight.UNDETERMINED, f"{text}, but {facts.partial_view}"))
        else:
            signs.append(Sign(Weight.DRAIN, f"{text}: the driver has lost the others", source=_NVML_SOURCE))
    elif seen == 0:
        signs.append(Sign(Weight.UNDETERMINED, "the driver shows no GPU, and how many there should be is not known"))
    return signs


def xid_signs(
    facts: NodeFacts, job: JobRecord, gpus: JobGpus, xids: XidCatalogue, policy: NodePolicy
) -> list[Sign]:
    """Signs from the kernel log. What is outside the job's window or on another job's GPU is a warning at most."""
    if isinstance(facts.xids, Unknown):
        return []
    source = f"Xid catalogue of {xids.date}: {xids.source}" if xids.date else "Xid catalogue"
    index = {} if isinstance(facts.gpus, Unknown) else {gpu.bus_id: gpu.index for gpu in facts.gpus}
    codes = {event.code for event in facts.xids if event.in_window is True}
    signs: list[Sign] = []
    for event in _last_actions(facts.xids, xids):
        gpu = index.get(event.bus_id)
        where = _place(event, gpu)
        if "SXid" in event.line:
            if event.in_window is True:
                signs.append(Sign(Weight.WARN, f"NVSwitch event {where}: {event.line}", source=source))
            continue
        meaning = xids.meaning(event.code)
        if event.in_window is True:
            sign = _in_window(event, meaning, codes, policy)
        elif isinstance(event.in_window, Unknown):
            sign = _without_time(event, meaning)
        else:
            sign = _outside(event, meaning, job)
        if sign is None:
            continue
        weight, why = sign
        if weight > Weight.WARN and (event.on_job_gpu is False or not gpus.counts(gpu)):
            weight, why = Weight.WARN, f"{why}; not one of the job's GPUs"
        signs.append(Sign(weight, f"{where}: {why}", gpu, source))
    return signs + list(_repeats(facts.xids, index))


def _gpu_signs(gpu: GpuFacts, policy: NodePolicy) -> Iterable[Sign]:
    name = gpu_name(gpu)

    def drain(text: str, source: str = STATE_SOURCE) -> Sign:
        return Sign(Weight.DRAIN, f"{name}: {text}", gpu.index, source)

    if gpu.lost:
        yield drain("the driver cannot reach it any more (GPU is lost)", _NVML_SOURCE)
    if gpu.row_remap_failed is True:
        yield drain("remapping a memory row has failed")
    if gpu.sram_threshold_exceeded is True:
        yield drain("its SRAM has more uncorrectable errors than the vendor's threshold")
    if gpu.unrepairable_memory is True:
        yield drain("it has memory that cannot be repaired")
    action = gpu.recovery_action
    if isinstance(action, str) and action.strip().lower() not in ("none", ""):
        yield drain(f"the driver asks for recovery: {action}; reset needed before anything runs there")
    if gpu.row_remap_pending is True or gpu.repair_pending is True:
        what = "a memory row or page waits to be taken out" if gpu.row_remap_pending is True else "a repair waits"
        yield Sign(
            Weight.DRAIN if policy.drain_on_pending_reset else Weight.WARN,
            f"{name}: {what} at the next GPU reset; no cause of an out-of-memory error (it costs rows, not gigabytes)",
            gpu.index,
            STATE_SOURCE,
        )
    volatile = gpu.ecc_uncorrectable_volatile
    if isinstance(volatile, int) and volatile > 0:
        yield Sign(
            Weight.WARN, f"{name}: {volatile} uncorrectable ECC errors since the driver was loaded", gpu.index,
            STATE_SOURCE,
        )
    if not gpu.lost and isinstance(volatile, Unknown) and "Unknown Error" in volatile.unknown:
        yield Sign(Weight.UNDETERMINED, f"{name}: {volatile.unknown}; a healthy GPU does not say so", gpu.index)
    if gpu.mig_enabled is True:
        yield Sign(
            Weight.WARN, f"{name}: MIG is on, so that a job has a slice of it and not the whole GPU", gpu.index
        )


def _in_window(
    event: XidEvent, meaning: XidMeaning, codes: set[int], policy: NodePolicy
) -> tuple[Weight, str] | None:
    title = meaning.title
    match meaning.xid_class:
        case XidClass.APPLICATION:
            return Weight.NOTE, f"{title}; a consequence of the program's fault or death, no hardware evidence"
        case XidClass.INFORMATIONAL:
            return Weight.NOTE, f"{title}; says nothing about the hardware"
        case XidClass.WATCH:
            return Weight.WARN, f"{title}; weak evidence, worth a diagnostic run"
        case XidClass.PENDING_RESET:
            return _pending(title, policy)
        case XidClass.RESTART_ELSEWHERE:
            weight = Weight.DRAIN if policy.drain_on_contained_error else Weight.ELSEWHERE
            return weight, f"{title}; the next run belongs on another node"
        case XidClass.RESET:
            return Weight.DRAIN, f"{title}; reset needed before anything runs there"
        case XidClass.DRAIN:
            if "already pending" in event.line.lower():
                return _pending("the row is already pending remapping", policy)
            return Weight.DRAIN, title
        case XidClass.LINK:
            return _link(event, title)
        case XidClass.RECOVERY_ACTION:
            return _recovery(event)
        case XidClass.QUALIFIER:
            if _DOUBLE_BIT in codes:
                return Weight.NOTE, title
            return Weight.UNDETERMINED, f"{title}, but there is no Xid 48"
        case XidClass.UNDETERMINED:
            return Weight.UNDETERMINED, f"{title}; nobody published what to do, so a person decides: {event.line}"


def _pending(title: str, policy: NodePolicy) -> tuple[Weight, str]:
    weight = Weight.DRAIN if policy.drain_on_pending_reset else Weight.WARN
    return weight, f"{title}; takes effect at the next GPU reset and is no cause of an out-of-memory error"


def _link(event: XidEvent, title: str) -> tuple[Weight, str]:
    """The severity word decides (NVIDIA's decode table: nearly all Fatal rows are a reset, Nonfatal ones are not)."""
    if _FATAL.search(event.line):
        registers = _REGISTERS.search(event.line)
        reason = (int(registers["first"], 16) >> 20) & 0x3F if registers else 0
        if event.code == _LINK_DOWN and reason in _NOT_THE_GPU:
            return Weight.WARN, f"{title}; the link went down on a program's or the host's word"
        return Weight.DRAIN, f"{title}, fatal; reset needed, and look at the other end of the link too"
    if _NONFATAL.search(event.line):
        return Weight.WARN, f"{title}, not fatal"
    return Weight.UNDETERMINED, f"{title}; its line names no severity: {event.line}"


def _recovery(event: XidEvent) -> tuple[Weight, str]:
    match = _ACTION.search(event.line)
    action = match["action"].strip() if match else ""
    if not action:
        return Weight.UNDETERMINED, f"the recovery action changed, to what cannot be read: {event.line}"
    if action.lower() == "none":
        return Weight.NOTE, "the recovery action went back to None: recovered"
    return Weight.DRAIN, f"the driver asks for recovery: {action}; reset needed"


def _without_time(event: XidEvent, meaning: XidMeaning) -> tuple[Weight, str] | None:
    if meaning.xid_class in (XidClass.APPLICATION, XidClass.INFORMATIONAL):
        return None
    return Weight.UNDETERMINED, f"{meaning.title}, but its line has no readable time: it may be older than the job"


def _outside(event: XidEvent, meaning: XidMeaning, job: JobRecord) -> tuple[Weight, str] | None:
    """Outside the window nothing counts; what makes a node unusable is still worth a person's look."""
    if meaning.xid_class not in _HEAVY:
        return None
    if meaning.xid_class is XidClass.RECOVERY_ACTION and _recovery(event)[0] is Weight.NOTE:
        return None
    before = event.time_s is not None and job.start_time_s is not None and event.time_s < job.start_time_s
    when = "before the job started (pre-existing)" if before else "outside the job's time"
    return Weight.WARN, f"{meaning.title}, {when}: the node should not have been in service without a reset since"


def _last_actions(events: tuple[XidEvent, ...], xids: XidCatalogue) -> tuple[XidEvent, ...]:
    """Of the changes of a GPU's recovery action inside or outside the window, only the last says how it ended."""
    last: dict[tuple[str, str], XidEvent] = {}
    for event in events:
        if xids.meaning(event.code).xid_class is XidClass.RECOVERY_ACTION:
            last[event.bus_id, str(event.in_window)] = event
    kept = set(map(id, last.values()))
    return tuple(
        event for event in events
        if xids.meaning(event.code).xid_class is not XidClass.RECOVERY_ACTION or id(event) in kept
    )


def _repeats(events: tuple[XidEvent, ...], index: dict[str, int]) -> Iterable[Sign]:
    """The same GPU with an application Xid in the window and before: unrelated programs, or a failing GPU."""
    inside = {(e.code, e.bus_id) for e in events if e.in_window is True and e.code in _REPEATS_ARE_SUSPICIOUS}
    outside = {(e.code, e.bus_id) for e in events if e.in_window is False}
    for code, bus in sorted(inside & outside):
        gpu = index.get(bus)
        name = f"GPU {gpu}" if gpu is not None else bus
        yield Sign(
            Weight.WARN,
            f"{name} also had Xid {code} at another time than this job's: if that was an unrelated program, "
            "run `dcgmi diag -r 3` on it",
            gpu,
        )


def _place(event: XidEvent, gpu: int | None) -> str:
    on = f"GPU {gpu} ({event.bus_id})" if gpu is not None and gpu >= 0 else f"a device at {event.bus_id}"
    times = f" {event.count} times" if event.count > 1 else ""
    at = f" at {moment(event.time_s)}" if event.time_s is not None else ""
    return f"Xid {event.code}{times} on {on}{at}"
