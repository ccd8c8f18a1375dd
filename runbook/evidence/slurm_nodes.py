"""`sinfo`: nodes with all their state words, and the drain reason as it was written."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.evidence import slurm_fields as fields
from runbook.evidence.slurm_columns import long_format, rows
from runbook.evidence.slurm_hosts import fold_hosts
from runbook.evidence.states import node_class, node_states
from runbook.model.job import NodeState
from runbook.model.units import NodeName

COLUMNS = ("NodeList", "StateComplete", "Reason", "Gres", "GresUsed", "Partition")


def node_arguments(names: Sequence[NodeName] | None, separator: str) -> tuple[str, ...]:
    """Arguments of sinfo: a row a node and partition, hidden partitions too."""
    chosen = (f"--nodes={fold_hosts(names)}",) if names else ()
    return ("--noheader", "--Node", "--all", *chosen, "-O", long_format(COLUMNS, separator))


def read_nodes(text: str, separator: str) -> tuple[NodeState, ...]:
    """Nodes in sinfo's order, each once."""
    found: dict[NodeName, NodeState] = {}
    for row in rows(text, COLUMNS, separator):
        name = NodeName(row["NodeList"].strip())
        partition = row["Partition"].strip().removesuffix("*")
        before = found.get(name)
        partitions = (*(before.partitions if before else ()), *((partition,) if partition else ()))
        words = node_states(row["StateComplete"])
        reason = row["Reason"]
        found[name] = NodeState(
            name=name,
            node_class=node_class(words),
            states=words,
            reason="" if reason.strip().lower() in ("none", "(null)", "") else reason,
            gpus=fields.gpu_count(row["Gres"]),
            gpus_allocated=fields.gpu_count(row["GresUsed"]),
            partitions=tuple(dict.fromkeys(partitions)),
        )
    return tuple(found.values())


def drain_arguments(node: NodeName, reason: str) -> tuple[str, ...]:
    """Arguments of scontrol."""
    return ("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def resume_arguments(node: NodeName) -> tuple[str, ...]:
    return ("update", f"NodeName={node}", "State=RESUME")
