"""Reading the simulated GPUs of this node: the state file and the entries of living processes."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

ROOT = "/var/lib/runbook-sandbox/gpus"
#: The driver keeps this much for itself: 81559 MiB are shown for an H100 whose programs see 81106 MiB.
RESERVED_BYTES = 453 << 20


class Process(NamedTuple):
    """A process that holds memory of a GPU."""

    pid: int
    bytes: int
    name: str


class Gpu(NamedTuple):
    """A simulated GPU and who uses it."""

    facts: dict[str, Any]
    processes: list[Process]

    @property
    def total_bytes(self) -> int:
        """All memory of the card."""
        return int(self.facts["total_bytes"]) + RESERVED_BYTES

    @property
    def used_bytes(self) -> int:
        """Memory in use: by processes, and what is gone without a process (usable_bytes below total)."""
        total = int(self.facts["total_bytes"])
        usable = self.facts.get("usable_bytes")
        hidden = 0 if usable is None else max(0, total - int(usable))
        return min(total, hidden + sum(process.bytes for process in self.processes))

    @property
    def free_bytes(self) -> int:
        """Memory that programs can still have."""
        return int(self.facts["total_bytes"]) - self.used_bytes


class Node(NamedTuple):
    """All that this node's stand-ins know."""

    gpus: list[Gpu]
    kernel_log: list[dict[str, Any]]
    driver: str
    hang: bool


def load() -> Node:
    """Read this node's state; the node is known by its host name."""
    folder = f"{ROOT}/{os.uname().nodename}"
    try:
        with open(f"{folder}/state.json", encoding="utf-8") as stream:
            state = json.load(stream)
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"simulated GPUs: {folder}/state.json: {problem}\n")
        raise SystemExit(9) from None
    gpus = []
    for facts in state["gpus"]:
        rows = facts["extra_processes"]
        extra = [Process(int(row["pid"]), int(row["bytes"]), str(row["name"])) for row in rows]
        gpus.append(Gpu(facts, living(f"{folder}/processes/{facts['index']}") + extra))
    return Node(gpus, state["kernel_log"], state["driver"], bool(state["hang"]))


def living(folder: str) -> list[Process]:
    """The entries of living processes; one older than the process of that number is somebody else's."""
    found = []
    try:
        names = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
    for name in sorted(names, key=int):
        path = f"{folder}/{name}"
        try:
            written = os.stat(path).st_mtime
            with open(path, encoding="utf-8") as stream:
                entry = json.load(stream)
            if started(int(name)) <= written + 1:
                found.append(Process(int(name), int(entry["bytes"]), str(entry["name"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def started(pid: int) -> float:
    """When a process started, in seconds since the epoch; OSError when it is gone."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        fields = stream.read().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def boot_time() -> float:
    """When this machine started, in seconds since the epoch."""
    with open("/proc/stat", encoding="ascii") as stream:
        return next(float(line.split()[1]) for line in stream if line.startswith("btime "))
