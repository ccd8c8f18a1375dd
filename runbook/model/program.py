"""What options a training program takes, as its source says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_EITHER_SEPARATOR = frozenset({"tyro", "fire"})
"""Libraries that take `--batch-size` and `--batch_size` for the same, whichever they print."""
_ONE_DASH_OR_TWO = frozenset({"absl", "fire"})


class OpenReason(StrEnum):
    """Why a program may take options that were not seen: the first word of an entry of `open_because`."""

    UNKNOWN_KEPT = "unknown_kept"
    """It goes on with options that it does not know (argparse's `parse_known_args`, `**kwargs`)."""
    INHERITS = "inherits"
    """Options come from a class or function whose source was not had; `inherits` names it."""
    COMPUTED = "computed"
    """An option's name is made while the program runs."""
    NOT_PARSED = "not_parsed"
    """A parser is made; where it is given the command line was not seen."""
    CONFIGURATION = "configuration"
    """The keys of a configuration file are options."""
    SUBCOMMANDS = "subcommands"
    """Which options there are depends on a word of the command line, or on another option's value."""
    OWN_READING = "own_reading"
    """The program reads `sys.argv` itself."""
    LIMIT = "limit"
    """More source than is read of any program."""
    UNREADABLE = "unreadable"
    """A file of the program is not there, or is no Python that is understood."""


@dataclass(frozen=True, slots=True)
class ProgramOption:
    """An option or key that a program takes."""

    names: tuple[str, ...]
    """As on a command line, the preferred one first: `--micro-batch-size`, `--mbs`; `train.batch_size` of Hydra."""
    dest: str
    """Its name in the program: `micro_batch_size`."""
    type: str = ""
    """integer, number, boolean, flag, text, choice, list; empty: not known. A flag stands without a value."""
    default: str | None = None
    """As one writes it (true and false for booleans, a list's items with spaces); None: not known, or none."""
    choices: tuple[str, ...] = ()
    help: str = ""
    negation: str = ""
    """`--no-x`, where a boolean has one."""
    flag_value: str = ""
    """What a flag stores when it stands: true, false, or a constant."""
    file: str = ""
    line: int = 0
    joined: bool = False
    """It takes its value behind `=` only."""
    conditional: bool = False
    """It is added under a condition whose outcome the source does not show."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """What a program's source says of its command line."""

    parsers: tuple[str, ...]
    """Which libraries read it: argparse, click, hf_argument_parser, …; `sys.argv` and `globals` for its own code."""
    options: tuple[ProgramOption, ...]
    complete: bool
    """Every option that the program takes is here: one that is not here ends the job."""
    open_because: tuple[str, ...] = ()
    """Why it is not complete: an `OpenReason`, what it is about, and `file:line`, separated by spaces."""
    inherits: tuple[str, ...] = ()
    """Classes and functions that it takes further options from and whose source was not had."""
    abbreviations: bool = False
    """Whether the beginning of a long option is taken for it where only one begins so."""
    config: tuple[str, ...] = ()
    """Configuration files that its source names as what it starts from (Hydra's `config_path/config_name`)."""

    def option(self, spelling: str) -> ProgramOption | None:
        """The option that a word of a command line stands for; what follows `=` is left aside.

        A negation (`--no-x`) stands for its option. None: no such option, or more than one begins so.
        """
        word = self._plain(spelling.partition("=")[0])
        for option in self.options:
            if any(self._plain(name) == word for name in (*option.names, option.negation) if name):
                return option
        if not self.abbreviations or not word.startswith("--") or len(word) < 3:
            return None
        found = [option for option in self.options if any(name.startswith(word) for name in option.names)]
        return found[0] if len(found) == 1 else None

    def _plain(self, word: str) -> str:
        """A spelling as its library compares it."""
        parsers = frozenset(self.parsers)
        if not word.startswith("-"):
            return word.lstrip("+~")
        if parsers & _ONE_DASH_OR_TWO and len(word.lstrip("-")) > 1:
            word = f"--{word.lstrip('-')}"
        return word.replace("_", "-") if parsers and parsers <= _EITHER_SEPARATOR else word


class ConstantPlace(StrEnum):
    """Where a number stands, the place that says most first."""

    CONFIGURATION = "configuration"
    """In a configuration file that the program reads."""
    PROGRAM = "program"
    """In the program's own text."""
    LOG = "log"
    """In what the program printed, which says nothing of where it comes from."""


@dataclass(frozen=True, slots=True)
class ProgramConstant:
    """A whole number that a program's own text, its configuration or its log gives a name."""

    name: str
    """`BATCH`, a key of a dictionary, or an argument of a call."""
    value: int
    file: str
    line: int
    within: str = ""
    """The function, class or variable that it stands in: "val_loader", "evaluate"."""
    place: ConstantPlace = ConstantPlace.PROGRAM
