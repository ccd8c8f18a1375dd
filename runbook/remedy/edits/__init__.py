"""The edits that lever documents name: from a context to new values, or why not.

Each function takes the context, the parameter and the document's arguments. A function never returns the value
that is in force already. Functions on the allocator's variable are in `allocator_variable.py`, those on the batch in
`global_batch.py`, those on other numbers and lists in `numbers.py`.
"""

from __future__ import annotations

from runbook.remedy.edits import global_batch, numbers
from runbook.remedy.edits.allocator_variable import merge_allocator
from runbook.remedy.edits.edit import Edits, Function, edit_of
from runbook.remedy.edits.global_batch import double_to_keep_global_batch, halve
from runbook.remedy.lever_context import Arguments, LeverContext, Refusal
from runbook.remedy.lever_document import Parameter


def set_value(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits | Refusal:
    """Set to the argument `value`."""
    value = str(arguments["value"])
    present = context.text(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is not None and (present == value or present.lower() == value.lower() in ("true", "false")):
        return Refusal(f"{context.spelling(parameter.id)} is {value} already")
    return edit_of(context, parameter, value)


def also_set(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits | Refusal:
    """As `set`, for the second of a pair: nothing to do where it has the value already."""
    present = context.text(parameter.id)
    value = str(arguments["value"])
    if isinstance(present, Refusal):
        return present
    if present is not None and context.is_set(parameter.id) and present.lower() == value.lower():
        return Edits(())
    return edit_of(context, parameter, value)


def next_in(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits | Refusal:
    """The next of the parameter's `allowed` values, which go from most memory to least; with the argument `only`,
    that one if it comes next or later."""
    present = context.text(parameter.id)
    spelling = parameter.spellings[0]
    if isinstance(present, Refusal):
        return present
    if present is None:
        return Refusal(
            f"{spelling} is not in the template and its default is not known",
            f"What is {spelling}? Write it into the template with its present value.",
        )
    if present not in parameter.allowed:
        return Refusal(f"{spelling} is {present!r}, which is none of {', '.join(parameter.allowed)}")
    later = parameter.allowed[parameter.allowed.index(present) + 1 :]
    wanted = str(arguments.get("only", later[0] if later else ""))
    if wanted not in later:
        return Refusal(f"{spelling} is {present} already")
    return edit_of(context, parameter, wanted)


def next_divisor_of_world(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits | Refusal:
    """The next larger degree that divides the number of ranks."""
    world = context.world_size
    spelling = parameter.spellings[0]
    if world is None:
        return Refusal("the number of ranks is not known")
    present = context.number(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is None:
        return Refusal(f"{spelling} is not in the template, so over how many ranks the states are shared is not known")
    if world % present:
        return Refusal(f"{spelling} {present} does not divide the {world} ranks")
    larger = next((degree for degree in range(present + 1, world + 1) if world % degree == 0), None)
    if larger is None:
        return Refusal(f"{spelling} is {present}: all {world} ranks share the states already")
    return edit_of(context, parameter, str(larger))


def remove(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits | Refusal:
    """Take the parameter out; nothing where it is not set."""
    setting = context.setting(parameter.id)
    if setting is None:
        return Edits(())
    if setting.value is None:
        return Refusal(f"{setting.spelling} is not known: {setting.unresolved}")
    return edit_of(context, parameter, None)


FUNCTIONS: dict[str, Function] = {
    "halve": halve,
    "double_to_keep_global_batch": double_to_keep_global_batch,
    "set": set_value,
    "also_set": also_set,
    "next_in": next_in,
    "remove": remove,
    "next_divisor_of_world": next_divisor_of_world,
    "merge_allocator": merge_allocator,
    **{
        function.__name__: function
        for function in (
            numbers.double, numbers.drop_from_list, numbers.follow, numbers.halve_list,
            numbers.halve_number, numbers.lower_budget, numbers.move_parallelism,
            numbers.multiply_as, numbers.next_below, numbers.shift, global_batch.halve_dividing,
            numbers.fewer_edge_layers,
        )
    },
}
