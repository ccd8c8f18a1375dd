"""Nodes that do not answer any more, but whose epilog left the probe's answer in the spool when the job failed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.model.node import GpuProcess, NodeFacts, ProcessEnd, ProcessView, Reach
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.node.facts import read_left_document
from runbook.ports import Nodes

MOST_BYTES = 4 << 20
_LATEST_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class NodesWithLeft:
    """Asks `nodes`; where a node is not reached, takes what its epilog left in `folder` within the window asked for."""

    nodes: Nodes
    folder: Path

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        """As the port says. An answer that was left is `Reach.OK` and says in its detail that it was left."""
        facts = self.nodes.check(node, since_s=since_s, until_s=until_s)
        if facts.reach is Reach.OK:
            return facts
        left = self._left(node, since_s, until_s)
        if left is None:
            return facts
        return replace(left, reach_detail=f"{left.reach_detail}; now the node does not answer: {facts.reach_detail}")

    def processes(
        self, node: NodeName, job: JobId, owner: UserName, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """As the port says: nothing that was left tells of a running job."""
        return self.nodes.processes(node, job, owner, variables)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """As the port says: only by a node that answers now."""
        return self.nodes.end_process(node, process, spared=spared, grace_s=grace_s)

    def _left(self, node: NodeName, since_s: float | None, until_s: float | None) -> NodeFacts | None:
        """The latest answer of the node that was written between the two times; one without an end is too old to
        tell of this job."""
        if since_s is None:
            return None
        for path in self._files(node)[:_LATEST_LOOKED_AT]:
            text = read_left(self.folder, path)
            if text is None:
                continue
            facts = read_left_document(text, node, since_s=since_s, until_s=until_s)
            at_s = facts.checked_at_s
            if facts.reach is Reach.OK and at_s is not None and since_s <= at_s <= (until_s or float("inf")):
                return facts
        return None

    def _files(self, node: NodeName) -> list[Path]:
        """Latest first."""
        ending = f".{node}.json"
        try:
            with os.scandir(self.folder) as entries:
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries
                    if entry.name.endswith(ending) and not entry.name.startswith(".")
                ]
        except OSError:
            return []
        return [self.folder / name for _, name in sorted(found, reverse=True)]


def read_left(folder: Path, path: Path) -> str | None:
    """A plain file of root or of the folder's owner: anybody else's word must not cost a node."""
    try:
        trusted = {0, folder.stat().st_uid}
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in trusted or status.st_size > MOST_BYTES:
            return None
        try:
            return handle.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
