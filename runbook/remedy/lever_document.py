"""Lever documents: one YAML file a system, saying how to know it, what can be set, and what may be changed when.

They are read and checked in `loading.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from runbook.documents import Document, Pattern
from runbook.model.diagnosis import Detail
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.model.template import ParameterNames, Setting, SettingKind, TakenAs
from runbook.remedy.checkpoint_rules import CheckpointRules, Condition, Obstacle, Restarter

Value = str | int


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


VersionIds = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Ids of versions; one of them may stand without brackets."""


class Mark(Document):
    """A sign of the system: a pattern in the template's live lines, or the framework that the log names."""

    pattern: Pattern = ""
    framework: str = ""
    weight: int = Field(default=1, ge=1, le=10)
    shared: bool = False
    """Programs of others have it, too (`--per_device_train_batch_size` in a script of one's own): it makes the system
    only where the program's parser does not say otherwise."""


_RELEASES = r"(?:[<>]=?\d+(?:\.\d+)*)(?:,[<>]=?\d+(?:\.\d+)*)*"
Releases = Annotated[str, Field(pattern=f"^{_RELEASES}$")]


def _within(version: str, releases: str) -> bool:
    """Whether a release lies in a stretch such as `>=4.46,<5.2`."""
    number = _numbers(version)
    compared = {
        ">": number.__gt__, ">=": number.__ge__, "<": number.__lt__, "<=": number.__le__,
    }
    return all(
        compared[sign](_numbers(bound)) for sign, bound in re.findall(r"([<>]=?)([\d.]+)", releases)
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in re.findall(r"\d{1,9}", version.split("+")[0])[:4])
    return found + (0,) * (4 - len(found))


class VersionMark(Document):
    """A stretch of the system's releases in which its parameters are spelt alike, newest first in the document."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str
    marks: tuple[Pattern, ...] = ()
    """Patterns in the template's live lines that only these releases take. The spellings of the parameters that are
    set tell the rest (`since`, `until`)."""
    source: str
    series: str = ""
    """Releases of another series are neither older nor newer: the program's own beside those of a library."""
    by_mark: bool = False
    """Possible only where a mark is there that no other version has: a template that does not show it is of another."""
    defaults_known: bool = True
    """False where these releases take what is not set from elsewhere, so that no default is concluded."""
    release: dict[str, Releases] = {}
    """By package: the releases that these are, `>=4.46,<5.2`. By them a person's word on what is installed is read."""

    def fits(self, installed: Mapping[str, str]) -> bool:
        """Whether these packages can be installed beside it. A version's own id is an answer, too."""
        for package, version in installed.items():
            if version == self.id:
                continue
            wanted = self.release.get(package)
            if wanted is None and (self.release or package == self.id):
                continue
            if not wanted or not version[:1].isdigit() or not _within(version, wanted):
                return False
        return True


class Stretch(Document):
    """Releases from one to another, both with it, by the versions' ids. It lies in the series of the releases that it
    names; without a bound it is all of them."""

    since: VersionIds = ()
    until: VersionIds = ()

    @property
    def bounded(self) -> bool:
        return bool(self.since or self.until)

    def covers(self, version: VersionMark, versions: Sequence[VersionMark]) -> bool:
        """`versions`: all of the system's, newest first."""
        own = [item.id for item in versions if item.series == version.series]
        first = [own.index(item) for item in self.since if item in own]
        last = [own.index(item) for item in self.until if item in own]
        if self.bounded and not first and not last:
            return False
        at = own.index(version.id)
        return all(at <= item for item in first) and all(at >= item for item in last)


class Spelling(Stretch):
    """One way to write a parameter, and the releases that take it where that tells them apart."""

    name: str


class Default(Stretch):
    """What some releases take where nothing is set; null: not known."""

    value: str | None


class Cue(Document):
    """What a traceback's function names, or the process that speaks, say of phase and role in this system."""

    pattern: Pattern
    """Searched in the names of the frames, each on a line, outermost first; then in the speaker's name."""
    phase: Phase | None = None
    """None: the phase stays what the log's frames say in general."""
    role: str = ""
    """The part of the training loop: actor, ref, critic, reward, rollout."""
    why: str = ""
    source: str = ""


class OutOfReach(Document):
    """A lever that the guides or the sources name and that no template carries."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    names: tuple[str, ...] = Field(min_length=1)
    """As the guides spell it."""
    why: str
    tell: str
    """What a person can do instead."""
    source: str


class Diagnostic(Document):
    """Settings that make the next failure say more. They are told to a person, never added by themselves."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    settings: tuple[str, ...] = Field(min_length=1)
    """As they are written in a template of this system."""
    why: str
    cost: str
    source: str


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _plain(spelling: Spelling) -> str | dict[str, object]:
    """As a document has it."""
    return spelling.model_dump(mode="json", exclude_defaults=True) if spelling.bounded else spelling.name


class Parameter(Stretch):
    """Something that a template of this system can set, in the releases that have it."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    kind: SettingKind = SettingKind.ARGUMENT
    spelt: tuple[Annotated[Spelling, BeforeValidator(_named), PlainSerializer(_plain)], ...] = Field(
        min_length=1, alias="spellings"
    )
    """Every spelling that any version takes, the preferred one first. Where some have a stretch of releases, a version
    that none of those covers does not have the parameter, and the others tell nothing."""
    type: Literal["integer", "number", "boolean", "choice", "list", "text", "flag", "allocator"] = "text"
    """`flag` is a bare option; `boolean` has a value, true or false."""
    default: str | None = None
    """What the program takes when the template sets nothing. None: not known, so nothing is concluded."""
    defaults: tuple[Default, ...] = ()
    """Where versions differ: what some have in place of `default`. Nothing is concluded where the versions that the
    template can be for disagree."""
    allowed: tuple[str, ...] = ()
    """Values of a choice, from the one that takes most memory to the one that takes least."""
    floor: int | None = None
    launcher: bool = False
    """An option of the launcher, not of the training program."""
    program: str = ""
    """Words of the command that takes it, where another program of the job does (`trl vllm-serve`)."""
    bare_is_true: bool = False
    """The option may stand without a value, which means true."""
    also: tuple[str, ...] = ()
    """Other names of the program that may be meant as much: a person says which."""
    addable: bool = True
    """May be written into a template that does not have it. False where a program that does not know it could go
    on with another experiment."""
    why: str = ""
    taken_as: TakenAs = TakenAs.NOT_KNOWN
    """How the job's own program takes it, where that was read."""
    adds_with: Literal["", "+", "++"] | None = None
    """What stands in front of a Hydra override that adds the key where nothing sets it; None: as the document says."""
    source: str

    @property
    def names(self) -> ParameterNames:
        return ParameterNames(
            self.id, self.kind, self.spellings, self.type == "flag", not self.launcher and not self.program,
            self.program, self.bare_is_true,
        )

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.spelt)

    @property
    def differs(self) -> bool:
        """Whether versions differ in how they spell it, or in having it."""
        return self.bounded or any(item.bounded for item in self.spelt)

    def spellings_after(self, first: str) -> tuple[str, ...]:
        """This spelling, and then the others that the document has."""
        return (first, *(item for item in self.spellings if item != first))


class Role(Document):
    """By which names programs of their own call a parameter. A name is compared as a whole, in small letters with `_`
    for dashes and dots; of a dotted key the last part alone, too. The first that fits has the name."""

    parameter: str
    names: tuple[Pattern, ...] = Field(min_length=1)
    """Patterns, the most specific first."""
    excludes: tuple[Pattern, ...] = ()
    """Searched in the whole name: with them it is another batch, another length."""
    aside: bool = False
    """Programs that train nothing have it, too: it does not tell which of the job's programs trains."""


class EditRule(Document):
    """A named function (`edits/`) on one parameter."""

    function: str
    parameter: str
    arguments: dict[str, Value | tuple[Value, ...]] = {}


class Need(Document):
    """A named constraint (`constraints/`) that must hold before the lever is used."""

    constraint: str
    arguments: dict[str, Value | tuple[Value, ...]] = {}
    says: str = ""
    """Of a caution: what is told where it does not hold."""


class Conflict(Condition):
    """A setting beside which the lever is not used. A default is none: only what the template sets counts."""

    why: str
    source: str
    ask: bool = False
    """A person can decide; otherwise it is refused."""


class LeverRule(Document):
    """A change that frees memory."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    why: str
    source: str
    relieves: tuple[str, ...] = Field(min_length=1)
    effect: Effect
    cost: str
    expectation: str = ""
    edits: tuple[EditRule, ...] = Field(min_length=1)
    needs: tuple[Need, ...] = ()
    """Conditions on the template as it is."""
    holds: tuple[Need, ...] = ()
    """Conditions on the template as it would be with the edits."""
    conflicts: tuple[Conflict, ...] = ()
    cautions: tuple[Need, ...] = ()
    """No reasons against the lever; told beside its values."""
    versions: tuple[str, ...] = ()
    """The versions that have the lever, by their ids; empty: all. For another version it stands on no ladder."""
    named: tuple[str, ...] = ()
    """Parameters for which the program has to have a name: where it has none for one, the lever stands on no ladder."""
    unnamed: tuple[str, ...] = ()
    """Parameters for which it must not have one."""
    may_wait: bool = False
    """Passed over where something about it is not known: what comes behind it is as good for the phases in which it is
    tried. Of other levers it is asked, and no weaker one takes their place."""
    consent: str = ""
    """The question to a person without whose yes the lever is not used, whatever its effect on the experiment."""


class Ladder(Document):
    """The levers for a kind of failure in a phase, the least invasive first."""

    id: str
    kinds: tuple[str, ...] = Field(min_length=1)
    phases: tuple[Phase, ...] = ()
    """Empty: every phase that no other ladder of the kind names. The same goes for roles and details."""
    roles: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()
    levers: tuple[str, ...] = ()
    why: str
    source: str
    question: str = ""
    """What to ask where no lever of the ladder fits."""
    indivisible: str = ""
    """The same where the samples of a pass cannot be fewer, so that more of what shares them frees nothing."""
    told: bool = False
    """Its `why` is told to a person, too, where none fits: it says what would not help."""


class Batch(Document):
    """The parameters whose product is the global batch size."""

    micro: str
    accumulation: str = ""
    total: str = ""
    """The global batch size, where the system has an option for it."""
    accumulation_from_total: Literal["always", "when_absent", "never"] = "never"
    """Whether the program itself divides the global batch size by micro-batch and ranks."""
    total_when_absent: Literal["derived", "micro_times_ranks"] = "derived"
    """What the global batch size is without its option: the product, or one micro-batch a rank (then it has to be
    pinned before the micro-batch changes)."""
    total_open: tuple[str, ...] = ()
    """Values of the global batch size's option that leave it open, as if it were absent: -1 in torchtitan."""
    micro_in_checkpoint: str = ""
    """Why the program may take the micro-batch from the checkpoint, so that another number of ranks must do with the
    same one. Empty: it does not."""
    model_parallel: tuple[str, ...] = ()
    """Degrees that divide the ranks before the rest is data parallel."""


class Configuration(Document):
    """The option that names the configuration from which the program takes what the command line does not set."""

    parameter: str
    own: tuple[str, ...] = ()
    """Configurations that come with the system, whose values the parameters' defaults are. Of another one that was not
    read with the template, no default is concluded."""


class World(Document):
    """Where the number of nodes and ranks stands."""

    nodes: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    shard_degree: str = ""
    launcher_nodes: str = ""
    """The launcher's own number of nodes, which may be smaller than the job's."""
    per_node: str = ""
    """Ranks that the launcher starts on each node, which may be fewer than its GPUs."""
    one_node: str = ""
    """With it, a run has one node, however many the job has."""
    step_nodes: str = ""
    step_tasks: str = ""
    """srun's own numbers of nodes and tasks, where the script gives them."""
    hostfile: str = ""
    """The option that names a file with the nodes."""
    follow: tuple[str, ...] = ()
    """Degrees whose product is the number of data-parallel ranks, so that one of them changes with it: the first that
    divides. -1 is worked out by the program."""
    divide: tuple[tuple[str, ...], ...] = ()
    """Degrees whose product has to divide the ranks. `a|b`: b where a is not set."""
    stays: tuple[Obstacle, ...] = ()
    """Settings with which the number of ranks is left as it is."""


class RememberedParameters(Document):
    """Parameters by which failures of this system are compared, beside those of `batch`. The first that is known
    counts."""

    micro_batch: tuple[str, ...] = ()
    accumulation: tuple[str, ...] = ()
    global_batch: tuple[str, ...] = ()
    sequence_length: tuple[str, ...] = ()
    """Of several the sum: prompt and answer."""
    degrees: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    """Not parameters but names as they stand in a template, dashes and underscores alike: what names the model."""


def same_key(one: str, other: str) -> bool:
    """Whether two spellings differ at most in what Hydra wants in front of a key that is added."""
    return one.lstrip("+") == other.lstrip("+")


class LeverDocument(Document):
    """A system: how to recognise it, what can be set, and the ladders."""

    version: Literal[1]
    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    why: str
    source: str
    marks: tuple[Mark, ...] = Field(min_length=1)
    parser: Pattern = ""
    """What a program of this system takes its options from (`ProgramOptions.inherits`)."""
    excluded_by: tuple[Pattern, ...] = ()
    """Patterns of other systems that stand on top of this one: with them it is not this one."""
    fallback: bool = False
    """Taken only when no other system is recognised."""
    parameters: tuple[Parameter, ...]
    roles: tuple[Role, ...] = ()
    """Of a document for programs with options of their own: its parameters are given the names that the job's own
    program has for them (`roles.py`). It is no system to be recognised."""
    roles_instead: tuple[tuple[str, ...], ...] = ()
    """Roles of which a program has one in use: what stands in the command or a configuration outweighs another that its
    parser would take."""
    versions: tuple[VersionMark, ...] = ()
    cues: tuple[Cue, ...] = ()
    adds_with: Literal["", "+", "++"] = ""
    """What a Hydra override that adds a key begins with in this system; "" where a key must exist already."""
    batch: Batch | None = None
    configuration: Configuration | None = None
    side_files: tuple[str, ...] = ()
    """Options that name a file in which none of the program's own options stands (DeepSpeed's configuration)."""
    side_keys: tuple[str, ...] = ()
    """Keys by which such a file is known."""
    world: World = World()
    remembered: RememberedParameters = RememberedParameters()
    levers: tuple[LeverRule, ...]
    ladders: tuple[Ladder, ...]
    out_of_reach: tuple[OutOfReach, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    checkpoint: CheckpointRules
    restarters: tuple[Restarter, ...] = ()
    """What starts a job of this system again by itself."""

    def parameter(self, parameter: str) -> Parameter:
        """Raises KeyError; a loaded document names only parameters that it has."""
        for item in self.parameters:
            if item.id == parameter:
                return item
        raise KeyError(parameter)

    def spelt_in(self, parameter: Parameter, version: VersionMark) -> str | None:
        """How a version spells a parameter, the preferred spelling where it takes every one; None: it has no such."""
        if not parameter.covers(version, self.versions):
            return None
        told = [item for item in parameter.spelt if item.bounded]
        taken = [item.name for item in told if item.covers(version, self.versions)]
        return taken[0] if taken else None if told else parameter.spellings[0]

    def spelt_among(self, parameter: Parameter, versions: Sequence[VersionMark]) -> frozenset[str | None]:
        """How these versions spell it; None: one does not have it."""
        return frozenset(self.spelt_in(parameter, item) for item in versions)

    def default_among(self, parameter: Parameter, versions: Sequence[VersionMark]) -> str | None:
        """The default where the version is one of these; None where it is not known, or they differ."""
        if not versions:
            differs = parameter.defaults or not all(item.defaults_known for item in self.versions)
            return None if differs else parameter.default
        values = {self.default_in(parameter, item) for item in versions}
        return values.pop() if len(values) == 1 else None

    def default_in(self, parameter: Parameter, version: VersionMark) -> str | None:
        own = [item.value for item in parameter.defaults if item.covers(version, self.versions)]
        return own[0] if own else parameter.default if version.defaults_known else None

    def versions_with(self, setting: Setting) -> tuple[VersionMark, ...]:
        """The versions that take a parameter in the spelling that was found; all where that does not tell."""
        for parameter in self.parameters:
            if parameter.id == setting.parameter:
                found = [item for item in parameter.spelt if item.bounded and same_key(item.name, setting.spelling)]
                return tuple(item for item in self.versions if found[0].covers(item, self.versions)) if found else \
                    self.versions
        return self.versions

    def lever(self, lever: str) -> LeverRule:
        for item in self.levers:
            if item.id == lever:
                return item
        raise KeyError(lever)

    def parameter_names(self) -> tuple[ParameterNames, ...]:
        """What to look for in a template."""
        return tuple(item.names for item in self.parameters)

    def ladder(self, kind: str, phase: Phase, role: str = "", detail: Detail = Detail.NONE) -> Ladder | None:
        """The ladder for this kind that says most about the failure: a ladder that names phases, roles or details
        serves those alone; of those that fit, the one that names most, and the first of equals."""
        fitting = [
            item for item in self.ladders
            if kind in item.kinds
            and (not item.phases or phase in item.phases)
            and (not item.roles or role in item.roles)
            and (not item.details or detail in item.details)
        ]
        return max(fitting, key=lambda item: bool(item.phases) + bool(item.roles) + bool(item.details), default=None)
