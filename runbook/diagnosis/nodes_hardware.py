"""Signs of a hardware fault in the GPUs' own figures: what a driver keeps outlives the kernel log.

Rules: NVIDIA's GPU Memory Error Management (remapping, SRAM threshold, recovery action), DCGM's limits for retired
pages. A row that waits to be remapped costs a reset, never gigabytes, so that it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable

from runbook.diagnosis.nodes_rules import Rule, Weight
from runbook.diagnosis.nodes_signs import NodePolicy, Sign, gpu_name, sign
from runbook.model.node import GpuFacts, NodeFacts
from runbook.model.units import Unknown
from runbook.model.xid import XidCatalogue

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
