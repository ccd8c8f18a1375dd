"""Configuration files and command lines with the keys found in them, and edits with what comes out or the refusal.

A case: `=== file NAME` with its text (several: the script and what it names; ␍ stands for a carriage return), then
`settings` (`key = value @ line`, `key ? why it is not known`, `key !` for absent), `edits` (`key: old -> new`, `*` for
any old value, `-` for taking it out) with `diff` (the lines that change), `text`, `refused` or `note`. A key may have
further spellings (`a.b|--a-b`); `$NAME` is a variable of the environment. `all` is the whole list of what the files
make in force, `together` what they set of `settings` when they are read together.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.model.template import Edit, ParameterNames, Setting, SettingKind, TemplateFile
from runbook.template import CannotEdit, all_settings, apply, find_settings, invert, settings_in_force
from tests.case_files import read_cases

CASES = Path(__file__).parent / "config_cases"


def name_of(shown: str) -> ParameterNames:
    spellings = tuple(item.lstrip("$") for item in shown.split("|"))
    kind = SettingKind.ENVIRONMENT if shown[0] == "$" else SettingKind.KEY
    if all(item.startswith("--") for item in spellings):
        kind = SettingKind.ARGUMENT
    return ParameterNames(spellings[0], kind, spellings)


@dataclass(frozen=True)
class Case:
    title: str
    files: tuple[TemplateFile, ...]
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def edits(self) -> tuple[Edit, ...]:
        edits = []
        for line in self.parts.get("edits", "").splitlines():
            shown, old, new = re.fullmatch(r"(.+?): (.*) -> (.*)", line).groups()  # type: ignore[union-attr]
            name = name_of(shown)
            edits.append(
                Edit(
                    name.parameter, name.kind, name.spellings, None if new == "-" else new, None if old == "*" else old
                )
            )
        return tuple(edits)


def load_cases() -> list[Case]:
    cases = []
    for title, written in read_cases(CASES):
        parts, files = {}, []
        for head, text in written:
            if head.startswith("file "):
                text = f"{text}\n".replace("␍", "\r").replace("␄\n", "")
                files.append(TemplateFile(head.removeprefix("file ").strip(), text))
            else:
                parts[head] = f"{text}\n" if head == "text" else text
        cases.append(Case(title, tuple(files), parts))
    return cases


ALL = load_cases()


def with_part(*names: str) -> list[Any]:
    return [pytest.param(case, id=case.title) for case in ALL if set(names) & set(case.parts)]


@pytest.mark.parametrize("case", with_part("settings"))
def test_the_value_in_force_or_where_the_trail_ended(case: Case) -> None:
    for line in case.parts["settings"].splitlines():
        shown, sign, rest = re.fullmatch(r"(\S+) ([=?!]) ?(.*)", line).groups()  # type: ignore[union-attr]
        found = [item for file in case.files for item in find_settings(file, [name_of(shown)])]
        if sign == "!":
            assert not found
            continue
        assert len(found) == 1, f"{shown}: {found}"
        if sign == "=":
            value, _, at = rest.rpartition(" @ ")
            assert (found[0].value, found[0].line, found[0].unresolved) == (value, int(at), None)
        else:
            assert found[0].value is None
            assert rest in str(found[0].unresolved)


@pytest.mark.parametrize("case", with_part("together"))
def test_the_value_in_force_over_all_files(case: Case) -> None:
    for line in case.parts["together"].splitlines():
        shown, rest = line.split(" ", 1)
        (found,) = settings_in_force(case.files, [name_of(shown)])
        assert _shown(found, found.spelling) == f"{found.file}:{found.line} {found.spelling} {rest}"


@pytest.mark.parametrize("case", with_part("all"))
def test_everything_that_the_files_make_in_force(case: Case) -> None:
    found = all_settings(case.files)
    assert "\n".join(_shown(item, item.spelling) for item in found) == case.parts["all"]
    for item in found:
        if item.value is not None and (item.kind is SettingKind.KEY or item.parameter.startswith("--")):
            if item.kind is SettingKind.SBATCH or "--export" in item.parameter:
                continue
            name = ParameterNames(item.parameter, item.kind, (item.parameter,), flag=item.value == "true")
            own = [file for file in case.files if file.path == item.file]
            (again,) = find_settings(own[0], [name])
            assert again.value in (item.value, item.value.split(" ")[0])


def _shown(item: Setting, name: str) -> str:
    where = f"{item.file}:{item.line} {name}"
    return f"{where} ? {item.unresolved}" if item.value is None else f"{where} = {item.value} ({'; '.join(item.trail)})"


@pytest.mark.parametrize("case", with_part("diff", "text"))
def test_an_edit_changes_exactly_the_lines_of_the_case(case: Case) -> None:
    patch = apply(case.files, case.edits)
    if "text" in case.parts:
        assert patch.files[0].text == case.parts["text"].replace("␍", "\r")
    else:
        changed = [line for line in patch.diff.split("\n") if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        assert "\n".join(line for line in changed if line) == case.parts["diff"].replace("␍", "\r")
    assert invert(patch) == case.files
    again = apply(patch.files, [Edit(e.parameter, e.kind, e.spellings, e.new) for e in case.edits])
    assert (again.splices, again.diff, again.files) == ((), "", patch.files)
    for file in patch.files:
        _readers_accept(file)
    for wanted in case.parts.get("note", "").splitlines():
        assert any(wanted in note for note in patch.notes), patch.notes


@pytest.mark.parametrize("case", with_part("refused"))
def test_a_refusal_says_what_where_and_what_next(case: Case) -> None:
    with pytest.raises(CannotEdit) as caught:
        apply(case.files, case.edits)
    for wanted in case.parts["refused"].splitlines():
        assert wanted in f"{caught.value.what} @ {caught.value.where}"
    assert caught.value.what and caught.value.where


def test_every_case_checks_something() -> None:
    assert len(ALL) >= 60
    assert sum("refused" in case.parts for case in ALL) >= 15
    checked = {"settings", "diff", "text", "refused", "all", "together"}
    assert not [case.title for case in ALL if not checked & set(case.parts)]


def _readers_accept(file: TemplateFile) -> None:
    """The real readers of each language take the changed file."""
    if file.path.endswith(".json") and "//" not in file.text:
        json.loads(file.text)
    elif file.path.endswith(".toml"):
        tomllib.loads(file.text)
    elif file.path.endswith(".py"):
        ast.parse(file.text)
    elif file.path.endswith((".yaml", ".yml")) and "!" not in file.text:
        reader = YAML(typ="safe", pure=True)
        reader.allow_duplicate_keys = True  # as PyYAML, which most programs read with
        list(reader.load_all(io.StringIO(file.text)))
