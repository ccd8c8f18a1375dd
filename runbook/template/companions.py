"""The files that a job script names: its configuration, and the program itself. And pointing the script at copies.

A step reads what is named here, edits copies of it (`apply` takes the script and these files together), and has the
script's own argument rewritten to the copy with `point_to_copies`, so that nobody else's job sees the change.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.model.template import Edit, ParameterNames, Patch, SettingKind, Surroundings, TemplateFile
from runbook.template.bash import find as bash
from runbook.template.bash.commands import chain, program_at
from runbook.template.bash.edit import check_result
from runbook.template.bash.find import Occurrence, Script
from runbook.template.bash.insert import insert
from runbook.template.bash.runs import Command
from runbook.template.bash.words import Token, text_of, unknown_of
from runbook.template.errors import CannotEdit
from runbook.template.language import Language, language_of
from runbook.template.splices import Change, splice, unified_diff

OPTIONS = (
    "--config", "--config_file", "--config-file", "--config_yaml", "--config-yaml", "--yaml-cfg", "--yaml_cfg",
    "--deepspeed", "--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--job.config_file",
    "--job.config-file", "--custom-config-path", "--fsdp_config", "--accelerate_config", "--runtime-env",
)
"""Options that name a configuration file: Hugging Face, accelerate, TRL, DeepSpeed, torchtitan, Megatron, AReaL, slime,
Ray. `--deepspeed` is also a bare flag, so only a value that looks like a file counts."""

_HYDRA_NAME = ("--config-name", "-cn")
_HYDRA_FOLDER = ("--config-path", "-cp")
_HYDRA_FURTHER = ("--config-dir", "-cd")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a script names."""

    option: str
    """The option that names it; "" for one that stands alone (`trl sft recipe.yaml`) and for the program."""
    path: str | None
    """As written, variables followed; None when it is computed. Relative to the folder in which the command runs."""
    line: int
    unresolved: str = ""
    """Why the path is not known."""
    program: bool = False
    """The Python program itself, whose literals may be the configuration."""
    folder: str = ""
    """What the script says of the folder in which the command runs: "cd /x at line 4"; "" when it says nothing."""
    hydra: bool = False
    """Named by `--config-name`: the path is joined from it and `--config-path`; without that it is under the program's
    own folder, which is not known."""


def named_files(file: TemplateFile, known: Surroundings | None = None) -> tuple[NamedFile, ...]:
    """The files that the training command and its launchers name, in order. A file that is no job script names none."""
    try:
        if language_of(file) is not Language.BASH:
            return ()
    except CannotEdit:
        return ()
    script = bash.read_script(file, _names(), known)
    found: list[NamedFile] = []
    for command in _commands(script):
        if not _prepares(command):
            folder = _folder(script, command)
            found += [_named(item, folder) for item in _places(command)]
            found += _program(command, folder)
    return tuple(dict.fromkeys(found))


def point_to_copies(
    file: TemplateFile, copies: Mapping[str, str], known: Surroundings | None = None
) -> Patch:
    """The script with the paths of `copies` (as `named_files` gave them) replaced by those of the copies.

    Raises `CannotEdit` for a path that the script does not name, or that cannot be rewritten for certain.
    """
    script = bash.read_script(file, _names(), known)
    edited: list[Change] = []
    wanted = dict(copies)
    for command in _commands(script):
        if _prepares(command):
            continue
        for place in _places(command):
            copy = copies.get(place.path or "")
            if copy is None or copy == place.path:
                continue
            wanted.pop(place.path or "", None)
            edited += _hydra(script, command, place, copy) if place.hydra else [_rewritten(script, place, copy)]
        for program in _program(command, ""):
            if copies.get(program.path or "", program.path) != program.path:
                raise CannotEdit(
                    f"{program.path} is the program: a copy elsewhere would not find its own modules",
                    where=f"{file.path}:{program.line}", next_step="pass the value as an option, or change it by hand",
                )
    missing = [path for path, copy in wanted.items() if path != copy]
    if missing:
        raise CannotEdit(
            f"the script does not name {missing[0]}", where=f"{file.path}:1", next_step="look at the script by hand"
        )
    after, splices = splice(file, edited)
    if splices:
        _check(script, after, copies, known)
    return Patch((after,), splices, unified_diff(file, after))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a path is written."""

    option: str
    path: str | None
    unresolved: str
    line: int
    occurrence: Occurrence
    hydra: bool = False


def _names() -> tuple[ParameterNames, ...]:
    """All options, so that the reader finds their values; none of them tells the training command."""
    return tuple(
        ParameterNames(option, SettingKind.ARGUMENT, (option,), training_program=False)
        for option in (*OPTIONS, *_HYDRA_NAME, *_HYDRA_FOLDER, *_HYDRA_FURTHER)
    )


def _commands(script: Script) -> list[Command]:
    """Commands that start a program or take a configuration, from the inside out, each once."""
    return [
        item for item in script.walker.commands
        if program_at(item.argv) is not None or any(_places(item))
    ]


def _prepares(command: Command) -> bool:
    """`cp`, `cat` and the like name files too, without running anything."""
    first = (command.argv[0].text or "").rsplit("/", 1)[-1]
    return first in ("cp", "mv", "cat", "rm", "sed", "mkdir", "ln", "ls", "test", "[", "cd", "jq", "yq", "grep", "tee")


def _places(command: Command) -> list[_Place]:
    index_of = {name.parameter: name for name in _names()}
    found: list[_Place] = []
    given = bash.options_given(command, tuple(index_of.values()))
    for option in OPTIONS:
        for item in given.get(option, [])[-1:]:
            text = text_of(item.value)
            if not item.unresolved and text is not None and not text.endswith(_SUFFIXES):
                continue
            if option == "--deepspeed" and (item.value_token is None and not item.value):
                continue  # the bare flag
            reason = item.condition and f"it is given only {item.condition}"
            reason = reason or item.unresolved or unknown_of(item.value)
            found.append(_Place(option, None if reason else text, reason, item.line, item))
    found += _hydra_places(given)
    found += _alone(command, found)
    return sorted(found, key=lambda place: place.line)


def _hydra_places(given: Mapping[str, list[Occurrence]]) -> list[_Place]:
    names = [item for option in _HYDRA_NAME for item in given.get(option, [])]
    folders = [item for option in _HYDRA_FOLDER for item in given.get(option, [])]
    if not names:
        return []
    name = names[-1]
    text = text_of(name.value)
    reason = name.unresolved or unknown_of(name.value) or (name.condition and f"it is given only {name.condition}")
    path = None
    if not reason and text is not None:
        path = text if text.endswith((".yaml", ".yml")) else f"{text}.yaml"
        if folders:
            folder = text_of(folders[-1].value)
            if folder is None:
                reason, path = unknown_of(folders[-1].value) or folders[-1].unresolved, None
            else:
                path = posixpath.join(folder, path)
    return [_Place(name.spelling, path, reason, name.line, name, True)]


def _alone(command: Command, found: Sequence[_Place]) -> list[_Place]:
    """A recipe that stands without an option behind the program: `trl sft recipe.yaml`, `train.py run.toml`."""
    taken = {id(place.occurrence.value_token) for place in found}
    places = []
    program = program_at(command.argv)
    for at, token in enumerate(command.argv):
        text = token.text
        if text is None or not text.endswith(_SUFFIXES) or "=" in text or text.startswith("-") or id(token) in taken:
            continue
        before = command.argv[at - 1].text or "" if at else ""
        suffixes = _SUFFIXES if program is not None and at == program + 1 else (".yaml", ".yml", ".toml")
        if (before.startswith("-") and before not in ("--", "-m")) or not text.endswith(suffixes):
            continue
        value = Occurrence(
            "", token.atoms, (token.start, token.end), token.quote, token.level, token.line, token.trail,
            token.condition, option=token, value_token=token,
        )
        reason = f"it is given only {token.condition}" if token.condition else ""
        places.append(_Place("", None if reason else text, reason, token.line, value))
    return places


def _named(place: _Place, folder: str) -> NamedFile:
    return NamedFile(place.option, place.path, place.line, place.unresolved, False, folder, place.hydra)


def _program(command: Command, folder: str) -> list[NamedFile]:
    at = program_at(command.argv)
    if at is None:
        return []
    token: Token = command.argv[at]
    written = "".join(atom.char for atom in token.atoms)
    if not written.endswith(".py"):
        return []
    return [NamedFile("", token.text, token.line, unknown_of(token.atoms), True, folder)]


def _folder(script: Script, command: Command) -> str:
    """The last `cd` in front of the command, or Slurm's own option."""
    for current in chain(command):
        for token in current.argv:
            if re.match(r"--chdir(=|$)|-D$", token.prefix):
                return f"--chdir at line {token.line}"
    found = ""
    directive = script.header.last(("--chdir", "-D"))
    if directive is not None:
        found = f"#SBATCH --chdir {directive.value} at line {directive.line}"
    for item in script.walker.commands:
        if item is command:
            break
        if item.argv and item.argv[0].text in ("cd", "pushd"):
            target = item.argv[1].text if len(item.argv) > 1 else ""
            shown = "a folder that is not known" if target is None else target
            found = f"cd {shown} at line {item.line}" + (f", {item.condition}" if item.condition else "")
    return found


def _rewritten(script: Script, place: _Place, copy: str) -> Change:
    from runbook.template.bash.change import change_value

    if place.unresolved:
        raise CannotEdit(place.unresolved, where=f"{script.file.path}:{place.line}", next_step="rewrite it by hand")
    return change_value(script, place.occurrence, copy)[0]


def _hydra(script: Script, command: Command, place: _Place, copy: str) -> list[Change]:
    """Another `--config-name`, and the copy's folder as a further place to look.

    Hydra looks in the program's own folder first, so the copy needs a name of its own; the groups that the
    configuration's `defaults` name are still found where they were.
    """
    where = f"{script.file.path}:{place.line}"
    folder, name = posixpath.split(copy)
    stem = name.removesuffix(".yaml")
    if not posixpath.isabs(copy) or not name.endswith(".yaml"):
        raise CannotEdit("a copy for --config-name needs an absolute path to a .yaml file", where=where)
    if stem == posixpath.basename(place.path or "").removesuffix(".yaml"):
        raise CannotEdit(
            f"the copy has the name {stem} of the original, which Hydra would take instead", where=where,
            next_step="give the copy another name",
        )
    given = bash.options_given(command, _names())
    if any(given.get(option) for option in _HYDRA_FURTHER):
        raise CannotEdit(
            "--config-dir is given already, and Hydra takes only one", where=where,
            next_step="put the copy into that folder by hand",
        )
    edit = Edit("--config-dir", SettingKind.ARGUMENT, ("--config-dir",), folder)
    script.training = (command,)
    return [_rewritten(script, place, stem), *insert(script, edit)]


def _check(before: Script, after: TemplateFile, copies: Mapping[str, str], known: Surroundings | None) -> None:
    """The changed script names the copies where it named the originals, and nothing else moved."""
    old, new = named_files(before.file, known), named_files(after, known)
    kept = len(old) == len(new)
    for item, now in zip(old, new):
        wanted = copies.get(item.path or "", item.path)
        if item.hydra:
            kept = kept and posixpath.basename(now.path or "") == posixpath.basename(wanted or "")
        else:
            kept = kept and now.path == wanted
    if not kept:
        raise CannotEdit(
            "after the change the script would not name the copies", where=f"{after.path}:1",
            next_step="make the change by hand",
        )
    check_result(before, after, (), (), known)
