"""Constraints on sizes: token budgets, degrees, buffers, batches.

Lever documents name them, to be checked before a lever's edits or on what they would make.

A constraint whose inputs are not known refuses with the question that would settle it: what is not known is not
assumed to fit.
"""

from __future__ import annotations

from math import prod

from runbook.model.sentences import as_written
from runbook.model.sentences.of_levers import Say
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
    over = Say.ON_EACH_RANK_OF_SEQUENCE(degree=degree) if degree > 1 else ""
    spelling = context.template.spelling(text_of(arguments, "budget"))
    raise Refused(Say.BUDGET_BELOW_LONGEST(spelling=spelling, budget=budget, over=over, longest=longest))


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
                    Say.NEITHER_TELLS_LONGEST(whole_one=whole_one, spelling=spelling),
                    Say.HOW_MANY_TOKENS_HAS_A_SAMPLE(whole_one=whole_one)
                )
            raise Refused(Say.LONGEST_NOT_KNOWN(spelling=spelling), Say.WHAT_IS_WRITE_PRESENT_VALUE(spelling=spelling))
        total += part
    return total


def divides(context: LeverContext, arguments: Arguments) -> None:
    """The product of `part` divides the product of `whole`. A factor that is neither set nor known by default leaves it
    open, which is refused with a question."""
    part, whole = (product_of(context, texts_of(arguments, name)) for name in ("part", "whole"))
    if whole % part == 0:
        return
    raise Refused(
        Say.DOES_NOT_DIVIDE(part=_shown(context, arguments, "part"), whole=_shown(context, arguments, "whole"))
    )


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
            raise Refused(Say.HEADS_NOT_KNOWN(words=words), Say.DOES_DEGREE_DIVIDE_HEADS(degree=degree, words=words))
        if heads % degree and (name == "heads" or degree % heads):
            raise Refused(Say.DEGREE_DOES_NOT_GO_WITH_HEADS(degree=degree, heads=heads, words=words))
    if "heads" not in arguments:
        raise Refused(Say.ATTENTION_HEADS_NOT_KNOWN(), Say.DOES_DEGREE_DIVIDE_ALL_HEADS(degree=degree))
    return


def divides_ranks(context: LeverContext, arguments: Arguments) -> None:
    """The product of `degrees` must divide the number of ranks."""
    degrees = product_of(context, texts_of(arguments, "degrees"), unset_is_one=True)
    world = context.world_size
    if world is None:
        raise ranks_not_known(Say.DO_DEGREES_DIVIDE_GPUS(degrees=degrees))
    if world % degrees == 0:
        return
    raise Refused(Say.DO_NOT_DIVIDE_RANKS(shown=_shown(context, arguments, "degrees"), world=world))


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
        raise Refused(Say.LARGEST_TENSOR_NOT_KNOWN(), Say.IS_EVERY_TENSOR_SMALLER(shown=shown))
    if any(in_force(context, item) for item in texts_of(arguments, "experts")):
        raise Refused(Say.EXPERT_BUNDLE_NOT_KNOWN(), Say.IS_EVERY_EXPERT_BUNDLE_SMALLER(shown=shown))
    needed = 2 * prod(item for item in shape if item is not None)
    if needed <= buffer * unit:
        return
    raise Refused(Say.EMBEDDING_LARGER_THAN_BUFFER(needed=needed, shown=shown))


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
        raise ranks_not_known(Say.IS_IT_A_MULTIPLE_OF_GPUS(named=named, whole=whole))
    if whole % world == 0:
        return
    raise Refused(Say.NO_WHOLE_PART_FOR_EACH_RANK(named=named, whole=whole, world=world))


def budget_below_batch(context: LeverContext, arguments: Arguments) -> None:
    """A token budget (`budget`) holds fewer tokens than a micro-batch of full sequences did (`micro` × the longest,
    shared by `degree` ranks): else going over to it would take more memory, not less."""
    total = longest_sequence(context, arguments)
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    budget, micro = (context.template.number(text_of(arguments, name)) for name in ("budget", "micro"))
    if budget is None or micro is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=context.template.spelling(texts_of(arguments, "micro")[0])))
    if budget * degree < micro * total:
        return
    raise Refused(Say.BUDGET_NO_LESS_THAN_BATCH(budget=budget, micro=micro, total=total))


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
        raise ranks_not_known(Say.IS_IT_A_MULTIPLE_OF_MICRO_BATCHES(spelling=spelling, total=total, micro=micro))
    if total % (micro * ranks) == 0:
        return
    raise Refused(Say.NO_MULTIPLE_OF_RANKS(spelling=spelling, total=total, micro=micro, ranks=ranks))


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
        raise ranks_not_known(Say.IS_IT_A_MULTIPLE_OF_GROUP(size=size, spelling=spelling, group=group))
    if size * ranks % group == 0:
        return
    raise Refused(
        Say.NO_MULTIPLE_OF_GROUP(size=size, ranks=ranks, spelling=spelling, group=group),
        as_written(arguments.get("question", ""))
    )


def _ranks(context: LeverContext, arguments: Arguments) -> int | None:
    """As the parameter named by `ranks` says; else all ranks of the job."""
    for name in texts_of(arguments, "ranks"):
        if context.template.is_set(name):
            return context.template.number(name)
    return context.world_size
