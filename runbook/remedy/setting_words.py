"""Constraints on which settings stand beside one another (one of several, a larger one, one that wins from a file), and
on who held the card's memory."""

from __future__ import annotations

from posixpath import basename

from runbook.model.units import GIB
from runbook.remedy.arguments import Arguments, text_of, texts_of
from runbook.remedy.situation import Refusal, Situation

_NO = frozenset({"false", "none", "null", ""})


def any_in_force(situation: Situation, arguments: Arguments) -> Refusal | None:
    """At least one of `parameters` is set, not to a word for no or to zero. `why` says what follows where none is."""
    named = texts_of(arguments, "parameters")
    for parameter in named:
        text = situation.text(parameter)
        if isinstance(text, Refusal) or (text is not None and not off(text)):
            return None
    shown = ", ".join(situation.spelling(parameter) for parameter in named)
    said = f"none of {shown} is set" if len(named) > 1 else f"{shown} is not set"
    return Refusal(f"{said}, so {arguments['why']}")


def stands_as(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The template says in plain text that `parameter` is one of `values`. Nobody is asked where it does not: the lever
    is for what is seen there."""
    setting = situation.setting(text_of(arguments, "parameter"))
    spelling = situation.spelling(text_of(arguments, "parameter"))
    if setting is None:
        return Refusal(f"{spelling} is not in the template")
    if setting.value is None:
        return Refusal(f"{spelling} is not known: {setting.unresolved}")
    if setting.value.lower() in {item.lower() for item in texts_of(arguments, "values")}:
        return None
    return Refusal(f"{spelling} is {setting.value}")


def larger_than(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The number of `parameter` is above that of `other`. `why` says what follows where it is not."""
    numbers = []
    for name in ("parameter", "other"):
        number = situation.decimal(text_of(arguments, name))
        if isinstance(number, Refusal):
            return number
        numbers.append(number)
    first, second = numbers
    if first is not None and second is not None and first > second:
        return None
    shown, other = (situation.spelling(text_of(arguments, name)) for name in ("parameter", "other"))
    return Refusal(f"{shown} is not above {other}, so {arguments['why']}")


def not_overridden(situation: Situation, arguments: Arguments) -> Refusal | None:
    """No file named by the option `config` sets one of `keys`: its values win over the command line.

    slime and Relax set every key of --custom-config-path over the parsed arguments (slime/utils/arguments.py,
    relax/utils/arguments.py). A file that was not read may set anything, so a person is asked."""
    option = text_of(arguments, "config")
    if not situation.is_set(option):
        return None
    path = situation.text(option)
    if isinstance(path, Refusal):
        return path
    spelling = situation.spelling(option)
    for parameter in texts_of(arguments, "keys"):
        setting = situation.setting(parameter)
        if setting is not None:
            shown = setting.value if setting.value is not None else "to a value that is not known"
            return Refusal(
                f"{setting.spelling} {shown} of {setting.file or spelling} wins over the command line",
                f"May {setting.spelling} be changed in {setting.file or path}? It wins over the launch template.",
            )
    if basename(path or "") in {basename(name) for name in situation.files}:
        return None
    keys = " or ".join(situation.spelling(parameter) for parameter in texts_of(arguments, "keys"))
    return Refusal(
        f"what {spelling} {path} sets is not known", f"Does {path} set {keys}? It wins over the command line."
    )


def free_held_the_request(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The card had the memory free that was asked for, and it was not given: something keeps it back."""
    free, tried = situation.fields.free_bytes, situation.fields.tried_bytes
    if free is None or tried is None:
        return Refusal("what was free when the request failed is not in the log")
    if free >= tried:
        return None
    return Refusal("less was free on the card than was asked for")


def others_hold(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Other processes hold at least `percent` of the card, as the failed process's message shows.

    An engine that left the card keeps its context and little more, so its share is nothing to lower then."""
    fields = situation.fields
    capacity, free, own = fields.capacity_bytes, fields.free_bytes, fields.process_bytes
    held: int = sum(item.bytes or 0 for item in fields.other_processes)
    if not held and capacity is not None and free is not None and own is not None:
        held = capacity - free - own
    elif not held:
        return Refusal("whether another process holds memory of the card is not in the log")
    if capacity is not None and held * 100 >= capacity * int(str(arguments["percent"])):
        return None
    return Refusal(
        f"other processes hold {max(held, 0) / GIB:.1f} GiB of the card, so a smaller share of theirs frees little"
    )


def off(text: str) -> bool:
    """A word for no, or a zero however it is written: 0, 0.0, 0.00."""
    lowered = text.strip().lower()
    return lowered in _NO or (lowered.strip("0.") == "" and lowered.count(".") <= 1)
