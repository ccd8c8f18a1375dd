"""The node probe's document: one JSON object, version 1, as `runbook/probe` writes it (docs/probe.md).

It says more than is read here. A figure is its value or `{"unknown": reason}`; one of another type than it must have
is unknown too. The document comes from a node and may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from runbook.model.node import (
    IN_TEXT_ONLY,
    Cause,
    DaemonProcess,
    GpuFacts,
    GpuProcess,
    JobMemory,
    MigInstance,
    OomKill,
    Unread,
)
from runbook.model.units import Bytes, JobId, Unknown
from runbook.node.gpus import any_repair_pending, rows_or_pages_pending
from runbook.node.kernel_log import LINE_BREAK, KernelLog, LogLine, Window, event_of, joined, read_oom_kills
from runbook.node.processes import ProcEntry, owned
from runbook.node.sections import NodeAnswers, Section, printable
from runbook.node.xid import bus_id

# Figures of the node probe's document, one by one: a value of the type it must have, or why there is none.

NOT_THERE = Unknown("the probe's answer does not have it")


def why_not(value: object) -> Unknown:
    reason = value.get("unknown") if isinstance(value, dict) else None
    return Unknown(printable(reason, 300)) if isinstance(reason, str) and reason else NOT_THERE


def part_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def items_of(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def rows_of(value: object) -> list[Mapping[str, Any]]:
    return [row for row in items_of(value) if isinstance(row, dict)]


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def whole(row: Mapping[str, Any], name: str) -> int | Unknown:
    value = row.get(name)
    return value if is_whole(value) else why_not(value)


def size_of(row: Mapping[str, Any], name: str) -> Bytes | Unknown:
    value = whole(row, name)
    return value if isinstance(value, Unknown) else Bytes(value)


def flag(row: Mapping[str, Any], name: str) -> bool | Unknown:
    value = row.get(name)
    return value if isinstance(value, bool) else why_not(value)


def text_of(row: Mapping[str, Any], name: str, limit: int) -> str | Unknown:
    value = row.get(name)
    return printable(value, limit) if isinstance(value, str) else why_not(value)


def plain(value: str | Unknown) -> str:
    return "" if isinstance(value, Unknown) else value


def seconds(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if good and isinstance(value, int | float) else None


# Of the probe's document: MIG instances, MPS, the memory of the jobs' cgroups, and the kernel's OOM kills.

_MOST = 512


def mig_instances(gpu: Mapping[str, Any]) -> tuple[MigInstance, ...] | Unknown:
    """The slices of one GPU."""
    listed = gpu.get("mig_devices")
    if not isinstance(listed, list):
        return why_not(listed)
    return tuple(
        MigInstance(
            uuid=plain(text_of(row, "uuid", 80)),
            name=plain(text_of(row, "name", 80)),
            gpu_instance=instance(row, "gpu_instance"),
            compute_instance=instance(row, "compute_instance"),
            total_bytes=size_of(row, "total_bytes"),
            used_bytes=size_of(row, "used_bytes"),
            free_bytes=size_of(row, "free_bytes"),
        )
        for row in rows_of(listed)[:64]
    )


def instance(row: Mapping[str, Any], name: str) -> int | None:
    """The number of a MIG instance; None where there is none or it was not told."""
    value = row.get(name)
    return value if is_whole(value) and value < 256 else None


def mps_daemons(document: Mapping[str, Any]) -> tuple[DaemonProcess, ...] | Unknown:
    """MPS's control daemon and servers on the node."""
    listed = part_of(document, "mps").get("daemons")
    if not isinstance(listed, list):
        return why_not(listed)
    return tuple(
        DaemonProcess(row["pid"], plain(text_of(row, "name", 60)))
        for row in rows_of(listed)[:_MOST] if is_whole(row.get("pid"))
    )


def job_memory(document: Mapping[str, Any]) -> tuple[JobMemory, ...] | Unknown:
    """Main memory of the jobs that are on the node now."""
    listed = part_of(document, "slurm").get("jobs")
    if not isinstance(listed, list):
        return why_not(listed)
    return tuple(
        JobMemory(
            job=_job(row), limit_bytes=_limit(row), used_bytes=size_of(row, "used_bytes"),
            peak_bytes=size_of(row, "peak_bytes"), oom_kills=whole(row, "oom_kills"),
        )
        for row in rows_of(listed)[:_MOST]
    )


def oom_kills(
    document: Mapping[str, Any], ahead_s: float, window: Window
) -> tuple[OomKill, ...] | Unknown:
    """From every source of the kernel log that could be read."""
    sources = rows_of(part_of(document, "kernel_log").get("sources"))[:8]
    readable = [source for source in sources if isinstance(source.get("lines"), list)]
    if not readable:
        return why_not(sources[0]) if sources else NOT_THERE
    lines = []
    for source in readable:
        free_for_all = source.get("any_user_can_write") is not False
        for row in rows_of(source["lines"]):
            time_s = seconds(row.get("time_s"))
            lines.append(LogLine(
                None if time_s is None else time_s - ahead_s, str(row.get("line", ""))[:4096], free_for_all
            ))
    return read_oom_kills(lines, window)


def _job(row: Mapping[str, Any]) -> JobId | Unknown:
    number = row.get("job")
    if isinstance(number, str) and number.isdecimal() and len(number) < 13:
        return JobId(number)
    sluid = plain(text_of(row, "sluid", 20))
    return Unknown(f"its Slurm job is known by the SLUID {sluid} only" if sluid else "its cgroup names no job")


def _limit(row: Mapping[str, Any]) -> Bytes | None | Unknown:
    if "limit_bytes" in row and row["limit_bytes"] is None:
        return None
    return size_of(row, "limit_bytes")


DOCUMENT = "runbook-node"
VERSION = 1
LIBRARY_MISMATCH = 18
"""NVML's number for a driver and a library that do not fit."""
STANDIN = "(stand-in)"
"""What the driver's version of the tests' own NVML ends with."""

_GPU_LIMIT = 256


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one document says, with processes already on their GPUs."""

    driver: str | Unknown
    gpus: tuple[GpuFacts, ...] | Unknown
    listed: frozenset[str]
    """Bus ids of GPUs as the driver and the kernel list them."""
    log: KernelLog
    user: str
    python: str
    now_s: float | None
    inside: str
    standin: bool
    mps: tuple[DaemonProcess, ...] | Unknown
    job_memory: tuple[JobMemory, ...] | Unknown
    oom_kills: tuple[OomKill, ...] | Unknown


def find_document(text: str) -> Mapping[str, Any] | Unknown:
    """The document in what the probe wrote: its last line that is one."""
    for line in reversed(text.split("\n")):
        if not line.startswith("{"):
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return Unknown("the probe's answer is cut off or no JSON")
        if not isinstance(found, dict) or found.get("document") != DOCUMENT:
            return Unknown("the probe's answer is not a document of a node")
        if found.get("version") != VERSION:
            version = printable(str(found.get("version")), 20)
            return Unknown(f"the probe's document has version {version}, not {VERSION}")
        return found
    return Unknown("the probe wrote no document")


def read_document(
    document: Mapping[str, Any], *, ahead_s: float, window: Window
) -> ProbeAnswer:
    """Facts of a document. `ahead_s`: how far the node's clock is ahead of ours."""
    node, nvml = part_of(document, "node"), part_of(document, "nvml")
    driver = text_of(nvml, "driver", 80)
    gpus = _gpus(document, nvml, node)
    return ProbeAnswer(
        driver=driver,
        gpus=gpus,
        listed=_listed(node, "driver_gpus") | _listed(node, "pci_gpus"),
        log=_log(part_of(document, "kernel_log"), ahead_s, window),
        user=plain(text_of(node, "user", 40)),
        python=plain(text_of(node, "python", 20)),
        now_s=seconds(node.get("now_s")),
        inside=plain(text_of(node, "inside", 20)),
        standin=isinstance(driver, str) and driver.endswith(STANDIN),
        mps=mps_daemons(document),
        job_memory=job_memory(document),
        oom_kills=oom_kills(document, ahead_s, window),
    )


def _gpus(
    document: Mapping[str, Any], nvml: Mapping[str, Any], node: Mapping[str, Any]
) -> tuple[GpuFacts, ...] | Unknown:
    rows = nvml.get("gpus")
    if not isinstance(rows, list):
        why = why_not(rows)
        return Unread(why.unknown, Cause.DRIVER_MISMATCH) if nvml.get("error") == LIBRARY_MISMATCH else why
    answers = _node_section(node)
    owners = {seen_pid: seen for row in rows_of(document.get("processes")) for seen_pid, seen in _seen(row)}
    gpus = [_gpu(row, owners, answers) for row in rows_of(rows)[:_GPU_LIMIT]]
    missing = sorted(_listed(node, "driver_gpus") - {gpu.bus_id for gpu in gpus})
    nameless = [gpu for gpu in gpus if gpu.lost and not gpu.bus_id]
    if len(missing) == 1 == len(nameless):
        gpus = [replace(gpu, bus_id=missing[0]) if gpu is nameless[0] else gpu for gpu in gpus]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _listed(node: Mapping[str, Any], name: str) -> frozenset[str]:
    return frozenset(bus_id(str(each)) for each in items_of(node.get(name))[:_GPU_LIMIT])


def _gpu(row: Mapping[str, Any], owners: Mapping[int, ProcEntry], answers: NodeAnswers) -> GpuFacts:
    index = row.get("index")
    lost = row.get("lost") is True
    return GpuFacts(
        index=index if is_whole(index) and 0 <= index < _GPU_LIMIT else -1,
        uuid=plain(text_of(row, "uuid", 80)),
        bus_id=bus_id(plain(text_of(row, "bus_id", 40))),
        name=plain(text_of(row, "name", 80)),
        total_bytes=size_of(row, "total_bytes"),
        used_bytes=size_of(row, "used_bytes"),
        free_bytes=size_of(row, "free_bytes"),
        ecc_uncorrectable_volatile=whole(row, "ecc_uncorrectable_volatile"),
        ecc_uncorrectable_aggregate=whole(row, "ecc_uncorrectable_aggregate"),
        sram_threshold_exceeded=flag(row, "sram_threshold_exceeded"),
        row_remap_pending=rows_or_pages_pending(
            flag(row, "row_remap_pending"), [flag(row, "retired_pages_pending")]
        ),
        row_remap_failed=flag(row, "row_remap_failed"),
        recovery_action=text_of(row, "recovery_action", 60),
        mig_enabled=flag(row, "mig_enabled"),
        lost=lost,
        minor=whole(row, "minor"),
        processes=_processes(row, owners, answers),
        unrepairable_memory=flag(row, "unrepairable_memory"),
        repair_pending=any_repair_pending([flag(row, "channel_repair_pending"), flag(row, "tpc_repair_pending")]),
        retired_pages=_retired_pages(row),
        mig_instances=mig_instances(row),
        ecc_enabled=flag(row, "ecc_enabled"),
        compute_mode=text_of(row, "compute_mode", 40),
    )


def _retired_pages(row: Mapping[str, Any]) -> int | Unknown:
    single, double = (whole(row, f"retired_pages_{kind}_bit") for kind in ("single", "double"))
    if isinstance(single, Unknown):
        return single
    return double if isinstance(double, Unknown) else single + double


def _processes(
    row: Mapping[str, Any], owners: Mapping[int, ProcEntry], answers: NodeAnswers
) -> tuple[GpuProcess, ...] | Unknown:
    """Those of CUDA, through MPS or not. A graphics context is in the document, and is no tenant of a training job."""
    listed = row.get("processes")
    if not isinstance(listed, list):
        return why_not(listed)
    found = []
    for each in rows_of(listed):
        pid, kinds = each.get("pid"), items_of(each.get("kinds"))
        if not is_whole(pid) or not {"compute", "mps"} & {str(kind) for kind in kinds}:
            continue
        one = owned(pid, size_of(each, "used_bytes"), plain(text_of(each, "name", 200)), dict(owners), answers)
        found.append(replace(
            one, gpu_instance=instance(each, "gpu_instance"), compute_instance=instance(each, "compute_instance"),
            mps_client="mps" in kinds,
        ))
    return tuple(found)


def _seen(row: Mapping[str, Any]) -> list[tuple[int, ProcEntry]]:
    """One process of `/proc`, as the shell script's answer is read too. None at all when it was not looked up."""
    pid = row.get("pid")
    if not is_whole(pid) or "unknown" in row:
        return []
    environment = row.get("environment")
    variables = environment if isinstance(environment, dict) and "unknown" not in environment else None
    uid = row.get("uid")
    return [(pid, ProcEntry(
        gone=row.get("gone") is True,
        uid=uid if is_whole(uid) else None,
        user=plain(text_of(row, "user", 60)),
        stat=plain(text_of(row, "stat", 600)),
        cgroups=[str(line) for line in items_of(row.get("cgroups"))[:32]],
        environ_readable=variables is not None,
        environment={str(key): str(value) for key, value in (variables or {}).items()},
    ))]


def _node_section(node: Mapping[str, Any]) -> NodeAnswers:
    values = {
        "slurm_cgroup": node.get("slurm_cgroup"), "uptime": seconds(node.get("uptime_s")),
        "ticks": seconds(node.get("ticks_per_s")),
    }
    lines = [f"{name}={printable(str(value))}" for name, value in values.items() if value]
    return NodeAnswers({"node": Section("\n".join(lines), 0)})


def _log(part: Mapping[str, Any], ahead_s: float, window: Window) -> KernelLog:
    logs = [_source(each, ahead_s) for each in rows_of(part.get("sources"))[:8]]
    if not logs:
        return KernelLog(NOT_THERE, NOT_THERE)
    return joined(logs, window)


def _source(row: Mapping[str, Any], ahead_s: float) -> KernelLog:
    lines = row.get("lines")
    if not isinstance(lines, list):
        why = why_not(row)
        return KernelLog(why, why)
    events = []
    whole_records = row.get("whole_records") is True
    for each in rows_of(lines):
        time_s = seconds(each.get("time_s"))
        worth = IN_TEXT_ONLY if not whole_records else LINE_BREAK if "line_break" in each else True
        event = event_of(str(each.get("line", ""))[:4096], None if time_s is None else time_s - ahead_s, worth)
        if event is not None:
            events.append(event)
    covers = seconds(row.get("covers_since_s"))
    return KernelLog(
        tuple(events),
        why_not(row.get("covers_since_s")) if covers is None else covers - ahead_s,
        any_user_can_write=row.get("any_user_can_write") is not False,
        whole_records=whole_records,
    )
