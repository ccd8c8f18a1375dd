"""What a program's own loop does with its batch and its accumulation, before either is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.model.remedy import NoPlan, Plan
from runbook.report.vocabulary.sentences import in_words
from tests.remedy.test_roles import _proposed

_COMMAND = "python train.py --batch_size 16 --accum 2"
_PROGRAM = """import argparse
import torch

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accum", type=int, default=1)
    args = parser.parse_args()
    train_one_epoch(args, args.accum)

def train_one_epoch(args, accum_steps):
    for i, batch in enumerate(loader(args.batch_size)):
{body}

main()
"""


def _program(body: str) -> dict[str, str]:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return {"train.py": _PROGRAM.replace("{body}", lines)}


_SOUND = """
loss = model(batch) / accum_steps
loss.backward()
if (i + 1) % accum_steps == 0:
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("body", [
    _SOUND,
    _SOUND.replace("if (i + 1) % accum_steps == 0:", "last = (i + 1) % accum_steps == 0\nif last:"),
    "loss = model(batch)\nloss.backward()\nif (i + 1) % accum_steps != 0:\n    continue\n"
    "optimizer.step()\noptimizer.zero_grad()",
    "loss = model(batch)\nscaler(loss, optimizer, update_grad=(i + 1) % accum_steps == 0)\n"
    "if (i + 1) % accum_steps == 0:\n    optimizer.zero_grad()",
    "with accelerator.accumulate(model):\n    loss = model(batch)\n    accelerator.backward(loss)\n"
    "    optimizer.step()\n    optimizer.zero_grad()",
    "optimizer.zero_grad()\nfor part in range(accum_steps):\n    model(batch[part]).backward()\noptimizer.step()",
])
def test_a_loop_that_waits_for_its_accumulation_gets_more_of_it(tmp_path: Path, body: str) -> None:
    _, plan, changed = _proposed(tmp_path, _COMMAND, _program(body))
    assert isinstance(plan, Plan)
    assert changed[-1] == "+python train.py --batch_size 8 --accum 4"


@pytest.mark.parametrize(("body", "told"), [
    (_SOUND + "other_optimizer.zero_grad()", "other_optimizer.zero_grad() at train.py:18"),
    (_SOUND + "optimizer_d.step()", "optimizer_d.step() at train.py:18"),
    ("optimizer.zero_grad()" + _SOUND.replace("    optimizer.zero_grad()\n", ""), "zero_grad() at train.py:13"),
    (_SOUND + "if args.amp:\n    scaler.step(second_optimizer)", "scaler.step(second_optimizer) at train.py:19"),
    (_SOUND + "if use_amp:\n    scaler.step(second_optimizer)", "scaler.step(second_optimizer) at train.py:19"),
])
def test_an_optimizer_that_does_not_wait_for_the_accumulation_is_told(tmp_path: Path, body: str, told: str) -> None:
    """Case: a second optimizer cleared the gradients of each pass, so that accumulation lost half of them. No yes to
    it is offered."""
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(body))
    assert isinstance(plan, NoPlan) and plan.ask is None
    assert told in in_words(plan.why) and "mended" in in_words(plan.question)


def test_an_accumulation_that_only_shortens_the_schedule_keeps_no_batch(tmp_path: Path) -> None:
    """Case: the option of the accumulation was raised in a loop that steps in every pass."""
    body = "model(batch).backward()\noptimizer.step()\noptimizer.zero_grad()\nscheduler.step(i // accum_steps)"
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(body))
    assert isinstance(plan, NoPlan) and plan.ask is not None
    assert plan.ask.name == "smaller_batch_without_accumulation:micro_batch_size=8"
    assert "does not accumulate" in in_words(plan.question)


def test_a_meter_that_accumulates_is_no_accumulation(tmp_path: Path) -> None:
    """Case: a method of that name beside a loop that steps in every pass."""
    body = "loss = model(batch)\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\nmeter.accumulate(loss)"
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(body))
    assert isinstance(plan, NoPlan) and "does not accumulate" in in_words(plan.question)


@pytest.mark.parametrize("deep", [
    "total = " + " + ".join(["1"] * 1_300),
    "if i == 0:\n    pass\n" + "".join(f"elif i == {n}:\n    pass\n" for n in range(1_500)),
])
def test_a_text_as_deep_as_the_parser_allows_is_read(tmp_path: Path, deep: str) -> None:
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(f"{deep.strip()}\n{_SOUND.strip()}"))
    assert isinstance(plan, Plan | NoPlan)


def test_a_batch_that_counts_the_passes_of_a_step_is_left(tmp_path: Path) -> None:
    """Case: samples were taken one by one, and the batch said how many made up an optimizer step."""
    body = _SOUND.replace("accum_steps", "args.batch_size")
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(body))
    assert isinstance(plan, NoPlan) and plan.ask is None
    assert "--batch_size counts the passes of an optimizer step (train.py:15)" in in_words(plan.why)


_NOMINAL = _SOUND.replace("(i + 1) % accum_steps == 0", "i - last >= accumulate")


@pytest.mark.parametrize(("batch", "written"), [(16, True), (24, False), (128, False)])
def test_a_nominal_batch_is_kept_by_the_program(tmp_path: Path, batch: int, *, written: bool) -> None:
    """Only where it is a multiple: elsewhere the rounding of the passes makes another step."""
    program = _program(_NOMINAL)["train.py"].replace(
        '    parser.add_argument("--accum", type=int, default=1)\n', ""
    ).replace("args.accum)", "1)").replace(
        "    for i,", "    nbs = 64\n    accumulate = max(round(nbs / args.batch_size), 1)\n    for i,"
    )
    _, plan, changed = _proposed(tmp_path, f"python train.py --batch_size {batch}", {"train.py": program})
    if written:
        assert isinstance(plan, Plan) and changed[-1] == "+python train.py --batch_size 8"
    else:
        assert isinstance(plan, NoPlan) and "the global batch shrinks" in in_words(plan.question)


def _asked_of_a_loop_over_options(folder: Path, log: str) -> Plan | NoPlan:
    words = "BATCH=8\nACCUM=1\nwhile [ $# -gt 0 ]; do case $1 in --batch) BATCH=$2; shift 2;; *) shift;; esac; done\n"
    command = f"{words}python train.py --batch_size $BATCH --accum 1"
    return _proposed(folder, command, _program(_SOUND), log=log)[1]


@pytest.mark.parametrize("log", [
    "+ python train.py --batch_size 4 --accum 1\n",
    "+ srun torchrun --nproc_per_node 8 /home/a/train.py --batch_size=4\n",
])
def test_what_a_script_was_given_is_read_from_its_log(tmp_path: Path, log: str) -> None:
    """Case: a loop over the script's options may have set another value than the default."""
    plan = _asked_of_a_loop_over_options(tmp_path, log)
    assert isinstance(plan, Plan)
    assert [(edit.old, edit.new) for edit in plan.edits] == [("4", "2"), ("1", "2")]


@pytest.mark.parametrize("log", [
    "", "Namespace(batch_size=4, lr=0.1)\n", "batch_size: 4\n", "--batch_size 4\n",
    "python train.py --batch_size 4\npython train.py --batch_size 16\n",
    "+ python tokenize_data.py --batch_size 1000\n", "valid loader: DataLoader(batch_size=16, shuffle=False)\n",
    "+ python train.py --accum 1 && python evaluate.py --batch_size 16\n",
    # What is further down in a log that is not read whole may be another run's.
    "+ python train.py --batch_size 4\n" + "step\n" * 20_000,
])
def test_a_log_that_does_not_show_it_for_certain_leaves_the_question(tmp_path: Path, log: str) -> None:
    plan = _asked_of_a_loop_over_options(tmp_path, log)
    assert isinstance(plan, NoPlan) and in_words(plan.question).startswith("What is --batch_size")


def test_of_two_programs_a_log_says_nothing_for_certain(tmp_path: Path) -> None:
    """Case: what a tokenizer was given became the training's batch."""
    programs = {**_program(_SOUND), "tokenize_data.py": _program(_SOUND)["train.py"]}
    command = 'python tokenize_data.py --batch_size 1000\npython train.py --batch_size "$1" --accum 1'
    _, plan, _ = _proposed(tmp_path, command, programs, log="+ python tokenize_data.py --batch_size 1000\n")
    assert isinstance(plan, NoPlan)


def test_numbers_for_a_tracker_set_nothing(tmp_path: Path) -> None:
    program = "STEPS, BATCH = 1000, 32\nwandb.init(config={'batch_size': 64})\nfor i in range(STEPS): step(BATCH)\n"
    _, plan, _ = _proposed(tmp_path, "python train.py", {"train.py": program})
    assert isinstance(plan, NoPlan) and "set BATCH to 16 (train.py:1)" in in_words(plan.question)
    assert "64" not in in_words(plan.why)


@pytest.mark.parametrize(("layers", "told"), [
    ("torch.nn.BatchNorm2d(8)", True), ("torch.nn.LayerNorm(8)", False),
    ("torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm2d(8))", False),
])
def test_batch_norm_is_told_beside_the_values(tmp_path: Path, layers: str, *, told: bool) -> None:
    _, plan, _ = _proposed(tmp_path, _COMMAND, _program(f"model = {layers}\n{_SOUND.strip()}"))
    assert isinstance(plan, Plan)
    assert ("batch norm" in plan.uses[0].title) is told
