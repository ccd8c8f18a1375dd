"""The rules of the node check, as their document says them: which condition makes which finding, and what follows.

The judgement (`runbook.diagnosis.nodes`) finds conditions; rule, weight, action, sentence and source of each stand in
the document.
"""
# ruff: noqa: PIE796 — conditions with the same words are different conditions

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Self

from runbook.model.catalogues import GpuModels, XidCatalogue
from runbook.model.node import NodeAction, NodeVerdict, Reports


class Weight(IntEnum):
    """What a sign does to the verdict, the heaviest first."""

    DRAIN = 6
    """Faulty: the rule says drain."""
    ELSEWHERE = 5
    """Faulty: hardware hit the job; the next run goes to another node, the node itself is not drained."""
    OCCUPIED = 4
    """Memory of the job's GPU is in other hands."""
    UNDETERMINED = 3
    """Something that nobody can read or judge from here: the node is neither clean nor faulty."""
    WARN = 2
    NOTE = 1


class Condition(Enum):
    """What the judgement can find, each with the words that its sentence may name."""

    words: frozenset[str]

    def __new__(cls, *words: str) -> Self:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.words = frozenset(words)
        return member

    # The GPUs' own figures.
    REMAPPING_FAILED = ("gpu",)
    SRAM_OVER_THRESHOLD = ("gpu",)
    MEMORY_BEYOND_REPAIR = ("gpu",)
    PAGES_RETIRED = ("gpu", "count")
    """By `at_least`."""
    ERRORS_UNCORRECTED = ("gpu", "count")
    """By `at_least`: since the driver was loaded."""
    ROW_WAITS = ("gpu",)
    """A row or page to be taken out."""
    REPAIR_WAITS = ("gpu",)
    RECOVERY_ASKED = ("gpu", "action", "asks")
    RECOVERY_ASKED_UNPUBLISHED = ("gpu", "action")
    ECC_MODE_UNREADABLE = ("gpu", "why")
    MIG_ON = ("gpu",)
    GPU_OUT_OF_REACH = ("gpu",)
    GPUS_FEWER = ("seen", "expected")
    GPUS_FEWER_IN_SIGHT = ("seen", "expected", "view")
    """The check may not have seen all of them."""
    GPUS_NONE = ()
    DRIVER_NOT_RELOADED = ("why",)

    # Their memory.
    MEMORY_BELOW_CATALOGUE = ("gpu", "missing", "total", "name", "least")
    MEMORY_BELOW_OTHERS = ("gpu", "total", "name", "most")
    """Of the same name on the node; the catalogue does not have it."""
    MEMORY_KEPT_BY_DRIVER = ("gpu", "reserved")
    MEMORY_HIDDEN = ("gpu", "hidden")
    MEMORY_HIDDEN_PERHAPS_UNSEEN = ("gpu", "hidden", "view")
    MEMORY_HIDDEN_JOB_MAY_RUN = ("gpu", "hidden")
    MEMORY_HIDDEN_JOB_JUST_ENDED = ("gpu", "hidden")

    # The kernel log: codes in the window, by their class.
    APPLICATION_CODE = ("event", "title")
    INFORMATIONAL_CODE = ("event", "title")
    WEAK_CODE = ("event", "title")
    PENDING_RESET_CODE = ("event", "title")
    CONTAINED_CODE = ("event", "title")
    RESET_CODE = ("event", "title")
    RESET_CODE_RECOVERED = ("event", "title")
    FAULTY_CODE = ("event", "title")
    """By `codes`."""
    QUALIFIER_CODE = ("event", "title")
    """One of `beside` is there too."""
    QUALIFIER_CODE_ALONE = ("event", "title")
    UNPUBLISHED_CODE = ("event", "title", "line")
    RECOVERY_CODE = ("event", "action", "asks")
    RECOVERY_CODE_UNPUBLISHED = ("event", "action")
    RECOVERY_CODE_UNREADABLE = ("event", "line")
    RECOVERY_CODE_TO_NONE = ("event",)
    RECOVERY_CODE_DONE = ("event", "action")
    LINK_NEEDS_RESET = ("event", "title", "why")
    LINK_MILD = ("event", "title", "why")
    LINK_MILD_UNLESS_154 = ("event", "title", "why")
    LINK_CONTRADICTS_ITSELF = ("event", "title", "line")
    LINK_FATAL_BY_WORD = ("event", "title")
    LINK_MILD_BY_WORD = ("event", "title")
    LINK_WITHOUT_SEVERITY = ("event", "title", "line")
    LINK_REGISTER_TO_WATCH = ("event", "title", "why")
    LINK_REGISTER_OF_PROGRAM = ("event", "title", "why")
    LINK_REGISTER_FOR_PERSON = ("event", "title", "why")
    LINK_REGISTER_UNPUBLISHED = ("event", "title", "line")
    FATAL_SWITCH_EVENT = ("event", "line")
    OTHER_SWITCH_EVENT = ("event", "line")

    # The kernel log: codes outside the window, or perhaps.
    CODE_PERHAPS_IN_WINDOW = ("event", "title", "why")
    CODE_WITHOUT_WINDOW = ("event", "title", "why")
    HEAVY_CODE_BEFORE_JOB = ("event", "title")
    HEAVY_CODE_BESIDE_JOB = ("event", "title")
    HEAVY_CODE_BEFORE_QUESTION = ("event", "title")
    CODE_REPEATED = ("where", "code")
    """By `codes`: in the window and at another time."""

    # Processes on the job's GPUs.
    PROCESS_OF_JOB = ("gpu", "pid", "held")
    PROCESS_NAMED_BY_LOG = ("gpu", "process")
    PROCESS_PERHAPS_LEFT_OVER = ("gpu", "process", "job")
    PROCESS_PERHAPS_LEFT_OVER_OF_UNKNOWN_JOB = ("gpu", "process", "no_job")
    PROCESS_OF_DRIVER = ("gpu", "process")
    PROCESS_OF_NOBODY_IN_SIGHT = ("gpu", "pid", "name", "held", "no_owner")
    PROCESS_OF_UNKNOWN_SIZE = ("gpu", "process", "no_size")
    PROCESS_OF_UNKNOWN_JOB = ("gpu", "process", "no_job")
    PROCESS_OF_NO_JOB = ("gpu", "process")
    PROCESS_OF_NO_JOB_OF_OWNER = ("gpu", "process")
    PROCESS_OF_ENDED_JOB = ("gpu", "process", "job")
    PROCESS_THAT_MAY_BE_ENDED = ("gpu", "process", "job", "seconds")
    PROCESS_OF_NEIGHBOUR = ("gpu", "process", "job")
    PROCESS_OF_OTHER_JOB = ("gpu", "process", "job", "standing", "named")
    PROCESS_OF_OTHER_JOB_TO_WAIT_FOR = ("gpu", "process", "job", "standing", "named")

    # The check itself.
    NODE_SILENT = ("why",)
    NOT_SEEN = ("what",)
    NOTHING_FOUND = ()


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A rule: what was found, and what follows where no policy and no circumstance says otherwise."""

    id: str
    """As the findings, the scenarios and docs/node-check.md name it."""
    shows: str
    row: str
    """Its row of the decision table."""
    weight: Weight
    action: NodeAction
    reports: frozenset[Reports] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One condition under which a rule makes a finding."""

    rule: str
    condition: Condition
    says: str
    weight: Weight
    action: NodeAction
    source: str = ""
    at_least: int = 0
    codes: frozenset[int] = frozenset()
    """The only Xid codes for which it holds; empty: any."""
    beside: frozenset[int] = frozenset()
    """Xid codes of which one must stand beside it."""
    policy: str = ""
    """The decision of a site (`NodePolicy`) that makes it a reason to drain."""


@dataclass(frozen=True, slots=True)
class VerdictMeaning:
    """Where a verdict comes from, and which of the findings' actions becomes the node's: the first that is there."""

    source: str
    actions: tuple[NodeAction, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRules:
    """All rules."""

    rules: Mapping[str, NodeRule]
    cases: Mapping[Condition, tuple[RuleCase, ...]]
    """The narrower first: with codes before those without, the greater `at_least` before the lesser."""
    verdicts: Mapping[NodeVerdict, VerdictMeaning]
    actions: Mapping[Weight, NodeAction]
    """What follows where a policy or the place of a finding changes the weight that its rule has by itself."""
    source_of_silence: str
    """Of a node that does not answer."""
    helpers: frozenset[str]
    """Programs of the driver, of monitoring and of displays."""

    def case(self, condition: Condition, *, amount: int = 0, code: int = 0) -> RuleCase | None:
        """What the document says of a condition; None where neither amount nor code is enough for any rule."""
        return next(
            (one for one in self.cases[condition] if one.at_least <= amount and (not one.codes or code in one.codes)),
            None,
        )

    def codes(self, condition: Condition) -> frozenset[int]:
        """The codes for which alone a condition holds."""
        return frozenset(code for one in self.cases[condition] for code in one.codes)

    def beside(self, condition: Condition) -> frozenset[int]:
        """The codes of which a condition asks for one beside it."""
        return frozenset(code for one in self.cases[condition] for code in one.beside)

    @property
    def reports_by_rule(self) -> dict[str, frozenset[Reports]]:
        return {id: rule.reports for id, rule in self.rules.items()}

    def reports(self, rule: str) -> frozenset[Reports]:
        """What a finding of this rule says; nothing of a rule that the document does not have any more."""
        return self.rules[rule].reports if rule in self.rules else frozenset()


@dataclass(frozen=True, slots=True)
class NodeDocuments:
    """The documents that a node is judged by."""

    rules: NodeRules
    xids: XidCatalogue
    gpu_models: GpuModels = field(default_factory=GpuModels)
