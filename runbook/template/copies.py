"""Pointing a job's files at copies of one another, so that nobody else's job sees a change."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runbook.model.template import Edit, Patch, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash.arguments import needs_no_quotes, options_given
from runbook.template.bash.edit import change_value, check_result
from runbook.template.bash.insert import insert
from runbook.template.bash.script import UNGIVEN, Script, read_script
from runbook.template.bash.state import Command
from runbook.template.editing import apply
from runbook.template.named_files import (
    HYDRA_FURTHER,
    NamingWord,
    likely_path,
    named_files,
    naming_commands,
    naming_options,
    naming_words,
    only_prepares,
    program_named,
    scripts_named,
)
from runbook.template.text_files import CannotEdit, Change, Language, language_of, splice, unified_diff


def point_to_copies(
    file: TemplateFile, copies: Mapping[str, str], known: SubmitContext | None = None
) -> Patch:
    """The script with the paths of `copies` (as `named_files` gave them) replaced by those of the copies.

    Also for a configuration file that names another. Raises `CannotEdit` for a path that the file does not name, or
    that cannot be rewritten for certain.
    """
    if language_of(file) is not Language.BASH:
        return _keys_to_copies(file, copies)
    script = read_script(file, naming_options(), known)
    edited: list[Change] = []
    wanted = dict(copies)
    for command in naming_commands(script):
        if only_prepares(command):
            continue
        for word in naming_words(command):
            path = replace(word.file, likely=likely_path(script, word)).meant or ""
            copy = copies.get(path, path)
            if copy == path:
                continue
            wanted.pop(path, None)
            if word.file.path is None:
                edited.append(_default_rewritten(script, word, path, copy))
            elif word.file.hydra:
                edited += _hydra_to_copy(script, command, word, copy)
            else:
                edited.append(_rewritten(script, word, copy))
        for program in program_named(script, command, None):
            if copies.get(program.path or "", program.path) != program.path:
                raise CannotEdit(
                    f"{program.path} is the program: a copy elsewhere would not find its own modules",
                    where=f"{file.path}:{program.line}", next_step="pass the value as an option, or change it by hand",
                )
    missing = [path for path, copy in wanted.items() if path != copy]
    by_source = next((item for item in scripts_named(script) if item.path in missing), None)
    if by_source is not None:
        raise CannotEdit(
            f"{by_source.path} is sourced, and what it sets is not followed", where=f"{file.path}:{by_source.line}",
            next_step="change it by hand",
        )
    if missing:
        raise CannotEdit(
            f"the script does not name {missing[0]}", where=f"{file.path}:1", next_step="look at the script by hand"
        )
    after, splices = splice(file, edited)
    if splices:
        _check_copies(script, after, copies, known)
    return Patch((after,), splices, unified_diff(file, after))


def wire_copies(
    files: Sequence[TemplateFile], copies: Mapping[str, str], known: SubmitContext | None = None
) -> Patch:
    """All files of a job with every path that has a copy rewritten to it, wherever one of them names it.

    `files` are the job script first and what it names, each with the `path` by which it is named; `copies` says where
    the copy of each will lie. The files keep their `path`: the caller writes each text to its copy. Raises `CannotEdit`
    when nobody names one of them, when a file that would change has no copy, or when a file finds others from its own
    folder and the copy would lie in another.
    """
    patches = []
    left = {path for path, copy in copies.items() if path != copy and path != files[0].path}
    named = [named_files(file, known) for file in files]
    composed = {item.path for every in named for item in every if item.hydra}
    for at, file in enumerate(files):
        mine = {item.meant: item for item in named[at] if item.meant in copies}
        wanted = {path: copies[path] for path in mine if path is not None and copies[path] != path}
        beside = posixpath.dirname(copies.get(file.path, "")) == posixpath.dirname(file.path)
        if at and file.path in copies and file.path not in composed and not beside:
            _refuse_tied(file)
        patch = point_to_copies(file, wanted, known) if wanted else Patch((file,), (), "")
        if patch.splices and at and file.path not in copies:
            raise CannotEdit(
                f"{file.path} names {next(iter(wanted))}, so it has to change too, and has no copy",
                where=f"{file.path}:1", next_step=f"give {file.path} a copy as well",
            )
        left -= set(wanted)
        patches.append(patch)
    if left:
        raise CannotEdit(
            f"none of the files names {min(left)}", where=f"{files[0].path}:1", next_step="look at the script by hand"
        )
    splices = tuple(item for patch in patches for item in patch.splices)
    return Patch(tuple(patch.files[0] for patch in patches), splices, "".join(patch.diff for patch in patches))


_NAMES_BASE = (
    r"(?:_base_|_BASE_|__base__|bases?|base_config|extends?|includes?|inherits?(?:_from)?|parent_config|defaults)"
)
_ITEMS = r"(?:(?:#[^\n]*)?\n[ \t]*)+-[ \t]"
_A_FILE = r"[^\s'\"#]+\.(?:ya?ml|json|toml)\b"
_TIED = {
    Language.BASH: re.compile(r"^[^#\n]*(?:\$\{?0\b|\$\{?BASH_SOURCE)", re.MULTILINE),
    Language.PYTHON: re.compile(r"^[^#\n]*(?:\b__file__\b|^\s*_base_\s*=|^\s*from\s+\.)", re.MULTILINE),
    Language.YAML: re.compile(
        rf"^(?:_base_|_BASE_|__base__)\s*:|^{_NAMES_BASE}\s*:[ \t]*(?:\[|['\"]?{_A_FILE}|{_ITEMS})"
        r"|^[^#\n]*\s!include\b", re.MULTILINE,
    ),
    Language.JSON: re.compile(
        rf"^[ \t]*(?:\{{[ \t]*)?\"{_NAMES_BASE}\"[ \t]*:[ \t]*(?:\[\s*)?\"{_A_FILE}", re.MULTILINE
    ),
    Language.TOML: re.compile(rf"^{_NAMES_BASE}\s*=\s*(?:\[\s*)?['\"]{_A_FILE}", re.MULTILINE),
}
"""By what a file finds others from the folder in which it lies (Hydra's and OmegaConf's `defaults`, `_base_`)."""


def tied_by(file: TemplateFile) -> tuple[str, int]:
    """By what, and in which line, a file finds others from the folder in which it lies; ("", 0) where nothing shows
    that it does. What Hydra composes (`--config-name`) is found by its search path instead, which this cannot tell."""
    try:
        tied = _TIED.get(language_of(file))
    except CannotEdit:
        return "", 0
    match = tied.search(file.text) if tied is not None else None
    return (match[0].strip()[-40:], file.text.count("\n", 0, match.end()) + 1) if match else ("", 0)


def _refuse_tied(file: TemplateFile) -> None:
    shown, line = tied_by(file)
    if shown:
        raise CannotEdit(
            f"{file.path} finds other files from the folder it lies in ({shown!r})",
            where=f"{file.path}:{line}", next_step="pass the value as an option, or change the file by hand",
        )


def _keys_to_copies(file: TemplateFile, copies: Mapping[str, str]) -> Patch:
    named = {item.path: item for item in named_files(file)}
    edits = []
    for path, copy in copies.items():
        if path == copy:
            continue
        if path not in named:
            raise CannotEdit(
                f"{file.path} does not name {path}", where=f"{file.path}:1", next_step="look at the file by hand"
            )
        key = named[path].option
        edits.append(Edit(key, SettingKind.KEY, (key,), copy, path))
    return apply((file,), edits)


def _rewritten(script: Script, word: NamingWord, copy: str) -> Change:
    if word.file.unresolved:
        where = f"{script.file.path}:{word.file.line}"
        raise CannotEdit(word.file.unresolved, where=where, next_step="rewrite it by hand")
    return change_value(script, word.occurrence, copy)[0]


def _default_rewritten(script: Script, word: NamingWord, path: str, copy: str) -> Change:
    """Another default of the script's argument (`${1:-configs/a.yaml}`): who gives one has the file of that."""
    codes = {atom.unknown.code for atom in word.occurrence.value if atom.unknown is not None}
    written = next(iter(codes), "").encode()
    ungiven = UNGIVEN.fullmatch(written.decode())
    alone = ungiven is not None and posixpath.normpath(ungiven[1]) == path and script.data.count(written) == 1
    if ungiven is None or not alone or not needs_no_quotes(copy) or word.file.hydra:
        where = f"{script.file.path}:{word.file.line}"
        raise CannotEdit(word.file.unresolved, where=where, next_step="rewrite it by hand")
    start = script.data.index(written) + ungiven.start(1)
    return Change(start, start + len(ungiven[1]), copy.encode())


def _hydra_to_copy(script: Script, command: Command, word: NamingWord, copy: str) -> list[Change]:
    """Another `--config-name`, and the copy's folder as a further place to look.

    Hydra looks in the program's own folder first, so the copy needs a name of its own; the groups that the
    configuration's `defaults` name are still found where they were.
    """
    where = f"{script.file.path}:{word.file.line}"
    folder, name = posixpath.split(copy)
    stem = name.removesuffix(".yaml")
    if not posixpath.isabs(copy) or not name.endswith(".yaml"):
        raise CannotEdit("a copy for --config-name needs an absolute path to a .yaml file", where=where)
    if stem == posixpath.basename(word.file.path or "").removesuffix(".yaml"):
        raise CannotEdit(
            f"the copy has the name {stem} of the original, which Hydra would take instead", where=where,
            next_step="give the copy another name",
        )
    given = options_given(command, naming_options())
    if any(given.get(option) for option in HYDRA_FURTHER):
        raise CannotEdit(
            "--config-dir is given already, and Hydra takes only one", where=where,
            next_step="put the copy into that folder by hand",
        )
    edit = Edit("--config-dir", SettingKind.ARGUMENT, ("--config-dir",), folder)
    script.training = (command,)
    return [_rewritten(script, word, stem), *insert(script, edit)]


def _check_copies(before: Script, after: TemplateFile, copies: Mapping[str, str], known: SubmitContext | None) -> None:
    """The changed script names the copies where it named the originals, and nothing else moved."""
    old, new = named_files(before.file, known), named_files(after, known)
    kept = len(old) == len(new)
    for item, now in zip(old, new):
        wanted = copies.get(item.path or "", item.path)
        if item.hydra:
            kept = kept and posixpath.basename(now.path or "") == posixpath.basename(wanted or "")
        else:
            kept = kept and now.meant == copies.get(item.meant or "", item.meant)
    if not kept:
        raise CannotEdit(
            "after the change the script would not name the copies", where=f"{after.path}:1",
            next_step="make the change by hand",
        )
    check_result(before, after, (), (), known)
