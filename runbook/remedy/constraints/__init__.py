"""The conditions that lever documents name: None when met, else why not.

Those on sizes are in `sizes.py`, those on what settings say in `setting_values.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from runbook.model.units import GIB
from runbook.remedy.constraints import setting_values, sizes
from runbook.remedy.lever_context import Arguments, LeverContext, Refusal

Constraint = Callable[[LeverContext, Arguments], Refusal | None]


def allocator_could_have_served(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Free plus reserved but unallocated memory must hold the request: else no allocator setting could have helped.

    Rule R-04 (perfect defragmentation). Missing figures exclude nothing."""
    fields = context.fields
    free, unallocated, tried = fields.free_bytes, fields.reserved_unallocated_bytes, fields.tried_bytes
    if free is None or unallocated is None or tried is None:
        return None
    if free + unallocated + (fields.rounding_bytes or 0) >= tried:
        return None
    return Refusal(
        f"even without any fragmentation {(free + unallocated) / GIB:.2f} GiB would have been there for a request of "
        f"{tried / GIB:.2f} GiB"
    )


def request_fits_the_gpu(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A request above the GPU's capacity is not a matter of the allocator (R-08)."""
    tried, capacity = context.fields.tried_bytes, context.fields.capacity_bytes
    if tried is None or capacity is None or tried <= capacity:
        return None
    return Refusal(f"the request of {tried / GIB:.2f} GiB is larger than the GPU ({capacity / GIB:.2f} GiB)")


def no_private_pools(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Memory in private pools (CUDA graphs) is not the allocator's to give (R-14)."""
    held = context.fields.private_pool_bytes
    if not held:
        return None
    return Refusal(
        f"{held / GIB:.2f} GiB lie in private pools (CUDA graphs), which expandable segments do not reach",
        "Can CUDA graphs be switched off, or captured for fewer sizes?",
    )


def checkpoint_reshardable(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The checkpoint to resume from must not be known to be tied to its sharding. Where that is not known yet, the
    lever's `needs_reshard` makes the choice of the checkpoint ask for one that can be loaded at another sharding."""
    if context.system.checkpoint.reshardable is False:
        return Refusal("this system's checkpoints load only at the sharding they were saved with")
    usable = [item for item in context.checkpoints or () if item.complete]
    if usable and not any(item.reshardable for item in usable):
        return Refusal(
            f"no complete checkpoint is known to load at another sharding (the newest is {usable[0].path})",
            "Can the checkpoint be loaded at another sharding degree?",
        )
    return None


def above_one(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The degree named by the argument `parameter` must be larger than one."""
    parameter = str(arguments["parameter"])
    degree = context.number(parameter)
    if isinstance(degree, Refusal):
        return degree
    if degree is not None and degree > 1:
        return None
    return Refusal(f"{context.system.parameter(parameter).spellings[0]} is not above 1")


CONSTRAINTS: dict[str, Constraint] = {
    function.__name__: function
    for function in (
        above_one, allocator_could_have_served, checkpoint_reshardable, no_private_pools, request_fits_the_gpu,
        setting_values.alike_or_auto, setting_values.any_stands, setting_values.asked_in_release,
        setting_values.budget_below_batch, setting_values.chosen, setting_values.frames_show,
        setting_values.in_release, setting_values.in_release_beside, setting_values.in_release_when_resumed,
        setting_values.on_one_node, setting_values.text_lacks, setting_values.text_matches,
        setting_values.whole_groups, setting_values.whole_per_rank, setting_values.whole_rounds,
        sizes.any_in_force, sizes.at_least, sizes.budget_holds_longest, sizes.buffer_holds_largest_tensor,
        sizes.divides, sizes.divides_heads, sizes.divides_ranks, sizes.free_held_the_request,
        sizes.host_memory_holds, sizes.is_set, sizes.larger_than, sizes.not_overridden, sizes.not_set,
        sizes.others_hold, sizes.same_value, sizes.set_together, sizes.stands_as, sizes.value_is,
    )
}
