"""Constraints on sizes: token budgets, degrees, buffers, host memory.

Lever documents name them, to be checked before a lever's edits or on what they would make.

A constraint whose inputs are not known refuses with the question that would settle it: what is not known is not
assumed to fit.
"""

from __future__ import annotations

from decimal import Decimal
from math import prod

from runbook.model.units import GIB
from runbook.remedy.arguments import Arguments, product_of, text_of, texts_of
from runbook.remedy.setting_words import off
from runbook.remedy.situation import Refusal, Situation


def budget_holds_longest(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A token budget must hold the longest sequence: `budget` × `degree` ≥ the sum of `longest`, `times` over.

    verl asserts it (verl/utils/seqlen_balancing.py), AReaL raises (areal/utils/seqpack.py), Relax raises; slime packs a
    sample that is too long alone and the failure comes back."""
    budget = situation.number(text_of(arguments, "budget"))
    if isinstance(budget, Refusal):
        return budget
    longest = longest_sequence(situation, arguments)
    if isinstance(longest, Refusal):
        return longest
    if budget is None:
        return None
    degree = product_of(situation, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    wanted = longest * int(str(arguments.get("times", 1)))
    if budget * degree >= wanted:
        return None
    over = f" on each of {degree} ranks that share a sequence" if degree > 1 else ""
    return Refusal(
        f"{situation.spelling(text_of(arguments, 'budget'))} {budget}{over} would not hold the longest sequence of "
        f"{longest} tokens"
    )


def longest_sequence(situation: Situation, arguments: Arguments) -> int | Refusal:
    """The parameter named by `sequence`, where it is known, else the sum of those named by `longest`; refused with a
    question where one of these is not known either."""
    for parameter in texts_of(arguments, "sequence"):
        whole = situation.number(parameter)
        if whole is not None:
            return whole
    total = 0
    for parameter in texts_of(arguments, "longest"):
        part = situation.number(parameter)
        if isinstance(part, Refusal):
            return part
        if part is None:
            spelling = situation.spelling(parameter)
            if "sequence" in arguments:  # both bound what is trained on, so neither is asked to be written
                whole_one = situation.spelling(text_of(arguments, "sequence"))
                return Refusal(
                    f"neither {whole_one} nor {spelling} is in the template, so the longest sequence is not known",
                    "How many tokens can a sample have at most, prompt and answer together? Written into the template "
                    f"as {whole_one} it changes nothing, as long as no sample is longer.",
                )
            return Refusal(
                f"{spelling} is not in the template, so the longest sequence is not known",
                f"What is {spelling}? Write it into the template with its present value.",
            )
        total += part
    return total


def divides(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The product of `part` divides the product of `whole`. A factor that is neither set nor known by default leaves it
    open, which is refused with a question."""
    part, whole = (product_of(situation, texts_of(arguments, name)) for name in ("part", "whole"))
    if isinstance(part, Refusal):
        return part
    if isinstance(whole, Refusal):
        return whole
    if whole % part == 0:
        return None
    return Refusal(f"{_shown(situation, arguments, 'part')} does not divide {_shown(situation, arguments, 'whole')}")


def divides_heads(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A degree must divide the attention heads; with `kv_heads`, those too, or be a multiple of them.

    verl/models/transformers/monkey_patch.py (Ulysses), tensor parallelism of Megatron, vLLM and SGLang."""
    degree = product_of(situation, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    if degree == 1:
        return None
    for name in ("heads", "kv_heads"):
        if name not in arguments:
            continue
        parameter = text_of(arguments, name)
        heads = situation.number(parameter)
        if isinstance(heads, Refusal):
            return heads
        words = "attention heads" if name == "heads" else "key-value heads"
        if heads is None:
            return Refusal(
                f"how many {words} the model has is not in the template", f"Does {degree} divide the model's {words}?"
            )
        if heads % degree and (name == "heads" or degree % heads):
            return Refusal(f"a degree of {degree} does not go with {heads} {words}")
    if "heads" not in arguments:
        return Refusal(
            "how many attention heads the model has is not in the template",
            f"Does {degree} divide the model's attention heads and its key-value heads?",
        )
    return None


def divides_ranks(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The product of `degrees` must divide the number of ranks."""
    degrees = product_of(situation, texts_of(arguments, "degrees"), unset_is_one=True)
    if isinstance(degrees, Refusal):
        return degrees
    world = situation.world_size
    if world is None:
        return Refusal("the number of ranks is not known", f"Does {degrees} divide the number of GPUs?")
    if world % degrees == 0:
        return None
    return Refusal(f"{_shown(situation, arguments, 'degrees')} does not divide the {world} ranks")


def same_value(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Parameters that the program wants alike (verl's dynamic batching of actor and rollout). Where one is neither set
    nor has a known default, it follows another in the program."""
    texts = {}
    for parameter in texts_of(arguments, "parameters"):
        text = situation.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None:
            texts[parameter] = text.lower() if text.lower() in ("true", "false") else text
    if len(set(texts.values())) < 2:
        return None
    return Refusal(
        "these have to be alike: " + ", ".join(f"{situation.spelling(key)} {text}" for key, text in texts.items())
    )


def set_together(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Flags that must come in pairs: all set, or none."""
    named = texts_of(arguments, "parameters")
    there = [parameter for parameter in named if _in_force(situation, parameter)]
    if len(there) in (0, len(named)):
        return None
    absent = [situation.spelling(parameter) for parameter in named if parameter not in there]
    return Refusal(
        f"{', '.join(situation.spelling(parameter) for parameter in there)} needs {', '.join(absent)} beside it"
    )


def value_is(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A parameter must have one of `values` (`true` and `True` are the same). Where it is not set, it has the value of
    the parameter `like`, if that is given. Where it is not known, a person is asked."""
    parameter = text_of(arguments, "parameter")
    text = situation.text(parameter)
    if text is None and "like" in arguments:
        text = situation.text(text_of(arguments, "like"))
    if isinstance(text, Refusal):
        return text
    values = texts_of(arguments, "values")
    spelling = situation.spelling(parameter)
    if text is None:
        return Refusal(f"{spelling} is not in the template", f"Is {spelling} {' or '.join(values)}?")
    if text.lower() in {value.lower() for value in values}:
        return None
    return Refusal(f"{spelling} is {text}, and it has to be {' or '.join(values)}")


def is_set(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The parameter must stand in the template. `question` is asked where it does not."""
    parameter = text_of(arguments, "parameter")
    if situation.is_set(parameter):
        return None
    return Refusal(f"{situation.spelling(parameter)} is not in the template", str(arguments.get("question", "")))


def not_set(situation: Situation, arguments: Arguments) -> Refusal | None:
    """None of `parameters` may be in force, unless the parameter named by `unless` has one of `values`. `why` and
    `question` are words for the refusal."""
    there = [parameter for parameter in texts_of(arguments, "parameters") if _in_force(situation, parameter)]
    if not there:
        return None
    if "unless" in arguments:
        text = situation.text(text_of(arguments, "unless"))
        if isinstance(text, Refusal):
            return text
        if text is not None and text.lower() in {value.lower() for value in texts_of(arguments, "values")}:
            return None
    why = f": {arguments['why']}" if "why" in arguments else ""
    shown = ", ".join(situation.spelling(parameter) for parameter in there)
    return Refusal(f"{shown} is set{why}", str(arguments.get("question", "")))


def at_least(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A number must not be below `floor`, nor below the parameter named by `whole`."""
    parameter = text_of(arguments, "parameter")
    number = situation.decimal(parameter)
    if isinstance(number, Refusal):
        return number
    if number is None:
        return None
    if "floor" in arguments and number < Decimal(str(arguments["floor"])):
        return Refusal(f"{situation.spelling(parameter)} {number} is below {arguments['floor']}")
    if "whole" in arguments:
        other = situation.decimal(text_of(arguments, "whole"))
        if isinstance(other, Refusal):
            return other
        if other is not None and number < other:
            shown = situation.spelling(text_of(arguments, "whole"))
            return Refusal(f"{situation.spelling(parameter)} {number} is below {shown} {other}")
    return None


def buffer_holds_largest_tensor(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A weight-sync buffer must hold the largest tensor: the embedding (vocabulary × hidden size), or one bundle of
    experts, in two bytes a number.

    verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py; slime update_weight/expert_routing.py. `unit` is the
    bytes of one unit of the buffer's parameter (1048576 where it counts MiB)."""
    buffer = situation.number(text_of(arguments, "buffer"))
    if isinstance(buffer, Refusal):
        return buffer
    if buffer is None:
        return None
    unit = int(str(arguments.get("unit", 1)))
    shape = []
    for name in ("vocabulary", "hidden"):
        number = situation.number(text_of(arguments, name)) if name in arguments else None
        if isinstance(number, Refusal):
            return number
        shape.append(number)
    shown = f"{buffer * unit / GIB:.2f} GiB"
    if None in shape:
        return Refusal(
            "how large the model's largest tensor is, is not in the template (vocabulary × hidden size × 2 bytes)",
            f"Is every tensor of the model, and every bundle of experts, smaller than {shown}?",
        )
    if any(_in_force(situation, item) for item in texts_of(arguments, "experts")):
        return Refusal(
            "how large one bundle of experts is, is not in the template",
            f"Is every bundle of experts smaller than {shown}?",
        )
    needed = 2 * prod(item for item in shape if item is not None)
    if needed <= buffer * unit:
        return None
    return Refusal(f"the embedding alone needs {needed / GIB:.2f} GiB, more than a buffer of {shown}")


def host_memory_holds(situation: Situation, arguments: Arguments) -> Refusal | None:
    """What goes from the GPUs to the host must fit beside what the host holds. Bounded from above: all that PyTorch
    had allocated on a GPU, times the GPUs of a node; to be below the job's limit by a tenth.

    Offloading on a host that is short of memory turns a GPU's failure into a node's."""
    allocated = situation.fields.allocated_bytes
    limit, gpus = situation.job.memory_limit_bytes_per_node, situation.job.gpus_per_node
    used = [item.host_used_bytes for item in situation.story.progress.memory if item.host_used_bytes is not None]
    what = "Has each node"
    if allocated is not None and gpus:
        what = f"Has each node {allocated * gpus / GIB:.0f} GiB of host memory to spare, within the job's limit"
    else:
        what = "Has each node host memory to spare for what the GPUs hold now, within the job's limit"
    if allocated is None or not limit or not gpus or not used:
        return Refusal("whether the host has room for what would be offloaded is not known", f"{what}?")
    share = max(used) * (gpus if any(item.host_is_process for item in situation.story.progress.memory) else 1)
    if allocated * gpus + share <= limit * 0.9:
        return None
    return Refusal(
        f"up to {allocated * gpus / GIB:.0f} GiB would go to the host, which holds {share / GIB:.0f} GiB already of a "
        f"limit of {limit / GIB:.0f} GiB", f"{what}?"
    )


def _in_force(situation: Situation, parameter: str) -> bool:
    """Set, and not to a word for no."""
    setting = situation.setting(parameter)
    if setting is None:
        return False
    return setting.value is None or not off(setting.value)


def _shown(situation: Situation, arguments: Arguments, name: str) -> str:
    parts = []
    for parameter in texts_of(arguments, name):
        number = situation.number(parameter)
        value = 1 if number is None or isinstance(number, Refusal) else number
        parts.append(f"{situation.spelling(parameter)} {value}")
    return " × ".join(parts)
