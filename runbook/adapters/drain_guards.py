"""May this node be drained, and may it be given back? One answer for every scheduler.

A drain is somebody's decision with a reason in words; the tool never writes over another's, and gives back only what
it took itself.
"""

from __future__ import annotations

from runbook.errors import BadInput, NotAllowed
from runbook.model.job import NodeClass, NodeState


def drain_wanted(present: NodeState, reason: str) -> bool:
    """True: drain it. False: it is drained for this very reason already. Raises `BadInput` without a reason, and
    `NotAllowed` where somebody else has drained or marked the node, with their words."""
    if not reason.strip():
        raise BadInput("a drain needs a reason", where=present.name)
    drained = present.node_class is NodeClass.DRAINED
    if drained and present.reason == reason:
        return False
    if drained or present.reason:
        raise NotAllowed(
            f"{present.name} is already {'drained' if drained else 'marked'}: {present.reason or 'no reason given'}",
            where=present.name,
            next_step="leave it to whoever did it",
        )
    return True


def undrain_wanted(present: NodeState, token: str) -> bool:
    """True: give it back. False: it is not drained. Raises `NotAllowed` where the drain is not ours, or where the node
    is down besides: what brought it down is not settled by a resume."""
    ours = bool(token) and present.token == token
    if ours and (present.node_class is NodeClass.DOWN or "DOWN" in present.states):
        raise NotAllowed(
            f"{present.name} is down, not only drained: {present.reason}",
            where=present.name,
            next_step="give it back once it answers again",
        )
    if present.node_class is not NodeClass.DRAINED:
        return False
    if not ours:
        raise NotAllowed(
            f"{present.name} was drained by somebody else: {present.reason or 'no reason given'}",
            where=present.name,
            next_step="leave it to whoever drained it",
        )
    return True
