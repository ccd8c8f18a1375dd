"""Case files: a diagnosis and the values in force → the next lever with its values, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.locations import data_folder
from runbook.model import diagnosis
from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory, MemoryFields, Phase
from runbook.model.remedy import AnswerKind, Answers, NoPlan, Plan
from runbook.model.template import Setting, SettingKind, Unresolved
from runbook.model.units import GIB, Bytes, JobId, UserName
from runbook.remedy import (
    LeverContext,
    LeverDocument,
    OwnProgram,
    in_place_of,
    load_levers,
    propose,
    template_settings,
)
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import KINDS, Kind

DOCUMENTS = {item.id: item for item in load_levers(data_folder("playbooks") / "oom" / "levers")}
FILE: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parent / "proposals.yaml")
CASES: list[dict[str, Any]] = FILE["cases"]


def _settings(case: dict[str, Any], system: LeverDocument) -> tuple[Setting, ...]:
    values = case["only"] if "only" in case else {**FILE["base"], **case.get("settings", {})}
    found = []
    for parameter, value in values.items():
        if value is None:
            continue
        entry = system.parameter(parameter)
        unknown = value == "?"
        found.append(
            Setting(
                parameter, entry.kind, entry.spellings[0], None if unknown else str(value),
                unresolved=Unresolved("the command substitution decides") if unknown else None,
            )
        )
    return tuple(found)


def _bytes(fields: dict[str, float], name: str) -> Bytes | None:
    return Bytes(int(fields[name] * GIB)) if name in fields else None


def _story(case: dict[str, Any]) -> LogStory:
    fields = case.get("fields", {})
    memory = MemoryFields(
        tried_bytes=_bytes(fields, "tried"), capacity_bytes=_bytes(fields, "capacity"),
        free_bytes=_bytes(fields, "free"), reserved_unallocated_bytes=_bytes(fields, "unallocated"),
        private_pool_bytes=_bytes(fields, "private"), reserved_bytes=_bytes(fields, "reserved"),
        allocated_bytes=_bytes(fields, "allocated"),
    )
    phase = Phase(case.get("phase", "forward"))
    cause = Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", phase=phase, fields=memory)
    return LogStory(cause, framework_version=str(case.get("version", "2.6.0")) or None)


def _job(case: dict[str, Any]) -> JobRecord:
    size = {"nodes": 2, "gpus": 4, **case.get("job", {})}
    state = JobState("FAILED", JobClass.FAILED)
    return JobRecord(
        JobId("1"), "c", "n", UserName("ada"), state, num_nodes=size["nodes"], gpus_per_node=size["gpus"]
    )


def proposed(case: dict[str, Any]) -> Plan | NoPlan:
    system = DOCUMENTS[case.get("system", "pytorch")]
    runners = tuple(Hypothesis(KINDS[kind], share) for kind, share in case.get("runners", {}).items())
    best = Hypothesis(
        KINDS[case.get("kind", "true_oom")], 0.6, missing=tuple(case.get("missing", ())),
        detail=Detail(case.get("detail", "")),
    )
    checkpoints = None
    if "checkpoints" in case:
        checkpoints = tuple(Checkpoint("/ckpt/x", complete=True, **item) for item in case["checkpoints"])
    template = template_settings(system, _settings(case, system))
    return propose(
        LeverContext(template, _story(case), _job(case), Diagnosis(best, runners), checkpoints),
        tried=dict.fromkeys(case.get("tried", ()), "tried already in this incident"),
        allow_training_change=case.get("consent", False),
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case["title"]) for case in CASES])
def test_the_next_rung(case: dict[str, Any]) -> None:
    outcome = proposed(case)
    for lever, why in case.get("refused", {}).items():
        assert why in {item.lever: in_words(item.why) for item in outcome.refused}[lever]
    if "no_plan" in case:
        assert isinstance(outcome, NoPlan), outcome
        assert outcome.exhausted is case["no_plan"]["exhausted"], outcome
        assert case["no_plan"]["question"] in in_words(outcome.question)
        assert outcome.why
        return
    wanted = case["plan"]
    assert isinstance(outcome, Plan), outcome
    new = {parameter: None if value is None else str(value) for parameter, value in wanted["set"].items()}
    assert {edit.parameter: edit.new for edit in outcome.edits} == new
    assert outcome.ladder == wanted.get("ladder", outcome.ladder)
    if not outcome.uses:
        assert "lever" not in wanted
        return
    use = outcome.uses[0]
    assert use.lever == wanted["lever"]
    assert use.effect.value == wanted.get("effect", use.effect.value)
    assert use.needs_reshard is wanted.get("needs_reshard", use.lever == "more_sharding")
    assert use.title and use.why and use.source and use.cost
    for words in case.get("says", ()):
        assert words in in_words(use.expectation)


def test_the_file_has_what_it_should() -> None:
    assert len(CASES) >= 40
    assert len({case["title"] for case in CASES}) == len(CASES)


FULL = {
    "verl": {"actor_dynamic": "true", "actor_token_budget": "32768", "engine_share": "0.6"},
    "areal": {
        "actor_tokens": "32768", "prompt_length": "1024", "answer_length": "3072", "sglang_share": "0.9",
        "gradient_checkpointing": "false", "rollout_backend": "sglang:d4", "actor_backend": "fsdp:d4",
    },
    "relax": {"dynamic_batching": "true", "tokens": "32768", "context_length": "4096"},
    "slime": {"dynamic_batching": "true", "tokens": "32768", "context_length": "4096"},
    "huggingface": {"gradient_accumulation_steps": "2", "fsdp_version": "2", "max_length": "4096"},
    "verl_sft": {"dynamic": "true", "token_budget": "32768", "gradient_checkpointing": "false"},
    "openrlhf": {"micro_train_batch_size": "12", "train_batch_size": "192", "max_len": "4096"},
}
"""Settings of a full template, for systems with parameters of their own."""


OWN_OPTIONS = ("--bs", "--grad-accum", "--use_gradient_checkpointing", "--offload_optimizer", "--max_seq_length")


@pytest.mark.parametrize("system", sorted(DOCUMENTS))
@pytest.mark.parametrize("kind", [Kind.TRUE_OOM, Kind.FRAGMENTATION])
def test_a_ladder_ends_and_never_offers_the_same_twice(system: str, kind: diagnosis.Kind) -> None:
    """Take every plan as tried, with the template changed each time, and answer what is asked: the ladder must come to
    its end."""
    document = DOCUMENTS[system]
    values = {"micro_batch_size": "12", "global_batch_size": "192", "seq_length": "1024", "shard_degree": "2"}
    if system in ("pytorch", "deepspeed", "own_program"):
        values["gradient_accumulation_steps"] = "2"
    values |= FULL.get(system, {})
    if document.roles:
        values |= {"activation_checkpointing": "False", "optimizer_offload": "False"}
        del values["global_batch_size"]
        named = [Setting(item, SettingKind.ARGUMENT, item, "1", trail=("train.py at line 1",)) for item in OWN_OPTIONS]
        own = in_place_of(None, [document], OwnProgram((), named, lambda: None, Answers()))
        assert own is not None
        document = own
    tried: dict[str, str] = {}
    case: dict[str, Any] = {"kind": kind}
    answers = Answers()
    for _ in range(30):
        settings = tuple(
            Setting(key, document.parameter(key).kind, document.parameter(key).spellings[0], value)
            for key, value in values.items()
            if any(item.id == key for item in document.parameters)
        )
        template = template_settings(document, settings, answers=answers)
        outcome = propose(
            LeverContext(template, _story(case), _job(case), Diagnosis(Hypothesis(kind, 0.9)), ()), tried=tried,
            allow_training_change=True,
        )
        if isinstance(outcome, NoPlan):
            if outcome.ask is None:
                break
            before, name = answers, outcome.ask.name
            if outcome.ask.kind is AnswerKind.OPTION:
                answers = answers.joined(Answers(options=(name,)))
            elif outcome.ask.kind is AnswerKind.AGREE:
                answers = answers.joined(Answers(agreed=(name,)))
            elif outcome.ask.kind is AnswerKind.VERSION:
                answers = answers.joined(Answers(versions={name: outcome.ask.choices[0]}))
            assert answers != before, outcome
            continue
        assert outcome.uses[0].key not in tried
        tried[outcome.uses[0].key] = "tried already"
        for edit in outcome.edits:
            assert edit.new != edit.old
            if edit.new is None:
                values.pop(edit.parameter)
            else:
                values[edit.parameter] = edit.new
        samples = int(values["micro_batch_size"]) * int(values.get("gradient_accumulation_steps", "0"))
        assert samples in (0, 24), "the global batch changed"
        assert 192 % (int(values["micro_batch_size"]) * 8) == 0
    else:
        pytest.fail("the ladder does not end")
    assert len(tried) >= 4
