"""What nvidia-smi says about the GPUs: its CSV queries and its `-q -x` or `-q` report, each figure on its own.

A figure that is not there is `Unknown` with the reason; one bad figure never spoils the others (a real H100 after
Xid 94 printed "Unknown Error" for its ECC mode and good values for its remapped rows).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from runbook.model.node import Cause, GpuFacts, MigInstance, Unread
from runbook.model.units import MIB, Bytes, Unknown
from runbook.node.check_script import GPU_QUERIES
from runbook.node.sections import NodeAnswers, Section, printable
from runbook.node.xid import bus_id

# `nvidia-smi -q -x`: the figures on memory health of each GPU, under the headings that the `-q` report has for them.
#
# Read line by line and not as XML: nvidia-smi stops in the middle at a lost GPU, and a process chooses what stands in
# its name. So nothing counts in a GPU's part from its list of processes on, and a GPU that stands there twice counts
# for nothing: a name that holds whole lines can hide a figure, and never make one up.

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


_LOST_WORDS = re.compile(r"GPU is lost|fallen off the bus|GPU requires reset|corrupted infoROM|Unknown Error", re.I)
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s*(?:(?P<index>\d{1,3}):\s+)?"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)?:?\s*(?P<why>.*)"
)
_FAILURES = (
    ("Driver/library version mismatch", Unread(
        "driver and library versions differ (a driver update without a reboot): a software matter, not a hardware "
        "fault", Cause.DRIVER_MISMATCH,
    )),
    ("couldn't communicate with the NVIDIA driver",
     Unknown("nvidia-smi cannot talk to the NVIDIA driver: not loaded?")),
    ("Failed to initialize NVML", Unknown("nvidia-smi could not start NVML")),
    ("Insufficient Permissions", Unknown("nvidia-smi says Insufficient Permissions")),
)


def read_gpus(answers: NodeAnswers) -> tuple[tuple[GpuFacts, ...] | Unknown, str | Unknown]:
    """GPUs in index order without their processes, and the driver version."""
    if answers.get("no_nvidia_smi"):
        why = Unknown("no nvidia-smi on this machine")
        return why, why
    asked = [(name, section) for name in GPU_QUERIES if (section := answers.get(name)) is not None]
    if not asked:
        why = Unknown("the node did not answer on its GPUs")
        return why, why
    driver: str | Unknown = Unknown("no GPU answered")
    gpus: dict[str, GpuFacts] = {}
    for name, section in asked:
        for line in section.lines:
            cells = [cell.strip() for cell in line.split(", ")]
            if len(cells) != len(GPU_QUERIES[name]) or not cells[0].isdecimal():
                continue
            row = dict(zip(GPU_QUERIES[name], cells, strict=True))
            gpu = _gpu(row)
            gpus.setdefault(gpu.bus_id or str(gpu.index), gpu)
            version = figure(row.get("driver_version", ""))
            driver = printable(version, 40) if isinstance(version, str) else driver
    text = "\n".join(section.text for _, section in asked)
    lost = _lost_gpus(text, set(gpus))
    if not gpus and not lost:
        if any("No devices were found" in section.text for _, section in asked):
            return (), driver
        why = _failure(asked[-1][1])
        return why, why
    details = _details(answers)
    complete = [_with_report(gpu, details) for gpu in gpus.values()]
    in_order = sorted(bus_id(bus) for bus in answers.values("node", "gpu"))
    complete += [replace(gpu, index=_index_of_lost(gpu, complete, in_order)) for gpu in lost]
    return tuple(sorted(complete, key=lambda gpu: gpu.index)), driver


def figure(cell: str) -> str | Unknown:
    """One value of nvidia-smi, or why there is none."""
    text = cell.strip()
    bare = text.strip("[]").strip().lower()
    if bare in ("", "n/a", "not supported", "not available"):
        return Unknown(f"nvidia-smi says {text or 'nothing'}: this GPU, mode or driver has no such figure")
    if bare == "insufficient permissions":
        return Unknown("nvidia-smi says Insufficient Permissions")
    if "unknown error" in bare:
        return Unread("nvidia-smi says Unknown Error", Cause.UNKNOWN_ERROR)
    if "deprecated" in bare or "gpu is lost" in bare:
        return Unknown(f"nvidia-smi says {printable(text, 60)}")
    return text


def mebibytes(cell: str) -> Bytes | Unknown:
    """A number of MiB, with or without the unit, in bytes."""
    value = figure(cell)
    if isinstance(value, Unknown):
        return value
    match = re.fullmatch(r"(\d{1,9})(?: MiB)?", value)
    return Bytes(int(match[1]) * MIB) if match else Unknown(f"not a size: {printable(value, 40)}")


def whole(cell: str) -> int | Unknown:
    """A counter."""
    value = figure(cell)
    if isinstance(value, Unknown):
        return value
    return int(value) if re.fullmatch(r"\d{1,18}", value) else Unknown(f"not a number: {printable(value, 40)}")


def yes_or_no(cell: str) -> bool | Unknown:
    """Newer branches print Yes and No, older ones 1 and 0."""
    value = figure(cell)
    if isinstance(value, Unknown):
        return value
    word = value.lower()
    if word in ("yes", "1", "enabled", "true"):
        return True
    return False if word in ("no", "0", "disabled", "false") else Unknown(f"not yes or no: {printable(value, 40)}")


def rows_or_pages_pending(rows: bool | Unknown, pages: Sequence[bool | Unknown]) -> bool | Unknown:
    """Whether a row waits to be remapped or, on Turing and older, a page to be retired."""
    if True in pages:
        return True
    return False if isinstance(rows, Unknown) and False in pages else rows


def any_repair_pending(repairs: Sequence[bool | Unknown]) -> bool | Unknown:
    """Whether one of the repairs waits; where none is known to, what is known of the first."""
    return True if True in repairs else repairs[0]


def report_trees(text: str) -> dict[str, Tree]:
    """The `nvidia-smi -q` report: bus id of a GPU → path of headings → value. Headings are told by indentation."""
    trees: dict[str, Tree] = {}
    tree: Tree | None = None
    path: list[tuple[int, str]] = []
    for line in text.split("\n"):
        start = re.match(r"GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$", line)
        if start:
            tree, path = trees.setdefault(bus_id(start["bus"]), {}), []
            continue
        if tree is None or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            tree = None
            continue
        key, colon, value = line.strip().partition(" : ")
        path = [entry for entry in path if entry[0] < depth]
        path.append((depth, key.strip()))
        if colon:
            tree[tuple(name for _, name in path)] = value.strip()
    return trees


def _gpu(row: dict[str, str]) -> GpuFacts:
    lost = any("GPU is lost" in cell for cell in row.values())
    action = figure(row["gpu_recovery_action"]) if "gpu_recovery_action" in row else Unknown(
        "this driver does not name a recovery action (it came with driver 565)"
    )
    old = "this driver is too old to say"
    return GpuFacts(
        index=int(row["index"]),
        uuid=printable(row["uuid"], 80),
        bus_id=bus_id(row["pci.bus_id"]),
        name=printable(row["name"], 80),
        total_bytes=mebibytes(row["memory.total"]),
        used_bytes=mebibytes(row["memory.used"]),
        free_bytes=mebibytes(row["memory.free"]),
        ecc_uncorrectable_volatile=_or_old(row, "ecc.errors.uncorrected.volatile.total", old),
        ecc_uncorrectable_aggregate=_or_old(row, "ecc.errors.uncorrected.aggregate.total", old),
        recovery_action=printable(action, 60) if isinstance(action, str) else action,
        mig_enabled=yes_or_no(row["mig.mode.current"]) if "mig.mode.current" in row else Unknown(old),
        lost=lost,
    )


def _or_old(row: dict[str, str], field: str, old: str) -> int | Unknown:
    return whole(row[field]) if field in row else Unknown(old)


def _details(answers: NodeAnswers) -> dict[str, Tree] | Unknown:
    for name in ("report", "report_full"):
        section = answers.get(name)
        if section is None:
            continue
        trees = xml_trees(section.text) if is_xml(section.text) else report_trees(section.text)
        if trees:
            return trees
    section = answers.get("report_full") or answers.get("report")
    return _failure(section) if section else Unknown("the node did not come to the ECC and row-remapping report")


def _with_report(gpu: GpuFacts, details: dict[str, Tree] | Unknown) -> GpuFacts:
    if isinstance(details, Unknown):
        missing = details
        return replace(
            gpu, sram_threshold_exceeded=missing, row_remap_pending=missing, row_remap_failed=missing,
            unrepairable_memory=missing, repair_pending=missing, retired_pages=missing, mig_instances=missing,
            ecc_enabled=missing, compute_mode=missing, minor=missing,
        )
    tree = details.get(gpu.bus_id)
    if tree is None:
        return _with_report(gpu, Unknown("the ECC and row-remapping report does not have this GPU"))
    pending = _yes(tree, "Pending", under="Remapped Rows")
    retired = [_yes(tree, key) for key in ("Pending Page Blacklist", "Pending Retirement")]
    action = gpu.recovery_action
    if isinstance(action, Unknown) and (named := _find(tree, "GPU Recovery Action")) is not None:
        action = figure(named)
    repairs = [_yes(tree, key) for key in ("Channel Repair Pending", "TPC Repair Pending")]
    unknown_error = _find(tree, "Current", under="ECC Mode")
    volatile = gpu.ecc_uncorrectable_volatile
    if unknown_error is not None and "Unknown Error" in unknown_error and isinstance(volatile, Unknown):
        volatile = Unread("nvidia-smi says Unknown Error for the ECC mode", Cause.UNKNOWN_ERROR)
    return replace(
        gpu,
        ecc_uncorrectable_volatile=volatile,
        sram_threshold_exceeded=_yes(tree, "SRAM Threshold Exceeded"),
        row_remap_pending=rows_or_pages_pending(pending, retired),
        row_remap_failed=_yes(tree, "Remapping Failure Occurred", under="Remapped Rows"),
        recovery_action=action,
        unrepairable_memory=_yes(tree, "Unrepairable Memory"),
        repair_pending=any_repair_pending(repairs),
        retired_pages=_retired_pages(tree),
        mig_instances=_mig_instances(gpu, tree),
        ecc_enabled=_yes(tree, "Current", under="ECC Mode"),
        compute_mode=_compute_mode(tree),
        minor=_minor(tree),
    )


def _minor(tree: Tree) -> int | Unknown:
    value = tree.get(("Minor Number",))
    return Unknown("nvidia-smi -q has no line 'Minor Number'") if value is None else whole(value)


def _mig_instances(gpu: GpuFacts, tree: Tree) -> tuple[MigInstance, ...] | Unknown:
    if gpu.mig_enabled is False:
        return ()
    numbers = sorted({int(path[1]) for path in tree if path[0] == "MIG Device" and len(path) == 3})
    if not numbers:
        return Unknown("nvidia-smi's report lists no MIG devices")
    return tuple(
        MigInstance(
            gpu_instance=_instance_number(tree, number, "GPU Instance ID"),
            compute_instance=_instance_number(tree, number, "Compute Instance ID"),
            total_bytes=mebibytes(tree.get(("MIG Device", str(number), "Total"), "")),
            used_bytes=mebibytes(tree.get(("MIG Device", str(number), "Used"), "")),
            free_bytes=mebibytes(tree.get(("MIG Device", str(number), "Free"), "")),
        )
        for number in numbers[:64]
    )


def _instance_number(tree: Tree, number: int, name: str) -> int | None:
    value = whole(tree.get(("MIG Device", str(number), name), ""))
    return None if isinstance(value, Unknown) else value


def _compute_mode(tree: Tree) -> str | Unknown:
    """In the probe's words: "default", "exclusive_process", "prohibited"."""
    value = tree.get(("Compute Mode",))
    mode = Unknown("nvidia-smi -q has no line 'Compute Mode'") if value is None else figure(value)
    return mode if isinstance(mode, Unknown) else printable(mode, 40).lower().replace(" ", "_")


def _retired_pages(tree: Tree) -> int | Unknown:
    counts = [_find(tree, key, under="Retired Pages") for key in ("Single Bit ECC", "Double Bit ECC")]
    single, double = (whole(count) if count is not None else Unknown("no such line") for count in counts)
    if isinstance(single, Unknown) or isinstance(double, Unknown):
        return Unknown("nvidia-smi does not count retired pages: Ampere and later remap rows instead")
    return single + double


def _yes(tree: Tree, key: str, under: str = "") -> bool | Unknown:
    value = _find(tree, key, under)
    if value is None and under and tree.get((under,)) is not None:
        value = tree[(under,)]
    return Unknown(f"nvidia-smi -q has no line {key!r}") if value is None else yes_or_no(value)


def _find(tree: Tree, key: str, under: str = "") -> str | None:
    return next(
        (value for path, value in tree.items() if path[-1] == key and (not under or under in path[:-1])), None
    )


def _lost_gpus(text: str, present: set[str]) -> list[GpuFacts]:
    """GPUs that nvidia-smi names only to say that it cannot reach them."""
    lost: dict[str, GpuFacts] = {}
    for match in _NO_HANDLE.finditer(text):
        if not _LOST_WORDS.search(match["why"]):
            continue
        bus = bus_id(match["bus"] or "")
        if bus in present and bus:
            continue
        why = Unknown(f"nvidia-smi says {printable(match['why'], 80)}")
        index = int(match["index"]) if match["index"] else -1
        lost.setdefault(
            bus or str(index),
            GpuFacts(
                index=index, bus_id=bus, lost=True, total_bytes=why, used_bytes=why, free_bytes=why,
                ecc_uncorrectable_volatile=why, ecc_uncorrectable_aggregate=why, sram_threshold_exceeded=why,
                row_remap_pending=why, row_remap_failed=why, recovery_action=why, mig_enabled=why, processes=why,
                unrepairable_memory=why, repair_pending=why, retired_pages=why,
            ),
        )
    return list(lost.values())


def _index_of_lost(gpu: GpuFacts, present: list[GpuFacts], in_order: list[str]) -> int:
    """nvidia-smi numbers GPUs by bus id; the driver's own list in /proc still has the lost one. -1: not known."""
    if gpu.index >= 0:
        return gpu.index
    if gpu.bus_id in in_order:
        return in_order.index(gpu.bus_id)
    used = {other.index for other in present}
    gaps = [index for index in range(max(used, default=-1)) if index not in used]
    return gaps[0] if len(gaps) == 1 else -1


def _failure(section: Section) -> Unknown:
    if section.timed_out:
        return Unknown("nvidia-smi did not answer within the time that was given")
    for words, why in _FAILURES:
        if words in section.text:
            return why
    first = printable(section.lines[0], 120) if section.lines else "no output"
    return Unknown(f"nvidia-smi failed with status {section.exit_code}: {first}")
