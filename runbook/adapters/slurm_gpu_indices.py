"""Which GPUs a job runs on: asked of the controller once for each run of a job, for they stay the same while it runs.

The controller forgets them as the job ends. Then the node's epilog may have left them: SLURM_JOB_GPUS holds the same
numbers (seen on 22.05.8).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from runbook.adapters.nodes_left import read_left
from runbook.adapters.slurm_commands import SlurmCommands
from runbook.errors import RunbookError
from runbook.model.job import GpuIndices, JobClass, JobRecord
from runbook.model.units import JobId, NodeName
from runbook.slurm.controller import gpu_indices_arguments, index_list, read_gpu_indices

_MOST_RUNS_KEPT = 256
_SLACK_S = 60.0
"""The nodes' clocks and the controller's."""

Run = tuple[JobId, float | None, int]


class GpuIndicesOfRuns:
    """Adds the indices to records. What the controller said is kept, so that a later record of the same run has them
    too. `left`: the folder where the nodes' epilogs leave files."""

    def __init__(self, commands: SlurmCommands, left: Path | None = None) -> None:
        self._commands = commands
        self._left = left
        self._known: dict[Run, tuple[GpuIndices, ...]] = {}

    def added(self, record: JobRecord) -> JobRecord:
        """The record with its GPUs' indices, as it is where they cannot be told: nothing fails for want of them."""
        run = (record.id, record.start_time_s, record.restarts)
        if run not in self._known:
            if record.state.job_class.ended:
                return replace(record, gpu_indices=self._left_by_epilogs(record))
            settled = record.state.job_class is JobClass.ACTIVE and "CONFIGURING" not in record.state.flags
            if not settled or not record.nodes:
                return record
            try:
                told = read_gpu_indices(self._commands.ask("scontrol", gpu_indices_arguments(record.id)))
            except RunbookError:
                return record
            while len(self._known) >= _MOST_RUNS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[run] = tuple(one for one in told if one.node in record.nodes)
        return replace(record, gpu_indices=self._known[run])

    def _left_by_epilogs(self, record: JobRecord) -> tuple[GpuIndices, ...]:
        """Of the nodes whose epilog left a file for this run: named by job and restart, written since its start. Where
        two clusters left one of the same name, none counts."""
        if self._left is None or record.start_time_s is None:
            return ()
        run = f"-{record.id}-{record.restarts}."
        wanted = {f"{node}.gpus": node for node in record.nodes}
        found: dict[NodeName, GpuIndices | None] = {}
        try:
            with os.scandir(self._left) as entries:
                for entry in entries:
                    node = wanted.get(entry.name.partition(run)[2])
                    if node is None or entry.name.startswith("."):
                        continue
                    fresh = entry.stat(follow_symlinks=False).st_mtime >= record.start_time_s - _SLACK_S
                    indices = index_list((read_left(self._left, Path(entry.path)) or "").strip()) if fresh else None
                    if indices is not None:
                        found[node] = None if node in found else GpuIndices(node, indices)
        except OSError:
            return ()
        return tuple(one for node in record.nodes if (one := found.get(node)) is not None)
