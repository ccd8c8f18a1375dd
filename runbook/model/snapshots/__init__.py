"""Vocabulary: memory snapshots of PyTorch, as they were recorded and what was found in them."""

from runbook.model.snapshots.found import (
    Category,
    DeviceFindings,
    Growth,
    Holder,
    Moment,
    NotReplayed,
    Phase,
    Replay,
    Request,
    Shortage,
    SnapshotFindings,
    Trial,
    Use,
)
from runbook.model.snapshots.recorded import Action, Block, Events, Frame, Segment, Settings, Snapshot, Stack

__all__ = [
    "Action", "Block", "Category", "DeviceFindings", "Events", "Frame", "Growth", "Holder", "Moment",
    "NotReplayed", "Phase", "Replay", "Request", "Segment", "Settings", "Shortage", "Snapshot", "SnapshotFindings",
    "Stack", "Trial", "Use",
]
