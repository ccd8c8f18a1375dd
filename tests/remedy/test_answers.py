"""A lever that something unknown stops is asked for, and is used once a person has answered."""

from __future__ import annotations

import subprocess

import pytest

from runbook.locations import data_folder
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.remedy import RANKS, Answers, NoPlan, Plan
from runbook.model.template import TemplateFile
from runbook.model.units import JobId, Unknown, UserName
from runbook.remedy import LeverContext, load_levers, propose
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.template_reading import TemplateReading
from runbook.template import apply
from tests.kinds import Kind

DOCUMENTS = load_levers(data_folder("playbooks") / "oom" / "levers")
JOB = JobRecord(
    JobId("7"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED), work_dir="/proj", command="job.sh"
)
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size $MBS --global-batch-size 256 \\
    --tensor-model-parallel-size 1 --use-distributed-optimizer
"""


def planned(text: str, answers: Answers) -> tuple[Plan | NoPlan, TemplateReading]:
    file = TemplateFile("job.sh", text)
    reading = TemplateReading(
        (file,), (), LogStory(root_cause=None), DOCUMENTS, submitted=JOB, failed=JOB.id,
        ask_environment=lambda: Unknown("not kept"), answers=answers,
    )
    assert reading.told is not None
    diagnosis = Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.9))
    return propose(LeverContext(reading.told, reading.story, JOB, diagnosis)), reading


def started(text: str) -> str:
    """The command line that the script starts."""
    shown = text.replace("torchrun", "echo torchrun")
    return subprocess.run(["bash", "-c", shown], capture_output=True, text=True, env={"MBS": "4"}, check=True).stdout


def test_the_first_lever_is_asked_for_and_no_weaker_one_takes_its_place() -> None:
    plan, _ = planned(SCRIPT, Answers())
    assert isinstance(plan, NoPlan)
    assert plan.ask is not None
    assert plan.ask.name == "micro_batch_size"
    assert "--micro-batch-size" in in_words(plan.question)
    assert not plan.exhausted


@pytest.mark.parametrize("name", ["micro_batch_size", "--micro-batch-size", "MBS"])
def test_the_answer_is_the_parameter_or_the_variable_and_the_change_is_the_lever_alone(name: str) -> None:
    plan, reading = planned(SCRIPT, Answers({name: "4", RANKS: "8"}))
    assert isinstance(plan, Plan)
    patch = apply(reading.files, plan.edits, names=reading.parameter_names, known=reading.submit_context)
    before, after = started(SCRIPT), started(patch.files[0].text)
    assert after == before.replace("--micro-batch-size 4", "--micro-batch-size 2")


def test_one_question_follows_the_other() -> None:
    plan, _ = planned(SCRIPT.replace(" --global-batch-size 256", ""), Answers({"micro_batch_size": "4"}))
    assert isinstance(plan, NoPlan)
    assert plan.ask is not None
    assert plan.ask.name == RANKS


def test_half_of_a_micro_batch_that_divided_divides_on_any_number_of_ranks() -> None:
    plan, _ = planned(SCRIPT, Answers({"micro_batch_size": "4"}))
    assert isinstance(plan, Plan)
    assert {edit.parameter: edit.new for edit in plan.edits} == {"micro_batch_size": "2"}


DEEPSPEED = """#!/bin/bash
deepspeed --num_gpus 8 train.py --deepspeed --micro_bs 1 --deepspeed_config ds.json
"""


@pytest.mark.parametrize(("said", "wanted"), [
    (Answers(), "asks"),
    (Answers(options=("--gradient_checkpointing",)), "writes"),
    (Answers(options=("--gradient_checkpointing=no",)), "goes on"),
])
def test_an_option_is_written_only_into_a_program_that_is_said_to_take_it(said: Answers, wanted: str) -> None:
    text = DEEPSPEED.replace("ds.json", "$DS")
    told = said.joined(Answers({"train_micro_batch_size_per_gpu": "1", "zero_optimization.stage": "0"}))
    plan, _ = planned(text, told)
    if wanted == "writes":
        assert isinstance(plan, Plan)
        assert plan.uses[0].lever == "gradient_checkpointing"
        return
    ask = plan.ask if isinstance(plan, NoPlan) else None
    assert (ask is not None and ask.name == "--gradient_checkpointing") is (wanted == "asks")


def test_a_release_says_which_of_the_versions_it_is() -> None:
    document = next(item for item in DOCUMENTS if any(version.release for version in item.versions))
    packages = {package for version in document.versions for package in version.release}
    for package in packages:
        for version in document.versions:
            assert version.fits({package: version.id})
    assert not all(version.fits({next(iter(packages)): "0.0.1"}) for version in document.versions)
