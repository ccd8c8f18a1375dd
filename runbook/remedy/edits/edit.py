"""What a lever function gives back, and the one way to an edit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook.model.template import Edit, SettingKind, condition_of
from runbook.remedy.lever_context import Arguments, LeverContext, Refusal, spelling_to_write, with_prefix
from runbook.remedy.lever_document import Parameter


@dataclass(frozen=True, slots=True)
class Edits:
    """Edits of one function, with what a person should know about them."""

    edits: tuple[Edit, ...]
    remarks: tuple[str, ...] = ()


Function = Callable[[LeverContext, Parameter, Arguments], Edits | Refusal]


def edit_of(context: LeverContext, parameter: Parameter, new: str | None) -> Edits | Refusal:
    """Set a parameter, in the spelling that the template has; refused where it may not be added."""
    setting = context.setting(parameter.id)
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
        spellings = spelling_to_write(context, parameter)
        if isinstance(spellings, Refusal):
            return spellings
        spellings = _where_the_batch_is(context, parameter, spellings)
        spellings = with_prefix(context.system, parameter, spellings)
    old = setting.value if setting is not None else None
    return Edits((Edit(parameter.id, parameter.kind, spellings, new, old, parameter.type == "flag"),))


def _where_the_batch_is(
    context: LeverContext, parameter: Parameter, spellings: tuple[str, ...]
) -> tuple[str, ...]:
    """The key in front of the option where the micro-batch is a key of a configuration file: a program that reads all
    of its arguments from a file may take none beside it (transformers, hf_argparser.py)."""
    micro = context.setting(context.system.batch.micro) if context.system.batch is not None else None
    in_file = micro is not None and micro.file.endswith((".yaml", ".yml", ".json", ".toml"))
    if not in_file or parameter.kind is not SettingKind.KEY or parameter.launcher:
        return spellings
    return tuple(sorted(spellings, key=lambda item: item.startswith("-")))
