"""Main memory that ran out: the levers of each framework and of programs of their own, and when a person is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runbook.cli.files.job_files import job_of, read_job_files
from runbook.locations import data_folder
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis
from runbook.model.diagnosis import Kind as KindOf
from runbook.model.log import Finding, LogStory, Phase, Progress
from runbook.model.remedy import AnswerKind, NoPlan, Plan
from runbook.model.units import GIB, Bytes
from runbook.remedy import LeverContext, load_levers, propose
from runbook.report.vocabulary.sentences import in_words
from runbook.template import apply
from tests.kinds import Kind

LEVERS = load_levers(data_folder("playbooks") / "oom" / "levers")
PROGRAM = """
import argparse
from torch.utils.data import {loader}
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--num_workers", type=int, default={workers})
parser.add_argument("--prefetch_factor", type=int, default=None)
parser.add_argument("--pin_mem", action="store_true")
parser.add_argument("--cache_images", action="store_true")
args = parser.parse_args()
loader = {loader}([], batch_size=args.batch_size, num_workers=args.num_workers)
"""


def proposed(
    folder: Path, command: str, program: str = "", kind: KindOf = Kind.HOST_OOM, detail: Detail = Detail.CGROUP,
    phase: Phase = Phase.UNKNOWN, has: float | None = None, to_have: float | None = None, steps: int | None = 0,
    first: int = 1, ran_s: float | None = None,
) -> tuple[Plan | NoPlan, list[str]]:
    """The plan, and the lines that it changes. `has`: the limit on a node; `to_have`: what the controller says that
    it can have there, GiB."""
    if program:
        (folder / "train.py").write_text(program)
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    job = read_job_files(script)
    progress = Progress(last_step=steps, first_step=first)
    story = LogStory(Finding("HOST-03", kind, "job.out", 0, 1, "", phase=phase), progress=progress)
    told = job.reading(LEVERS, story)
    assert told.told is not None
    record = replace(job_of(script), memory_limit_bytes_per_node=Bytes(int(has * GIB)) if has else None)
    if ran_s is not None:
        record = replace(record, start_time_s=0.0, end_time_s=ran_s)
    diagnosis = Diagnosis(Hypothesis(kind, 0.9, detail=detail))
    memory = Bytes(int(to_have * GIB)) if to_have else None
    plan = propose(LeverContext(told.told, story, record, diagnosis, (), memory_to_have=memory))
    if isinstance(plan, NoPlan):
        return plan, []
    patch = apply(job.files, plan.edits, names=told.parameter_names, known=told.submit_context)
    return plan, [line for line in patch.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--bs 32 --accum 2 --num_workers 16", "--bs 32 --accum 2 --num_workers 8"),
        ("--batch-size 8 --workers 12", "--batch-size 8 --workers 6"),
        ("--batch-size 8 -j 4", "--batch-size 8 -j 2"),
        ("data.batch_size=8 data.num_workers=3", "data.batch_size=8 data.num_workers=1"),
        ("--bs 8 --eval_num_workers 16 --data_workers 4", "--bs 8 --eval_num_workers 16 --data_workers 2"),
        ("--batch_size 8 --num_workers 1 --prefetch_factor 4", "--batch_size 8 --num_workers 1 --prefetch_factor 2"),
        ("--batch_size 8 --num_workers 0 --pin_memory True", "--batch_size 8 --num_workers 0 --pin_memory False"),
        ("--batch_size 8 --load_in_memory 1 --save 1", "--batch_size 8 --load_in_memory 0 --save 1"),
    ],
)
def test_loaders_of_a_program_of_its_own(tmp_path: Path, before: str, after: str) -> None:
    """The batch stays what it was, and so do the workers of an evaluation."""
    _, changed = proposed(tmp_path, f"torchrun train.py {before}")
    assert changed == [f"-torchrun train.py {before}", f"+torchrun train.py {after}"]


def test_what_only_the_parser_says_is_written_in_its_spelling(tmp_path: Path) -> None:
    plan, changed = proposed(
        tmp_path, "torchrun train.py --batch_size 8", PROGRAM.format(loader="DataLoader", workers=10)
    )
    assert isinstance(plan, Plan) and in_words(plan.uses[0].expectation).startswith("half of what the workers hold")
    assert "--num_workers 5" in changed[1] and "--batch_size 8" in changed[1]


@pytest.mark.parametrize(("flag", "gone"), [("--cache_images", "samples_from_disk"), ("--pin_mem", "pageable_batches")])
def test_a_flag_is_taken_out(tmp_path: Path, flag: str, gone: str) -> None:
    program = PROGRAM.format(loader="DataLoader", workers=0)
    plan, changed = proposed(tmp_path, f"torchrun train.py --batch_size 8 {flag}", program)
    assert isinstance(plan, Plan) and plan.uses[0].lever == gone
    assert flag not in changed[1]


def test_a_loader_whose_state_holds_the_number_of_workers_is_asked_about(tmp_path: Path) -> None:
    program = PROGRAM.format(loader="StatefulDataLoader", workers=0)
    plan, _ = proposed(tmp_path, "torchrun train.py --batch_size 8 --num_workers 16", program)
    assert isinstance(plan, NoPlan)
    assert "start anew with fewer workers" in in_words(plan.question)


def test_workers_of_a_program_that_prepares_the_data_are_none_of_the_trainings(tmp_path: Path) -> None:
    command = "python tokenize.py --num_workers 32\ntorchrun train.py --batch_size 8 --num_workers 4"
    _, changed = proposed(tmp_path, command)
    assert [line for line in changed if "tokenize" in line] == []
    assert changed[1] == "+torchrun train.py --batch_size 8 --num_workers 2"


@pytest.mark.parametrize(
    ("command", "after"),
    [
        ("torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-workers 8", "--num-workers 4"),
        ("accelerate launch t.py --per_device_train_batch_size 4 --dataloader_num_workers 8 --output_dir o",
         "--dataloader_num_workers 4"),
        ("torchrun train.py --micro-batch-size 4 --num-workers 8", "--num-workers 4"),
    ],
)
def test_loaders_of_frameworks(tmp_path: Path, command: str, after: str) -> None:
    _, changed = proposed(tmp_path, command)
    assert after in changed[1]


def test_saves_beside_the_training_are_what_a_failure_at_a_save_changes(tmp_path: Path) -> None:
    command = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-workers 8 --async-save"
    _, changed = proposed(tmp_path, command, phase=Phase.CHECKPOINT)
    assert "--async-save" not in changed[1] and "--num-workers 8" in changed[1]


@pytest.mark.parametrize("system", LEVERS, ids=lambda item: item.id)
def test_a_leak_goes_to_a_person_in_every_framework(system: object) -> None:
    document = next(item for item in LEVERS if item is system)
    ladder = document.ladder(Kind.HOST_OOM, Phase.UNKNOWN, "", Detail.LEAK)
    assert ladder is not None and not ladder.levers
    assert "keep between steps" in ladder.question


def test_a_leak_is_not_put_off_by_fewer_workers(tmp_path: Path) -> None:
    plan, _ = proposed(tmp_path, "torchrun train.py --bs 32 --num_workers 16", detail=Detail.LEAK)
    assert isinstance(plan, NoPlan) and "something in the job keeps it" in in_words(plan.why)


@pytest.mark.parametrize(
    ("detail", "lever"), [(Detail.DATA_LOADER, "fewer_prefetched_batches"), (Detail.NCCL_SEGMENT, None)]
)
def test_shared_memory_is_the_loaders_where_they_say_so(tmp_path: Path, detail: Detail, lever: str | None) -> None:
    command = "torchrun train.py --bs 32 --num_workers 16 --prefetch_factor 8"
    plan, _ = proposed(tmp_path, command, kind=Kind.SHM, detail=detail)
    assert (plan.uses[0].lever if isinstance(plan, Plan) else None) == lever


def test_pinned_memory_that_was_refused_is_not_pinned_again(tmp_path: Path) -> None:
    command = "torchrun train.py --bs 32 --num_workers 16 --pin_memory true"
    plan, changed = proposed(tmp_path, command, detail=Detail.PINNED)
    assert isinstance(plan, Plan) and changed[1].endswith("--num_workers 16 --pin_memory false")


TRAIN = "torchrun train.py --bs 32"


@pytest.mark.parametrize(
    ("asked", "has", "to_have", "now"),
    [
        ("--mem=64G", 64, 512, "--mem=131072M"),
        ("--mem=64G", 64, 96, "--mem=98304M"),
        ("--mem=300", 300 / 1024, 64, "--mem=600M"),
        ("--mem-per-gpu=16G", 64, 512, "--mem-per-gpu=32768M"),
        ("--mem-per-cpu=2G", 64, 96, "--mem-per-cpu=3072M"),
    ],
)
def test_more_memory_within_what_the_controller_tells(
    tmp_path: Path, asked: str, has: float, to_have: float, now: str
) -> None:
    plan, changed = proposed(tmp_path, f"#SBATCH {asked}\n{TRAIN}", has=has, to_have=to_have)
    assert isinstance(plan, Plan), plan
    assert changed == [f"-#SBATCH {asked}", f"+#SBATCH {now}"]


def test_memory_that_was_not_asked_for_is_asked_for(tmp_path: Path) -> None:
    _, changed = proposed(tmp_path, TRAIN, has=32, to_have=512)
    assert changed == ["+#SBATCH --mem=65536M"]


@pytest.mark.parametrize(
    ("has", "to_have", "detail", "said"),
    [
        (64, 66, Detail.CGROUP, "there are 66.0 GiB to have"),
        (64, None, Detail.CGROUP, "is not known"),
        (None, 512, Detail.CGROUP, "is not known"),
        (64, 512, Detail.NODE, "the whole node ran out"),
    ],
)
def test_no_more_memory_than_there_is(
    tmp_path: Path, has: float | None, to_have: float | None, detail: Detail, said: str
) -> None:
    plan, _ = proposed(tmp_path, f"#SBATCH --mem=64G\n{TRAIN}", has=has, to_have=to_have, detail=detail)
    assert isinstance(plan, NoPlan)
    assert said in next(in_words(item.why) for item in plan.refused if item.lever == "more_memory")


def test_a_step_of_its_own_limit_keeps_it(tmp_path: Path) -> None:
    plan, _ = proposed(tmp_path, "srun --mem=8G python train.py --bs 32", has=64, to_have=512)
    assert isinstance(plan, NoPlan)


def test_after_many_steps_a_person_says_that_it_was_no_leak(tmp_path: Path) -> None:
    plan, _ = proposed(tmp_path, f"#SBATCH --mem=64G\n{TRAIN}", has=64, to_have=512, steps=400)
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert "Was it no leak" in in_words(plan.question) and "131072M" in in_words(plan.question)
    assert plan.ask.kind is AnswerKind.AGREE


def test_workers_come_before_memory(tmp_path: Path) -> None:
    plan, _ = proposed(tmp_path, f"#SBATCH --mem=64G\n{TRAIN} --num_workers 8", has=64, to_have=512)
    assert isinstance(plan, Plan) and plan.uses[0].lever == "fewer_loader_workers"


@pytest.mark.parametrize(("steps", "first", "ran_s"), [(5000, 5000, None), (100, 100, 86_400.0), (4, 1, 86_400.0)])
def test_steps_that_were_not_printed_count(tmp_path: Path, steps: int, first: int, ran_s: float | None) -> None:
    """A job that prints each thousandth step, or ran for a day, did not die early."""
    plan, _ = proposed(
        tmp_path, f"#SBATCH --mem=64G\n{TRAIN}", has=64, to_have=512, steps=steps, first=first, ran_s=ran_s
    )
    assert isinstance(plan, NoPlan) and "no leak" in in_words(plan.question)


@pytest.mark.parametrize(
    ("written", "has"), [("--mem=64G", 128), ("--mem=8G", 64), ("--mem=500K", 1), ("--mem-per-gpu=16G", 40)]
)
def test_a_size_that_the_job_did_not_have_is_not_raised(tmp_path: Path, written: str, has: float) -> None:
    """Another option set its limit, and would again."""
    plan, changed = proposed(tmp_path, f"#SBATCH {written}\n{TRAIN}", has=has, to_have=512)
    assert isinstance(plan, NoPlan) and changed == []
    assert any("something else set its limit" in in_words(item.why) for item in plan.refused)


@pytest.mark.parametrize("option", ["--mem-per-gpu=8G", "--mem-per-cpu=2G"])
def test_a_step_of_any_limit_of_its_own_keeps_it(tmp_path: Path, option: str) -> None:
    plan, _ = proposed(tmp_path, f"#SBATCH --mem=64G\nsrun {option} python train.py --bs 32", has=64, to_have=512)
    assert isinstance(plan, NoPlan)


def test_workers_among_which_samples_are_divided_are_asked_about(tmp_path: Path) -> None:
    program = PROGRAM.format(loader="DataLoader", workers=8) + "import webdataset\ndata = webdataset.WebDataset(args)\n"
    plan, changed = proposed(tmp_path, "torchrun train.py --batch_size 8 --num_workers 8", program)
    assert isinstance(plan, NoPlan) and changed == [] and "order of the samples" in in_words(plan.question)
