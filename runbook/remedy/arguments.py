"""The arguments that a lever document gives its functions and constraints, and the parameters that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbook.remedy.document import Value
from runbook.remedy.situation import Refusal, Situation

Arguments = Mapping[str, Value | tuple[Value, ...]]


def texts_of(arguments: Arguments, name: str) -> tuple[str, ...]:
    """What an argument lists, a single value as a list of one; nothing where it is not given."""
    if name not in arguments:
        return ()
    value = arguments[name]
    return tuple(str(item) for item in value) if isinstance(value, tuple) else (str(value),)


def text_of(arguments: Arguments, name: str) -> str:
    """The value of an argument that has to be given; the first where it is a list."""
    return texts_of(arguments, name)[0]


def product_of(situation: Situation, parameters: Sequence[str], *, unset_is_one: bool = False) -> int | Refusal:
    """The product of parameters' numbers. One that is neither set nor known by default is asked for, or counts as one
    with `unset_is_one`."""
    product = 1
    for parameter in parameters:
        number = situation.number(parameter)
        if isinstance(number, Refusal):
            return number
        if number is None and not unset_is_one:
            return unknown(situation, parameter)
        product *= number or 1
    return product


def unknown(situation: Situation, parameter: str) -> Refusal:
    """For a parameter that is neither set nor known by default."""
    spelling = situation.spelling(parameter)
    return Refusal(f"{spelling} is not in the template and its default is not known", f"What is {spelling}?")
