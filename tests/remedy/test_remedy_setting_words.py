"""Conditions on settings beside one another: one of several, a larger one, a file that wins, memory held back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory, MemoryFields, ProcessUse
from runbook.model.template import Setting, SettingKind, TemplateFile, Unresolved
from runbook.model.units import GIB, Bytes, JobId, UserName
from runbook.remedy import CONSTRAINTS, FUNCTIONS, LeverContext, LeverDocument, refusal_of, template_settings
from runbook.remedy.constraints.setting_values import off
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import Kind

NAMES = (
    "kl", "teacher", "budget", "own_budget", "config", "file_budget", "context", "prompt", "answer", "degree", "micro",
)
SYSTEM = LeverDocument.model_validate({
    "version": 1, "id": "toy", "title": "toy", "why": "for tests", "source": "here",
    "marks": [{"pattern": "toy"}],
    "parameters": [{"id": name, "spellings": [f"--{name}"], "source": "here"} for name in NAMES],
    "levers": [], "ladders": [], "checkpoint": {"source": "here"},
})
JOB = JobRecord(
    JobId("1"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=1, gpus_per_node=8,
    work_dir="/", command="run.sh",
)


def context(fields: MemoryFields | None = None, **values: str) -> LeverContext:
    settings = tuple(
        Setting(name, SettingKind.ARGUMENT, f"--{name}", value, "run.sh") for name, value in values.items()
    )
    story = LogStory(Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", fields=fields or MemoryFields()))
    return LeverContext(template_settings(SYSTEM, settings), story, JOB)


def _with_files(made: LeverContext, *paths: str) -> LeverContext:
    files = tuple(TemplateFile(path, "") for path in paths)
    return replace(made, template=replace(made.template, templates=files))


def why(name: str, made: LeverContext, **arguments: Any) -> str:
    outcome = refusal_of(lambda: CONSTRAINTS[name](made, arguments))
    return in_words(outcome.why) if outcome is not None else ""


@pytest.mark.parametrize("text", ["0", "0.0", "0.00", "false", "False", "None", "null", ""])
def test_words_for_no(text: str) -> None:
    assert off(text)


@pytest.mark.parametrize("text", ["0.001", "1", "true", "10", "low_var_kl"])
def test_words_for_yes(text: str) -> None:
    assert not off(text)


def test_one_of_several_in_force() -> None:
    rule = {"parameters": ("kl", "teacher"), "why": "there is no reference"}
    assert "none of --kl, --teacher is set, so there is no reference" in why("any_in_force", context(), **rule)
    assert why("any_in_force", context(kl="0.00"), **rule)
    assert not why("any_in_force", context(teacher="/models/t"), **rule)


def test_a_coefficient_of_zero_is_not_in_force() -> None:
    assert not why("not_set", context(kl="0.0"), parameters=("kl",))
    assert why("not_set", context(kl="0.01"), parameters=("kl",))


def test_a_number_above_another() -> None:
    rule = {"parameter": "own_budget", "other": "budget", "why": "lowering it alone helps nobody"}
    assert not why("larger_than", context(own_budget="30720", budget="10240"), **rule)
    assert why("larger_than", context(own_budget="10240", budget="10240"), **rule)
    assert why("larger_than", context(budget="10240"), **rule)


def test_what_is_seen_in_the_template() -> None:
    rule: dict[str, Any] = {"parameter": "kl", "values": ("bad:True",)}
    assert "is not in the template" in why("stands_as", context(), **rule)
    assert why("stands_as", context(kl="bad:False"), **rule) == "--kl is bad:False"
    assert not why("stands_as", context(kl="bad:True"), **rule)
    setting = Setting("kl", SettingKind.ARGUMENT, "--kl", None, unresolved=Unresolved("a function"))
    unknown = LeverContext(template_settings(SYSTEM, (setting,)), LogStory(None), JOB)
    outcome = refusal_of(lambda: CONSTRAINTS["stands_as"](unknown, rule))
    assert outcome is not None
    assert in_words(outcome.why) == "--kl is not known: a function"
    assert not outcome.question


def test_a_file_that_wins_over_the_command_line() -> None:
    rule = {"config": "config", "keys": ("file_budget",)}
    assert not why("not_overridden", context(budget="4096"), **rule)
    given = context(config="conf/own.yaml")
    assert "what --config conf/own.yaml sets is not known" in why("not_overridden", given, **rule)
    assert not why("not_overridden", _with_files(given, "run.sh", "/proj/ada/conf/own.yaml"), **rule)
    inside = _with_files(context(config="conf/own.yaml", file_budget="8192"), "run.sh", "conf/own.yaml")
    assert "wins over the command line" in why("not_overridden", inside, **rule)


@pytest.mark.parametrize(("free", "tried", "held"), [(3, 2, True), (2, 2, True), (1, 2, False), (None, 2, False)])
def test_memory_that_was_free_and_not_given(free: int | None, tried: int, held: bool) -> None:
    fields = MemoryFields(
        free_bytes=Bytes(free * GIB) if free is not None else None, tried_bytes=Bytes(tried * GIB)
    )
    assert (not why("free_held_the_request", context(fields))) is held


@pytest.mark.parametrize(
    ("capacity", "free", "own", "others", "words"),
    [
        (80, 1, 50, None, ""),
        (80, 1, 75, None, "other processes hold 4.0 GiB"),
        (80, None, None, 8, ""),
        (80, None, None, 7, "other processes hold 7.0 GiB"),
        (80, 1, None, None, "is not in the log"),
        (None, 1, 50, None, "is not in the log"),
    ],
)
def test_what_others_hold(
    capacity: int | None, free: int | None, own: int | None, others: int | None, words: str
) -> None:
    sizes = [Bytes(item * GIB) if item is not None else None for item in (capacity, free, own, others)]
    named = (ProcessUse(7, sizes[3]),) if others is not None else ()
    fields = MemoryFields(
        capacity_bytes=sizes[0], free_bytes=sizes[1], process_bytes=sizes[2], other_processes=named
    )
    said = why("others_hold", context(fields), percent=10)
    assert words in said if words else not said


@pytest.mark.parametrize(
    ("values", "new"),
    [
        ({"context": "8192", "budget": "20480"}, "10240"),
        ({"context": "8192", "budget": "10240"}, "8192"),
        ({"context": "8192", "budget": "10240", "degree": "2"}, "5120"),
        ({"prompt": "1024", "answer": "3072", "budget": "6000"}, "4096"),
        ({"context": "6000", "prompt": "1024", "answer": "3072", "budget": "8192"}, "6000"),
    ],
)
def test_a_budget_by_the_whole_sequence_or_its_parts(values: dict[str, str], new: str) -> None:
    rule: dict[str, Any] = {"sequence": "context", "longest": ("prompt", "answer"), "degree": "degree"}
    outcome = FUNCTIONS["lower_budget"](context(None, **values), SYSTEM.parameter("budget"), rule)
    assert outcome.edits[0].new == new


def test_a_budget_against_a_micro_batch_that_several_ranks_share() -> None:
    rule = {"budget": "budget", "micro": "micro", "sequence": "context", "longest": (), "degree": "degree"}
    assert not why("budget_below_batch", context(budget="8192", micro="4", context="4096"), **rule)
    assert why("budget_below_batch", context(budget="8192", micro="4", context="4096", degree="2"), **rule)
