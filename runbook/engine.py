"""The durable run: one DBOS workflow an incident, one recorded step a box, so that a killed process loses nothing.

A box that died half way runs again when the incident is resumed; every act therefore looks for its own token
before it acts. Nothing outside is touched from the workflow function itself: it only walks (`flow/walking.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dbos import DBOS, SetWorkflowID
from sqlalchemy.exc import DBAPIError

from runbook.adapters.store import records
from runbook.adapters.store.plain_pickles import plain_value as plain_value
from runbook.adapters.store.records import Answer, Packed, Recorded
from runbook.adapters.store.workflow_database import dbos_config, in_words, silence_library_logs
from runbook.errors import BadInput, NotFound, Unavailable
from runbook.flow.walking import Walk, incident_of_workflow, workflow_id
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, UserName

_Result = TypeVar("_Result")

QUEUE = "incidents"
WORKFLOW = "incident"
_MORE_THREADS = 16


class _Workflow:
    """What the walk of a workflow came to, in its database."""

    def step(self, name: str, does: Callable[..., _Result], *arguments: object) -> _Result:
        return DBOS.run_step({"name": name}, does, *arguments)

    def answer(self, topic: str, limit_s: float) -> Answer | None:
        found: Answer | None = DBOS.recv(topic, timeout_seconds=limit_s)
        return found


@dataclass
class Engine:
    """Walks over incidents, one workflow each. `launch` first, `close` last."""

    walk: Walk
    _workflow: Callable[[Recorded], str] | None = field(default=None, init=False, repr=False)
    stopped: dict[IncidentId, str] = field(default_factory=dict, init=False)
    """Incidents whose work ended as nothing could be recorded of it, each with the reason: `go_on` takes them up."""
    _taken_up: set[IncidentId] = field(default_factory=set, init=False, repr=False)
    _held: dict[IncidentId, tuple[UserName, int]] = field(default_factory=dict, init=False, repr=False)
    """Of runs that are begun: whose job it is, "" where that is not known yet, and the bytes that are held of it."""
    rising: set[IncidentId] = field(default_factory=set, init=False, repr=False)
    """Put there by whoever takes runs up; out of it once they are through what was recorded."""

    def __post_init__(self) -> None:
        self.walk.hold = self._hold

    def launch(self, database_url: str, *, executor: str, queue_concurrency: int | None = None) -> None:
        """Connect DBOS. With a concurrency, incidents put on the queue by other processes are taken too."""
        silence_library_logs()
        config = dbos_config(database_url, executor)
        if queue_concurrency is not None:
            # Each incident that is begun has a thread, also while it waits.
            config["max_executor_threads"] = queue_concurrency + _MORE_THREADS
        DBOS(config=config)  # type: ignore[arg-type]

        def walk(request: Recorded) -> str:
            name = incident_of_workflow(DBOS.workflow_id or "")
            self.stopped.pop(name, None)
            self._taken_up.discard(name)
            try:
                return self.walk.run(records.repacked(request), _Workflow())
            except (DBAPIError, Unavailable) as error:
                self.stopped[name] = in_words(error) if isinstance(error, DBAPIError) else error.what
                raise
            finally:
                self._held.pop(name, None)
                self.rising.discard(name)

        self._workflow = DBOS.workflow(name=WORKFLOW, max_recovery_attempts=1000)(walk)
        if queue_concurrency is None:
            DBOS.listen_queues([])
        try:
            DBOS.launch()
        except Exception as error:
            raise Unavailable(
                f"the workflow database cannot be opened: {str(error).partition(chr(10))[0]}",
                where=database_url.split("@")[-1],
                next_step="check the path, its rights and the free space; then try again",
            ) from error
        if queue_concurrency is not None:
            DBOS.register_queue(QUEUE, worker_concurrency=queue_concurrency, polling_interval_sec=0.5)

    def start(self, incident: Incident) -> str:
        """Begin, or join if this run of the incident was begun before. Returns the workflow's id."""
        walk, workflow = self._alone(incident), workflow_id(incident)
        with SetWorkflowID(workflow):
            DBOS.start_workflow(walk, records.packed(incident))
        return workflow

    def _alone(self, incident: Incident) -> Callable[[Recorded], str]:
        """The workflow. One run at a time: an earlier one that was left half way must not be taken up beside the new
        one."""
        if self._workflow is None:
            raise RuntimeError("launch the engine first")
        if incident.run > 1:
            earlier = workflow_id(replace(incident, run=incident.run - 1))
            if DBOS.get_workflow_status(earlier) is not None:
                DBOS.cancel_workflow(earlier)
        return self._workflow

    def take_up(self, incident: Incident) -> bool:
        """Go on with a run whose process died. False when that run has ended, so that a new one must begin."""
        status = DBOS.get_workflow_status(workflow_id(incident))
        if status is None or status.status in ("SUCCESS", "ERROR"):
            return False
        DBOS.resume_workflow(workflow_id(incident))
        return True

    def enqueue(self, incident: Incident) -> None:
        """As `start`, through the queue, so that only so many are worked on at a time."""
        walk = self._alone(incident)
        with SetWorkflowID(workflow_id(incident)):
            DBOS.enqueue_workflow(QUEUE, walk, records.packed(incident))

    def ensure(self, incident: Incident, begin_again: Callable[[Incident], Incident]) -> str:
        """See to it that an unfinished incident is worked on, once. A run that was never begun is put on the queue; one
        that ended without finishing (interrupted, or broken) is followed by another; one whose process is gone is
        taken up; a living one is left alone."""
        status = DBOS.get_workflow_status(workflow_id(incident))
        if status is not None and status.status in ("SUCCESS", "ERROR", "CANCELLED"):
            incident = begin_again(incident)
            self.walk.store.save(incident)
        elif status is not None:
            if status.status == "PENDING" and status.executor_id != DBOS.executor_id:
                DBOS.resume_workflow(status.workflow_id, queue_name=QUEUE)
            return "at work"
        self.enqueue(incident)
        return "begun"

    def adopt(self, but: Collection[IncidentId] = ()) -> tuple[str, ...]:
        """Go on with every workflow that another process left unfinished, `but` those of these incidents, and of files
        alone, at which a command of an earlier version was: the scheduler here knows nothing of them. Returns their
        ids."""
        pending = DBOS.list_workflows(status=["PENDING"], name=WORKFLOW, load_input=False)
        left = [status for status in pending if status.executor_id != DBOS.executor_id]
        named = [(incident_of_workflow(status.workflow_id), status.workflow_id) for status in left]
        ours = [workflow for name, workflow in named if name not in but and not self._is_of_files(name)]
        for workflow in ours:
            DBOS.resume_workflow(workflow, queue_name=QUEUE)
        return tuple(ours)

    def _is_of_files(self, name: IncidentId) -> bool:
        try:
            return self.walk.store.load(name).trigger == "files"
        except (NotFound, BadInput):
            return False  # what is recorded of it tells what it was

    def go_on(self, begin_again: Callable[[Incident], Incident]) -> tuple[IncidentId, ...]:
        """Take up what was stopped; returns those that go on. Raises what stopped them where it still does."""
        taken = []
        for name in tuple(self.stopped):
            incident = self.walk.store.load(name)
            if incident.finished:
                self.stopped.pop(name, None)
            # What goes on takes itself out, perhaps while those before it were looked at. What could be recorded last
            # is that it failed, or nothing.
            elif name in self.stopped and name not in self._taken_up:
                if self.ensure(incident, begin_again) != "begun":
                    self.walk.store.save(incident)
                    DBOS.resume_workflow(workflow_id(incident), queue_name=QUEUE)
                self._taken_up.add(name)
                taken.append(name)
        return tuple(taken)

    def wait(self, workflow: str) -> None:
        """Until the run has ended."""
        DBOS.retrieve_workflow(workflow).get_result()

    def ask_database(self) -> None:
        """One small question to the workflow database: it comes back when that answers. May raise, may wait."""
        DBOS.list_workflows(name=WORKFLOW, limit=1, load_input=False, load_output=False)

    def close(self) -> None:
        """Let go of the database. Unfinished incidents stay resumable."""
        DBOS.destroy(workflow_completion_timeout_sec=0)

    def holds(self, incident: IncidentId) -> bool:
        """Whether its run is where it was left, or further."""
        return incident in self._held

    def held(self) -> Mapping[UserName, int]:
        """Bytes that are held of incidents whose runs are begun, by the owner of their jobs."""
        sums: Counter[UserName] = Counter()
        for owner, size_bytes in tuple(self._held.values()):
            sums[owner] += size_bytes
        sums.pop(UserName(""), None)
        return sums

    def _hold(self, incident: Incident, held: Packed) -> None:
        known = incident.original or incident.failure
        self._held[incident.id] = known.job.owner if known is not None else UserName(""), len(held)
        self.rising.discard(incident.id)
