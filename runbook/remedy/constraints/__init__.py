"""The conditions that lever documents name. One that is not met raises `Refused`, with what would settle it.

Those on the job that failed are in `failed_job.py`, those on sizes in `sizes.py`, those on what settings say in
`setting_values.py`, those on what the program's own loop does in `training_loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from runbook.remedy.constraints import failed_job, setting_values, sizes, training_loop
from runbook.remedy.lever_context import Arguments, LeverContext
from runbook.remedy.lever_document import Need

Constraint = Callable[[LeverContext, Arguments], None]

CONSTRAINTS: dict[str, Constraint] = {
    function.__name__: function
    for function in (
        failed_job.allocator_could_have_served, failed_job.checkpoint_reshardable, failed_job.died_early,
        failed_job.frames_show,
        failed_job.free_held_the_request, failed_job.host_memory_holds, failed_job.no_private_pools,
        failed_job.code_of, failed_job.much_lies_unallocated, failed_job.no_code_of, failed_job.no_word_of,
        failed_job.not_done_in_code, failed_job.on_one_node,
        failed_job.others_hold, failed_job.request_fits_the_gpu,
        setting_values.above_one,
        setting_values.alike_or_auto, setting_values.any_in_force, setting_values.any_stands,
        setting_values.asked_in_release, setting_values.at_least, setting_values.chosen, setting_values.in_release,
        setting_values.in_release_beside, setting_values.in_release_when_resumed, setting_values.is_set,
        setting_values.larger_than, setting_values.not_overridden, setting_values.not_set,
        setting_values.same_value, setting_values.set_together, setting_values.stands_as,
        setting_values.text_lacks, setting_values.text_matches, setting_values.value_is, sizes.budget_below_batch,
        sizes.budget_holds_longest, sizes.buffer_holds_largest_tensor, sizes.divides, sizes.divides_heads,
        sizes.divides_ranks, sizes.whole_groups, sizes.whole_per_rank, sizes.whole_rounds,
        training_loop.accumulates_by_itself, training_loop.batch_is_of_one_pass, training_loop.loop_accumulates,
        training_loop.loop_steps_in_every_pass, training_loop.steps_count_updates,
    )
}


def require(context: LeverContext, need: Need) -> None:
    """Raises `Refused` where a condition does not hold."""
    CONSTRAINTS[need.constraint](context, need.arguments)
