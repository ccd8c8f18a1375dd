"""Figures, times and enum values in the words of a person. Few imports: it is read at each start."""

from __future__ import annotations

from enum import StrEnum

from runbook.model.diagnosis import Hypothesis
from runbook.model.job import JobRecord
from runbook.model.log import Phase
from runbook.model.units import Effect, IncidentState, moment


def diagnosis_title(hypothesis: Hypothesis) -> str:
    """"True out of memory: grown during the run"."""
    detail = hypothesis.kind.entry.detail(hypothesis.detail).title
    return hypothesis.kind.entry.title + (f": {detail}" if detail else "")


def diagnosis_meaning(hypothesis: Hypothesis) -> str:
    """What the kind, and its detail where that says otherwise, mean: half a sentence without its full stop."""
    return hypothesis.kind.entry.meaning_of(hypothesis.detail)


PHASE_WORDS: dict[Phase, str] = {
    Phase.INIT: "during start-up",
    Phase.RESUME: "while loading a checkpoint",
    Phase.FORWARD: "in the forward pass",
    Phase.BACKWARD: "in the backward pass",
    Phase.OPTIMIZER_STEP: "in the optimizer step",
    Phase.VALIDATION: "during validation",
    Phase.LOG_PROBS: "while computing log probabilities",
    Phase.WEIGHT_SYNC: "while synchronising weights",
    Phase.ROLLOUT: "during the rollout",
    Phase.CHECKPOINT: "while saving a checkpoint",
    Phase.DATA_LOADING: "while loading data",
    Phase.COLLECTIVE: "in a collective operation",
    Phase.UNKNOWN: "",
}



class Again(StrEnum):
    """Whether the job runs again."""

    YES = "yes"
    """A relaunch got past the failing step."""
    NOT_PROVEN = "not_proven"
    """A relaunch was submitted; whether it gets past the failing step is not known."""
    NOT_YET = "not_yet"
    NO = "no"
    PLANNED = "planned"
    NOT_NEEDED = "not_needed"
    """There was nothing to do for this tool."""


STATE_TITLES: dict[IncidentState, str] = {
    IncidentState.RUNNING: "Running",
    IncidentState.AWAITING_APPROVAL: "Waits for approval",
    IncidentState.INTERRUPTED: "Interrupted",
    IncidentState.RECOVERED: "Recovered",
    IncidentState.PLANNED: "Planned",
    IncidentState.ESCALATED: "Needs a person",
    IncidentState.CLOSED: "Closed",
}

EFFECT_WORDS: dict[Effect, str] = {
    Effect.NONE: "Mathematics unchanged",
    Effect.NUMERICS: "Same samples, other rounding",
    Effect.TRAINING: "Changes the experiment",
}

EFFECT_SENTENCES: dict[Effect, str] = {
    Effect.NONE: "The mathematics of training stays the same: the same samples, the same global batch.",
    Effect.NUMERICS: "The training sees the same samples; sums are rounded in another order, so curves can differ "
    "in the last digits.",
    Effect.TRAINING: "The mathematics of training changes: results are not those of the unchanged experiment.",
}
"""What `model.remedy.Effect` promises, for somebody who decides whether to keep a change."""

AGAIN_TITLES: dict[Again, str] = {
    Again.YES: "Yes",
    Again.NOT_PROVEN: "Not proven yet",
    Again.NOT_YET: "Not yet",
    Again.NO: "No",
    Again.PLANNED: "No, only planned",
    Again.NOT_NEEDED: "Left as it was",
}
"""Does the job run again?"""


def clock_time(time_s: float | None) -> str:
    """Only the time of day, "02:13:44", for rows under one date."""
    full = moment(time_s)
    return full if full == "unknown" else full[11:19]


def day(time_s: float | None) -> str:
    """Only the date, "2026-09-14"."""
    full = moment(time_s)
    return full if full == "unknown" else full[:10]


def machine_time(time_s: float | None) -> str:
    """ISO 8601 for machines, "" for None."""
    full = moment(time_s)
    return "" if full == "unknown" else full[:10] + "T" + full[11:19] + "Z"


def percent(share: float) -> str:
    """A share of 1 as "93 %"; certainty is not claimed by rounding."""
    if 0.995 <= share < 1:
        return "over 99 %"
    if 0 < share < 0.005:
        return "under 1 %"
    return f"{share * 100:.0f} %"


def counted(count: int, noun: str, plural: str = "") -> str:
    """"1 node", "3 nodes"."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


_JOB_REASONS = {
    "Resources": "nodes have to become free",
    "Priority": "jobs ahead of it",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Nodes required for job are DOWN": "or drained, or reserved for jobs of higher priority",
    "PartitionDown": "its partition starts no jobs",
    "QOSMaxGRESPerUser": "its owner holds as many GPUs as are allowed",
    "AssocGrpGRES": "its account holds as many GPUs as are allowed",
    "JobHeldUser": "held by its owner",
    "JobHeldAdmin": "held by an administrator",
    "BeginTime": "its begin time has not come",
    "Dependency": "it depends on another job",
}
"""squeue(1), JOB REASON CODES."""


def waits_for(job: JobRecord) -> str:
    """Why a job waits in the queue: Slurm's reason, with what the commonest mean."""
    meaning = _JOB_REASONS.get(job.reason_code, "")
    return f"{job.reason} ({meaning})" if meaning else job.reason or "Slurm gives no reason"
