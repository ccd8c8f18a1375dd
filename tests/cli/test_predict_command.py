"""`runbook predict` as a person types it: what it says, and when it says that it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runbook.cli.main import main
from runbook.model.units import GIB

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "jobs"
MEGATRON = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights
    --vocab-size 128256 --disable-bias-linear
    --micro-batch-size 4 --global-batch-size 128 --seq-length 8192
    --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --bf16
    --recompute-granularity selective
)
srun torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py "${ARGS[@]}"
"""
RAN_OUT = """\
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 3 has a total capacity of \
79.10 GiB of which 3.10 GiB is free. Including non-PyTorch memory, this process has 76.00 GiB memory in use. Of the \
allocated memory 72.11 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated.
"""
WELL = """\
[Rank 0] (after 1 iterations) memory (MB) | allocated: 11345.6 | max allocated: 60456.7 | reserved: 64000.0 | max \
reserved: 64000.0
 [2026-11-20 10:00:00] iteration        2/   50000 | consumed samples:          256 | elapsed time per iteration (ms): \
8012.5 | learning rate: 1.0E-5 | global batch size:   128 | lm loss: 1.1E+01 |
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.sbatch").write_text(MEGATRON)
    (tmp_path / "oom.log").write_text(RAN_OUT)
    (tmp_path / "well.log").write_text(WELL)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def predicted(capsys: pytest.CaptureFixture[str], job: Path, *words: str) -> tuple[int, dict[str, Any]]:
    template = ["--template", str(job / "train.sbatch")]
    code = run("predict", *template, *words, "--json")
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run("predict", *words)
    seen = capsys.readouterr()
    return code, seen.out + seen.err


def test_formulas_alone_say_that_nothing_anchors_them(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    code, text = said(capsys, "--template", str(job / "train.sbatch"), "--gpus", "h100-80g", "--set", "micro_batch=1",
                      "--set", "recompute=full")
    assert code == 0
    assert text.startswith("fits: it needs ")
    assert "none: no figure of the job is here" in text
    for term in ("weights", "optimizer states", "activations", "logits and loss", "outside the allocator"):
        assert term in text
    assert any(set(line.strip()) & set("|") and "WW" in line for line in text.splitlines())


def test_the_optimizer_is_on_the_card_unless_it_is_told_otherwise(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    _, told = predicted(capsys, job)
    states = next(term["middle_bytes"] for term in told["forecast"]["terms"] if term["title"] == "optimizer states")
    assert states == pytest.approx(8_030_261_248 / 2 * 12 / 8, rel=0.02)  # tensor 2, data 8


def test_the_failing_message_is_the_least_that_the_job_needs(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    _, alone = predicted(capsys, job, "--gpus", "79.1GiB")
    _, anchored = predicted(capsys, job, "--log", str(job / "oom.log"))
    assert [(item["basis"], item["at_least"]) for item in anchored["forecast"]["anchors"]] == [("allocated", True)]
    assert anchored["forecast"]["card_bytes"] == pytest.approx(79.10 * GIB)
    assert anchored["forecast"]["peaks"]["allocated"]["middle_bytes"] > 0.95 * (72.11 + 7.83) * GIB
    assert (anchored["forecast"]["peaks"]["allocated"]["low_bytes"]
            > alone["forecast"]["peaks"]["allocated"]["low_bytes"])
    assert anchored["forecast"]["verdict"] != "fits"


def test_a_job_that_ran_is_what_it_measured(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    code, told = predicted(capsys, job, "--log", str(job / "well.log"), "--gpus", "h100-80g")
    assert code == 0
    assert told["forecast"]["peaks"]["reserved"]["middle_bytes"] == pytest.approx(64000 * 2**20, rel=0.02)
    _, less = predicted(capsys, job, "--log", str(job / "well.log"), "--gpus", "h100-80g", "--set", "micro_batch=2")
    assert less["before"]["verdict"] == less["forecast"]["verdict"] == "fits"
    assert less["forecast"]["peaks"]["reserved"]["high_bytes"] < 64000 * 2**20


def test_the_largest_batch_and_where_nobody_can_say(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    code, told = predicted(capsys, job, "--log", str(job / "well.log"), "--gpus", "h100-80g", "--search", "micro_batch")
    assert code == 0
    assert 4 <= told["largest"]["run"]["micro"] < told["too_large"]["run"]["micro"]


def test_what_the_template_does_not_tell_is_asked_for(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    (job / "train.sbatch").write_text(MEGATRON.replace("--seq-length 8192", "").replace("--num-layers 32", ""))
    code, text = said(capsys, "--template", str(job / "train.sbatch"), "--gpus", "h100-80g")
    assert code == 4
    assert text.startswith("cannot say: the files do not tell the number of layers, the sequence length")
    code, told = predicted(capsys, job, "--gpus", "h100-80g", "--set", "seq-length=4096", "--set", "layers=32")
    assert (told["forecast"]["run"]["sequence"], told["forecast"]["missing"]) == (4096, [])


def test_a_model_of_ones_own_is_read_from_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True}))
    (tmp_path / "sft.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=1\n"
        "accelerate launch sft.py --model_name_or_path my-model --per_device_train_batch_size 2 "
        "--gradient_checkpointing true --max_length 2048 --bf16 true\n")
    (tmp_path / "sft.py").write_text(
        "from transformers import HfArgumentParser\nfrom trl import SFTConfig, SFTTrainer, ModelConfig\n"
        "parser = HfArgumentParser((SFTConfig, ModelConfig))\nSFTTrainer().train()\n")
    code, text = said(capsys, "--template", str(tmp_path / "sft.sh"), "--gpus", "h100-80g", "--set", "world=1")
    assert code == 0, text
    assert "1.236e9 parameters" in text


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.sbatch")))
def test_every_example_gets_an_answer(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, text = said(capsys, "--template", str(EXAMPLES / name), "--gpus", "a100-80g")
    assert code in (0, 2, 4, 5)
    assert text.split(":")[0] in ("fits", "does not fit", "cannot say", "runbook"), text


@pytest.mark.parametrize(("words", "what"), [
    (("--gpus", "h101"), "no card is called 'h101'"),
    (("--set", "bogus=3"), "has no 'bogus'"),
    (("--set", "micro_batch"), "it has no value"),
    (("--set", "micro_batch=minus"), "'minus' is no number"),
    (("--set", "tensor=0"), "no degree of parallelism"),
    (("--set", "recompute=half"), "there are none, selective, full"),
    (("--search", "layers"), "is not searched for"),
    (("--model", "oom.log"), "is no JSON"),
])
def test_what_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], job: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(job)
    code, text = said(capsys, "--template", "train.sbatch", *words)
    assert (code, what in text) == (2, True), text
