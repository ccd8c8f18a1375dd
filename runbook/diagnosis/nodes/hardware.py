"""Signs of a hardware fault in the GPUs' own figures: what a driver keeps outlives the kernel log.

Rules: NVIDIA's GPU Memory Error Management (remapping, SRAM threshold, recovery action), DCGM's limits for retired
pages. A row that waits to be remapped costs a reset, never gigabytes, so that it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable

from runbook.diagnosis.nodes.signs import NodePolicy, Rule, Sign, Weight, gpu_name, sign, size
from runbook.model.catalogues import GpuModels, XidCatalogue
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, NodeFacts
from runbook.model.units import GIB, MIB, Bytes, Unknown

STATE_SOURCE = "NVIDIA GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"
_NVML_SOURCE = "NVML: GPU lost, reset required, fewer GPUs than Slurm's Gres"
_MISMATCH = "NVML: driver and library versions differ"
_RETIREMENT_SOURCE = "DCGM hardware limits (63 retired pages fail) and NVIDIA's rule for 15 and more"
_RETIRED_PAGES_FAIL = 63
_RETIRED_PAGES_MANY = 15
_NO_ACTION = frozenset({"none", "", "0", "0x0"})


def state_signs(facts: NodeFacts, policy: NodePolicy, xids: XidCatalogue) -> list[Sign]:
    """Signs from the GPUs' own figures, lost and missing GPUs included. Unknown figures give no sign here. The
    catalogue has the names of the recovery actions."""
    if isinstance(facts.gpus, Unknown):
        return [sign(Rule.DRIVER_MISMATCH, facts.software_fault, source=_MISMATCH)] if facts.software_fault else []
    signs = [one for gpu in facts.gpus for one in _gpu_signs(gpu, policy, xids)]
    expected, seen = facts.expected_gpus, len(facts.gpus)
    if any(gpu.lost for gpu in facts.gpus):
        # nvidia-smi may stop at the lost GPU and name no other: how many are there cannot be told then.
        return signs
    if any(gpu.mig_enabled is True for gpu in facts.gpus):
        # Slurm counts MIG slices as GPUs; fewer GPUs than slices is the rule.
        return signs
    if expected is not None and seen < expected:
        text = f"{seen} of {expected} GPUs are there"
        if facts.partial_view:
            signs.append(sign(Rule.GPU_MISSING, f"{text}, but {facts.partial_view}", weight=Weight.UNDETERMINED))
        else:
            signs.append(sign(Rule.GPU_MISSING, f"{text}: the driver has lost the others", source=_NVML_SOURCE))
    elif seen == 0:
        signs.append(sign(Rule.NO_GPU, "the driver shows no GPU, and how many there should be is not known"))
    return signs


def asks_for_recovery(action: str) -> bool:
    return action.strip().lower() not in _NO_ACTION


def _gpu_signs(gpu: GpuFacts, policy: NodePolicy, xids: XidCatalogue) -> Iterable[Sign]:
    name = gpu_name(gpu)

    def found(rule: Rule, text: str, source: str = STATE_SOURCE, weight: Weight | None = None) -> Sign:
        return sign(rule, f"{name}: {text}", gpu.index, source, weight=weight)

    if gpu.lost:
        yield found(Rule.GPU_LOST, "the driver cannot reach it any more (GPU is lost)", _NVML_SOURCE)
    if gpu.row_remap_failed is True:
        yield found(Rule.ROW_REMAP_FAILED, "remapping a memory row has failed")
    if gpu.sram_threshold_exceeded is True:
        yield found(Rule.SRAM_THRESHOLD, "its SRAM has more uncorrectable errors than the vendor's threshold")
    if gpu.unrepairable_memory is True:
        yield found(Rule.UNREPAIRABLE_MEMORY, "it has memory that cannot be repaired")
    action = gpu.recovery_action
    if isinstance(action, str) and asks_for_recovery(action):
        asks = xids.asked_by(action)
        if asks is None:
            yield found(
                Rule.RECOVERY_ACTION, f"the driver's recovery action is {action!r}, which nobody published: a person "
                "looks", weight=Weight.UNDETERMINED,
            )
        else:
            yield found(Rule.RECOVERY_ACTION, f"the driver asks for recovery: {action}; reset needed ({asks})")
    pending = Weight.DRAIN if policy.drain_on_pending_reset else None
    later = "at the next GPU reset; no cause of an out-of-memory error (it costs rows, not gigabytes)"
    if gpu.row_remap_pending is True:
        yield found(Rule.ROW_REMAP_PENDING, f"a memory row or page waits to be taken out {later}", weight=pending)
    if gpu.repair_pending is True:
        yield found(Rule.REPAIR_PENDING, f"a repair waits {later}", weight=pending)
    retired = gpu.retired_pages
    if isinstance(retired, int) and retired >= _RETIRED_PAGES_FAIL:
        yield found(
            Rule.RETIREMENT_TABLE_FULL, f"{retired} memory pages are retired: its table is full", _RETIREMENT_SOURCE
        )
    elif isinstance(retired, int) and retired >= _RETIRED_PAGES_MANY:
        yield found(
            Rule.MANY_RETIRED_PAGES, f"{retired} memory pages are retired; with new ones every week it is at its end",
            _RETIREMENT_SOURCE,
        )
    volatile = gpu.ecc_uncorrectable_volatile
    if isinstance(volatile, int) and volatile > 0:
        yield found(Rule.UNCORRECTABLE_ERRORS, f"{volatile} uncorrectable ECC errors since the driver was loaded")
    if not gpu.lost and isinstance(volatile, Unknown) and "Unknown Error" in volatile.unknown:
        yield found(Rule.ECC_UNREADABLE, f"{volatile.unknown}; a healthy GPU does not say so", "")


# Memory that a GPU lacks: against its model's capacity, to the driver, to MIG, and to nobody that can be seen.

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
