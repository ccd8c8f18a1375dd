"""A template as its system's lever document understands it: settings, versions that they allow, words not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from runbook.model.program import ProgramConstant, ProgramOptions
from runbook.model.remedy import RANKS, AnswerKind, Answers, Ask
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Edit, Setting, SettingKind, TemplateFile, Unresolved, condition_of
from runbook.remedy.checkpoint_rules import Condition
from runbook.remedy.lever_document import LeverDocument, Parameter, VersionMark
from runbook.remedy.recognition import first_uncommented_match

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_NO_SCRIPTS = (".py", ".yaml", ".yml", ".json", ".toml")
_NOTHING = ("none", "null", "~", "")


class RefusalReason(StrEnum):
    """What kind of no it is, for whoever decides what may be asked."""

    NOT_MET = "not_met"
    """A condition does not hold, or a function finds no value."""
    RANKS_NOT_KNOWN = "ranks_not_known"
    """The size of the job would settle it."""
    CONFLICT = "conflict"
    """A setting stands beside which the lever is not used."""
    EXPERIMENT = "experiment"
    """It changes what is trained."""
    CONSENT = "consent"
    """A person has to agree, whatever it does."""
    UNKNOWN = "unknown"
    """A value, a version or what the program takes is not known; everything else is as the lever needs it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a lever, a function or a constraint says no. `question` opens it to a person."""

    why: Sentence
    question: Sentence = NOTHING
    reason: RefusalReason = RefusalReason.NOT_MET
    ask: Ask | None = None

    @property
    def unknown(self) -> bool:
        """Whether an answer would change it."""
        return self.reason in (RefusalReason.UNKNOWN, RefusalReason.RANKS_NOT_KNOWN)


class Refused(Exception):
    """What was asked for is refused. Whoever tries a lever catches it."""

    def __init__(
        self, why: Sentence, question: Sentence = NOTHING, reason: RefusalReason = RefusalReason.NOT_MET,
        ask: Ask | None = None,
    ) -> None:
        super().__init__(why.code.name)
        self.refusal = Refusal(why, question, reason, ask)


def unknown(why: Sentence, question: Sentence, kind: AnswerKind, name: str, choices: Sequence[str] = ()) -> Refused:
    """For what a person can say: then the lever is used."""
    return Refused(why, question, RefusalReason.UNKNOWN, Ask(kind, name, tuple(choices)))


def version_asked(system: LeverDocument) -> tuple[AnswerKind, str, tuple[str, ...]]:
    """The question for the version of a system: by the package that tells its versions apart, else by their ids."""
    packages = [package for item in system.versions for package in item.release]
    return AnswerKind.VERSION, packages[0] if packages else system.id, tuple(item.id for item in system.versions)


def not_known(setting: Setting, question: Sentence = NOTHING) -> Refused:
    """For a setting whose value the template does not tell."""
    spelling = condition_of(setting.spelling)[0]
    why = Say.NOT_KNOWN_BECAUSE(spelling=spelling, why=setting.unresolved)
    return unknown(why, question or Say.WHAT_IS(spelling=spelling), AnswerKind.VALUE, setting.parameter)


def ranks_not_known(question: Sentence = NOTHING) -> Refused:
    """For what the size of the job would settle."""
    ask = Ask(AnswerKind.VALUE, RANKS)
    return Refused(Say.RANKS_NOT_KNOWN(), question or Say.HOW_MANY_RANKS(), RefusalReason.RANKS_NOT_KNOWN, ask)


@dataclass(frozen=True, slots=True)
class StartedJob:
    """The job that was started with the template, as far as that is known; "" where it is not."""

    id: str = ""
    """The number of the job that died."""
    owner: str = ""
    work_dir: str = ""
    submit_line: str = ""
    """The command that submitted it, options included."""


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """A template with its settings, as the lever document of its system understands them. Made by
    `template_settings`."""

    system: LeverDocument
    settings: tuple[Setting, ...]
    releases: tuple[VersionMark, ...]
    """The versions of the system that the template can be written for."""
    templates: tuple[TemplateFile, ...] = ()
    job: StartedJob = StartedJob()
    unresolved_argument: str = ""
    """A word of the training command that is not known: an option that is not seen may stand in it."""
    answers: Answers = Answers()
    """What a person has said beyond the template."""
    program: Callable[[], ProgramOptions | None] = lambda: None
    """What the training program's parser takes; None where its source was not had."""
    code: Callable[[], tuple[TemplateFile, ...]] = lambda: ()
    """The programs' own text, and that of the modules which they import; empty where it was not had."""
    constants: Callable[[], tuple[ProgramConstant, ...]] = lambda: ()
    """The whole numbers that this text gives names, the program's own file first."""
    started: tuple[str, ...] = ()
    """The programs that the scripts start, as they are written."""
    unread: Refusal | None = None
    """The question for the configuration of the training that could not be read: what is not seen may stand there."""
    recognised: bool = True
    """Whether the system is known by an entry point or a mark of its own, and so what its programs take."""

    def setting(self, parameter: str) -> Setting | None:
        """The setting as found; of several files the one that says most."""
        return setting_of(self.settings, parameter)

    def is_set(self, parameter: str) -> bool:
        return self.setting(parameter) is not None

    def text(self, parameter: str) -> str | None:
        """The value in force, the program's default, None where neither is known to be there."""
        if not parameter:
            return None
        setting = self.setting(parameter)
        if setting is None:
            return self.default(parameter)
        if setting.value is None:
            default = self.default(parameter) if setting.perhaps_in else None
            if setting.only_possible and self.unread is not None:
                why = Say.NOT_KNOWN_BECAUSE(spelling=condition_of(setting.spelling)[0], why=self.unread.why)
                raise Refused(why, self.unread.question, self.unread.reason, self.unread.ask)
            asked = Say.IS_IT_GIVEN_IN_WORD(spelling=setting.spelling, word=setting.perhaps_in, default=default)
            raise not_known(setting, asked if default is not None else NOTHING)
        return setting.value

    def default(self, parameter: str) -> str | None:
        """What the program takes where nothing is set; None where that is not known, or versions in question differ.

        Words of the command that are not known do not count: what is set behind them wins."""
        entry = self.system.parameter(parameter)
        if entry.kind is SettingKind.KEY and not defaults_hold(self.system, self.settings):
            return None
        return self.system.default_among(entry, self.releases)

    def certain_default(self, parameter: str) -> str | None:
        """As `default`, and None as well where a word of the command may set the parameter."""
        return None if self._may_be_set_elsewhere(parameter) else self.default(parameter)

    def _may_be_set_elsewhere(self, parameter: str) -> bool:
        """Whether it may stand in what was not read, so that its absence says nothing."""
        entry = self.system.parameter(parameter)
        if self.unresolved_argument and any(item.startswith("-") for item in entry.spellings):
            return True
        return entry.kind is SettingKind.KEY and not defaults_hold(self.system, self.settings)

    def number(self, parameter: str) -> int | None:
        """As `text`, for a whole number above zero."""
        text = self.text(parameter)
        if text is None:
            return text
        if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
            spelling = self.system.parameter(parameter).spellings[0]
            raise Refused(Say.NOT_WHOLE_NUMBER_ABOVE_ZERO(spelling=spelling, text=text))
        return int(text)

    def decimal(self, parameter: str) -> Decimal | None:
        """As `text`, for a decimal number: 0.85, 8, 5e8."""
        text = self.text(parameter)
        if text is None:
            return text
        if not re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?", text.replace("_", "")):
            raise Refused(Say.NOT_NUMBER(spelling=self.spelling(parameter), text=text))
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

    def total_batch(self) -> int | None:
        """The global batch size; None where it is left to the program, or has no option."""
        batch = self.system.batch
        if batch is None or not batch.total or self.left_open(batch.total):
            return None
        return self.number(batch.total)

    def left_open(self, parameter: str) -> bool:
        """Whether the global batch size stands in the template with a value that means none."""
        setting, batch = self.setting(parameter), self.system.batch
        return batch is not None and setting is not None and setting.value in batch.total_open

    def with_changes(self, changes: Mapping[str, str | None]) -> TemplateSettings:
        """The settings as they would be with these values in the template."""
        kept = tuple(item for item in self.settings if item.parameter not in changes)
        made = tuple(
            Setting(parameter, entry.kind, self.spelling(parameter), value)
            for parameter, value in changes.items()
            if value is not None
            for entry in [self.system.parameter(parameter)]
        )
        return replace(self, settings=(*kept, *made))

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
        bounds = (condition.at_most, condition.at_least)
        given = bool(condition.values or condition.unless or condition.lacks) or bounds != (None, None)
        if setting is None:
            if self._may_be_set_elsewhere(condition.parameter):
                return None
            default = self.certain_default(condition.parameter)
            return condition.absent or (given and default is not None and _matches(condition, default))
        if not given:
            return not condition.absent
        return None if setting.value is None else _matches(condition, setting.value)

    def matching(self, pattern: str) -> UncommentedLine | None:
        """The first live line that matches. `#SBATCH` lines do not count: they are no part of a command."""
        compiled = re.compile(pattern)
        lines = _uncommented_lines(self.templates)
        return next((line for line in lines if not line.directive and compiled.search(line.text)), None)

    def lines(self) -> tuple[UncommentedLine, ...]:
        """Live lines and directives, and the options of the submission as a line of their own."""
        submitted = self.job.submit_line
        more = (UncommentedLine("the submission", 0, submitted),) if submitted else ()
        return (*_uncommented_lines(self.templates), *more)

    def edit(self, parameter: str, new: str | None) -> Edit:
        """The change of a parameter, in the spelling that the template has or that its release takes."""
        entry = self.system.parameter(parameter)
        setting = self.setting(parameter)
        if setting is not None:
            spellings = entry.spellings_after(setting.spelling)
        else:
            choices = self.system.spelt_among(entry, self.releases)
            known = next(iter(choices)) if len(choices) == 1 else None
            spellings = with_prefix(self.system, entry, entry.spellings_after(known or entry.spellings[0]))
        old = setting.value if setting is not None else None
        told = setting is not None and setting.told
        return Edit(parameter, entry.kind, spellings, new, old, entry.type == "flag", told, entry.taken_as)

    def exists(self, parameter: str) -> bool:
        """Whether a release that the template can be for knows it."""
        choices = self.system.spelt_among(self.system.parameter(parameter), self.releases)
        return not choices or choices != {None} or self.setting(parameter) is not None


def template_settings(
    system: LeverDocument, settings: Sequence[Setting], templates: Sequence[TemplateFile] = (),
    job: StartedJob = StartedJob(), unresolved_argument: str = "", answers: Answers | None = None,
) -> TemplateSettings:
    """The settings with the versions that they, the templates' marks and a person's answers allow."""
    allowed = releases(system, settings, templates)
    answers = answers or Answers()
    versions = tuple(item for item in allowed if item.fits(answers.versions)) or allowed
    return TemplateSettings(system, tuple(settings), versions, tuple(templates), job, unresolved_argument, answers)


def releases(
    system: LeverDocument, settings: Sequence[Setting], templates: Sequence[TemplateFile] = ()
) -> tuple[VersionMark, ...]:
    """The versions that the template's spellings and marks allow; all where nothing tells; none where they exclude one
    another. A pattern that several versions have as a mark says that it is one of these."""
    allowed = tuple(item for item in system.versions if not item.by_mark or _own_mark(system, item, templates))
    for setting in settings:
        possible = system.versions_with(setting)
        allowed = tuple(item for item in allowed if item in possible)
    for pattern in dict.fromkeys(mark for item in system.versions for mark in item.marks):
        if first_uncommented_match(pattern, templates):
            allowed = tuple(item for item in allowed if pattern in item.marks)
    return allowed


def _own_mark(system: LeverDocument, version: VersionMark, templates: Sequence[TemplateFile]) -> bool:
    others = {mark for item in system.versions if item is not version for mark in item.marks}
    return any(mark not in others and first_uncommented_match(mark, templates) for mark in version.marks)


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


def setting_of(settings: Sequence[Setting], parameter: str) -> Setting | None:
    """The parameter's setting as found; of several files the one that says most."""
    found = [item for item in settings if item.parameter == parameter]
    return next((item for item in found if item.value is not None), found[0] if found else None)


def with_prefix(system: LeverDocument, parameter: Parameter, spellings: tuple[str, ...]) -> tuple[str, ...]:
    """`++a.b` in front where the system's command line takes an unknown key only so."""
    prefix = system.adds_with if parameter.adds_with is None else parameter.adds_with
    if not prefix or parameter.kind is not SettingKind.KEY or spellings[0].startswith(("-", "+")):
        return spellings
    return (prefix + spellings[0], *spellings[1:])


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


@lru_cache(maxsize=16)
def _uncommented_lines(templates: tuple[TemplateFile, ...]) -> tuple[UncommentedLine, ...]:
    return tuple(line for file in templates for line in _lines_of(file))


def _lines_of(file: TemplateFile) -> Iterator[UncommentedLine]:
    """Lines of scripts that are no comments. `#SBATCH` counts before the script's first command only, as Slurm has
    it. A program's text and its configuration start no jobs."""
    if file.path.endswith(_NO_SCRIPTS):
        return
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
    if value.casefold() in {item.casefold() for item in condition.unless}:
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
# `$EXTRA` or `"$@"` may set the global batch size or a parallel degree: a default would make it another one.
# Everything else that is not seen can be set behind it, for the last of equal options wins.

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
    first, text, word = words[0], words[0].spelling, words[0].unresolved
    why = Unresolved(f"it may stand in {text}: {word}", word.code if word else "")
    return (*settings, *(
        Setting(entry.id, entry.kind, entry.spellings[0], None, first.file, first.line, unresolved=why, perhaps_in=text)
        for parameter in dict.fromkeys((batch.accumulation, batch.total, *batch.model_parallel))
        if parameter and parameter not in seen
        for entry in [system.parameter(parameter)] if any(item.startswith("-") for item in entry.spellings)
    ))


def with_answers(settings: Sequence[Setting], answers: Answers, system: LeverDocument) -> tuple[Setting, ...]:
    """The settings with what a person has said of those that are not known. What the files say for certain stays."""
    told = {
        entry.id: value for name, value in answers.values.items() for entry in system.parameters
        if name in (entry.id, *entry.spellings)
    }
    known = [
        replace(item, value=told[item.parameter], unresolved=None, told=True)
        if item.value is None and item.parameter in told else item
        for item in settings
    ]
    seen = {item.parameter for item in known}
    return (*known, *(
        Setting(entry.id, entry.kind, entry.spellings[0], told[entry.id], told=True)
        for entry in system.parameters if entry.id in told and entry.id not in seen
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
                why = Unresolved(f"{item.spelling} may be short for it")
                open_ones[entry.id] = Setting(
                    entry.id, entry.kind, entry.spellings[0], None, item.file, item.line, unresolved=why
                )
    return (*(item for item in settings if item.parameter not in open_ones), *open_ones.values())


def unresolved_argument(listed: Sequence[Setting]) -> str:
    """The first word of the training program that is not known, as written; "" where all are."""
    return next((item.spelling for item in listed if _is_unresolved(item)), "")


def _is_unresolved(item: Setting) -> bool:
    """Whether it is a word of the training program that is not known, or a script of which none are."""
    if item.aside or item.kind is not SettingKind.ARGUMENT or item.value is not None:
        return False
    word = not item.launcher and item.spelling.lstrip('"').startswith("$")
    return word if item.parameter else item.unresolved is not None
