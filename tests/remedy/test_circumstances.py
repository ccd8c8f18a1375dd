"""The figures by which failures are compared, out of templates as people write them."""

from __future__ import annotations

import pytest

from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.remedy import Circumstances
from runbook.model.template import SubmitContext, TemplateFile
from runbook.model.units import JobId, UserName
from runbook.remedy import circumstances, load_levers, recognise, template_settings
from runbook.template import all_settings, settings_in_force

DOCUMENTS = load_levers(data_folder("playbooks") / "oom" / "levers")
JOB = JobRecord(JobId("1"), "c", "n", UserName("u"), JobState("FAILED", JobClass.FAILED))

CASES = {
    "megatron": (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 4 "
        "--global-batch-size 512 --seq-length 8192 --pretrained-checkpoint /models/team/llama-70b/",
        Circumstances(
            "megatron", model="llama-70b", micro_batch=4, global_batch=512, sequence_length=8192,
            degrees={"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2},
        ),
    ),
    "huggingface": (
        "accelerate launch sft.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --max_length 4096",
        Circumstances("huggingface", model="Qwen3-8B", micro_batch=2, accumulation=8, sequence_length=4096),
    ),
    "verl": (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m/Qwen2.5-7B data.train_batch_size=1024 "
        "data.max_prompt_length=1024 data.max_response_length=3072 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        Circumstances("verl", model="Qwen2.5-7B", micro_batch=4, global_batch=1024, sequence_length=4096),
    ),
    "one length is not known": (
        "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=$LENGTH",
        Circumstances("verl"),
    ),
    "pytorch": (
        "python train.py --micro-batch-size 8 --model-name s3://key:hunter2hunter2@host/m/hf_abcdefghijklmnopqrstuv",
        Circumstances("pytorch", model="hf_***", micro_batch=8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_tells(name: str) -> None:
    text, expected = CASES[name]
    files = (TemplateFile("job.sh", f"#!/bin/bash\n{text}\n"),)
    known, story = SubmitContext(environment=None, arguments=()), LogStory(root_cause=None)
    system = recognise(files, story, DOCUMENTS)
    assert system is not None
    settings = settings_in_force(files, system.parameter_names(), known)
    told = circumstances(template_settings(system, settings, files), all_settings(files, known))
    for field in ("system", "model", "micro_batch", "accumulation", "global_batch", "sequence_length", "degrees"):
        assert getattr(told, field) == getattr(expected, field), (field, told)


def test_every_system_says_what_is_compared() -> None:
    for document in DOCUMENTS:
        kept = document.remembered
        assert kept.sequence_length and kept.model, document.id
        assert document.batch is not None or kept.micro_batch or kept.global_batch, document.id
