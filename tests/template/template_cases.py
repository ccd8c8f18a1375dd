"""Job scripts with the settings found in them, and edits with the text that comes out or the refusal: `cases/*.txt`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runbook.model.template import Edit, ParameterNames, SettingKind, SubmitContext, TemplateFile
from tests.case_files import read_cases

CASES = Path(__file__).parent / "cases"


def _argument(parameter: str, *spellings: str, flag: bool = False, launcher: bool = False) -> ParameterNames:
    return ParameterNames(parameter, SettingKind.ARGUMENT, spellings, flag, not launcher)


NAMES = (
    _argument("micro_batch_size", "--micro-batch-size", "--micro_batch_size"),
    _argument("gradient_accumulation_steps", "--gradient-accumulation-steps"),
    _argument("global_batch_size", "--global-batch-size"),
    _argument("seq_length", "--seq-length"),
    _argument("activation_checkpointing", "--activation-checkpointing"),
    _argument("shard_degree", "--shard-degree", "--shard_degree"),
    _argument("tensor_model_parallel_size", "--tensor-model-parallel-size"),
    _argument("save", "--save"),
    _argument("distributed_optimizer", "--use-distributed-optimizer", flag=True),
    _argument("nnodes", "--nnodes", launcher=True),
    ParameterNames("alloc", SettingKind.ENVIRONMENT, ("PYTORCH_CUDA_ALLOC_CONF",)),
    ParameterNames("nodes", SettingKind.SBATCH, ("--nodes", "-N")),
    ParameterNames("ntasks", SettingKind.SBATCH, ("--ntasks", "-n")),
    ParameterNames("exclude", SettingKind.SBATCH, ("--exclude", "-x")),
)
BY_ID = {name.parameter: name for name in NAMES}


@dataclass(frozen=True)
class Case:
    title: str
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> TemplateFile:
        name = next((key.split(" ", 1)[1] for key in self.parts if key.startswith("file ")), "job.sh")
        text = self.parts["script"]
        for shown, meant in (("␠", " "), ("␍", "\r"), ("␀", "\0")):
            text = text.replace(shown, meant)
        return TemplateFile(name, text)

    @property
    def known(self) -> SubmitContext | None:
        environment = self.parts.get("environment")
        arguments = self.parts.get("arguments")
        if environment is None and arguments is None:
            return None
        pairs = dict(line.split("=", 1) for line in (environment or "").splitlines())
        return SubmitContext(
            pairs if environment is not None else None, tuple(arguments.split()) if arguments is not None else None
        )

    @property
    def edits(self) -> tuple[Edit, ...]:
        edits = []
        for line in self.parts.get("edits", "").splitlines():
            parameter, old, new = re.fullmatch(r"(\w+): (.*) -> (.*)", line).groups()  # type: ignore[union-attr]
            name = BY_ID[parameter]
            edits.append(
                Edit(
                    parameter, name.kind, name.spellings, None if new == "(none)" else new,
                    None if old == "*" else old, name.flag,
                )
            )
        return tuple(edits)


def load_cases() -> list[Case]:
    cases = []
    for title, written in read_cases(CASES):
        parts = {head: f"{text}\n" if head in ("script", "text") else text for head, text in written}
        cases.append(Case(title, parts))
    return cases


ALL = load_cases()


def with_part(part: str) -> list[Any]:
    return [pytest.param(case, id=case.title) for case in ALL if part in case.parts]
