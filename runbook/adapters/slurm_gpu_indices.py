"""Which GPUs a job runs on, asked of the controller once for each run of a job: they stay the same while it runs."""

from __future__ import annotations

from dataclasses import replace

from runbook.adapters.slurm_commands import SlurmCommands
from runbook.errors import RunbookError
from runbook.evidence.slurm_gpus import job_arguments, read_gpu_indices
from runbook.model.job import GpuIndices, JobClass, JobRecord
from runbook.model.units import JobId

_MOST_RUNS_KEPT = 256

Run = tuple[JobId, float | None, int]


class GpuIndicesOfRuns:
    """Adds the indices to records of jobs that run. What the controller said is kept, so that a later record of the
    same run has them too, when Slurm has forgotten them."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._known: dict[Run, tuple[GpuIndices, ...]] = {}

    def added(self, record: JobRecord) -> JobRecord:
        """The record with its GPUs' indices, as it is where they cannot be told: nothing fails for want of them."""
        run = (record.id, record.start_time_s, record.restarts)
        if run not in self._known:
            settled = record.state.job_class is JobClass.ACTIVE and "CONFIGURING" not in record.state.flags
            if not settled or not record.nodes:
                return record
            try:
                told = read_gpu_indices(self._commands.ask("scontrol", job_arguments(record.id)))
            except RunbookError:
                return record
            while len(self._known) >= _MOST_RUNS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[run] = tuple(one for one in told if one.node in record.nodes)
        return replace(record, gpu_indices=self._known[run])
