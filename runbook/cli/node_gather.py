"""The facts of `runbook node`, as they come: nodes over the fan-out, the scheduler beside it, progress for a person."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from runbook.cli.say import clean_console, echo
from runbook.diagnosis.nodes import SchedulerView, judge_node, judge_node_alone
from runbook.errors import NotFound, RunbookError
from runbook.fan_out import check_many
from runbook.locations import playbook_folder
from runbook.model.catalogues import is_switch_event
from runbook.model.job import JobRecord, NodeState
from runbook.model.node import CheckedNode, FoundJob, JobStanding, NodeCheck, NodeFacts, XidWords
from runbook.model.node_rules import NodeDocuments
from runbook.model.units import NodeName, Unknown
from runbook.node.catalogues import load_node_documents
from runbook.steps.shared.nodes import found_jobs, job_window, live_jobs, node_policy, with_expected_gpus

if TYPE_CHECKING:
    from rich.status import Status

    from runbook.cli.wiring import Application

_QUIET_S = 2.0
"""Nothing is said of progress before, and without a terminal not more often."""
_TURN_S = 0.1
_NOT_ASKED = "the scheduler had not answered yet"


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Gathering:
    """One check. Whatever has come is kept, so that `judged` says what is known at any time.

    Nodes and scheduler are asked by threads of their own: an interrupt does not wait for a node that hangs."""

    def __init__(
        self, app: Application, names: tuple[NodeName, ...], job: JobRecord | None, since_s: float | None
    ) -> None:
        self._app, self._names, self._job = app, names, job
        self._since_s, self._until_s = (since_s, None) if job is None else job_window(job)
        if since_s is not None:
            self._since_s = since_s
        self._facts: dict[NodeName, NodeFacts] = {}
        self._states: tuple[NodeState, ...] = ()
        self._scheduler_unknown = _NOT_ASKED
        self._jobs: tuple[FoundJob, ...] = ()
        self._jobs_known = False
        self._answers: queue.Queue[Callable[[], None] | _Failed | None] = queue.Queue()

    def ask(self) -> None:
        """Ask all nodes and the scheduler, and wait for the answers. Tells how far it is, on standard error."""
        self._start(self._ask_nodes)
        self._start(self._ask_scheduler)
        progress = _Progress(len(self._names))
        running = 2
        try:
            while running:
                progress.tell(
                    [name for name in self._names if name not in self._facts], self._scheduler_unknown == _NOT_ASKED
                )
                with suppress(queue.Empty):
                    answer = self._answers.get(timeout=_TURN_S)
                    if isinstance(answer, _Failed):
                        raise answer.error
                    if answer is None:
                        running -= 1
                    else:
                        answer()
        finally:
            progress.close()

    def look_up_jobs(self) -> None:
        """Whether the jobs of the processes found there still run."""
        if self._scheduler_unknown:
            return
        found = found_jobs(self._app.scheduler, tuple(self._facts.values()))
        if self._app.inventory.scheduler.kind == "local":
            # That this machine's own scheduler knows no such job says nothing of Slurm's.
            found = tuple(
                FoundJob(one.id, JobStanding.UNKNOWN, "no job of the local scheduler")
                if one.standing is JobStanding.FORGOTTEN else one
                for one in found
            )
        self._jobs, self._jobs_known = found, True

    def judged(self) -> NodeCheck:
        """What is known by now, judged."""
        states = {state.name: state for state in self._states}
        expected = self._app.settings.nodes.gpus_per_node
        facts = with_expected_gpus(
            (self._facts[name] for name in self._names if name in self._facts), self._states, expected
        )
        live = live_jobs(self._jobs) if self._jobs_known else None
        policy, documents = node_policy(self._app.settings.policy), self._documents
        checked = []
        for fact in facts:
            state = states.get(fact.node)
            if self._job is None:
                judgement = judge_node_alone(
                    fact, documents, policy, since_s=self._since_s, scheduler=SchedulerView(live, state)
                )
            else:
                judgement = judge_node(fact, self._job, documents, policy, scheduler=SchedulerView(live, state))
            checked.append(CheckedNode(fact, judgement, state))
        return NodeCheck(
            nodes=tuple(checked),
            checked_at_s=time.time(),
            job=self._job.id if self._job is not None else None,
            job_state=self._job.state.name if self._job is not None else "",
            since_s=self._since_s,
            until_s=self._until_s,
            jobs=self._jobs,
            scheduler_unknown=self._scheduler_unknown,
            not_answered=tuple(name for name in self._names if name not in self._facts),
            xids=self._xid_words(facts),
            reports=documents.rules.reports_by_rule,
        )

    @cached_property
    def _documents(self) -> NodeDocuments:
        return load_node_documents(playbook_folder())

    def _xid_words(self, facts: tuple[NodeFacts, ...]) -> dict[int, XidWords]:
        events = (event for fact in facts if not isinstance(fact.xids, Unknown) for event in fact.xids)
        codes = sorted({event.code for event in events if not is_switch_event(event.line)})
        meanings = {code: self._documents.xids.meaning(code) for code in codes}
        return {code: XidWords(one.xid_class, one.title, one.action) for code, one in meanings.items()}

    def _start(self, work: Callable[[], None]) -> None:
        def worked() -> None:
            try:
                work()
            except BaseException as error:
                self._answers.put(_Failed(error))
            else:
                self._answers.put(None)

        # No daemons: the end of the command (`main`) then waits for no thread at all, and so not for a node that hangs.
        threading.Thread(target=worked, daemon=False).start()

    def _ask_nodes(self) -> None:
        def done(facts: NodeFacts) -> None:
            self._answers.put(lambda: self._facts.update({facts.node: facts}))

        check_many(
            self._app.nodes, self._names, since_s=self._since_s, until_s=self._until_s, on_done=done,
            limit=self._app.settings.nodes.fan_out,
        )

    def _ask_scheduler(self) -> None:
        states: tuple[NodeState, ...] = ()
        unknown = ""
        inventory = self._app.inventory
        if inventory.scheduler.kind == "local" and inventory.nodes.kind != "local":
            unknown = "the inventory names no Slurm (scheduler.kind)"
        else:
            try:
                states = self._states_of(self._names)
            except RunbookError as error:
                unknown = error.what

        def keep() -> None:
            self._states, self._scheduler_unknown = states, unknown

        self._answers.put(keep)

    def _states_of(self, names: tuple[NodeName, ...]) -> tuple[NodeState, ...]:
        """Of those that the scheduler knows: a person may name a node that it does not have."""
        scheduler = self._app.scheduler
        try:
            return scheduler.nodes(names)
        except NotFound:
            return tuple(state for state in scheduler.nodes() if state.name in names)


class _Progress:
    """How many nodes have answered, once that takes longer than a person waits without a word."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._started_s = self._told_s = time.monotonic()
        self._status: Status | None = None

    def tell(self, waiting: list[NodeName], for_scheduler: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s < _QUIET_S or not (waiting or for_scheduler):
            return
        text = _waiting_words(self._count, waiting)
        if not sys.stderr.isatty():
            if now_s - self._told_s >= _QUIET_S:
                self._told_s = now_s
                echo(f"runbook: {text}", err=True)
            return
        if self._status is None:
            self._status = clean_console(sys.stderr).status(Text(text), spinner="dots")
            self._status.start()
        else:
            self._status.update(text)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()


def _waiting_words(count: int, waiting: list[NodeName]) -> str:
    if not waiting:
        return "all nodes have answered; waiting for the scheduler"
    named = ", ".join(waiting[:4]) + (f" and {len(waiting) - 4} more" if len(waiting) > 4 else "")
    return f"{count - len(waiting)} of {count} nodes have answered; waiting for {named}"
