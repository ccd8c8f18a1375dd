"""`scontrol show job -d`: which of each node's GPUs a job was given, while it runs.

Slurm prints a line for each group of nodes with the same share, below `JOB_GRES`:

         Nodes=gpu-[21-22] CPU_IDs=0-3 Mem=64 GRES=gpu:h100:2(IDX:0,3),nic:1(IDX:0)

`IDX` counts the entries of the node's gres.conf, whatever their types. When the job has ended, `GRES=` is empty
(seen on 22.05.8), and neither squeue, sacct nor the environment of EpilogSlurmctld has the indices.
"""

from __future__ import annotations

import re

from runbook.evidence.slurm_hosts import expand_hosts
from runbook.model.job import GpuIndices
from runbook.model.units import JobId, NodeName

_LINE = re.compile(r" {3,8}Nodes=(?P<nodes>\S+) CPU_IDs=\S* Mem=\d+ (?:GRES|GRES_IDX)=(?P<gres>\S*) *")
_PART = re.compile(r"(?:gres[:/])?(?P<name>[A-Za-z0-9_]+)(?::[^:()]+)*(?::\d+)?(?P<more>\([^()]*\))*")
_INDICES = re.compile(r"\(IDX:(?P<list>[0-9,-]+)\)")
_MOST_INDICES = 1024


def job_arguments(job: JobId) -> tuple[str, ...]:
    """Arguments of scontrol."""
    return ("show", "job", "-d", job)


def read_gpu_indices(text: str) -> tuple[GpuIndices, ...]:
    """The indices of each node. () where a node comes twice, or a share of GPUs has no indices: then nothing is known.

    A job's name may hold lines that look like Slurm's own. It cannot take those away, so that a forged line makes its
    node come twice."""
    found: dict[NodeName, tuple[int, ...]] = {}
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        indices = _of_gres(match["gres"])
        nodes = expand_hosts(match["nodes"])
        if indices is None or not nodes or any(node in found for node in nodes):
            return ()
        found.update(dict.fromkeys(nodes, indices))
    return tuple(GpuIndices(node, indices) for node, indices in found.items() if indices)


def index_list(text: str) -> tuple[int, ...] | None:
    """"0-2,5" as numbers; None for what is no such list."""
    numbers: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not (first.isdecimal() and len(first) < 5) or (dash and not (last.isdecimal() and len(last) < 5)):
            return None
        low, high = int(first), int(last or first)
        if not low <= high < _MOST_INDICES:
            return None
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def _of_gres(gres: str) -> tuple[int, ...] | None:
    """The GPUs of one share, of all types; () for none. None where GPUs are named without their indices, and for
    shards and MPS, whose GPUs several jobs share."""
    numbers: list[int] = []
    for part in re.split(r",(?![^(]*\))", gres):
        match = _PART.fullmatch(part)
        if not part or (match and match["name"] not in ("gpu", "shard", "mps")):
            continue
        listed = _INDICES.search(part)
        indices = index_list(listed["list"]) if listed else None
        if match is None or match["name"] != "gpu" or indices is None:
            return None
        numbers += indices
    return tuple(sorted(numbers)) if len(set(numbers)) == len(numbers) else None
