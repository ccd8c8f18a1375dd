"""The node probe's document: one JSON object, version 1, as `runbook/probe` writes it (docs/probe.md).

It says more than is read here. A figure is its value or `{"unknown": reason}`; one of another type than it must have
is unknown too. The document comes from a node and may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from runbook.evidence.node_answers import NodeAnswers, Section, printable
from runbook.evidence.node_gpus import any_repair_pending, rows_or_pages_pending
from runbook.evidence.node_kernel_log import KernelLog, event_of, joined
from runbook.evidence.node_processes import Seen, owned
from runbook.evidence.xid import bus_id
from runbook.model.node import GpuFacts, GpuProcess
from runbook.model.units import Bytes, Unknown

DOCUMENT = "runbook-node"
VERSION = 1
STANDIN = "(stand-in)"
"""What the driver's version of the tests' own NVML ends with."""

_GPU_LIMIT = 256
_NOT_THERE = Unknown("the probe's answer does not have it")


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
    node, nvml = _part(document, "node"), _part(document, "nvml")
    driver = _text(nvml, "driver", 80)
    gpus = _gpus(document, nvml, node)
    return ProbeAnswer(
        driver=driver,
        gpus=gpus,
        log=_log(_part(document, "kernel_log"), ahead_s, since_s, until_s),
        user=_plain(_text(node, "user", 40)),
        python=_plain(_text(node, "python", 20)),
        now_s=_seconds(node.get("now_s")),
        inside=_plain(_text(node, "inside", 20)),
        standin=isinstance(driver, str) and driver.endswith(STANDIN),
    )


def _gpus(
    document: Mapping[str, Any], nvml: Mapping[str, Any], node: Mapping[str, Any]
) -> tuple[GpuFacts, ...] | Unknown:
    rows = nvml.get("gpus")
    if not isinstance(rows, list):
        return _why(rows)
    answers = _node_section(node)
    owners = {seen_pid: seen for row in _rows(document.get("processes")) for seen_pid, seen in _seen(row)}
    gpus = [_gpu(row, owners, answers) for row in _rows(rows)[:_GPU_LIMIT]]
    listed = {bus_id(str(each)) for each in _list(node.get("driver_gpus"))[:_GPU_LIMIT]}
    missing = sorted(listed - {gpu.bus_id for gpu in gpus})
    nameless = [gpu for gpu in gpus if gpu.lost and not gpu.bus_id]
    if len(missing) == 1 == len(nameless):
        gpus = [replace(gpu, bus_id=missing[0]) if gpu is nameless[0] else gpu for gpu in gpus]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(row: Mapping[str, Any], owners: Mapping[int, Seen], answers: NodeAnswers) -> GpuFacts:
    index = row.get("index")
    lost = row.get("lost") is True
    return GpuFacts(
        index=index if _is_whole(index) and 0 <= index < _GPU_LIMIT else -1,
        uuid=_plain(_text(row, "uuid", 80)),
        bus_id=bus_id(_plain(_text(row, "bus_id", 40))),
        name=_plain(_text(row, "name", 80)),
        total_bytes=_bytes(row, "total_bytes"),
        used_bytes=_bytes(row, "used_bytes"),
        free_bytes=_bytes(row, "free_bytes"),
        ecc_uncorrectable_volatile=_whole(row, "ecc_uncorrectable_volatile"),
        ecc_uncorrectable_aggregate=_whole(row, "ecc_uncorrectable_aggregate"),
        sram_threshold_exceeded=_flag(row, "sram_threshold_exceeded"),
        row_remap_pending=rows_or_pages_pending(
            _flag(row, "row_remap_pending"), [_flag(row, "retired_pages_pending")]
        ),
        row_remap_failed=_flag(row, "row_remap_failed"),
        recovery_action=_text(row, "recovery_action", 60),
        mig_enabled=_flag(row, "mig_enabled"),
        lost=lost,
        processes=_processes(row, owners, answers),
        unrepairable_memory=_flag(row, "unrepairable_memory"),
        repair_pending=any_repair_pending([_flag(row, "channel_repair_pending"), _flag(row, "tpc_repair_pending")]),
        retired_pages=_retired_pages(row),
    )


def _retired_pages(row: Mapping[str, Any]) -> int | Unknown:
    single, double = (_whole(row, f"retired_pages_{kind}_bit") for kind in ("single", "double"))
    if isinstance(single, Unknown):
        return single
    return double if isinstance(double, Unknown) else single + double


def _processes(
    row: Mapping[str, Any], owners: Mapping[int, Seen], answers: NodeAnswers
) -> tuple[GpuProcess, ...] | Unknown:
    """Those of CUDA, through MPS or not. A graphics context is in the document, and is no tenant of a training job."""
    listed = row.get("processes")
    if not isinstance(listed, list):
        return _why(listed)
    found = []
    for each in _rows(listed):
        pid, kinds = each.get("pid"), _list(each.get("kinds"))
        if not _is_whole(pid) or not {"compute", "mps"} & {str(kind) for kind in kinds}:
            continue
        found.append(owned(pid, _bytes(each, "used_bytes"), _plain(_text(each, "name", 200)), dict(owners), answers))
    return tuple(found)


def _seen(row: Mapping[str, Any]) -> list[tuple[int, Seen]]:
    """One process of `/proc`, as the shell script's answer is read too. None at all when it was not looked up."""
    pid = row.get("pid")
    if not _is_whole(pid) or "unknown" in row:
        return []
    environment = row.get("environment")
    variables = environment if isinstance(environment, dict) and "unknown" not in environment else None
    uid = row.get("uid")
    return [(pid, Seen(
        gone=row.get("gone") is True,
        uid=uid if _is_whole(uid) else None,
        user=_plain(_text(row, "user", 60)),
        stat=_plain(_text(row, "stat", 600)),
        cgroups=[str(line) for line in _list(row.get("cgroups"))[:32]],
        environ_readable=variables is not None,
        environment={str(key): str(value) for key, value in (variables or {}).items()},
    ))]


def _node_section(node: Mapping[str, Any]) -> NodeAnswers:
    values = {
        "slurm_cgroup": node.get("slurm_cgroup"), "uptime": _seconds(node.get("uptime_s")),
        "ticks": _seconds(node.get("ticks_per_s")),
    }
    lines = [f"{name}={printable(str(value))}" for name, value in values.items() if value]
    return NodeAnswers({"node": Section("\n".join(lines), 0)})


def _log(part: Mapping[str, Any], ahead_s: float, since_s: float | None, until_s: float | None) -> KernelLog:
    logs = [_source(each, ahead_s) for each in _rows(part.get("sources"))[:8]]
    if not logs:
        return KernelLog(_NOT_THERE, _NOT_THERE)
    return joined(logs, since_s, until_s)


def _source(row: Mapping[str, Any], ahead_s: float) -> KernelLog:
    lines = row.get("lines")
    if not isinstance(lines, list):
        why = _why(row)
        return KernelLog(why, why)
    events = []
    for each in _rows(lines):
        time_s = _seconds(each.get("time_s"))
        event = event_of(str(each.get("line", ""))[:4096], None if time_s is None else time_s - ahead_s)
        if event is not None:
            events.append(event)
    covers = _seconds(row.get("covers_since_s"))
    return KernelLog(
        tuple(events),
        _why(row.get("covers_since_s")) if covers is None else covers - ahead_s,
        any_user_can_write=row.get("any_user_can_write") is not False,
    )


def _why(value: object) -> Unknown:
    reason = value.get("unknown") if isinstance(value, dict) else None
    return Unknown(printable(reason, 300)) if isinstance(reason, str) and reason else _NOT_THERE


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in _list(value) if isinstance(row, dict)]


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _whole(row: Mapping[str, Any], name: str) -> int | Unknown:
    value = row.get(name)
    return value if _is_whole(value) else _why(value)


def _bytes(row: Mapping[str, Any], name: str) -> Bytes | Unknown:
    value = _whole(row, name)
    return value if isinstance(value, Unknown) else Bytes(value)


def _flag(row: Mapping[str, Any], name: str) -> bool | Unknown:
    value = row.get(name)
    return value if isinstance(value, bool) else _why(value)


def _text(row: Mapping[str, Any], name: str, limit: int) -> str | Unknown:
    value = row.get(name)
    return printable(value, limit) if isinstance(value, str) else _why(value)


def _plain(value: str | Unknown) -> str:
    return "" if isinstance(value, Unknown) else value


def _seconds(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if good and isinstance(value, int | float) else None
