"""Memory snapshots of PyTorch: read as the hostile files that they may be, and what they say."""

from runbook.snapshots.conclusions import findings_of
from runbook.snapshots.reading import read_snapshot

__all__ = ["findings_of", "read_snapshot"]
