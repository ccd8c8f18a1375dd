"""Vocabulary: memory snapshots of PyTorch, as they were recorded and what was found in them."""

from runbook.model.snapshots.found import (
    Category,
    DeviceFindings,
    Growth,
    Holder,
    Moment,
    Phase,
    Request,
    Shortage,
    SnapshotFindings,
    Use,
)
from runbook.model.snapshots.recorded import Action, Block, Events, Frame, Segment, Settings, Snapshot, Stack

__all__ = [
    "Action", "Block", "Category", "DeviceFindings", "Events", "Frame", "Growth", "Holder", "Moment", "Phase",
    "Request", "Segment", "Settings", "Shortage", "Snapshot", "SnapshotFindings", "Stack", "Use",
]
