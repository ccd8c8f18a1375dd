"""Programs with options of their own: what their names mean, and what is written into their commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runbook.cli.files.job_files import job_of, read_job_files
from runbook.locations import data_folder
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.log import Finding, LogStory, MemoryFields, Phase
from runbook.model.remedy import AnswerKind, Answers, NoPlan, Plan
from runbook.remedy import LeverContext, load_levers, propose
from runbook.report.vocabulary.sentences import in_words
from runbook.template import CannotEdit, apply, wire_copies
from tests.kinds import Kind

LEVERS = load_levers(data_folder("playbooks") / "oom" / "levers")
STORY = LogStory(root_cause=None)
NOTHING_SAID = Answers()
OPEN_CLIP = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accum-freq", type=int, default=1)
parser.add_argument("--grad-checkpointing", default=False, action="store_true")
args = parser.parse_args()
"""


def _proposed(
    folder: Path, command: str, files: dict[str, str] | None = None, answers: Answers = NOTHING_SAID,
    story: LogStory = STORY, log: str = "",
) -> tuple[str, Plan | NoPlan, list[str]]:
    """The document, the plan, and the lines that it changes."""
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{command}\n")
    job = read_job_files(script)
    told = replace(job.reading(LEVERS, story), answers=answers, log_heads=lambda: [("job.out", log)])
    assert told.told is not None and told.system is not None
    context = LeverContext(told.told, story, job_of(script), Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.9)), ())
    plan = propose(context)
    if isinstance(plan, NoPlan):
        return told.system.id, plan, []
    patch = apply(job.files, plan.edits, names=told.parameter_names, known=told.submit_context)
    changed = [line for line in patch.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return told.system.id, plan, changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--bs 32 --update_count 4", "--bs 16 --update_count 8"),
        ("--batch_size 8 --grad_accumulation_steps 4", "--batch_size 4 --grad_accumulation_steps 8"),
        ("--batch-size-per-gpu 6 --accum_iter 1", "--batch-size-per-gpu 3 --accum_iter 2"),
        ("--train_batch_size 4 --accumulate_grad_batches=2", "--train_batch_size 2 --accumulate_grad_batches=4"),
        ("--mbs 2 --gbs 64 --eval_batch_size 8", "--mbs 1 --gbs 64 --eval_batch_size 8"),
        ("train.batch_size=8 train.grad_accum=1", "train.batch_size=4 train.grad_accum=2"),
        ("--batch_size 1 --use_gradient_checkpointing False", "--batch_size 1 --use_gradient_checkpointing True"),
    ],
)
def test_the_batch_is_halved_under_the_programs_own_names(tmp_path: Path, before: str, after: str) -> None:
    system, _, changed = _proposed(tmp_path, f"torchrun train.py {before}")
    assert system == "own_program"
    assert changed == [f"-torchrun train.py {before}", f"+torchrun train.py {after}"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("srun nmt-train corpus --max-tokens 2048 --update-freq 2", "--max-tokens 1024 --update-freq 4"),
        ("python nmt.py --tokens_per_gpu 8192 --accum 1", "--tokens_per_gpu 4096 --accum 2"),
        ("python nmt.py --max_tokens 3375 --accum 2", "--max_tokens 1125 --accum 6"),
    ],
)
def test_a_batch_that_is_counted_in_tokens_is_halved_once_agreed(tmp_path: Path, before: str, after: str) -> None:
    """A package's own program has no file that its name alone leads to. The tokens of a step stay what they were."""
    _, plan, changed = _proposed(tmp_path, before)
    assert isinstance(plan, NoPlan) and plan.ask is not None and changed == []
    assert "not the length of a sample" in in_words(plan.question)
    _, _, changed = _proposed(tmp_path, before, answers=Answers(agreed=(plan.ask.name,)))
    assert changed == [f"-{before}", f"+{before[: -len(after)]}{after}"]


def test_a_batch_of_tokens_is_not_cut_below_a_sample(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "nmt-train corpus --max-tokens 600 --update-freq 2")
    assert isinstance(plan, NoPlan)


@pytest.mark.parametrize(
    "words", ["SOLVER.ROWS_PER_BATCH 16 TEST.EVERY 5", "--opts TEST.EVERY 5 SOLVER.ROWS_PER_BATCH 16"]
)
def test_keys_that_stand_in_pairs_with_their_values_win_over_the_file(tmp_path: Path, words: str) -> None:
    files = {
        "tools/net.py": "run()\n",
        "configs/a.yaml": "SOLVER:\n  ROWS_PER_BATCH: 64\n  ACCUM_STEPS: 1\nTEST:\n  EVERY: 2\n",
    }
    command = f"python tools/net.py --cfg configs/a.yaml {words}"
    _, plan, _ = _proposed(tmp_path, command, files)
    assert isinstance(plan, Plan)
    assert {(edit.old, edit.new) for edit in plan.edits} == {("16", "8"), ("1", "2")}


READS_A_FILE = """
import argparse, yaml
p = argparse.ArgumentParser()
p.add_argument("--config")
cfg = yaml.safe_load(open(p.parse_args().config))
for at, rows in enumerate(loader(batch_size=cfg["batch_size"])):
    (model(rows) / cfg["accum_steps"]).backward()
    if (at + 1) % cfg["accum_steps"] == 0:
        optimizer.step()
"""


def test_the_file_that_an_argument_of_the_script_is_by_default_is_changed_in_a_copy(tmp_path: Path) -> None:
    """Who gives the script another file has the numbers of that one."""
    files = {"fit.py": READS_A_FILE, "conf/a.yaml": "batch_size: 32\naccum_steps: 2\n"}
    script = tmp_path / "job.sh"
    command = 'RECIPE=${1:-conf/a.yaml}\nshift\npython fit.py --config "$RECIPE" "$@"'
    _, plan, changed = _proposed(tmp_path, command, files)
    assert isinstance(plan, Plan)
    assert changed == ["-batch_size: 32", "-accum_steps: 2", "+batch_size: 16", "+accum_steps: 4"]
    job = read_job_files(script)
    patch = wire_copies(job.files, {"conf/a.yaml": "/tmp/copies/a.yaml"})
    assert "RECIPE=${1:-/tmp/copies/a.yaml}\n" in patch.files[0].text


@pytest.mark.parametrize("given", ["${1:-conf/a.yaml}.bak", "conf/${1:-a.yaml}"])
def test_a_path_of_which_an_argument_is_a_part_is_not_pointed_elsewhere(tmp_path: Path, given: str) -> None:
    for name in ("conf/a.yaml", "conf/a.yaml.bak"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("batch_size: 32\naccum_steps: 2\n")
    (tmp_path / "fit.py").write_text(READS_A_FILE)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\npython fit.py --config {given}\n")
    job = read_job_files(tmp_path / "job.sh")
    named = [file.path for file in job.files[1:] if not file.path.endswith(".py")]
    with pytest.raises(CannotEdit):
        wire_copies(job.files, dict.fromkeys(named or ["conf/a.yaml"], "/tmp/copies/a.yaml"))


def test_a_program_whose_batch_stands_in_deepspeeds_file_alone_keeps_its_document(tmp_path: Path) -> None:
    files = {
        "fit.py": "import argparse, deepspeed\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int)\n"
        "args = p.parse_args()\nengine = deepspeed.initialize(args=args, model=net(), config='zero.json')\n",
        "zero.json": '{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}\n',
    }
    command = "deepspeed --num_gpus 2 fit.py --deepspeed --deepspeed_config zero.json --epochs 3"
    system, _, changed = _proposed(tmp_path, command, files)
    assert system == "deepspeed"
    assert changed[1] == '+{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}'


def test_an_option_that_only_the_parser_has_is_added_in_its_spelling(tmp_path: Path) -> None:
    program = {"train.py": OPEN_CLIP}
    _, _, changed = _proposed(tmp_path, "torchrun train.py --batch-size 64", program)
    assert changed[1] in (
        "+torchrun train.py --batch-size 32 --accum-freq 2", "+torchrun train.py --accum-freq 2 --batch-size 32"
    )


def test_a_flag_of_the_parser_is_added_without_a_value(tmp_path: Path) -> None:
    _, _, changed = _proposed(tmp_path, "torchrun train.py --batch-size 1", {"train.py": OPEN_CLIP})
    assert any("--grad-checkpointing" in line for line in changed)
    assert not any("--grad-checkpointing true" in line for line in changed)


def test_a_program_that_does_not_accumulate_is_asked_for_another_experiment(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "torchrun train.py --batch_size 8")
    assert isinstance(plan, NoPlan) and "--batch_size 8 → 4" in in_words(plan.question)


def test_the_option_that_a_person_names_is_the_batch(tmp_path: Path) -> None:
    command = "torchrun train.py --rows 8 --grad_accum 1"
    _, plan, _ = _proposed(tmp_path, command)
    assert isinstance(plan, NoPlan) and plan.ask is not None and plan.ask.kind is AnswerKind.OPTION
    _, _, changed = _proposed(tmp_path, command, answers=Answers(options=("--rows",)))
    assert changed[1] == "+torchrun train.py --rows 4 --grad_accum 2"


def test_a_contrastive_loss_keeps_its_negatives(tmp_path: Path) -> None:
    command = "torchrun train_simclr.py --batch_size 64 --grad_accum 1"
    _, plan, _ = _proposed(tmp_path, command)
    assert isinstance(plan, NoPlan) and not plan.exhausted
    assert "compares samples" in in_words(plan.question)
    assert "--batch_size 64 → 32; --grad_accum 1 → 2" in in_words(plan.question)
    assert plan.ask is not None and plan.ask.kind is AnswerKind.AGREE
    _, _, changed = _proposed(tmp_path, command, answers=Answers(agreed=(plan.ask.name,)))
    assert changed[1] == "+torchrun train_simclr.py --batch_size 32 --grad_accum 2"


def test_a_smaller_batch_without_accumulation_in_a_contrastive_program_is_one_question(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "torchrun pretrain.py --moco-k 2048 --batch-size 512")
    assert isinstance(plan, NoPlan) and not plan.exhausted
    assert "--batch-size 512 → 256" in in_words(plan.question)
    assert "the global batch shrinks" in in_words(plan.question)


def test_what_a_docstring_or_a_comment_says_is_no_loss(tmp_path: Path) -> None:
    loss = (
        'class Settings:\n    """One of several stages.\n\n    heat: of the InfoNCE loss of stage two.\n    """\n'
        "    heads = 8  # as in contrastive_loss\n"
    )
    files = {"train.py": TWO_BATCHES.replace("checks import check", "loss import Settings"), "loss.py": loss}
    _, plan, changed = _proposed(tmp_path, "torchrun train.py --batch-size 64", files)
    assert isinstance(plan, Plan) and changed[1].endswith("--batch-size 32 --grad_accum 2"), changed


@pytest.mark.parametrize(
    ("more", "code", "keeps"),
    [
        ("", "", True), (" --pair_scale 0.5", "", False), ("", "args.pair_scale = 0.1\n", False),
        ("", "for key, value in recipe.items():\n    setattr(args, key, value)\n", False),
    ],
)
def test_a_comparing_loss_that_the_options_leave_out_is_none(
    tmp_path: Path, more: str, code: str, keeps: bool
) -> None:
    program = (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch_size', type=int)\np.add_argument('--grad_accum', type=int, default=1)\n"
        "p.add_argument('--pair_scale', type=float, default=0.0,\n               help='of the InfoNCE loss')\n"
        "args = p.parse_args()\n" + code + "loss = model(args.batch_size, args.grad_accum)\n"
        "if args.pair_scale > 0:\n    loss += args.pair_scale * info_nce(a, b)\nelse:\n    loss += 1\n"
    )
    _, plan, _ = _proposed(tmp_path, f"python train.py --batch_size 64{more}", {"train.py": program})
    assert isinstance(plan, Plan) is keeps


def test_an_accumulation_that_the_script_works_out_follows(tmp_path: Path) -> None:
    command = "MBS=8\nACC=$((512 / SLURM_GPUS_ON_NODE / MBS))\ntorchrun train.py --batch_size $MBS --grad_accum $ACC"
    _, _, changed = _proposed(tmp_path, command)
    assert changed == ["-MBS=8", "+MBS=4"]


TRAINER = "accelerate launch train.py --per_device_train_batch_size 1"


def test_nothing_is_added_for_a_program_that_only_has_a_name_in_common(tmp_path: Path) -> None:
    """Case: draccus calls it --enable_gradient_checkpointing, and ends on any other."""
    _, plan, _ = _proposed(tmp_path, TRAINER)
    assert isinstance(plan, NoPlan) and in_words(plan.question) == "Does the program take --gradient_checkpointing?"


def test_a_parser_that_was_read_makes_the_program_one_of_its_own(tmp_path: Path) -> None:
    program = OPEN_CLIP.replace("--batch-size", "--per_device_train_batch_size")
    system, _, changed = _proposed(tmp_path, TRAINER, {"train.py": program})
    assert system == "own_program" and any("--grad-checkpointing" in line for line in changed)


def test_a_trainer_of_transformers_keeps_its_document(tmp_path: Path) -> None:
    program = (
        "from transformers import HfArgumentParser\nfrom transformers.training_args import TrainingArguments\n"
        "args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    system, _, changed = _proposed(tmp_path, TRAINER, {"train.py": program})
    assert system == "huggingface" and any("--gradient_checkpointing" in line for line in changed)


def test_a_failed_evaluation_takes_a_smaller_batch_of_its_own(tmp_path: Path) -> None:
    story = LogStory(root_cause=
        Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", phase=Phase.VALIDATION, fields=MemoryFields())
    )
    command = "torchrun train.py --batch_size 8 --grad_accum 1 --eval_batch_size 16"
    _, _, changed = _proposed(tmp_path, command, story=story)
    assert changed[1] == "+torchrun train.py --batch_size 8 --grad_accum 1 --eval_batch_size 8"


ACCUMULATING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_training_batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
"""


def test_the_launcher_deepspeed_alone_makes_no_system(tmp_path: Path) -> None:
    command = "deepspeed train.py --deepspeed --per_device_training_batch_size 4 --gradient_accumulation_steps 1"
    system, _, changed = _proposed(tmp_path, command, {"train.py": "import deepspeed\n" + ACCUMULATING})
    assert system == "own_program"
    assert changed[1].endswith("--per_device_training_batch_size 2 --gradient_accumulation_steps 2")


READING = """
import argparse, yaml
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args = parser.parse_args()
config = load(args.config)
def train():
    micro = config.train.batchsize
    steps = config.train.grad_accum
    print(f"batchsize {micro}, grad_accum {steps}")
"""
CONFIGURATION = "train:\n  batchsize: 128\n  grad_accum: 1\n"


def test_code_that_reads_the_configuration_leaves_it_its_word(tmp_path: Path) -> None:
    files = {"train.py": READING, "conf/train.yaml": CONFIGURATION}
    _, _, changed = _proposed(tmp_path, "python train.py --config conf/train.yaml", files)
    assert changed == ["-  batchsize: 128", "-  grad_accum: 1", "+  batchsize: 64", "+  grad_accum: 2"]


def test_code_that_sets_the_key_again_is_not_passed_over(tmp_path: Path) -> None:
    files = {"train.py": READING + 'setattr(config.train, "batchsize", 4)\n', "conf/train.yaml": CONFIGURATION}
    _, plan, _ = _proposed(tmp_path, "python train.py --config conf/train.yaml", files)
    assert isinstance(plan, NoPlan)


def test_what_the_launcher_reads_is_not_the_programs_configuration(tmp_path: Path) -> None:
    files = {"train.py": READING, "conf/train.yaml": CONFIGURATION, "zero.yaml": "distributed_type: DEEPSPEED\n"}
    command = "accelerate launch --config_file zero.yaml train.py --config conf/train.yaml"
    _, _, changed = _proposed(tmp_path, command, files)
    assert changed[2:] == ["+  batchsize: 64", "+  grad_accum: 2"]


def test_the_option_of_the_command_outweighs_one_that_only_the_parser_has(tmp_path: Path) -> None:
    program = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--device_train_microbatch_size", type=int, default=8)
parser.add_argument("--device_train_batch_size", type=int)
parser.add_argument("--global_train_batch_size", type=int)
args = parser.parse_args()
"""
    command = "torchrun train.py --global_train_batch_size 64 --device_train_microbatch_size 4"
    _, _, changed = _proposed(tmp_path, command, {"train.py": program})
    assert changed[1].endswith("--device_train_microbatch_size 2")


@pytest.mark.parametrize("other", ["eval.py", "tools/convert_checkpoint.py", "-m pack.inference.decode"])
def test_a_program_beside_the_one_that_trains_is_left_alone(tmp_path: Path, other: str) -> None:
    command = f"python train.py --batch_size 8 --grad_accum 1\npython {other} --batch_size 1 --grad_accum 4 --bs 2"
    _, _, changed = _proposed(tmp_path, command)
    assert changed[1:] == ["+python train.py --batch_size 4 --grad_accum 2"]


def test_a_second_batch_of_one_goes_with_no_other(tmp_path: Path) -> None:
    command = "torchrun train.py --train_batch_size 4 --train_sp_batch_size 1 --gradient_accumulation_steps 1"
    _, _, changed = _proposed(tmp_path, command)
    assert changed[1].startswith("+torchrun train.py --train_batch_size 2 --train_sp_batch_size 1")


@pytest.mark.parametrize("front", [
    'P="$(pwd)"\npython "$P/train.py"', "python ${CODE_ROOT}/train.py",
    'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\npython $HERE/train.py', "cd /gpfs/me/proj\npython train.py",
    "python /gpfs/me/proj/train.py", "pushd /gpfs/me\npopd\npython train.py", "KEY=<your key>\npython train.py",
])
def test_a_program_beside_the_script_is_found_by_the_usual_forms(tmp_path: Path, front: str) -> None:
    _, _, changed = _proposed(tmp_path, f"{front} --batch-size 64", {"train.py": OPEN_CLIP})
    assert "--accum-freq 2" in changed[-1]


TWO_BATCHES = "import argparse\nfrom checks import check\n" + OPEN_CLIP.replace("--accum-freq", "--grad_accum")


def test_negatives_of_a_module_that_the_program_imports_are_kept(tmp_path: Path) -> None:
    files = {"train.py": TWO_BATCHES, "checks.py": "from loss import InfoNCELoss as check\n", "loss.py": "x = 1\n"}
    _, plan, changed = _proposed(tmp_path, "torchrun train.py --batch-size 64 --grad-checkpointing", files)
    assert isinstance(plan, NoPlan) and "compares samples" in in_words(plan.question), changed


def test_a_batch_that_is_checked_against_another_file_is_not_changed_alone(tmp_path: Path) -> None:
    check = 'def check(args, config):\n    assert args.batch_size == config["train_micro_batch_size_per_gpu"]\n'
    check += "    print(args.grad_accum)\n"
    files = {"train.py": f"{TWO_BATCHES}\ncheck(args, {{}})\n", "checks.py": check}
    _, plan, _ = _proposed(tmp_path, "torchrun train.py --batch-size 64 --grad-checkpointing", files)
    assert isinstance(plan, NoPlan) and "both be changed" in in_words(plan.question)


TRAINER_PROGRAM = """
from transformers import HfArgumentParser
from transformers.training_args import TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = load()
"""


@pytest.mark.parametrize(
    ("code", "in_force"),
    [
        ("model.gradient_checkpointing_enable()", True),
        ("if args.grad_checkpoint:\n    model._set_gradient_checkpointing()", True),
        ("if args.gradient_checkpointing:\n    model.gradient_checkpointing_enable()", False),
        ("class M:\n    def gradient_checkpointing_on(self):\n        self.m.gradient_checkpointing_enable()", False),
    ],
)
def test_checkpointing_that_the_program_does_by_itself_is_not_added(tmp_path: Path, code: str, in_force: bool) -> None:
    command = f"{TRAINER} --grad_checkpoint True"
    _, plan, changed = _proposed(tmp_path, command, {"train.py": f"{TRAINER_PROGRAM}{code}\n"})
    assert any("--gradient_checkpointing" in line for line in changed) is not in_force
    assert isinstance(plan, NoPlan) is in_force


def test_a_program_without_options_is_said_to_have_none(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "torchrun train.py", {"train.py": "import sys\nprint(len(range(8)))\n"})
    assert isinstance(plan, NoPlan) and plan.ask is None
    assert any("train.py reads no command line" in in_words(item.why) for item in plan.refused)


def test_a_number_of_the_programs_own_text_is_asked_about_with_its_place(tmp_path: Path) -> None:
    files = {
        "train.py": "from settings import BATCH\nval_loader = Loader(batch_size=1)\nloader = Loader(BATCH)\n",
        "settings.py": "EPOCHS = 3\nBATCH = 128\n",
    }
    _, plan, _ = _proposed(tmp_path, "torchrun train.py", files)
    assert isinstance(plan, NoPlan) and "BATCH to 64" in in_words(plan.question)
    assert "settings.py:2" in in_words(plan.question)
    assert "global batch would become smaller" in in_words(plan.question)


def test_two_numbers_of_the_programs_own_text_that_keep_the_batch_are_asked_about_together(tmp_path: Path) -> None:
    program = 'cfg = {"micro_batch_size": 6, "eval_batch_size": 2}\nclass Train:\n    grad_accum_steps: int = 4\n'
    _, plan, _ = _proposed(tmp_path, "torchrun train.py", {"train.py": program})
    assert isinstance(plan, NoPlan)
    assert "6 × 4 = 3 × 8" in in_words(plan.question) and "train.py:1" in in_words(plan.question)
    assert "train.py:3" in in_words(plan.question)


GLOBAL_ALONE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--global-batch-size", type=int, default=256)
parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
args = parser.parse_args()
loader = Loader(args.global_batch_size // ranks)
"""


@pytest.mark.parametrize(("reads", "asked"), [("", "16 → 8"), ("steps = args.gradient_accumulation_steps\n", "")])
def test_an_accumulation_that_no_code_reads_keeps_no_batch(tmp_path: Path, reads: str, asked: str) -> None:
    command = "torchrun --nnodes=1 --nproc_per_node=8 train.py --global-batch-size 16"
    _, plan, _ = _proposed(tmp_path, command, {"train.py": GLOBAL_ALONE + reads})
    assert isinstance(plan, NoPlan) and (asked in in_words(plan.question))
    assert ("→" in in_words(plan.question)) is bool(asked)


def test_a_global_batch_that_leaves_each_rank_no_whole_part_is_kept(tmp_path: Path) -> None:
    command = "torchrun --nnodes=1 --nproc_per_node=4 train.py --global-batch-size 4"
    _, plan, _ = _proposed(tmp_path, command, {"train.py": GLOBAL_ALONE})
    assert isinstance(plan, NoPlan) and plan.exhausted
    assert any("does not give each of 4 ranks a whole part" in in_words(item.why) for item in plan.refused)


def test_a_parser_that_a_package_makes_is_no_program_without_options(tmp_path: Path) -> None:
    program = "from detectron2.engine import default_argument_parser\nargs = default_argument_parser().parse_args()\n"
    _, plan, _ = _proposed(tmp_path, "python train.py --num-gpus 1", {"train.py": program})
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert not any("reads no command line" in in_words(item.why) for item in plan.refused)


def test_a_program_that_is_not_here_is_said_to_be_missing(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "torchrun train.py")
    assert isinstance(plan, NoPlan) and "Where does train.py lie" in in_words(plan.question)


def test_a_caller_that_gives_the_arguments_is_asked_for_them(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, 'torchrun train.py "$@"')
    assert isinstance(plan, NoPlan) and "$@" in in_words(plan.question)


@pytest.mark.parametrize("option", ["--cfg", "--config_path", "--train-config", "--recipe", "--yaml"])
def test_the_configuration_behind_an_option_of_the_programs_own_is_read(tmp_path: Path, option: str) -> None:
    files = {"train.py": READING, "conf/train.yaml": CONFIGURATION}
    _, _, changed = _proposed(tmp_path, f"python train.py {option} conf/train.yaml", files)
    assert changed[2:] == ["+  batchsize: 64", "+  grad_accum: 2"]


@pytest.mark.parametrize("before", ["--per_device_train_batch_size 1", ""])
def test_swift_recomputes_activations_by_default(tmp_path: Path, before: str) -> None:
    system, plan, _ = _proposed(tmp_path, f"swift sft --model m --train_type lora {before}")
    assert system == "huggingface" and isinstance(plan, NoPlan) and "more GPUs" in in_words(plan.question)


LIGHTNING = """
import argparse
from pytorch_lightning import Trainer
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--base", nargs="*")
parser = Trainer.add_argparse_args(parser)
opt, unknown = parser.parse_known_args()
class Module:
    def __init__(self, data):
        self.data = data
"""


def test_the_accumulation_of_lightnings_own_arguments_goes_with_the_batch_of_the_configuration(tmp_path: Path) -> None:
    files = {"main.py": LIGHTNING, "conf/a.yaml": "data:\n  params:\n    batch_size: 96\n"}
    _, _, changed = _proposed(tmp_path, "python main.py --base conf/a.yaml --gpus 0,", files)
    assert "+    batch_size: 48" in changed
    assert any("--accumulate_grad_batches 2" in line for line in changed)


def test_of_several_configurations_the_one_with_a_batch_is_the_programs(tmp_path: Path) -> None:
    files = {"train.py": READING, "conf/train.yaml": CONFIGURATION, "conf/model.yaml": "model:\n  width: 512\n"}
    command = "python train.py --model-config conf/model.yaml --config conf/train.yaml"
    _, _, changed = _proposed(tmp_path, command, files)
    assert changed[2:] == ["+  batchsize: 64", "+  grad_accum: 2"]


def test_a_program_behind_a_launcher_whose_path_is_worked_out_keeps_its_options(tmp_path: Path) -> None:
    """Case: the program that only converts the data was taken for the one that trains."""
    command = (
        "python tools/convert_data.py --split train\nRUN=$(python -c 'import x; print(x.main)')\n"
        'torchrun --nproc_per_node 1 "$RUN" --micro_batch_size 8 --grad_accum 2'
    )
    files = {"tools/convert_data.py": "import argparse\nargparse.ArgumentParser().parse_args()\n"}
    _, _, changed = _proposed(tmp_path, command, files)
    assert changed[1].endswith("--micro_batch_size 4 --grad_accum 4")


@pytest.mark.parametrize("folder", ["$ROOT/src/train", "$(pwd)/src/train"])
def test_a_program_in_a_folder_below_one_that_is_not_known_is_found(tmp_path: Path, folder: str) -> None:
    files = {"src/train/train.py": "BATCH_SIZE = 16\n"}
    _, plan, _ = _proposed(tmp_path, f'cd "{folder}"\npython train.py', files)
    assert isinstance(plan, NoPlan) and "BATCH_SIZE to 8" in in_words(plan.question)


def test_a_sequence_is_not_shortened_for_the_states_of_the_optimizer(tmp_path: Path) -> None:
    cause = Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", phase=Phase.OPTIMIZER_STEP, fields=MemoryFields())
    command = "torchrun train.py --micro_batch_size 1 --grad_accum 4 --max_seq_length 1024"
    _, plan, _ = _proposed(tmp_path, command, story=LogStory(root_cause=cause))
    assert isinstance(plan, NoPlan) and "max_seq_length" not in in_words(plan.question)
    assert "more that share the model" in in_words(plan.question)


def test_a_folder_that_is_not_known_may_be_the_scripts_own(tmp_path: Path) -> None:
    command = "cd $HOME/project\npython train.py"
    _, plan, _ = _proposed(tmp_path, command, {"train.py": "BATCH_SIZE = 16\n"})
    assert isinstance(plan, NoPlan) and "BATCH_SIZE to 8" in in_words(plan.question)


EVALUATION = LogStory(Finding("PT-CUDA-1", Kind.TRUE_OOM, "log", 0, 1, "", phase=Phase.VALIDATION))


def test_an_evaluation_without_a_batch_of_its_own_is_asked_about_with_the_numbers(tmp_path: Path) -> None:
    command = "torchrun train.py --batch_size 64"
    _, plan, _ = _proposed(tmp_path, command, story=EVALUATION)
    assert isinstance(plan, NoPlan) and plan.ask is not None and "--batch_size 64 → 32" in in_words(plan.question)
    _, _, changed = _proposed(tmp_path, command, answers=Answers(agreed=(plan.ask.name,)), story=EVALUATION)
    assert changed[1] == "+torchrun train.py --batch_size 32"


_LOOP = """import argparse
parser = argparse.ArgumentParser()
for name in ("--train_batch_size", "--gradient_accumulation_steps", "--max_steps"):
    parser.add_argument(name, type=int, default=1)
args = parser.parse_args()
{before}
global_step = 0
while global_step < args.max_steps:
    for step, batch in enumerate(batches(args.train_batch_size)):
        loss = model(batch) / args.gradient_accumulation_steps
        loss.backward()
{body}
"""
_UPDATES = """        if (step + 1) % args.gradient_accumulation_steps == 0:
            optimizer.step()
            global_step += 1"""
_PASSES = """        if (step + 1) % args.gradient_accumulation_steps == 0:
            optimizer.step()
        global_step += 1"""
_COMMAND = "python train.py --train_batch_size 32 --gradient_accumulation_steps 2 --max_steps 1000"


@pytest.mark.parametrize("division", [
    "args.train_batch_size = args.train_batch_size // args.gradient_accumulation_steps",
    "args.train_batch_size = int(args.train_batch_size / args.gradient_accumulation_steps)",
    "args.train_batch_size //= args.gradient_accumulation_steps",
])
def test_a_batch_that_the_program_divides_itself_stays(tmp_path: Path, division: str) -> None:
    """Case: both were changed, so that a step had half of its samples."""
    program = _LOOP.format(before=division, body=_UPDATES)
    _, _, changed = _proposed(tmp_path, _COMMAND, {"train.py": program})
    assert changed[1] == f"+{_COMMAND.replace('steps 2', 'steps 4')}"


def test_a_divided_batch_that_would_leave_a_remainder_is_left(tmp_path: Path) -> None:
    division = "args.train_batch_size = args.train_batch_size // args.gradient_accumulation_steps"
    command = _COMMAND.replace("size 32", "size 6")
    _, plan, _ = _proposed(tmp_path, command, {"train.py": _LOOP.format(before=division, body=_UPDATES)})
    assert isinstance(plan, NoPlan)


def test_a_training_that_ends_by_its_passes_is_not_shortened_unasked(tmp_path: Path) -> None:
    """Case: with twice the accumulation and the same number of passes half of the updates were made."""
    program = _LOOP.format(before="", body=_PASSES)
    _, plan, _ = _proposed(tmp_path, _COMMAND, {"train.py": program})
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert "global_step at train.py:14 counts passes" in in_words(plan.why)
    assert "make fewer updates" in in_words(plan.question)
    _, _, changed = _proposed(tmp_path, _COMMAND, {"train.py": program}, answers=Answers(agreed=(plan.ask.name,)))
    assert "--train_batch_size 16 --gradient_accumulation_steps 4" in changed[1]


@pytest.mark.parametrize("program", [
    _LOOP.format(before="", body=_UPDATES),
    # An inner loop of passes: the outer one turns once an update.
    """import argparse
parser = argparse.ArgumentParser()
for name in ("--train_batch_size", "--gradient_accumulation_steps", "--max_steps"):
    parser.add_argument(name, type=int, default=1)
args = parser.parse_args()
iter_num = 0
while True:
    for micro_step in range(args.gradient_accumulation_steps):
        model(next_batch(args.train_batch_size)).backward()
    optimizer.step()
    iter_num += 1
    if iter_num > args.max_steps:
        break
""",
])
def test_a_training_that_ends_by_its_updates_keeps_them(tmp_path: Path, program: str) -> None:
    _, _, changed = _proposed(tmp_path, _COMMAND, {"train.py": program})
    assert "--train_batch_size 16 --gradient_accumulation_steps 4" in changed[1]


def test_a_yes_is_to_the_values_that_were_asked_about(tmp_path: Path) -> None:
    """Case: a yes to half of a sequence allowed half of it again after the next failure."""
    command = "python train.py --micro_batch_size 1 --grad_accum 4 --max_seq_length 4096 --gradient_checkpointing True"
    _, plan, _ = _proposed(tmp_path, command)
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert "--max_seq_length 4096 → 2048" in in_words(plan.question)
    yes = Answers(agreed=(plan.ask.name,))
    _, _, changed = _proposed(tmp_path, command, answers=yes)
    assert "--max_seq_length 2048" in changed[1]
    _, plan, _ = _proposed(tmp_path, command.replace("4096", "2048"), answers=yes)
    assert isinstance(plan, NoPlan) and "--max_seq_length 2048 → 1024" in in_words(plan.question)


LOADED = """
import sys, yaml
cfg = yaml.safe_load(open(sys.argv[1]))
loader = make(cfg["batch_size"])
"""


def _asked(folder: Path, command: str, files: dict[str, str], log: str = "", phase: Phase = Phase.FORWARD) -> str:
    cause = Finding("PT-CUDA-01", Kind.TRUE_OOM, "job.out", 0, 1, "", phase=phase, frames=("main", "forward"))
    _, plan, _ = _proposed(folder, command, files, story=LogStory(root_cause=cause), log=log)
    assert isinstance(plan, NoPlan), plan
    return in_words(plan.question)


def test_a_configuration_that_only_the_log_names_is_asked_about_with_its_line(tmp_path: Path) -> None:
    files = {"train.py": LOADED, "conf/base.yaml": "seed: 1\nbatch_size: 12\naccum_iter: 2\n"}
    asked = _asked(tmp_path, 'python train.py "$1"', files, log="Reading config conf/base.yaml\n")
    assert "batch_size to 6 (base.yaml:2" in asked and "accum_iter to 4 (base.yaml:3)" in asked
    assert "12 × 2 = 6 × 4" in asked


def test_a_configuration_of_python_that_the_command_names_is_asked_about(tmp_path: Path) -> None:
    files = {"train.py": LOADED, "cfg/tiny.py": "batch_size = 10\n"}
    assert "batch_size to 5 (tiny.py:1)" in _asked(tmp_path, "python train.py --setup=cfg/tiny.py", files)


def test_a_configuration_whose_path_stands_in_the_program_is_asked_about(tmp_path: Path) -> None:
    program = "import yaml\ncfg = yaml.safe_load(open('settings.yaml'))\n"
    asked = _asked(tmp_path, "python train.py", {"train.py": program, "settings.yaml": "train:\n  batch_size: 24\n"})
    assert "batch_size to 12 (settings.yaml:2)" in asked


def test_what_the_log_alone_prints_is_no_place_but_fills_the_question(tmp_path: Path) -> None:
    asked = _asked(tmp_path, "python train.py", {"train.py": "run()\n"}, log="Namespace(batch_size=48, lr=0.1)\n")
    assert "Which option or file sets batch_size" in asked and "to 24 (job.out:1 shows 48)" in asked


def test_a_constant_of_a_branch_that_does_not_run_is_not_asked_about(tmp_path: Path) -> None:
    program = """
import argparse

def train(cluster=False):
    config = {}
    if cluster:
        config["batch_size"] = 64
    else:
        config["batch_size"] = 6

def never_called():
    batch_size = 512

p = argparse.ArgumentParser()
p.add_argument("--cluster", action="store_true")
args = p.parse_args()
train(cluster=args.cluster)
"""
    assert "batch_size to 3 (train.py:9)" in _asked(tmp_path, "python train.py", {"train.py": program})
    assert "batch_size to 32 (train.py:7)" in _asked(tmp_path, "python train.py --cluster", {"train.py": program})


def test_an_evaluation_is_asked_about_by_its_own_batch_where_a_configuration_has_one(tmp_path: Path) -> None:
    files = {"train.py": LOADED, "conf/base.yaml": "batch_size: 12\nval_batch: 30\n"}
    asked = _asked(tmp_path, 'python train.py "$1"', files, "Loading configuration conf/base.yaml\n", Phase.VALIDATION)
    assert "val_batch to 15 (base.yaml:2" in asked and "speed alone" in asked


def test_samples_that_are_made_take_their_own_batch(tmp_path: Path) -> None:
    frames = ("main", "save_checkpoint", "make_samples", "forward")
    cause = Finding("PT-CUDA-01", Kind.TRUE_OOM, "job.out", 0, 1, "", phase=Phase.CHECKPOINT, frames=frames)
    files = {"train.py": LOADED, "a.yml": "sampling:\n  batch_size: 64\ntraining:\n  batch_size: 8\n"}
    _, plan, changed = _proposed(tmp_path, "python train.py -c a.yml", files, story=LogStory(root_cause=cause))
    assert isinstance(plan, Plan) and changed == ["-  batch_size: 64", "+  batch_size: 32"]


def test_a_program_in_an_absolute_folder_of_another_machine_is_found_below_the_scripts_own(tmp_path: Path) -> None:
    files = {"pkg/train.py": "BATCH_SIZE = 16\n"}
    assert "BATCH_SIZE to 8" in _asked(tmp_path, "cd /scratch/someone/code/pkg\npython train.py", files)


HYDRA = """
import hydra
@hydra.main(config_path="conf", config_name="main")
def run(cfg):
    step(cfg.data.batch_size, cfg.optim.accum_steps)
run()
"""
COMPOSED = {
    "train.py": HYDRA, "conf/main.yaml": "defaults:\n  - data: small\n  - optim: sgd\n  - _self_\nseed: 3\n",
    "conf/data/small.yaml": "batch_size: 8\n", "conf/data/large.yaml": "batch_size: 20\n",
    "conf/optim/sgd.yaml": "lr: 0.1\naccum_steps: 2\n",
}


@pytest.mark.parametrize(
    ("given", "micro"), [("", 4), (" seed=4", 4), (" data=large", 10), (" data=large data.batch_size=6", 3)]
)
def test_keys_of_hydras_groups_are_overridden_on_the_command_line(tmp_path: Path, given: str, micro: int) -> None:
    _, plan, changed = _proposed(tmp_path, f"torchrun train.py{given}", COMPOSED)
    assert isinstance(plan, Plan), plan
    assert f"data.batch_size={micro}" in changed[1] and "optim.accum_steps=4" in changed[1]


@pytest.mark.parametrize(
    ("files", "given", "micro"),
    [
        ({"conf/main.yaml": "defaults:\n  - data: small\n  # - data: large\n  - optim: sgd\n  - _self_\n"}, "", 4),
        ({"conf/main.yaml": "defaults:\n  - data: small\n  - optim: sgd\n  - exp: none\n  - _self_\n",
          "conf/exp/none.yaml": "a: 1\n",
          "conf/exp/big.yaml": "# @package _global_\ndefaults:\n  - override /data: large\n"}, " exp=big", 10),
        ({"conf/main.yaml": "defaults:\n  - main\n  - model: a\n  - optim: sgd\n  - _self_\n",
          "conf/model/a.yaml": "defaults:\n  - /data: large\n"}, "", 10),
    ],
    ids=["an entry that is commented out", "a group overrides another", "a group from the root, and a file in itself"],
)
def test_what_hydra_composes(tmp_path: Path, files: dict[str, str], given: str, micro: int) -> None:
    _, plan, changed = _proposed(tmp_path, f"torchrun train.py{given}", {**COMPOSED, **files})
    assert isinstance(plan, Plan), plan
    assert f"data.batch_size={micro}" in changed[1]


def test_counters_of_a_log_and_a_configuration_that_the_program_writes_are_no_settings(tmp_path: Path) -> None:
    files = {"train.py": "run()\n", "out/config.yaml": "batch_size: 12\n"}
    log = "Full config saved to out/config.yaml\nEpoch: 1, Batch: 0, Loss: 2.3\nEpoch: 1, Batch: 1, Loss: 2.2\n"
    log += "Val Batch: 10/50\n"
    asked = _asked(tmp_path, "python train.py", files, log=log)
    assert "config.yaml" not in asked and "Batch to" not in asked and "small as it gets" not in asked


def test_a_switch_that_is_on_by_default_leaves_its_branch(tmp_path: Path) -> None:
    program = """
import argparse

def train():
    config = {}
    config["batch_size"] = 64

p = argparse.ArgumentParser()
p.add_argument("--no-train", dest="train", action="store_false")
args = p.parse_args()
if args.train:
    train()
"""
    assert "batch_size to 32 (train.py:6)" in _asked(tmp_path, "python train.py", {"train.py": program})


def test_a_value_is_not_put_in_front_of_words_that_may_write_over_it(tmp_path: Path) -> None:
    files = {
        "train.py": "batch_size = 4\ngradient_accumulation_steps = 5 * 8\nexec(open('configurator.py').read())\n",
        "configurator.py": "import sys\nfor arg in sys.argv[1:]:\n    exec(open(arg).read())\nraise ValueError\n",
        "config/small.py": "batch_size = 16\ngradient_accumulation_steps = 1\n",
    }
    command = 'ARGS="config/small.py --compile=False"\npython train.py $ARGS'
    with pytest.raises(CannotEdit, match="no safe place for --batch_size"):
        _proposed(tmp_path, command, files)


@pytest.mark.parametrize("more", ["", " --compile=False"])
def test_variables_that_a_named_file_of_python_sets_are_changed_on_the_command_line(tmp_path: Path, more: str) -> None:
    files = {
        "train.py": "batch_size = 4\ngradient_accumulation_steps = 5 * 8\nexec(open('configurator.py').read())\n",
        "configurator.py": "import sys\nfor arg in sys.argv[1:]:\n    exec(open(arg).read())\nraise ValueError\n",
        "config/small.py": "batch_size = 16\ngradient_accumulation_steps = 1\n",
    }
    _, plan, changed = _proposed(tmp_path, f"python train.py config/small.py{more}", files)
    assert isinstance(plan, Plan), plan
    assert "--batch_size=8" in changed[1] and "--gradient_accumulation_steps=2" in changed[1]


FILLS_IN = """
from transformers import Trainer, TrainingArguments
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size={batch},
    gradient_accumulation_steps=2,
)
Trainer(model=model, args=args).train()
"""


def test_no_option_is_written_into_a_program_that_fills_in_its_arguments_itself(tmp_path: Path) -> None:
    """The place and the arithmetic of what a person may set there are asked; the command stays as it is."""
    _, plan, changed = _proposed(tmp_path, "srun python train.py", {"train.py": FILLS_IN.format(batch=1)})
    assert isinstance(plan, NoPlan) and changed == []
    assert "gradient_checkpointing to true (not set, beside train.py:4)" in in_words(plan.question)
    _, plan, _ = _proposed(tmp_path, "srun python train.py", {"train.py": FILLS_IN.format(batch=8)})
    assert isinstance(plan, NoPlan)
    assert "per_device_train_batch_size to 4 (train.py:4)" in in_words(plan.question)
    assert "gradient_accumulation_steps to 4 (train.py:5)" in in_words(plan.question)


def test_a_program_that_hands_options_of_its_own_on_to_a_library_is_changed_by_its_own(tmp_path: Path) -> None:
    parser = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=8)\n"
        "p.add_argument('--grad-accum', type=int, default=4)\nargs = p.parse_args()\n"
    )
    library = FILLS_IN.format(batch="args.batch_size").replace("steps=2", "steps=args.grad_accum")
    system, _, changed = _proposed(tmp_path, "accelerate launch train.py --lr 1", {"train.py": parser + library})
    assert system == "own_program"
    assert changed[1] == "+accelerate launch train.py --batch-size 4 --grad-accum 8 --lr 1"


def test_a_word_of_another_program_says_nothing_of_the_training(tmp_path: Path) -> None:
    command = "for seed in 1 2; do\n  python train.py --batch_size 8 --accum 2\n  python test.py $seed\ndone"
    _, _, changed = _proposed(tmp_path, command)
    assert changed[1] == "+  python train.py --batch_size 4 --accum 4"


def test_what_the_scripts_arguments_may_say_is_asked_with_what_holds_without_them(tmp_path: Path) -> None:
    parser = OPEN_CLIP.replace("--accum-freq", "--accum-steps")
    _, plan, _ = _proposed(tmp_path, 'python train.py --batch-size 8 "$@"', {"train.py": parser})
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert in_words(plan.question) == 'Was --accum-steps given in "$@"? Where it was not, it is 1.'
    _, _, changed = _proposed(
        tmp_path, 'python train.py --batch-size 8 "$@"', {"train.py": parser},
        answers=Answers(values={"--accum-steps": "1"}),
    )
    assert any("--accum-steps 2" in line for line in changed)


def test_a_configuration_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    _, plan, _ = _proposed(tmp_path, "srun tuner train recipe.yaml\npython plot.py")
    assert isinstance(plan, NoPlan) and in_words(plan.question) == "Where does recipe.yaml lie (job.sh:2)?"
    files = {"recipe.yaml": "micro_batch_size: 4\ngradient_accumulation_steps: 2\n"}
    _, _, changed = _proposed(tmp_path, "srun tuner train recipe.yaml\npython plot.py", files)
    assert changed[2:] == ["+micro_batch_size: 2", "+gradient_accumulation_steps: 4"]


def test_a_tool_that_is_started_as_a_module_is_no_training(tmp_path: Path) -> None:
    command = (
        "python -m pip install -q x\npkill -f train.py\n"
        "srun python \"$HOME/project/train.py\" --batch_size 8 --accum 1"
    )
    _, _, changed = _proposed(tmp_path, command, {"train.py": "x = 1\n"})
    assert changed[-1].endswith("--batch_size 4 --accum 2")


def test_a_word_of_comparing_in_a_text_of_the_program_is_no_loss(tmp_path: Path) -> None:
    """Submissions to a shared task are primary or contrastive, whatever their loss is."""
    system = OPEN_CLIP.replace("--accum-freq", "--accum-steps") + "KIND = 'contrastive'\n"
    system += "print(args.batch_size, args.accum_steps)\n"
    _, plan, _ = _proposed(tmp_path, "python train.py --batch-size 8", {"train.py": system})
    assert isinstance(plan, Plan) and plan.uses[0].lever == "smaller_micro_batch"
    loss = system + "loss = contrastive_part(args)\n"
    _, plan, _ = _proposed(tmp_path, "python train.py --batch-size 8", {"train.py": loss})
    assert any("compares the samples of a pass" in in_words(item.why) for item in plan.refused)


def test_another_experiment_whose_value_is_not_known_is_asked_with_what_was_found(tmp_path: Path) -> None:
    parser = "\n".join(line for line in OPEN_CLIP.splitlines() if "--accum" not in line and "--grad" not in line)
    parser = parser.replace(", default=64", "") + "\n"
    _, plan, _ = _proposed(tmp_path, "python train.py", {"train.py": parser + "batch_size = 4\nprint(batch_size)\n"})
    assert isinstance(plan, NoPlan)
    assert "What is --batch-size (train.py:6 sets batch_size 4)?" in in_words(plan.question)


@pytest.mark.parametrize("option", ["--use_checkpoint", "--with-cp"])
def test_recomputed_blocks_are_switched_on_where_the_program_has_them(tmp_path: Path, option: str) -> None:
    """Elsewhere such a name means a file to start from: without the code of it nothing is written."""
    parser = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=8)\n"
        f"p.add_argument('{option}', action='store_true')\nargs = p.parse_args()\n"
    )
    _, plan, _ = _proposed(tmp_path, "python train.py --batch-size 8", {"train.py": parser})
    assert isinstance(plan, NoPlan)
    blocks = "from torch.utils.checkpoint import checkpoint\nrun = checkpoint\n"
    files = {"train.py": f"import blocks\n{parser}", "blocks.py": blocks}
    _, plan, changed = _proposed(tmp_path, "python train.py --batch-size 8", files)
    assert isinstance(plan, Plan) and plan.uses[0].lever == "block_checkpointing"
    assert changed[1] == f"+python train.py --batch-size 8 {option}"
