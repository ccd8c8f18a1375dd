"""What the rules work on, and what they answer with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.diagnosis.allocator import AllocatorSettings, allocator_settings
from runbook.diagnosis.figures import Figures, figures_of
from runbook.model.diagnosis import Detail, Kind
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogStory, MemoryFields
from runbook.model.node import GpuProcess, NodeFacts, NodeJudgement, NodeVerdict
from runbook.model.units import NodeName, Unknown


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is known about one failure."""

    story: LogStory
    job: JobRecord | None
    judgements: tuple[NodeJudgement, ...]
    facts: tuple[NodeFacts, ...]
    settings: Mapping[str, str]
    figures: Figures
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
            short = self.node.partition(".")[0]
            return next((one for one in self.judgements if one.node.partition(".")[0] == short), None)
        order = (NodeVerdict.FAULTY, NodeVerdict.OCCUPIED, NodeVerdict.UNKNOWN, NodeVerdict.CLEAN)
        return min(self.judgements, key=lambda one: order.index(one.verdict), default=None)

    def own_pids(self) -> frozenset[int]:
        """Process ids known to be this job's: from the log, and from the node's answer."""
        pids = set(self.story.rank_pids.values())
        if self.root is not None and self.root.pid is not None:
            pids.add(self.root.pid)
        for process in self.processes():
            if self.job is not None and process.job == self.job.id:
                pids.add(process.pid)
        return frozenset(pids)

    def processes(self) -> tuple[GpuProcess, ...]:
        """GPU processes that the check of the failing rank's node saw."""
        found: list[GpuProcess] = []
        for facts in self.facts:
            if self.node is not None and facts.node.partition(".")[0] != self.node.partition(".")[0]:
                continue
            if isinstance(facts.gpus, Unknown):
                continue
            for gpu in facts.gpus:
                if not isinstance(gpu.processes, Unknown):
                    found.extend(gpu.processes)
        return tuple(found)

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
    return Case(
        story, job, tuple(judgements), tuple(facts), settings, figures_of(root.fields if root else MemoryFields()),
        allocator_settings(settings, version), version,
    )
