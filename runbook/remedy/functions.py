"""The edits that lever documents name: from a situation to new values, or why not.

Each function takes the situation, the parameter and the document's arguments. A function never returns the value
that is in force already. Functions on the allocator's variable are in `allocator_edits.py`, those on the batch in
`batch.py`, those on other numbers and lists in `number_edits.py`.
"""

from __future__ import annotations

from runbook.remedy import number_edits, part_edits, pipeline_edits
from runbook.remedy.allocator_edits import merge_allocator
from runbook.remedy.arguments import Arguments
from runbook.remedy.batch import double_to_keep_global_batch, halve
from runbook.remedy.document import Parameter
from runbook.remedy.edits import Function, Made, edit_of
from runbook.remedy.situation import Refusal, Situation


def set_value(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Set to the argument `value`."""
    value = str(arguments["value"])
    present = situation.text(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is not None and (present == value or present.lower() == value.lower() in ("true", "false")):
        return Refusal(f"{situation.spelling(parameter.id)} is {value} already")
    return edit_of(situation, parameter, value)


def also_set(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """As `set`, for the second of a pair: nothing to do where it has the value already."""
    present = situation.text(parameter.id)
    value = str(arguments["value"])
    if isinstance(present, Refusal):
        return present
    if present is not None and situation.is_set(parameter.id) and present.lower() == value.lower():
        return Made(())
    return edit_of(situation, parameter, value)


def next_in(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """The next of the parameter's `allowed` values, which go from most memory to least; with the argument `only`,
    that one if it comes next or later."""
    present = situation.text(parameter.id)
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
    return edit_of(situation, parameter, wanted)


def next_divisor_of_world(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """The next larger degree that divides the number of ranks."""
    world = situation.world_size
    spelling = parameter.spellings[0]
    if world is None:
        return Refusal("the number of ranks is not known")
    present = situation.number(parameter.id)
    if isinstance(present, Refusal):
        return present
    if present is None:
        return Refusal(f"{spelling} is not in the template, so over how many ranks the states are shared is not known")
    if world % present:
        return Refusal(f"{spelling} {present} does not divide the {world} ranks")
    larger = next((degree for degree in range(present + 1, world + 1) if world % degree == 0), None)
    if larger is None:
        return Refusal(f"{spelling} is {present}: all {world} ranks share the states already")
    return edit_of(situation, parameter, str(larger))


def remove(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Take the parameter out; nothing where it is not set."""
    setting = situation.setting(parameter.id)
    if setting is None:
        return Made(())
    if setting.value is None:
        return Refusal(f"{setting.spelling} is not known: {setting.unresolved}")
    return edit_of(situation, parameter, None)


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
            number_edits.double, number_edits.drop_from_list, number_edits.follow, number_edits.halve_list,
            number_edits.halve_number, number_edits.lower_budget, number_edits.move_parallelism,
            number_edits.multiply_as, number_edits.next_below, number_edits.shift, part_edits.halve_dividing,
            pipeline_edits.fewer_edge_layers,
        )
    },
}
