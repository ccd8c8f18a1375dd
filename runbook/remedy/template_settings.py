"""A template as the lever document of its system understands it: settings in force, conditions on them, words of the
training command that are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from runbook.model.template import Edit, Setting, SettingKind, TemplateFile
from runbook.remedy.checkpoint_rules import Condition
from runbook.remedy.lever_context import defaults_hold, releases, setting_of, with_prefix
from runbook.remedy.lever_document import LeverDocument, VersionMark

# What the rules on checkpoints and restarters ask of a template: values in force, conditions, live lines.

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_NO_SCRIPTS = (".py", ".yaml", ".yml", ".json", ".toml")
_NOTHING = ("none", "null", "~", "")


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """A template with its settings, as the lever document of its system understands them."""

    system: LeverDocument
    settings: tuple[Setting, ...]
    templates: tuple[TemplateFile, ...] = ()
    submit_line: str = ""
    """The command that submitted it, options included; "" when that is not known."""
    work_dir: str = ""
    owner: str = ""
    job: str = ""
    """The number of the job that died."""
    open_word: str = ""
    """A word of the training command that is not known: an option that is not seen may stand in it."""
    _lines: tuple[UncommentedLine, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lines", tuple(_uncommented_lines(self.templates)))

    def setting(self, parameter: str) -> Setting | None:
        """The setting as found; of several files the one that says most."""
        return setting_of(self.settings, parameter)

    def default(self, parameter: str) -> str | None:
        """What the program takes where nothing is set; None where that is not known, or differs by release."""
        if self._elsewhere(parameter):
            return None
        return self.system.default_among(self.system.parameter(parameter), self._releases())

    def _elsewhere(self, parameter: str) -> bool:
        """Whether it may be set in a configuration that was not read, so that its absence says nothing."""
        entry = self.system.parameter(parameter)
        if self.open_word and any(item.startswith("-") for item in entry.spellings):
            return True
        return entry.kind is SettingKind.KEY and not defaults_hold(self.system, self.settings)

    def place(self, setting: Setting) -> str:
        """`--save at job.sh:12`."""
        where = f" at {setting.file}:{setting.line}" if setting.file and setting.line else ""
        return f"{setting.spelling}{where}"

    def named(self, parameter: str) -> str:
        """The parameter as the template spells it, else as the document does first."""
        setting = self.setting(parameter)
        return self.place(setting) if setting is not None else self.system.parameter(parameter).spellings[0]

    def holds(self, condition: Condition) -> bool | None:
        """Whether a condition is so; None where the template's value is not known."""
        if condition.where and not self.matching(condition.where):
            return False
        answers = [self._alone(condition), *(self.holds(item) for item in condition.also)]
        if False in answers:
            return False
        return None if None in answers else True

    def _alone(self, condition: Condition) -> bool | None:
        setting = self.setting(condition.parameter)
        given = bool(condition.values or condition.lacks) or (condition.at_most, condition.at_least) != (None, None)
        if setting is None:
            if self._elsewhere(condition.parameter):
                return None
            default = self.default(condition.parameter)
            return condition.absent or (given and default is not None and _matches(condition, default))
        if not given:
            return not condition.absent
        return None if setting.value is None else _matches(condition, setting.value)

    def matching(self, pattern: str) -> UncommentedLine | None:
        """The first live line that matches. `#SBATCH` lines do not count: they are no part of a command."""
        compiled = re.compile(pattern)
        return next((line for line in self._lines if not line.directive and compiled.search(line.text)), None)

    def lines(self) -> tuple[UncommentedLine, ...]:
        """Live lines and directives, and the options of the submission as a line of their own."""
        submitted = (UncommentedLine("the submission", 0, self.submit_line),) if self.submit_line else ()
        return (*self._lines, *submitted)

    def edit(self, parameter: str, new: str | None) -> Edit:
        """The change of a parameter, in the spelling that the template has or that its release takes."""
        entry = self.system.parameter(parameter)
        setting = self.setting(parameter)
        if setting is not None:
            spellings = entry.spellings_after(setting.spelling)
        else:
            choices = self.system.spelt_among(entry, self._releases())
            known = next(iter(choices)) if len(choices) == 1 else None
            spellings = with_prefix(self.system, entry, entry.spellings_after(known or entry.spellings[0]))
        old = setting.value if setting is not None else None
        return Edit(parameter, entry.kind, spellings, new, old, entry.type == "flag")

    def exists(self, parameter: str) -> bool:
        """Whether a release that the template can be for knows it."""
        choices = self.system.spelt_among(self.system.parameter(parameter), self._releases())
        return not choices or choices != {None} or self.setting(parameter) is not None

    def _releases(self) -> tuple[VersionMark, ...]:
        return releases(self.system, self.settings, self.templates)


@dataclass(frozen=True, slots=True)
class UncommentedLine:
    """A live line of a template. `number` 0: the file has no lines."""

    file: str
    number: int
    text: str
    directive: bool = False

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}" if self.number else self.file


def _uncommented_lines(templates: Sequence[TemplateFile]) -> Iterator[UncommentedLine]:
    """Lines of scripts that are no comments. `#SBATCH` counts before the script's first command only, as Slurm has
    it. A program's text and its configuration start no jobs."""
    for file in templates:
        if file.path.endswith(_NO_SCRIPTS):
            continue
        commands = False
        for number, text in enumerate(file.text.split("\n"), start=1):
            stripped = text.lstrip()
            if stripped.startswith("#"):
                if stripped.startswith("#SBATCH") and not commands:
                    yield UncommentedLine(file.path, number, text, directive=True)
                continue
            if stripped:
                commands = True
                yield UncommentedLine(file.path, number, text)


def _matches(condition: Condition, value: str) -> bool:
    value = value.strip().strip("'\"")
    if condition.values and value.casefold() not in {item.casefold() for item in condition.values}:
        return False
    if condition.lacks:
        present = {item.casefold() for item in re.findall(r"\w+", value)}
        if value.casefold() in _NOTHING or not {item.casefold() for item in condition.lacks} - present:
            return False
    if condition.at_most is not None or condition.at_least is not None:
        number = int(value) if _INTEGER.fullmatch(value) else None
        if number is None:
            return False
        if condition.at_most is not None and number > condition.at_most:
            return False
        if condition.at_least is not None and number < condition.at_least:
            return False
    return True


# Words of the training command whose meaning or text is not known: what they may hold is not taken to be absent.
#
# A sourced array, `$EXTRA` or `"$@"` may set the global batch size or a parallel degree. Everything else that is not
# seen can be set behind it, for the last of equal options wins; but a global batch reckoned with a default would be
# another one.

_LAUNCHERS = frozenset({
    "srun", "torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "torch.distributed.run",
    "torch.distributed.launch", "submit", "ray",
})
_SHORTENED = re.compile(r"--[a-z]+[-_.][-_.a-z]+")
"""Options of two words at least: a shorter one (`--train`) is more often one of the program's own."""


def with_unresolved_batch(
    settings: Sequence[Setting], listed: Sequence[Setting], system: LeverDocument
) -> tuple[Setting, ...]:
    """The settings, with an open one for each option that makes up the global batch, is not seen, and may stand in a
    word that is not known. `listed` is everything that the template makes in force (`template.all_settings`)."""
    words = [item for item in listed if _is_unresolved(item)]
    batch = system.batch
    if batch is None:
        return tuple(settings)
    settings = _without_shortened(settings, listed, system)
    if not words:
        return tuple(settings)
    seen = {item.parameter for item in settings}
    why = f"it may stand in {words[0].spelling}: {words[0].unresolved}"
    return (*settings, *(
        Setting(entry.id, entry.kind, entry.spellings[0], None, words[0].file, words[0].line, unresolved=why)
        for parameter in dict.fromkeys((batch.accumulation, batch.total, *batch.model_parallel))
        if parameter and parameter not in seen
        for entry in [system.parameter(parameter)]
        if any(item.startswith("-") for item in entry.spellings)
    ))


def _without_shortened(
    settings: Sequence[Setting], listed: Sequence[Setting], system: LeverDocument
) -> tuple[Setting, ...]:
    """The settings, those of the batch not known where the command has the beginning of such an option
    (`--gradient_accumulation`): Python's argparse takes it for the whole, unless the program has it by itself."""
    batch = system.batch
    own = {spelling for entry in system.parameters for spelling in entry.spellings}
    options = [item for item in listed if _SHORTENED.fullmatch(item.spelling) and item.spelling not in own]
    if batch is None or not options:
        return tuple(settings)
    open_ones = {}
    for parameter in dict.fromkeys((batch.micro, batch.accumulation, batch.total, *batch.model_parallel)):
        entry = system.parameter(parameter) if parameter else None
        for item in options if entry is not None else ():
            if entry is not None and any(spelling.startswith(item.spelling) for spelling in entry.spellings):
                why = f"{item.spelling} may be short for it"
                open_ones[entry.id] = Setting(
                    entry.id, entry.kind, entry.spellings[0], None, item.file, item.line, unresolved=why
                )
    return (*(item for item in settings if item.parameter not in open_ones), *open_ones.values())


def unresolved_argument(listed: Sequence[Setting]) -> str:
    """The first word of the training program that is not known, as written; "" where all are."""
    return next((item.spelling for item in listed if _is_unresolved(item)), "")


def _is_unresolved(item: Setting) -> bool:
    """Whether it is a word of the training program that is not known."""
    if item.kind is not SettingKind.ARGUMENT or item.value is not None or not item.trail:
        return False
    return item.spelling.lstrip('"').startswith("$") and item.trail[0].partition(" at line")[0] not in _LAUNCHERS
