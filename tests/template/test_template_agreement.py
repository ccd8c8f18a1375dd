"""Awkward scripts: whatever we say of one, the real bash agrees, before and after a change. Silence is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.model.template import Edit, SettingKind, TemplateFile
from runbook.template import CannotEdit, apply, find_settings
from tests.template import shell_run as shell
from tests.template import template_cases as cases

SCRIPTS = (Path(__file__).parent / "agreement.txt").read_text(encoding="utf-8").split("#####\n")[1:]
WATCHED = [cases.BY_ID[name] for name in ("micro_batch_size", "seq_length", "save", "alloc")]
EDITS = (
    Edit("micro_batch_size", SettingKind.ARGUMENT, ("--micro-batch-size",), "77"),
    Edit("alloc", SettingKind.ENVIRONMENT, ("PYTORCH_CUDA_ALLOC_CONF",), "z:9"),
)


def _run(text: str, folder: Path) -> list[dict[str, str | None]]:
    export = next((line.split("=", 1)[1] for line in text.split("\n") if line.startswith("#SBATCH --export=")), None)
    started = shell.run_script(text, folder, {"HOME": "/home/ada"}, (), export)
    programs = [item for item in started if any(word.endswith("train.py") for word in item.argv)]
    return [
        {
            name.parameter: item.allocator if name.kind is SettingKind.ENVIRONMENT else item.value(name.spellings)
            for name in WATCHED
        }
        for item in programs
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.strip().replace("\n", "; ")[:70])
def test_bash_agrees(script: str, tmp_path: Path) -> None:
    file = TemplateFile("job.sh", f"#!/bin/bash\n{script}")
    before = _run(file.text, tmp_path)
    assert before, "the script starts no training"
    found = {item.parameter: item for item in find_settings(file, cases.NAMES)}
    for name in WATCHED:
        real = {item[name.parameter] for item in before}
        setting = found.get(name.parameter)
        if setting is None:
            assert real == {None}, f"{name.parameter} was said to be absent"
        elif setting.value is not None:
            assert real == {setting.value}, name.parameter
    for edit in EDITS:
        try:
            patch = apply((file,), (edit,), names=cases.NAMES)
        except CannotEdit:
            continue
        after = _run(patch.files[0].text, tmp_path)
        assert after == [{**item, edit.parameter: edit.new} for item in before], edit.parameter


def test_most_of_them_can_be_changed() -> None:
    """Silence is allowed, but not as a way out: these are scripts that people write."""
    changed = 0
    for script in SCRIPTS:
        try:
            apply((TemplateFile("job.sh", f"#!/bin/bash\n{script}"),), EDITS[:1], names=cases.NAMES)
            changed += 1
        except CannotEdit:
            pass
    assert changed >= len(SCRIPTS) * 0.5
