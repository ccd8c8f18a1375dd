"""Edits of numbers and lists that keep no batch: token budgets, shares of the card, degrees, buffers, capture sizes."""

from __future__ import annotations

import re
from decimal import Decimal

from runbook.remedy.arguments import Arguments, product_of, texts_of, unknown
from runbook.remedy.document import Parameter
from runbook.remedy.edits import Made, edit_of
from runbook.remedy.situation import Refusal, Situation
from runbook.remedy.sizes import longest_sequence


def lower_budget(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Half of a token budget, held at `times` the longest sequence (`longest`, divided by `degree`) while it is above
    that, and at the longest sequence itself below. `absent` is the value to write where nothing is set; a parameter
    that is not set has the value of the parameter `like`, if that is given.

    The documentation of verl advises twice the longest sequence; the program needs it once."""
    spelling = situation.spelling(parameter.id)
    present = situation.number(parameter.id)
    if isinstance(present, Refusal):
        return present
    longest = longest_sequence(situation, arguments)
    if isinstance(longest, Refusal):
        return longest
    degree = product_of(situation, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    if present is None and "like" in arguments:
        present = situation.number(str(arguments["like"]))
        if isinstance(present, Refusal):
            return present
    hard = max(-(-longest // degree), parameter.floor or 1)
    soft = hard * int(str(arguments.get("times", 1)))
    if present is None:
        if "absent" not in arguments:
            return unknown(situation, parameter.id)
        return edit_of(situation, parameter, str(max(int(str(arguments["absent"])), soft)))
    new = max(present // 2, soft if present > soft else hard)
    if new >= present:
        return Refusal(f"{spelling} is {present} already, and the longest sequence of {longest} tokens has to fit")
    made = edit_of(situation, parameter, str(new))
    if isinstance(made, Refusal):
        return made
    return Made(made.edits, (f"what grows with the tokens of a micro-batch falls to about {new}/{present}",))


def shift(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """A decimal number changed by the argument `by`, between `lowest` and `highest`."""
    spelling = situation.spelling(parameter.id)
    present = situation.decimal(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is None:
        return Refusal(
            f"{spelling} is not in the template and its default is not known",
            f"What is {spelling}? Write it into the template with its present value.",
        )
    by = Decimal(str(arguments["by"]))
    new = present + by
    if "lowest" in arguments:
        new = max(new, Decimal(str(arguments["lowest"])))
    if "highest" in arguments:
        new = min(new, Decimal(str(arguments["highest"])))
    if (by < 0 and new >= present) or (by > 0 and new <= present):
        return Refusal(f"{spelling} is {present} already, as far as it goes")
    return edit_of(situation, parameter, _plain(new))


def halve_number(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Half of a number of which nothing has to be a multiple (a buffer, a limit on requests), not below the
    parameter's floor. `absent` is the value to write where nothing, or null, is set and no default is known; a
    parameter that is not set has the value of the parameter `like`, if that is given."""
    spelling = situation.spelling(parameter.id)
    written = situation.text(parameter.id)
    absent = isinstance(written, str) and written.lower() in ("null", "none")
    present = None if absent else situation.decimal(parameter.id)
    if present is None and "like" in arguments:
        present = situation.decimal(str(arguments["like"]))
    if isinstance(present, Refusal):
        return present
    if present is None:
        if "absent" not in arguments:
            return unknown(situation, parameter.id)
        return edit_of(situation, parameter, str(arguments["absent"]))
    if present <= 0:
        return Refusal(f"{spelling} is {present}, which switches it off or leaves it to the program")
    new = max(int(present) // 2, parameter.floor or 1)
    if new >= present:
        return Refusal(f"{spelling} is {present} already, as small as it gets")
    return edit_of(situation, parameter, str(new))


def next_below(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """The largest of `values` below the present one; the first of them where the present one is `off`. `absent` is the
    value to write where nothing is set and no default is known."""
    spelling = situation.spelling(parameter.id)
    present = situation.decimal(parameter.id)
    if isinstance(present, Refusal):
        return present
    values = [Decimal(item) for item in texts_of(arguments, "values")]
    if present is None and "absent" in arguments:
        return edit_of(situation, parameter, str(arguments["absent"]))
    if present is None:
        return unknown(situation, parameter.id)
    off = "off" in arguments and present == Decimal(str(arguments["off"]))
    new = next((item for item in values if off or item < present), None)
    if new is None:
        return Refusal(f"{spelling} is {present} already, as small as it gets")
    return edit_of(situation, parameter, _plain(new))


def double(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Twice a number, not above `highest`."""
    spelling = situation.spelling(parameter.id)
    present = situation.number(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is None:
        return unknown(situation, parameter.id)
    if "highest" in arguments and present * 2 > int(str(arguments["highest"])):
        return Refusal(f"{spelling} is {present} already, as large as it gets")
    return edit_of(situation, parameter, str(present * 2))


def follow(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """The same value that an earlier edit gave the parameter named by `as`, where this one is set to a number of its
    own (DeepSpeed's JSON beside the trainer's arguments); nothing where it is absent or "auto". With `referring`, only
    where it refers to that parameter (`ref.size: ${actor.size}`) and so changes with it."""
    new = situation.changed.get(str(arguments["as"]))
    setting = situation.setting(parameter.id)
    if setting is not None and "referring" in arguments:
        other = "${" + situation.spelling(str(arguments["as"])) + "}"
        if not any(step.startswith(other) for step in setting.trail):
            return Made(())
    if new is None or setting is None or setting.value == "auto":
        return Made(())
    if setting.value is None:
        return Refusal(
            f"{setting.spelling} is not known: {setting.unresolved}", f"What is {setting.spelling}? It has to agree."
        )
    return Made(()) if setting.value == new else edit_of(situation, parameter, new)


def multiply_as(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Multiplied by the factor by which an earlier edit raised the parameter named by `as`; nothing where it is not
    set, for its default follows in the program."""
    other = str(arguments["as"])
    before, new = situation.number(other), situation.changed.get(other)
    present = situation.number(parameter.id) if situation.is_set(parameter.id) else None
    if isinstance(before, Refusal):
        return before
    if isinstance(present, Refusal):
        return present
    if present is None or new is None or before is None:
        return Made(())
    if int(new) * present % before:
        return Refusal(f"{situation.spelling(parameter.id)} {present} × {new} / {before} is no whole number")
    return edit_of(situation, parameter, str(present * int(new) // before))


def halve_list(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """A list of sizes without those above half of the largest; `absent` is the list to write where there is none."""
    spelling = situation.spelling(parameter.id)
    text = situation.text(parameter.id)
    if isinstance(text, Refusal):
        return text
    if text is None or text.lower() in ("null", "none"):
        if "absent" not in arguments:
            return Refusal(f"{spelling} is not in the template", f"Which sizes does {spelling} have?")
        return edit_of(situation, parameter, str(arguments["absent"]))
    matched = re.fullmatch(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]", text)
    if matched is None:
        return Refusal(f"{spelling} is {text!r}, not a list of numbers")
    sizes = [int(item) for item in re.findall(r"\d+", text)]
    kept = [item for item in sizes if item * 2 <= max(sizes)]
    if not kept:
        return Refusal(f"{spelling} has no smaller size to keep")
    separator = ", " if ", " in text else ","
    return edit_of(situation, parameter, f"[{separator.join(str(item) for item in kept)}]")


def drop_from_list(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """A list without the item `value`."""
    spelling = situation.spelling(parameter.id)
    text = situation.text(parameter.id)
    if isinstance(text, Refusal):
        return text
    value = str(arguments["value"])
    if text is None or value not in re.findall(r"[\w.-]+", text):
        return Refusal(f"{spelling} does not list {value}")
    item = rf"""["']?{re.escape(value)}["']?"""
    new = re.sub(rf"""\s*,\s*{item}(?=\s*[,\]])|(?<=\[)\s*{item}\s*(?:,\s*|(?=\]))""", "", text, count=1)
    if new == text or new.replace(" ", "") == "[]":
        return Refusal(f"{spelling} is {text!r}, from which {value} cannot be taken")
    return edit_of(situation, parameter, new)


def move_parallelism(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Half of one letter's degree to another's in a string such as "sglang:d4" or "sglang:d4+d2t2" (AReaL): the GPUs
    stay the same. `part` is a pattern for the engine with its colon; `give` and `take` are the letters."""
    spelling = situation.spelling(parameter.id)
    text = situation.text(parameter.id)
    if isinstance(text, Refusal):
        return text
    if text is None:
        return Refusal(f"{spelling} is not in the template", f"What is {spelling}?")
    give, take = str(arguments["give"]), str(arguments["take"])
    matched = re.search(rf"(?:^|\+)({arguments['part']})((?:[a-z]\d{{1,5}})+)(?=$|\+)", text)
    if matched is None:
        return Refusal(f"{spelling} is {text!r}, in which the degrees to move do not stand by themselves")
    degrees = dict(re.findall(r"([a-z])(\d+)", matched[2]))
    present = int(degrees.get(give, "1"))
    if present % 2:
        return Refusal(f"{spelling} is {text!r}: {give}{present} cannot be halved")
    degrees[give] = str(present // 2)
    degrees[take] = str(int(degrees.get(take, "1")) * 2)
    letters = "".join(f"{letter}{degree}" for letter, degree in degrees.items())
    return edit_of(situation, parameter, text[: matched.start(2)] + letters + text[matched.end(2) :])


def _plain(number: Decimal) -> str:
    """0.8, 4096: without exponent or trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
