"""The walk through a flow: box by box, each asked for leave where it acts; what a box came to is recorded by whoever
keeps the ledger, so that a walk which was broken off goes on where it stood.

A box that died half way runs again when the incident is resumed; every act therefore looks for its own token
before it acts. Nothing outside is touched from the walk itself: it only goes from box to box.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from runbook.adapters.store import records
from runbook.adapters.store.records import Answer, Asked, BoxRecord, Handed, Packed, Recorded
from runbook.config import PolicyDocument
from runbook.errors import BoxFault, BoxStopped, RunbookError, Unavailable
from runbook.flow import END, Box, Boxes, Flow, Here
from runbook.model.incident import NOBODY, Act, BoxVisit, Incident, IncidentState, Policy, declined
from runbook.model.units import IncidentId
from runbook.ports import Clock
from runbook.steps.shared.base import Proposal, StepContext, StepResult, read_only_ports
from runbook.steps.shared.holding import still_held

_Result = TypeVar("_Result")

STOPPED = "stopped"
"""The outcome of a box that was ended as often as it was tried."""
_MOST_STOPPED = 2
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


class Ledger(Protocol):
    """Where it is kept what the walk came to."""

    def step(self, name: str, does: Callable[..., _Result], *arguments: object) -> _Result:
        """What it returned, now or when this step of this walk was done before."""

    def answer(self, topic: str, limit_s: float) -> Answer | None:
        """A person's, once it is there; None after the limit."""


class NoLedger:
    """For a walk that can as well be begun anew: of files alone, where nothing is done outside and nobody is asked."""

    def step(self, name: str, does: Callable[..., _Result], *arguments: object) -> _Result:
        return does(*arguments)

    def answer(self, topic: str, limit_s: float) -> Answer | None:
        return None


@dataclass
class Walk:
    """Walks one flow over incidents."""

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
    hold: Callable[[Incident, Packed], None] = lambda _incident, _held: None
    """Told of what is held of an incident, once its run is where it was left, or further."""

    def run(self, held: Packed, ledger: Ledger) -> str:
        """Until the incident's end. Deterministic, so that a run that is resumed takes the same path through what is
        recorded. While it waits it holds the incident packed. Returns the state that it ended in."""
        name = records.unpacked(held).box or self.flow.start
        waited_s, stopped = 0.0, 0
        while name != END:
            box = self.flow.boxes[name]
            decided, by = self._decide(box, held, ledger) if box.acts else (None, "")
            record = decided or ledger.step(name, self._run_box, name, held, by)
            if record["bug"]:
                return "bug"
            if why := record.get("stopped", ""):
                stopped += 1
                if stopped >= _MOST_STOPPED:
                    handed = ledger.step(f"{name}.to_a_person", self._to_a_person, name, held, why)
                    held, name, stopped = records.changed(held, handed["incident"]), handed["box"], 0
                continue
            if record["unavailable"]:
                if waited_s >= self.policy.unavailable_patience_s:
                    ledger.step(f"{name}.give_up", self._give_up, held, record["unavailable"])
                    return "interrupted"
                pause_s = min(30.0, 1.0 + waited_s / 2)
                waited_s += pause_s
                self._wait(pause_s, ledger)
                continue
            waited_s, stopped = 0.0, 0
            if record["incident"]:
                held = records.changed(held, record["incident"])
            following = self.flow.after(name, record["outcome"])
            if following == name:
                self._wait(record["poll_s"], ledger)
            name = following
        return records.unpacked(held).state.value

    def _wait(self, seconds: float, ledger: Ledger) -> None:
        """The library's own wait is until a time of day: with that set back, a run that is taken up again would wait
        for as long. This one begins anew then; it has the library's name, as earlier versions recorded it."""
        if seconds > 0:
            ledger.step("DBOS.sleep", self.clock.sleep, seconds)

    def _decide(self, box: Box, held: Packed, ledger: Ledger) -> tuple[BoxRecord | None, str]:
        """(None, who said yes): go ahead; nobody's yes means that the box may look and not act. Else the record of a
        box that was planned only or declined, or whose question could not be put."""
        policy, topic = self._asked_of(box, held)
        if policy is Policy.APPLY:
            return None, _BY_POLICY
        asked = ledger.step(f"{box.name}.propose", self._propose, box.name, held)
        if asked["unavailable"] or asked["bug"] or asked.get("stopped"):
            unasked = BoxRecord(outcome="", incident="", poll_s=0, unavailable=asked["unavailable"], bug=asked["bug"])
            unasked["stopped"] = asked.get("stopped", "")
            return unasked, ""
        if not asked["sentence"]:
            return None, ""
        if policy is Policy.PLAN:
            return ledger.step(f"{box.name}.planned", self._not_done, box.name, held, asked, "planned", ""), ""
        answer: Answer | None = ledger.answer(topic, self.policy.approval_limit_s)
        if answer is not None and answer["yes"]:
            ledger.step(f"{box.name}.approved", self._go_on, held)
            return None, answer["by"]
        by = answer["by"] if answer else NOBODY
        return ledger.step(f"{box.name}.declined", self._not_done, box.name, held, asked, "declined", by), ""

    def _asked_of(self, box: Box, held: Packed) -> tuple[Policy, str]:
        """What an incident allows, and the topic of the answer for a box."""
        incident = records.unpacked(held)
        self.hold(incident, held)
        return incident.policy, approval_topic(incident, box.name)

    # -- recorded steps --------------------------------------------------------------------------------------

    def _run_box(self, name: str, held: Packed, by: str) -> BoxRecord:
        """`by`: who said yes; "" for an acting box means that nobody was asked, so that it may only look."""
        box = self.flow.boxes[name]
        incident = before = records.unpacked(held)
        self.hold(before, held)
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
            to_do=(*(line[6:] for line in rest if line.startswith("next: ")), *self._to_let_go(incident), mended),
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
        following = self.flow.person if name != self.flow.person and not box.closes else ""
        left = () if following else self._to_let_go(incident)
        incident = replace(incident, conclusion=told, to_do=tuple(dict.fromkeys((*to_do, *left, *incident.to_do))))
        now = self.clock.now()
        visit = replace(incident.visits[-1], summary=what, ended_s=now, outcome=STOPPED)
        incident = replace(incident, visits=(*incident.visits[:-1], visit), updated_s=now)
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

    def _to_let_go(self, incident: Incident) -> tuple[str, ...]:
        try:
            held = still_held(self._context(incident).ports.folder, incident)
        except RunbookError:  # what stopped it, most likely
            return ()
        is_held = "is held for this incident, and released at its end"
        return tuple(f"Job {job} {is_held}: `scontrol release {job}` lets it start again as it was." for job in held)

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
            to_do=(
                *(line.strip() for line in lines[1:]),
                *self._to_let_go(incident),
                f"Then `runbook resume {incident.id}`.",
            ),
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


def incident_of_workflow(workflow: str) -> IncidentId:
    """Whose run it is, by what `workflow_id` made."""
    return IncidentId(workflow.partition("~")[0])


def approval_topic(incident: Incident, box: str) -> str:
    """One topic an act: an answer given to one question cannot approve another."""
    return f"{box}:{len(incident.visits)}"
