"""The micro-batch and what keeps the global batch exactly: micro-batch × accumulation × data-parallel ranks."""

from __future__ import annotations

from runbook.model.log import Phase
from runbook.remedy.arguments import Arguments
from runbook.remedy.document import Parameter
from runbook.remedy.edits import Made, edit_of
from runbook.remedy.situation import Refusal, Situation, largest_divisor


def halve(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """At most half, such that the samples of a step still divide exactly; further where one request alone is
    larger than the GPU."""
    present = situation.number(parameter.id)
    spelling = parameter.spellings[0]
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
    samples = _samples(situation, parameter, present)
    if isinstance(samples, Refusal):
        return samples
    factor, remarks = factor_for_request(situation)
    new = largest_divisor(samples, max(present // factor, floor))
    if new < floor:
        return Refusal(f"no value from {floor} to {present // factor} divides {samples} exactly")
    made = edit_of(situation, parameter, str(new))
    if isinstance(made, Refusal):
        return made
    expected = f"what grows in proportion to {spelling} (activations, logits) falls to about {new}/{present}"
    return Made(made.edits, (*remarks, expected))


def double_to_keep_global_batch(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Raise the accumulation so that the global batch stays exactly the same. Comes after the micro-batch's own
    edit, and checks the template's own arithmetic first."""
    batch = situation.system.batch
    if batch is None:
        return Refusal("the system's document does not say what makes up the global batch")
    old_micro, new_text = situation.number(batch.micro), situation.changed.get(batch.micro)
    if isinstance(old_micro, Refusal):
        return old_micro
    if old_micro is None or new_text is None:
        return Refusal("the micro-batch size is not known")
    total = situation.total_batch()
    if isinstance(total, Refusal):
        return total
    ranks = situation.data_parallel()
    if isinstance(ranks, Refusal):
        return ranks
    if derives(situation) and total is not None:
        return _derived(old_micro, int(new_text), total, ranks)
    if derives(situation) and batch.total_when_absent == "micro_times_ranks":
        if ranks is not None and situation.ranks_not_certain:
            return Refusal(
                f"the global batch size is not set and cannot be pinned: {situation.ranks_not_certain}",
                "How many ranks (world size) does the training have? Write the global batch size into the template.",
            )
        return _pinned(situation, batch.total, old_micro, int(new_text), ranks)
    return _accumulated(situation, parameter, old_micro, int(new_text), total, ranks)


def derives(situation: Situation) -> bool:
    """Whether the program works the accumulation out of the global batch size by itself."""
    batch = situation.system.batch
    if batch is None or batch.accumulation_from_total == "never":
        return False
    if batch.accumulation_from_total == "always":
        return True
    return not situation.is_set(batch.accumulation) and situation.is_set(batch.total)


def _samples(situation: Situation, parameter: Parameter, present: int) -> int | Refusal:
    """What the new micro-batch has to divide: the samples of a step on one rank."""
    batch = situation.system.batch
    if batch is None or batch.micro != parameter.id:
        return present
    if not derives(situation):
        steps = situation.number(batch.accumulation) if batch.accumulation else 1
        return steps if isinstance(steps, Refusal) else present * (steps or 1)
    total, ranks = situation.total_batch(), situation.data_parallel()
    if isinstance(total, Refusal):
        return total
    if isinstance(ranks, Refusal):
        return ranks
    if total is not None and ranks is not None and total % (present * ranks) == 0:
        return total // ranks
    return present


def factor_for_request(situation: Situation) -> tuple[int, tuple[str, ...]]:
    """2, or the power of two that brings a request larger than the whole GPU below its capacity. Prior: the
    request grows in proportion to the micro-batch."""
    tried, capacity = situation.fields.tried_bytes, situation.fields.capacity_bytes
    if not tried or not capacity or tried <= capacity or situation.phase is Phase.INIT:
        return 2, ()
    factor = 2
    while tried > capacity * factor:
        factor *= 2
    if factor == 2:
        return 2, ()
    remark = f"one request alone is {tried / capacity:.1f} times the GPU, so the steps up to 1/{factor} are left out"
    return factor, (remark,)


def _derived(old_micro: int, new_micro: int, total: int, ranks: int | None) -> Made | Refusal:
    if ranks is None:
        return Refusal(
            "the number of data-parallel ranks is not known, so it is not certain that the batch divides",
            "On how many GPUs does the job run?",
        )
    if total % (old_micro * ranks):
        return Refusal(
            f"a global batch of {total} is no multiple of micro-batch {old_micro} × {ranks} ranks: the template's own "
            "numbers do not fit together"
        )
    if total % (new_micro * ranks):
        return Refusal(f"a global batch of {total} is no multiple of micro-batch {new_micro} × {ranks} ranks")
    steps = total // (new_micro * ranks)
    return Made((), (f"the program itself makes {steps} accumulation steps of the global batch of {total}",))


def _pinned(situation: Situation, total: str, old_micro: int, new_micro: int, ranks: int | None) -> Made | Refusal:
    if ranks is None:
        return Refusal(
            "the global batch size is not set and the number of ranks is not known, so it cannot be pinned",
            "On how many GPUs does the job run?",
        )
    if old_micro % new_micro:
        return Refusal(f"micro-batches of {new_micro} do not make up the present global batch of {old_micro * ranks}")
    made = edit_of(situation, situation.system.parameter(total), str(old_micro * ranks))
    if isinstance(made, Refusal):
        return made
    remark = f"the global batch was micro-batch × ranks = {old_micro * ranks} by default; it is pinned there"
    return Made(made.edits, (remark,))


def _accumulated(
    situation: Situation, parameter: Parameter, old_micro: int, new_micro: int, total: int | None, ranks: int | None
) -> Made | Refusal:
    steps = situation.number(parameter.id)
    if isinstance(steps, Refusal):
        return steps
    if steps is None:
        return Refusal(
            f"{parameter.spellings[0]} is not in the template and its default is not known, so the global batch could "
            "not be kept",
            f"How many accumulation steps does the job take? Write {parameter.spellings[0]} into the template.",
        )
    samples = old_micro * steps
    if total is not None and (total % samples or (ranks is not None and samples * ranks != total)):
        made_up = f"{old_micro} × {steps} × {ranks} ranks" if ranks is not None else f"a multiple of {samples}"
        return Refusal(f"the template's own numbers do not fit together: a global batch of {total} is not {made_up}")
    if samples % new_micro:
        return Refusal(f"{samples} samples of a step cannot be cut into micro-batches of {new_micro} exactly")
    made = edit_of(situation, parameter, str(samples // new_micro))
    if isinstance(made, Refusal):
        return made
    kept = f"{old_micro} × {steps} = {new_micro} × {samples // new_micro} samples of a step on each rank"
    return Made(made.edits, (kept,))
