"""The micro-batch and what keeps the global batch exactly: micro-batch × accumulation × data-parallel ranks."""

from __future__ import annotations

import re
from dataclasses import replace

from runbook.model.log import Phase
from runbook.model.remedy import RANKS, AnswerKind, Ask
from runbook.remedy.edits.parameter_edit import Edits, edit_of
from runbook.remedy.lever_context import Arguments, LeverContext, largest_divisor, product_of, texts_of
from runbook.remedy.lever_document import Parameter
from runbook.remedy.template_settings import RefusalReason, Refused, unknown


def halve(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """At most half, such that the samples of a step still divide exactly; further where one request alone is
    larger than the GPU."""
    present = context.template.number(parameter.id)
    spelling = parameter.spellings[0]
    if present is None:
        raise unknown(
            f"{spelling} is not in the template, so its value is not known", f"What is {spelling}?", AnswerKind.VALUE,
            parameter.id,
        )
    floor = parameter.floor or 1
    if present <= floor:
        raise Refused(f"{spelling} is {present} already, as small as it gets")
    samples = _samples(context, parameter, present)
    factor, remarks = factor_for_request(context)
    most = context.most or present // factor
    new = largest_divisor(samples, max(most, floor))
    if new < floor:
        raise Refused(f"no value from {floor} to {most} divides {samples} exactly")
    made = edit_of(context, parameter, str(new))
    batch = context.template.system.batch
    if batch is not None and batch.micro == parameter.id and (variable := _variable_below(context)):
        made = Edits(tuple(replace(edit, variable=variable) for edit in made.edits))
    expected = f"what grows in proportion to {spelling} (activations, logits) falls to about {new}/{present}"
    return Edits(made.edits, (*remarks, expected))


def double_to_keep_global_batch(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Raise the accumulation so that the global batch stays exactly the same. Comes after the micro-batch's own
    edit, and checks the template's own arithmetic first."""
    batch = context.template.system.batch
    if batch is None:
        raise Refused("the system's document does not say what makes up the global batch")
    old_micro, new_text = context.template.number(batch.micro), context.changed.get(batch.micro)
    if old_micro is None or new_text is None:
        raise Refused("the micro-batch size is not known")
    total = context.template.total_batch()
    ranks = context.data_parallel()
    if derives(context) and total is not None:
        return _derived(context, old_micro, int(new_text), total, ranks)
    if derives(context) and batch.total_when_absent == "micro_times_ranks":
        if ranks is not None and context.ranks_not_certain:
            raise Refused(
                f"the global batch size is not set and cannot be pinned: {context.ranks_not_certain}",
                "How many ranks (world size) does the training have?", RefusalReason.RANKS_NOT_KNOWN,
                Ask(AnswerKind.VALUE, RANKS),
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


def factor_for_request(context: LeverContext) -> tuple[int, tuple[str, ...]]:
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
    remark = f"one request alone is {tried / capacity:.1f} times the GPU, so the steps up to 1/{factor} are left out"
    return factor, (remark,)


def _derived(context: LeverContext, old_micro: int, new_micro: int, total: int, ranks: int | None) -> Edits:
    if ranks is None and old_micro % new_micro == 0 and total % old_micro == 0:
        # Whatever the ranks: what divides by micro-batch × ranks divides by a part of that micro-batch × ranks, too.
        passes = f"{old_micro // new_micro} times as many passes"
        return Edits((), (f"the program itself makes {passes} of the same global batch of {total}",))
    if ranks is None:
        raise Refused(
            "the number of data-parallel ranks is not known, so it is not certain that the batch divides",
            "On how many GPUs does the job run?", RefusalReason.RANKS_NOT_KNOWN, Ask(AnswerKind.VALUE, RANKS),
        )
    if total % (old_micro * ranks):
        raise Refused(
            f"a global batch of {total} is no multiple of micro-batch {old_micro} × {ranks} ranks: the template's own "
            "numbers do not fit together"
        )
    if total % (new_micro * ranks):
        raise Refused(f"a global batch of {total} is no multiple of micro-batch {new_micro} × {ranks} ranks")
    steps = total // (new_micro * ranks)
    return Edits((), (f"the program itself makes {steps} accumulation steps of the global batch of {total}",))


def _pinned(context: LeverContext, total: str, old_micro: int, new_micro: int, ranks: int | None) -> Edits:
    if ranks is None:
        raise Refused(
            "the global batch size is not set and the number of ranks is not known, so it cannot be pinned",
            "On how many GPUs does the job run?", RefusalReason.RANKS_NOT_KNOWN, Ask(AnswerKind.VALUE, RANKS),
        )
    if old_micro % new_micro:
        raise Refused(f"micro-batches of {new_micro} do not make up the present global batch of {old_micro * ranks}")
    made = edit_of(context, context.template.system.parameter(total), str(old_micro * ranks))
    remark = f"the global batch was micro-batch × ranks = {old_micro * ranks} by default; it is pinned there"
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
            f"{parameter.spellings[0]} is not in the template and its default is not known, so the global batch could "
            "not be kept",
            f"How many accumulation steps does the job take ({parameter.spellings[0]})?", AnswerKind.VALUE,
            parameter.id,
        )
    samples = old_micro * steps
    if total is not None and (total % samples or (ranks is not None and samples * ranks != total)):
        made_up = f"{old_micro} × {steps} × {ranks} ranks" if ranks is not None else f"a multiple of {samples}"
        raise Refused(f"the template's own numbers do not fit together: a global batch of {total} is not {made_up}")
    if samples % new_micro:
        raise Refused(f"{samples} samples of a step cannot be cut into micro-batches of {new_micro} exactly")
    made = edit_of(context, parameter, str(samples // new_micro))
    kept = f"{old_micro} × {steps} = {new_micro} × {samples // new_micro} samples of a step on each rank"
    return Edits(made.edits, (kept,))


def _followed(context: LeverContext, parameter: Parameter) -> Edits | None:
    """Where the script works the accumulation out of the micro-batch's own variable (`ACC=$((TOTAL / GPUS / MBS))`), it
    changes by itself. None where it does not."""
    variable = _variable_below(context)
    setting = context.template.setting(parameter.id)
    if not variable or setting is None or setting.unresolved is None:
        return None
    return Edits((), (f"{setting.spelling} follows from {variable} in the script: {setting.unresolved.code}",))


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
            f"{spelling} is not in the template, so its value is not known", f"What is {spelling}?", AnswerKind.VALUE,
            parameter.id,
        )
    floor = parameter.floor or 1
    if present <= floor:
        raise Refused(f"{spelling} is {present} already, as small as it gets")
    whole = product_of(context, texts_of(arguments, "whole"))
    samples = whole
    for group in _groups(context, arguments):
        ranks = product_of(context, group) if group else context.world_size
        if ranks is None and present % 2 == 0 and whole % present == 0:
            samples = min(samples, present)  # whatever the ranks: half of it divides what it divided
            continue
        if ranks is None:
            raise Refused(
                "the number of ranks is not known, so it is not certain that the batch divides",
                "On how many GPUs does the job run?", RefusalReason.RANKS_NOT_KNOWN, Ask(AnswerKind.VALUE, RANKS),
            )
        if whole % (present * ranks):
            named = " × ".join(context.template.spelling(name) for name in texts_of(arguments, "whole"))
            raise Refused(
                f"{named} {whole} is no multiple of micro-batch {present} × {ranks} ranks: the template's own numbers "
                "do not fit together"
            )
        samples = min(samples, whole // ranks)
    factor, remarks = factor_for_request(context)
    new = largest_divisor(samples, max(context.most or present // factor, floor))
    made = edit_of(context, parameter, str(new))
    steps = f"the program itself makes {samples // new} accumulation steps of the same global batch"
    for group in _groups(context, arguments):
        ranks = product_of(context, group) if group else context.world_size
        if ranks is not None and whole % (new * ranks):
            raise Refused(f"no micro-batch below {present} divides the batch exactly on every part of the job")
        if ranks is None:
            steps = f"the program itself makes {present // new} times as many passes of the same global batch"
    expected = f"what grows in proportion to {spelling} falls to about {new}/{present}"
    return Edits(made.edits, (*remarks, expected, steps))


def _groups(context: LeverContext, arguments: Arguments) -> tuple[tuple[str, ...], ...]:
    first, second = texts_of(arguments, "ranks"), texts_of(arguments, "also")
    return (first, second) if any(context.template.is_set(name) for name in second) else (first,)
