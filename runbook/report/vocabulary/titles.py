"""Figures, times and enum values in the words of a person. Few imports: it is read at each start."""

from __future__ import annotations

from enum import StrEnum

from runbook.model.diagnosis import Detail, Hypothesis, Kind
from runbook.model.incident import IncidentState
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.model.units import moment

KIND_TITLES: dict[Kind, str] = {
    Kind.TRUE_OOM: "True out of memory",
    Kind.FRAGMENTATION: "Fragmented allocator",
    Kind.CO_TENANT: "Another process on the GPU",
    Kind.INFERENCE_RESERVATION: "Inference engine's reservation",
    Kind.KV_CACHE_SIZING: "KV cache sized wrongly",
    Kind.NCCL_BUFFERS: "Memory outside the allocator",
    Kind.PER_PROCESS_LIMIT: "Per-process memory limit",
    Kind.MEMORY_LEAK: "Memory leak",
    Kind.CUDA_CONTEXT_OR_DRIVER: "CUDA context or driver",
    Kind.HOST_OOM: "Host out of memory",
    Kind.SHM: "Shared memory (/dev/shm) full",
    Kind.HARDWARE_FAULT: "GPU hardware fault",
    Kind.NOT_OOM: "Not out of memory",
    Kind.UNDETERMINED: "Undetermined",
}

KIND_MEANING: dict[Kind, str] = {
    Kind.TRUE_OOM: "the working set does not fit on the GPU",
    Kind.FRAGMENTATION: "enough memory was held by the allocator, but in pieces too small for the request",
    Kind.CO_TENANT: "a process that is not this job's holds memory on the GPU",
    Kind.INFERENCE_RESERVATION: "the inference engine that shares the GPU keeps a fixed share of it",
    Kind.KV_CACHE_SIZING: "the inference engine's share of the GPU does not suit its KV cache",
    Kind.NCCL_BUFFERS: "NCCL or another library took memory that PyTorch's allocator does not manage",
    Kind.PER_PROCESS_LIMIT: "the process was limited to a fraction of the GPU",
    Kind.MEMORY_LEAK: "memory in use grew from step to step until nothing was left",
    Kind.CUDA_CONTEXT_OR_DRIVER: "CUDA failed outside PyTorch's allocator",
    Kind.HOST_OOM: "main memory, not the GPU's, ran out: the node's, or the job's share of it",
    Kind.SHM: "no room was left in shared memory (/dev/shm)",
    Kind.HARDWARE_FAULT: "the GPU reported a fault of its own",
    Kind.NOT_OOM: "the job died of something else",
    Kind.UNDETERMINED: "the evidence does not single out one cause",
}

DETAIL_TITLES: dict[Detail, str] = {
    Detail.STATIC: "too large from the start",
    Detail.GROWN: "grown during the run",
    Detail.IMPOSSIBLE_REQUEST: "one request larger than the card",
    Detail.PRIVATE_POOLS: "private pools of CUDA graphs",
    Detail.SEQUENCE_LENGTH: "grown with the sequence length",
    Detail.RAISE_SHARE: "the engine's share is too small",
    Detail.LOWER_SHARE: "the engine's share is too large",
    Detail.RUN_TIME: "out of tokens while serving",
    Detail.NCCL: "NCCL's own buffers",
    Detail.LIBRARY: "a library's handle or workspace",
    Detail.OUTSIDE: "of this process, owner unknown",
    Detail.RANKS_SHARE_GPU: "several ranks on one GPU",
    Detail.CGROUP: "the job's own limit",
    Detail.NODE: "the whole node",
    Detail.RAY_MONITOR: "killed by Ray's memory monitor",
    Detail.PINNED: "pinned memory",
    Detail.REFUSED: "an allocation was refused",
    Detail.NCCL_SEGMENT: "NCCL's segments",
    Detail.DATA_LOADER: "data loading workers",
    Detail.OBJECT_STORE: "Ray's object store",
    Detail.HANG: "a hang",
    Detail.PROGRAM: "an error of the program",
    Detail.CONFIGURATION: "settings that exclude one another",
    Detail.STOPPED: "stopped from outside",
    Detail.FINISHED: "ran to its end",
    Detail.NONE: "",
}

_DETAIL_MEANING: dict[tuple[Kind, Detail], str] = {
    (Kind.CUDA_CONTEXT_OR_DRIVER, Detail.RANKS_SHARE_GPU): "several ranks of this job use the same GPU",
    (Kind.HOST_OOM, Detail.CGROUP): "the job reached its own limit of main memory; the GPU's memory is not meant",
    (Kind.HOST_OOM, Detail.NODE): "the main memory of the whole node, not the GPU's, ran out",
    (Kind.HOST_OOM, Detail.RAY_MONITOR): "Ray killed workers because the node's main memory in use passed Ray's limit",
    (Kind.HOST_OOM, Detail.PINNED): "main memory that the GPU can reach directly (pinned) was refused",
    (Kind.HOST_OOM, Detail.REFUSED): "a process asked for main memory, not the GPU's, and was refused",
    (Kind.SHM, Detail.DATA_LOADER): "the data loader ran out of shared memory (/dev/shm)",
    (Kind.SHM, Detail.NCCL_SEGMENT): "NCCL found no room for its segments in shared memory (/dev/shm)",
    (Kind.SHM, Detail.OBJECT_STORE): "Ray's object store was full",
    (Kind.NOT_OOM, Detail.HANG): "ranks waited for one another until they timed out, and no line speaks of memory",
    (Kind.NOT_OOM, Detail.PROGRAM): "the program failed with an error that is not one of memory",
    (Kind.NOT_OOM, Detail.CONFIGURATION): "the program refused its settings",
    (Kind.NOT_OOM, Detail.STOPPED): "something outside the program ended it",
    (Kind.NOT_OOM, Detail.FINISHED): "no failure is to be seen",
}
"""Where the detail changes what the kind means."""


def diagnosis_title(hypothesis: Hypothesis) -> str:
    """"True out of memory: grown during the run"."""
    detail = DETAIL_TITLES[hypothesis.detail]
    return KIND_TITLES[hypothesis.kind] + (f": {detail}" if detail else "")


def diagnosis_meaning(hypothesis: Hypothesis) -> str:
    """What the kind, and its detail where that says otherwise, mean: half a sentence without its full stop."""
    return meaning(hypothesis.kind, hypothesis.detail)


def meaning(kind: Kind, detail: Detail = Detail.NONE) -> str:
    return _DETAIL_MEANING.get((kind, detail)) or KIND_MEANING[kind]


PHASE_WORDS: dict[Phase, str] = {
    Phase.INIT: "during start-up",
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
