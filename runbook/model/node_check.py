"""What `runbook node` found out: facts, judgement and the scheduler's view of each node that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.job import NodeState
from runbook.model.node import FoundJob, NodeFacts, NodeJudgement
from runbook.model.units import JobId, NodeName
from runbook.model.xid import XidClass


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """One node."""

    facts: NodeFacts
    judgement: NodeJudgement
    state: NodeState | None = None
    """As the scheduler sees it; None: not known, see `NodeCheck.scheduler_unknown`."""


@dataclass(frozen=True, slots=True)
class XidWords:
    """What an Xid code means by itself."""

    xid_class: XidClass
    title: str
    action: str = ""
    """The vendor's action, in the vendor's words."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """All nodes of one question, in the order in which they were named."""

    nodes: tuple[CheckedNode, ...]
    checked_at_s: float
    job: JobId | None = None
    """The job whose nodes, window and processes are meant; None: nobody's."""
    job_state: str = ""
    since_s: float | None = None
    """From when to when the kernel log counts. Both None without job and time: nothing counts for anybody."""
    until_s: float | None = None
    jobs: tuple[FoundJob, ...] = ()
    """Of the processes that were found on the GPUs."""
    scheduler_unknown: str = ""
    """Why node states and jobs are not known; "": they are."""
    not_answered: tuple[NodeName, ...] = ()
    """Nodes that had not answered when the check was interrupted."""
    xids: Mapping[int, XidWords] = field(default_factory=dict)
    """The codes that stand in the nodes' kernel logs."""
