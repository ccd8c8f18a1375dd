"""A program with options of its own: the parameters of its document are roles, and get the names that the program has
for them, from its parser, from the command that starts it, or from a person.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations

from runbook.model.program import ProgramOption, ProgramOptions
from runbook.model.remedy import Answers
from runbook.model.template import Setting, SettingKind, TakenAs, TemplateFile
from runbook.remedy.lever_document import LeverDocument, LeverRule, Parameter, Role, Spelling
from runbook.remedy.recognition import code_alone, first_uncommented_match

_FROM_A_PERSON, _FROM_THE_COMMAND, _FROM_A_FILE, _FROM_THE_PROGRAM, _FROM_ITS_CODE = range(5)
_FILES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class OwnProgram:
    """What is known of the program of a job."""

    files: tuple[TemplateFile, ...]
    listed: Sequence[Setting]
    """Everything that the template makes in force (`template.all_settings`)."""
    read: Callable[[], ProgramOptions | None]
    """What its parser takes; None where its source was not had. Asked only where it matters."""
    answers: Answers
    code: Callable[[], Sequence[TemplateFile]] = lambda: ()
    """The text of its program, and of the modules of its own that this imports."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of the program, and how well it fits its role: less is better."""

    spelling: str
    source: int
    pattern: int
    option: ProgramOption | None = None
    setting: Setting | None = None

    @property
    def fit(self) -> tuple[int, int]:
        return self.source, self.pattern

    @property
    def spellings(self) -> tuple[str, ...]:
        others = self.option.names if self.option is not None else ()
        return tuple(dict.fromkeys((self.spelling, *others)))


def specialised(
    document: LeverDocument, listed: Sequence[Setting], program: ProgramOptions | None, answers: Answers
) -> LeverDocument:
    """The document with the names of this job's program. `listed` is everything that the template makes in force
    (`template.all_settings`); `program` is what its parser takes, where that was read. A lever that needs a name which
    the program does not have is left out."""
    named = _named(document, listed, program, answers)
    parameters = tuple(
        _with_names(item, named[item.id]) if item.id in named else item for item in document.parameters
    )
    levers = tuple(item for item in document.levers if _stands(item, named))
    kept = {item.id for item in levers}
    ladders = tuple(
        item.model_copy(update={"levers": tuple(name for name in item.levers if name in kept)})
        for item in document.ladders
    )
    batch = document.batch
    if batch is not None:
        unnamed = {name for name in (batch.accumulation, batch.total) if name not in named}
        update = {"accumulation": "" if batch.accumulation in unnamed else batch.accumulation,
                  "total": "" if batch.total in unnamed else batch.total}
        batch = batch.model_copy(update=update)
    return document.model_copy(
        update={"parameters": parameters, "levers": levers, "ladders": ladders, "batch": batch}
    )


def roles_found(
    document: LeverDocument, listed: Sequence[Setting], program: ProgramOptions | None, answers: Answers
) -> dict[str, tuple[str, ...]]:
    """By role: how the program spells it."""
    found = _named(document, listed, program, answers)
    return {parameter: tuple(item.spelling for item in names) for parameter, names in found.items()}


def _stands(lever: LeverRule, named: dict[str, list[_Name]]) -> bool:
    return all(item in named for item in lever.named) and not any(item in named for item in lever.unnamed)


def _named(
    document: LeverDocument, listed: Sequence[Setting], program: ProgramOptions | None, answers: Answers
) -> dict[str, list[_Name]]:
    """By parameter: the names that fit it best, of which there are several where none is better than the other."""
    found: dict[str, list[_Name]] = {}
    for parameter, name in _candidates(document, listed, program, answers):
        found.setdefault(parameter, []).append(name)
    best = {}
    for parameter, names in found.items():
        first = min(item.fit for item in names)
        alike = [item for item in names if item.fit == first]
        best[parameter] = list({_normal(item.spelling): item for item in alike}.values())
    for one, other in (pair for group in document.roles_instead for pair in permutations(group, 2)):
        if one in best and other in best and best[one][0].source < best[other][0].source:
            del best[other]
    return best


def _candidates(
    document: LeverDocument, listed: Sequence[Setting], program: ProgramOptions | None, answers: Answers
) -> Iterable[tuple[str, _Name]]:
    denied = {item.removesuffix("=no") for item in answers.options if item.endswith("=no")}
    for said in answers.options:
        if not said.endswith("=no") and said.startswith("-"):
            role = role_of(document.roles, said) or ((document.batch.micro, 0) if document.batch else None)
            if role is not None:
                known = program.option(said) if program is not None else None
                yield role[0], _Name(said, _FROM_A_PERSON, role[1], known)
    for setting in _of_the_training(document, listed):
        role = role_of(document.roles, setting.parameter)
        if role is not None and setting.parameter not in denied:
            option = program.option(setting.parameter) if program is not None else None
            source = _FROM_A_FILE if setting.file.endswith(_FILES) else _FROM_THE_COMMAND
            source = _FROM_ITS_CODE if setting.file.endswith(".py") else source
            yield role[0], _Name(setting.parameter, source, role[1], option, setting)
    for option in program.options if program is not None else ():
        role = role_of(document.roles, option.names[0])
        if role is not None and not option.conditional and not denied & set(option.names):
            yield role[0], _Name(option.names[0], _FROM_THE_PROGRAM, role[1], option)


def _of_the_training(document: LeverDocument, listed: Sequence[Setting]) -> list[Setting]:
    """The options and keys of the program that has most of the roles, for others prepare its data or try its result;
    and the keys of its configuration file, where there is one."""
    own = [
        item for item in listed
        if item.parameter and not item.launcher and not item.aside
        and item.kind in (SettingKind.ARGUMENT, SettingKind.KEY)
        and "()" not in item.parameter  # what a function of the program sets is no option of it
        and (item.value is not None or not item.file.endswith(".py"))  # nor is what its code works out
    ]
    roles = {item.parameter: role_of(document.roles, item.parameter) for item in own}
    in_files = _of_one_file(
        [item for item in own if item.kind is SettingKind.KEY and item.file.endswith(_FILES)], document
    )
    given = [item for item in own if item.trail and not item.file.endswith(_FILES)]
    aside = {item.parameter for item in document.roles if item.aside}
    counted = Counter(item.trail[0] for item in given if (role := roles[item.parameter]) and role[0] not in aside)
    most = max(counted.values(), default=0)
    return [*(item for item in given if most and counted[item.trail[0]] == most), *in_files]


def _of_one_file(keys: list[Setting], document: LeverDocument) -> list[Setting]:
    """The keys of the program's configuration: of the files beside those of the launcher and of DeepSpeed the only one,
    or the only one that has a batch or an accumulation; of several a key may mean anything."""
    launchers = {item.file for item in keys if item.parameter.partition(".")[0] in document.side_keys}
    files = {item.file for item in keys} - launchers
    if len(files) > 1 and document.batch is not None:
        of_a_batch = (document.batch.micro, document.batch.accumulation, document.batch.total)
        files = {
            item.file for item in keys
            if item.file in files and (role := role_of(document.roles, item.parameter)) and role[0] in of_a_batch
        }
    return [item for item in keys if item.file in files] if len(files) == 1 else []


def role_of(roles: Sequence[Role], name: str) -> tuple[str, int] | None:
    """The parameter that a name means, and the number of the pattern that says it; None for any other name."""
    normal = _normal(name)
    last = _normal(name.rpartition(".")[2]) if "." in name else normal
    for role in roles:
        if any(_compiled(item).search(normal) for item in role.excludes):
            continue
        for at, pattern in enumerate(role.names):
            compiled = _compiled(pattern)
            if compiled.fullmatch(normal) or compiled.fullmatch(last):
                return role.parameter, at
    return None


def _normal(name: str) -> str:
    """`--Train.batch-size` → `train_batch_size`."""
    return re.sub(r"[-.]", "_", name.lstrip("-+~")).lower()


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _with_names(parameter: Parameter, names: Sequence[_Name]) -> Parameter:
    """The parameter as this program has it."""
    first = names[0]
    option = first.option
    key = not first.spelling.startswith("-")
    changed: dict[str, object] = {
        "spelt": tuple(Spelling(name=item) for item in first.spellings),
        "kind": SettingKind.KEY if key else SettingKind.ARGUMENT,
        "addable": option is not None or first.source == _FROM_A_PERSON,
        "also": tuple(item.spelling for item in names[1:]),
        "bare_is_true": parameter.type == "boolean",
    }
    if option is not None:
        changed["default"] = option.default
        changed["taken_as"] = TakenAs.OVERRIDE if key else TakenAs.JOINED if option.joined else TakenAs.NOT_KNOWN
        if option.type == "flag":
            changed["type"] = "flag"
            changed["default"] = option.default or "false"
        if option.choices:
            changed["allowed"] = option.choices
    return parameter.model_copy(update=changed)


def in_place_of(
    chosen: LeverDocument | None, documents: Sequence[LeverDocument], job: OwnProgram
) -> LeverDocument | None:
    """The system that was recognised, or the document for programs of their own with this program's names: where only
    the launcher was known and the program names what is changed in another way, where names are all that was recognised
    and the program's parser has them from elsewhere, and where nothing was recognised."""
    own = next((item for item in documents if item.roles), None)
    if own is None:
        return chosen
    hands_on = chosen is not None and chosen is not own and _hands_its_options_on(chosen, job)
    if chosen is not None and chosen is not own and not hands_on and not _by_names_alone(chosen, job):
        return chosen
    aside = {item.parameter for item in own.roles if item.aside}
    found = {
        parameter: names for parameter, names in roles_found(own, job.listed, job.read(), job.answers).items()
        if parameter not in aside
    }
    if chosen is None and not found:
        return None
    fallback = chosen is None or chosen.fallback
    if fallback and chosen is not own and not _says_more(found, chosen) and _has_a_batch(chosen, job.listed):
        return chosen
    if chosen is not None and chosen is not own and not _names_a_batch(own, found) and _has_a_batch(chosen, job.listed):
        return chosen
    # Only now: for this all of the program's modules are read.
    answers = replace(job.answers, options=(*job.answers.options, *(f"{name}=no" for name in _unread(own, job))))
    return specialised(own, job.listed, job.read(), answers)


def _names_a_batch(own: LeverDocument, found: Mapping[str, object]) -> bool:
    """Whether the program has a batch under a name of its own."""
    if own.batch is None:
        return False
    instead = {name for group in own.roles_instead if own.batch.micro in group for name in group}
    return not found.keys().isdisjoint({own.batch.micro, own.batch.total, *instead})


_HANDED_ON = re.compile(r" = vars\(|\*\*\s*(?:vars\(|(?:args|opts?|options|flags)\b)|\basdict\(|from_argparse_args")
"""A program that hands all its options on at once: what reads them does not show."""


def _unread(own: LeverDocument, job: OwnProgram) -> tuple[str, ...]:
    """The names of the program's options of an accumulation that its parser takes and no code of its own reads, while
    it reads the one of a batch: they do nothing."""
    program, batch = job.read(), own.batch
    if program is None or batch is None:
        return ()
    roles = {item.dest: role[0] for item in program.options if (role := role_of(own.roles, item.names[0])) is not None}
    if batch.accumulation not in roles.values():
        return ()
    files = job.code()
    read = {
        dest for dest in roles
        if dest.isidentifier() and any(re.search(rf"(?<![\w-]){dest}\b", file.text) for file in files)
    }
    if not any(roles[dest] in (batch.micro, batch.total) for dest in read):
        return ()
    if any(_HANDED_ON.search(file.text) for file in files):
        return ()
    return tuple(
        name for item in program.options if roles.get(item.dest) == batch.accumulation and item.dest not in read
        for name in item.names
    )


def _hands_its_options_on(chosen: LeverDocument, job: OwnProgram) -> bool:
    """Whether the system's micro-batch does not stand in what was read, or in the program's text alone, which fills it
    in from elsewhere (`TrainingArguments(per_device_train_batch_size=args.batch_size)`): what is given to the program
    has other names, if any. Not so of a program that uses the system's parser, nor where the script has a mark of its
    own."""
    if chosen.batch is None or not chosen.parser:
        return False
    spellings = chosen.parameter(chosen.batch.micro).spellings
    found = [
        item for item in job.listed if not {item.parameter.rpartition(".")[2], item.spelling}.isdisjoint(spellings)
    ]
    if found:
        return all(item.file.endswith(".py") and item.value is None for item in found)
    scripts = [item for item in job.files if not item.path.endswith(".py")]
    program = job.read()
    inherited = program.inherits if program is not None else ()
    return not own_mark(chosen, scripts) and not any(re.search(chosen.parser, item) for item in inherited)


def _by_names_alone(chosen: LeverDocument, job: OwnProgram) -> bool:
    """Whether nothing but the launcher, or names that programs of others have too, makes the job one of this system."""
    if chosen.fallback:
        return True
    scripts = [item for item in job.files if not item.path.endswith(".py")]
    if not any(mark.shared for mark in chosen.marks) or own_mark(chosen, scripts):
        return False
    program = job.read()
    if program is None or not program.options or not program.complete:
        return False  # it may take the names of the system's, too
    return not chosen.parser or not any(re.search(chosen.parser, item) for item in program.inherits)


def is_recognised(document: LeverDocument, job: OwnProgram, framework: str) -> bool:
    """Whether the system is known by more than names that programs of others have too, so that its programs take what
    its document says. `framework`: what the log names.

    A system that has a parser for programs to use (Hugging Face's arguments) is also used by programs without one:
    where a program's source was read, that tells, and neither a name in its text nor one in its log does."""
    if not document.parser:
        named = any(mark.framework and mark.framework == framework for mark in document.marks)
        return named or own_mark(document, job.files)
    program = job.read()
    if program is not None and any(re.search(document.parser, item) for item in program.inherits):
        return True
    if program is None and own_mark(document, [code_alone(item) for item in job.code()]):
        return False  # it fills in the arguments itself, and reads no command line
    return own_mark(document, [item for item in job.files if not item.path.endswith(".py")])


def own_mark(document: LeverDocument, files: Sequence[TemplateFile]) -> bool:
    """Whether a mark is there that no program of others has."""
    return any(
        mark.pattern and not mark.shared and first_uncommented_match(mark.pattern, files) for mark in document.marks
    )


def _says_more(found: dict[str, tuple[str, ...]], chosen: LeverDocument | None) -> bool:
    """Whether a role has a name that the document for any program does not have."""
    known = {item for entry in chosen.parameters for item in entry.spellings} if chosen is not None else set()
    return any(name not in known for names in found.values() for name in names)


def _has_a_batch(chosen: LeverDocument | None, listed: Sequence[Setting]) -> bool:
    """Whether what the document calls the micro-batch stands in the template."""
    if chosen is None or chosen.batch is None:
        return False
    spellings = chosen.parameter(chosen.batch.micro).spellings
    return any(item.parameter in spellings for item in listed)
