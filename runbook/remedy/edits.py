"""What a lever function gives back, and the one way to an edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runbook.model.template import Edit
from runbook.remedy.document import Parameter, Value
from runbook.remedy.situation import Refusal, Situation

Arguments = Mapping[str, Value | tuple[Value, ...]]


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
    spellings = parameter.spellings
    if setting is not None:
        spellings = (setting.spelling, *(item for item in spellings if item != setting.spelling))
    old = setting.value if setting is not None else None
    return Made((Edit(parameter.id, parameter.kind, spellings, new, old, parameter.type == "flag"),))
