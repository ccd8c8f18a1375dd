"""Signs in the GPUs' own figures: faults that outlive the kernel log, and memory that a GPU lacks.

Rules: NVIDIA's GPU Memory Error Management (remapping, SRAM threshold, recovery action), DCGM's limits for retired
pages. A row that waits to be remapped costs a reset, never gigabytes, so that it is a warning. Memory is held against
its model's capacity, and what the driver, MIG and nobody that can be seen take of it is told.
"""

from __future__ import annotations

from collections.abc import Iterable

from runbook.diagnosis.nodes.signs import NodePolicy, Rulebook, Sign, size
from runbook.model.catalogues import GpuModels, XidCatalogue
from runbook.model.job import JobRecord
from runbook.model.node import Cause, GpuFacts, NodeFacts, Unread
from runbook.model.node_rules import Condition
from runbook.model.units import MIB, Bytes, Unknown, in_gib

_NO_ACTION = frozenset({"none", "", "0", "0x0"})
_TOLERANCE_BYTES = 512 * MIB
"""Totals of one model differ by less than this between driver branches that are listed and those that are not."""
_JUST_ENDED_S = 15.0


def state_signs(facts: NodeFacts, book: Rulebook, xids: XidCatalogue) -> list[Sign]:
    """Signs from the GPUs' own figures, lost and missing GPUs included. Unknown figures give no sign here. The
    catalogue has the names of the recovery actions."""
    if isinstance(facts.gpus, Unknown):
        return [book.sign(Condition.DRIVER_NOT_RELOADED, why=facts.software_fault)] if facts.software_fault else []
    signs = [one for gpu in facts.gpus for one in _state(gpu, book, xids)]
    expected, seen = facts.expected_gpus, len(facts.gpus)
    if any(gpu.lost for gpu in facts.gpus):
        # nvidia-smi may stop at the lost GPU and name no other: how many are there cannot be told then.
        return signs
    if any(gpu.mig_enabled is True for gpu in facts.gpus):
        # Slurm counts MIG slices as GPUs; fewer GPUs than slices is the rule.
        return signs
    if expected is not None and seen < expected:
        condition = Condition.GPUS_FEWER_IN_SIGHT if facts.partial_view else Condition.GPUS_FEWER
        signs.append(book.sign(condition, seen=seen, expected=expected, view=facts.partial_view))
    elif seen == 0:
        signs.append(book.sign(Condition.GPUS_NONE))
    return signs


def asks_for_recovery(action: str) -> bool:
    return action.strip().lower() not in _NO_ACTION


def _state(gpu: GpuFacts, book: Rulebook, xids: XidCatalogue) -> Iterable[Sign]:
    if gpu.lost:
        yield book.sign(Condition.GPU_OUT_OF_REACH, gpu)
    if gpu.row_remap_failed is True:
        yield book.sign(Condition.REMAPPING_FAILED, gpu)
    if gpu.sram_threshold_exceeded is True:
        yield book.sign(Condition.SRAM_OVER_THRESHOLD, gpu)
    if gpu.unrepairable_memory is True:
        yield book.sign(Condition.MEMORY_BEYOND_REPAIR, gpu)
    action = gpu.recovery_action
    if isinstance(action, str) and asks_for_recovery(action):
        asks = xids.asked_by(action)
        if asks is None:
            yield book.sign(Condition.RECOVERY_ASKED_UNPUBLISHED, gpu, action=repr(action))
        else:
            yield book.sign(Condition.RECOVERY_ASKED, gpu, action=action, asks=asks)
    if gpu.row_remap_pending is True:
        yield book.sign(Condition.ROW_WAITS, gpu)
    if gpu.repair_pending is True:
        yield book.sign(Condition.REPAIR_WAITS, gpu)
    volatile = gpu.ecc_uncorrectable_volatile
    for condition, count in (
        (Condition.PAGES_RETIRED, gpu.retired_pages), (Condition.ERRORS_UNCORRECTED, volatile)
    ):
        case = book.rules.case(condition, amount=count) if isinstance(count, int) else None
        if case is not None:
            yield book.sign_of(case, gpu, count=count)
    if not gpu.lost and isinstance(volatile, Unread) and volatile.cause is Cause.UNKNOWN_ERROR:
        yield book.sign(Condition.ECC_MODE_UNREADABLE, gpu, why=volatile.unknown)


def memory_signs(facts: NodeFacts, book: Rulebook, models: GpuModels) -> list[Sign]:
    """Signs from the totals. Row remapping and page retirement cost kilobytes and give none."""
    gpus = [] if isinstance(facts.gpus, Unknown) else [gpu for gpu in facts.gpus if not gpu.lost]
    signs = [one for gpu in gpus for one in _capacity(gpu, gpus, book, models)]
    signs += [one for gpu in gpus for one in _reserved(gpu, book)]
    signs += [book.sign(Condition.MIG_ON, gpu) for gpu in gpus if gpu.mig_enabled is True]
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


def hidden_sign(gpu: GpuFacts, facts: NodeFacts, job: JobRecord, book: Rulebook) -> Sign | None:
    """Hidden memory is somebody's, or a leak, once the job's own processes must be gone and all others can be seen."""
    hidden = hidden_bytes(gpu, book.policy)
    if not hidden:
        return None
    return book.sign(_hidden_condition(facts, job), gpu, hidden=size(hidden), view=facts.partial_view)


def _hidden_condition(facts: NodeFacts, job: JobRecord) -> Condition:
    if facts.partial_view:
        return Condition.MEMORY_HIDDEN_PERHAPS_UNSEEN
    if job.end_time_s is None:
        return Condition.MEMORY_HIDDEN_JOB_MAY_RUN
    if facts.checked_at_s is not None and facts.checked_at_s - job.end_time_s < _JUST_ENDED_S:
        return Condition.MEMORY_HIDDEN_JOB_JUST_ENDED
    return Condition.MEMORY_HIDDEN


def _capacity(gpu: GpuFacts, gpus: list[GpuFacts], book: Rulebook, models: GpuModels) -> Iterable[Sign]:
    total = gpu.total_bytes
    if isinstance(total, Unknown) or not gpu.name:
        return
    whole = models.capacity(gpu.name)
    if whole is not None and total < whole - _TOLERANCE_BYTES:
        yield book.sign(
            Condition.MEMORY_BELOW_CATALOGUE, gpu, f"GPU models of {models.date}: {models.source}",
            missing=size(whole - total), total=size(total), name=gpu.name, least=size(whole),
        )
    if whole is not None:
        return
    others = [one.total_bytes for one in gpus if one.name == gpu.name and not isinstance(one.total_bytes, Unknown)]
    most = max(others, default=total)
    if total < most - _TOLERANCE_BYTES:
        yield book.sign(Condition.MEMORY_BELOW_OTHERS, gpu, total=size(total), name=gpu.name, most=size(most))


def _reserved(gpu: GpuFacts, book: Rulebook) -> Iterable[Sign]:
    """nvidia-smi: total = used + reserved + free, to a few MiB."""
    figures = (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes)
    if gpu.mig_enabled is True or any(isinstance(figure, Unknown) for figure in figures):
        return
    total, used, free = (figure for figure in figures if not isinstance(figure, Unknown))
    reserved = total - used - free
    if reserved > book.policy.reserved_bytes:
        yield book.sign(Condition.MEMORY_KEPT_BY_DRIVER, gpu, reserved=f"{in_gib(reserved, 1)}")
