"""What the rules work on: the evidence, what its figures allow to compute, the allocator's settings; their answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from runbook.model import units
from runbook.model.diagnosis import Detail, KindEntry, Kinds
from runbook.model.job import JobRecord
from runbook.model.log import (
    Collateral,
    Event,
    Finding,
    Framework,
    FrameworkRole,
    LogStory,
    Meanings,
    MemoryFields,
)
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_diagnosis import Say
from runbook.model.units import GIB, MIB, NodeName, NodeVerdict, Unknown

if TYPE_CHECKING:
    from runbook.model.node import NodeFacts, NodeJudgement

# What the figures of an out-of-memory message allow to compute (rules ), with their rounding error.

SMALL_REQUESTS = (2 * MIB, 20 * MIB)
"""R-06: what the allocator asks the driver for when it needs anything up to 1 MiB, or up to 10 MiB."""

ORDINARY_CONTEXT_BYTES = 3 * GIB // 2
"""R-02: CUDA context, kernels, NCCL buffers and library workspaces of an ordinary process."""


size = partial(units.size, coarse=True, unknown="an unknown amount")
"""A figure as the reasons show it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one message in bytes; None where the message does not say and nothing follows."""

    fields: MemoryFields
    reserved_bytes: int | None
    """R-01."""
    unallocated_bytes: int | None
    """R-01: reserved and not allocated."""
    outside_bytes: int | None
    """R-02: of this process, outside PyTorch's allocator."""
    unattributed_bytes: int | None
    """R-03: in use and nobody's that the message names."""
    available_bytes: int | None
    """R-04: free plus reserved but unallocated, the most that a perfectly defragmented card could give."""

    available_error_bytes: int = 0
    """What rounding can put on `available_bytes`."""
    reserved_error_bytes: int = 0
    self_pid: int | None = None
    """R-17 (a): the process of the message that must be the failing one, under its host's pid."""
    self_certain: bool = False
    """Its memory agrees with what PyTorch reserved."""
    process_bytes: int | None = None
    """All memory of the failing process, printed or by `self_pid`."""
    unexplained_bytes: int | None = None
    """Where the message lists no process at all: in use, and not reserved by PyTorch."""

    @property
    def tried(self) -> int | None:
        return self.fields.tried_bytes

    @property
    def free(self) -> int | None:
        return self.fields.free_bytes

    @property
    def short_bytes(self) -> int | None:
        """Tried less free: what the driver could not give."""
        if self.tried is None or self.free is None:
            return None
        return max(0, self.tried - self.free)

    @property
    def small_request(self) -> bool:
        """R-06: the request says only "anything small"."""
        return self.tried in SMALL_REQUESTS


def figures_of(fields: MemoryFields, own_pids: frozenset[int] = frozenset(), pid: int | None = None) -> Figures:
    """Compute R-01 to R-04. Negative results within rounding become zero. `own_pids`: other processes of the job;
    `pid`: the failing one, where the log has it."""
    allocated = fields.allocated_bytes
    reserved, unallocated = fields.reserved, fields.unallocated
    reserved_error = print_error(fields.reserved_bytes)
    unallocated_error = print_error(fields.reserved_unallocated_bytes)
    if fields.reserved_bytes is None and reserved is not None:
        reserved_error = print_error(allocated) + unallocated_error
    if fields.reserved_unallocated_bytes is None and unallocated is not None:
        unallocated_error = reserved_error + print_error(allocated)
    self_pid, certain, process = _self(fields, reserved, reserved_error, own_pids - {pid}, pid)
    outside = max(0, process - reserved) if process is not None and reserved is not None else None
    unattributed = unexplained = None
    others = [one.bytes for one in fields.other_processes if one.pid != self_pid]
    if fields.capacity_bytes is not None and fields.free_bytes is not None:
        used = fields.capacity_bytes - fields.free_bytes
        if process is not None and None not in others:
            unattributed = max(0, used - process - sum(value for value in others if value is not None))
        elif process is None and not fields.other_processes and reserved is not None:
            unexplained = max(0, used - reserved)
    available = None
    if fields.free_bytes is not None and unallocated is not None:
        available = fields.free_bytes + unallocated
    return Figures(
        fields, reserved, unallocated, outside, unattributed, available,
        print_error(fields.free_bytes) + unallocated_error, reserved_error, self_pid, certain, process, unexplained,
    )


def _self(
    fields: MemoryFields, reserved: int | None, error: int, own_pids: frozenset[int], pid: int | None
) -> tuple[int | None, bool, int | None]:
    """(pid in the list, whether its size agrees, all memory of the failing process).

    Where NVML runs in another pid namespace, "this process" is missing and the process stands in the list under its
    host's pid: it is the only one, or the one whose size is what PyTorch reserved and a context (R-17 a)."""
    if fields.process_bytes is not None or reserved is None:
        return None, fields.process_bytes is not None, fields.process_bytes
    listed = [one for one in fields.other_processes if one.pid not in own_pids]
    itself = next((one for one in listed if one.pid == pid), None)
    if itself is not None:
        return pid, itself.bytes is not None, itself.bytes
    error += 6 * MIB
    least, most = reserved - error, reserved + 2 * ORDINARY_CONTEXT_BYTES + error
    fitting = [(one.bytes, one.pid) for one in listed if one.bytes is not None and least <= one.bytes <= most]
    if fitting:
        size_bytes, pid = min(fitting)
        return pid, len(fitting) == 1, size_bytes
    if len(listed) == 1 and (listed[0].bytes is None or listed[0].bytes >= least):
        return listed[0].pid, False, listed[0].bytes
    return None, False, None


def print_error(*figures: int | None) -> int:
    """The most that PyTorch's print format (two decimals of KiB, MiB or GiB) is off for a sum of these figures."""
    error = 0.0
    for figure in figures:
        if figure is not None and figure > 1 << 10:
            unit = 1 << 10 if figure <= MIB else MIB if figure <= GIB else GIB
            error += 0.005 * unit
    return round(error)


# The allocator's settings in force, and whether this PyTorch reads the variable that holds them.
#
# What the log shows of its own environment outweighs the launch script: a container or a framework may set it anew.

CUDA_NAME = "PYTORCH_CUDA_ALLOC_CONF"
NEW_NAME = "PYTORCH_ALLOC_CONF"
_NAMES = {
    CUDA_NAME: CUDA_NAME, "PYTORCH_HIP_ALLOC_CONF": CUDA_NAME, "ALLOCATOR_CUDA": CUDA_NAME,
    "EXPANDABLE_SEGMENTS": CUDA_NAME, NEW_NAME: NEW_NAME, "ALLOCATOR_NEWER": NEW_NAME,
}
"""The variables, and the ids under which lever documents name them."""
_ON = re.compile(r"(?:^|[,\s'\"])expandable_segments\s*[:=]\s*true\b", re.IGNORECASE)
_FRACTION = re.compile(r"(?:^|,)\s*per_process_memory_fraction\s*:\s*([0-9.]+)", re.IGNORECASE)
_ROUNDUP = re.compile(r"roundup_power2_divisions\s*:", re.IGNORECASE)
_IN_FORCE = "expandable segments mode"
_UNSUPPORTED = "expandable_segments not supported"
"""What PyTorch itself says in a log; the reader of logs keeps these words as names without a value."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What is known about expandable segments, a memory fraction and the rounding of requests."""

    expandable: bool
    """Set, and read by this PyTorch as far as its version is known."""
    ignored: Sentence = NOTHING
    """Why a setting that is there has no effect, in a sentence."""
    fraction: float | None = None
    known: bool = False
    """Whether any allocator variable was among the settings, or the log tells the state."""
    rounds_up: bool = False
    """roundup_power2_divisions: requests are rounded up to shares of a power of two (R-07)."""


def allocator_settings(
    settings: Mapping[str, str], version: str | None, said: Mapping[str, str] | None = None
) -> AllocatorSettings:
    """Read the template's parameters, and what the log `said` of its own environment. `version` is "2.6.0" or a range
    "2.4-2.9"; None where unknown.

    PYTORCH_ALLOC_CONF has no effect before 2.9 and does not reach the CUDA allocator in 2.9 (pytorch issue 183387);
    later, of several variables the CUDA one is read."""
    said = said or {}
    printed = {name for name in said if name.upper() in _NAMES}
    expandable, ignored, fraction, rounds_up = False, NOTHING, None, False
    named = {name.upper(): value for name, value in settings.items() if name.upper() in _NAMES} if not printed else {}
    named |= {name.upper(): said[name] for name in printed}
    variables = {_NAMES[name] for name in named}
    newest = newest_minor(version)
    for name, value in named.items():
        on = bool(_ON.search(value)) or (name == "EXPANDABLE_SEGMENTS" and value.strip().lower() == "true")
        unread = _why_unread(newest, CUDA_NAME in variables) if _NAMES[name] == NEW_NAME else NOTHING
        if unread:
            ignored = Say.SETS_EXPANDABLE_SEGMENTS_BUT(new_name=NEW_NAME, unread=unread) if on else ignored
            continue
        found = _FRACTION.search(value)
        fraction = float(found[1]) if found and found[1].replace(".", "", 1).isdigit() else fraction
        rounds_up = rounds_up or bool(_ROUNDUP.search(value))
        expandable = expandable or on
    if _UNSUPPORTED in said:
        expandable, ignored = False, Say.LOG_SAYS_EXPANDABLE_SEGMENTS_NOT_SUPPORTED()
    elif _IN_FORCE in said:
        expandable = True
    known = bool(named) or _UNSUPPORTED in said or _IN_FORCE in said
    return AllocatorSettings(expandable, NOTHING if expandable else ignored, fraction, known, rounds_up)


def _why_unread(newest: int | None, beside_cuda_name: bool) -> Sentence:
    """Why the newer variable's value does not reach the CUDA allocator; nothing where it does, or may."""
    if newest is not None and newest < 10:
        return Say.VARIABLE_NOT_READ(newest=newest, cuda_name=CUDA_NAME)
    return Say.OTHER_VARIABLE_IS_READ(cuda_name=CUDA_NAME) if beside_cuda_name else NOTHING


def newest_minor(version: str | None) -> int | None:
    """Minor number of the newest PyTorch 2 that "2.6.0" or "2.4-2.9" allows; 0 for PyTorch 1, None for unknown."""
    numbers = _minors(version)
    return numbers[-1] if numbers else None


def oldest_minor(version: str | None) -> int | None:
    """As `newest_minor`, for the oldest."""
    numbers = _minors(version)
    return numbers[0] if numbers else None


def _minors(version: str | None) -> list[int]:
    return [int(minor) if int(major) >= 2 else 0 for major, minor in re.findall(r"(\d+)\.(\d+)", version or "")]


# What the rules work on, and what they answer with.

LOCAL_PROCESSES = "local_processes"
"""Under which name the settings say how many processes the launch script starts on each node."""
_NOTHING = KindEntry()


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
    meanings: Meanings

    @property
    def local_processes(self) -> int:
        """As many as the launch script starts on each node; 0 where that is not known."""
        told = self.settings.get(LOCAL_PROCESSES, "")
        return int(told) if told.isdecimal() and len(told) < 6 else 0

    @property
    def root(self) -> Finding | None:
        return self.story.root_cause

    @property
    def kinds(self) -> Kinds:
        return self.meanings.kinds

    @property
    def root_pid(self) -> int | None:
        """Of the process that failed first, as the log has it."""
        return self.root.pid if self.root else None

    @property
    def meant(self) -> KindEntry:
        """The kind that the first failure's line means; one of no attributes where there is no such line."""
        return self.kinds.of(self.root.means).entry if self.root else _NOTHING

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
        told = {self.meanings.of(one).engine for one in self.signatures()}
        spoke = [one.id for one in self.programs(FrameworkRole.ENGINE) if one.id in told]
        return tuple(dict.fromkeys((*self.story.engines, *spoke)))

    def programs(self, role: FrameworkRole) -> tuple[Framework, ...]:
        """Those that the documents know in a role."""
        return tuple(one for one in self.meanings.frameworks if one.role is role)

    def reports(self, one: Finding | Collateral, *events: Event) -> bool:
        """Whether a line tells any of these events, by its signature."""
        return self.meanings.reports(one.signature, *events)

    @property
    def colocation(self) -> float:
        """How likely a trainer and an inference engine of this very job share the card, as far as the logs tell.

        0 where no engine is in sight; the weights are orders of magnitude, not measurements."""
        framework = self.meanings.framework(self.story.framework or "")
        role = framework.role if framework is not None else None
        excerpt = self.root.excerpt if self.root is not None else ""
        colocated = [one for one in self.programs(FrameworkRole.COLOCATED) if one.folder]
        if role is FrameworkRole.COLOCATED or any(one.in_frames.search(excerpt) for one in colocated):
            return 0.8
        trains = self.story.progress.last_step is not None or role is FrameworkRole.TRAINER
        return 0.6 if self.engines and trains else 0.4 if self.engines else 0.0

    def signatures(self) -> frozenset[str]:
        """Ids of everything that the logs said, handled, harmless or not."""
        story = self.story
        findings = (*((story.root_cause,) if story.root_cause else ()), *story.candidates, *story.harmless)
        return frozenset({one.signature for one in findings} | {one.signature for one in story.collateral})

    def killed_steps(self) -> list[str]:
        """Steps (or the job) that Slurm's accounting calls OUT_OF_MEMORY."""
        if self.job is None:
            return []
        steps = [step.id for step in self.job.steps if step.state.name == "OUT_OF_MEMORY"]
        return steps or ([self.job.id] if self.job.state.name == "OUT_OF_MEMORY" else [])

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


class Conclusion(StrEnum):
    """The kinds that the rules of this room find, by their ids in kinds.yaml. A rule for a kind of one playbook alone
    may give the id itself."""

    TRUE_OOM = auto()
    FRAGMENTATION = auto()
    CO_TENANT = auto()
    INFERENCE_RESERVATION = auto()
    KV_CACHE_SIZING = auto()
    NCCL_BUFFERS = auto()
    PER_PROCESS_LIMIT = auto()
    MEMORY_LEAK = auto()
    CUDA_CONTEXT_OR_DRIVER = auto()
    HOST_OOM = auto()
    HARDWARE_FAULT = auto()
    NOT_OOM = auto()
    UNDETERMINED = auto()


@dataclass(frozen=True, slots=True)
class Vote:
    """A rule's answer: a kind with the confidence it would deserve if nothing else applied."""

    rule: str
    kind: str
    confidence: float
    reasons: tuple[Sentence, ...]
    against: tuple[Sentence, ...] = ()
    missing: tuple[Sentence, ...] = ()
    decisive: bool = True
    """Ends the decision: later rules only come as runners-up."""
    detail: Detail = Detail.NONE


Rule = Callable[[Case], Vote | tuple[Vote, ...] | None]
"""One vote, none, or several: a reading and what else the same evidence may mean."""
LineRule = Callable[[Case, Finding, Vote], tuple[Vote, ...]]
"""What other evidence makes of the vote that a line's own meaning gives."""
RULES: dict[str, Rule] = {}
LINE_RULES: dict[str, LineRule] = {}
_AnyRule = TypeVar("_AnyRule", bound=Rule)
_AnyLineRule = TypeVar("_AnyLineRule", bound=LineRule)


def rule(function: _AnyRule) -> _AnyRule:
    """A rule that kinds.yaml may name among its `rules`, which are in the order of decision."""
    RULES[function.__name__] = function
    return function


def line_rule(function: _AnyLineRule) -> _AnyLineRule:
    """A rule that a kind may name as its `rule`."""
    LINE_RULES[function.__name__] = function
    return function


def build_case(
    story: LogStory, job: JobRecord | None, judgements: Sequence[NodeJudgement], facts: Sequence[NodeFacts],
    settings: Mapping[str, str], meanings: Meanings,
) -> Case:
    """Bring the evidence together."""
    root = story.root_cause
    version = settings.get("pytorch_version") or story.framework_version or (root.framework_version if root else None)
    own = _own_pids(story, job, facts)
    return Case(
        story, job, tuple(judgements), tuple(facts), settings,
        figures_of(root.fields if root else MemoryFields(), own, root.pid if root else None), own,
        allocator_settings(settings, version, _said_of_the_allocator(story, meanings)), version, meanings,
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


def _said_of_the_allocator(story: LogStory, meanings: Meanings) -> dict[str, str]:
    """What the log shows of its settings; some messages are printed only with expandable segments on."""
    said = dict(story.settings)
    root = story.root_cause
    findings = (*((root,) if root else ()), *story.candidates, *story.harmless)
    if any(meanings.reports(one.signature, Event.EXPANDABLE_SEGMENTS) for one in findings) or (
        root is not None and "expandable_segments is enabled" in root.excerpt
    ):
        said.setdefault("expandable segments mode", "")
    return said


def short_name(node: str) -> str:
    """A node's name without its domain."""
    return node.partition(".")[0]
