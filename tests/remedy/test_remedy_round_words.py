"""Conditions on batches that several settings make up, and the micro-batch of a part of the job's ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.template import Setting, SettingKind, Unresolved, condition_of
from runbook.model.units import JobId, UserName
from runbook.remedy import (
    CONSTRAINTS,
    FUNCTIONS,
    LeverContext,
    LeverDocument,
    Refused,
    TemplateSettings,
    VersionMark,
    refusal_of,
)
from runbook.report.vocabulary.sentences import in_words

NAMES = ("micro", "other", "round", "group", "eval_group", "size", "ranks", "nodes", "gpus", "critic", "batch", "text")
SYSTEM = LeverDocument.model_validate({
    "version": 1, "id": "toy", "title": "toy", "why": "for tests", "source": "here",
    "marks": [{"pattern": "toy"}],
    "versions": [{"id": "new", "title": "new", "source": "here"}, {"id": "old", "title": "old", "source": "here"}],
    "parameters": [{"id": name, "spellings": [f"--{name}"], "source": "here"} for name in NAMES],
    "levers": [], "ladders": [], "checkpoint": {"source": "here"},
})
JOB = JobRecord(
    JobId("1"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=1, gpus_per_node=8,
    work_dir="/", command="run.sh",
)
NEW, OLD = SYSTEM.versions


def context(job: JobRecord = JOB, releases: tuple[VersionMark, ...] = (NEW, OLD), **values: str | None) -> LeverContext:
    settings = tuple(
        Setting(
            name, SettingKind.ARGUMENT, f"--{name}", value, "run.sh",
            unresolved=None if value else Unresolved("a command"),
        )
        for name, value in values.items()
    )
    return LeverContext(TemplateSettings(SYSTEM, settings, releases), LogStory(None), job)


def why(name: str, made: LeverContext, **arguments: Any) -> str:
    outcome = refusal_of(lambda: CONSTRAINTS[name](made, arguments))
    return f"{in_words(outcome.why)} / {in_words(outcome.question)}" if outcome is not None else ""


def test_numbers_of_two_files_agree_or_follow() -> None:
    rule = {"parameters": ("micro", "other")}
    assert not why("alike_or_auto", context(micro="8", other="auto"), **rule)
    assert not why("alike_or_auto", context(micro="8", other="8"), **rule)
    assert not why("alike_or_auto", context(micro="8"), **rule)
    assert "--micro 8, --other 4" in why("alike_or_auto", context(micro="8", other="4"), **rule)
    assert "--other is not known" in why("alike_or_auto", context(micro="8", other=None), **rule)


def test_a_round_is_whole_micro_batches() -> None:
    rule = {"total": "round", "micro": "micro", "ranks": "ranks"}
    assert not why("whole_rounds", context(micro="4"), **rule)
    assert not why("whole_rounds", context(micro="4", round="64"), **rule)
    assert "no multiple of 4 × 8 ranks" in why("whole_rounds", context(micro="4", round="40"), **rule)
    assert not why("whole_rounds", context(micro="4", round="40", ranks="2"), **rule)
    unknown = replace(JOB, num_nodes=None, gpus_per_node=None)
    assert "a multiple of 4 × the ranks" in why("whole_rounds", context(unknown, micro="4", round="40"), **rule)


def test_a_batch_of_whole_groups() -> None:
    rule = {"size": "size", "groups": ("eval_group", "group")}
    assert not why("whole_groups", context(size="1"), **rule)
    assert not why("whole_groups", context(size="1", group="8"), **rule)
    both = context(size="1", group="8", eval_group="16")
    assert "no multiple of --eval_group 16" in why("whole_groups", both, **rule)


@pytest.mark.parametrize(
    ("checkpoints", "releases", "wanted"),
    [((), (OLD,), ""), (None, (NEW,), ""), (None, (OLD,), "it does so, and this is toy old"),
     (None, (NEW, OLD), "does not show in the template")],
)
def test_a_version_that_counts_only_where_the_job_resumes(
    checkpoints: tuple[()] | None, releases: tuple[VersionMark, ...], wanted: str
) -> None:
    made = replace(context(releases=releases), checkpoints=checkpoints)
    said = why("in_release_when_resumed", made, versions=("new",), why="it does so", question="Which one?")
    assert wanted in said
    assert bool(said) is bool(wanted)
    assert not said or said.endswith("Which one?")


def test_a_text_that_must_not_be_there() -> None:
    rule = {"parameters": ("text",), "pattern": "segments:True", "why": "they exclude each other"}
    assert not why("text_lacks", context(), **rule)
    assert not why("text_lacks", context(text="segments:False"), **rule)
    assert "exclude each other" in why("text_lacks", context(text="segments:True"), **rule)


def halved(made: LeverContext, **arguments: Any) -> str:
    try:
        return str(FUNCTIONS["halve_dividing"](made, SYSTEM.parameter("micro"), arguments).edits[0].new)
    except Refused as refused:
        return in_words(refused.refusal.why)


def test_the_micro_batch_of_a_part_of_the_ranks() -> None:
    ray = {"whole": ("batch",), "ranks": ("nodes", "gpus"), "also": ("critic",)}
    assert halved(context(micro="8", batch="128", nodes="1", gpus="4"), **ray) == "4"
    assert halved(context(micro="6", batch="72", nodes="1", gpus="4"), **ray) == "3"
    assert "no multiple of micro-batch 8 × 3 ranks" in halved(
        context(micro="8", batch="128", nodes="1", gpus="3"), **ray
    )
    assert "no multiple of micro-batch 8 × 3 ranks" in halved(
        context(micro="8", batch="128", nodes="1", gpus="4", critic="3"), **ray
    )
    assert "--gpus is not in the template" in halved(context(micro="8", batch="128", nodes="1"), **ray)
    assert halved(context(micro="8", batch="128"), whole=("batch",)) == "4"
    assert "as small as it gets" in halved(context(micro="1", batch="128"), whole=("batch",))
    unknown = replace(JOB, num_nodes=None, gpus_per_node=None)
    assert halved(context(unknown, micro="8", batch="128"), whole=("batch",)) == "4"
    assert "ranks is not known" in halved(context(unknown, micro="9", batch="144"), whole=("batch",))


def test_a_spelling_and_the_files_in_which_it_holds() -> None:
    assert condition_of("a.b") == ("a.b", "", ())
    assert condition_of("a beside b|c") == ("a", "beside", ("b", "c"))
    assert condition_of("a key") == ("a key", "", ())
