"""From an event of the spool to an incident that is durably open, joined, or declined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook import __version__
from runbook.errors import RunbookError, Unavailable
from runbook.model.incident import Policy
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import JobId, NodeName
from runbook.ports import Clock, Files, Scheduler
from runbook.report.clean import clean_line, shorten
from runbook.service.daemon import Declined, NotYet
from runbook.service.spool import SpoolEvent
from runbook.steps.silence import silent_s
from runbook.triggers import Known, Opened, open_for

_AFTER_END_S = 3600.0
"""An alert may begin this long after its job ended: rules look back over minutes, not over days."""
_BEFORE_START_S = 60.0

JobsOnNode = Callable[[NodeName, float], tuple[JobId, ...]]


@dataclass(frozen=True)
class Opener:
    """Decides about one event; whoever calls acts on it."""

    scheduler: Scheduler
    known: Known
    clock: Clock
    cluster: str
    policy: Policy
    jobs_on_node: JobsOnNode | None = None
    """None: this scheduler is not asked which job had a node."""
    files: Files | None = None
    quiet_s: float = 120.0
    """A running job is looked at on an alert's word once none of its logs was written to for so long."""

    def decide(self, event: SpoolEvent) -> Opened:
        """Raises `Unavailable`, `NotFound`, `NotYet`, and `Declined` for an alert whose job is not certain."""
        record = self.scheduler.job(event.job or self._job_of(event))
        if event.trigger == "alert":
            _check_time(record, event)
            self._check_quiet(record)
        return open_for(
            record, self.known, cluster=self.cluster, trigger=event.trigger, policy=self.policy,
            now_s=self.clock.now(), tool_version=__version__,
        )

    def _check_quiet(self, record: JobRecord) -> None:
        """Raises `NotYet` for a job that runs and writes: it has not stalled, and a failure in its log may be one that
        it caught. Logs that cannot be looked at are left to the flow, which says so to a person."""
        if record.state.job_class is not JobClass.ACTIVE or self.files is None:
            return
        quiet_s = silent_s(self.files, record, self.clock.now())
        if quiet_s is not None and quiet_s < self.quiet_s:
            raise NotYet(
                f"job {record.id} runs and wrote to its log {quiet_s:.0f} s ago; it is looked at when that is "
                f"{self.quiet_s:.0f} s"
            )

    def _job_of(self, event: SpoolEvent) -> JobId:
        """The one job that had the event's node at its time."""
        node = _shown(event.node)
        if self.jobs_on_node is None:
            raise Declined(f"it names {node} and no job, and this scheduler is not asked which job had a node")
        try:
            jobs = self.jobs_on_node(event.node, event.time_s)
        except Unavailable:
            raise
        except RunbookError as error:
            raise Declined(f"it names {node} and no job: {error.what}") from error
        if len(jobs) != 1:
            held = f"{len(jobs)} jobs had {node} then ({', '.join(jobs[:5])})" if jobs else f"no job had {node} then"
            raise Declined(f"{held}, so which one it means is not known")
        return jobs[0]


def _check_time(record: JobRecord, event: SpoolEvent) -> None:
    """Raises `Declined` for an alert from outside the job's time: job ids come round again, and rules lag."""
    started_s, ended_s = record.start_time_s, record.end_time_s
    ended = record.state.job_class.ended and ended_s is not None
    if ended and ended_s is not None and event.time_s > ended_s + _AFTER_END_S:
        raise Declined(f"job {record.id} had ended {(event.time_s - ended_s) / 3600:.1f} hours before it")
    if started_s is not None and event.time_s < started_s - _BEFORE_START_S:
        raise Declined(f"job {record.id} started {(started_s - event.time_s) / 60:.0f} minutes after it")


def _shown(text: str) -> str:
    return shorten(clean_line(text), 80)
