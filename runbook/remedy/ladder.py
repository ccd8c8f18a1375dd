"""The ladder: the next lever for a diagnosis that fits, was not tried, and changes no experiment unasked."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.diagnosis import Diagnosis, Kind
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.remedy import LeverUse, NoPlan, Plan, RefusedLever
from runbook.model.template import Setting
from runbook.remedy.documents import LeverDocument
from runbook.remedy.functions import FUNCTIONS, Situation
from runbook.remedy.values import values_of

ELSEWHERE = frozenset({Kind.CO_TENANT, Kind.HARDWARE_FAULT})
"""Kinds that no template change helps: the unchanged job runs on other nodes."""

_PERSON: dict[Kind, tuple[str, str]] = {
    Kind.HOST_OOM: (
        "the host's memory ran out: no GPU lever helps, and offloading would make it worse",
        "May the job ask for more host memory (--mem), or use fewer data-loading workers?",
    ),
    Kind.SHM: (
        "/dev/shm was full: the size belongs to the node or the container",  # noqa: S108
        "Can /dev/shm be made larger, or num_workers smaller?",
    ),
    Kind.PER_PROCESS_LIMIT: (
        "the process was limited to a share of the card, and hit that limit",
        "Who sets the memory fraction, and may it be raised?",
    ),
    Kind.MEMORY_LEAK: (
        "memory grows step by step: a lever would only move the failure to a later step",
        "What does the training loop keep between steps?",
    ),
    Kind.CUDA_CONTEXT_OR_DRIVER: (
        "the driver failed outside PyTorch's allocator, with no figures to decide by",
        "What does nvidia-smi show on the node while such a job starts?",
    ),
    Kind.INFERENCE_RESERVATION: (
        "a colocated inference engine holds a static share of the card",
        "May the engine's share (gpu_memory_utilization, mem_fraction_static) be lowered?",
    ),
    Kind.KV_CACHE_SIZING: (
        "the engine's KV cache does not fit its share",
        "May the engine's share be raised, or the context and the number of sequences lowered?",
    ),
}


def propose(
    diagnosis: Diagnosis,
    story: LogStory,
    job: JobRecord,
    settings: Sequence[Setting],
    system: LeverDocument,
    *,
    tried: Sequence[str] = (),
    allow_training_change: bool = False,
) -> Plan | NoPlan:
    """The next plan. A lever that was tried with the same value, or refuses, is passed over with the reason kept."""
    kind = diagnosis.best.kind
    if kind in ELSEWHERE:
        return Plan(uses=(), system=system.id, ladder="elsewhere")
    ladder = system.ladders.get(kind, ())
    if not ladder:
        why, question = _PERSON.get(kind, (f"no ladder of {system.id} is for {kind.value}", "What may be changed?"))
        return NoPlan(why, exhausted=False, question=question)
    values = values_of(system, settings)
    refused: list[RefusedLever] = []
    for name in ladder:
        entry = system.levers[name]
        made = FUNCTIONS[entry.function](Situation(name, entry, values, job, story, allow_training_change))
        if isinstance(made, LeverUse) and made.key in tried:
            refused.append(RefusedLever(name, f"{made.title} was tried already in this incident"))
        elif isinstance(made, LeverUse):
            return Plan(uses=(made,), refused=tuple(refused), system=system.id, ladder=kind.value)
        else:
            refused.append(made)
    asking = [item for item in refused if item.needs_person]
    reasons = "; ".join(f"{item.lever.replace('_', ' ')}: {item.why}" for item in refused)
    return NoPlan(
        f"no lever is left that could be used without asking ({reasons})",
        refused=tuple(refused),
        exhausted=not asking,
        question=asking[0].question if asking else "",
    )
