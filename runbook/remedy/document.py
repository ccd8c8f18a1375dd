"""Lever documents: one YAML file a system, saying how to know it, what can be set, and what may be changed when."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from runbook.documents import Document, DocumentsInvalid, Problem, load_folder
from runbook.model.diagnosis import Kind
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.model.template import ParameterNames, SettingKind

Value = str | int


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


class Mark(Document):
    """A sign of the system: a pattern in the template's live lines, or the framework that the log names."""

    pattern: str = ""
    framework: str = ""
    weight: int = Field(default=1, ge=1, le=10)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        return _pattern(value)


class Parameter(Document):
    """Something that a template of this system can set."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    kind: SettingKind = SettingKind.ARGUMENT
    spellings: tuple[str, ...] = Field(min_length=1)
    type: Literal["integer", "choice", "text", "flag", "allocator"] = "text"
    default: str | None = None
    """What the program takes when the template sets nothing. None: not known, so nothing is concluded."""
    allowed: tuple[str, ...] = ()
    """Values of a choice, from the one that takes most memory to the one that takes least."""
    floor: int | None = None
    launcher: bool = False
    """An option of the launcher, not of the training program."""
    addable: bool = True
    """May be written into a template that does not have it. False where a program that does not know it could go
    on with another experiment."""
    why: str = ""
    source: str

    @property
    def names(self) -> ParameterNames:
        return ParameterNames(self.id, self.kind, self.spellings, self.type == "flag", not self.launcher)


class EditRule(Document):
    """A named function (`functions.py`) on one parameter."""

    function: str
    parameter: str
    arguments: dict[str, Value | tuple[Value, ...]] = {}


class Need(Document):
    """A named constraint (`constraints.py`) that must hold before the lever is used."""

    constraint: str
    arguments: dict[str, Value | tuple[Value, ...]] = {}


class Conflict(Document):
    """A setting beside which the lever is not used."""

    parameter: str
    values: tuple[str, ...] = ()
    """The conflicting values; empty: any."""
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
    conflicts: tuple[Conflict, ...] = ()
    consent: str = ""
    """The question to a person without whose yes the lever is not used, whatever its effect on the experiment."""


class Ladder(Document):
    """The levers for a kind of failure in a phase, the least invasive first."""

    id: str
    kinds: tuple[Kind, ...] = Field(min_length=1)
    phases: tuple[Phase, ...] = ()
    """Empty: every phase that no other ladder of the kind names."""
    levers: tuple[str, ...] = ()
    why: str
    source: str
    question: str = ""
    """What to ask where no lever of the ladder fits."""


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
    model_parallel: tuple[str, ...] = ()
    """Degrees that divide the ranks before the rest is data parallel."""


class World(Document):
    """Where the number of nodes and ranks stands."""

    nodes: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    shard_degree: str = ""


class ResumeRule(Document):
    """A parameter that makes the job go on from a checkpoint."""

    parameter: str
    value: Literal["parent", "path", "name", "step", "true"]
    when: Literal["always", "not_the_latest"] = "always"


class CheckpointRules(Document):
    """Where checkpoints are and how a job is told to go on from one."""

    parameters: tuple[str, ...] = ()
    """Parameters that name checkpoint folders."""
    resume: tuple[ResumeRule, ...] = ()
    reshardable: bool | None = None
    """Whether this system's checkpoints load at another sharding. None: it depends on the checkpoint."""
    source: str


class LeverDocument(Document):
    """A system: how to recognise it, what can be set, and the ladders."""

    version: Literal[1]
    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    why: str
    source: str
    marks: tuple[Mark, ...] = Field(min_length=1)
    excluded_by: tuple[str, ...] = ()
    """Patterns of other systems that stand on top of this one: with them it is not this one."""
    fallback: bool = False
    """Taken only when no other system is recognised."""
    parameters: tuple[Parameter, ...]
    batch: Batch | None = None
    world: World = World()
    levers: tuple[LeverRule, ...]
    ladders: tuple[Ladder, ...]
    checkpoint: CheckpointRules

    @field_validator("excluded_by")
    @classmethod
    def _compile(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_pattern(value) for value in values)

    def parameter(self, parameter: str) -> Parameter:
        """Raises KeyError; a loaded document names only parameters that it has."""
        for item in self.parameters:
            if item.id == parameter:
                return item
        raise KeyError(parameter)

    def lever(self, lever: str) -> LeverRule:
        for item in self.levers:
            if item.id == lever:
                return item
        raise KeyError(lever)

    def parameter_names(self) -> tuple[ParameterNames, ...]:
        """What to look for in a template."""
        return tuple(item.names for item in self.parameters)

    @property
    def checkpoint_parameters(self) -> tuple[str, ...]:
        return self.checkpoint.parameters

    def ladder(self, kind: Kind, phase: Phase) -> Ladder | None:
        """The ladder for this kind that names the phase, else the one that names none."""
        of_kind = [item for item in self.ladders if kind in item.kinds]
        named = [item for item in of_kind if phase in item.phases]
        return next(iter([*named, *(item for item in of_kind if not item.phases)]), None)


def load_levers(folder: Path) -> tuple[LeverDocument, ...]:
    """All lever documents of a folder. Raises `DocumentsInvalid` with every problem of every file."""
    loaded = load_folder(folder, LeverDocument)
    problems = [problem for path, document in loaded for problem in check_document(document, str(path))]
    ids = [document.id for _, document in loaded]
    problems += [
        Problem(str(path), 1, "id", f"{document.id} is the id of two documents", "rename one")
        for path, document in loaded
        if ids.count(document.id) > 1
    ]
    if problems:
        raise DocumentsInvalid(problems)
    return tuple(document for _, document in loaded)


def check_document(document: LeverDocument, name: str) -> Iterator[Problem]:
    """Names that point nowhere: parameters, levers, functions, constraints."""
    from runbook.remedy.constraints import CONSTRAINTS
    from runbook.remedy.functions import FUNCTIONS

    parameters = {item.id for item in document.parameters}
    levers = {item.id for item in document.levers}

    def missing(path: str, wanted: Sequence[str], present: set[str] | frozenset[str], what: str) -> Iterator[Problem]:
        for item in wanted:
            if item and item not in present:
                yield Problem(name, 1, path, f"no {what} {item!r}", f"known are: {', '.join(sorted(present))}")

    for rule in document.levers:
        path = f"levers.{rule.id}"
        yield from missing(path, [edit.parameter for edit in rule.edits], parameters, "parameter")
        yield from missing(path, [conflict.parameter for conflict in rule.conflicts], parameters, "parameter")
        yield from missing(path, [edit.function for edit in rule.edits], frozenset(FUNCTIONS), "function")
        yield from missing(path, [need.constraint for need in rule.needs], frozenset(CONSTRAINTS), "constraint")
    for ladder in document.ladders:
        yield from missing(f"ladders.{ladder.id}", ladder.levers, levers, "lever")
    used = {lever for ladder in document.ladders for lever in ladder.levers}
    for lever in sorted(levers - used):
        yield Problem(name, 1, f"levers.{lever}", "stands on no ladder", "put it on one, or remove it")
    named: list[str] = [*document.world.nodes, *document.world.ranks, document.world.shard_degree]
    named += [*document.checkpoint.parameters, *(rule.parameter for rule in document.checkpoint.resume)]
    if document.batch is not None:
        batch = document.batch
        named += [batch.micro, batch.accumulation, batch.total, *batch.model_parallel]
    yield from missing("", named, parameters, "parameter")
    spellings = [
        spelling for item in document.parameters for spelling in item.spellings if item.kind is not SettingKind.SBATCH
    ]
    for spelling in sorted({item for item in spellings if spellings.count(item) > 1}):
        yield Problem(name, 1, "parameters", f"{spelling} belongs to two parameters", "keep it in one")
