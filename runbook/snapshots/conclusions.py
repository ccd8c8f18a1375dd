"""What a snapshot says, device by device: use, failing request, and what stood in its way.

When a request fails the allocator has given everything back to the driver that it can (outside CUDA graphs): what is
still reserved and free lies in segments that are partly in use. Rules of `c10/cuda/CUDACachingAllocator.cpp`."""

from __future__ import annotations

from runbook.allocator import segment_bytes_for
from runbook.model.snapshots import (
    Action,
    DeviceFindings,
    NotReplayed,
    Phase,
    Replay,
    Request,
    Segment,
    Shortage,
    Snapshot,
    SnapshotFindings,
    Use,
)
from runbook.snapshots.replay import replay
from runbook.snapshots.timeline import look_at, phase_of


def findings_of(snapshot: Snapshot, name: str, *, always_replay: bool = False) -> SnapshotFindings:
    """`name`: of the file, for people. Replayed is what failed, and everything where it is asked for."""
    phases = {number: phase_of(stack) for number, stack in enumerate(snapshot.stacks)}
    if len(phases) > 1 and not any("::" in frame.name for stack in snapshot.stacks for frame in stack):
        # Python's calls alone were recorded, and here there are none: autograd's threads run no Python.
        phases[0] = Phase.BACKWARD
    devices = []
    for device in snapshot.devices:
        segments = [one for one in snapshot.segments if one.device == device]
        timeline, moment, growth = look_at(snapshot, device, phases)
        use, request = _use(segments), _request(snapshot, device, timeline.failed_at)
        shortage, deficit, reserved = Shortage.UNKNOWN, 0, use.reserved
        if request is not None:
            reserved = _reserved_at(snapshot, device, timeline.failed_at, use)
            shortage, deficit = _shortage(request, reserved - moment.size, segments)
        replayed = Replay(NotReplayed.NOT_ASKED)
        if request is not None or always_replay:
            replayed = replay(snapshot, device, timeline, request, reserved)
        devices.append(DeviceFindings(
            device, use, moment, max(timeline.highest, use.allocated), len(snapshot.traces.get(device, ())), request,
            shortage, deficit, growth, replayed,
        ))
    recorded = len(snapshot.stacks) > 1 or any(one.entries > 1 for one in devices)
    return SnapshotFindings(name, tuple(devices), snapshot.settings, recorded)


def _use(segments: list[Segment]) -> Use:
    allocated = pending = free = largest = whole = private = rounding = 0
    for segment in segments:
        in_use = False
        for block in segment.blocks:
            if block.allocated:
                allocated += block.size
                rounding += max(0, block.size - block.requested)
            elif block.pending:
                pending += block.size
            else:
                free += block.size
                if segment.private:
                    private += block.size
                else:
                    largest = max(largest, block.size)
                continue
            in_use = True
        if not in_use and not segment.private:
            whole += segment.size
    return Use(
        sum(one.size for one in segments), allocated, pending, free, largest, whole, private, rounding, len(segments)
    )


def _request(snapshot: Snapshot, device: int, at: int) -> Request | None:
    if at < 0:
        return None
    events, run = snapshot.events, snapshot.traces[device]
    after = sum(1 for place in range(at + 1, run.stop) if events.actions[place] != Action.SNAPSHOT)
    size = events.sizes[at]
    return Request(
        size, segment_bytes_for(size), events.addresses[at], events.streams[at],
        snapshot.stacks[events.stacks[at]][:60], after
    )


def _reserved_at(snapshot: Snapshot, device: int, at: int, use: Use) -> int:
    """What the allocator held at an entry: what it holds in the end, less what it took and gave back since."""
    events, reserved = snapshot.events, use.reserved
    for place in range(at + 1, snapshot.traces[device].stop):
        if events.actions[place] in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved -= events.sizes[place]
        elif events.actions[place] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved += events.sizes[place]
    return reserved


def _shortage(request: Request, free: int, segments: list[Segment]) -> tuple[Shortage, int]:
    """`free`: in the allocator's segments when the request failed."""
    deficit = max(0, request.size - request.device_free - max(0, free))
    if deficit:
        return Shortage.FULL, deficit
    if any(one.private or one.stream != request.stream for one in segments):
        # The segments of others may have had what was free; where they are of the failure itself they say so.
        if request.events_after:
            return Shortage.UNKNOWN, 0
        fitting = any(
            block.size >= request.size and not block.allocated and not block.pending
            for segment in segments for block in segment.blocks
        )
        return (Shortage.APART if fitting else Shortage.PIECES), 0
    return Shortage.PIECES, 0
