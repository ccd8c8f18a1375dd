"""When in the run the memory ran out: from the start, as a static size does, or after it had grown."""

from __future__ import annotations

from runbook.diagnosis.case import Case
from runbook.diagnosis.growth import how_it_grew
from runbook.model.diagnosis import Detail
from runbook.model.log import Phase

_STEPLESS_S = 3600.0


def static_or_grown(case: Case) -> tuple[Detail, str]:
    """Whether a size is wrong from the start or the working set grew, and the sentence for it."""
    progress, root = case.story.progress, case.root
    done = case.steps_done()
    if progress.last_step is not None and done is not None and done > 1:
        grew = how_it_grew(case)
        if grew is not None:
            return grew[0], f"It happened after {done} completed steps (last: {progress.last_step}). {grew[1]}"
        return Detail.GROWN, (
            f"It happened after {done} completed steps (last: {progress.last_step}): the working set grew, by longer "
            "sequences, late optimizer state or something kept alive."
        )
    if progress.last_step is not None:
        return Detail.STATIC, (
            f"It happened within the first steps of this run (last: {progress.last_step}): a static size."
        )
    if root is not None and root.phase is Phase.INIT:
        return Detail.STATIC, "It happened before the first step, while the job was starting: a static size."
    ran = _ran_for_s(case)
    if progress.saved_steps or (ran is not None and ran > _STEPLESS_S):
        how = "had saved checkpoints" if progress.saved_steps else f"had run for {(ran or 0) / 3600:.1f} h"
        return Detail.NONE, f"The job {how}, but its logs show no step that could be read, so whether it grew is open."
    return Detail.STATIC, (
        "It happened before any step was completed, as far as the logs show: a static size (batch, sequence, model, "
        "sharding)."
    )


def _ran_for_s(case: Case) -> float | None:
    if case.job is None or case.job.start_time_s is None or case.root is None or case.root.time_s is None:
        return None
    return case.root.time_s - case.job.start_time_s
