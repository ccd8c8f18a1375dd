"""The one table of Slurm job and node states. Classes are disjoint; an unknown state is its own class.

Source: `slurm/slurm.h` and `src/common/slurm_protocol_defs.c` (base states and flags) of Slurm 22.05 to 25.11,
squeue(1) "JOB STATE CODES", sinfo(1) "NODE STATE CODES". Slurm's rule: every base state from COMPLETE up is finished,
PREEMPTED included; requeue and completing are flags beside a base state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from runbook.model.job import JobClass, JobState, NodeClass

JOB_STATES: dict[str, JobClass] = {
    "PENDING": JobClass.WAITING,
    "RUNNING": JobClass.ACTIVE,
    "SUSPENDED": JobClass.ACTIVE,
    "COMPLETED": JobClass.SUCCEEDED,
    "FAILED": JobClass.FAILED,
    "OUT_OF_MEMORY": JobClass.FAILED,
    "CANCELLED": JobClass.CANCELLED,
    "TIMEOUT": JobClass.STOPPED,
    "NODE_FAIL": JobClass.STOPPED,
    "PREEMPTED": JobClass.STOPPED,
    "BOOT_FAIL": JobClass.STOPPED,
    "DEADLINE": JobClass.STOPPED,
    "LAUNCH_FAILED": JobClass.STOPPED,
    "RECONFIG_FAIL": JobClass.STOPPED,
}

#: Flags that Slurm's commands print in place of the base state, with the base state they stand for.
_FLAG_SHOWN_AS_STATE: dict[str, str] = {
    "CONFIGURING": "RUNNING",
    "EXPEDITING": "PENDING",
    "POWER_UP_NODE": "RUNNING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESIZING": "RUNNING",
    "RESV_DEL_HOLD": "PENDING",
    "REVOKED": "CANCELLED",
    "SIGNALING": "RUNNING",
    "SPECIAL_EXIT": "PENDING",
    "STAGE_OUT": "RUNNING",
    "STOPPED": "RUNNING",
    "UPDATE_DB": "RUNNING",
    # Whatever the outcome, the job's processes may still be ending: it is not over yet.
    "COMPLETING": "RUNNING",
}

_STARTS_BY_ITSELF = frozenset({
    "", "None", "BeginTime", "Cleaning", "Dependency", "JobArrayTaskLimit", "Licenses", "NodeDown",
    "Nodes required for job are DOWN", "PartitionDown", "PartitionInactive", "Priority", "ReqNodeNotAvail",
    "Reservation", "Resources",
})  # fmt: skip
_LIMITS = ("AssocGrp", "AssocMax", "QOSGrp", "QOSMax")

_DRAIN_WORDS = frozenset({"DRAIN", "DRAINED", "DRAINING", "DRNG"})
_DOWN_WORDS = frozenset({
    "DOWN", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID", "INVALID_REG", "NOT_RESPONDING", "NO_RESPOND",
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "REBOOT_ISSUED", "REBOOT",
    "REBOOT_REQUESTED", "DYNAMIC_FUTURE", "PERFCTRS",
})  # fmt: skip
_BUSY_WORDS = frozenset({
    "ALLOC", "ALLOCATED", "MIXED", "MIX", "COMP", "COMPLETING", "MAINT", "MAINTENANCE", "RESERVED", "RESV", "BLOCKED",
    "PLANNED", "PLND",
})  # fmt: skip
_FREE_WORDS = frozenset({"IDLE"})
#: Flags that say nothing about whether a node can be used.
_NEUTRAL_WORDS = frozenset({"CLOUD", "DYNAMIC_NORM", "EXTERNAL"})


def job_state(text: str | Iterable[str]) -> JobState:
    """A state as any Slurm answer writes it: "FAILED", "CANCELLED by 1000", "RUNNING,COMPLETING", ["FAILED"]."""
    raw = text.split(",") if isinstance(text, str) else list(text)
    words = [word.strip().partition(" ")[0].upper() for word in raw if word.strip()]
    base = next((word for word in words if word in JOB_STATES), None)
    flags = tuple(word for word in words if word != base)
    if base is not None:
        return JobState(base, JOB_STATES[base], flags)
    shown = next((word for word in words if word in _FLAG_SHOWN_AS_STATE), None)
    if shown is not None:
        base = _FLAG_SHOWN_AS_STATE[shown]
        return JobState(base, JOB_STATES[base], flags)
    return JobState(",".join(words) or "UNKNOWN", JobClass.UNKNOWN)


def node_states(text: str | Iterable[str]) -> tuple[str, ...]:
    """A node's state words as Slurm writes them: "IDLE+DRAIN", "MIXED*+DRAIN", ["IDLE", "DRAIN"]."""
    joined = text if isinstance(text, str) else "+".join(text)
    words: list[str] = []
    for part in re.split(r"[+,\s]+", joined.upper()):
        # Suffixes of sinfo and scontrol: * not responding, ~ # ! % power saving, $ maintenance, @ ^ reboot, - planned.
        word = part.rstrip("*~#!%$@^-")
        if word:
            words.append(word)
        if "*" in part[len(word) :]:
            words.append("NOT_RESPONDING")
    return tuple(dict.fromkeys(words))


def node_class(words: Iterable[str]) -> NodeClass:
    """The class of a node: a drain outranks being down, down outranks busy, and any unknown word decides nothing."""
    present = set(words) - _NEUTRAL_WORDS
    if present & _DRAIN_WORDS:
        return NodeClass.DRAINED
    if present & _DOWN_WORDS:
        return NodeClass.DOWN
    if not present or present - _BUSY_WORDS - _FREE_WORDS:
        return NodeClass.UNKNOWN
    return NodeClass.BUSY if present & _BUSY_WORDS else NodeClass.AVAILABLE


def starts_by_itself(reason_code: str) -> bool:
    """Whether a job that waits for this reason starts once that is over, with nobody's hand. One that somebody or Slurm
    itself holds does not, and of a reason that is not known it is not said. Source: squeue(1) "JOB REASON CODES"."""
    return reason_code in _STARTS_BY_ITSELF or reason_code.startswith(_LIMITS)
