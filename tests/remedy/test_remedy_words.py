"""Conditions on words (versions, engines, frames, places), defaults by version, edits that follow another setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory
from runbook.model.template import Setting, SettingKind, TemplateFile, Unresolved
from runbook.model.units import JobId, UserName
from runbook.remedy import (
    CONSTRAINTS,
    FUNCTIONS,
    Configuration,
    LeverContext,
    LeverDocument,
    Refusal,
    Refused,
    defaults_hold,
    load_levers,
    refusal_of,
    template_settings,
)
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import Kind

PARAMETERS: dict[str, dict[str, Any]] = {
    "strategy": {"default": "fsdp"}, "group": {}, "config": {}, "backend": {}, "micro": {}, "mini": {}, "budget": {},
    "own_budget": {}, "prompt": {}, "answer": {}, "degree": {"default": "1"},
    "eager": {"default": "false", "defaults": [{"value": "true", "since": "1", "until": "1"}]},
}
SYSTEM = LeverDocument.model_validate({
    "version": 1, "id": "toy", "title": "toy", "why": "for tests", "source": "here",
    "marks": [{"pattern": "toy"}],
    "versions": [
        {"id": "3", "title": "third", "marks": ["new_word", r"toy==3"], "source": "here"},
        {"id": "2", "title": "second", "marks": ["new_word", r"toy==2"], "source": "here"},
        {"id": "1", "title": "first", "marks": [r"toy==1"], "source": "here"},
    ],
    "parameters": [
        {"id": name, "kind": "key", "spellings": [f"a.{name}"], "source": "here", **more}
        for name, more in PARAMETERS.items()
    ],
    "levers": [], "ladders": [], "checkpoint": {"source": "here"},
})


def context(text: str = "", *, nodes: int = 2, frames: tuple[str, ...] = (), **values: str) -> LeverContext:
    settings = tuple(Setting(name, SettingKind.KEY, f"a.{name}", value) for name, value in values.items())
    job = JobRecord(
        JobId("1"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=nodes,
        gpus_per_node=8, work_dir="/", command="run.sh",
    )
    story = LogStory(Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", frames=frames))
    return LeverContext(template_settings(SYSTEM, settings, (TemplateFile("run.sh", text),)), story, job)


def check(name: str, made: LeverContext, **arguments: Any) -> Refusal | None:
    return refusal_of(lambda: CONSTRAINTS[name](made, arguments))


def edit(name: str, made: LeverContext, parameter: str, **arguments: Any) -> str | None | Refusal:
    try:
        return FUNCTIONS[name](made, SYSTEM.parameter(parameter), arguments).edits[0].new
    except Refused as refused:
        return refused.refusal


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["3", "2", "1"]), ("new_word", ["3", "2"]), ("new_word\npip install toy==2", ["2"]),
        ("# toy==1", ["3", "2", "1"]), ("toy==1\nnew_word", []),
    ],
)
def test_every_mark_that_is_there_narrows_the_versions(text: str, wanted: list[str]) -> None:
    assert [item.id for item in context(text).template.releases] == wanted


def test_a_lever_of_some_releases() -> None:
    why = "it is not read before 2"
    assert check("in_release", context("new_word"), versions=("3", "2"), why=why) is None
    older = check("in_release", context("toy==1"), versions=("3", "2"), why=why)
    assert older is not None and in_words(older.why) == "it is not read before 2, and this is toy 1"
    assert not older.question
    unknown = check("in_release", context(), versions=("3", "2"), why=why)
    assert unknown is not None and in_words(unknown.question) == "Which version of toy is installed (3, 2, 1)?"


def test_a_default_that_changed_is_known_where_the_version_is() -> None:
    assert context("toy==1").template.text("eager") == "true"
    assert context("toy==3").template.text("eager") == "false"
    assert context("new_word").template.text("eager") == "false"
    assert context().template.text("eager") is None
    assert context(eager="true").template.text("eager") == "true"


def chosen(made: LeverContext) -> Refusal | None:
    return check(
        "chosen", made, parameter="strategy", values=("fsdp", "fsdp2"), by=("group", "config"),
        names=("dp", "plain"), others=("mega",),
    )


def test_the_engine_that_a_configuration_chooses() -> None:
    assert chosen(context()) is None
    assert chosen(context(strategy="fsdp2", group="mega")) is None
    assert chosen(context(group="dp", config="mega")) is None
    assert chosen(context(config="conf/plain.yaml")) is None
    for made in (context(strategy="mega"), context(group="mega", config="plain")):
        refusal = chosen(made)
        assert refusal is not None and not refusal.question
    other = chosen(context(config="mine"))
    assert other is not None and in_words(other.question) == "Does a.config mine have a.strategy fsdp or fsdp2?"


def test_the_first_of_several_spellings_of_a_place_decides() -> None:
    arguments: dict[str, Any] = {"parameters": ("backend", "strategy"), "pattern": "^sg", "means": "SG"}
    assert check("text_matches", context(backend="sg:d4"), **arguments) is None
    assert check("text_matches", context(strategy="sg:d4"), **arguments) is None
    assert check("text_matches", context(backend="null", strategy="sg:d4"), **arguments) is None
    other = check("text_matches", context(backend="vl:d4", strategy="sg:d4"), **arguments)
    assert other is not None and not other.question
    absent = check("text_matches", context(), **arguments)
    assert absent is not None and in_words(absent.question) == "Is a.backend SG?"


def test_what_the_traceback_shows() -> None:
    arguments = {"pattern": "^entropy", "means": "the entropy"}
    assert check("frames_show", context(frames=("update", "entropy_of")), **arguments) is None
    assert check("frames_show", context(frames=("update", "no_entropy")), **arguments) is not None
    assert check("frames_show", context(), **arguments) is not None


def test_what_is_certain_on_one_node_is_asked_on_several() -> None:
    assert check("on_one_node", context(nodes=1), question="Is it shared?") is None
    several = check("on_one_node", context(nodes=2), question="Is it shared?")
    assert several is not None and in_words(several.why) == "the job has 2 nodes"
    assert in_words(several.question) == "Is it shared?"


def test_a_size_over_all_ranks_gives_each_a_whole_part() -> None:
    arguments = {"parameters": ("micro", "degree")}
    assert check("whole_per_rank", context(micro="32"), **arguments) is None
    assert check("whole_per_rank", context(micro="8", degree="2"), **arguments) is None
    assert check("whole_per_rank", context(micro="24"), **arguments) is not None
    assert check("whole_per_rank", context(micro="8"), **arguments) is not None


def test_a_budget_in_place_of_a_micro_batch_takes_less() -> None:
    arguments = {"budget": "budget", "micro": "micro", "longest": ("prompt", "answer")}
    less = context(budget="8000", micro="4", prompt="1000", answer="3000")
    assert check("budget_below_batch", less, **arguments) is None
    same = context(budget="8000", micro="2", prompt="1000", answer="3000")
    assert check("budget_below_batch", same, **arguments) is not None
    assert check("budget_below_batch", context(budget="8000", prompt="1", answer="3"), **arguments) is not None


def test_a_setting_that_follows_another_until_it_is_set() -> None:
    like: dict[str, Any] = {"longest": ("prompt",), "like": "budget"}
    assert edit("lower_budget", context(budget="8000", prompt="1000"), "own_budget", **like) == "4000"
    own = context(budget="8000", own_budget="6000", prompt="1000")
    assert edit("lower_budget", own, "own_budget", **like) == "3000"
    assert isinstance(edit("lower_budget", context(prompt="1000"), "own_budget", **like), Refusal)
    assert edit("halve_number", context(micro="8"), "mini", like="micro") == "4"
    same: dict[str, Any] = {"parameter": "config", "values": ("x",), "like": "group"}
    assert check("value_is", context(group="x"), **same) is None
    assert check("value_is", context(group="x", config="y"), **same) is not None


@pytest.mark.parametrize(
    ("text", "part", "new"),
    [
        ("sglang:d4", "(?:sglang|vllm):", "sglang:d2t2"),
        ("sglang:d4p1t1+d4p1t1", "(?:sglang|vllm):", "sglang:d2p1t2+d4p1t1"),
        ("sglang:d4p1t1+d4p1t1", "(?:fsdp:)?", "sglang:d4p1t1+d2p1t2"),
        ("sglang:d8+fsdp:d4t2", "(?:fsdp:)?", "sglang:d8+fsdp:d2t4"),
    ],
)
def test_half_of_one_degree_moves_to_another(text: str, part: str, new: str) -> None:
    assert edit("move_parallelism", context(backend=text), "backend", part=part, give="d", take="t") == new


@pytest.mark.parametrize("text", ["sglang:d1", "sglang:(attn:d4|ffn:e4)", "vllm", "d4"])
def test_degrees_that_cannot_be_moved(text: str) -> None:
    made = context(backend=text)
    assert isinstance(edit("move_parallelism", made, "backend", part="sglang:", give="d", take="t"), Refusal)


@pytest.mark.parametrize(
    ("named", "file", "trail", "holds"),
    [
        (None, "run.sh", (), True), ("plain", "run.sh", (), True), ("conf/plain.yaml", "run.sh", (), True),
        ("/proj/mine.yaml", "run.sh", (), False), ("/proj/mine.yaml", "mine.yaml", (), True),
        ("mine", "/proj/mine.yml", (), True), ("mine", "run.sh", ("wins over /proj/mine.yaml:3 (4)",), True),
        ("mine", "other.yaml", (), False),
    ],
)
def test_defaults_hold_only_where_the_configuration_is_known(
    named: str | None, file: str, trail: tuple[str, ...], holds: bool
) -> None:
    system = SYSTEM.model_copy(update={"configuration": Configuration(parameter="config", own=("plain",))})
    settings = [Setting("micro", SettingKind.KEY, "a.micro", "4", file, 2, trail)]
    if named is not None:
        settings.append(Setting("config", SettingKind.KEY, "a.config", named, "run.sh", 1))
    assert defaults_hold(system, settings) is holds
    branch = Unresolved("a branch decides")
    settings.append(Setting("config", SettingKind.KEY, "a.config", None, "run.sh", 1, (), branch))
    assert not defaults_hold(system, settings)


@pytest.mark.parametrize("said", [
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 7.81 GiB.",
    "try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
])
def test_the_allocators_variable_for_cuda_is_not_added_on_rocm(said: str) -> None:
    levers = load_levers(data_folder("playbooks") / "oom" / "levers")
    system = next(item for item in levers if item.id == "pytorch")
    story = LogStory(Finding("PT-HIP-01", Kind.TRUE_OOM, "log", 0, 1, said))
    made = LeverContext(template_settings(system, ()), story, context().job)
    options = {"newer": "allocator_newer", "option": "expandable_segments", "value": "True"}
    with pytest.raises(Refused) as refused:
        FUNCTIONS["merge_allocator"](made, system.parameter("allocator_cuda"), options)
    assert "PYTORCH_HIP_ALLOC_CONF" in in_words(refused.value.refusal.question)
    there = Setting("allocator_cuda", SettingKind.ENVIRONMENT, "PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:512")
    named = replace(made, template=template_settings(system, (there,)))
    edited = FUNCTIONS["merge_allocator"](named, system.parameter("allocator_cuda"), options)
    assert edited.edits[0].spellings[0] == "PYTORCH_HIP_ALLOC_CONF"
