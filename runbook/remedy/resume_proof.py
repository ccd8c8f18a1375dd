"""Did the relaunched job go on from its checkpoint? Told from what its log says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runbook.model.checkpoint import Checkpoint
from runbook.model.log import Progress

TOLERANCE = 1
"""Programs number the step that a checkpoint was written after, or the one that comes next."""


SKIPPED_BELOW = 0.3
"""Steps that take less than this share of the usual time may be batches that are skipped."""


class ResumeKind(StrEnum):
    RESUMED = "resumed"
    FROM_SCRATCH = "from_scratch"
    ELSEWHERE = "elsewhere"
    """It went on from a step, but from another one."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the log proves, in a sentence."""

    kind: ResumeKind
    why: str


def resume_proof(progress: Progress, checkpoint: Checkpoint, usual_step_s: float | None = None) -> Resumed:
    """The line by which the program says where it begins decides; the steps that it prints afterwards can contradict.

    Steps alone prove a start from scratch only where the counter runs to a total beyond the checkpoint's step, so that
    it cannot be one that begins anew with each epoch, and where a step takes as long as it did (`usual_step_s`): a
    program that skips the batches that it has seen counts them too, much faster.
    """
    wanted, said, first = checkpoint.step, progress.resumed_from_step, progress.first_step
    if wanted is None:
        if progress.from_scratch:
            return Resumed(ResumeKind.FROM_SCRATCH, "its log says that it starts from scratch")
        return Resumed(ResumeKind.UNKNOWN, "the checkpoint's step is not known, so the log cannot prove it")
    goes_on = first is not None and first > TOLERANCE and first >= wanted - TOLERANCE
    if said is not None and said > 0:
        if abs(said - wanted) <= TOLERANCE:
            return Resumed(ResumeKind.RESUMED, f"its log says that it goes on from step {said}")
        if goes_on and first is not None and first - wanted <= TOLERANCE:
            return Resumed(ResumeKind.RESUMED, f"its first step is {first}, after the checkpoint of step {wanted}")
        # Weights of another model can be loaded from a checkpoint too: only the steps show that it was this one.
        if first is not None and said < first + TOLERANCE < wanted:
            why = f"its log says that it goes on from step {said}, not from {wanted}, and its first step is {first}"
            return Resumed(ResumeKind.ELSEWHERE, why)
    if goes_on:
        return Resumed(ResumeKind.RESUMED, f"its first step is {first}, after the checkpoint of step {wanted}")
    if wanted <= TOLERANCE:
        return Resumed(ResumeKind.UNKNOWN, f"the checkpoint is of step {wanted}, which a start from scratch looks like")
    if progress.from_scratch or (said == 0 and first is not None and first <= TOLERANCE):
        return Resumed(ResumeKind.FROM_SCRATCH, f"its log says that it starts from scratch, not from step {wanted}")
    counts_all = progress.total_steps is not None and progress.total_steps > wanted
    took = progress.step_duration_s
    trains = took is not None and usual_step_s is not None and took >= SKIPPED_BELOW * usual_step_s
    if first is not None and counts_all and trains and first <= TOLERANCE:
        return Resumed(
            ResumeKind.FROM_SCRATCH,
            f"its first step is {first} of {progress.total_steps}, although the checkpoint is of step {wanted}",
        )
    return Resumed(ResumeKind.UNKNOWN, f"its log does not show that it went on from step {wanted}")
