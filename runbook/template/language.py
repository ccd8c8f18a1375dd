"""Which language a template is written in, and whether it can be read at all."""

from __future__ import annotations

import re
from enum import StrEnum

from runbook.model.template import TemplateFile
from runbook.template.errors import CannotEdit

_SHELLS = re.compile(r"^#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(?:bash|sh|dash|ksh)(?:\s|$)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PYTHON = re.compile(r"^#!.*\bpython[\d.]*(?:\s|$)")


class Language(StrEnum):
    BASH = "bash"
    YAML = "YAML"
    JSON = "JSON"
    TOML = "TOML"
    PYTHON = "Python"


_SUFFIXES = {
    ".py": Language.PYTHON, ".yaml": Language.YAML, ".yml": Language.YAML, ".json": Language.JSON,
    ".toml": Language.TOML,
}
_UNREADABLE = {".csh": "C shell", ".tcsh": "C shell"}


def language_of(file: TemplateFile) -> Language:
    """The language of a template or of a configuration file that belongs to it. Raises `CannotEdit` for another."""
    _refuse_other_than_text(file)
    first = file.text.split("\n", 1)[0]
    suffix = next((name for end, name in _SUFFIXES.items() if file.path.endswith(end)), None)
    if first.startswith("#!"):
        if _SHELLS.match(first):
            return Language.BASH
        if suffix is Language.PYTHON and _PYTHON.match(first):
            return Language.PYTHON
        raise _no_shell(file, first)
    other = next((name for end, name in _UNREADABLE.items() if file.path.endswith(end)), None)
    if other is not None:
        raise CannotEdit(
            f"{other} files cannot be edited", where=f"{file.path}:1", next_step="change the value by hand",
        )
    return suffix or Language.BASH


def language(file: TemplateFile) -> Language:
    """The language of a job script. Raises `CannotEdit` for a configuration file, which starts nothing by itself."""
    found = language_of(file)
    first = file.text.split("\n", 1)[0]
    if found is Language.PYTHON and first.startswith("#!"):
        raise _no_shell(file, first)
    if found is not Language.BASH:
        raise CannotEdit(
            f"a {found} file cannot be edited as a job script: it starts nothing",
            where=f"{file.path}:1",
            next_step="give the job script that names it, or change the value by hand",
        )
    return found


def _no_shell(file: TemplateFile, first: str) -> CannotEdit:
    return CannotEdit(
        f"the job script runs under {first[2:].strip()!r}: only sh and bash job scripts can be edited",
        where=f"{file.path}:1",
        next_step="change the script by hand, or give the shell script that starts it",
    )


def _refuse_other_than_text(file: TemplateFile) -> None:
    if "\0" in file.text:
        line = file.text.count("\n", 0, file.text.index("\0")) + 1
        raise CannotEdit(
            "the file holds NUL bytes: it is not a text file",
            where=f"{file.path}:{line}",
            next_step="give the job script itself, not a program or an archive",
        )
    match = None if file.text.isascii() else _SURROGATE.search(file.text)
    if match:
        bad = match.start()
        raise CannotEdit(
            "the file is not UTF-8: its bytes could not be kept as they are",
            where=f"{file.path}:{file.text.count(chr(10), 0, bad) + 1}",
            next_step="save it as UTF-8, or change it by hand",
        )
