"""What the rules work on, and what they answer with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.diagnosis.allocator import AllocatorSettings, allocator_settings
from runbook.diagnosis.figures import Figures, figures_of
from runbook.model.diagnosis import Detail, Kind
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogStory, MemoryFields
from runbook.model.node import NodeFacts, NodeJudgement, NodeVerdict
from runbook.model.units import NodeName, Unknown

_COLOCATE = frozenset({"verl", "slime", "relax", "areal", "openrlhf", "roll", "skyrl", "nemo-rl", "trl"})
"""Reinforcement learning frameworks that put trainer and engine on one card, by default or by an option."""
_TRAINERS = frozenset({"megatron", "torchtitan", "deepspeed", "lightning", "transformers", "nemo", "accelerate"})
_RL_FRAME = re.compile(r"[/ .(](?:verl|slime|areal|openrlhf|nemo_rl|skyrl_train|easyr1)/[\w/]{1,200}\.py")
"""The last of a path's folders; `relax` and `roll` are words that stand in other paths too."""
_EXPANDABLE_ONLY = frozenset({"PT-CUDA-13", "PT-CUDA-16"})
"""Raised by the virtual memory calls that only expandable segments make."""
_ENGINE_MESSAGES = {"vllm": "VLLM-", "sglang": "SGL-", "tensorrt-llm": "TRT-"}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is known about one failure."""

    story: LogStory
    job: JobRecord | None
    judgements: tuple[NodeJudgement, ...]
    facts: tuple[NodeFacts, ...]
    settings: Mapping[str, str]
    figures: Figures
    own_pids: frozenset[int]
    """Process ids known to be this job's own."""
    allocator: AllocatorSettings
    version: str | None

    @property
    def root(self) -> Finding | None:
        return self.story.root_cause

    @property
    def node(self) -> NodeName | None:
        return self.root.node if self.root else None

    def judgement(self) -> NodeJudgement | None:
        """The judgement on the failing rank's node; where that is unknown, the only or the worst one."""
        if self.node is not None:
            return next((one for one in self.judgements if short_name(one.node) == short_name(self.node)), None)
        order = (NodeVerdict.FAULTY, NodeVerdict.OCCUPIED, NodeVerdict.UNKNOWN, NodeVerdict.CLEAN)
        return min(self.judgements, key=lambda one: order.index(one.verdict), default=None)

    @property
    def engines(self) -> tuple[str, ...]:
        """Inference engines that speak in the job's own logs, by their start-up lines or by any message of theirs."""
        seen = self.signatures()
        spoke = [name for name, start in _ENGINE_MESSAGES.items() if any(one.startswith(start) for one in seen)]
        return tuple(dict.fromkeys((*self.story.engines, *spoke)))

    @property
    def colocation(self) -> float:
        """How likely a trainer and an inference engine of this very job share the card, as far as the logs tell.

        0 where no engine is in sight; the weights are orders of magnitude, not measurements."""
        framework = (self.story.framework or "").lower()
        excerpt = self.root.excerpt if self.root is not None else ""
        if framework in _COLOCATE or _RL_FRAME.search(excerpt):
            return 0.8
        trains = self.story.progress.last_step is not None or framework in _TRAINERS
        return 0.6 if self.engines and trains else 0.4 if self.engines else 0.0

    def signatures(self) -> frozenset[str]:
        """Ids of everything that the logs said, handled, harmless or not."""
        story = self.story
        findings = (*((story.root_cause,) if story.root_cause else ()), *story.candidates, *story.harmless)
        return frozenset({one.signature for one in findings} | {one.signature for one in story.collateral})

    def steps_done(self) -> int | None:
        """Steps that were completed since the start or the resume before the failure."""
        progress = self.story.progress
        if progress.last_step is None:
            return None
        before_first = progress.numbered_from - 1
        start = progress.resumed_from_step
        if start is None or start > progress.last_step:
            first = progress.first_step if progress.first_step is not None else progress.numbered_from
            return max(0, progress.last_step - max(before_first, first - 1))
        return max(0, progress.last_step - start - before_first)


@dataclass(frozen=True, slots=True)
class Vote:
    """A rule's answer: a kind with the confidence it would deserve if nothing else applied."""

    rule: str
    kind: Kind
    confidence: float
    reasons: tuple[str, ...]
    against: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    decisive: bool = True
    """Ends the decision: later rules only come as runners-up."""
    detail: Detail = Detail.NONE


def build(
    story: LogStory, job: JobRecord | None, judgements: Sequence[NodeJudgement], facts: Sequence[NodeFacts],
    settings: Mapping[str, str],
) -> Case:
    """Bring the evidence together."""
    root = story.root_cause
    version = settings.get("pytorch_version") or story.framework_version or (root.framework_version if root else None)
    own = _own_pids(story, job, facts)
    return Case(
        story, job, tuple(judgements), tuple(facts), settings,
        figures_of(root.fields if root else MemoryFields(), own), own,
        allocator_settings(settings, version, _said_of_the_allocator(story)), version,
    )


def _own_pids(story: LogStory, job: JobRecord | None, facts: Sequence[NodeFacts]) -> frozenset[int]:
    """Process ids known to be this job's: from the log, and from the answer of the failing rank's node."""
    root = story.root_cause
    pids = {*story.rank_pids.values(), *story.own_pids}
    if root is not None and root.pid is not None:
        pids.add(root.pid)
    for answer in facts:
        elsewhere = root is not None and root.node is not None and short_name(answer.node) != short_name(root.node)
        if job is None or elsewhere or isinstance(answer.gpus, Unknown):
            continue
        for gpu in answer.gpus:
            if not isinstance(gpu.processes, Unknown):
                pids |= {process.pid for process in gpu.processes if process.job == job.id}
    return frozenset(pids)


def _said_of_the_allocator(story: LogStory) -> dict[str, str]:
    """What the log shows of its settings; some messages are printed only with expandable segments on."""
    said = dict(story.settings)
    root = story.root_cause
    findings = (*((root,) if root else ()), *story.candidates, *story.harmless)
    if any(one.signature in _EXPANDABLE_ONLY for one in findings) or (
        root is not None and "expandable_segments is enabled" in root.excerpt
    ):
        said.setdefault("expandable segments mode", "")
    return said


def short_name(node: str) -> str:
    """A node's name without its domain."""
    return node.partition(".")[0]
