"""The conditions that lever documents name: None when met, else why not.

Those on sizes are in `sizes.py`, those on words in `words.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from runbook.model.units import GIB
from runbook.remedy import round_words, setting_words, sizes, words
from runbook.remedy.arguments import Arguments
from runbook.remedy.situation import Refusal, Situation

Constraint = Callable[[Situation, Arguments], Refusal | None]


def allocator_could_have_served(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Free plus reserved but unallocated memory must hold the request: else no allocator setting could have helped.

    Rule R-04 (perfect defragmentation). Missing figures exclude nothing."""
    fields = situation.fields
    free, unallocated, tried = fields.free_bytes, fields.reserved_unallocated_bytes, fields.tried_bytes
    if free is None or unallocated is None or tried is None:
        return None
    if free + unallocated + (fields.rounding_bytes or 0) >= tried:
        return None
    return Refusal(
        f"even without any fragmentation {(free + unallocated) / GIB:.2f} GiB would have been there for a request of "
        f"{tried / GIB:.2f} GiB"
    )


def request_fits_the_gpu(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A request above the GPU's capacity is not a matter of the allocator (R-08)."""
    tried, capacity = situation.fields.tried_bytes, situation.fields.capacity_bytes
    if tried is None or capacity is None or tried <= capacity:
        return None
    return Refusal(f"the request of {tried / GIB:.2f} GiB is larger than the GPU ({capacity / GIB:.2f} GiB)")


def no_private_pools(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Memory in private pools (CUDA graphs) is not the allocator's to give (R-14)."""
    held = situation.fields.private_pool_bytes
    if not held:
        return None
    return Refusal(
        f"{held / GIB:.2f} GiB lie in private pools (CUDA graphs), which expandable segments do not reach",
        "Can CUDA graphs be switched off, or captured for fewer sizes?",
    )


def checkpoint_reshardable(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The checkpoint to resume from must not be known to be tied to its sharding. Where that is not known yet, the
    lever's `needs_reshard` makes the choice of the checkpoint ask for one that can be loaded at another sharding."""
    if situation.system.checkpoint.reshardable is False:
        return Refusal("this system's checkpoints load only at the sharding they were saved with")
    usable = [item for item in situation.checkpoints or () if item.complete]
    if usable and not any(item.reshardable for item in usable):
        return Refusal(
            f"no complete checkpoint is known to load at another sharding (the newest is {usable[0].path})",
            "Can the checkpoint be loaded at another sharding degree?",
        )
    return None


def above_one(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The degree named by the argument `parameter` must be larger than one."""
    parameter = str(arguments["parameter"])
    degree = situation.number(parameter)
    if isinstance(degree, Refusal):
        return degree
    if degree is not None and degree > 1:
        return None
    return Refusal(f"{situation.system.parameter(parameter).spellings[0]} is not above 1")


CONSTRAINTS: dict[str, Constraint] = {
    function.__name__: function
    for function in (
        above_one, allocator_could_have_served, request_fits_the_gpu, no_private_pools, checkpoint_reshardable,
        round_words.alike_or_auto, round_words.any_stands, round_words.asked_in_release, round_words.in_release_beside,
        round_words.in_release_when_resumed, round_words.text_lacks, round_words.whole_groups,
        round_words.whole_rounds, setting_words.any_in_force,
        setting_words.free_held_the_request, setting_words.larger_than, setting_words.not_overridden,
        setting_words.others_hold, setting_words.stands_as, sizes.at_least,
        sizes.budget_holds_longest, sizes.buffer_holds_largest_tensor, sizes.divides, sizes.divides_heads,
        sizes.divides_ranks, sizes.host_memory_holds, sizes.is_set, sizes.not_set, sizes.same_value,
        sizes.set_together, sizes.value_is, words.budget_below_batch, words.chosen, words.frames_show,
        words.in_release, words.on_one_node, words.text_matches, words.whole_per_rank,
    )
}
