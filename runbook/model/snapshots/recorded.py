"""Vocabulary: a memory snapshot of PyTorch as it was read. Sizes in bytes, times in microseconds of the job's clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Frame(NamedTuple):
    """One call of a stack."""

    name: str
    file: str
    line: int


Stack = tuple[Frame, ...]
"""Innermost first, as PyTorch writes it; () where none was recorded."""


class Action(IntEnum):
    """What an entry of a trace says; the words are those of `torch.cuda.memory._snapshot`."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    OTHER = 9


@dataclass(slots=True)
class Events:
    """The entries of all traces, a column each: a file has millions."""

    actions: array[int] = field(default_factory=lambda: array("b"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    """Of an out-of-memory entry: what the device had free."""
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    """As asked for, not rounded; of a segment: whole."""
    streams: array[int] = field(default_factory=lambda: array("Q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    """0: not recorded."""
    stacks: array[int] = field(default_factory=lambda: array("i"))
    """A place in `Snapshot.stacks`."""

    def __len__(self) -> int:
        return len(self.actions)


class Block(NamedTuple):
    """A piece of a segment when the snapshot was taken."""

    address: int
    size: int
    requested: int
    state: str
    """active_allocated, active_pending_free (older: active_awaiting_free), inactive."""
    stack: int

    @property
    def allocated(self) -> bool:
        return self.state == "active_allocated"

    @property
    def pending(self) -> bool:
        """Freed, and not reusable before another stream has passed it."""
        return self.state.startswith("active_") and not self.allocated


@dataclass(frozen=True, slots=True)
class Segment:
    """What the allocator held from the driver as one."""

    device: int
    address: int
    size: int
    stream: int
    small: bool
    pool: tuple[int, ...]
    """(0, 0): the one that everything shares. Others are private: CUDA graphs, memory pools."""
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def private(self) -> bool:
        return any(self.pool)


@dataclass(frozen=True, slots=True)
class Settings:
    """The allocator's, as the snapshot has them. None: it does not say, as before PyTorch 2.2."""

    expandable_segments: bool | None = None
    max_split_size: int | None = None
    """None or not positive: no limit."""
    garbage_collection_threshold: float | None = None
    roundup_divisions: int = 0
    """0: off, or not the same for all sizes."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One file: one process, all its devices."""

    segments: tuple[Segment, ...]
    events: Events
    traces: Mapping[int, range]
    """By device: its entries' places in `events`, oldest first. A device without any is not there."""
    stacks: Sequence[Stack]
    settings: Settings

    @property
    def devices(self) -> tuple[int, ...]:
        """Those that hold memory or have a trace."""
        return tuple(sorted({segment.device for segment in self.segments} | set(self.traces)))
