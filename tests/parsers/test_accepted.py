"""What a patched template starts is accepted by the program's own parser, and means what was intended.

The template's launchers are stand-ins that record their words; the parsers are the libraries' own (`prepare`). A
release that accepts the template as it was must accept it as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runbook.model.remedy import Plan
from runbook.model.template import Edit, SettingKind, TemplateFile, condition_of
from tests.levers.lever_cases import LeverCase, load_cases
from tests.levers.test_lever_cases import patched, proposed
from tests.parsers.launched import Launched, launch

pytestmark = pytest.mark.parsers
PYTHON = Path(__file__).resolve().parents[2] / ".venv-parsers" / "bin" / "python"
VERL = ("verl-0.4.1", "verl-0.5.0", "verl-0.6.1", "verl-0.7.1", "verl-0.8.0", "verl-0.9.1")
# Templates whose program starts where a stand-in cannot see it: in another shell's heredoc, in a container, by
# LLaMA-Factory's own command.
OUT_OF_SIGHT = {
    "verl: a heredoc that a shell reads",
    "verl: docker exec with a command in quotes",
    "huggingface: a heredoc that is submitted, with the arguments in it",
    "huggingface: LLaMA-Factory's YAML with DeepSpeed's \"auto\" JSON beside it: what is added goes into the YAML",
}
_TRL = {"grpo": "GRPOConfig", "sft": "SFTConfig", "dpo": "DPOConfig", "rloo": "RLOOConfig", "reward": "RewardConfig"}


class Parsers:
    """The libraries, in a process of their own."""

    def __init__(self) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        self.process = subprocess.Popen(
            [str(PYTHON), str(Path(__file__).parent / "accept.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment,
        )

    def ask(self, parser: str, **job: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"parser": parser, "ask": [], **job}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    assert PYTHON.exists(), "run tests/parsers/prepare first"
    started = Parsers()
    yield started
    started.process.kill()
    started.process.wait()


def cases(*systems: str, of: Callable[[LeverCase], object] = lambda case: True) -> list[Any]:
    """Those of a system's templates of which something holds."""
    return [
        pytest.param(case, id=case.title) for case in load_cases()
        if case.system_file.split("_")[0] in systems and "diff" in case.parts
        and not case.files[0].path.endswith((".py", ".yaml", ".json")) and of(case)
    ]


def in_sight(case: LeverCase) -> bool:
    return case.title not in OUT_OF_SIGHT


def deepspeed_numbers(case: LeverCase) -> list[TemplateFile]:
    """Its DeepSpeed configurations with numbers of their own."""
    return [
        file for file in case.files
        if file.path.endswith(".json") and "train_micro_batch_size_per_gpu" in file.text and '"auto"' not in file.text
    ]


def trainer_reads_deepspeed(case: LeverCase) -> bool:
    """A DeepSpeed configuration is named on the trainer's own command line, not in accelerate's file."""
    named = any('"zero_optimization"' in file.text for file in case.files)
    return named and in_sight(case) and not accelerate_files(case)


def of_the_release_that_is_here(case: LeverCase) -> bool:
    """Of torchtitan 0.2.2: the registry of configurations came after it."""
    return ": registry:" not in case.title and "after v0.2.2" not in case.title


def accelerate_files(case: LeverCase) -> list[TemplateFile]:
    return [file for file in case.files if file.path.endswith((".yaml", ".yml")) and "distributed_type" in file.text]


def started(case: LeverCase, files: tuple[TemplateFile, ...], folder: Path) -> list[Launched]:
    return launch(files, folder, dict(case.surroundings.environment or {}))


@pytest.mark.parametrize("case", cases("verl", "huggingface", of=lambda case: not in_sight(case)))
def test_what_is_left_out_is_out_of_sight(case: LeverCase, tmp_path: Path) -> None:
    found = started(case, case.files, tmp_path)
    assert trainer_words(found) is None
    assert all(item.after("verl.trainer.main_ppo", "main_ppo.py") is None for item in found)


def located(words: list[str], folder: Path) -> list[str]:
    """The words with the template's own files where they lie now, also behind `--option=`."""
    found = []
    for word in words:
        option, equals, value = word.rpartition("=")
        path = folder / value.lstrip("/")
        found.append(f"{option}{equals}{path}" if path.is_file() else word)
    return found


def wanted_keys(plan: Plan) -> dict[str, str]:
    """The keys that the plan sets, with their values."""
    return {
        edit.spellings[0].lstrip("+"): edit.new for edit in plan.edits
        if edit.kind is SettingKind.KEY and edit.new is not None and not edit.spellings[0].startswith("-")
    }


def alike(found: object, wanted: str) -> bool:
    return str(found).lower().replace(" ", "") == wanted.lower().replace(" ", "").strip("'\"")


# verl_sft's templates start another trainer.
@pytest.mark.parametrize("case", cases("verl", of=lambda case: case.system_file == "verl" and in_sight(case)))
def test_hydra_composes_verl_with_the_edit(case: LeverCase, parsers: Parsers, tmp_path: Path) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    words = {}
    for name, files in (("before", case.files), ("after", patched(case, plan).files)):
        found = [item.after("verl.trainer.main_ppo", "main_ppo.py", "main_ppo_sync", "verl.trainer.main_ppo_sync")
                 for item in started(case, files, tmp_path / name)]
        words[name] = next((list(item) for item in found if item is not None), None)
    assert words["before"] is not None, "its program starts out of sight"
    assert words["after"] is not None
    keys = wanted_keys(plan)
    accepted = 0
    for release in VERL:
        root = {name: str(tmp_path / name / "work") for name in words}
        if "error" in parsers.ask("verl", release=release, arguments=words["before"], root=root["before"]):
            continue
        accepted += 1
        answer = parsers.ask(
            "verl", release=release, arguments=words["after"], root=root["after"], ask=list(keys)
        )
        assert "error" not in answer, f"{release}: {answer['error']}"
        for key, value in keys.items():
            assert alike(answer["values"][key], value), f"{release}: {key}"
    assert accepted, "no release takes the template as it was"


def argument(edit: Edit) -> str:
    """The trainer's own name of what an edit sets."""
    return condition_of(edit.spellings[0])[0].lstrip("-").replace("-", "_")


def trainer_words(found: list[Launched]) -> list[str] | None:
    """The training program's own arguments: what stands behind the first Python file of accelerate, torchrun, …"""
    for item in found:
        for index, word in enumerate(item.words[1:], 1):
            if word.endswith(".py"):
                return list(item.words[index + 1 :])
        if item.words[0] == "trl" and len(item.words) > 1 and item.words[1] != "vllm-serve":
            return list(item.words[2:])
    return None


def trl_config(case: LeverCase, found: list[Launched]) -> str:
    """TRL's class of arguments for the program that is started; "" for another program."""
    words = " ".join(word for item in found for word in item.words).lower()
    return next((name for part, name in _TRL.items() if f"{part}.py" in words or f"trl {part}" in words
                 or f"train_{part}" in words or f"{part}_" in words), "")


@pytest.mark.parametrize("case", cases("huggingface", of=in_sight))
def test_the_trainers_parser_takes_the_edit(
    case: LeverCase, parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    values: dict[str, dict[str, Any]] = {}
    edited = {edit.parameter: edit for edit in plan.edits if edit.kind is not SettingKind.ENVIRONMENT}
    for name, files in (("before", case.files), ("after", patched(case, plan).files)):
        found = started(case, files, tmp_path / name)
        words = trainer_words(found)
        assert words is not None, "its program starts out of sight"
        words = located(words, tmp_path / name / "work")
        if not (len(words) == 1 and words[0].endswith(".json")):
            words += ["--bf16", "false"]
            if not any(word.startswith("--output_dir") for word in words):
                words += ["--output_dir", str(tmp_path / "out")]
        parser, release = ("trl", trl_config(case, found)) if trl_config(case, found) else ("huggingface", "")
        asked = [*names, *(argument(edit) for edit in edited.values())]
        ranks = (case.job.num_nodes or 1) * (case.job.gpus_per_node or 1)
        answer = parsers.ask(parser, release=release, ranks=ranks, arguments=words, ask=asked)
        assert "error" not in answer, f"{name}: {answer['error']}"
        values[name] = answer["values"]
    before, after = (values[name][names[0]] * values[name][names[1]] for name in ("before", "after"))
    assert before == after, "the global batch changed"
    taken = [edit for edit in edited.values() if values["after"].get(argument(edit)) is not None]
    for edit in taken:
        assert alike(values["after"][argument(edit)], str(edit.new))


@pytest.mark.parametrize("case", cases("deepspeed", "huggingface", "openrlhf", of=deepspeed_numbers))
def test_deepspeed_takes_its_configuration(case: LeverCase, parsers: Parsers, tmp_path: Path) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    after = {file.path: file.text for file in patched(case, plan).files}
    for file in deepspeed_numbers(case):
        path = tmp_path / "ds.json"
        ranks = (case.job.num_nodes or 1) * (case.job.gpus_per_node or 1)
        path.write_text(file.text)
        names = ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"]
        before = parsers.ask("deepspeed", file=str(path), ranks=ranks, ask=names)
        assert "error" not in before, before["error"]
        path.write_text(after[file.path])
        answer = parsers.ask("deepspeed", file=str(path), ranks=ranks, ask=names)
        assert "error" not in answer, answer["error"]
        assert answer["values"]["train_batch_size"] == before["values"]["train_batch_size"]


@pytest.mark.parametrize("case", cases("huggingface", of=trainer_reads_deepspeed))
def test_the_trainer_and_deepspeed_still_agree(case: LeverCase, parsers: Parsers, tmp_path: Path) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    for name, files in (("before", case.files), ("after", patched(case, plan).files)):
        words = trainer_words(started(case, files, tmp_path / name))
        assert words is not None, "its program starts out of sight"
        at = words.index("--deepspeed")
        path = tmp_path / name / "work" / words[at + 1]
        answer = parsers.ask(
            "trainer_deepspeed", arguments=[*words[:at], *words[at + 2 :], "--bf16", "false"], file=str(path),
            ranks=(case.job.num_nodes or 1) * (case.job.gpus_per_node or 1),
        )
        assert "error" not in answer, f"{name}: {answer['error']}"


@pytest.mark.parametrize("case", cases("torchtitan", of=of_the_release_that_is_here))
def test_torchtitan_takes_the_edit(case: LeverCase, parsers: Parsers, tmp_path: Path) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    keys = wanted_keys(plan)
    for name, files in (("before", case.files), ("after", patched(case, plan).files)):
        found = [item.after("torchtitan.train", "train.py", "torchtitan.experiments.train")
                 for item in started(case, files, tmp_path / name)]
        words = next((list(item) for item in found if item is not None), None)
        assert words is not None, "its program starts out of sight"
        words = located(words, tmp_path / name / "work")
        answer = parsers.ask("torchtitan", release="torchtitan-0.2.2", arguments=words, ask=list(keys))
        assert "error" not in answer, f"{name}: {answer['error']}"
        if name == "after":
            for key, value in keys.items():
                assert alike(answer["values"][key], value), key


@pytest.mark.parametrize("case", cases("huggingface", of=accelerate_files))
def test_accelerate_reads_its_configuration(case: LeverCase, parsers: Parsers, tmp_path: Path) -> None:
    plan = proposed(case)
    assert isinstance(plan, Plan)
    after = {file.path: file.text for file in patched(case, plan).files}
    for file in accelerate_files(case):
        path = tmp_path / "accelerate.yaml"
        for text in (file.text, after[file.path]):
            path.write_text(text)
            answer = parsers.ask("accelerate", file=str(path), ask=["distributed_type", "num_processes"])
            assert "error" not in answer, answer["error"]


def test_enough_of_the_suite_was_really_parsed() -> None:
    """At least so many templates of the suite are of systems whose parsers are here."""
    assert len(cases("verl")) >= 8
    assert len(cases("huggingface")) >= 6
    assert len(cases("deepspeed")) >= 5
