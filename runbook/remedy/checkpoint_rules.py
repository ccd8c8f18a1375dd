"""What a lever document says of checkpoints: where they lie, how a job goes on from one, what stands in the way.

Also what it says of restarters: whatever else starts the job again beside this tool. The rules are used by
`resume.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from runbook.documents import Document, DocumentsInvalid, Pattern, Problem, load_document


class Condition(Document):
    """What has to be so in the template. All parts that are given must hold."""

    parameter: str
    values: tuple[str, ...] = ()
    """The value is one of these, whatever its case. Where neither this nor what follows is given: any value, or, with
    `absent`, none at all."""
    unless: tuple[str, ...] = ()
    """The value is any but these."""
    at_most: int | None = None
    """The value is a whole number that is not above this: an interval of -1 or 0."""
    at_least: int | None = None
    """The value is a whole number that is not below this: a number of retries."""
    lacks: tuple[str, ...] = ()
    """The value is a list in which one of these words is missing: `['model','extra']` lacks `optimizer`."""
    absent: bool = False
    """True as well where the template does not set it. Not needed where the parameter's own default is such a value."""
    also: tuple[Condition, ...] = ()
    """Further conditions, all of which must hold."""
    where: Pattern = ""
    """A pattern that a live line of the template must match: the program to which this applies."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.parameter, *(name for item in self.also for name in item.parameters))


class Obstacle(Condition):
    """A setting that stands in the way of going on: it is put to a person."""

    why: str
    question: str = ""
    """What to ask. Empty: built from the setting."""
    source: str


class Adjustment(Condition):
    """A setting that is changed for the relaunch, with the reason in the plan. `set` null takes it out."""

    set: str | None
    why: str
    source: str


class MovingName(Document):
    """A part of the checkpoint folder's path, which must be the same in every submission."""

    parameter: str
    unless: str = ""
    """Not looked at where this parameter is set: the folder is named in full there."""
    relative: bool = True
    """Whether a relative value is meant from the folder in which the program runs. False for a mere name."""


class FolderRule(Document):
    """A folder with checkpoints that no single option names."""

    path: str
    """With `{parameter}` for the value of a parameter, set or default, and `{user}` for the job's owner."""
    unless: str = ""
    """Not where this parameter is set: it then names the folder itself."""
    where: Pattern = ""
    """A pattern that a live line of the template must match."""
    source: str

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in re.findall(r"\{(\w+)\}", self.path) if name != "user")


class ResumeRule(Document):
    """A parameter that makes the job go on from a checkpoint. Of several rules for one parameter the first that
    applies counts; a parameter whose rules all do not apply is taken out."""

    parameter: str
    value: Literal["parent", "path", "name", "step", "true"] | None = None
    text: str | None = None
    """A fixed value in place of one of the checkpoint: `auto`, `resume_path`."""
    when: Literal["always", "latest", "not_the_latest"] = "always"
    """`latest`: the program's own tracker names this checkpoint, or the format has no tracker."""
    accepts: tuple[str, ...] = ()
    """Values that do as well, so that one of them is left as it is."""
    formats: tuple[str, ...] = ()
    """Only for checkpoints of these formats. A parameter is never taken out because of its formats."""

    @model_validator(mode="after")
    def _one_value(self) -> ResumeRule:
        if (self.value is None) is (self.text is None):
            raise ValueError("give either `value` or `text`")
        return self


class PerRank(Document):
    """What of a checkpoint belongs to single ranks, and is not found as it was by another number of ranks."""

    why: str
    source: str


class CheckpointRules(Document):
    """Where checkpoints are, how a job is told to go on from one, and what would make it start over."""

    parameters: tuple[str, ...] = ()
    """Parameters that name checkpoint folders."""
    folders: tuple[FolderRule, ...] = ()
    """Further folders, built from several parameters or from defaults."""
    depth: int = Field(default=2, ge=1, le=6)
    """How many levels below such a folder files of a checkpoint lie."""
    resume: tuple[ResumeRule, ...] = ()
    reshardable: bool | None = None
    """Whether this system's checkpoints load at another sharding. None: it depends on the checkpoint."""
    per_rank: PerRank | None = None
    """What another number of ranks costs, beside what is resharded: positions of data loaders, random numbers."""
    ties_ranks: tuple[Obstacle, ...] = ()
    """Settings with which a checkpoint loads only with as many data-parallel ranks as wrote it, whatever its format."""
    only_latest: bool = False
    """The program has no option for another checkpoint than the one that its tracker names."""
    never_saves: tuple[Obstacle, ...] = ()
    """Settings with which nothing is ever written that a job could go on from."""
    downgrades: tuple[Obstacle, ...] = ()
    """Settings with which a resume would drop state without a word: moments of the optimizer, the step."""
    moving_names: tuple[MovingName, ...] = ()
    rotates: tuple[Obstacle, ...] = ()
    """Settings with which old checkpoints are deleted as new ones are saved: a note, for one of them is that on which
    the relaunch relies."""
    copy_first: str = ""
    """Why the checkpoint has to be copied before anything is started that may write to its folder. Empty: it need
    not be."""
    adjust: tuple[Adjustment, ...] = ()
    """Settings that would cost the checkpoint once it is loaded."""
    caution: str = ""
    """What a person should know of every resume of this system: a note in the plan."""
    source: str

    @property
    def named(self) -> tuple[str, ...]:
        """Every parameter that the rules name, for the check of the document."""
        conditions = (*self.never_saves, *self.downgrades, *self.rotates, *self.ties_ranks, *self.adjust)
        names = [*self.parameters, *(rule.parameter for rule in self.resume)]
        names += [name for item in conditions for name in item.parameters]
        names += [name for item in self.moving_names for name in (item.parameter, item.unless)]
        names += [name for item in self.folders for name in (*item.parameters, item.unless)]
        return tuple(dict.fromkeys(name for name in names if name))


class Restarter(Document):
    """Something beside this tool that starts the job again, by a setting or by a pattern in the template."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    condition: Condition | None = None
    """By a parameter of the lever document."""
    pattern: Pattern = ""
    """By a live line of the template. `#SBATCH` directives and the options of the submission count as lines."""
    what_happens: str
    """What it does and what the plan does with it: a note in the plan."""
    to_do: str = ""
    """What a person should look at before the relaunch."""
    set: str | None = None
    """The value that the relaunch gives the condition's parameter: `0` for a number of retries."""
    relaunched: bool = True
    """False: the job is another program's to submit, so it is neither cancelled nor submitted again; `to_do` says what
    a person does."""
    source: str

    @model_validator(mode="after")
    def _one_sign(self) -> Restarter:
        if (self.condition is None) is (not self.pattern):
            raise ValueError("give either `condition` or `pattern`")
        if self.set is not None and self.condition is None:
            raise ValueError("`set` needs a `condition`, whose parameter it sets")
        if not self.relaunched and not (self.pattern and self.to_do):
            raise ValueError("`relaunched: false` needs a `pattern` and what is `to_do`")
        return self


class RestarterDocument(Document):
    """Restarters that every system can have: Slurm's, the launchers', the script's own."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    restarters: tuple[Restarter, ...]


def load_restarters(file: Path) -> tuple[Restarter, ...]:
    """The restarters common to all systems. Raises `DocumentsInvalid`."""
    document = load_document(file, RestarterDocument)
    problems = list(_problems(document, str(file)))
    if problems:
        raise DocumentsInvalid(problems)
    return document.restarters


def _problems(document: RestarterDocument, name: str) -> Iterator[Problem]:
    ids = [item.id for item in document.restarters]
    for item in document.restarters:
        if item.condition is not None:
            yield Problem(name, 1, f"restarters.{item.id}", "no system, so no parameter", "give a `pattern`")
        if ids.count(item.id) > 1:
            yield Problem(name, 1, f"restarters.{item.id}", "is the id of two restarters", "rename one")
