"""How ending a leaked process went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
