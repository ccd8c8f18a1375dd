"""Constraints on sizes: token budgets, degrees, buffers, batches.

Lever documents name them, to be checked before a lever's edits or on what they would make.

A constraint whose inputs are not known refuses with the question that would settle it: what is not known is not
assumed to fit.
"""

from __future__ import annotations

from math import prod

from runbook.model.units import GIB
from runbook.remedy.constraints.setting_values import in_force
from runbook.remedy.lever_context import Arguments, LeverContext, product_of, text_of, texts_of
from runbook.remedy.template_settings import Refused, ranks_not_known


def budget_holds_longest(context: LeverContext, arguments: Arguments) -> None:
    """A token budget must hold the longest sequence: `budget` × `degree` ≥ the sum of `longest`, `times` over.

    verl asserts it (verl/utils/seqlen_balancing.py), AReaL raises (areal/utils/seqpack.py), Relax raises; slime packs a
    sample that is too long alone and the failure comes back."""
    budget = context.template.number(text_of(arguments, "budget"))
    longest = longest_sequence(context, arguments)
    if budget is None:
        return
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    wanted = longest * int(str(arguments.get("times", 1)))
    if budget * degree >= wanted:
        return
    over = f" on each of {degree} ranks that share a sequence" if degree > 1 else ""
    spelling = context.template.spelling(text_of(arguments, "budget"))
    raise Refused(f"{spelling} {budget}{over} would not hold the longest sequence of {longest} tokens")


def longest_sequence(context: LeverContext, arguments: Arguments) -> int:
    """The parameter named by `sequence`, where it is known, else the sum of those named by `longest`; refused with a
    question where one of these is not known either."""
    for parameter in texts_of(arguments, "sequence"):
        whole = context.template.number(parameter)
        if whole is not None:
            return whole
    total = 0
    for parameter in texts_of(arguments, "longest"):
        part = context.template.number(parameter)
        if part is None:
            spelling = context.template.spelling(parameter)
            if "sequence" in arguments:  # both bound what is trained on, so neither is asked to be written
                whole_one = context.template.spelling(text_of(arguments, "sequence"))
                raise Refused(
                    f"neither {whole_one} nor {spelling} is in the template, so the longest sequence is not known",
                    "How many tokens can a sample have at most, prompt and answer together? Written into the template "
                    f"as {whole_one} it changes nothing, as long as no sample is longer.",
                )
            raise Refused(
                f"{spelling} is not in the template, so the longest sequence is not known",
                f"What is {spelling}? Write it into the template with its present value.",
            )
        total += part
    return total


def divides(context: LeverContext, arguments: Arguments) -> None:
    """The product of `part` divides the product of `whole`. A factor that is neither set nor known by default leaves it
    open, which is refused with a question."""
    part, whole = (product_of(context, texts_of(arguments, name)) for name in ("part", "whole"))
    if whole % part == 0:
        return
    raise Refused(f"{_shown(context, arguments, 'part')} does not divide {_shown(context, arguments, 'whole')}")


def divides_heads(context: LeverContext, arguments: Arguments) -> None:
    """A degree must divide the attention heads; with `kv_heads`, those too, or be a multiple of them.

    verl/models/transformers/monkey_patch.py (Ulysses), tensor parallelism of Megatron, vLLM and SGLang."""
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    if degree == 1:
        return
    for name in ("heads", "kv_heads"):
        if name not in arguments:
            continue
        parameter = text_of(arguments, name)
        heads = context.template.number(parameter)
        words = "attention heads" if name == "heads" else "key-value heads"
        if heads is None:
            raise Refused(
                f"how many {words} the model has is not in the template", f"Does {degree} divide the model's {words}?"
            )
        if heads % degree and (name == "heads" or degree % heads):
            raise Refused(f"a degree of {degree} does not go with {heads} {words}")
    if "heads" not in arguments:
        raise Refused(
            "how many attention heads the model has is not in the template",
            f"Does {degree} divide the model's attention heads and its key-value heads?",
        )
    return


def divides_ranks(context: LeverContext, arguments: Arguments) -> None:
    """The product of `degrees` must divide the number of ranks."""
    degrees = product_of(context, texts_of(arguments, "degrees"), unset_is_one=True)
    world = context.world_size
    if world is None:
        raise ranks_not_known(f"Does {degrees} divide the number of GPUs?")
    if world % degrees == 0:
        return
    raise Refused(f"{_shown(context, arguments, 'degrees')} does not divide the {world} ranks")


def buffer_holds_largest_tensor(context: LeverContext, arguments: Arguments) -> None:
    """A weight-sync buffer must hold the largest tensor: the embedding (vocabulary × hidden size), or one bundle of
    experts, in two bytes a number.

    verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py; slime update_weight/expert_routing.py. `unit` is the
    bytes of one unit of the buffer's parameter (1048576 where it counts MiB)."""
    buffer = context.template.number(text_of(arguments, "buffer"))
    if buffer is None:
        return
    unit = int(str(arguments.get("unit", 1)))
    shape = []
    for name in ("vocabulary", "hidden"):
        number = context.template.number(text_of(arguments, name)) if name in arguments else None
        shape.append(number)
    shown = f"{buffer * unit / GIB:.2f} GiB"
    if None in shape:
        raise Refused(
            "how large the model's largest tensor is, is not in the template (vocabulary × hidden size × 2 bytes)",
            f"Is every tensor of the model, and every bundle of experts, smaller than {shown}?",
        )
    if any(in_force(context, item) for item in texts_of(arguments, "experts")):
        raise Refused(
            "how large one bundle of experts is, is not in the template",
            f"Is every bundle of experts smaller than {shown}?",
        )
    needed = 2 * prod(item for item in shape if item is not None)
    if needed <= buffer * unit:
        return
    raise Refused(f"the embedding alone needs {needed / GIB:.2f} GiB, more than a buffer of {shown}")


def _shown(context: LeverContext, arguments: Arguments, name: str) -> str:
    parts = []
    for parameter in texts_of(arguments, name):
        parts.append(f"{context.template.spelling(parameter)} {context.template.number(parameter) or 1}")
    return " × ".join(parts)


def whole_per_rank(context: LeverContext, arguments: Arguments) -> None:
    """The product of `parameters` (an unset one counts as one) is a multiple of the number of ranks: a size over all
    ranks has to leave each a whole part."""
    whole = product_of(context, texts_of(arguments, "parameters"), unset_is_one=True)
    world = context.world_size
    named = " × ".join(context.template.spelling(item) for item in texts_of(arguments, "parameters"))
    if world is None:
        raise ranks_not_known(f"Is {named} = {whole} a multiple of the GPUs?")
    if whole % world == 0:
        return
    raise Refused(f"{named} would be {whole}, which does not give each of {world} ranks a whole part")


def budget_below_batch(context: LeverContext, arguments: Arguments) -> None:
    """A token budget (`budget`) holds fewer tokens than a micro-batch of full sequences did (`micro` × the longest,
    shared by `degree` ranks): else going over to it would take more memory, not less."""
    total = longest_sequence(context, arguments)
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    budget, micro = (context.template.number(text_of(arguments, name)) for name in ("budget", "micro"))
    if budget is None or micro is None:
        raise Refused(f"{context.template.spelling(texts_of(arguments, 'micro')[0])} is not in the template")
    if budget * degree < micro * total:
        return
    raise Refused(f"a budget of {budget} tokens is no less than the {micro} × {total} of the present micro-batch")


def whole_rounds(context: LeverContext, arguments: Arguments) -> None:
    """The number `total`, where it is set, is a multiple of `micro` × ranks. `ranks` names a parameter that says how
    many ranks there are where the job has other GPUs too.

    TRL wants a round of generation to be whole micro-batches (trl/trainer/grpo_config.py)."""
    total = context.template.number(text_of(arguments, "total"))
    if total is None:
        return
    micro = context.template.number(text_of(arguments, "micro"))
    ranks = _ranks(context, arguments)
    if micro is None:
        return
    spelling = context.template.spelling(text_of(arguments, "total"))
    if ranks is None:
        raise ranks_not_known(f"Is {spelling} {total} a multiple of {micro} × the ranks?")
    if total % (micro * ranks) == 0:
        return
    raise Refused(f"{spelling} {total} is no multiple of {micro} × {ranks} ranks")


def whole_groups(context: LeverContext, arguments: Arguments) -> None:
    """`size` × ranks is a multiple of the first of `groups` that is set; nothing is asked where none is.

    With `versions`, only where one of them is possible; then `question` is asked, for it may be another.

    TRL wants whole groups of completions in each batch of an evaluation (trl/trainer/grpo_config.py), and up to 0.16 in
    each step's micro-batches too (trl/trainer/grpo_trainer.py)."""
    versions = set(texts_of(arguments, "versions"))
    if versions and context.template.releases and not versions & {item.id for item in context.template.releases}:
        return
    group_name = next((name for name in texts_of(arguments, "groups") if context.template.is_set(name)), "")
    if not group_name:
        return
    size, group = context.template.number(text_of(arguments, "size")), context.template.number(group_name)
    ranks = _ranks(context, arguments)
    if size is None or group is None:
        return
    spelling = context.template.spelling(group_name)
    if ranks is None:
        raise ranks_not_known(f"Is {size} × the ranks a multiple of {spelling} {group}?")
    if size * ranks % group == 0:
        return
    raise Refused(f"{size} × {ranks} ranks is no multiple of {spelling} {group}", str(arguments.get("question", "")))


def _ranks(context: LeverContext, arguments: Arguments) -> int | None:
    """As the parameter named by `ranks` says; else all ranks of the job."""
    for name in texts_of(arguments, "ranks"):
        if context.template.is_set(name):
            return context.template.number(name)
    return context.world_size
