"""Job scripts with the settings found in them, and edits with the text that comes out or the refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runbook.model.template import Edit, ParameterNames, Setting, SettingKind, Surroundings, TemplateFile
from runbook.template import CannotEdit, apply, find_settings, invert

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
    def known(self) -> Surroundings | None:
        environment = self.parts.get("environment")
        arguments = self.parts.get("arguments")
        if environment is None and arguments is None:
            return None
        pairs = dict(line.split("=", 1) for line in (environment or "").splitlines())
        return Surroundings(
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
    for path in sorted(CASES.glob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("##### ")[1:]:
            title, body = block.split("\n", 1)
            parts = {}
            for part in body.rstrip("\n").split("=== ")[1:]:
                head, _, text = part.partition("\n")
                whole = head.strip() in ("script", "text")
                parts[head.strip()] = text.rstrip("\n") + ("\n" if whole else "")
            cases.append(Case(f"{path.stem}: {title}", parts))
    return cases


ALL = load_cases()


def with_part(part: str) -> list[object]:
    return [pytest.param(case, id=case.title) for case in ALL if part in case.parts]


@pytest.mark.parametrize("case", with_part("settings"))
def test_the_value_in_force_or_where_the_trail_ended(case: Case) -> None:
    found: dict[str, Setting] = {item.parameter: item for item in find_settings(case.file, NAMES, case.known)}
    for line in case.parts["settings"].splitlines():
        parameter, sign, rest = re.fullmatch(r"(\w+) ([=?!]) ?(.*)", line).groups()  # type: ignore[union-attr]
        if sign == "!":
            assert parameter not in found
            continue
        assert parameter in found, f"{parameter} was not found"
        setting = found[parameter]
        if sign == "=":
            value, _, at = rest.rpartition(" @ ")
            assert (setting.value, setting.line, setting.unresolved) == (value, int(at), "")
        else:
            assert setting.value is None
            assert rest in setting.unresolved


@pytest.mark.parametrize("case", [*with_part("diff"), *with_part("text")])
def test_an_edit_changes_exactly_the_lines_of_the_case(case: Case) -> None:
    names = () if "without names" in case.parts else NAMES
    patch = apply((case.file,), case.edits, names=names, known=case.known)
    if "text" in case.parts:
        assert patch.files[0].text == case.parts["text"]
    else:
        changed = [line for line in patch.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        assert "\n".join(changed) == case.parts["diff"]
    assert invert(patch) == (case.file,)
    again = apply(patch.files, [_as_wanted(edit) for edit in case.edits], names=names, known=case.known)
    assert (again.splices, again.diff, again.files) == ((), "", patch.files)
    if "note" in case.parts:
        assert any(case.parts["note"] in note for note in patch.notes), patch.notes


@pytest.mark.parametrize("case", with_part("refused"))
def test_a_refusal_says_what_where_and_what_next(case: Case) -> None:
    with pytest.raises(CannotEdit) as caught:
        apply((case.file,), case.edits, names=NAMES, known=case.known)
    assert case.parts["refused"], "the case must say what the refusal is about"
    for wanted in case.parts["refused"].splitlines():
        assert wanted in f"{caught.value.what} {caught.value.where}"
    assert caught.value.what and caught.value.where and caught.value.next_step


def test_every_case_checks_something() -> None:
    assert len(ALL) >= 40
    assert not [case.title for case in ALL if not {"settings", "diff", "text", "refused"} & set(case.parts)]


def _as_wanted(edit: Edit) -> Edit:
    return Edit(edit.parameter, edit.kind, edit.spellings, edit.new, None, edit.flag)
