"""`runbook levers`, `explain`, `template show` and `patch` as a person types them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from runbook.cli.main import main
from runbook.locations import data_folder
from runbook.remedy import FUNCTIONS, load_levers

MEGATRON = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --requeue
MBS=${MBS:-4}
ARGS=(
    --micro-batch-size $MBS
    --global-batch-size 128
    --seq-length 4096
    --tensor-model-parallel-size 2
    --num-layers $(nproc)
    --lr 1e-4
)
srun torchrun pretrain_gpt.py "${ARGS[@]}"
"""
TITAN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
srun torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file conf/train.toml
"""
TITAN_CONFIG = """\
[training]
local_batch_size = 8   # a GPU
global_batch_size = 256
seq_len = 4096
"""
LOG = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/train.py", line 500, in train
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.15 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the \
allocated memory 76.50 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.
"""


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Shell(Protocol):
    def __call__(self, *words: str, columns: int = 120) -> Done: ...


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """The entry point of the console script, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, columns: int = 120) -> Done:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ending:
            main(list(words))
        said = capfd.readouterr()
        assert "fault of this tool" not in said.err, said.err
        assert isinstance(ending.value.code, int)
        return Done(ending.value.code, said.out, said.err)

    return run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.sbatch").write_text(MEGATRON)
    (tmp_path / "titan.sbatch").write_text(TITAN)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.toml").write_text(TITAN_CONFIG)
    (tmp_path / "log.out").write_text(LOG)
    return tmp_path


def changed(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]


# --- levers ---


@pytest.mark.parametrize("columns", [80, 120])
def test_levers_fit_the_terminal_and_are_plain_when_piped(shell: Shell, columns: int) -> None:
    for words in (("levers",), ("levers", "verl"), ("levers", "megatron", "deepspeed")):
        done = shell(*words, columns=columns)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= columns


def test_a_systems_levers_are_in_the_ladders_order(shell: Shell) -> None:
    done = shell("levers", "megatron", "--kind", "true_oom", "--phase", "validation")
    rungs = re.findall(r"^ +(\d+) +(\w+) .*(none|numerics|training)", done.stdout, re.MULTILINE)
    evaluation = [(number, name) for number, name, _ in rungs if "eval" in name]
    assert evaluation[0] == ("1", "smaller_eval_micro_batch")
    assert "[host_memory]" not in done.stdout
    assert "Longer evaluations." in done.stdout


def test_levers_as_json_have_all_fields(shell: Shell) -> None:
    told = json.loads(shell("levers", "pytorch", "--json").stdout)
    assert [one["id"] for one in told] == ["pytorch"]
    assert {"parameters", "levers", "ladders", "out_of_reach", "checkpoint", "source"} <= set(told[0])
    assert {"effect", "cost", "edits", "relieves", "source"} <= set(told[0]["levers"][0])


@pytest.mark.parametrize("words, code, said", [
    (("levers", "megatrn"), 3, "perhaps megatron"),
    (("levers", "--kind", "ooom"), 2, "there are true_oom"),
    (("levers", "--phase", "nap"), 2, "there are init"),
    (("levers", "--playbook", "/nowhere"), 3, "/nowhere/levers"),
])
def test_what_levers_cannot_show_is_said(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    done = shell(*words)
    assert done.returncode == code
    assert said in done.stderr


# --- explain ---


def test_explain_a_lever_tells_what_it_changes_needs_and_costs(shell: Shell) -> None:
    text = " ".join(shell("explain", "megatron:smaller_micro_batch").stdout.split())
    for part in ("--micro-batch-size: halve", "cost More and smaller", "numerics", "rung 1 of", "--rampup-batch"):
        assert part in text


@pytest.mark.parametrize("spelling", [
    "actor_rollout_ref.rollout.gpu_memory_utilization", "++actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "verl:engine_share",
])
def test_explain_takes_a_parameter_as_a_template_spells_it(shell: Shell, spelling: str) -> None:
    done = shell("explain", spelling)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("verl:engine_share")
    assert "lower_engine_share" in done.stdout
    assert "raise_engine_share" in done.stdout


def test_explain_takes_an_option_with_its_dashes(shell: Shell) -> None:
    done = shell("explain", "--max-tokens-per-gpu")
    assert "2 systems: relax, slime" in done.stdout
    told = json.loads(shell("explain", "slime:--max-tokens-per-gpu", "--json").stdout)
    assert (told["system"], told["what"]) == ("slime", "parameter")
    assert told["used_by"]["levers"]


def test_explain_shows_what_several_systems_mean_by_one_name(shell: Shell) -> None:
    done = shell("explain", "smaller_micro_batch")
    assert "entries have this name" in done.stdout
    for system in ("megatron:smaller_micro_batch", "pytorch:smaller_micro_batch", "slime:smaller_micro_batch"):
        assert system in done.stdout


def test_explain_says_why_a_template_cannot_carry_something(shell: Shell) -> None:
    done = shell("explain", "critic.megatron.grad_offload")
    assert "not a lever that a template carries" in done.stdout
    assert "nothing reads" in done.stdout


def test_explain_still_knows_signatures_and_kinds_and_suggests_near_names(shell: Shell) -> None:
    assert shell("explain", "PT-CUDA-07").stdout.startswith("PT-CUDA-07")
    assert shell("explain", "fragmentation").stdout.startswith("fragmentation")
    slips = (("smaler_micro_batch", "smaller_micro_batch"), ("--max-token-per-gpu", "--max-tokens-per-gpu"))
    for typed, meant in slips:
        done = shell("explain", typed)
        assert done.returncode == 3
        assert meant in done.stderr


# --- template show ---


def test_show_says_what_is_set_where_and_what_is_not_known(shell: Shell, job: Path) -> None:
    done = shell("template", "show", "job.sbatch")
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first.startswith("megatron: Megatron-LM")
    assert "pretrain_gpt.py (job.sbatch:14)" in first
    assert re.search(r"^  --micro-batch-size +4 +job\.sbatch:7 +\(.*MBS.*line 5", done.stdout, re.MULTILINE)
    assert re.search(r"^  version +core", done.stdout, re.MULTILINE)
    assert "$(nproc)" in done.stdout
    assert "default" in done.stdout
    assert "requeue" in done.stdout.lower()  # Slurm would start it again
    assert "--lr" not in done.stdout
    assert re.search(r"--lr +1e-4", shell("template", "show", "job.sbatch", "--all").stdout)


def test_show_follows_the_files_that_the_script_names(shell: Shell, job: Path) -> None:
    told = json.loads(shell("template", "show", "titan.sbatch", "--json").stdout)
    assert told["system"] == "torchtitan"
    assert told["unread"] == []
    found = {one["parameter"]: one for one in told["parameters"]}
    assert (found["micro_batch"]["value"], found["micro_batch"]["line"]) == ("8", 2)
    assert found["micro_batch"]["file"] == "conf/train.toml"
    (job / "conf" / "train.toml").unlink()
    told = json.loads(shell("template", "show", "titan.sbatch", "--json").stdout)
    found = {one["parameter"]: one for one in told["parameters"]}
    assert found["micro_batch"]["state"] == "not known"
    assert "train.toml is not there" in told["unread"][0]


def test_show_of_an_unknown_system_lists_what_is_set(shell: Shell, job: Path) -> None:
    (job / "other.sh").write_text("#!/bin/bash\n./simulate --grid 64\n")
    done = shell("template", "show", "other.sh")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("system not known")
    assert "--system" in done.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_show_is_read_in_a_terminal(job: Path, columns: int) -> None:
    done = subprocess.run(
        ("script", "-qec", f"stty cols {columns}; python -m runbook template show titan.sbatch", "/dev/null"),
        cwd=job, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "TERM": "xterm", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in done.stdout.splitlines()]
    assert any("training.local_batch_size" in line for line in lines), done.stdout
    assert max(map(len, lines)) <= columns


# --- patch ---


def test_patch_prints_a_diff_that_can_be_applied_and_touches_nothing(shell: Shell, job: Path) -> None:
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    done = shell("patch", "--lever", "smaller_micro_batch", "--template", "job.sbatch", "--nodes", "2", "--gpus", "8")
    assert done.returncode == 0, done.stderr
    assert changed(done.stdout) == ["-MBS=${MBS:-4}", "+MBS=${MBS:-2}"]
    assert {path: path.read_bytes() for path in job.rglob("*") if path.is_file()} == before
    text = " ".join(done.stderr.split())
    assert "cost More and smaller kernels" in text
    assert "numerics" in text
    assert "MBS in the submitting environment would win" in text
    applied = subprocess.run(["patch", "-p1", "--dry-run"], cwd=job, input=done.stdout, text=True, capture_output=True)
    assert applied.returncode == 0, applied.stdout


def test_patch_asks_for_what_the_constraints_need(shell: Shell, job: Path) -> None:
    """The global batch is to be pinned at what it is by default: micro-batch × ranks."""
    (job / "job.sbatch").write_text(MEGATRON.replace("    --global-batch-size 128\n", ""))
    done = shell("patch", "--lever", "smaller_micro_batch", "--template", "job.sbatch")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "ranks" in done.stderr
    assert "--nodes 2 --gpus 8" in done.stderr  # as the script's own directives say


def test_patch_refuses_what_would_not_keep_the_global_batch(shell: Shell, job: Path) -> None:
    done = shell("patch", "--lever", "smaller_micro_batch", "--template", "job.sbatch", "--nodes", "3", "--gpus", "8")
    assert done.returncode == 4
    assert "no multiple" in done.stderr


@pytest.mark.parametrize("word", ['"$@"', "$EXTRA"])
def test_a_word_that_may_set_a_parallel_degree_is_asked_about(shell: Shell, job: Path, word: str) -> None:
    """Other degrees make other accumulation steps: the default is not taken for what may stand in the word."""
    (job / "open.sbatch").write_text(MEGATRON.rstrip() + f" {word}\n")
    told = json.loads(shell("template", "show", "open.sbatch", "--json").stdout)
    degree = next(one for one in told["parameters"] if one["parameter"] == "pipeline_model_parallel_size")
    assert (degree["state"], degree["value"]) == ("not known", None)
    assert word in degree["unresolved"]
    done = shell("patch", "--lever", "smaller_micro_batch", "--template", "open.sbatch", "--nodes", "2", "--gpus", "8")
    assert done.returncode == 4, done.stdout
    assert done.stdout == ""
    assert f"--pipeline-model-parallel-size is not known: it may stand in {word}" in done.stderr


def test_patch_asks_before_the_experiment_changes(shell: Shell, job: Path) -> None:
    words = ("patch", "--lever", "shorter_sequence", "--template", "titan.sbatch")
    refused = shell(*words)
    assert refused.returncode == 4
    assert "--may-change-training" in refused.stderr
    assert shell(*words, "--yes").returncode == 4
    allowed = shell(*words, "--may-change-training")
    assert allowed.returncode == 0, allowed.stderr
    assert changed(allowed.stdout) == ["-seq_len = 4096", "+seq_len = 2048"]


def test_patch_takes_the_log_and_refuses_a_lever_for_another_failure(shell: Shell, job: Path) -> None:
    words = ("patch", "--template", "titan.sbatch", "--log", "log.out")
    fits = shell(*words, "--lever", "full_checkpointing")
    assert fits.returncode == 0, fits.stderr
    assert re.search(r"failure +true oom in backward", fits.stderr)
    other = shell(*words, "--lever", "smaller_validation_batch")
    assert other.returncode == 4
    assert "on no ladder for true oom in backward" in other.stderr
    assert "full_checkpointing" in other.stderr
    wrong_kind = shell(*words[:3], "--lever", "full_checkpointing", "--kind", "co_tenant")
    assert wrong_kind.returncode == 4
    assert "another process holds" in wrong_kind.stderr


def test_patch_says_which_logs_it_could_not_read(shell: Shell, job: Path) -> None:
    (job / "logs").mkdir()
    (job / "logs" / "rank0.log").write_text(LOG)
    (job / "logs" / "rank1.log").symlink_to("/proc/version")  # nobody's log: it is not followed
    words = ("patch", "--template", "titan.sbatch", "--log", "logs", "--lever", "full_checkpointing")
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    assert "Not read: logs/rank1.log. The first failure may stand there." in done.stderr
    assert any("logs/rank1.log" in note for note in json.loads(shell(*words, "--json").stdout)["notes"])


def test_patch_writes_copies_that_name_each_other_and_replaces_no_file(shell: Shell, job: Path) -> None:
    out = job / "out"
    out.mkdir()
    (out / "train.runbook.toml").write_text("mine\n")
    words = (
        "patch", "--lever", "smaller_local_batch", "--template", "titan.sbatch", "--nodes", "2", "--gpus", "8",
        "--write", "out",
    )
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    script, copy = map(Path, done.stdout.split())
    assert copy.name == "train.runbook-2.toml"
    assert (out / "train.runbook.toml").read_text() == "mine\n"
    assert tomllib.loads(copy.read_text())["training"]["local_batch_size"] == 4
    assert "# a GPU" in copy.read_text()
    assert f"--job.config_file {copy}" in script.read_text()
    assert (job / "conf" / "train.toml").read_text() == TITAN_CONFIG
    assert shell(*words).stdout == done.stdout  # the same change again is the same files
    assert sorted(path.name for path in out.iterdir()) == [
        "titan.runbook.sbatch", "train.runbook-2.toml", "train.runbook.toml",
    ]


def test_patch_uses_several_levers_and_tells_machines(shell: Shell, job: Path) -> None:
    done = shell(
        "patch", "--lever", "smaller_local_batch", "--lever", "full_checkpointing", "--template", "titan.sbatch",
        "--nodes", "2", "--gpus", "8", "--json",
    )
    told = json.loads(done.stdout)
    assert [use["lever"] for use in told["uses"]] == ["smaller_local_batch", "full_checkpointing"]
    assert {edit["parameter"]: edit["new"] for edit in told["edits"]} == {"micro_batch": "4", "checkpointing": "full"}
    assert "+local_batch_size = 4   # a GPU" in told["diff"]
    (job / "job.sbatch").write_text(MEGATRON.replace("    --global-batch-size 128\n", ""))
    refused = shell("patch", "--lever", "smaller_micro_batch", "--template", "job.sbatch", "--json")
    assert refused.returncode == 4
    assert "ranks" in json.loads(refused.stdout)["refused"]


def test_a_value_given_by_hand_keeps_the_global_batch_too(shell: Shell, job: Path) -> None:
    words = ("patch", "--template", "titan.sbatch", "--nodes", "2", "--gpus", "8")
    kept = shell(*words, "--set", "training.local_batch_size=2")
    assert changed(kept.stdout) == ["-local_batch_size = 8   # a GPU", "+local_batch_size = 2   # a GPU"]
    broken = shell(*words, "--set", "micro_batch=3", "--may-change-training")
    assert broken.returncode == 4
    assert "no multiple of micro-batch 3" in broken.stderr
    other = shell(*words, "--set", "training.global_batch_size=128")
    assert other.returncode == 4
    assert "128 in place of 256" in other.stderr
    assert shell(*words, "--set", "micro_batch=8").returncode == 5


@pytest.mark.parametrize("words, code, said", [
    (("--template", "job.sbatch"), 2, "--lever"),
    (("--template", "jb.sbatch", "--lever", "x"), 2, "perhaps job.sbatch"),
    (("--template", ".", "--lever", "x"), 2, "is a folder"),
    (("--template", "conf/train.toml", "--lever", "x"), 2, "starts nothing"),
    (("--template", "job.sbatch", "--lever", "smaler_micro_batch"), 3, "perhaps smaller_micro_batch"),
    (("--template", "job.sbatch", "--lever", "--micro-batch-size"), 3, "smaller_micro_batch"),
    (("--template", "job.sbatch", "--lever", "actor_checkpointing"), 3, "verl"),
    (("--template", "job.sbatch", "--set", "micro_batch_size"), 2, "PARAMETER=VALUE"),
    (("--template", "job.sbatch", "--set", "micro_batch_size=two"), 2, "whole number"),
    (("--template", "job.sbatch", "--set", "micro_batch_size=0"), 2, "not below 1"),
    (("--template", "job.sbatch", "--set", "micro_bach_size=2"), 3, "micro_batch_size"),
    (("--template", "job.sbatch", "--set", "recompute_granularity=half"), 2, "one of"),
    (("--template", "job.sbatch", "--lever", "full_recompute", "--kind", "oops"), 2, "true_oom"),
    (("--template", "job.sbatch", "--lever", "full_recompute", "--log", "none.out"), 3, "none.out"),
    (("--template", "job.sbatch", "--lever", "full_recompute", "--system", "nemo"), 3, "megatron"),
    (("--template", "job.sbatch", "--lever", "full_recompute", "--write", "log.out"), 6, "log.out"),
])
def test_what_patch_cannot_do_is_said(
    shell: Shell, job: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = shell("patch", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


def test_line_ends_are_not_mended_unasked(shell: Shell, job: Path) -> None:
    (job / "dos.sbatch").write_bytes(MEGATRON.replace("\n", "\r\n").encode())
    done = shell("patch", "--template", "dos.sbatch", "--lever", "full_recompute")
    assert done.returncode == 2
    assert "DOS line ends" in done.stderr


def test_a_template_that_would_command_the_terminal_is_shown_without_that(shell: Shell, job: Path) -> None:
    text = MEGATRON.replace("--lr 1e-4", "--save '/ckpt/\x1b]0;owned\x07\u202etxt'")
    (job / "evil.sbatch").write_text(text)
    for words in (("template", "show", "evil.sbatch", "--all"), ("template", "show", "evil.sbatch", "--json")):
        done = shell(*words)
        assert done.returncode == 0, done.stderr
        assert not set("\x1b\x07\u202e") & set(done.stdout)


def test_a_template_of_no_known_system_is_asked_about(shell: Shell, job: Path) -> None:
    (job / "other.sh").write_text("#!/bin/bash\n./simulate --grid 64\n")
    done = shell("patch", "--template", "other.sh", "--lever", "expandable_segments")
    assert done.returncode == 2
    assert "--system" in done.stderr


def test_the_page_on_levers_names_every_system_and_every_edit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "levers.md").read_text()
    documents = load_levers(data_folder("playbooks") / "oom" / "levers")
    missing = [name for name in (*(one.id for one in documents), *FUNCTIONS) if f"`{name}`" not in page]
    assert not missing
