"""A template as text: its language, replacing byte ranges of it, its diff, and the one refusal of this room."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbook.errors import BadInput
from runbook.model.template import Patch, Splice, TemplateFile


class CannotEdit(BadInput):
    """A template cannot be changed as wanted without the risk of changing something else.

    `what` says what stands in the way, `where` is "file:line", `next_step` is what a person can do.
    """


def not_safely(spelling: str, new: str | None, problem: object, where: str) -> CannotEdit:
    """Where it is not known what is in force."""
    return CannotEdit(
        f"{spelling} cannot be set safely: {problem}", where=where,
        next_step=f"set {spelling} to {new} by hand, or write it as plain text",
    )


def not_in_force(spelling: str, present: str | None, wanted: str | None, problem: object, where: str) -> CannotEdit:
    """Where a file that was changed, read again, says something else than was wanted."""
    return CannotEdit(
        f"after the change {spelling} would be {present} and not {wanted}" + (f": {problem}" if problem else ""),
        where=where, next_step="make the change by hand",
    )


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
    found = _language_by_name(file)
    # A script's bytes stay as they are, whatever they mean; the formats of configuration files are UTF-8.
    if found is not Language.BASH:
        _refuse_other_than_utf_8(file)
    return found


def _language_by_name(file: TemplateFile) -> Language:
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


def _refuse_other_than_utf_8(file: TemplateFile) -> None:
    match = None if file.text.isascii() else _SURROGATE.search(file.text)
    if match:
        bad = match.start()
        raise CannotEdit(
            "the file is not UTF-8: its bytes could not be kept as they are",
            where=f"{file.path}:{file.text.count(chr(10), 0, bad) + 1}",
            next_step="save it as UTF-8, or change it by hand",
        )


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes `start` to `end` of a text become `after`. An insertion has `start == end`."""

    start: int
    end: int
    after: bytes
    why: str = ""


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def line_of(data: bytes, at: int) -> int:
    """The number of the line that holds byte `at`, from 1."""
    return data.count(b"\n", 0, at) + 1


def line_start(data: bytes, at: int) -> int:
    return data.rfind(b"\n", 0, at) + 1


def line_end(data: bytes, at: int) -> int:
    """The end of the line that holds `at`, in front of its line break."""
    end = data.find(b"\n", at)
    if end < 0:
        return len(data)
    return end - 1 if end > at and data[end - 1 : end] == b"\r" else end


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def splice(file: TemplateFile, changes: Sequence[Change]) -> tuple[TemplateFile, tuple[Splice, ...]]:
    """The changed file and its splices, by place. Raises `CannotEdit` when two changes touch the same bytes."""
    data = to_bytes(file.text)
    ordered = sorted(dict.fromkeys(changes), key=lambda change: (change.start, change.end))
    pieces: list[bytes] = []
    splices: list[Splice] = []
    position = 0
    for change in ordered:
        if change.start < position:
            raise CannotEdit(
                "two of the wanted changes touch the same text",
                where=f"{file.path}:{line_of(data, change.start)}",
                next_step="write the two values apart (one variable each) and try again",
            )
        before = data[change.start : change.end]
        pieces += [data[position : change.start], change.after]
        position = change.end
        if before != change.after:
            splices.append(Splice(file.path, change.start, to_text(before), to_text(change.after)))
    pieces.append(data[position:])
    return TemplateFile(file.path, to_text(b"".join(pieces))), tuple(splices)


def restore(patch: Patch) -> tuple[TemplateFile, ...]:
    """The files as they were before the patch. Raises `CannotEdit` when the patched text is not as it was left."""
    restored = []
    for file in patch.files:
        data = to_bytes(file.text)
        pieces: list[bytes] = []
        position = 0
        shift = 0
        for item in sorted((s for s in patch.splices if s.file == file.path), key=lambda s: s.start):
            before, after = to_bytes(item.before), to_bytes(item.after)
            start = item.start + shift
            if start < position or data[start : start + len(after)] != after:
                raise CannotEdit(
                    "the patched file changed since, so the change cannot be taken back by itself",
                    where=f"{file.path}:{line_of(data, max(start, 0))}",
                    next_step="take the original from the incident's folder",
                )
            pieces += [data[position:start], before]
            position = start + len(after)
            shift += len(after) - len(before)
        pieces.append(data[position:])
        restored.append(TemplateFile(file.path, to_text(b"".join(pieces))))
    return tuple(restored)


def unified_diff(before: TemplateFile, after: TemplateFile) -> str:
    """A unified diff with `a/` and `b/` names, as `patch -p1` takes it; empty for equal texts."""
    if before.text == after.text:
        return ""
    name = before.path.lstrip("/")
    lines: list[str] = []
    for line in difflib.unified_diff(
        _lines(before.text), _lines(after.text), f"a/{name}", f"b/{name}", n=3
    ):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines ending at newlines only: `str.splitlines` also cuts at form feeds and Unicode separators."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
