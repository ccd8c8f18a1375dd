"""Vocabulary: what was found in a memory snapshot. Sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runbook.model.snapshots.recorded import Settings, Stack


class Phase(StrEnum):
    """In which part of a step something was allocated, by the calls that led there."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    UNKNOWN = "not known"


class Category(StrEnum):
    """What memory is held for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer states"
    ACTIVATIONS = "activations"
    TEMPORARY = "temporary"
    UNKNOWN = "not known"


class Shortage(StrEnum):
    """Why a request failed."""

    FULL = "full"
    """No arrangement of what is held would have made room."""
    PIECES = "pieces"
    """What is free in the allocator's segments would have been enough, in one piece."""
    APART = "apart"
    """A piece was large enough, in a pool or for a stream that may not give it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """What calls from one place hold at the moment that is looked at."""

    frames: Stack
    """Innermost first, no more than a screen of them."""
    size: int
    count: int
    phase: Phase
    category: Category
    steps: int
    """Of how many different steps allocations are among them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which is looked at what is alive."""

    at_failure: bool
    """Else the highest use in the trace; without a trace, when the snapshot was taken."""
    size: int
    holders: tuple[Holder, ...]
    """Largest first, and not endlessly many."""
    categories: Mapping[Category, int]
    """Bytes, largest first; together they are `size`."""
    phases: Mapping[Phase, int]
    before_recording: int
    """Bytes that were there before the trace begins."""


@dataclass(frozen=True, slots=True)
class Request:
    """The last one that could not be served."""

    size: int
    segment: int
    """What would have been asked from the driver for it."""
    device_free: int
    stream: int
    frames: Stack
    events_after: int
    """Entries between it and the snapshot: what the segments show is then of later."""


@dataclass(frozen=True, slots=True)
class Use:
    """A device's memory when the snapshot was taken, by its segments."""

    reserved: int
    allocated: int
    pending: int
    """Freed, but waiting for another stream."""
    free: int
    """Reserved and in no use."""
    largest_free: int
    """The largest piece of it in the pool that all share."""
    whole_free: int
    """Segments without anything in use: they go back to the driver before a request fails."""
    private_free: int
    """Free in private pools (CUDA graphs)."""
    rounding: int
    """Allocated beyond what was asked for."""
    segments: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What is still allocated when a step begins, step by step."""

    floors: tuple[int, ...]
    per_step: int
    """Bytes that each step leaves behind; 0: none, or too few steps to say."""
    suspects: tuple[Holder, ...]
    """What holds allocations of several earlier steps."""


class NotReplayed(StrEnum):
    """Why a trace was not replayed."""

    NOT_ASKED = "not_asked"
    """No request failed in it."""
    NO_TRACE = "no_trace"
    PRIVATE_POOLS = "pools_apart"
    """The model has none, and who allocated in which is not in the trace."""
    TOO_LONG = "too_long"
    CONTRADICTS_ITSELF = "contradicts_itself"
    """Pieces that overlap, or something given back twice."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A trace replayed under other settings."""

    settings: str
    served: bool | None
    """Whether the request that failed got its memory; None: nothing failed in the trace."""
    failed_early: bool
    """An earlier request, which was served in truth, was not."""
    reserved: int
    """The most that was held from the driver."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the model of the allocator makes of a trace."""

    why_not: NotReplayed | None
    off: int = 0
    """Under the recorded settings: the largest difference, at any entry, between what the model held from the driver
    and what was recorded. 0: it is reproduced to the byte."""
    exact: bool = False
    """That is 0, the same request fails, and in the end the segments are the same, with the same pieces in them."""
    laid_out_anew: int = 0
    """Bytes that were there before the trace begins, and whose places under other settings nobody can know."""
    recorded: int = 0
    """The most that was held from the driver in truth, as far as the trace goes."""
    control: Trial | None = None
    """The recorded settings with what was there before laid out anew, too; None where nothing was there before."""
    trials: tuple[Trial, ...] = ()

    def proves(self, trial: Trial) -> bool:
        """Whether the replay shows that the request would have been served because of these settings."""
        return self.exact and trial.served is True and (self.control is None or self.control.served is False)


@dataclass(frozen=True, slots=True)
class DeviceFindings:
    """One device of one file."""

    device: int
    use: Use
    moment: Moment
    highest: int
    """The most that was allocated at once, in the trace."""
    entries: int
    request: Request | None
    shortage: Shortage
    deficit: int
    """Bytes that were missing for the request, had all that is free been one piece; 0: none."""
    growth: Growth
    replay: Replay


@dataclass(frozen=True, slots=True)
class SnapshotFindings:
    """One file."""

    name: str
    devices: tuple[DeviceFindings, ...]
    settings: Settings
    recorded: bool
    """Whether the job recorded its memory's history; else there are neither stacks nor a trace."""
