"""Of the probe's document: MIG instances, MPS, the memory of the jobs' cgroups, and the kernel's OOM kills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.evidence.node_oom_kills import LogLine, read_oom_kills
from runbook.evidence.node_probe_values import (
    NOT_THERE,
    is_whole,
    part_of,
    plain,
    rows_of,
    seconds,
    size_of,
    text_of,
    whole,
    why_not,
)
from runbook.model.node import DaemonProcess, JobMemory, MigInstance, OomKill
from runbook.model.units import Bytes, JobId, Unknown

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
    document: Mapping[str, Any], ahead_s: float, since_s: float | None, until_s: float | None
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
    return read_oom_kills(lines, since_s, until_s)


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
