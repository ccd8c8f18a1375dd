"""Figures, times and enum values in the words of a person."""

from __future__ import annotations

from runbook.model.incident import IncidentState
from runbook.model.remedy import Effect
from runbook.model.units import Unknown
from runbook.report.diagnosis_words import (
    DETAIL_TITLES,
    KIND_MEANING,
    KIND_TITLES,
    PHASE_WORDS,
    diagnosis_meaning,
    diagnosis_title,
    moment,
    size,
)
from runbook.report.narrative import Again

__all__ = [
    "AGAIN_TITLES", "DETAIL_TITLES", "EFFECT_SENTENCES", "EFFECT_WORDS", "KIND_MEANING", "KIND_TITLES", "PHASE_WORDS",
    "STATE_TITLES", "clock_time", "day", "diagnosis_meaning", "diagnosis_title", "machine_time", "moment", "size",
    "size_or_reason",
]

STATE_TITLES: dict[IncidentState, str] = {
    IncidentState.RUNNING: "Running",
    IncidentState.AWAITING_APPROVAL: "Waits for approval",
    IncidentState.INTERRUPTED: "Interrupted",
    IncidentState.RECOVERED: "Recovered",
    IncidentState.PLANNED: "Planned",
    IncidentState.ESCALATED: "Needs a person",
    IncidentState.CLOSED: "Closed",
}

EFFECT_WORDS: dict[Effect, str] = {
    Effect.NONE: "Mathematics unchanged",
    Effect.NUMERICS: "Same samples, other rounding",
    Effect.TRAINING: "Changes the experiment",
}

EFFECT_SENTENCES: dict[Effect, str] = {
    Effect.NONE: "The mathematics of training stays the same: the same samples, the same global batch.",
    Effect.NUMERICS: "The training sees the same samples; sums are rounded in another order, so curves can differ "
    "in the last digits.",
    Effect.TRAINING: "The mathematics of training changes: results are not those of the unchanged experiment.",
}
"""What `model.remedy.Effect` promises, for somebody who decides whether to keep a change."""

AGAIN_TITLES: dict[Again, str] = {
    Again.YES: "Yes",
    Again.NOT_PROVEN: "Not proven yet",
    Again.NOT_YET: "Not yet",
    Again.NO: "No",
    Again.PLANNED: "No, only planned",
    Again.NOT_NEEDED: "Left as it was",
}
"""Does the job run again?"""


def size_or_reason(value: int | Unknown | None) -> str:
    """As `size`; an unknown figure with its reason."""
    return f"unknown: {value.unknown}" if isinstance(value, Unknown) else size(value)


def clock_time(time_s: float | None) -> str:
    """Only the time of day, "02:13:44", for rows under one date."""
    full = moment(time_s)
    return full if full == "unknown" else full[11:19]


def day(time_s: float | None) -> str:
    """Only the date, "2026-09-14"."""
    full = moment(time_s)
    return full if full == "unknown" else full[:10]


def machine_time(time_s: float | None) -> str:
    """ISO 8601 for machines, "" for None."""
    full = moment(time_s)
    return "" if full == "unknown" else full[:10] + "T" + full[11:19] + "Z"


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


def percent(share: float) -> str:
    """A share of 1 as "93 %"; certainty is not claimed by rounding."""
    if 0.995 <= share < 1:
        return "over 99 %"
    if 0 < share < 0.005:
        return "under 1 %"
    return f"{share * 100:.0f} %"


def counted(count: int, noun: str, plural: str = "") -> str:
    """"1 node", "3 nodes"."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
