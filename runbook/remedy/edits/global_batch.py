"""The micro-batch and what keeps the global batch exactly: micro-batch × accumulation × data-parallel ranks."""

from __future__ import annotations

import re
from dataclasses import replace

from runbook.model.log import Phase
from runbook.model.remedy import RANKS, AnswerKind, Ask
from runbook.model.sentences import Sentence
from runbook.model.sentences.of_levers import Say
from runbook.remedy.edits.parameter_edit import Edits, edit_of
from runbook.remedy.edits.values import numbers_of, place_of
from runbook.remedy.lever_context import Arguments, LeverContext, largest_divisor, product_of, texts_of
from runbook.remedy.lever_document import Parameter
from runbook.remedy.template_settings import RefusalReason, Refused, unknown


def halve(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """At most half, such that the samples of a step still divide exactly; further where one request alone is
    larger than the GPU."""
    present = context.template.number(parameter.id)
    spelling = parameter.spellings[0]
    if present is None:
        seen = numbers_of(context, parameter.id)[:1]
        raise unknown(
            Say.NOT_IN_TEMPLATE_NOT_KNOWN(spelling=spelling),
            Say.WHAT_IS_AND_IS_SET(spelling=spelling, place=place_of(seen[0]), name=seen[0].name, value=seen[0].value)
            if seen else Say.WHAT_IS(spelling=spelling), AnswerKind.VALUE, parameter.id,
        )
    floor = parameter.floor or 1
    if present <= floor:
        raise Refused(Say.SMALL_AS_IT_GETS(spelling=spelling, present=present))
    samples = _samples(context, parameter, present)
    factor, remarks = factor_for_request(context)
    most = context.most or present // factor
    new = largest_divisor(samples, max(most, floor))
    if new < floor:
        raise Refused(Say.NO_VALUE_DIVIDES_SAMPLES(floor=floor, most=most, samples=samples))
    made = edit_of(context, parameter, str(new))
    batch = context.template.system.batch
    if batch is not None and batch.micro == parameter.id and (variable := _variable_below(context)):
        made = Edits(tuple(replace(edit, variable=variable) for edit in made.edits))
    expected = Say.ACTIVATIONS_FALL_TO(spelling=spelling, new=new, present=present)
    return Edits(made.edits, (*remarks, expected))


def double_to_keep_global_batch(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Raise the accumulation so that the global batch stays exactly the same. Comes after the micro-batch's own
    edit, and checks the template's own arithmetic first."""
    batch = context.template.system.batch
    if batch is None:
        raise Refused(Say.BATCH_NOT_DESCRIBED())
    old_micro, new_text = context.template.number(batch.micro), context.changed.get(batch.micro)
    if old_micro is None or new_text is None:
        raise Refused(Say.MICRO_BATCH_SIZE_NOT_KNOWN())
    total = context.template.total_batch()
    ranks = context.data_parallel()
    if derives(context) and total is not None:
        return _derived(context, old_micro, int(new_text), total, ranks)
    if derives(context) and batch.total_when_absent == "micro_times_ranks":
        if ranks is not None and context.ranks_not_certain:
            raise Refused(
                Say.BATCH_CANNOT_BE_PINNED(why=context.ranks_not_certain), Say.HOW_LARGE_IS_THE_WORLD(),
                RefusalReason.RANKS_NOT_KNOWN, Ask(AnswerKind.VALUE, RANKS)
            )
        return _pinned(context, batch.total, old_micro, int(new_text), ranks)
    return _accumulated(context, parameter, old_micro, int(new_text), total, ranks)


def derives(context: LeverContext) -> bool:
    """Whether the program works the accumulation out of the global batch size by itself."""
    batch = context.template.system.batch
    if batch is None or batch.accumulation_from_total == "never":
        return False
    if batch.accumulation_from_total == "always":
        return True
    return not context.template.is_set(batch.accumulation) and context.template.is_set(batch.total)


def _samples(context: LeverContext, parameter: Parameter, present: int) -> int:
    """What the new micro-batch has to divide: the samples of a step on one rank."""
    batch = context.template.system.batch
    if batch is None or batch.micro != parameter.id:
        return present
    if _variable_below(context):
        return present
    if not derives(context):
        steps = context.template.number(batch.accumulation) if batch.accumulation else 1
        return present * (steps or 1)
    total, ranks = context.template.total_batch(), context.data_parallel()
    if total is not None and ranks is not None and total % (present * ranks) == 0:
        return total // ranks
    return present


def factor_for_request(context: LeverContext) -> tuple[int, tuple[Sentence, ...]]:
    """2, or the power of two that brings a request larger than the whole GPU below its capacity. Prior: the
    request grows in proportion to the micro-batch."""
    tried, capacity = context.fields.tried_bytes, context.fields.capacity_bytes
    if not tried or not capacity or tried <= capacity or context.phase in (Phase.INIT, Phase.RESUME):
        return 2, ()
    factor = 2
    while tried > capacity * factor:
        factor *= 2
    if factor == 2:
        return 2, ()
    remark = Say.STEPS_LEFT_OUT_FOR_REQUEST(times=tried / capacity, factor=factor)
    return factor, (remark,)


def _derived(context: LeverContext, old_micro: int, new_micro: int, total: int, ranks: int | None) -> Edits:
    if ranks is None and old_micro % new_micro == 0 and total % old_micro == 0:
        # Whatever the ranks: what divides by micro-batch × ranks divides by a part of that micro-batch × ranks, too.
        passes = Say.TIMES_AS_MANY_PASSES(times=old_micro // new_micro)
        return Edits((), (Say.PROGRAM_MAKES_PASSES(passes=passes, total=total),))
    if ranks is None:
        raise Refused(
            Say.DATA_PARALLEL_NOT_KNOWN_BATCH_OPEN(), Say.ON_HOW_MANY_GPUS(), RefusalReason.RANKS_NOT_KNOWN,
            Ask(AnswerKind.VALUE, RANKS)
        )
    if total % (old_micro * ranks):
        raise Refused(Say.OWN_BATCH_NO_MULTIPLE(total=total, old_micro=old_micro, ranks=ranks))
    if total % (new_micro * ranks):
        raise Refused(Say.NEW_BATCH_NO_MULTIPLE(total=total, new_micro=new_micro, ranks=ranks))
    steps = total // (new_micro * ranks)
    return Edits((), (Say.PROGRAM_MAKES_STEPS(steps=steps, total=total),))


def _pinned(context: LeverContext, total: str, old_micro: int, new_micro: int, ranks: int | None) -> Edits:
    if ranks is None:
        raise Refused(
            Say.BATCH_NOT_PINNED_RANKS_NOT_KNOWN(), Say.ON_HOW_MANY_GPUS(), RefusalReason.RANKS_NOT_KNOWN,
            Ask(AnswerKind.VALUE, RANKS)
        )
    if old_micro % new_micro:
        raise Refused(Say.MICRO_BATCHES_DO_NOT_MAKE_UP_BATCH(micro=new_micro, total=old_micro * ranks))
    made = edit_of(context, context.template.system.parameter(total), str(old_micro * ranks))
    remark = Say.BATCH_IS_PINNED(total=old_micro * ranks)
    return Edits(made.edits, (remark,))


def _accumulated(
    context: LeverContext, parameter: Parameter, old_micro: int, new_micro: int, total: int | None, ranks: int | None
) -> Edits:
    followed = _followed(context, parameter)
    if followed is not None:
        return followed
    steps = context.template.number(parameter.id)
    if steps is None:
        raise unknown(
            Say.NO_KNOWN_DEFAULT_BATCH_NOT_KEPT(spelling=parameter.spellings[0]),
            Say.HOW_MANY_ACCUMULATION_STEPS(spelling=parameter.spellings[0]), AnswerKind.VALUE, parameter.id
        )
    samples = old_micro * steps
    if total is not None and (total % samples or (ranks is not None and samples * ranks != total)):
        over_ranks = Say.OVER_RANKS(micro=old_micro, steps=steps, ranks=ranks)
        made_up = over_ranks if ranks is not None else Say.A_MULTIPLE_OF(samples=samples)
        raise Refused(Say.OWN_BATCH_DOES_NOT_FIT(total=total, made_up=made_up))
    if samples % new_micro:
        raise Refused(Say.SAMPLES_CANNOT_BE_CUT(samples=samples, new_micro=new_micro))
    made = edit_of(context, parameter, str(samples // new_micro))
    kept = Say.SAMPLES_OF_A_STEP(old_micro=old_micro, steps=steps, new_micro=new_micro, new_steps=samples // new_micro)
    return Edits(made.edits, (kept,))


def _followed(context: LeverContext, parameter: Parameter) -> Edits | None:
    """Where the script works the accumulation out of the micro-batch's own variable (`ACC=$((TOTAL / GPUS / MBS))`), it
    changes by itself. None where it does not."""
    variable = _variable_below(context)
    setting = context.template.setting(parameter.id)
    if not variable or setting is None or setting.unresolved is None:
        return None
    return Edits(
        (), (Say.FOLLOWS_FROM_VARIABLE(spelling=setting.spelling, variable=variable, code=setting.unresolved.code),)
    )


def _variable_below(context: LeverContext) -> str:
    """The variable that gives the micro-batch its value and divides in the script's computation of the accumulation; ""
    where there is none."""
    batch = context.template.system.batch
    if batch is None or not batch.accumulation:
        return ""
    steps, micro = context.template.setting(batch.accumulation), context.template.setting(batch.micro)
    if steps is None or steps.value is not None or steps.unresolved is None or micro is None or micro.value is None:
        return ""
    names = [match[1] for item in micro.trail if (match := re.match(r"([A-Za-z_]\w*) at line \d+$", item))]
    code = steps.unresolved.code
    return next((name for name in names if re.search(rf"/\s*\(?[^/;|&]*?\b{name}\b", code)), "")


# Edits of a micro-batch in a program that works its accumulation out of the global batch, for a part of the job's
# ranks.

def halve_dividing(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """At most half, such that micro-batch × ranks still divides the product of `whole` exactly. The ranks are the
    product of the parameters `ranks`, or all of the job where that is not given; `also` are those of a second group,
    which counts where one of them is set.

    For a program that divides with the remainder dropped (OpenRLHF, openrlhf/utils/deepspeed/deepspeed.py), so that a
    micro-batch that does not divide would change the global batch without a word."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.number(parameter.id)
    if present is None:
        raise unknown(
            Say.NOT_IN_TEMPLATE_NOT_KNOWN(spelling=spelling), Say.WHAT_IS(spelling=spelling), AnswerKind.VALUE,
            parameter.id
        )
    floor = parameter.floor or 1
    if present <= floor:
        raise Refused(Say.SMALL_AS_IT_GETS(spelling=spelling, present=present))
    whole = product_of(context, texts_of(arguments, "whole"))
    samples = whole
    for group in _groups(context, arguments):
        ranks = product_of(context, group) if group else context.world_size
        if ranks is None and present % 2 == 0 and whole % present == 0:
            samples = min(samples, present)  # whatever the ranks: half of it divides what it divided
            continue
        if ranks is None:
            raise Refused(
                Say.RANKS_NOT_KNOWN_BATCH_OPEN(), Say.ON_HOW_MANY_GPUS(), RefusalReason.RANKS_NOT_KNOWN,
                Ask(AnswerKind.VALUE, RANKS)
            )
        if whole % (present * ranks):
            named = " × ".join(context.template.spelling(name) for name in texts_of(arguments, "whole"))
            raise Refused(Say.OWN_WHOLE_NO_MULTIPLE(named=named, whole=whole, present=present, ranks=ranks))
        samples = min(samples, whole // ranks)
    factor, remarks = factor_for_request(context)
    new = largest_divisor(samples, max(context.most or present // factor, floor))
    made = edit_of(context, parameter, str(new))
    steps = Say.PROGRAM_MAKES_STEPS_OF_SAME_BATCH(steps=samples // new)
    for group in _groups(context, arguments):
        ranks = product_of(context, group) if group else context.world_size
        if ranks is not None and whole % (new * ranks):
            raise Refused(Say.NO_MICRO_BATCH_DIVIDES_EVERYWHERE(present=present))
        if ranks is None:
            steps = Say.PROGRAM_MAKES_TIMES_AS_MANY(times=present // new)
    expected = Say.PROPORTIONAL_FALLS_TO(spelling=spelling, new=new, present=present)
    return Edits(made.edits, (*remarks, expected, steps))


def _groups(context: LeverContext, arguments: Arguments) -> tuple[tuple[str, ...], ...]:
    first, second = texts_of(arguments, "ranks"), texts_of(arguments, "also")
    return (first, second) if any(context.template.is_set(name) for name in second) else (first,)
