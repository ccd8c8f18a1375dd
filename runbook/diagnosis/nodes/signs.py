"""What the judgement on a node is made of: one sign a finding, what a site decides, and which GPUs are the job's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from runbook.model import units
from runbook.model.job import NodeState
from runbook.model.node import GpuFacts, NodeAction, NodeFinding
from runbook.model.node_rules import Condition, NodeRules, RuleCase, Weight
from runbook.model.units import GIB, Bytes, JobId


@dataclass(frozen=True, slots=True)
class Sign:
    """One finding of a rule in a sentence. `gpu` is the node's index, None where it concerns the node."""

    rule: str
    weight: Weight
    action: NodeAction
    text: str
    gpu: int | None = None
    source: str = ""

    def finding(self) -> NodeFinding:
        return NodeFinding(self.rule, self.action, self.text, self.gpu, self.source)


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
class Rulebook:
    """The rules, with what the site decides: makes a condition that was found a sign."""

    rules: NodeRules
    policy: NodePolicy

    def sign(
        self, condition: Condition, gpu: GpuFacts | int | None = None, source: str = "", **words: object
    ) -> Sign:
        """The sign of a condition that was found, of a GPU or the node. `source` counts where its rule names none."""
        return self.sign_of(self.rules.cases[condition][-1], gpu, source, **words)

    def sign_of(
        self, case: RuleCase, gpu: GpuFacts | int | None = None, source: str = "", **words: object
    ) -> Sign:
        """As `sign`, of the one of a condition's cases that holds for an amount or a code."""
        if isinstance(gpu, GpuFacts):
            words, gpu = {"gpu": gpu_name(gpu), **words}, gpu.index
        weight, action = case.weight, case.action
        if case.policy and getattr(self.policy, case.policy):
            weight, action = Weight.DRAIN, self.rules.actions[Weight.DRAIN]
        return Sign(case.rule, weight, action, case.says.format_map(words), gpu, case.source or source)

    def weakened(self, strong: Sign, weight: Weight, why: str) -> Sign:
        """The sign with a smaller weight and the reason for it at the end of its sentence."""
        return replace(strong, weight=weight, action=self.rules.actions[weight], text=f"{strong.text}; {why}")


@dataclass(frozen=True, slots=True)
class JobGpus:
    """Which GPUs of the node are the job's. `indexes` None: not known, or all: every GPU of the node counts."""

    indexes: frozenset[int] | None
    whole_node: bool
    failing: int | None
    """Node index of the GPU that ran out of memory, where it is known."""
    source: str = ""
    """What told the job's GPUs; where nothing did, why not."""
    certain: bool = True
    """False: all of the node's count only because nobody knows how many the job had."""

    def counts(self, gpu: int | None) -> bool:
        return gpu is None or gpu < 0 or self.indexes is None or gpu in self.indexes


@dataclass(frozen=True, slots=True)
class FailureClues:
    """What the failure's own log and environment tell of the job's GPUs and processes on the node."""

    oom_device: int | None = None
    """The failing GPU as the job saw it."""
    node_device: str | None = None
    """The failing GPU by the node's own index or UUID, which outweighs `oom_device`."""
    visible_gpus: tuple[int, ...] | None = None
    """The node's indexes of the job's GPUs in the order of CUDA_VISIBLE_DEVICES; None: not known."""
    named_pids: frozenset[int] = frozenset()
    """Processes that the error message lists on the failing GPU."""
    own_pids: frozenset[int] = frozenset()
    """Those that the log says are the job's."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What the scheduler says around the node now. None: not asked, or not known."""

    live_jobs: frozenset[JobId] | None = None
    """The ids of all jobs that have not ended, of those whose processes are there."""
    node_state: NodeState | None = None
    spare_nodes: bool | None = None
    """Whether the job could run on other nodes."""


size = partial(units.size, decimals=1, coarse=True)
"""A figure as the findings show it."""


def gpu_name(gpu: GpuFacts) -> str:
    if gpu.index < 0:
        return f"the GPU at {gpu.bus_id}" if gpu.bus_id else "a GPU"
    return f"GPU {gpu.index}" + (f" ({gpu.bus_id})" if gpu.bus_id else "")
