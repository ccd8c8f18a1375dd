"""Distinct types for the numbers and names that must not be mixed up, and figures that may be unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

JobId = NewType("JobId", str)
"""Slurm job id as `squeue` prints it: "123", an array task "123_4", a heterogeneous component "123+0"."""

NodeName = NewType("NodeName", str)
UserName = NewType("UserName", str)
IncidentId = NewType("IncidentId", str)
Bytes = NewType("Bytes", int)

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Unknown:
    """A figure that could not be read. It never means "fine": whoever decides on it must say so."""

    unknown: str
    """The reason, for a person: "nvidia-smi timed out after 5 s"."""


