"""What the judgement on a node is made of: one sign a finding, what a site decides, and which GPUs are the job's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from runbook.diagnosis.nodes_rules import ACTION_OF_WEIGHT, RULES, Rule, Weight
from runbook.model.node import GpuFacts, NodeAction, NodeFinding
from runbook.model.units import GIB, MIB, Bytes


@dataclass(frozen=True, slots=True)
class Sign:
    """One finding of a rule in a sentence. `gpu` is the node's index, None where it concerns the node."""

    rule: Rule
    weight: Weight
    action: NodeAction
    text: str
    gpu: int | None = None
    source: str = ""

    def finding(self) -> NodeFinding:
        return NodeFinding(self.rule.value, self.action, self.text, self.gpu, self.source)


def sign(
    rule: Rule, text: str, gpu: int | None = None, source: str = "", *, weight: Weight | None = None,
    action: NodeAction | None = None,
) -> Sign:
    """A sign with what its rule says; `weight` and `action` where policy or circumstances say otherwise."""
    meaning = RULES[rule]
    given = meaning.weight if weight is None else weight
    follows = action or (meaning.action if given is meaning.weight else ACTION_OF_WEIGHT[given])
    return Sign(rule, given, follows, text, gpu, source)


def weakened(strong: Sign, weight: Weight, why: str) -> Sign:
    """The sign with a smaller weight and the reason for it at the end of its sentence."""
    return replace(strong, weight=weight, action=ACTION_OF_WEIGHT[weight], text=f"{strong.text}; {why}")


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a site decides where the vendor leaves a choice. Sizes in bytes."""

    drain_on_pending_reset: bool = False
    drain_on_contained_error: bool = False
    """Xid 94."""
    drain_on_hidden_memory: bool = False
    hidden_memory_bytes: Bytes = Bytes(GIB)
    """Memory in use without a process that is worth a warning; a driver's own use stays below."""
    context_bytes: Bytes = Bytes(GIB // 2)
    """What a CUDA context may take beyond the figure that is listed for its process."""
    helper_bytes: Bytes = Bytes(GIB)
    """Monitoring and display processes below this are no tenants."""
    reserved_bytes: Bytes = Bytes(2 * GIB)
    """What a driver may keep of a GPU's memory for itself (240 MiB on a V100, 614 MiB on an H200) and then some."""
    may_end_leaked_processes: bool = False


@dataclass(frozen=True, slots=True)
class JobGpus:
    """Which GPUs of the node are the job's. `indexes` None: not known, or all: every GPU of the node counts."""

    indexes: frozenset[int] | None
    whole_node: bool
    failing: int | None
    """Node index of the GPU that ran out of memory, where it is known."""
    source: str = ""
    """What told the job's GPUs; where nothing did, why not."""

    def counts(self, gpu: int | None) -> bool:
        return gpu is None or gpu < 0 or self.indexes is None or gpu in self.indexes


def gpu_name(gpu: GpuFacts) -> str:
    if gpu.index < 0:
        return f"the GPU at {gpu.bus_id}" if gpu.bus_id else "a GPU"
    return f"GPU {gpu.index}" + (f" ({gpu.bus_id})" if gpu.bus_id else "")


def size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / MIB:.0f} MiB"


def moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
