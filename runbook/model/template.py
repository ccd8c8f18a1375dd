"""Launch templates: what is set where, what to change, and the exact bytes that changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class TemplateFile:
    """A template's text. `path` names it in diffs and reports; nothing is read or written through it."""

    path: str
    text: str


_CONDITION = re.compile(r"(.+) (beside|without) (\S+)")


def condition_of(spelling: str) -> tuple[str, str, tuple[str, ...]]:
    """A key's spelling, and the files in which it holds: `key beside a|b`, only where one of these keys stands too;
    `key without a|b`, only where none does. One name can mean different things in two files of a job."""
    matched = _CONDITION.fullmatch(spelling)
    return (matched[1], matched[2], tuple(matched[3].split("|"))) if matched else (spelling, "", ())


class SettingKind(StrEnum):
    ARGUMENT = "argument"
    """A command line option of the training program: `--micro-batch-size 8`, `--seq-length=4096`."""
    ENVIRONMENT = "environment"
    SBATCH = "sbatch"
    """A `#SBATCH` directive."""
    KEY = "key"
    """A key of the program's configuration, as a dotted path: in a YAML, JSON, TOML or Python file, or as an override
    on a Hydra command line. Spellings that begin with `-` are options that set the same and win over a file; `+` or
    `++` in front of the first spelling says how a Hydra override that adds the key has to be written."""


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """What to look for in a template: a parameter and how it may be spelt there."""

    parameter: str
    kind: SettingKind
    spellings: tuple[str, ...]
    """Accepted spellings, the preferred one first: ("--micro-batch-size",), ("--nodes", "-N")."""
    flag: bool = False
    """A bare option without a value: present means "true"."""
    training_program: bool = True
    """False for an option of a launcher (`torchrun --nnodes`), which does not tell the training command."""
    program: str = ""
    """Words of the command that takes it, where that is another program of the job than the one that trains:
    `trl vllm-serve` beside the trainer."""
    bare_is_true: bool = False
    """An option with a value that may also stand alone, which means true (`--gradient_checkpointing`)."""


@dataclass(frozen=True, slots=True)
class SubmitContext:
    """What a template was submitted with. None: not known, so what depends on it is said, not assumed."""

    environment: dict[str, str] | None = None
    arguments: tuple[str, ...] | None = None
    """The script's own arguments: its `$1`, `"$@"`."""
    sourced: dict[str, str] = field(default_factory=dict)
    """The texts of files that the script sources, by the path as it names them."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that a person has told, beside an environment that is not known."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a value is not known."""

    why: str
    """For people."""
    code: str = ""
    """What of the template decides it, as it is written there: "SLURM_NNODES", "$(date +%s)", "${now:%Y}"; "" where
    that is not the template's word."""

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter as it stands in a template."""

    parameter: str
    """Canonical id of the lever document: "micro_batch_size"."""
    kind: SettingKind
    spelling: str
    """As written there: "--micro-batch-size", "PYTORCH_CUDA_ALLOC_CONF"."""
    value: str | None
    """The value in force, or None with `unresolved` saying where the trail ended."""
    file: str = ""
    line: int | None = None
    trail: tuple[str, ...] = ()
    """How the value was found: ("TRAIN_ARGS[3]", "MBS at line 12")."""
    unresolved: Unresolved | None = None
    references: tuple[str, ...] = ()
    """Keys of the configuration that the value refers to (`${trainer.batch}`)."""
    launcher: bool = False
    """A word of the command that starts the training program, not of the program's own."""
    told: bool = False
    """A person has said the value: the template alone does not tell it."""
    aside: bool = False
    """Of a program that prepares, tries or serves, while another one of the script may train."""
    perhaps_in: str = ""
    """A word of the command, not known, that may set it: nothing else does."""

    @property
    def only_possible(self) -> bool:
        """Whether nothing of it was seen: it may stand in a file that could not be read."""
        return self.value is None and not self.file

    @property
    def follows_slurm(self) -> bool:
        """Whether its value is one that Slurm gives each job anew."""
        return self.value is None and self.unresolved is not None and "SLURM_" in self.unresolved.code


class TakenAs(StrEnum):
    """How a program is known to take what is added to its command."""

    NOT_KNOWN = ""
    JOINED = "joined"
    """An option with its value behind `=`, and in no other way."""
    OVERRIDE = "override"
    """A key with its value, `a.b=1`, though the command has none of the kind yet."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A wanted change: set `parameter` to `new`. `old` is the value in force that the plan was made on."""

    parameter: str
    kind: SettingKind
    spellings: tuple[str, ...]
    """Accepted spellings, the preferred one first."""
    new: str | None
    """None removes the setting."""
    old: str | None = None
    flag: bool = False
    """A bare flag: present means `new == "true"`."""
    told: bool = False
    """`old` is what a person has said: the template's own words may leave it open."""
    taken_as: TakenAs = TakenAs.NOT_KNOWN
    variable: str = ""
    """The script's variable that is changed, also where it serves something else: what follows from it is to follow."""
    by_hand: str = ""
    """Where the value stands in a program's own text, "train.py:45", which only a person changes."""


@dataclass(frozen=True, slots=True)
class Splice:
    """`before` at byte `start` of the original file became `after`."""

    file: str
    start: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Companion:
    """A file that a job's script names, as it was when the job had died."""

    file: TemplateFile
    """Its `path` is the one by which it is named."""
    source: str
    """Where it lies."""
    named: str
    """By what: "train.sbatch:22"."""
    program: bool = False
    """The training program itself, which is looked at and never changed."""
    contained: str = ""
    """By what it is read inside a container, in which a copy of it elsewhere is not seen; "" where it is in none."""


@dataclass(frozen=True, slots=True)
class Patch:
    """An applied set of edits. Undoing every splice gives the original bytes back."""

    files: tuple[TemplateFile, ...]
    splices: tuple[Splice, ...]
    diff: str
    """Unified diff, empty when nothing changed."""
    notes: tuple[str, ...] = ()
    copies: dict[str, str] = field(default_factory=dict)
    """Of files beside the script: where the copy lies that the submitted script names instead."""
