"""The settings that we read are those that bash gives the program, before and after every edit of the case files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runbook.model.template import SettingKind, TemplateFile
from runbook.template import apply, find_settings
from tests.template import shell_run as shell
from tests.template import template_cases as cases

NOT_RUN = re.compile(r"docker|mpirun|preprocessing|bash -lc")
"""No stand-in here, a second program on purpose, a login shell that loses the stand-ins."""


def _runnable(*parts: str) -> list[Any]:
    return [item for part in parts for item in cases.with_part(part) if not NOT_RUN.search(item.id)]


def _started(case: Any, text: str, folder: Path) -> list[Any]:
    known = case.known
    environment = known.environment if known and known.environment else {}
    arguments = known.arguments if known and known.arguments else ()
    header = re.search(r"^#SBATCH --export=(\S+)", text, re.MULTILINE)
    return list(shell.run_script(text, folder, environment, arguments, header[1] if header else None))


def _value(started: list[Any], name: Any) -> set[str | None]:
    """What the programs get; those that do not train (no other known option) do not count when others do."""
    if name.kind is SettingKind.ENVIRONMENT:
        return {item.allocator for item in started}
    values = {item.value(name.spellings) for item in started}
    return values - {None} or values


@pytest.mark.parametrize("case", _runnable("settings"))
def test_what_we_read_is_what_the_program_gets(case: Any, tmp_path: Path) -> None:
    started = _started(case, case.file.text, tmp_path)
    for setting in find_settings(case.file, cases.NAMES, case.known):
        if setting.value is not None and setting.kind is not SettingKind.SBATCH:
            name = cases.BY_ID[setting.parameter]
            got = _value(started, name)
            if not name.flag:
                assert got == {setting.value}, setting


@pytest.mark.parametrize("case", _runnable("diff", "text"))
def test_the_program_gets_the_new_value(case: Any, tmp_path: Path) -> None:
    names = () if "without names" in case.parts else cases.NAMES
    patch = apply((case.file,), case.edits, names=names, known=case.known)
    before = _started(case, case.file.text, tmp_path)
    after = _started(case, patch.files[0].text, tmp_path)
    assert len(before) == len(after) > 0
    for edit in case.edits:
        if edit.kind is SettingKind.SBATCH:
            continue
        got = _value(after, cases.BY_ID[edit.parameter])
        if edit.flag:
            assert all((edit.spellings[0] in item.argv) is (edit.new == "true") for item in after)
        else:
            assert got == {edit.new}, edit
    changed = {edit.parameter for edit in case.edits}
    for name in cases.NAMES:
        if name.parameter not in changed and name.kind is not SettingKind.SBATCH and not name.flag:
            assert _value(before, name) == _value(after, name), f"{name.parameter} changed too"


def test_a_script_that_is_not_changed_is_the_same_object() -> None:
    file = TemplateFile("job.sh", "#!/bin/bash\nsrun python train.py --micro-batch-size 4\n")
    assert apply((file,), ()).files == (file,)
