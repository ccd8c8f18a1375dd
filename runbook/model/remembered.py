"""What is remembered of an incident, so that the next one like it has a witness."""

from __future__ import annotations

from dataclasses import dataclass, field

from runbook.model.diagnosis import Detail, Kind
from runbook.model.log import Phase
from runbook.model.units import IncidentId


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the job was told to do when it failed first, by its template. None and "" are not known."""

    system: str = ""
    """Id of the lever document that describes its framework."""
    releases: tuple[str, ...] = ()
    """The stretches of the framework's releases that the template can be written for."""
    model: str = ""
    """The last part of the model's name or path, masked."""
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    sequence_length: int | None = None
    degrees: dict[str, int] = field(default_factory=dict)
    """Degrees of parallelism, by the lever document's names."""


@dataclass(frozen=True, slots=True)
class TriedLever:
    """A lever in one relaunch, and how that ended."""

    lever: str
    key: str
    """Lever and new values; two uses with the same key made the same change."""
    change: str
    """ "--micro-batch-size 8 → 4"."""
    attempt: int
    """Relaunches add up: the levers of the ones before are in force, too."""
    worked: bool | None
    """False: the relaunch died of memory again. None: not proven, or it ended for another reason."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """An incident as a witness. It holds no names of people or jobs: whose job it was is only compared."""

    incident: IncidentId
    opened_s: float
    kind: Kind
    detail: Detail = Detail.NONE
    phase: Phase = Phase.UNKNOWN
    script: str = ""
    """Digest of owner and path of the script, "" where the path is not known."""
    series: str = ""
    """Digest of owner and name of the job."""
    circumstances: Circumstances = Circumstances()
    framework_version: str = ""
    """PyTorch, as the log tells it: "2.6.0" or a range."""
    gpu: str = ""
    gpu_bytes: int | None = None
    gpus: int | None = None
    levers: tuple[TriedLever, ...] = ()
    headroom: str = ""
    """What the proven relaunch left free, in a sentence."""
    simulated: bool = False
