"""What is written back into the owner's files: the lever that was proven, and nothing of the relaunch's own."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from runbook.errors import NotAllowed
from runbook.model.incident import Attempt, Verdict
from runbook.model.job import JobScript
from runbook.model.remedy import Effect, LeverUse, Plan
from runbook.model.template import Companion, Edit, SettingKind, TemplateFile
from runbook.steps.promote import promote, roll_back
from runbook.steps.shared.base import StepContext
from tests.flow.test_resuming import Scene

SCRIPT = "#!/bin/bash\nsrun python pretrain_gpt.py --micro-batch-size 8 --save /ckpt/a {more}\n"


def scene(*edits: Edit, companion: str = "") -> StepContext:
    """A job whose relaunch with these edits, and with a pinned checkpoint, was proven."""
    place = Scene("")
    original = place.incident.original
    assert original is not None
    job = replace(original.job, command="/home/alice/job.sh")
    text = SCRIPT.format(more="--deepspeed_config ds.json" if companion else "")
    place.files.files |= type(place.files)({"/home/alice/job.sh": text.encode()}).files
    companions: tuple[Companion, ...] = ()
    if companion:
        place.files.files |= type(place.files)({"/home/alice/ds.json": companion.encode()}).files
        companions = (Companion(TemplateFile("ds.json", companion), "/home/alice/ds.json", "job.sh:2"),)
    use = LeverUse("lever", "t", "w", "s", Effect.NONE, "c", edits, "k")
    attempt = Attempt(1, plan=Plan((use,)), verdict=Verdict(True, "it ran past the step"))
    resumed = TemplateFile("job.sh", text.rstrip("\n") + " --load /ckpt/a --ckpt-step 40\n")
    place.incident = replace(
        place.incident, script=JobScript(text, "slurm"), original=replace(original, job=job),
        templates=(resumed, *(item.file for item in companions)), companions=companions, attempts=(attempt,),
    )
    return place.context()


MICRO = Edit("micro_batch_size", SettingKind.ARGUMENT, ("--micro-batch-size",), "4", "8")
ALLOCATOR = Edit("allocator_cuda", SettingKind.ENVIRONMENT, ("PYTORCH_CUDA_ALLOC_CONF",), "max_split_size_mb:256")
STAGE = Edit("stage", SettingKind.KEY, ("zero_optimization.stage",), "3", "2")


def text_of(context: StepContext, path: str) -> str:
    return context.ports.files.read_small(path, context.failure.job.owner).decode()


def test_only_the_lever_is_written_back_and_taken_back_to_the_byte() -> None:
    context = scene(MICRO)
    before = text_of(context, "/home/alice/job.sh")
    promoted = promote(context)
    assert text_of(context, "/home/alice/job.sh") == before.replace("--micro-batch-size 8", "--micro-batch-size 4")
    assert "--ckpt-step" not in text_of(context, "/home/alice/job.sh"), "the checkpoint is the relaunch's own"
    roll_back(replace(context, incident=promoted))
    assert text_of(context, "/home/alice/job.sh") == before


def test_a_configuration_is_written_back_where_it_lies() -> None:
    companion = '{"zero_optimization": {"stage": 2}}\n'
    context = scene(STAGE, companion=companion)
    script = text_of(context, "/home/alice/job.sh")
    promoted = promote(context)
    assert text_of(context, "/home/alice/ds.json") == companion.replace("2", "3")
    assert text_of(context, "/home/alice/job.sh") == script
    roll_back(replace(context, incident=promoted))
    assert text_of(context, "/home/alice/ds.json") == companion


def test_nothing_is_written_where_one_of_the_files_was_changed_meanwhile() -> None:
    context = scene(ALLOCATOR, STAGE, companion='{"zero_optimization": {"stage": 2}}\n')
    files = context.ports.files
    digest = hashlib.sha256(text_of(context, "/home/alice/ds.json").encode()).hexdigest()
    files.replace("/home/alice/ds.json", context.failure.job.owner, b"{}\n", digest)
    script = text_of(context, "/home/alice/job.sh")
    with pytest.raises(NotAllowed, match=r"ds\.json was changed since"):
        promote(context)
    assert text_of(context, "/home/alice/job.sh") == script
