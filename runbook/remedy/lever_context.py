"""Everything a lever may look at: settings, figures of the failure, the job's size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Detail, Diagnosis, Kind
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogStory, MemoryFields, Phase
from runbook.model.template import Setting, SettingKind, TemplateFile, condition_of
from runbook.remedy.lever_document import LeverDocument, Parameter, Value, VersionMark
from runbook.remedy.recognition import first_uncommented_match

# Whether a program's own defaults are what holds where a template sets nothing.

def defaults_hold(system: LeverDocument, settings: Sequence[Setting]) -> bool:
    """False where the job names a configuration that is not the system's own and was not read with its template: what
    stands there is in force, and is not known."""
    rule = system.configuration
    if rule is None:
        return True
    named = [item for item in settings if item.parameter == rule.parameter]
    return all(item.value is not None and _known(item.value, rule.own, settings) for item in named)


def _known(value: str, own: Sequence[str], settings: Sequence[Setting]) -> bool:
    stem = _stem(value)
    if stem in own:
        return True
    read = [item.file for item in settings]
    read += [word.partition(":")[0] for item in settings for word in " ".join(item.trail).split()]
    return any(path.endswith((".yaml", ".yml")) and _stem(path) == stem for path in read)


def _stem(path: str) -> str:
    return path.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml")


# Which box of a system's training loop failed, by the names in the traceback and the process that speaks.

@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


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
            if _compiled(cue.pattern).search(text):
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
class Refusal:
    """Why a lever, a function or a constraint says no. `question` opens it to a person."""

    why: str
    question: str = ""


@dataclass(frozen=True, slots=True)
class LeverContext:
    """The failure, the template and the system, as one value."""

    system: LeverDocument
    settings: tuple[Setting, ...]
    story: LogStory
    job: JobRecord
    diagnosis: Diagnosis | None = None
    checkpoints: tuple[Checkpoint, ...] | None = None
    """None: not looked up yet."""
    changed: dict[str, str] = field(default_factory=dict)
    """New values that earlier edits of the same lever gave."""
    releases: tuple[VersionMark, ...] = ()
    """The versions of the system that the template can be written for (`releases`)."""
    files: tuple[str, ...] = ()
    """The files that were read for the settings: the template and those that it names."""

    @property
    def fields(self) -> MemoryFields:
        cause = self.story.root_cause
        return cause.fields if cause is not None else MemoryFields()

    @property
    def phase(self) -> Phase:
        """As the system's own cues have it, else as the frames say in general."""
        return phase_and_role(self.system, self.story.root_cause)[0]

    @property
    def role(self) -> str:
        """The part of the training loop that failed (actor, ref, critic, …); "" where no cue tells it."""
        return phase_and_role(self.system, self.story.root_cause)[1]

    @property
    def detail(self) -> Detail:
        return self.diagnosis.best.detail if self.diagnosis is not None else Detail.NONE

    @property
    def versions(self) -> Versions:
        cause = self.story.root_cause
        said = self.story.framework_version or (cause.framework_version if cause is not None else None)
        return read_versions(said or "")

    def confidence(self, kind: Kind) -> float:
        if self.diagnosis is None:
            return 0.0
        for hypothesis in (self.diagnosis.best, *self.diagnosis.runners_up):
            if hypothesis.kind is kind:
                return hypothesis.confidence
        return 0.0

    def setting(self, parameter: str) -> Setting | None:
        """The setting as found; of several files the one that says most."""
        return setting_of(self.settings, parameter)

    def text(self, parameter: str) -> str | None | Refusal:
        """The value in force, the program's default, None where neither is known to be there."""
        if not parameter:
            return None
        setting = self.setting(parameter)
        if setting is None:
            return self.default(parameter)
        if setting.value is None:
            return Refusal(
                f"{setting.spelling} is not known: {setting.unresolved}",
                f"What is {setting.spelling}? Write it into the template as plain text.",
            )
        return setting.value

    def default(self, parameter: str) -> str | None:
        """What the program takes where nothing is set; None where that is not known, or versions in question differ."""
        if not defaults_hold(self.system, self.settings):
            return None
        return self.system.default_among(self.system.parameter(parameter), self.releases)

    def number(self, parameter: str) -> int | None | Refusal:
        """As `text`, for a whole number above zero."""
        text = self.text(parameter)
        if text is None or isinstance(text, Refusal):
            return text
        if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
            spelling = self.system.parameter(parameter).spellings[0]
            return Refusal(f"{spelling} is {text!r}, not a whole number above zero")
        return int(text)

    def decimal(self, parameter: str) -> Decimal | None | Refusal:
        """As `text`, for a decimal number: 0.85, 8, 5e8."""
        text = self.text(parameter)
        if text is None or isinstance(text, Refusal):
            return text
        if not re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?", text.replace("_", "")):
            return Refusal(f"{self.spelling(parameter)} is {text!r}, not a number")
        return Decimal(text.replace("_", ""))

    def spelling(self, parameter: str) -> str:
        """As the template spells it, else as this version of the system does; without the files in which it holds."""
        return condition_of(self._spelling(parameter))[0]

    def _spelling(self, parameter: str) -> str:
        setting = self.setting(parameter)
        if setting is not None:
            return setting.spelling
        entry = self.system.parameter(parameter)
        spelt = self.system.spelt_among(entry, self.releases) - {None}
        return next(iter(spelt)) or entry.spellings[0] if len(spelt) == 1 else entry.spellings[0]

    def is_set(self, parameter: str) -> bool:
        return self.setting(parameter) is not None

    def with_changes(self, changes: dict[str, str | None]) -> LeverContext:
        """The context as it would be with these values in the template."""
        kept = tuple(item for item in self.settings if item.parameter not in changes)
        made = tuple(
            Setting(parameter, entry.kind, self.spelling(parameter), value)
            for parameter, value in changes.items()
            if value is not None
            for entry in [self.system.parameter(parameter)]
        )
        return replace(self, settings=(*kept, *made))

    @property
    def world_size(self) -> int | None:
        """Ranks: as the log says, else as the launcher is told to start, else as Slurm gave GPUs. Not known where Slurm
        starts more tasks than nodes and fewer than GPUs."""
        if self.story.world_size:
            return self.story.world_size
        world, tasks = self.system.world, self.job.num_tasks
        nodes = self._launcher_number(world.launcher_nodes) or self.job.num_nodes or len(self.job.nodes) or None
        if world.one_node and self.is_set(world.one_node):
            nodes = 1
        started = self._launcher_number(world.per_node)
        gpus = started or self.job.gpus_per_node
        if nodes is None or gpus is None:
            return None
        return None if tasks and not started and nodes < tasks < nodes * gpus else nodes * gpus

    @property
    def ranks_not_certain(self) -> str:
        """Why `world_size` is not certain enough to reckon a global batch from it; "" where it is. torchrun takes one
        node where `--nnodes` is not given, and "gpu" means those that CUDA_VISIBLE_DEVICES leaves
        (torch.distributed.run)."""
        world = self.system.world
        per_node = self.setting(world.per_node) if world.per_node else None
        if self.story.world_size or per_node is None:
            return ""
        if self._launcher_number(world.per_node) is None and "SLURM_" not in per_node.unresolved:
            return f"{per_node.spelling} is {per_node.value or 'not known'}, which is no number of ranks"
        if (self.job.num_nodes or len(self.job.nodes) or 1) == 1 or (world.one_node and self.is_set(world.one_node)):
            return ""
        nodes = self.setting(world.launcher_nodes) if world.launcher_nodes else None
        if nodes is None:
            spelling = self.spelling(world.launcher_nodes) if world.launcher_nodes else "the number of nodes"
            return f"{spelling} is not given to the launcher, which takes one node then, and the job has several"
        if self._launcher_number(world.launcher_nodes) is None and "SLURM_" not in nodes.unresolved:
            return f"{nodes.spelling} is not known"
        return ""

    def _launcher_number(self, parameter: str) -> int | None:
        """A launcher's number, where it stands in the template as one."""
        setting = self.setting(parameter) if parameter else None
        value = setting.value if setting is not None else None
        return int(value) if value is not None and re.fullmatch(r"[1-9][0-9]{0,5}", value) else None

    def total_batch(self) -> int | None | Refusal:
        """The global batch size; None where it is left to the program, or has no option."""
        batch = self.system.batch
        if batch is None or not batch.total or self.left_open(batch.total):
            return None
        return self.number(batch.total)

    def left_open(self, parameter: str) -> bool:
        """Whether the global batch size stands in the template with a value that means none."""
        setting, batch = self.setting(parameter), self.system.batch
        return batch is not None and setting is not None and setting.value in batch.total_open

    def data_parallel(self) -> int | None | Refusal:
        """Ranks that see different samples; None when the number of ranks is not known. A degree that is neither set
        nor known by default is asked for: it is not taken to be 1."""
        world, batch = self.world_size, self.system.batch
        if world is None or batch is None:
            return None
        degrees = 1
        for parameter in batch.model_parallel:
            degree = self.number(parameter)
            if isinstance(degree, Refusal):
                return degree
            if degree is None:
                spelling = self.spelling(parameter)
                return Refusal(
                    f"{spelling} is not in the template and its default is not known",
                    f"What is {spelling}? Write it into the template with its present value.",
                )
            degrees *= degree
        if world % degrees:
            return Refusal(f"{world} ranks cannot be divided by a model-parallel size of {degrees}")
        return world // degrees


def setting_of(settings: Sequence[Setting], parameter: str) -> Setting | None:
    """The parameter's setting as found; of several files the one that says most."""
    found = [item for item in settings if item.parameter == parameter]
    return next((item for item in found if item.value is not None), found[0] if found else None)


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


def product_of(context: LeverContext, parameters: Sequence[str], *, unset_is_one: bool = False) -> int | Refusal:
    """The product of parameters' numbers. One that is neither set nor known by default is asked for, or counts as one
    with `unset_is_one`."""
    product = 1
    for parameter in parameters:
        number = context.number(parameter)
        if isinstance(number, Refusal):
            return number
        if number is None and not unset_is_one:
            return unknown_parameter(context, parameter)
        product *= number or 1
    return product


def unknown_parameter(context: LeverContext, parameter: str) -> Refusal:
    """For a parameter that is neither set nor known by default."""
    spelling = context.spelling(parameter)
    return Refusal(f"{spelling} is not in the template and its default is not known", f"What is {spelling}?")


# Which releases of a system a template is written for, by how it spells things; and the spelling to write.

def releases(
    system: LeverDocument, settings: Sequence[Setting], templates: Sequence[TemplateFile] = ()
) -> tuple[VersionMark, ...]:
    """The versions that the template's spellings and marks allow; all where nothing tells; none where they exclude one
    another. A pattern that several versions have as a mark says that it is one of these."""
    allowed = system.versions
    for setting in settings:
        possible = system.versions_with(setting)
        allowed = tuple(item for item in allowed if item in possible)
    for pattern in dict.fromkeys(mark for item in system.versions for mark in item.marks):
        if first_uncommented_match(pattern, templates):
            allowed = tuple(item for item in allowed if pattern in item.marks)
    return allowed


def spelling_to_write(context: LeverContext, parameter: Parameter) -> tuple[str, ...] | Refusal:
    """The spellings of a parameter that the template does not set, the one to write first; refused where versions
    differ and which one this is is not known, or where this version does not have it."""
    title = context.system.title
    if not parameter.differs:
        return parameter.spellings
    if context.system.versions and not context.releases:
        return Refusal(
            f"the template mixes spellings of several versions of {title}",
            f"Which version of {title} is installed?",
        )
    choices = context.system.spelt_among(parameter, context.releases)
    if len(choices) > 1:
        spelt = {item.id: context.system.spelt_in(parameter, item) or "none" for item in context.releases}
        shown = ", ".join(f"{spelt[item]} in {item}" for item in sorted(spelt))
        return Refusal(
            f"how {parameter.id.replace('_', ' ')} is spelt depends on the version of {title} ({shown})",
            f"Which version of {title} is installed? Write {parameter.spellings[0]} into the template with its present "
            "value, in that version's spelling.",
        )
    chosen = next(iter(choices), parameter.spellings[0])
    if chosen is None:
        return Refusal(f"this version of {title} has no {parameter.spellings[0]}")
    return parameter.spellings_after(chosen)


def with_prefix(system: LeverDocument, parameter: Parameter, spellings: tuple[str, ...]) -> tuple[str, ...]:
    """`++a.b` in front where the system's command line takes an unknown key only so."""
    prefix = system.adds_with if parameter.adds_with is None else parameter.adds_with
    if not prefix or parameter.kind is not SettingKind.KEY or spellings[0].startswith(("-", "+")):
        return spellings
    return (prefix + spellings[0], *spellings[1:])
