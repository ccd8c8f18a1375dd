"""Fewer nodes, going on from a checkpoint, the limits of an incident, and which system a job runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runbook.locations import data_folder
from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.remedy import NoPlan, Plan
from runbook.model.template import ParameterNames, Setting, TemplateFile, Unresolved
from runbook.model.units import JobId, NodeName, UserName
from runbook.remedy import (
    LeverContext,
    LeverDocument,
    drain_refused,
    fit_to_nodes,
    load_levers,
    propose,
    recognise,
    relaunch_refused,
    resume_edits,
    template_settings,
)
from runbook.report.vocabulary.sentences import in_words
from runbook.template import apply, find_settings
from tests.kinds import Kind

ALL = load_levers(data_folder("playbooks") / "oom" / "levers")
DOCUMENTS = {item.id: item for item in ALL}
WORLDS: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).parent / "worlds.yaml")
JOB = JobRecord(
    JobId("1"), "c", "n", UserName("ada"), JobState("FAILED", JobClass.FAILED), num_nodes=4, gpus_per_node=4
)
TRUE_OOM = Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.9))
STORY = LogStory(root_cause=None)


def _set(system: LeverDocument, values: dict[str, Any]) -> tuple[Setting, ...]:
    found = []
    for key, value in values.items():
        entry, text = system.parameter(key), str(value)
        unknown = text[1:] if text.startswith("?") else ""
        reason = Unresolved(unknown, unknown) if unknown else None
        found.append(Setting(key, entry.kind, entry.spellings[0], None if unknown else text, unresolved=reason))
    return tuple(found)


def reduced(case: dict[str, Any]) -> tuple[tuple[TemplateFile, ...], tuple[ParameterNames, ...], Plan | NoPlan]:
    """The case's template, the names of its system, and what is proposed for the nodes that are left."""
    system = DOCUMENTS[case.get("system", "pytorch")]
    files = (TemplateFile("job.sh", f"#!/bin/bash\n{case['script']}"),) if "script" in case else ()
    names = system.parameter_names()
    settings = _set(system, case.get("settings", {})) + (find_settings(files[0], names) if files else ())
    context = LeverContext(template_settings(system, settings, files), LogStory(None), JOB)
    return files, names, fit_to_nodes(context, case["left"], (NodeName("gpu-22"),))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["title"]) for case in WORLDS])
def test_fewer_nodes_at_the_same_global_batch(case: dict[str, Any]) -> None:
    files, names, outcome = reduced(case)
    if "why" in case:
        assert isinstance(outcome, NoPlan) and case["why"] in in_words(outcome.why), outcome
        return
    assert isinstance(outcome, Plan), outcome
    if "text" in case:
        assert apply(files, outcome.edits, names=names).files[0].text == f"#!/bin/bash\n{case['text']}"
        return
    assert {edit.parameter: edit.new for edit in outcome.edits} == {key: str(new) for key, new in case["set"].items()}
    assert outcome.uses[0].needs_reshard


_SIZES = st.integers(1, 64)


@given(_SIZES, _SIZES, st.integers(2, 12), st.integers(1, 11), st.sampled_from((1, 2, 4, 8)))
def test_fewer_nodes_never_change_the_global_batch(micro: int, steps: int, nodes: int, left: int, gpus: int) -> None:
    system = DOCUMENTS["pytorch"]
    settings = _set(system, {"micro_batch_size": micro, "gradient_accumulation_steps": steps})
    job = replace(JOB, num_nodes=nodes, gpus_per_node=gpus)
    outcome = fit_to_nodes(LeverContext(template_settings(system, settings), LogStory(None), job), left)
    if isinstance(outcome, NoPlan):
        assert left >= nodes or micro * steps * nodes % left
        return
    new = {edit.parameter: int(edit.new or 0) for edit in outcome.edits}
    new_micro = new.get("micro_batch_size", micro)
    assert new_micro <= micro
    assert new_micro * new.get("gradient_accumulation_steps", steps) * left == micro * steps * nodes


@given(_SIZES, _SIZES)
def test_a_smaller_micro_batch_never_changes_the_global_batch(micro: int, steps: int) -> None:
    system = DOCUMENTS["pytorch"]
    settings = _set(system, {"micro_batch_size": micro, "gradient_accumulation_steps": steps})
    outcome = propose(LeverContext(template_settings(system, settings), STORY, JOB, TRUE_OOM))
    if micro == 1:
        assert "smaller_micro_batch" not in [use.lever for use in getattr(outcome, "uses", ())]
        return
    assert isinstance(outcome, Plan)
    new = {edit.parameter: int(edit.new or 0) for edit in outcome.edits}
    assert 1 <= new["micro_batch_size"] <= micro // 2
    assert new["micro_batch_size"] * new["gradient_accumulation_steps"] == micro * steps


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
ARGS=(
    --micro-batch-size 8
    --gradient-accumulation-steps 2
    --save ckpt/run
)
srun torchrun --nnodes 4 train.py "${ARGS[@]}"
"""


def test_from_a_template_to_a_template_that_trains_the_same() -> None:
    """The rooms together: read, propose, write, read again."""
    system = recognise((TemplateFile("job.sh", SCRIPT),), STORY, ALL)
    assert system is not None and system.id == "pytorch"
    names = system.parameter_names()
    file = TemplateFile("job.sh", SCRIPT)
    context = LeverContext(template_settings(system, find_settings(file, names)), STORY, JOB, TRUE_OOM)
    plan, world = propose(context), fit_to_nodes(context, 2)
    assert isinstance(plan, Plan) and isinstance(world, Plan)
    smaller = apply((file,), plan.edits, names=names).files
    found = template_settings(system, find_settings(smaller[0], names))
    after = fit_to_nodes(LeverContext(found, STORY, JOB), 2)
    assert isinstance(after, Plan)
    checkpoint = Checkpoint("/data/ckpt/run/iter_0000100", 100, True, format="torch_dist", latest=True)
    resume = resume_edits(found, checkpoint)
    text = apply(smaller, (*after.edits, *resume), names=names).files[0].text
    assert text == SCRIPT.replace("size 8", "size 4").replace("steps 2", "steps 8").replace(
        "--nodes=4", "--nodes=2"
    ).replace("--nnodes 4", "--nnodes 2").replace("ckpt/run\n", "ckpt/run\n    --load /data/ckpt/run\n")


LATEST = Checkpoint("/data/ckpt/iter_0000100", 100, True, format="torch_dist", latest=True)
OLDER = replace(LATEST, latest=False)


@pytest.mark.parametrize(
    ("system", "values", "checkpoint", "wanted"),
    [
        pytest.param("pytorch", {}, LATEST, {"load_dir": "/data/ckpt"}, id="added"),
        pytest.param("pytorch", {"load_dir": "/data/ckpt/"}, LATEST, {}, id="there already"),
        pytest.param("pytorch", {"load_dir": "ckpt"}, LATEST, {}, id="there already, from the job's folder"),
        pytest.param("pytorch", {"load_dir": "kpt"}, LATEST, {"load_dir": "/data/ckpt"}, id="only the same ending"),
        pytest.param("pytorch", {"load_dir": "/old"}, LATEST, {"load_dir": "/data/ckpt"}, id="another folder"),
        pytest.param(
            "pytorch", {"load_dir": "/data/ckpt"}, OLDER, {"checkpoint_step": "100"}, id="the tracker names another"
        ),
        pytest.param(
            "pytorch", {"load_dir": "/data/ckpt", "checkpoint_step": 40}, LATEST, {"checkpoint_step": None},
            id="a step that would go back",
        ),
        pytest.param(
            "megatron", {}, LATEST, {"load_dir": "/data/ckpt", "exit_on_missing_checkpoint": "true"},
            id="never from scratch without a word",
        ),
        pytest.param(
            "pytorch", {"load_dir": "?there"}, LATEST, {"load_dir": "/data/ckpt"}, id="not known, so not passed over"
        ),
    ],
)
def test_going_on_from_a_checkpoint(
    system: str, values: dict[str, Any], checkpoint: Checkpoint, wanted: dict[str, str | None]
) -> None:
    document = DOCUMENTS[system]
    edits = resume_edits(template_settings(document, _set(document, values)), checkpoint)
    assert {edit.parameter: edit.new for edit in edits} == wanted


@pytest.mark.parametrize(
    ("text", "framework", "wanted"),
    [
        ("srun python pretrain_gpt.py --micro-batch-size 4 --tensor-model-parallel-size 2", None, "megatron"),
        ("srun torchrun train.py --micro-batch-size 4", None, "pytorch"),
        ("srun python train.py", "pytorch", "pytorch"),
        ("# torchrun pretrain_gpt.py\nsrun ./simulate", None, None),
        ("srun ./simulate", "pytorch", "pytorch"),
        ("python3 -m verl.trainer.main_ppo actor.ppo_micro_batch_size_per_gpu=4", None, "verl"),
        ("ray start --head\npython train.py", None, None),
        ("accelerate launch train.py --micro-batch-size 4", None, "pytorch"),
        ("accelerate launch train.py --per_device_train_batch_size 4", None, "huggingface"),
        ("python train_sft.py --micro-batch-size 4", None, "pytorch"),
        ("python -m openrlhf.cli.train_ppo --micro_train_batch_size 4", "pytorch", "openrlhf"),
        ("python pretrain_gpt.py --yaml-cfg a.yaml", None, "pytorch"),
    ],
)
def test_which_system(text: str, framework: str | None, wanted: str | None) -> None:
    found = recognise((TemplateFile("job.sh", f"#!/bin/bash\n{text}\n"),), LogStory(None, framework=framework), ALL)
    assert (found.id if found else None) == wanted


def test_limits_of_relaunching() -> None:
    assert not relaunch_refused(3, 4)
    assert "relaunched 4 times" in in_words(relaunch_refused(4, 4))
    assert relaunch_refused(0, 0)


@pytest.mark.parametrize(
    ("drained", "nodes", "share", "allowed"),
    [(0, 1, 0.1, True), (0, None, 0.0, True), (1, None, 0.5, False), (1, 8, 0.25, True), (2, 8, 0.25, False),
     (1, 4, 0.1, False), (9, 100, 0.1, True), (10, 100, 0.1, False)],
)
def test_share_of_drained_nodes(drained: int, nodes: int | None, share: float, allowed: bool) -> None:
    assert (not drain_refused(drained, nodes, share)) is allowed
    assert drain_refused(drained, nodes, share, may_drain=False)
