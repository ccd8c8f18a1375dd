"""`nvidia-smi -q -x`: the figures on memory health of each GPU, under the headings that the `-q` report has for them.

Read line by line and not as XML: nvidia-smi stops in the middle at a lost GPU, and a process chooses what stands in its
name. So nothing counts in a GPU's part from its list of processes on, and a GPU that stands there twice counts for
nothing: a name that holds whole lines can hide a figure, and never make one up.
"""

from __future__ import annotations

import re

from runbook.evidence.xid import bus_id

Tree = dict[tuple[str, ...], str]

HEADINGS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("ecc_mode", "current_ecc"): ("ECC Mode", "Current"),
    ("ecc_errors", "aggregate", "sram_threshold_exceeded"): ("ECC Errors", "Aggregate", "SRAM Threshold Exceeded"),
    ("ecc_errors", "channel_repair_pending"): ("ECC Errors", "Channel Repair Pending"),
    ("ecc_errors", "tpc_repair_pending"): ("ECC Errors", "TPC Repair Pending"),
    ("ecc_errors", "unrepairable_memory"): ("ECC Errors", "Unrepairable Memory"),
    ("retired_pages", "pending_blacklist"): ("Retired Pages", "Pending Page Blacklist"),
    ("retired_pages", "pending_retirement"): ("Retired Pages", "Pending Retirement"),
    ("retired_pages", "multiple_single_bit_retirement", "retired_count"): ("Retired Pages", "Single Bit ECC"),
    ("retired_pages", "double_bit_retirement", "retired_count"): ("Retired Pages", "Double Bit ECC"),
    ("remapped_rows",): ("Remapped Rows",),
    ("remapped_rows", "remapped_row_pending"): ("Remapped Rows", "Pending"),
    ("remapped_rows", "remapped_row_failure"): ("Remapped Rows", "Remapping Failure Occurred"),
    ("compute_mode",): ("Compute Mode",),
    ("minor_number",): ("Minor Number",),
    ("gpu_recovery_action",): ("GPU Recovery Action",),
    ("gpu_reset_status", "gpu_recovery_action"): ("GPU Recovery Action",),
}
"""Element paths below a GPU (R418 to R595) → the report's headings. Newer drivers move the repairs up a level."""
for _moved in ("channel_repair_pending", "tpc_repair_pending", "unrepairable_memory"):
    HEADINGS[(_moved,)] = HEADINGS["ecc_errors", _moved]

_INSTANCE = ("mig_devices", "mig_device")
MIG_FIGURES = {
    ("gpu_instance_id",): "GPU Instance ID",
    ("compute_instance_id",): "Compute Instance ID",
    ("fb_memory_usage", "total"): "Total",
    ("fb_memory_usage", "used"): "Used",
    ("fb_memory_usage", "free"): "Free",
}
"""Of a MIG device; it stands in the tree under ("MIG Device", its number from 0, …)."""

_GPU = re.compile(r'\s*<gpu id="(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)">\s*$')
_OPEN = re.compile(r"\s*<(?P<name>[a-z0-9_]{1,64})>\s*$")
_CLOSE = re.compile(r"\s*</(?P<name>[a-z0-9_]{1,64})>\s*$")
_VALUE = re.compile(r"\s*<(?P<name>[a-z0-9_]{1,64})>(?P<value>[^<>]{0,200})</(?P<end>[a-z0-9_]{1,64})>\s*$")
_DEPTH_LIMIT = 16


def is_xml(text: str) -> bool:
    """Whether nvidia-smi answered in XML; old or broken ones may print a sentence instead."""
    return "<nvidia_smi_log>" in text


def xml_trees(text: str) -> dict[str, Tree]:
    """Bus id of a GPU → the report's headings → value."""
    trees: dict[str, Tree] = {}
    twice: set[str] = set()
    tree: Tree | None = None
    path: list[str] = []
    instances = 0
    for line in text.split("\n"):
        start = _GPU.match(line)
        if start:
            bus = bus_id(start["bus"])
            if bus in trees:
                twice.add(bus)
            tree, path, instances = trees.setdefault(bus, {}), [], 0
        elif tree is None:
            continue
        elif line.strip() in ("</gpu>", "<processes>"):
            tree = None
        elif value := _VALUE.match(line):
            heading = HEADINGS.get((*path, value["name"]))
            if tuple(path[:2]) == _INSTANCE and (figure := MIG_FIGURES.get((*path[2:], value["name"]))):
                heading = ("MIG Device", str(instances - 1), figure)
            if heading is not None and value["name"] == value["end"]:
                tree.setdefault(heading, value["value"].strip())
        elif opened := _OPEN.match(line):
            path.append(opened["name"])
            instances += tuple(path) == _INSTANCE
            if len(path) > _DEPTH_LIMIT:
                tree = None
        elif (closed := _CLOSE.match(line)) and path and path[-1] == closed["name"]:
            path.pop()
    return {bus: tree for bus, tree in trees.items() if bus not in twice}
