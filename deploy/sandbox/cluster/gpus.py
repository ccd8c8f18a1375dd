"""The state of the simulated GPUs: one state.json for each node, edited by hand or by `sandbox gpu`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.settings import FIRST_DEVICE, GPUS, GPUS_PER_NODE, NODES, Node
from cluster.system import SandboxError, make_directory, write_file

DRIVER = "570.124.06"
TOTAL_BYTES = 85_045_870_592
GIB = 1 << 30
BUS_NUMBERS = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")

#: The driver's words for the codes that tests use; another code gets a neutral text.
XID_TEXTS = {
    13: "Graphics Exception: ESR 0x504730=0x10009 0x504734=0x0 0x504728=0x4c1eb72 0x50472c=0x174",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_00000000.",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x1f4c2000.",
    63: "Row Remapper: New row (0x0000000003a2b480) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap row, all reserved rows of the bank are used.",
    74: "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! "
    "Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What one `sandbox gpu` command changes on a node; None or False leaves a thing as it is."""

    gpu: int = 0
    xid: int | None = None
    pid: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    ecc_uncorrectable: int | None = None
    lost: bool = False
    usable_gib: float | None = None
    recovery_action: str | None = None
    mig: bool = False
    hang: bool = False
    tenants: tuple[tuple[int, float], ...] = ()
    reset: bool = False


def healthy_gpu(node: Node, index: int) -> dict[str, Any]:
    """A GPU with nothing wrong."""
    number = node.name.rpartition("-")[2]
    return {
        "index": index,
        "minor": FIRST_DEVICE + index,
        "name": "Simulated H100 80GB HBM3",
        "uuid": f"GPU-51300000-00{number}-4000-8000-{index:012d}",
        "bus_id": f"00000000:{BUS_NUMBERS[index]}:00.0",
        "total_bytes": TOTAL_BYTES,
        "usable_bytes": None,
        "lost": False,
        "ecc": {
            "volatile_uncorrectable": 0,
            "aggregate_uncorrectable": 0,
            "sram_uncorrectable": 0,
            "sram_threshold_exceeded": False,
        },
        "row_remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "recovery_action": "None",
        "mig": False,
        "extra_processes": [],
    }


def healthy_node(node: Node) -> dict[str, Any]:
    """The state of a node with nothing wrong."""
    return {
        "gpus": [healthy_gpu(node, index) for index in range(GPUS_PER_NODE)],
        "kernel_log": [],
        "driver": DRIVER,
        "hang": False,
    }


def state_path(node: Node) -> Path:
    """Where a node's state lies."""
    return GPUS / node.name / "state.json"


def prepare() -> None:
    """Make the folders and, where there is none yet, a healthy state for each node."""
    make_directory(GPUS)
    for node in NODES:
        make_directory(GPUS / node.name)
        make_directory(GPUS / node.name / "processes")
        for index in range(GPUS_PER_NODE):
            make_directory(GPUS / node.name / "processes" / str(index), mode=0o1777)
        if not state_path(node).exists():
            save(node, healthy_node(node))


def load(node: Node) -> dict[str, Any]:
    """A node's state as it stands in the file."""
    path = state_path(node)
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SandboxError(f"{path} is missing", "run `sandbox up`") from None
    except ValueError as problem:
        raise SandboxError(f"{path} is not JSON: {problem}", f"`sandbox gpu {node.name} --reset`") from None
    return state


def save(node: Node, state: dict[str, Any]) -> None:
    """Replace a node's state at once."""
    write_file(state_path(node), json.dumps(state, indent=1) + "\n")


def apply(node: Node, change: Change) -> None:
    """Change a node's state file."""
    save(node, changed(healthy_node(node) if change.reset else load(node), change))
    if change.reset:
        for entry in (GPUS / node.name / "processes").glob("*/*"):
            if not Path(f"/proc/{entry.name}").exists():
                entry.unlink(missing_ok=True)


def changed(state: dict[str, Any], change: Change) -> dict[str, Any]:
    """The state with one change applied (the value given is changed in place and returned)."""
    gpu = state["gpus"][change.gpu]
    if change.xid is not None:
        line = xid_line(gpu, change.xid, change.pid)
        state["kernel_log"].append({"time": round(time.time(), 6), "line": line})
    if change.remap_pending:
        gpu["row_remap"].update(pending=True, uncorrectable=max(1, gpu["row_remap"]["uncorrectable"]))
    if change.remap_failed:
        gpu["row_remap"].update(failure=True, uncorrectable=max(1, gpu["row_remap"]["uncorrectable"]))
    if change.ecc_uncorrectable is not None:
        for counter in ("volatile_uncorrectable", "aggregate_uncorrectable"):
            gpu["ecc"][counter] = change.ecc_uncorrectable
    if change.lost:
        gpu["lost"] = True
    if change.usable_gib is not None:
        gpu["usable_bytes"] = int(change.usable_gib * GIB)
    if change.recovery_action is not None:
        gpu["recovery_action"] = change.recovery_action
    if change.mig:
        gpu["mig"] = True
    if change.hang:
        state["hang"] = True
    for pid, gib in change.tenants:
        gpu["extra_processes"] = [row for row in gpu["extra_processes"] if row["pid"] != pid]
        gpu["extra_processes"].append({"pid": pid, "bytes": int(gib * GIB), "name": process_name(pid)})
    return state


def xid_line(gpu: dict[str, Any], xid: int, pid: int | None) -> str:
    """The driver's kernel log line for an Xid; from driver 570 on an unknown pid is left out."""
    domain, bus, device = gpu["bus_id"].lower().partition(".")[0].split(":")
    who = "" if pid is None else f"pid={pid}, name={process_name(pid)}, "
    text = XID_TEXTS.get(xid, "simulated event")
    return f"NVRM: Xid (PCI:{domain[-4:]}:{bus}:{device}): {xid}, {who}{text}"


def process_name(pid: int) -> str:
    """The name of a process, or python when it is not there."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "python"
