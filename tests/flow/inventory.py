"""An inventory of a cluster that is not there."""

from __future__ import annotations

from runbook.config import Inventory, NodesDocument, PolicyDocument, SchedulerDocument

BY_QUESTION = PolicyDocument()


def inventory(policy: PolicyDocument = BY_QUESTION, cluster: str = "fake") -> Inventory:
    return Inventory(
        version=1, id=cluster, title="", cluster=cluster, scheduler=SchedulerDocument(kind="local"),
        nodes=NodesDocument(kind="none"), policy=policy,
    )
