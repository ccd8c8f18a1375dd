"""Facts of simulated GPUs from the state file that the demo's jobs and the sandbox share: no GPU is behind them.

Layout: `$SIMULATED_GPU_DIR/<host>/state.json` with `gpus` and `kernel_log`, and `processes/<gpu>/<pid>`, one line
of JSON each. Only read where there is no nvidia-smi at all; everything said here carries `simulated`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runbook.evidence.node_answers import NodeAnswers, printable
from runbook.evidence.node_kernel_log import KernelLog, NodeClock, event_of, in_window, merged
from runbook.evidence.node_processes import owned, owners_of, start_times
from runbook.evidence.xid import bus_id
from runbook.model.node import GpuFacts, GpuProcess, XidEvent
from runbook.model.units import Bytes, Unknown

_NOT_SAID = Unknown("the simulated GPU's state does not say")


def read_simulated(
    answers: NodeAnswers, clock: NodeClock, since_s: float | None, until_s: float | None
) -> tuple[tuple[GpuFacts, ...] | Unknown, KernelLog]:
    """GPUs with their processes, and the kernel log, of the state file. A broken file makes both unknown."""
    section = answers.get("simulated_state")
    try:
        state = json.loads(section.text if section else "")
        rows, log = list(state["gpus"]), list(state.get("kernel_log", ()))
        processes = _processes(answers)
        gpus = tuple(sorted((_gpu(row, processes, answers) for row in rows), key=lambda gpu: gpu.index))
        events = [event for row in log for event in _events(row, since_s, until_s)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = Unknown(f"the state file of the simulated GPUs cannot be read: {printable(str(error), 120)}")
        return why, KernelLog(why, why)
    covers: float | Unknown = Unknown("the node did not say since when it runs")
    if clock.now_s is not None and clock.uptime_s is not None:
        covers = clock.now_s - clock.uptime_s
    return gpus, KernelLog(merged(events), covers)


def _gpu(row: dict[str, Any], processes: dict[int, list[GpuProcess]], answers: NodeAnswers) -> GpuFacts:
    index = int(row["index"])
    mine = list(processes.get(index, ()))
    owners = owners_of(answers)
    for extra in row.get("extra_processes") or ():
        mine.append(owned(int(extra["pid"]), Bytes(int(extra["bytes"])), str(extra["name"]), owners, answers))
    total = int(row["total_bytes"])
    usable = total if row.get("usable_bytes") is None else int(row["usable_bytes"])
    taken = sum(process.used_bytes for process in mine if not isinstance(process.used_bytes, Unknown))
    used = min(total, max(0, total - usable) + taken)
    lost = bool(row.get("lost"))
    ecc, remap = row.get("ecc") or {}, row.get("row_remap") or {}
    gone = Unknown("the simulated GPU is lost")
    return GpuFacts(
        index=index,
        uuid=printable(str(row.get("uuid", "")), 80),
        bus_id=bus_id(str(row.get("bus_id", ""))),
        name=printable(str(row.get("name", "")), 80),
        total_bytes=gone if lost else Bytes(total),
        used_bytes=gone if lost else Bytes(used),
        free_bytes=gone if lost else Bytes(total - used),
        ecc_uncorrectable_volatile=gone if lost else _count(ecc, "volatile_uncorrectable"),
        ecc_uncorrectable_aggregate=gone if lost else _count(ecc, "aggregate_uncorrectable"),
        sram_threshold_exceeded=gone if lost else _flag(ecc, "sram_threshold_exceeded"),
        row_remap_pending=gone if lost else _flag(remap, "pending"),
        row_remap_failed=gone if lost else _flag(remap, "failure"),
        recovery_action=gone if lost else printable(str(row.get("recovery_action") or "None"), 60),
        mig_enabled=gone if lost else bool(row.get("mig")),
        lost=lost,
        minor=row["minor"] if isinstance(row.get("minor"), int) else _NOT_SAID,
        processes=gone if lost else tuple(mine),
    )


def _processes(answers: NodeAnswers) -> dict[int, list[GpuProcess]]:
    """Entries of living processes by GPU; an entry older than the process of that number is somebody else's."""
    section = answers.get("simulated_processes")
    owners = owners_of(answers)
    started = start_times(answers)
    found: dict[int, list[GpuProcess]] = {}
    for line in section.lines if section else ():
        place, _, rest = line.partition(" ")
        written, _, text = rest.partition(" ")
        gpu, _, pid_text = place.partition("/")
        if not (gpu.isdecimal() and pid_text.isdecimal() and written.isdecimal()):
            continue
        pid = int(pid_text)
        if pid not in started or started[pid] > int(written) + 2:
            continue
        try:
            entry = json.loads(text)
            process = owned(pid, Bytes(int(entry["bytes"])), str(entry["name"]), owners, answers)
        except (ValueError, KeyError, TypeError):
            continue
        found.setdefault(int(gpu), []).append(process)
    return found


def _events(row: dict[str, Any], since_s: float | None, until_s: float | None) -> list[XidEvent]:
    time_s = float(row["time"])
    found = (event_of(line, time_s) for line in str(row["line"]).split("\n"))
    inside = in_window(time_s, since_s, until_s)
    return [replace(event, in_window=inside) for event in found if event is not None]


def _count(row: dict[str, Any], name: str) -> int | Unknown:
    return int(row[name]) if name in row else _NOT_SAID


def _flag(row: dict[str, Any], name: str) -> bool | Unknown:
    return bool(row[name]) if name in row else _NOT_SAID
