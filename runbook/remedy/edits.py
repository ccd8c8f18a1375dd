"""What a lever function gives back, and the one way to an edit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook.model.template import Edit, SettingKind, condition_of
from runbook.remedy.arguments import Arguments
from runbook.remedy.document import Parameter
from runbook.remedy.release import spelling_to_write, with_prefix
from runbook.remedy.situation import Refusal, Situation


@dataclass(frozen=True, slots=True)
class Made:
    """Edits of one function, with what a person should know about them."""

    edits: tuple[Edit, ...]
    remarks: tuple[str, ...] = ()


Function = Callable[[Situation, Parameter, Arguments], Made | Refusal]


def edit_of(situation: Situation, parameter: Parameter, new: str | None) -> Made | Refusal:
    """Set a parameter, in the spelling that the template has; refused where it may not be added."""
    setting = situation.setting(parameter.id)
    if setting is None and not parameter.addable:
        return Refusal(
            f"{parameter.spellings[0]} is not in the template, and a program that does not know it could go on with "
            "another experiment",
            f"Does the program take {parameter.spellings[0]}? Then write it into the template with its present value.",
        )
    if setting is not None and setting.file.endswith(".py"):
        where = f"{setting.file}:{setting.line}" if setting.line else setting.file
        return Refusal(
            f"{condition_of(setting.spelling)[0]} {setting.value} stands in the program itself ({where}), which is not "
            "edited",
            f"Can the program take {parameter.spellings[0]} from its command line or a configuration file?",
        )
    spellings: tuple[str, ...] | Refusal
    if setting is not None:
        spellings = parameter.spellings_after(setting.spelling)
    else:
        spellings = spelling_to_write(situation, parameter)
        if isinstance(spellings, Refusal):
            return spellings
        spellings = _where_the_batch_is(situation, parameter, spellings)
        spellings = with_prefix(situation.system, parameter, spellings)
    old = setting.value if setting is not None else None
    return Made((Edit(parameter.id, parameter.kind, spellings, new, old, parameter.type == "flag"),))


def _where_the_batch_is(
    situation: Situation, parameter: Parameter, spellings: tuple[str, ...]
) -> tuple[str, ...]:
    """The key in front of the option where the micro-batch is a key of a configuration file: a program that reads all
    of its arguments from a file may take none beside it (transformers, hf_argparser.py)."""
    micro = situation.setting(situation.system.batch.micro) if situation.system.batch is not None else None
    in_file = micro is not None and micro.file.endswith((".yaml", ".yml", ".json", ".toml"))
    if not in_file or parameter.kind is not SettingKind.KEY or parameter.launcher:
        return spellings
    return tuple(sorted(spellings, key=lambda item: item.startswith("-")))
