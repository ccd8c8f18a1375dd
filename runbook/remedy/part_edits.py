"""Edits of a micro-batch in a program that works its accumulation out of the global batch, for a part of the job's
ranks."""

from __future__ import annotations

from runbook.remedy.arguments import Arguments, product_of, texts_of
from runbook.remedy.batch import factor_for_request
from runbook.remedy.document import Parameter
from runbook.remedy.edits import Made, edit_of
from runbook.remedy.situation import Refusal, Situation, largest_divisor


def halve_dividing(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """At most half, such that micro-batch × ranks still divides the product of `whole` exactly. The ranks are the
    product of the parameters `ranks`, or all of the job where that is not given; `also` are those of a second group,
    which counts where one of them is set.

    For a program that divides with the remainder dropped (OpenRLHF, openrlhf/utils/deepspeed/deepspeed.py), so that a
    micro-batch that does not divide would change the global batch without a word."""
    spelling = situation.spelling(parameter.id)
    present = situation.number(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is None:
        return Refusal(
            f"{spelling} is not in the template, so its value is not known",
            f"What is {spelling}? Write it into the template with its present value.",
        )
    floor = parameter.floor or 1
    if present <= floor:
        return Refusal(f"{spelling} is {present} already, as small as it gets")
    whole = product_of(situation, texts_of(arguments, "whole"))
    if isinstance(whole, Refusal):
        return whole
    samples = whole
    for group in _groups(situation, arguments):
        ranks = product_of(situation, group) if group else situation.world_size
        if isinstance(ranks, Refusal):
            return ranks
        if ranks is None:
            return Refusal("the number of ranks is not known, so it is not certain that the batch divides")
        if whole % (present * ranks):
            named = " × ".join(situation.spelling(name) for name in texts_of(arguments, "whole"))
            return Refusal(
                f"{named} {whole} is no multiple of micro-batch {present} × {ranks} ranks: the template's own numbers "
                "do not fit together"
            )
        samples = min(samples, whole // ranks)
    factor, remarks = factor_for_request(situation)
    new = largest_divisor(samples, max(present // factor, floor))
    made = edit_of(situation, parameter, str(new))
    if isinstance(made, Refusal):
        return made
    for group in _groups(situation, arguments):
        ranks = product_of(situation, group) if group else situation.world_size
        assert isinstance(ranks, int)
        if whole % (new * ranks):
            return Refusal(f"no micro-batch below {present} divides the batch exactly on every part of the job")
    steps = f"the program itself makes {samples // new} accumulation steps of the same global batch"
    expected = f"what grows in proportion to {spelling} falls to about {new}/{present}"
    return Made(made.edits, (*remarks, expected, steps))


def _groups(situation: Situation, arguments: Arguments) -> tuple[tuple[str, ...], ...]:
    first, second = texts_of(arguments, "ranks"), texts_of(arguments, "also")
    return (first, second) if any(situation.is_set(name) for name in second) else (first,)
