"""A trace, replayed through the model of the allocator: first as it was recorded, then under other settings.

Under the recorded settings the model must hold at every entry what the job's allocator held, fail where it failed, and
end with the same segments; only then is what it says of other settings worth anything. The device is as large as it was
for this process when the request failed: what the allocator held, and what was free beside it.

Where the trace begins in the middle the segments of its beginning are found by going back from those of its end. Under
other settings what was there before is laid out anew, which is an assumption, and is told."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.allocator import (
    MIB,
    SMALL_SIZE_BYTES,
    UNLIMITED_BYTES,
    AllocationFailedError,
    AllocatorConfig,
    Block,
    CachingAllocator,
    GpuMemory,
)
from runbook.model.snapshots import Action, NotReplayed, Replay, Request, Segment, Snapshot, Trial
from runbook.snapshots.timeline import Timeline

_MOST_ENTRIES = 3_000_000
_UNBOUNDED = 1 << 50
_SPLIT_SIZES_MB = (64, 256, 1024)
_THRESHOLD = 0.8


def replay(snapshot: Snapshot, device: int, timeline: Timeline, request: Request | None, reserved: int) -> Replay:
    """`reserved`: what was held from the driver when `request` failed."""
    run = snapshot.traces.get(device, range(0))
    segments = [one for one in snapshot.segments if one.device == device]
    if len(run) < 2:
        return Replay(NotReplayed.NO_TRACE)
    if any(one.private for one in segments):
        return Replay(NotReplayed.PRIVATE_POOLS)
    if len(run) > _MOST_ENTRIES:
        return Replay(NotReplayed.TOO_LONG)
    limit = _UNBOUNDED if request is None else reserved + request.device_free
    try:
        return _replayed(_Trace(snapshot, run, segments, timeline, limit), request)
    except (AssertionError, KeyError, ValueError):
        # What the allocator's own rules exclude: pieces that overlap, something given back twice.
        return Replay(NotReplayed.CONTRADICTS_ITSELF)


def _replayed(trace: _Trace, request: Request | None) -> Replay:
    config, before = _recorded_settings(trace.snapshot), sum(trace.timeline.before.values())
    allocator = CachingAllocator(GpuMemory(trace.limit), config)
    truth = _Player(trace, allocator, at_recorded_addresses=not config.expandable_segments)
    truth.begin(trace.found_at_start() if not config.expandable_segments else None)
    truth.play(to_the_end=True)
    exact = (
        truth.off == 0 and not truth.failed_early and (request is None or truth.refused)
        and _pieces(allocator.blocks()) == _pieces_of(trace.segments)
    )
    trials = tuple(_trial(trace, words, changed, request) for words, changed in _other_settings(config))
    control = _trial(trace, "", config, request) if before else None
    return Replay(None, truth.off, exact, before, truth.most_recorded, control, trials)


def _recorded_settings(snapshot: Snapshot) -> AllocatorConfig:
    settings = snapshot.settings
    return AllocatorConfig(
        expandable_segments=bool(settings.expandable_segments)
        or any(segment.expandable for segment in snapshot.segments),
        max_split_size_bytes=settings.max_split_size or UNLIMITED_BYTES,
        garbage_collection_threshold=settings.garbage_collection_threshold or 0.0,
        roundup_power2_divisions=settings.roundup_divisions if settings.roundup_divisions > 1 else 0,
    )


def _other_settings(config: AllocatorConfig) -> Iterator[tuple[str, AllocatorConfig]]:
    if not config.expandable_segments:
        yield "expandable_segments:True", replace(config, expandable_segments=True)
        for size_mb in _SPLIT_SIZES_MB:
            if config.max_split_size_bytes != size_mb * MIB:
                yield f"max_split_size_mb:{size_mb}", replace(config, max_split_size_bytes=size_mb * MIB)
    if not config.garbage_collection_threshold:
        # Without a memory fraction the allocator never collects.
        yield (
            f"garbage_collection_threshold:{_THRESHOLD},per_process_memory_fraction:1.0",
            replace(config, garbage_collection_threshold=_THRESHOLD, per_process_memory_fraction=1.0),
        )


def _trial(trace: _Trace, words: str, config: AllocatorConfig, request: Request | None) -> Trial:
    player = _Player(trace, CachingAllocator(GpuMemory(trace.limit), config))
    player.begin(None)
    player.play(to_the_end=request is None)
    return Trial(
        words, None if request is None else not player.refused and not player.failed_early, player.failed_early,
        player.most_held,
    )


@dataclass(frozen=True, slots=True)
class _Trace:
    """What is played."""

    snapshot: Snapshot
    run: range
    segments: Sequence[Segment]
    timeline: Timeline
    limit: int

    def found_at_start(self) -> list[tuple[Segment, list[tuple[int, int, bool]]]]:
        """Segments when the trace begins, each with its pieces: address, size, whether handed out."""
        events, there = self.snapshot.events, {one.address: one for one in self.segments}
        for at in reversed(self.run):
            if events.actions[at] == Action.SEGMENT_ALLOC:
                there.pop(events.addresses[at], None)
            elif events.actions[at] == Action.SEGMENT_FREE:
                size = events.sizes[at]
                there[events.addresses[at]] = Segment(
                    0, events.addresses[at], size, events.streams[at], size <= 2 * SMALL_SIZE_BYTES, (0, 0), False, ()
                )
        before = sorted(self.timeline.before.items())
        found, place = [], 0
        for segment in sorted(there.values(), key=lambda one: one.address):
            end, at = segment.address + segment.size, segment.address
            pieces: list[tuple[int, int, bool]] = []
            while place < len(before) and before[place][0] < segment.address:
                place += 1
            while place < len(before) and before[place][0] < end:
                address, size = before[place]
                if address > at:
                    pieces.append((at, address - at, False))
                pieces.append((address, min(size, end - address), True))
                at = address + size
                place += 1
            if at < end:
                pieces.append((at, end - at, False))
            found.append((segment, pieces if segment.small else _widened(pieces)))
        return found


def _widened(pieces: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """The large pool splits nothing off that is no larger than 1 MiB: such a rest belongs to the piece before it."""
    told: list[tuple[int, int, bool]] = []
    for address, size, allocated in pieces:
        if told and told[-1][2] and not allocated and size <= SMALL_SIZE_BYTES:
            told[-1] = (told[-1][0], told[-1][1] + size, True)
        else:
            told.append((address, size, allocated))
    return told


@dataclass(slots=True)
class _Player:
    """One replay."""

    trace: _Trace
    allocator: CachingAllocator
    at_recorded_addresses: bool = False
    live: dict[int, Block] = field(default_factory=dict)
    """By the recorded addresses."""
    off: int = 0
    refused: bool = False
    failed_early: bool = False
    most_held: int = 0
    most_recorded: int = 0

    def begin(self, found: list[tuple[Segment, list[tuple[int, int, bool]]]] | None) -> None:
        """With the segments that were there; None: what was there is allocated anew, in the order of its addresses."""
        if found is not None:
            for segment, pieces in found:
                told = [(size, allocated) for _, size, allocated in pieces]
                blocks = self.allocator.adopt(segment.address, told, small=segment.small, stream=segment.stream)
                for (address, _, allocated), block in zip(pieces, blocks, strict=True):
                    if allocated:
                        self.live[address] = block
            return
        streams = self._streams()
        for address, size in sorted(self.trace.timeline.before.items()):
            try:
                self.live[address] = self.allocator.allocate(size, streams(address))
            except AllocationFailedError:
                self.failed_early = True
                return

    def _streams(self) -> Callable[[int], int]:
        starts = sorted((one.address, one.stream) for one in self.trace.segments)

        def stream(address: int) -> int:
            place = bisect_right(starts, (address, 1 << 64)) - 1
            return starts[place][1] if place >= 0 else 0

        return stream

    def play(self, *, to_the_end: bool) -> None:
        """Entry by entry, up to the failure or to the end."""
        events, allocator, live = self.trace.snapshot.events, self.allocator, self.live
        limit, failed_at = self.trace.limit, self.trace.timeline.failed_at
        recorded = self._recorded_at_start()
        self.most_recorded = recorded
        expected: list[tuple[int, int]] = []
        flushed_from = -1
        """What was held when the recorded allocator began to give segments back; -1: it has not."""
        for at in self.trace.run:
            if self.failed_early:
                return
            action, size = events.actions[at], events.sizes[at]
            if flushed_from >= 0 and action in (Action.ALLOC, Action.FREE_COMPLETED):
                # For want of room would have been followed by what it was wanted for: the program emptied the cache.
                allocator.release_cached()
                flushed_from = -1
            if action == Action.ALLOC:
                if self.at_recorded_addresses:
                    allocator.expect_segments(expected)
                    expected = []
                try:
                    live[events.addresses[at]] = allocator.allocate(size, events.streams[at])
                except AllocationFailedError:
                    self.failed_early = True
                self.most_held = max(self.most_held, allocator.reserved_bytes)
                self.off = max(self.off, abs(allocator.reserved_bytes - recorded))
            elif action == Action.FREE_COMPLETED:
                block = live.pop(events.addresses[at], None)
                if block is not None:
                    allocator.free(block)
            elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                if flushed_from < 0:
                    flushed_from = recorded
                recorded -= size
            elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                # Given back for want of room, as the model will do by itself, or because the program asked for it.
                if flushed_from >= 0 and flushed_from + size <= limit:
                    allocator.release_cached()
                flushed_from = -1
                recorded += size
                self.most_recorded = max(self.most_recorded, recorded)
                expected.append((events.addresses[at], size))
            elif action == Action.OOM:
                flushed_from = -1
                try:
                    block = allocator.allocate(size, events.streams[at])
                except AllocationFailedError:
                    self.refused = at == failed_at
                else:
                    self.most_held = max(self.most_held, allocator.reserved_bytes)
                    allocator.free(block)
                if at == failed_at and not to_the_end:
                    return
        if flushed_from >= 0:
            allocator.release_cached()
        self.off = max(self.off, abs(allocator.reserved_bytes - recorded))

    def _recorded_at_start(self) -> int:
        events, held = self.trace.snapshot.events, sum(one.size for one in self.trace.segments)
        for at in self.trace.run:
            if events.actions[at] in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                held -= events.sizes[at]
            elif events.actions[at] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                held += events.sizes[at]
        return held


def _pieces(blocks: Sequence[Block]) -> Mapping[tuple[int, bool], int]:
    """How many pieces there are of each size, handed out or not."""
    return Counter((block.size_bytes, block.allocated) for block in blocks if block.mapped)


def _pieces_of(segments: Sequence[Segment]) -> Mapping[tuple[int, bool], int]:
    return Counter(
        (block.size, block.allocated or block.pending) for segment in segments for block in segment.blocks
    )
