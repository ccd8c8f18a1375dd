"""From an event of the spool to an incident that is durably open, joined, or declined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook import __version__
from runbook.errors import RunbookError, Unavailable
from runbook.model.incident import Policy
from runbook.model.job import JobRecord
from runbook.model.units import JobId, NodeName
from runbook.ports import Clock, Scheduler
from runbook.report.clean import clean_line, shorten
from runbook.service.daemon import Declined
from runbook.service.spool import SpoolEvent
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

    def decide(self, event: SpoolEvent) -> Opened:
        """Raises `Unavailable`, `NotFound`, and `Declined` for an alert whose job is not known for certain."""
        record = self.scheduler.job(event.job or self._job_of(event))
        if event.trigger == "alert":
            _check_time(record, event)
        return open_for(
            record, self.known, cluster=self.cluster, trigger=event.trigger, policy=self.policy,
            now_s=self.clock.now(), tool_version=__version__, told_s=event.time_s,
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
