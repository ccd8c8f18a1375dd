"""Find and apply over the files of a job: its script, and the configuration files that the script names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from runbook.model.template import (
    Edit,
    ParameterNames,
    Patch,
    Setting,
    SettingKind,
    Splice,
    SubmitContext,
    TemplateFile,
)
from runbook.template.bash import edit as bash_edit
from runbook.template.bash.launchers import starts_program
from runbook.template.bash.script import Script, occurrences_in_force, read_script, takes_override, wanted_settings
from runbook.template.config import edit as config_edit
from runbook.template.config.config_tree import Config, bare_key, holds_in
from runbook.template.text_files import CannotEdit, Language, language_of, restore, splice, unified_diff

# Configuration files that a job script writes before it hands them to the program: a copy on the disk is the last
# run's, and what is changed there the script writes over.

_WORD = r"""["']?([^\s"';&|()<>]{1,400})["']?"""
_REDIRECTED = re.compile(r"(?<![0-9&<>-])>{1,2}\|?[ \t]{0,8}" + _WORD)
_TEE = re.compile(r"\btee[ \t]{1,8}(?:-a[ \t]{1,8})?" + _WORD)
_IN_PLACE = frozenset({"sed", "yq", "perl"})
_COPIES = frozenset({"cp", "mv", "install", "ln"})


def writer_of(path: str, scripts: Iterable[TemplateFile]) -> tuple[str, int] | None:
    """The script and the line that write the file; None where none is seen to."""
    name = path.rsplit("/", 1)[-1]
    for script in scripts:
        if name not in script.text:
            continue
        for number, line in enumerate(script.text.split("\n"), 1):
            if name not in line or line.lstrip().startswith("#"):
                continue
            if any(_same(target, path) for target in _targets(line)):
                return script.path, number
    return None


def _targets(line: str) -> Iterator[str]:
    """The words of a line that name what it writes."""
    for pattern in (_REDIRECTED, _TEE):
        yield from (match[1] for match in pattern.finditer(line))
    words = line.split()
    if _IN_PLACE & set(words) and any(re.match(r"-[a-zA-Z]{0,4}i|--in-?place", word) for word in words):
        yield from (word.strip("\"';") for word in words)
    for part in re.split(r"[;&|()]", line):
        words = part.split()
        if len(words) > 2 and words[0] in _COPIES:
            yield words[-1].strip("\"'")


def _same(target: str, path: str) -> bool:
    """Whether the words name the file; a folder in a variable may be any."""
    target, path = target.removeprefix("./"), path.removeprefix("./")
    if "$" in target or "$" in path:
        return target.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]
    return target == path or path.endswith(f"/{target}")


def find_settings(
    file: TemplateFile, names: Sequence[ParameterNames], known: SubmitContext | None = None
) -> tuple[Setting, ...]:
    """The parameters that a template sets, in the order of `names`; an absent one has no setting.

    A value that cannot be followed is None with `unresolved`. `known` is what the script was submitted with.
    A configuration file sets parameters of the kind `key` alone. A file that cannot be read as a job script sets
    nothing that we know of: the result is empty.
    """
    try:
        language = language_of(file)
    except CannotEdit:
        return ()
    if language is Language.BASH:
        return file_settings(read_script(file, names, known), names)
    if not any(name.kind is SettingKind.KEY for name in names):
        return ()
    return file_settings(config_edit.read_config(file, language), names)


def apply(
    files: Sequence[TemplateFile],
    edits: Sequence[Edit],
    *,
    names: Sequence[ParameterNames] = (),
    known: SubmitContext | None = None,
) -> Patch:
    """The files with exactly these edits made; only the bytes of the splices differ.

    `names` are further parameters of the system: they tell the training command and where a new option fits.
    `files` are a job script, or it and the configuration files that it names. A key that both set is changed in the
    script, whose command line wins. An edit that is already in force changes nothing, so applying twice is applying
    once. Raises `CannotEdit` when an edit cannot be made for certain; then nothing is changed.
    """
    _refuse_contradictions(edits)
    if not edits:
        return Patch(tuple(files), (), "")
    wanted = {item.parameter: item for item in names}
    all_names = (
        *wanted.values(), *(bash_edit.names_of(edit) for edit in edits if edit.parameter not in wanted),
    )
    read = read_all(files, all_names, known)
    patched: list[TemplateFile] = []
    splices: list[Splice] = []
    notes: list[str] = []
    shares = _shares(read, edits)
    _refuse_halves(read, shares)
    for at, (item, share) in enumerate(zip(read, shares)):
        if isinstance(item, Config):
            after, made = splice(item.file, config_edit.plan_changes(item, share.edits))
            if made:
                _refuse_generated(item, read)
                config_edit.check_result(item, config_edit.read_config(after, item.language), share.edits)
        else:
            edited = _planned(item, share.edits)
            after, made = splice(item.file, edited.changes)
            if made:
                bash_edit.check_result(item, after, share.edits, all_names, known, _scripts(read[:at]))
            notes += edited.notes
        patched.append(after)
        splices += made
        notes += share.notes
    diff = "".join(unified_diff(before, after) for before, after in zip(files, patched))
    return Patch(tuple(patched), tuple(splices), diff, tuple(notes))


def _refuse_halves(read: Sequence[Script | Config], shares: Sequence[_Share]) -> None:
    """A part of the edits in a file that another program reads too, the rest on the training's own command line: that
    program would have one without the other."""
    files = {item.file.path: share for item, share in zip(read, shares) if isinstance(item, Config) and share.edits}
    for item, share in zip(read, shares):
        options = [edit for edit in share.edits if edit.kind in (SettingKind.ARGUMENT, SettingKind.KEY)]
        if not isinstance(item, Script) or not files or not options:
            continue
        for command in item.commands:
            words = {(token.text or "").rpartition("=")[2].removeprefix("./") for token in command.argv}
            path = next((path for path in files if path.removeprefix("./") in words), "")
            if path and starts_program(command) and item.training and command not in item.training:
                option = options[0].spellings[0]
                raise CannotEdit(
                    f"{path} is read by another program too, at line {command.line}, which would not get {option}",
                    where=f"{item.file.path}:{command.line}", next_step="give each program a file of its own",
                )


def _refuse_generated(item: Config, read: Sequence[Script | Config]) -> None:
    writer = writer_of(item.file.path, [other.file for other in read if isinstance(other, Script)])
    if writer is None:
        return
    path = item.file.path
    raise CannotEdit(
        f"{path} is written by {writer[0]} before the program reads it, so what stands there is an earlier run's",
        where=f"{writer[0]}:{writer[1]}", next_step=f"make the change where {writer[0]} writes it, by hand",
    )


def invert(patch: Patch) -> tuple[TemplateFile, ...]:
    """The original files of a patch, byte for byte."""
    return restore(patch)


def _planned(script: Script, edits: Sequence[Edit]) -> bash_edit.Edited:
    """Raises `CannotEdit`, also where a value that is to be written anew is no UTF-8."""
    try:
        return bash_edit.plan_changes(script, edits)
    except UnicodeEncodeError as error:
        raise CannotEdit(
            "what is to be changed is not UTF-8", where=script.file.path,
            next_step="save the file as UTF-8, or change the value by hand",
        ) from error


def read_all(
    files: Sequence[TemplateFile], names: Sequence[ParameterNames], known: SubmitContext | None
) -> list[Script | Config]:
    """The files as they are read together: a script goes on from what the scripts in front of it export.

    Raises `CannotEdit` for a file in no language of ours.
    """
    read: list[Script | Config] = []
    for file in files:
        language = language_of(file)
        if language is Language.BASH:
            read.append(read_script(file, names, known, _scripts(read)))
        else:
            read.append(config_edit.read_config(file, language))
    return read


def sourced_files(read: Sequence[Script | Config]) -> frozenset[str]:
    """The files that a script of these reads as its own lines."""
    return frozenset(path for item in _scripts(read) for path in item.sources)


def _scripts(read: Sequence[Script | Config]) -> list[Script]:
    return [item for item in read if not isinstance(item, Config)]


def file_settings(item: Script | Config, names: Sequence[ParameterNames]) -> tuple[Setting, ...]:
    """The parameters that a file sets, once it is read."""
    if not isinstance(item, Config):
        return wanted_settings(item)
    wanted = [name for name in names if name.kind is SettingKind.KEY]
    return config_edit.config_settings(item, wanted) if wanted else ()


def _refuse_contradictions(edits: Sequence[Edit]) -> None:
    wanted: dict[str, str | None] = {}
    for edit in edits:
        if wanted.setdefault(edit.parameter, edit.new) != edit.new:
            raise CannotEdit(
                f"{edit.spellings[0]} is to be both {wanted[edit.parameter]} and {edit.new}",
                where="the plan", next_step="choose one of the two changes",
            )


@dataclass(slots=True)
class _Share:
    edits: list[Edit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _shares(read: Sequence[Script | Config], edits: Sequence[Edit]) -> list[_Share]:
    """Each edit goes to the file that sets its parameter, else to the one with the training command.

    `#SBATCH` lines come first, so that a line added for one stays in front of an added `export`.
    """
    if not read:
        raise CannotEdit("there is no template to change", where="the job", next_step="give one with --template")
    shares = [_Share() for _ in read]
    parts = sourced_files(read)
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: edit.kind is not SettingKind.SBATCH):
        name = bash_edit.names_of(edit)
        sets = [
            at for at, item in enumerate(read)
            if _sets(item, name) and (edit.kind is SettingKind.ENVIRONMENT or item.file.path not in parts)
        ]
        setting = _without_handing_on(read, sets, name)
        scripts = [at for at, item in enumerate(read) if not isinstance(item, Config)]
        if edit.kind is SettingKind.KEY and len(setting) > 1 and setting[0] in scripts and setting[1] not in scripts:
            others = ", ".join(_path(read[at]) for at in setting[1:])
            at = setting[0]
            shares[at].notes.append(f"{edit.spellings[0]} stands in {others} too, where the command line wins over it")
            shares[at].edits.append(edit)
            continue
        if len(setting) > 1 and edit.kind is SettingKind.ENVIRONMENT:
            setting = [at for at in setting if _written(read[at], name)] or setting[:1]
        if len(setting) > 1:
            raise CannotEdit(
                f"{edit.spellings[0]} is set in several files",
                where=", ".join(_path(read[at]) for at in setting),
                next_step="leave it in one of them",
            )
        if edit.kind is SettingKind.KEY and not setting:
            at = _for_a_new_key(read, scripts, edit)
            shares[at].edits.append(_prefixed(read, edit) if at in scripts else edit)
            continue
        if edit.kind is not SettingKind.KEY and not setting:
            setting = [0] if edit.kind is SettingKind.SBATCH else _training(read) or scripts
        shares[(setting or [0])[0]].edits.append(edit)
    return shares


def _sets(item: Script | Config, name: ParameterNames) -> bool:
    """Whether the file sets it, or mentions it in a way that leaves it open."""
    return any(config_edit.deciding_leaf(item, name) if isinstance(item, Config) else occurrences_in_force(item, name))


def _without_handing_on(
    read: Sequence[Script | Config], setting: list[int], name: ParameterNames
) -> list[int]:
    """Without the programs that only hand on what another file sets."""
    own = []
    for at in setting:
        item = read[at]
        if not isinstance(item, Config) or not config_edit.only_hands_on(item, name):
            own.append(at)
    return own or setting


def _written(item: Script | Config, name: ParameterNames) -> bool:
    """Whether the file sets it itself, and does not only go on from a script that runs it."""
    return not isinstance(item, Config) and any(found.line for found in occurrences_in_force(item, name)[0])


def _training(read: Sequence[Script | Config]) -> list[int]:
    parts = sourced_files(read)
    return [
        at for at, item in enumerate(read)
        if not isinstance(item, Config) and item.training and item.file.path not in parts
    ]


def _for_a_new_key(read: Sequence[Script | Config], scripts: Sequence[int], edit: Edit) -> int:
    """A key that nothing sets: as an override where the command line has such, else in the one configuration file."""
    for at in scripts:
        item = read[at]
        if not isinstance(item, Config) and takes_override(item, edit):
            return at
    configs = [at for at, item in enumerate(read) if isinstance(item, Config)]
    if len(configs) == 1:
        return configs[0]
    for fits in (_has_place, _is_meant):
        belongs = [at for at in configs if fits(read[at], edit)]
        if len(belongs) == 1:
            return belongs[0]
    if configs and edit.new is not None:
        raise CannotEdit(
            f"{edit.spellings[0]} is set in none of the files, and it is not known in which it belongs",
            where=", ".join(_path(read[at]) for at in configs), next_step="add it to one of them by hand",
        )
    return (configs or list(scripts))[0]


def _has_place(item: Script | Config, edit: Edit) -> bool:
    """Whether one of several configuration files is where the key belongs: it has the mapping that holds it."""
    return isinstance(item, Config) and any(
        holds_in(spelling, item) and bare_key(spelling).rpartition(".")[0] in item.mappings
        for spelling in edit.spellings
        if not spelling.startswith("-") and "." in bare_key(spelling)
    )


def _is_meant(item: Script | Config, edit: Edit) -> bool:
    """Whether a spelling of the key holds in this file (`key without a|b`)."""
    return isinstance(item, Config) and any(
        holds_in(spelling, item) for spelling in edit.spellings if not spelling.startswith("-")
    )


def _prefixed(read: Sequence[Script | Config], edit: Edit) -> Edit:
    """With `++` in front of a key that the given configuration certainly lacks: Hydra refuses the bare form then."""
    lacking = [item for item in read if isinstance(item, Config) and item.language is Language.YAML]
    plain = [item for item in edit.spellings if not item.startswith("-")]
    if not lacking or not plain or any(item.startswith("+") for item in plain) or edit.spellings[0].startswith("-"):
        return edit
    spellings = tuple(f"++{item}" if item == plain[0] else item for item in edit.spellings)
    return replace(edit, spellings=spellings)


def _path(item: Script | Config) -> str:
    return item.file.path
