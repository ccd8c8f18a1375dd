"""Everything a lever may look at: settings, figures of the failure, the job's size."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Detail, Diagnosis
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogStory, MemoryFields, Phase
from runbook.model.remedy import RANKS, AnswerKind
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_levers import Say
from runbook.model.template import SettingKind
from runbook.model.units import Bytes
from runbook.remedy.lever_document import LeverDocument, Value
from runbook.remedy.template_settings import Refusal, Refused, TemplateSettings, unknown

# Which box of a system's training loop failed, by the names in the traceback and the process that speaks.

def phase_and_role(system: LeverDocument, cause: Finding | None) -> tuple[Phase, str]:
    """The phase and the role, each from the first cue of the system's document that says it.

    Frames outweigh the speaker's name: a driver process passes a worker's traceback on. Without a cue the phase is
    the one that the frames say in general, and the role is "".
    """
    if cause is None:
        return Phase.UNKNOWN, ""
    phase: Phase | None = None
    role = ""
    for text in ("\n".join(cause.frames), cause.speaker):
        if not text:
            continue
        for cue in system.cues:
            if (phase is not None or cue.phase is None) and (role or not cue.role):
                continue
            if re.search(cue.pattern, text, re.MULTILINE):
                phase = phase if phase is not None else cue.phase
                role = role or cue.role
    return phase if phase is not None else cause.phase, role


# PyTorch versions as a log tells them: one, a range, or unknown.

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Versions:
    """The lowest and highest version that it can be; None: not bounded."""

    lowest: Version | None = None
    highest: Version | None = None
    said: str = ""

    def surely_at_least(self, version: Version) -> bool:
        return self.lowest is not None and self.lowest >= version

    def surely_below(self, version: Version) -> bool:
        return self.highest is not None and self.highest < version


def read_versions(text: str) -> Versions:
    """ "2.6.0", "2.4-2.13", ">=2.4", "2.4+", "<2.1", "<=2.0", "" (unknown)."""
    numbers = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)(?:\.\d+)?", text)]
    stripped = text.strip()
    if not numbers:
        return Versions(said=text)
    first = numbers[0]
    if len(numbers) >= 2 and "-" in stripped:
        return Versions(first, numbers[1], text)
    if stripped.startswith("<="):
        return Versions(None, first, text)
    if stripped.startswith("<"):
        return Versions(None, (first[0], first[1] - 1), text)
    if stripped.startswith(">") or re.search(r"\d(?:\+|-)$", stripped):
        return Versions(first, None, text)
    return Versions(first, first, text)


@dataclass(frozen=True, slots=True)
class LeverContext:
    """The failure, the template and the system, as one value."""

    template: TemplateSettings
    story: LogStory
    job: JobRecord
    diagnosis: Diagnosis | None = None
    checkpoints: tuple[Checkpoint, ...] | None = None
    """None: not looked up yet."""
    changed: dict[str, str] = field(default_factory=dict)
    """New values that earlier edits of the same lever gave."""
    memory_to_have: Bytes | None = None
    """The most main memory that the job can be given on each of its nodes; None: not told, or not asked for."""
    most: int | None = None
    """The most that the micro-batch may become, in place of half; None: half."""

    @property
    def fields(self) -> MemoryFields:
        cause = self.story.root_cause
        return cause.fields if cause is not None else MemoryFields()

    @property
    def phase(self) -> Phase:
        """As the system's own cues have it, else as the frames say in general."""
        return phase_and_role(self.template.system, self.story.root_cause)[0]

    @property
    def role(self) -> str:
        """The part of the training loop that failed (actor, ref, critic, …); "" where no cue tells it."""
        return phase_and_role(self.template.system, self.story.root_cause)[1]

    @property
    def detail(self) -> Detail:
        return self.diagnosis.best.detail if self.diagnosis is not None else Detail.NONE

    @property
    def versions(self) -> Versions:
        cause = self.story.root_cause
        said = self.story.framework_version or (cause.framework_version if cause is not None else None)
        return read_versions(said or "")

    def confidence(self, kind: str) -> float:
        if self.diagnosis is None:
            return 0.0
        for hypothesis in (self.diagnosis.best, *self.diagnosis.runners_up):
            if hypothesis.kind == kind:
                return hypothesis.confidence
        return 0.0

    def with_changes(self, changes: Mapping[str, str | None]) -> LeverContext:
        """The context as it would be with these values in the template."""
        return replace(self, template=self.template.with_changes(changes))

    @property
    def world_size(self) -> int | None:
        """Ranks: as the log says, else as the launcher is told to start, else as Slurm gave GPUs. Not known where Slurm
        starts more tasks than nodes and fewer than GPUs."""
        if self.story.world_size:
            return self.story.world_size
        if self.template.answers.values.get(RANKS, "").isdecimal():
            return int(self.template.answers.values[RANKS]) or None
        world, tasks = self.template.system.world, self.job.num_tasks
        nodes = self._launcher_number(world.launcher_nodes) or self.job.num_nodes or len(self.job.nodes) or None
        if world.one_node and self.template.is_set(world.one_node):
            nodes = 1
        started = self._launcher_number(world.per_node)
        gpus = started or self.job.gpus_per_node
        if nodes is None or gpus is None:
            return None
        return None if tasks and not started and nodes < tasks < nodes * gpus else nodes * gpus

    @property
    def ranks_not_certain(self) -> Sentence:
        """Why `world_size` is not certain enough to reckon a global batch from it; `NOTHING` where it is. torchrun
        takes one node where `--nnodes` is not given, and "gpu" means those that CUDA_VISIBLE_DEVICES leaves
        (torch.distributed.run)."""
        world = self.template.system.world
        per_node = self.template.setting(world.per_node) if world.per_node else None
        if self.story.world_size or per_node is None or RANKS in self.template.answers.values:
            return NOTHING
        if self._launcher_number(world.per_node) is None and not per_node.follows_slurm:
            return Say.NO_NUMBER_OF_RANKS(spelling=per_node.spelling, value=per_node.value or "not known")
        one_node = world.one_node and self.template.is_set(world.one_node)
        if one_node or (self.job.num_nodes or len(self.job.nodes) or 1) == 1:
            return NOTHING
        nodes = self.template.setting(world.launcher_nodes) if world.launcher_nodes else None
        if nodes is None:
            spelling = self.template.spelling(world.launcher_nodes) if world.launcher_nodes else Say.NUMBER_OF_NODES()
            return Say.LAUNCHER_TAKES_ONE_NODE(spelling=spelling)
        if self._launcher_number(world.launcher_nodes) is None and not nodes.follows_slurm:
            return Say.VALUE_NOT_KNOWN(spelling=nodes.spelling)
        return NOTHING

    def _launcher_number(self, parameter: str) -> int | None:
        """A launcher's number, where it stands in the template as one."""
        setting = self.template.setting(parameter) if parameter else None
        value = setting.value if setting is not None else None
        return int(value) if value is not None and re.fullmatch(r"[1-9][0-9]{0,5}", value) else None

    def data_parallel(self) -> int | None:
        """Ranks that see different samples; None when the number of ranks is not known. A degree that is neither set
        nor known by default is asked for: it is not taken to be 1."""
        world, batch = self.world_size, self.template.system.batch
        if world is None or batch is None:
            return None
        degrees = 1
        for parameter in batch.model_parallel:
            degree = self.template.number(parameter) if self.template.exists(parameter) else 1
            if degree is None:
                raise unknown_parameter(self, parameter)
            degrees *= degree
        if world % degrees:
            raise Refused(Say.RANKS_NOT_DIVISIBLE_BY_MODEL_PARALLEL(world=world, degrees=degrees))
        return world // degrees


def refusal_of(judged: Callable[[], object]) -> Refusal | None:
    """Why what is called is refused; None where it is not."""
    try:
        judged()
    except Refused as refused:
        return refused.refusal
    return None


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of `number` that is not above `at_most` (which is at least 1)."""
    return next(candidate for candidate in range(at_most, 0, -1) if number % candidate == 0)


# The arguments that a lever document gives its functions and constraints, and the parameters that they name.

Arguments = Mapping[str, Value | tuple[Value, ...]]


def texts_of(arguments: Arguments, name: str) -> tuple[str, ...]:
    """What an argument lists, a single value as a list of one; nothing where it is not given."""
    if name not in arguments:
        return ()
    value = arguments[name]
    return tuple(str(item) for item in value) if isinstance(value, tuple) else (str(value),)


def text_of(arguments: Arguments, name: str) -> str:
    """The value of an argument that has to be given; the first where it is a list."""
    return texts_of(arguments, name)[0]


def product_of(context: LeverContext, parameters: Sequence[str], *, unset_is_one: bool = False) -> int:
    """The product of parameters' numbers. One that is neither set nor known by default is asked for, or counts as one
    with `unset_is_one`."""
    product = 1
    for parameter in parameters:
        number = context.template.number(parameter)
        if number is None and not unset_is_one:
            raise unknown_parameter(context, parameter)
        product *= number or 1
    return product


def no_default(spelling: str, *, asked: bool = True) -> Refused:
    """For a parameter that is neither set nor known by default. Of what the template has no word, the job mostly has no
    part (FSDP, an engine): the next lever is tried."""
    question = Say.WHAT_IS(spelling=spelling) if asked else NOTHING
    return Refused(Say.NO_KNOWN_DEFAULT(spelling=spelling), question)


def unknown_parameter(context: LeverContext, parameter: str) -> Refused:
    """The same; one that makes up the global batch is there in every job, so that it is asked for."""
    spelling, batch = context.template.spelling(parameter), context.template.system.batch
    if batch is None or parameter not in (batch.micro, batch.accumulation, batch.total, *batch.model_parallel):
        # A key is of a part that the job does not have (ZeRO), or of a file that was read: nobody knows its number.
        return no_default(spelling, asked=context.template.system.parameter(parameter).kind is not SettingKind.KEY)
    why = Say.NO_KNOWN_DEFAULT(spelling=spelling)
    return unknown(why, Say.WHAT_IS(spelling=spelling), AnswerKind.VALUE, parameter)
