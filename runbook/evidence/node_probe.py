"""The node probe's document: one JSON object, version 1, as `runbook/probe` writes it (docs/probe.md).

It says more than is read here. A figure is its value or `{"unknown": reason}`; one of another type than it must have
is unknown too. The document comes from a node and may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runbook.evidence.node_answers import NodeAnswers, Section, printable
from runbook.evidence.node_gpus import any_repair_pending, rows_or_pages_pending
from runbook.evidence.node_kernel_log import KernelLog, event_of, joined
from runbook.evidence.node_probe_memory import instance, job_memory, mig_instances, mps_daemons, oom_kills
from runbook.evidence.node_probe_values import (
    NOT_THERE,
    flag,
    is_whole,
    items_of,
    part_of,
    plain,
    rows_of,
    seconds,
    size_of,
    text_of,
    whole,
    why_not,
)
from runbook.evidence.node_processes import Seen, owned
from runbook.evidence.xid import bus_id
from runbook.model.node import DaemonProcess, GpuFacts, GpuProcess, JobMemory, OomKill
from runbook.model.units import Unknown

DOCUMENT = "runbook-node"
VERSION = 1
STANDIN = "(stand-in)"
"""What the driver's version of the tests' own NVML ends with."""

_GPU_LIMIT = 256


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one document says, with processes already on their GPUs."""

    driver: str | Unknown
    gpus: tuple[GpuFacts, ...] | Unknown
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
    document: Mapping[str, Any], *, ahead_s: float, since_s: float | None, until_s: float | None
) -> ProbeAnswer:
    """Facts of a document. `ahead_s`: how far the node's clock is ahead of ours."""
    node, nvml = part_of(document, "node"), part_of(document, "nvml")
    driver = text_of(nvml, "driver", 80)
    gpus = _gpus(document, nvml, node)
    return ProbeAnswer(
        driver=driver,
        gpus=gpus,
        log=_log(part_of(document, "kernel_log"), ahead_s, since_s, until_s),
        user=plain(text_of(node, "user", 40)),
        python=plain(text_of(node, "python", 20)),
        now_s=seconds(node.get("now_s")),
        inside=plain(text_of(node, "inside", 20)),
        standin=isinstance(driver, str) and driver.endswith(STANDIN),
        mps=mps_daemons(document),
        job_memory=job_memory(document),
        oom_kills=oom_kills(document, ahead_s, since_s, until_s),
    )


def _gpus(
    document: Mapping[str, Any], nvml: Mapping[str, Any], node: Mapping[str, Any]
) -> tuple[GpuFacts, ...] | Unknown:
    rows = nvml.get("gpus")
    if not isinstance(rows, list):
        return why_not(rows)
    answers = _node_section(node)
    owners = {seen_pid: seen for row in rows_of(document.get("processes")) for seen_pid, seen in _seen(row)}
    gpus = [_gpu(row, owners, answers) for row in rows_of(rows)[:_GPU_LIMIT]]
    listed = {bus_id(str(each)) for each in items_of(node.get("driver_gpus"))[:_GPU_LIMIT]}
    missing = sorted(listed - {gpu.bus_id for gpu in gpus})
    nameless = [gpu for gpu in gpus if gpu.lost and not gpu.bus_id]
    if len(missing) == 1 == len(nameless):
        gpus = [replace(gpu, bus_id=missing[0]) if gpu is nameless[0] else gpu for gpu in gpus]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(row: Mapping[str, Any], owners: Mapping[int, Seen], answers: NodeAnswers) -> GpuFacts:
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
    row: Mapping[str, Any], owners: Mapping[int, Seen], answers: NodeAnswers
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


def _seen(row: Mapping[str, Any]) -> list[tuple[int, Seen]]:
    """One process of `/proc`, as the shell script's answer is read too. None at all when it was not looked up."""
    pid = row.get("pid")
    if not is_whole(pid) or "unknown" in row:
        return []
    environment = row.get("environment")
    variables = environment if isinstance(environment, dict) and "unknown" not in environment else None
    uid = row.get("uid")
    return [(pid, Seen(
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


def _log(part: Mapping[str, Any], ahead_s: float, since_s: float | None, until_s: float | None) -> KernelLog:
    logs = [_source(each, ahead_s) for each in rows_of(part.get("sources"))[:8]]
    if not logs:
        return KernelLog(NOT_THERE, NOT_THERE)
    return joined(logs, since_s, until_s)


def _source(row: Mapping[str, Any], ahead_s: float) -> KernelLog:
    lines = row.get("lines")
    if not isinstance(lines, list):
        why = why_not(row)
        return KernelLog(why, why)
    events = []
    for each in rows_of(lines):
        time_s = seconds(each.get("time_s"))
        event = event_of(str(each.get("line", ""))[:4096], None if time_s is None else time_s - ahead_s)
        if event is not None:
            events.append(event)
    covers = seconds(row.get("covers_since_s"))
    return KernelLog(
        tuple(events),
        why_not(row.get("covers_since_s")) if covers is None else covers - ahead_s,
        any_user_can_write=row.get("any_user_can_write") is not False,
    )
