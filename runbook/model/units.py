"""Distinct types for the numbers and names that must not be mixed up, figures that may be unknown, and the one
formatter each of bytes, moments and durations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NewType

JobId = NewType("JobId", str)
"""Slurm job id as `squeue` prints it: "123", an array task "123_4", a heterogeneous component "123+0"."""

NodeName = NewType("NodeName", str)
UserName = NewType("UserName", str)
IncidentId = NewType("IncidentId", str)
"""`<playbook>-<cluster>-<job>`."""
Bytes = NewType("Bytes", int)

GIB = 1 << 30
MIB = 1 << 20

_INCIDENT_ID = re.compile(r"[a-z][a-z0-9_]{0,30}-[A-Za-z0-9][A-Za-z0-9_.+-]{0,120}")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A figure that could not be read. It never means "fine": whoever decides on it must say so."""

    unknown: str
    """The reason, for a person: "nvidia-smi timed out after 5 s"."""


def is_incident_id(text: str) -> bool:
    """Letters, digits and `_.+-` in three parts, and no way out of a folder."""
    return _INCIDENT_ID.fullmatch(text) is not None and ".." not in text


def name_within(name: str, most_bytes: int) -> str:
    """The end of a file's name that fits: file systems count bytes, and a letter may have four."""
    kept = name[-most_bytes:]
    while len(kept.encode("utf-8", "surrogateescape")) > most_bytes:
        kept = kept[1:]
    return kept


def playbook_of(incident: IncidentId) -> str:
    """The playbook whose flow an incident walks."""
    return incident.partition("-")[0]


def median(values: Iterable[float]) -> float:
    """The middle of some values, of which there is at least one. As `statistics` has it, which takes longer to import
    than all else that a short log needs of the library."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def size(value: int | None, *, decimals: int = 2, coarse: bool = False, unknown: str = "unknown") -> str:
    """Bytes as a person reads them: "77.42 GiB", "512 MiB", "640 bytes"; `unknown` for None. `coarse`: below one GiB
    whole MiB, as a diagnosis weighs them."""
    if value is None:
        return unknown
    magnitude = abs(value)
    if magnitude >= GIB:
        return in_gib(value, decimals)
    if magnitude >= MIB:
        return f"{value / MIB:.0f} MiB" if coarse or magnitude >= 10 * MIB else f"{value / MIB:.1f} MiB"
    if magnitude >= 1024 and not coarse:
        return f"{value / 1024:.0f} KiB"
    return f"{value} bytes"


def in_gib(value: float, decimals: int = 2) -> str:
    """Bytes in GiB however few they are, for figures that are compared: "0.40 GiB"."""
    return f"{value / GIB:.{decimals}f} GiB"


def sentence(text: str) -> str:
    """A remark as a sentence: with a capital in front and a stop behind."""
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in ('', '.') else '.'}"


def moment(time_s: float | None) -> str:
    """Epoch seconds as "2026-09-14 02:13:44 UTC"; "unknown" for None."""
    if time_s is None:
        return "unknown"
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def duration(seconds: float | None) -> str:
    """"0.4 s", "12 s", "3 min 20 s", "2 h 05 min", "4 d 3 h"; "unknown" for None."""
    if seconds is None:
        return "unknown"
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = minutes // 60
    return f"{hours // 24} d {hours % 24} h"


def rough_duration(seconds: float, *, seconds_below_s: float = 120.0, hours_from_s: float = 3600.0) -> str:
    """One figure in one unit: "90 s", "45 min", "2.5 h"."""
    if seconds < seconds_below_s:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= hours_from_s else f"{seconds / 60:.0f} min"


# What an incident, a change and a node may be: words that stand alone, for readers that need none of the values of
# those modules, which are hundreds of classes and take longer to make than a short log to read.

class IncidentState(StrEnum):
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    INTERRUPTED = "interrupted"
    """The driver stopped; `runbook resume` goes on."""
    RECOVERED = "recovered"
    PLANNED = "planned"
    ESCALATED = "escalated"
    CLOSED = "closed"
    """Nothing to do: the job is healthy, was cancelled by its user, or did not die of memory."""

    @property
    def ended(self) -> bool:
        return self in (
            IncidentState.RECOVERED, IncidentState.PLANNED, IncidentState.ESCALATED, IncidentState.CLOSED
        )


class Effect(StrEnum):
    """What a change does to the experiment. TRAINING is never used without the owner's consent."""

    NONE = "none"
    """The mathematics stays: the same global batch, the same tokens."""
    NUMERICS = "numerics"
    """The same samples, another order of floating-point sums."""
    TRAINING = "training"
    """The experiment changes: sequence length, samples, dropout masks."""


class NodeVerdict(StrEnum):
    """What follows for the node from its facts."""

    CLEAN = "clean"
    """No hardware evidence found; not "the hardware is fine"."""
    FAULTY = "faulty"
    OCCUPIED = "occupied"
    UNKNOWN = "unknown"
