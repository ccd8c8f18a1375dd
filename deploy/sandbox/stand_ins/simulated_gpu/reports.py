"""The longer reports of the simulated nvidia-smi: -q text, -q -x XML and the table."""

from __future__ import annotations

from simulated_gpu.fields import banks, mebibytes, timestamp, yes
from simulated_gpu.state import Gpu, Node

Tree = dict[str, "str | Tree"]


def text(node: Node, gpus: list[Gpu], display: str) -> str:
    """The report of `-q`, whole or only the sections that `-d` names."""
    wanted = {word.strip().upper() for word in display.split(",") if word.strip()}
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [f"{'Timestamp':<49} : {timestamp()}", f"{'Driver Version':<49} : {node.driver}"]
    lines += [f"{'CUDA Version':<49} : 12.8", "", f"{'Attached GPUs':<49} : {len(node.gpus)}"]
    for gpu in gpus:
        lines.append(f"GPU {gpu.facts['bus_id']}")
        for section, (title, value) in sections(gpu).items():
            if not wanted or section in wanted or (section == "RECOVERY" and "ECC" in wanted):
                lines += tree_lines({title: value}, 1)
        lines.append("")
    return "\n".join(lines) + "\n"


def sections(gpu: Gpu) -> dict[str, tuple[str, str | Tree]]:
    """The sections of one GPU: the word that `-d` knows, the title, and what stands below."""
    return {
        "NAME": ("Product Name", str(gpu.facts["name"])),
        "UUID": ("GPU UUID", str(gpu.facts["uuid"])),
        "MIG": ("MIG Mode", {"Current": mig(gpu), "Pending": mig(gpu)}),
        "RECOVERY": ("GPU Recovery Action", str(gpu.facts["recovery_action"])),
        "MEMORY": (
            "FB Memory Usage",
            {
                "Total": mebibytes(gpu.total_bytes),
                "Reserved": mebibytes(gpu.total_bytes - gpu.used_bytes - gpu.free_bytes),
                "Used": mebibytes(gpu.used_bytes),
                "Free": mebibytes(gpu.free_bytes),
            },
        ),
        "ECC_MODE": ("ECC Mode", {"Current": "Enabled", "Pending": "Enabled"}),
        "ECC": ("ECC Errors", {life.capitalize(): ecc_tree(gpu, life) for life in ("volatile", "aggregate")}),
        "PAGE_RETIREMENT": (
            "Retired Pages",
            {"Single Bit ECC": "N/A", "Double Bit ECC": "N/A", "Pending Page Blacklist": "N/A"},
        ),
        "ROW_REMAPPER": ("Remapped Rows", remap_tree(gpu)),
        "PIDS": ("Processes", process_tree(gpu)),
    }


def mig(gpu: Gpu) -> str:
    """Whether the GPU is split."""
    return "Enabled" if gpu.facts["mig"] else "Disabled"


def ecc_tree(gpu: Gpu, life: str) -> Tree:
    """The error counters since the driver's start (volatile) or ever (aggregate)."""
    counters = gpu.facts["ecc"]
    tree: Tree = {
        "SRAM Correctable": "0",
        "SRAM Uncorrectable Parity": "0",
        "SRAM Uncorrectable SEC-DED": str(counters["sram_uncorrectable"]),
        "DRAM Correctable": "0",
        "DRAM Uncorrectable": str(counters[f"{life}_uncorrectable"]),
    }
    if life == "aggregate":
        tree["SRAM Threshold Exceeded"] = yes(counters["sram_threshold_exceeded"])
    return tree


def remap_tree(gpu: Gpu) -> str | Tree:
    """The remapped rows; the whole section is N/A on a GPU split by MIG."""
    if gpu.facts["mig"]:
        return "N/A"
    rows = gpu.facts["row_remap"]
    levels = {level.capitalize(): f"{count} bank(s)" for level, count in banks(gpu).items()}
    return {
        "Correctable Error": str(rows["correctable"]),
        "Uncorrectable Error": str(rows["uncorrectable"]),
        "Pending": yes(rows["pending"]),
        "Remapping Failure Occurred": yes(rows["failure"]),
        "Bank Remap Availability Histogram": {**levels},
    }


def process_tree(gpu: Gpu) -> str | Tree:
    """The processes on a GPU. The report repeats its keys, which blanks keep apart here."""
    tree: Tree = {}
    for number, process in enumerate(gpu.processes):
        blanks = " " * number
        tree[f"GPU instance ID{blanks}"] = "N/A"
        tree[f"Compute instance ID{blanks}"] = "N/A"
        tree[f"Process ID{blanks}"] = str(process.pid)
        tree[f"  Type{blanks}"] = "C"
        tree[f"  Name{blanks}"] = process.name
        tree[f"  Used GPU Memory{blanks}"] = mebibytes(process.bytes)
    return tree or "None"


def tree_lines(tree: Tree, depth: int) -> list[str]:
    """A tree as indented lines, values in one column."""
    lines = []
    for key, value in tree.items():
        start = "    " * depth + key.rstrip()
        if isinstance(value, dict):
            lines += [start, *tree_lines(value, depth + 1)]
        else:
            lines.append(f"{start:<49} : {value}")
    return lines


def xml(node: Node, gpus: list[Gpu]) -> str:
    """The report of `-q -x`."""
    parts = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<!-- Simulated by the runbook sandbox: there is no GPU. -->",
        "<nvidia_smi_log>",
        *elements({"timestamp": timestamp(), "driver_version": node.driver, "cuda_version": "12.8"}, 1),
        *elements({"attached_gpus": str(len(node.gpus))}, 1),
    ]
    for gpu in gpus:
        parts.append(f'\t<gpu id="{escape(str(gpu.facts["bus_id"]))}">')
        parts += elements(gpu_tree(node, gpu), 2)
        parts += process_elements(gpu)
        parts.append("\t</gpu>")
    return "\n".join(parts) + "\n</nvidia_smi_log>\n"


def gpu_tree(node: Node, gpu: Gpu) -> Tree:
    """The XML elements of one GPU, without its processes."""
    counters, rows, split = gpu.facts["ecc"], gpu.facts["row_remap"], gpu.facts["mig"]
    remapped: Tree = {
        "remapped_row_corr": str(rows["correctable"]),
        "remapped_row_unc": str(rows["uncorrectable"]),
        "remapped_row_pending": yes(rows["pending"]),
        "remapped_row_failure": yes(rows["failure"]),
        "row_remapper_histogram": {
            f"row_remapper_histogram_{level}": f"{count} bank(s)" for level, count in banks(gpu).items()
        },
    }
    retired: Tree = {"retired_count": "N/A", "retired_pagelist": "N/A"}
    errors: Tree = {}
    for life in ("volatile", "aggregate"):
        figures: Tree = {
            "sram_correctable": "0",
            "sram_uncorrectable_parity": "0",
            "sram_uncorrectable_secded": str(counters["sram_uncorrectable"]),
            "dram_correctable": "0",
            "dram_uncorrectable": str(counters[f"{life}_uncorrectable"]),
        }
        if life == "aggregate":
            figures["sram_threshold_exceeded"] = yes(counters["sram_threshold_exceeded"])
        errors[life] = figures
    return {
        "product_name": str(gpu.facts["name"]),
        "mig_mode": {"current_mig": mig(gpu), "pending_mig": mig(gpu)},
        "serial": f"SIMULATED-{gpu.facts['index']}",
        "uuid": str(gpu.facts["uuid"]),
        "minor_number": str(gpu.facts.get("minor", gpu.facts["index"])),
        "gpu_reset_status": {"reset_required": "Requested functionality has been deprecated"},
        "gpu_recovery_action": str(gpu.facts["recovery_action"]),
        "pci": {"pci_bus_id": str(gpu.facts["bus_id"])},
        "fb_memory_usage": {
            "total": mebibytes(gpu.total_bytes),
            "reserved": mebibytes(gpu.total_bytes - gpu.used_bytes - gpu.free_bytes),
            "used": mebibytes(gpu.used_bytes),
            "free": mebibytes(gpu.free_bytes),
        },
        "compute_mode": "Default",
        "utilization": {"gpu_util": "N/A" if split else "0 %", "memory_util": "N/A" if split else "0 %"},
        "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
        "ecc_errors": errors,
        "retired_pages": {
            "multiple_single_bit_retirement": retired,
            "double_bit_retirement": retired,
            "pending_blacklist": "N/A",
            "pending_retirement": "N/A",
        },
        "remapped_rows": "N/A" if split else remapped,
    }


def process_elements(gpu: Gpu) -> list[str]:
    """The processes of one GPU as XML lines."""
    if not gpu.processes:
        return ["\t\t<processes>", "\t\t</processes>"]
    lines = ["\t\t<processes>"]
    for process in gpu.processes:
        row: Tree = {
            "gpu_instance_id": "N/A",
            "compute_instance_id": "N/A",
            "pid": str(process.pid),
            "type": "C",
            "process_name": process.name,
            "used_memory": mebibytes(process.bytes),
        }
        lines += ["\t\t\t<process_info>", *elements(row, 4), "\t\t\t</process_info>"]
    return [*lines, "\t\t</processes>"]


def elements(tree: Tree, depth: int) -> list[str]:
    """A tree as XML lines."""
    lines = []
    for tag, value in tree.items():
        blanks = "\t" * depth
        if isinstance(value, dict):
            lines += [f"{blanks}<{tag}>", *elements(value, depth + 1), f"{blanks}</{tag}>"]
        else:
            lines.append(f"{blanks}<{tag}>{escape(value)}</{tag}>")
    return lines


def escape(value: str) -> str:
    """Text as it may stand in XML."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def table(node: Node, gpus: list[Gpu]) -> str:
    """The overview that nvidia-smi prints without options, in short."""
    line = "+" + "-" * 89 + "+"
    title = f"| NVIDIA-SMI {node.driver} (simulated: there is no GPU)"
    rows = [timestamp(), line, title.ljust(90) + "|", line]
    for gpu in gpus:
        used = f"{gpu.used_bytes >> 20}MiB / {gpu.total_bytes >> 20}MiB"
        row = f"| {gpu.facts['index']:>3}  {gpu.facts['name']:<28} {gpu.facts['bus_id']}  {used:>24}"
        rows.append(row.ljust(90) + "|")
    rows += [line, "| Processes:".ljust(90) + "|"]
    for gpu in gpus:
        for process in gpu.processes:
            used = f"{process.bytes >> 20}MiB"
            row = f"| {gpu.facts['index']:>4}  {process.pid:>9}  C  {process.name:<40} {used:>12}"
            rows.append(row.ljust(90) + "|")
    if not any(gpu.processes for gpu in gpus):
        rows.append("|  No running processes found".ljust(90) + "|")
    return "\n".join([*rows, line]) + "\n"
