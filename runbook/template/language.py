"""Which language a template is written in, and whether it can be read at all."""

from __future__ import annotations

import re
from enum import StrEnum

from runbook.model.template import TemplateFile
from runbook.template.errors import CannotEdit

_SHELLS = re.compile(r"^#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(?:bash|sh|dash|ksh)(?:\s|$)")
_SUFFIXES = {
    ".py": "Python", ".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML", ".csh": "C shell",
    ".tcsh": "C shell",
}


class Language(StrEnum):
    BASH = "bash"


def language(file: TemplateFile) -> Language:
    """The language of a template. Raises `CannotEdit` for one that cannot be edited or is not text."""
    if "\0" in file.text:
        line = file.text.count("\n", 0, file.text.index("\0")) + 1
        raise CannotEdit(
            "the file holds NUL bytes: it is not a text file",
            where=f"{file.path}:{line}",
            next_step="give the job script itself, not a program or an archive",
        )
    bad = next((place for place, letter in enumerate(file.text) if "\ud800" <= letter <= "\udfff"), None)
    if bad is not None:
        raise CannotEdit(
            "the file is not UTF-8: its bytes could not be kept as they are",
            where=f"{file.path}:{file.text.count(chr(10), 0, bad) + 1}",
            next_step="save it as UTF-8, or change it by hand",
        )
    first = file.text.split("\n", 1)[0]
    if first.startswith("#!"):
        if _SHELLS.match(first):
            return Language.BASH
        raise CannotEdit(
            f"the job script runs under {first[2:].strip()!r}: only sh and bash job scripts can be edited",
            where=f"{file.path}:1",
            next_step="change the script by hand, or give the shell script that starts it",
        )
    suffix = next((name for end, name in _SUFFIXES.items() if file.path.endswith(end)), None)
    if suffix:
        raise CannotEdit(
            f"{suffix} files cannot be edited yet",
            where=f"{file.path}:1",
            next_step="change the value by hand, or pass it as an option in the job script",
        )
    return Language.BASH
