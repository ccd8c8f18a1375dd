"""Each launch template: the system is known, the values in force are found, the right lever is written, to the byte."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest

from runbook.locations import data_folder
from runbook.model.remedy import NoPlan, Plan
from runbook.model.template import Patch, Setting
from runbook.remedy import (
    LeverContext,
    LeverDocument,
    load_levers,
    propose,
    recognise,
    template_settings,
    with_unresolved_batch,
)
from runbook.report.vocabulary.sentences import in_words
from runbook.template import all_settings, apply, invert, settings_in_force
from tests.levers.lever_cases import LeverCase, load_cases

DOCUMENTS = load_levers(data_folder("playbooks") / "oom" / "levers")
ALL = load_cases()
SYSTEMS = {
    "relax", "slime", "areal", "verl", "pytorch", "torchtitan", "deepspeed", "megatron", "huggingface", "openrlhf",
}


def system_of(case: LeverCase) -> LeverDocument:
    system = recognise(case.files, case.story, DOCUMENTS)
    assert system is not None, "no system was recognised"
    return system


def settings_of(case: LeverCase, system: LeverDocument) -> tuple[Setting, ...]:
    found = settings_in_force(case.files, system.parameter_names(), case.surroundings)
    return with_unresolved_batch(found, all_settings(case.files, case.surroundings), system)


def proposed(case: LeverCase) -> Plan | NoPlan:
    system = system_of(case)
    template = template_settings(system, settings_of(case, system), case.files)
    return propose(
        LeverContext(template, case.story, case.job, case.diagnosis, case.checkpoints),
        tried=dict.fromkeys(case.failure.get("used", "").split("\n"), "tried already in this incident"),
        allow_training_change=case.failure.get("consent") == "yes",
    )


def patched(case: LeverCase, plan: Plan) -> Patch:
    return apply(case.files, plan.edits, names=system_of(case).parameter_names(), known=case.surroundings)


def with_part(*names: str) -> list[object]:
    return [pytest.param(case, id=case.title) for case in ALL if set(names) & set(case.parts)]


@pytest.mark.parametrize("case", with_part("settings"))
def test_the_values_in_force(case: LeverCase) -> None:
    system = system_of(case)
    found = {item.parameter: item for item in settings_of(case, system)}
    for line in case.parts["settings"].splitlines():
        matched = re.fullmatch(r"(\w+)(?: = (.*?)(?: @ (\d+))?| \? (.*)| (!))", line.strip())
        assert matched, f"{line!r} is no line of settings"
        parameter, value, number, unresolved, absent = matched.groups()
        system.parameter(parameter)
        if absent:
            assert parameter not in found
            continue
        setting = found[parameter]
        if unresolved:
            assert setting.value is None
            assert unresolved in str(setting.unresolved)
            continue
        assert setting.value == value, setting.unresolved
        if number:
            assert setting.line == int(number)


@pytest.mark.parametrize("case", with_part("plan"))
def test_the_lever(case: LeverCase) -> None:
    system, outcome = system_of(case), proposed(case)
    assert isinstance(outcome, Plan), outcome
    edits = {edit.parameter: (edit.old or "-", edit.new or "-") for edit in outcome.edits}
    wanted: dict[str, tuple[str, str]] = {}
    for key, value in case.lines("plan"):
        if key == "system":
            assert system.id == value
        elif key == "version":
            template = template_settings(system, settings_of(case, system), case.files)
            assert [item.id for item in template.releases] == value.split()
        elif key == "ladder":
            assert outcome.ladder == value
        elif key == "lever":
            assert [use.lever for use in outcome.uses] == [value], outcome.refused
        elif key == "also":
            assert value in " ".join(in_words(use.expectation) for use in outcome.uses)
        else:
            old, _, new = value.partition(" -> ")
            wanted[key] = (old, new)
    if wanted:
        assert edits == wanted
    assert "lever" in dict(case.lines("plan")) or not outcome.uses


@pytest.mark.parametrize("case", with_part("diff"))
def test_the_text(case: LeverCase) -> None:
    outcome = proposed(case)
    assert isinstance(outcome, Plan), outcome
    patch = patched(case, outcome)
    changed = [
        line for line in patch.diff.splitlines() if re.match(r"[-+](?!\+\+ |-- )", line) or line in ("+++", "---")
    ]
    assert changed == case.parts["diff"].splitlines()
    assert invert(patch) == case.files
    again = apply(patch.files, outcome.edits, names=system_of(case).parameter_names(), known=case.surroundings)
    assert not again.diff, "a second application changes something"
    after_it = LeverCase(case.title, patch.files, case.parts)
    found = {item.parameter: item for item in settings_of(after_it, system_of(case))}
    for edit in outcome.edits:
        after = found.get(edit.parameter)
        assert (after.value if after is not None else None) == edit.new
    for file in patch.files:
        if file.path.endswith((".sh", ".sbatch", ".slurm")):
            done = subprocess.run(["bash", "-n"], input=file.text, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", with_part("refused"))
def test_the_refusal(case: LeverCase) -> None:
    outcome = proposed(case)
    reasons = {item.lever: in_words(item.why) for item in outcome.refused}
    for key, words in case.lines("refused"):
        if key == "no plan":
            assert isinstance(outcome, NoPlan), outcome
            assert words in in_words(outcome.why)
        elif key == "question":
            asked = [in_words(item.question) for item in outcome.refused]
            assert words in " ".join([*asked, in_words(outcome.question) if isinstance(outcome, NoPlan) else ""])
        else:
            assert key in reasons, f"{key} was not refused: {outcome}"
            assert words in reasons[key]


def test_the_suite_has_what_it_should() -> None:
    titles = Counter(case.title for case in ALL)
    by_system = Counter(case.system_file.split("_")[0] for case in ALL)
    assert all(by_system[system] >= 8 for system in SYSTEMS), by_system
    assert len(ALL) >= 400
    assert sum(len(case.lines("refused")) for case in ALL) >= 250
    assert {document.id for document in DOCUMENTS} >= SYSTEMS
    assert not [title for title, count in titles.items() if count > 1]
    for case in ALL:
        assert {"plan", "refused"} & set(case.parts), f"{case.title} says neither what comes nor why nothing does"
