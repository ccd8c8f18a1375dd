"""The fields that the simulated nvidia-smi can be asked for, and their values."""

from __future__ import annotations

from collections.abc import Callable

from simulated_gpu.state import Gpu, Node, Process

MIB = 1 << 20
NOT_AVAILABLE = "[N/A]"
REMAP_KINDS = ("correctable", "uncorrectable", "pending", "failure")
REMAP_LEVELS = ("max", "high", "partial", "low", "none")

GpuField = Callable[[Gpu, Node], str]


def mebibytes(amount: int) -> str:
    """An amount of memory as nvidia-smi writes it."""
    return f"{amount // MIB} MiB"


def yes(value: object) -> str:
    """Yes or No."""
    return "Yes" if value else "No"


def ecc(kind: str) -> GpuField:
    """A counter of uncorrectable errors from the state file."""
    return lambda gpu, node: str(gpu.facts["ecc"][kind])


def remapped(kind: str) -> GpuField:
    """A row-remapping figure; a GPU split by MIG does not tell."""

    def value(gpu: Gpu, node: Node) -> str:
        if gpu.facts["mig"]:
            return NOT_AVAILABLE
        figure = gpu.facts["row_remap"][kind]
        return yes(figure) if isinstance(figure, bool) else str(figure)

    return value


def histogram(level: str) -> GpuField:
    """How many banks have that many spare rows left (H100: 2560 banks)."""
    return lambda gpu, node: str(banks(gpu)[level])


def banks(gpu: Gpu) -> dict[str, int]:
    """The histogram of spare rows; each remapped row is taken to lie in a bank of its own."""
    rows = gpu.facts["row_remap"]
    touched = int(rows["correctable"]) + int(rows["uncorrectable"])
    none = 1 if rows["failure"] else 0
    high = max(0, touched - none)
    return {"max": 2560 - high - none, "high": high, "partial": 0, "low": 0, "none": none}


def constant(text: str) -> GpuField:
    """The same value for every GPU."""
    return lambda gpu, node: text


def fact(name: str) -> GpuField:
    """A value that stands in the state file as it is shown."""
    return lambda gpu, node: str(gpu.facts[name])


GPU_FIELDS: dict[str, GpuField] = {
    "index": fact("index"),
    "gpu_name": fact("name"),
    "gpu_uuid": fact("uuid"),
    "gpu_bus_id": fact("bus_id"),
    "pci.bus": lambda gpu, node: f"0x{gpu.facts['bus_id'].split(':')[1]}",
    "pci.domain": constant("0x0000"),
    "gpu_serial": lambda gpu, node: f"SIMULATED-{gpu.facts['index']}",
    "driver_version": lambda gpu, node: node.driver,
    "count": lambda gpu, node: str(len(node.gpus)),
    "timestamp": lambda gpu, node: timestamp(),
    "memory.total": lambda gpu, node: mebibytes(gpu.total_bytes),
    "memory.reserved": lambda gpu, node: mebibytes(gpu.total_bytes - gpu.used_bytes - gpu.free_bytes),
    "memory.used": lambda gpu, node: mebibytes(gpu.used_bytes),
    "memory.free": lambda gpu, node: mebibytes(gpu.free_bytes),
    "utilization.gpu": lambda gpu, node: NOT_AVAILABLE if gpu.facts["mig"] else "0 %",
    "utilization.memory": lambda gpu, node: NOT_AVAILABLE if gpu.facts["mig"] else "0 %",
    "temperature.gpu": constant("30"),
    "power.draw": constant("70.00 W"),
    "persistence_mode": constant("Enabled"),
    "compute_mode": constant("Default"),
    "pstate": constant("P0"),
    "mig.mode.current": lambda gpu, node: "Enabled" if gpu.facts["mig"] else "Disabled",
    "mig.mode.pending": lambda gpu, node: "Enabled" if gpu.facts["mig"] else "Disabled",
    "gpu_recovery_action": fact("recovery_action"),
    "reset_status.reset_required": constant("Requested functionality has been deprecated"),
    "reset_status.drain_and_reset_recommended": constant("Requested functionality has been deprecated"),
    "ecc.mode.current": constant("Enabled"),
    "ecc.mode.pending": constant("Enabled"),
    "ecc.errors.uncorrected.volatile.dram": ecc("volatile_uncorrectable"),
    "ecc.errors.uncorrected.volatile.device_memory": ecc("volatile_uncorrectable"),
    "ecc.errors.uncorrected.volatile.sram": ecc("sram_uncorrectable"),
    "ecc.errors.uncorrected.volatile.total": lambda gpu, node: str(
        gpu.facts["ecc"]["volatile_uncorrectable"] + gpu.facts["ecc"]["sram_uncorrectable"]
    ),
    "ecc.errors.uncorrected.aggregate.dram": ecc("aggregate_uncorrectable"),
    "ecc.errors.uncorrected.aggregate.device_memory": ecc("aggregate_uncorrectable"),
    "ecc.errors.uncorrected.aggregate.sram": ecc("sram_uncorrectable"),
    "ecc.errors.uncorrected.aggregate.sram.secded": ecc("sram_uncorrectable"),
    "ecc.errors.uncorrected.aggregate.sram.parity": constant("0"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": lambda gpu, node: yes(
        gpu.facts["ecc"]["sram_threshold_exceeded"]
    ),
    "ecc.errors.uncorrected.aggregate.total": lambda gpu, node: str(
        gpu.facts["ecc"]["aggregate_uncorrectable"] + gpu.facts["ecc"]["sram_uncorrectable"]
    ),
    **{
        f"ecc.errors.corrected.{life}.{unit}": constant("0")
        for life in ("volatile", "aggregate")
        for unit in ("dram", "device_memory", "sram", "total")
    },
    "retired_pages.single_bit_ecc.count": constant(NOT_AVAILABLE),
    "retired_pages.double_bit.count": constant(NOT_AVAILABLE),
    "retired_pages.pending": constant(NOT_AVAILABLE),
    **{f"remapped_rows.{kind}": remapped(kind) for kind in REMAP_KINDS},
    **{f"remapped_rows.histogram.{level}": histogram(level) for level in REMAP_LEVELS},
}

#: Other names for the same fields; the answer's header keeps the name that was asked for.
ALIASES = {"name": "gpu_name", "uuid": "gpu_uuid", "pci.bus_id": "gpu_bus_id", "serial": "gpu_serial"}

#: Units that the header shows in brackets, and that `nounits` takes off the values.
UNITS = {
    **{f"memory.{kind}": "MiB" for kind in ("total", "reserved", "used", "free")},
    **{f"utilization.{kind}": "%" for kind in ("gpu", "memory")},
    "power.draw": "W",
    "used_gpu_memory": "MiB",
}

APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory", "uuid": "gpu_uuid"}
APP_FIELDS: dict[str, Callable[[Gpu, Process, Node], str]] = {
    "pid": lambda gpu, process, node: str(process.pid),
    "process_name": lambda gpu, process, node: process.name,
    "used_gpu_memory": lambda gpu, process, node: mebibytes(process.bytes),
    "gpu_uuid": lambda gpu, process, node: str(gpu.facts["uuid"]),
    "gpu_name": lambda gpu, process, node: str(gpu.facts["name"]),
    "gpu_bus_id": lambda gpu, process, node: str(gpu.facts["bus_id"]),
    "gpu_serial": lambda gpu, process, node: f"SIMULATED-{gpu.facts['index']}",
    "timestamp": lambda gpu, process, node: timestamp(),
}


def timestamp() -> str:
    """The present time in nvidia-smi's own form."""
    import time

    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
