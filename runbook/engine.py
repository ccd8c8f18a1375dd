"""The durable run: one DBOS workflow an incident, one recorded step a box, so that a killed process loses nothing.

A box that died half way runs again when the incident is resumed; every act therefore looks for its own token
before it acts. Nothing outside is touched from the workflow function itself: it only walks the flow.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from dbos import DBOS, SetWorkflowID
from sqlalchemy.exc import DBAPIError

from runbook.adapters.store import records
from runbook.adapters.store.plain_pickles import plain_value as plain_value
from runbook.adapters.store.records import Answer, Asked, BoxRecord, Handed, Packed, Recorded
from runbook.adapters.store.workflow_database import dbos_config, in_words, silence_library_logs
from runbook.config import PolicyDocument
from runbook.errors import BoxFault, BoxStopped, RunbookError, Unavailable
from runbook.flow import END, Box, Boxes, Flow, Here
from runbook.model.incident import NOBODY, Act, BoxVisit, Incident, IncidentState, Policy, declined
from runbook.model.units import IncidentId, UserName
from runbook.ports import Clock
from runbook.steps.shared.base import Proposal, StepContext, StepResult, read_only_ports

QUEUE = "incidents"
WORKFLOW = "incident"
STOPPED = "stopped"
"""The outcome of a box that was ended as often as it was tried."""
_MOST_STOPPED = 2
_MORE_THREADS = 16
_BY_POLICY = "policy"
"""Who said yes where the policy is `apply`."""


class Watcher(Protocol):
    """Whoever looks on: a terminal, a log, nobody. Called from the workflow's thread; must not raise."""
    def entered(self, box: Box, incident: Incident) -> None: ...
    def left(self, box: Box, visit: BoxVisit, incident: Incident) -> None: ...
    def line(self, incident: IncidentId, text: str) -> None: ...
    def asked(self, incident: Incident, proposal: Proposal) -> None: ...


class Store(Protocol):
    """Where incidents are kept; what every reader outside the workflow sees."""
    def save(self, incident: Incident) -> object: ...
    def load(self, incident: IncidentId) -> Incident: ...


@dataclass
class Engine:
    """Walks one flow over incidents. `launch` first, `close` last."""

    flow: Flow
    context_of: Callable[[Incident, Callable[[str], None]], StepContext]
    store: Store
    clock: Clock
    policy: PolicyDocument
    watcher: Watcher
    draw: Callable[[Incident], None]
    """Writes the report of an incident that has ended."""
    tell: Callable[[Incident | None, Incident], None] = lambda _before, _after: None
    """Tells people what came with the step from one state of an incident to the next. Asked again when a box runs again
    after a crash; must not raise."""
    boxes: Boxes = field(default_factory=Here)
    _workflow: Callable[[Recorded], str] | None = field(default=None, init=False, repr=False)
    stopped: dict[IncidentId, str] = field(default_factory=dict, init=False)
    """Incidents whose work ended as nothing could be recorded of it, each with the reason: `go_on` takes them up."""
    _taken_up: set[IncidentId] = field(default_factory=set, init=False, repr=False)
    _held: dict[IncidentId, tuple[UserName, int]] = field(default_factory=dict, init=False, repr=False)
    """Of runs that are begun: whose job it is, "" where that is not known yet, and the bytes that are held of it."""
    rising: set[IncidentId] = field(default_factory=set, init=False, repr=False)
    """Put there by whoever takes runs up; out of it once they are through what was recorded."""

    def launch(self, database_url: str, *, executor: str, queue_concurrency: int | None = None) -> None:
        """Connect DBOS. With a concurrency, incidents put on the queue by other processes are taken too."""
        silence_library_logs()
        config = dbos_config(database_url, executor)
        if queue_concurrency is not None:
            # Each incident that is begun has a thread, also while it waits.
            config["max_executor_threads"] = queue_concurrency + _MORE_THREADS
        DBOS(config=config)  # type: ignore[arg-type]

        def walk(request: Recorded) -> str:
            name = records.unpacked(request).id
            self.stopped.pop(name, None)
            self._taken_up.discard(name)
            try:
                return self._walk(request)
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
            self.store.save(incident)
        elif status is not None:
            if status.status == "PENDING" and status.executor_id != DBOS.executor_id:
                DBOS.resume_workflow(status.workflow_id, queue_name=QUEUE)
            return "at work"
        self.enqueue(incident)
        return "begun"

    def adopt(self) -> tuple[str, ...]:
        """Go on with every workflow that another process left unfinished. Returns their ids."""
        pending = DBOS.list_workflows(status=["PENDING"], name=WORKFLOW, load_input=False)
        left = [status for status in pending if status.executor_id != DBOS.executor_id]
        for status in left:
            DBOS.resume_workflow(status.workflow_id, queue_name=QUEUE)
        return tuple(status.workflow_id for status in left)

    def go_on(self, begin_again: Callable[[Incident], Incident]) -> tuple[IncidentId, ...]:
        """Take up what was stopped; returns those that go on. Raises what stopped them where it still does."""
        taken = []
        for name in tuple(self.stopped):
            incident = self.store.load(name)
            if incident.finished:
                self.stopped.pop(name, None)
            # What goes on takes itself out, perhaps while those before it were looked at. What could be recorded last
            # is that it failed, or nothing.
            elif name in self.stopped and name not in self._taken_up:
                if self.ensure(incident, begin_again) != "begun":
                    self.store.save(incident)
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

    # -- the workflow ----------------------------------------------------------------------------------------

    def _walk(self, request: Recorded) -> str:
        """The workflow: deterministic, so that a resumed run takes the same path through recorded results. While it
        waits it holds the incident packed."""
        held = records.repacked(request)
        name = records.unpacked(held).box or self.flow.start
        waited_s, stopped = 0.0, 0
        while name != END:
            box = self.flow.boxes[name]
            decided, by = self._decide(box, held) if box.acts else (None, "")
            record = decided or DBOS.run_step({"name": name}, self._run_box, name, held, by)
            if record["bug"]:
                return "bug"
            if why := record.get("stopped", ""):
                stopped += 1
                if stopped >= _MOST_STOPPED:
                    handed = DBOS.run_step({"name": f"{name}.to_a_person"}, self._to_a_person, name, held, why)
                    held, name, stopped = records.changed(held, handed["incident"]), handed["box"], 0
                continue
            if record["unavailable"]:
                if waited_s >= self.policy.unavailable_patience_s:
                    DBOS.run_step({"name": f"{name}.give_up"}, self._give_up, held, record["unavailable"])
                    return "interrupted"
                pause_s = min(30.0, 1.0 + waited_s / 2)
                waited_s += pause_s
                self._wait(pause_s)
                continue
            waited_s, stopped = 0.0, 0
            if record["incident"]:
                held = records.changed(held, record["incident"])
            following = self.flow.after(name, record["outcome"])
            if following == name:
                self._wait(record["poll_s"])
            name = following
        return records.unpacked(held).state.value

    def _wait(self, seconds: float) -> None:
        """The library's own wait is until a time of day: with that set back, a run that is taken up again would wait
        for as long. This one begins anew then; it has the library's name, as earlier versions recorded it."""
        if seconds > 0:
            DBOS.run_step({"name": "DBOS.sleep"}, self.clock.sleep, seconds)

    def _decide(self, box: Box, held: Packed) -> tuple[BoxRecord | None, str]:
        """(None, who said yes): go ahead; nobody's yes means that the box may look and not act. Else the record of a
        box that was planned only or declined, or whose question could not be put."""
        policy, topic = self._asked_of(box, held)
        if policy is Policy.APPLY:
            return None, _BY_POLICY
        asked = DBOS.run_step({"name": f"{box.name}.propose"}, self._propose, box.name, held)
        if asked["unavailable"] or asked["bug"] or asked.get("stopped"):
            unasked = BoxRecord(outcome="", incident="", poll_s=0, unavailable=asked["unavailable"], bug=asked["bug"])
            unasked["stopped"] = asked.get("stopped", "")
            return unasked, ""
        if not asked["sentence"]:
            return None, ""
        if policy is Policy.PLAN:
            return DBOS.run_step(
                {"name": f"{box.name}.planned"}, self._not_done, box.name, held, asked, "planned", ""
            ), ""
        answer: Answer | None = DBOS.recv(topic, timeout_seconds=self.policy.approval_limit_s)
        if answer is not None and answer["yes"]:
            DBOS.run_step({"name": f"{box.name}.approved"}, self._go_on, held)
            return None, answer["by"]
        by = answer["by"] if answer else NOBODY
        return DBOS.run_step(
            {"name": f"{box.name}.declined"}, self._not_done, box.name, held, asked, "declined", by
        ), ""

    def _asked_of(self, box: Box, held: Packed) -> tuple[Policy, str]:
        """What an incident allows, and the topic of the answer for a box."""
        incident = records.unpacked(held)
        self._hold(incident, held)
        return incident.policy, approval_topic(incident, box.name)

    # -- recorded steps --------------------------------------------------------------------------------------

    def _run_box(self, name: str, held: Packed, by: str) -> BoxRecord:
        """`by`: who said yes; "" for an acting box means that nobody was asked, so that it may only look."""
        box = self.flow.boxes[name]
        incident = before = records.unpacked(held)
        self._hold(before, held)
        try:
            incident = self._entered(box, before)
            context = self._context(incident)
            if box.acts and not by:
                context = replace(context, ports=read_only_ports(context.ports))
            result = self.boxes.run(box, context)
            return self._left(box, _signed(result, len(incident.acts), by), before, held)
        except Unavailable as error:
            # A full disk as well: nothing of this box was recorded, and it is safe to run again.
            self.watcher.line(incident.id, f"{error.what}; trying again")
            return BoxRecord(outcome="", incident="", poll_s=0, unavailable=str(error), bug="")
        except BoxStopped as error:
            self.watcher.line(incident.id, error.what)
            return BoxRecord(outcome="", incident="", poll_s=0, unavailable="", bug="", stopped=str(error))
        except RunbookError as error:
            return self._stopped(incident, str(error))
        except BoxFault as fault:
            return self._stopped(incident, "", fault.trace)
        except Exception:
            return self._stopped(incident, "", traceback.format_exc())

    def _propose(self, name: str, held: Packed) -> Asked:
        box, incident = self.flow.boxes[name], records.unpacked(held)
        try:
            proposal = self.boxes.propose(box, self._context(incident))
            if proposal is not None and incident.policy is Policy.APPROVE:
                asking = replace(
                    self._entered(box, incident), state=IncidentState.AWAITING_APPROVAL, awaiting=proposal.sentence
                )
                self.store.save(asking)
                self.watcher.asked(asking, proposal)
                self.tell(incident, asking)
        except Unavailable as error:
            self.watcher.line(incident.id, f"{error.what}; trying again")
            return Asked(sentence="", what="", target="", token="", unavailable=str(error), bug="")
        except BoxStopped as error:
            self.watcher.line(incident.id, error.what)
            return Asked(sentence="", what="", target="", token="", unavailable="", bug="", stopped=str(error))
        except RunbookError as error:
            stopped = self._stopped(self._entered(box, incident), str(error))
            return Asked(sentence="", what="", target="", token="", unavailable="", bug=stopped["bug"])
        if proposal is None:
            return Asked(sentence="", what="", target="", token="", unavailable="", bug="")
        return Asked(
            sentence=proposal.sentence,
            what=proposal.what,
            target=proposal.target,
            token=proposal.token,
            unavailable="",
            bug="",
        )

    def _go_on(self, held: Packed) -> None:
        incident = replace(records.unpacked(held), state=IncidentState.RUNNING, awaiting="", updated_s=self.clock.now())
        self.store.save(incident)

    def _not_done(self, name: str, held: Packed, asked: Asked, outcome: str, by: str) -> BoxRecord:
        """A box that acts, passed without acting: only planned, or a person said no."""
        box, before = self.flow.boxes[name], records.unpacked(held)
        incident = self._entered(box, before)
        now = self.clock.now()
        would = f"would {asked['sentence']}"
        act = Act(
            asked["what"], asked["target"], now, token=asked["token"], result=outcome, planned_only=True, approved_by=""
        )
        incident = replace(incident, acts=(*incident.acts, act), awaiting="", state=IncidentState.RUNNING)
        following = self.flow.after(name, outcome)
        if outcome == "planned" and following in self.flow.boxes and self.flow.boxes[following].closes:
            by_hand = " Submit the patched template yourself." if incident.trigger == "files" else f" The tool {would}."
            conclusion = f"Planned only, nothing was touched.{by_hand}"
            incident = replace(incident, state=IncidentState.PLANNED, conclusion=conclusion)
        if outcome == "declined":
            incident = replace(incident, conclusion=f"Declined ({by}): {asked['sentence']}.")
        result = StepResult(outcome, incident, would if outcome == "planned" else declined(by))
        return self._left(box, result, before, held)

    def _give_up(self, held: Packed, why: str) -> None:
        incident = records.unpacked(held)
        what, *rest = (line.strip() for line in why.splitlines())
        conclusion, mended = f"Interrupted: {what}.", f"Mend that, then `runbook resume {incident.id}`."
        stopped = replace(
            incident,
            state=IncidentState.INTERRUPTED,
            conclusion=conclusion,
            to_do=(*(line[6:] for line in rest if line.startswith("next: ")), mended),
            updated_s=self.clock.now(),
        )
        self.store.save(stopped)
        self.watcher.line(incident.id, conclusion)
        self.tell(incident, stopped)

    def _to_a_person(self, name: str, held: Packed, why: str) -> Handed:
        """A box that was ended as often as it was tried: it is not tried again, and a person is told what ended it."""
        box, before = self.flow.boxes[name], records.unpacked(held)
        what, *rest = (line.strip() for line in why.splitlines())
        told = f"Stopped at {name}, which was tried {_MOST_STOPPED} times: {what}."
        to_do = tuple(line.removeprefix("next: ") for line in rest)
        incident = self._entered(box, before)
        incident = replace(incident, conclusion=told, to_do=tuple(dict.fromkeys((*to_do, *incident.to_do))))
        now = self.clock.now()
        visit = replace(incident.visits[-1], summary=what, ended_s=now, outcome=STOPPED)
        incident = replace(incident, visits=(*incident.visits[:-1], visit), updated_s=now)
        following = self.flow.person if name != self.flow.person and not box.closes else ""
        if following:
            incident = replace(incident, box=following)
        else:
            incident = replace(incident, state=IncidentState.ESCALATED, closed_s=now)
            self.draw(incident)
        self.store.save(incident)
        self.watcher.left(box, visit, incident)
        self.tell(before, incident)
        return Handed(incident=records.changes(held, incident), box=following or END)

    # -- helpers ---------------------------------------------------------------------------------------------

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

    def _context(self, incident: Incident) -> StepContext:
        return self.context_of(incident, lambda text: self.watcher.line(incident.id, text))

    def _entered(self, box: Box, incident: Incident) -> Incident:
        """The incident as saved while the box runs. A box that waits goes on with its own visit."""
        now = self.clock.now()
        visits = incident.visits
        again = bool(visits) and visits[-1].box == box.name and not visits[-1].outcome
        if not again:
            visits = (*visits, BoxVisit(box.name, attempt=len(incident.attempts), started_s=now))
        # A box after the verdict (promote, report) leaves the verdict as it is.
        state = incident.state if incident.state.ended else IncidentState.RUNNING
        incident = replace(incident, visits=visits, box=box.name, updated_s=now, state=state, awaiting="")
        if not again:
            self.store.save(incident)
            self.watcher.entered(box, incident)
        return incident

    def _left(self, box: Box, result: StepResult, before: Incident, held: Packed) -> BoxRecord:
        now = self.clock.now()
        incident = result.incident
        following = self.flow.after(box.name, result.outcome)
        waiting = following == box.name
        visit = replace(incident.visits[-1], summary=result.summary)
        if not waiting:
            visit = replace(visit, ended_s=now, outcome=str(result.outcome))
        incident = replace(incident, visits=(*incident.visits[:-1], visit), updated_s=now)
        stored = incident if following == END or waiting else replace(incident, box=following)
        if following == END:  # the page first: once the incident is stored as closed, nobody comes back to draw it
            self.draw(incident)
        moved = not waiting or self._changed(incident, before)
        if moved or visit.summary != before.visits[-1].summary:  # progress: for those who look on
            self.store.save(stored)
        self.watcher.left(box, visit, incident) if not waiting else self.watcher.line(incident.id, result.summary)
        self.tell(before, incident)
        told: Recorded = records.changes(held, incident) if moved else ""
        return BoxRecord(outcome=str(result.outcome), incident=told, poll_s=result.poll_s, unavailable="", bug="")

    @staticmethod
    def _changed(incident: Incident, old: Incident) -> bool:
        """Whether anything but the clock and the line of progress moved."""
        return replace(incident, visits=(), updated_s=0.0, box="", state=old.state) != replace(
            old, visits=(), updated_s=0.0, box=""
        ) or len(incident.visits) != len(old.visits)

    def _stopped(self, incident: Incident, why: str, trace: str = "") -> BoxRecord:
        """A box that cannot go on: the incident is kept, and says what to do."""
        if trace:
            self.context_of(incident, lambda _text: None).ports.folder.write_file(
                incident.id, "crash.txt", trace.encode("utf-8", "backslashreplace")
            )
            why = f"a fault of this tool in {incident.box}: {trace.strip().splitlines()[-1]} (crash.txt has the whole)"
        lines = why.splitlines()
        stopped = replace(
            incident,
            state=IncidentState.INTERRUPTED,
            conclusion=f"Stopped at {incident.box}: {lines[0]}.",
            to_do=(*(line.strip() for line in lines[1:]), f"Then `runbook resume {incident.id}`."),
            updated_s=self.clock.now(),
        )
        self.store.save(stopped)
        self.watcher.line(incident.id, stopped.conclusion)
        self.tell(incident, stopped)
        return BoxRecord(outcome="", incident="", poll_s=0, unavailable="", bug=why)


def _signed(result: StepResult, acts_before: int, by: str) -> StepResult:
    """The result with the name of whoever said yes on the acts that it adds."""
    acts = result.incident.acts
    fresh = tuple(replace(act, approved_by=act.approved_by or by) for act in acts[acts_before:])
    return replace(result, incident=replace(result.incident, acts=(*acts[:acts_before], *fresh))) if fresh else result


def workflow_id(incident: Incident) -> str:
    """The incident's id, with the number of the run from the second on."""
    return incident.id if incident.run == 1 else f"{incident.id}~{incident.run}"


def approval_topic(incident: Incident, box: str) -> str:
    """One topic an act: an answer given to one question cannot approve another."""
    return f"{box}:{len(incident.visits)}"
