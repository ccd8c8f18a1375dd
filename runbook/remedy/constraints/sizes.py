"""Constraints on sizes: token budgets, degrees, buffers, host memory.

Lever documents name them, to be checked before a lever's edits or on what they would make.

A constraint whose inputs are not known refuses with the question that would settle it: what is not known is not
assumed to fit.
"""

from __future__ import annotations

from decimal import Decimal
from math import prod
from posixpath import basename

from runbook.model.units import GIB
from runbook.remedy.lever_context import Arguments, LeverContext, Refusal, product_of, text_of, texts_of

# Constraints on which settings stand beside one another (one of several, a larger one, one that wins from a file), and
# on who held the card's memory.

_NO = frozenset({"false", "none", "null", ""})


def any_in_force(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """At least one of `parameters` is set, not to a word for no or to zero. `why` says what follows where none is."""
    named = texts_of(arguments, "parameters")
    for parameter in named:
        text = context.text(parameter)
        if isinstance(text, Refusal) or (text is not None and not off(text)):
            return None
    shown = ", ".join(context.spelling(parameter) for parameter in named)
    said = f"none of {shown} is set" if len(named) > 1 else f"{shown} is not set"
    return Refusal(f"{said}, so {arguments['why']}")


def stands_as(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The template says in plain text that `parameter` is one of `values`. Nobody is asked where it does not: the lever
    is for what is seen there."""
    setting = context.setting(text_of(arguments, "parameter"))
    spelling = context.spelling(text_of(arguments, "parameter"))
    if setting is None:
        return Refusal(f"{spelling} is not in the template")
    if setting.value is None:
        return Refusal(f"{spelling} is not known: {setting.unresolved}")
    if setting.value.lower() in {item.lower() for item in texts_of(arguments, "values")}:
        return None
    return Refusal(f"{spelling} is {setting.value}")


def larger_than(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The number of `parameter` is above that of `other`. `why` says what follows where it is not."""
    numbers = []
    for name in ("parameter", "other"):
        number = context.decimal(text_of(arguments, name))
        if isinstance(number, Refusal):
            return number
        numbers.append(number)
    first, second = numbers
    if first is not None and second is not None and first > second:
        return None
    shown, other = (context.spelling(text_of(arguments, name)) for name in ("parameter", "other"))
    return Refusal(f"{shown} is not above {other}, so {arguments['why']}")


def not_overridden(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """No file named by the option `config` sets one of `keys`: its values win over the command line.

    slime and Relax set every key of --custom-config-path over the parsed arguments (slime/utils/arguments.py,
    relax/utils/arguments.py). A file that was not read may set anything, so a person is asked."""
    option = text_of(arguments, "config")
    if not context.is_set(option):
        return None
    path = context.text(option)
    if isinstance(path, Refusal):
        return path
    spelling = context.spelling(option)
    for parameter in texts_of(arguments, "keys"):
        setting = context.setting(parameter)
        if setting is not None:
            shown = setting.value if setting.value is not None else "to a value that is not known"
            return Refusal(
                f"{setting.spelling} {shown} of {setting.file or spelling} wins over the command line",
                f"May {setting.spelling} be changed in {setting.file or path}? It wins over the launch template.",
            )
    if basename(path or "") in {basename(name) for name in context.files}:
        return None
    keys = " or ".join(context.spelling(parameter) for parameter in texts_of(arguments, "keys"))
    return Refusal(
        f"what {spelling} {path} sets is not known", f"Does {path} set {keys}? It wins over the command line."
    )


def free_held_the_request(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The card had the memory free that was asked for, and it was not given: something keeps it back."""
    free, tried = context.fields.free_bytes, context.fields.tried_bytes
    if free is None or tried is None:
        return Refusal("what was free when the request failed is not in the log")
    if free >= tried:
        return None
    return Refusal("less was free on the card than was asked for")


def others_hold(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Other processes hold at least `percent` of the card, as the failed process's message shows.

    An engine that left the card keeps its context and little more, so its share is nothing to lower then."""
    fields = context.fields
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


def budget_holds_longest(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A token budget must hold the longest sequence: `budget` × `degree` ≥ the sum of `longest`, `times` over.

    verl asserts it (verl/utils/seqlen_balancing.py), AReaL raises (areal/utils/seqpack.py), Relax raises; slime packs a
    sample that is too long alone and the failure comes back."""
    budget = context.number(text_of(arguments, "budget"))
    if isinstance(budget, Refusal):
        return budget
    longest = longest_sequence(context, arguments)
    if isinstance(longest, Refusal):
        return longest
    if budget is None:
        return None
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    wanted = longest * int(str(arguments.get("times", 1)))
    if budget * degree >= wanted:
        return None
    over = f" on each of {degree} ranks that share a sequence" if degree > 1 else ""
    return Refusal(
        f"{context.spelling(text_of(arguments, 'budget'))} {budget}{over} would not hold the longest sequence of "
        f"{longest} tokens"
    )


def longest_sequence(context: LeverContext, arguments: Arguments) -> int | Refusal:
    """The parameter named by `sequence`, where it is known, else the sum of those named by `longest`; refused with a
    question where one of these is not known either."""
    for parameter in texts_of(arguments, "sequence"):
        whole = context.number(parameter)
        if whole is not None:
            return whole
    total = 0
    for parameter in texts_of(arguments, "longest"):
        part = context.number(parameter)
        if isinstance(part, Refusal):
            return part
        if part is None:
            spelling = context.spelling(parameter)
            if "sequence" in arguments:  # both bound what is trained on, so neither is asked to be written
                whole_one = context.spelling(text_of(arguments, "sequence"))
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


def divides(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The product of `part` divides the product of `whole`. A factor that is neither set nor known by default leaves it
    open, which is refused with a question."""
    part, whole = (product_of(context, texts_of(arguments, name)) for name in ("part", "whole"))
    if isinstance(part, Refusal):
        return part
    if isinstance(whole, Refusal):
        return whole
    if whole % part == 0:
        return None
    return Refusal(f"{_shown(context, arguments, 'part')} does not divide {_shown(context, arguments, 'whole')}")


def divides_heads(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A degree must divide the attention heads; with `kv_heads`, those too, or be a multiple of them.

    verl/models/transformers/monkey_patch.py (Ulysses), tensor parallelism of Megatron, vLLM and SGLang."""
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    if degree == 1:
        return None
    for name in ("heads", "kv_heads"):
        if name not in arguments:
            continue
        parameter = text_of(arguments, name)
        heads = context.number(parameter)
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


def divides_ranks(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The product of `degrees` must divide the number of ranks."""
    degrees = product_of(context, texts_of(arguments, "degrees"), unset_is_one=True)
    if isinstance(degrees, Refusal):
        return degrees
    world = context.world_size
    if world is None:
        return Refusal("the number of ranks is not known", f"Does {degrees} divide the number of GPUs?")
    if world % degrees == 0:
        return None
    return Refusal(f"{_shown(context, arguments, 'degrees')} does not divide the {world} ranks")


def same_value(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Parameters that the program wants alike (verl's dynamic batching of actor and rollout). Where one is neither set
    nor has a known default, it follows another in the program."""
    texts = {}
    for parameter in texts_of(arguments, "parameters"):
        text = context.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None:
            texts[parameter] = text.lower() if text.lower() in ("true", "false") else text
    if len(set(texts.values())) < 2:
        return None
    return Refusal(
        "these have to be alike: " + ", ".join(f"{context.spelling(key)} {text}" for key, text in texts.items())
    )


def set_together(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Flags that must come in pairs: all set, or none."""
    named = texts_of(arguments, "parameters")
    there = [parameter for parameter in named if _in_force(context, parameter)]
    if len(there) in (0, len(named)):
        return None
    absent = [context.spelling(parameter) for parameter in named if parameter not in there]
    return Refusal(
        f"{', '.join(context.spelling(parameter) for parameter in there)} needs {', '.join(absent)} beside it"
    )


def value_is(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A parameter must have one of `values` (`true` and `True` are the same). Where it is not set, it has the value of
    the parameter `like`, if that is given. Where it is not known, a person is asked."""
    parameter = text_of(arguments, "parameter")
    text = context.text(parameter)
    if text is None and "like" in arguments:
        text = context.text(text_of(arguments, "like"))
    if isinstance(text, Refusal):
        return text
    values = texts_of(arguments, "values")
    spelling = context.spelling(parameter)
    if text is None:
        return Refusal(f"{spelling} is not in the template", f"Is {spelling} {' or '.join(values)}?")
    if text.lower() in {value.lower() for value in values}:
        return None
    return Refusal(f"{spelling} is {text}, and it has to be {' or '.join(values)}")


def is_set(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The parameter must stand in the template. `question` is asked where it does not."""
    parameter = text_of(arguments, "parameter")
    if context.is_set(parameter):
        return None
    return Refusal(f"{context.spelling(parameter)} is not in the template", str(arguments.get("question", "")))


def not_set(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """None of `parameters` may be in force, unless the parameter named by `unless` has one of `values`. `why` and
    `question` are words for the refusal."""
    there = [parameter for parameter in texts_of(arguments, "parameters") if _in_force(context, parameter)]
    if not there:
        return None
    if "unless" in arguments:
        text = context.text(text_of(arguments, "unless"))
        if isinstance(text, Refusal):
            return text
        if text is not None and text.lower() in {value.lower() for value in texts_of(arguments, "values")}:
            return None
    why = f": {arguments['why']}" if "why" in arguments else ""
    shown = ", ".join(context.spelling(parameter) for parameter in there)
    return Refusal(f"{shown} is set{why}", str(arguments.get("question", "")))


def at_least(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A number must not be below `floor`, nor below the parameter named by `whole`."""
    parameter = text_of(arguments, "parameter")
    number = context.decimal(parameter)
    if isinstance(number, Refusal):
        return number
    if number is None:
        return None
    if "floor" in arguments and number < Decimal(str(arguments["floor"])):
        return Refusal(f"{context.spelling(parameter)} {number} is below {arguments['floor']}")
    if "whole" in arguments:
        other = context.decimal(text_of(arguments, "whole"))
        if isinstance(other, Refusal):
            return other
        if other is not None and number < other:
            shown = context.spelling(text_of(arguments, "whole"))
            return Refusal(f"{context.spelling(parameter)} {number} is below {shown} {other}")
    return None


def buffer_holds_largest_tensor(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A weight-sync buffer must hold the largest tensor: the embedding (vocabulary × hidden size), or one bundle of
    experts, in two bytes a number.

    verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py; slime update_weight/expert_routing.py. `unit` is the
    bytes of one unit of the buffer's parameter (1048576 where it counts MiB)."""
    buffer = context.number(text_of(arguments, "buffer"))
    if isinstance(buffer, Refusal):
        return buffer
    if buffer is None:
        return None
    unit = int(str(arguments.get("unit", 1)))
    shape = []
    for name in ("vocabulary", "hidden"):
        number = context.number(text_of(arguments, name)) if name in arguments else None
        if isinstance(number, Refusal):
            return number
        shape.append(number)
    shown = f"{buffer * unit / GIB:.2f} GiB"
    if None in shape:
        return Refusal(
            "how large the model's largest tensor is, is not in the template (vocabulary × hidden size × 2 bytes)",
            f"Is every tensor of the model, and every bundle of experts, smaller than {shown}?",
        )
    if any(_in_force(context, item) for item in texts_of(arguments, "experts")):
        return Refusal(
            "how large one bundle of experts is, is not in the template",
            f"Is every bundle of experts smaller than {shown}?",
        )
    needed = 2 * prod(item for item in shape if item is not None)
    if needed <= buffer * unit:
        return None
    return Refusal(f"the embedding alone needs {needed / GIB:.2f} GiB, more than a buffer of {shown}")


def host_memory_holds(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """What goes from the GPUs to the host must fit beside what the host holds. Bounded from above: all that PyTorch
    had allocated on a GPU, times the GPUs of a node; to be below the job's limit by a tenth.

    Offloading on a host that is short of memory turns a GPU's failure into a node's."""
    allocated = context.fields.allocated_bytes
    limit, gpus = context.job.memory_limit_bytes_per_node, context.job.gpus_per_node
    used = [item.host_used_bytes for item in context.story.progress.memory if item.host_used_bytes is not None]
    what = "Has each node"
    if allocated is not None and gpus:
        what = f"Has each node {allocated * gpus / GIB:.0f} GiB of host memory to spare, within the job's limit"
    else:
        what = "Has each node host memory to spare for what the GPUs hold now, within the job's limit"
    if allocated is None or not limit or not gpus or not used:
        return Refusal("whether the host has room for what would be offloaded is not known", f"{what}?")
    share = max(used) * (gpus if any(item.host_is_process for item in context.story.progress.memory) else 1)
    if allocated * gpus + share <= limit * 0.9:
        return None
    return Refusal(
        f"up to {allocated * gpus / GIB:.0f} GiB would go to the host, which holds {share / GIB:.0f} GiB already of a "
        f"limit of {limit / GIB:.0f} GiB", f"{what}?"
    )


def _in_force(context: LeverContext, parameter: str) -> bool:
    """Set, and not to a word for no."""
    setting = context.setting(parameter)
    if setting is None:
        return False
    return setting.value is None or not off(setting.value)


def _shown(context: LeverContext, arguments: Arguments, name: str) -> str:
    parts = []
    for parameter in texts_of(arguments, name):
        number = context.number(parameter)
        value = 1 if number is None or isinstance(number, Refusal) else number
        parts.append(f"{context.spelling(parameter)} {value}")
    return " × ".join(parts)
