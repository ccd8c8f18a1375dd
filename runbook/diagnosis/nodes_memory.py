"""Memory that a GPU lacks: against its model's capacity, to the driver, to MIG, and to nobody that can be seen."""

from __future__ import annotations

from collections.abc import Iterable

from runbook.diagnosis.nodes_rules import Rule, Weight
from runbook.diagnosis.nodes_signs import NodePolicy, Sign, gpu_name, sign, size
from runbook.model.gpu_model import GpuModels
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, NodeFacts
from runbook.model.units import GIB, MIB, Bytes, Unknown

HIDDEN_SOURCE = "memory in use without a process"
_TOLERANCE_BYTES = 512 * MIB
"""Totals of one model differ by less than this between driver branches that are listed and those that are not."""
_JUST_ENDED_S = 15.0


def memory_signs(facts: NodeFacts, policy: NodePolicy, models: GpuModels) -> list[Sign]:
    """Signs from the totals. Row remapping and page retirement cost kilobytes and give none."""
    gpus = [] if isinstance(facts.gpus, Unknown) else [gpu for gpu in facts.gpus if not gpu.lost]
    signs = [one for gpu in gpus for one in _capacity(gpu, gpus, models)]
    signs += [one for gpu in gpus for one in _reserved(gpu, policy)]
    signs += [
        sign(Rule.MIG, f"{gpu_name(gpu)}: MIG is on, so that a job has a slice of it and not the whole GPU", gpu.index)
        for gpu in gpus if gpu.mig_enabled is True
    ]
    return signs


def hidden_bytes(gpu: GpuFacts, policy: NodePolicy) -> Bytes:
    """Memory in use that no listed process holds, 0 where it is a context's or a driver's ordinary share, or where it
    cannot be told because a process's figure is not known."""
    if gpu.lost or isinstance(gpu.used_bytes, Unknown) or isinstance(gpu.processes, Unknown):
        return Bytes(0)
    known = [process.used_bytes for process in gpu.processes if not isinstance(process.used_bytes, Unknown)]
    if len(known) != len(gpu.processes):
        return Bytes(0)
    hidden = gpu.used_bytes - sum(known)
    return Bytes(hidden) if hidden > policy.hidden_memory_bytes + policy.context_bytes * len(known) else Bytes(0)


def hidden_sign(gpu: GpuFacts, facts: NodeFacts, job: JobRecord, policy: NodePolicy) -> Sign | None:
    """Hidden memory is somebody's, or a leak, once the job's own processes must be gone and all others can be seen."""
    hidden = hidden_bytes(gpu, policy)
    if not hidden:
        return None
    text = f"{gpu_name(gpu)}: {size(hidden)} are in use by no process that nvidia-smi lists (hidden memory"
    doubt = _doubt(facts, job)
    if doubt:
        return sign(Rule.HIDDEN_MEMORY, f"{text}: {doubt})", gpu.index, HIDDEN_SOURCE, weight=Weight.UNDETERMINED)
    text += (
        ": a dead process whose memory was not given back, or one of another namespace); look with "
        "`fuser -v /dev/nvidia*`; if it stays, the GPU needs a reset once the node is idle"
    )
    weight = Weight.DRAIN if policy.drain_on_hidden_memory else None
    return sign(Rule.HIDDEN_MEMORY, text, gpu.index, HIDDEN_SOURCE, weight=weight)


def _doubt(facts: NodeFacts, job: JobRecord) -> str:
    if facts.partial_view:
        return f"perhaps only not seen from there: {facts.partial_view}"
    if job.end_time_s is None:
        return "the job is not known to have ended, so that it may be its own processes, just ending"
    if facts.checked_at_s is not None and facts.checked_at_s - job.end_time_s < _JUST_ENDED_S:
        return "the job ended seconds before the check, so that it may be its own processes, just ending"
    return ""


def _capacity(gpu: GpuFacts, gpus: list[GpuFacts], models: GpuModels) -> Iterable[Sign]:
    total = gpu.total_bytes
    if isinstance(total, Unknown) or not gpu.name:
        return
    whole = models.capacity(gpu.name)
    if whole is not None and total < whole - _TOLERANCE_BYTES:
        yield sign(
            Rule.MEMORY_BELOW_MODEL,
            f"{gpu_name(gpu)}: {size(whole - total)} of its memory are missing: it shows {size(total)} and a sound "
            f"{gpu.name} at least {size(whole)}; ask for its kernel log (Xid 168) and its ECC mode",
            gpu.index, f"GPU models of {models.date}: {models.source}",
        )
    if whole is not None:
        return
    others = [one.total_bytes for one in gpus if one.name == gpu.name and not isinstance(one.total_bytes, Unknown)]
    most = max(others, default=total)
    if total < most - _TOLERANCE_BYTES:
        yield sign(
            Rule.MEMORY_BELOW_MODEL,
            f"{gpu_name(gpu)}: it shows {size(total)}, another {gpu.name} of the node {size(most)}; the ECC mode "
            "may differ",
            gpu.index, "GPUs of one model on one node", weight=Weight.WARN,
        )


def _reserved(gpu: GpuFacts, policy: NodePolicy) -> Iterable[Sign]:
    """nvidia-smi: total = used + reserved + free, to a few MiB."""
    figures = (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes)
    if gpu.mig_enabled is True or any(isinstance(figure, Unknown) for figure in figures):
        return
    total, used, free = (figure for figure in figures if not isinstance(figure, Unknown))
    reserved = total - used - free
    if reserved > policy.reserved_bytes:
        yield sign(
            Rule.MEMORY_RESERVED,
            f"{gpu_name(gpu)}: {reserved / GIB:.1f} GiB are neither free nor in use: the driver keeps them for itself, "
            "far more than is usual",
            gpu.index, "nvidia-smi: total, used and free memory",
        )
