"""Run an incident here, or follow it where it is run: the same lines on the terminal either way."""

from __future__ import annotations

import getpass
import time
import uuid
from dataclasses import replace
from functools import partial

from dbos import DBOS, DBOSClient

from runbook.adapters.driver.lease_tables import LEASE_S
from runbook.adapters.identity import current_identity
from runbook.adapters.store.records import packed
from runbook.adapters.store.workflow_database import dbos_config
from runbook.cli.incident.live import news, over, question_of, titles_of, versions
from runbook.cli.incident.terminal import Asked, QueueWatcher, View, mark_interrupted, until_ended
from runbook.cli.wiring import Application
from runbook.engine import QUEUE, WORKFLOW
from runbook.errors import Interrupted, Unavailable
from runbook.flow.walking import workflow_id
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId
from runbook.service.decisions import approval_topic_of
from runbook.triggers import Opened, Opening, again

_FOLLOW_S = 0.3


def bring_back(app: Application, opened: Opened, view: View, *, interactive: bool) -> Incident:
    """Work on an opened incident until it ends or waits for somebody else; returns it as it then stands."""
    incident = opened.incident
    if opened.opening is Opening.DONE:
        return incident
    app.check_room()
    with app.driver("command") as lock:
        told = False
        while not lock.take():
            holder = lock.holder()
            if holder is not None and holder.kind == "daemon":
                if opened.opening is Opening.JOIN and incident.state is IncidentState.INTERRUPTED:
                    incident = again(incident, policy=incident.policy, now_s=app.clock.now())
                    opened = Opened(Opening.AGAIN, incident)
                if opened.opening is not Opening.JOIN:
                    app.store.save(incident)
                    _enqueue(app, incident)
                return follow(app, incident, view, interactive=interactive)
            if not told:
                who = f" (pid {holder.pid}{f' on {holder.host}' if holder.host else ''})" if holder else ""
                view.heading(f"another runbook command{who} is at work here; this one goes on when it is done")
                told = True
            time.sleep(_FOLLOW_S)
            if opened.opening is Opening.JOIN and (current := app.store.load(incident.id)).finished:
                return current
        if told and app.store.exists(incident.id):
            # The command that was waited for may have gone on with this very incident.
            current = app.store.load(incident.id)
            if current.finished and current.run >= incident.run:
                return current
            if current.run >= incident.run:
                opened = Opened(Opening.JOIN, current)
        if opened.opening is not Opening.JOIN:
            app.store.save(opened.incident)
        return _drive(app, opened, view, interactive=interactive)


def _drive(app: Application, opened: Opened, view: View, *, interactive: bool) -> Incident:
    watcher = QueueWatcher()
    caged = _of_another(app, opened.incident)
    engine = app.engine(watcher, attended=interactive, boxes=app.cage if caged else None)
    engine.launch(app.database_url, executor=f"command-{uuid.uuid4().hex}")
    incident = opened.incident
    try:
        taken_up = opened.opening is Opening.JOIN and engine.take_up(incident)
        if opened.opening is Opening.JOIN and not taken_up:
            # Its process ended without a word in the workflow's record: one more run, from where it stood.
            incident = again(
                replace(incident, state=IncidentState.INTERRUPTED),
                policy=incident.policy,
                now_s=app.clock.now(),
            )
            app.store.save(incident)
            engine.start(incident)
        elif opened.opening is not Opening.JOIN:
            engine.start(incident)
        elif incident.awaiting:
            # The question was put by the process that died; it is asked once more, to the same workflow.
            waiting = replace(incident, state=IncidentState.AWAITING_APPROVAL)
            app.store.save(waiting)
            watcher.events.put(Asked(waiting, waiting.awaiting))
        failed = until_ended(
            lambda: engine.wait(workflow_id(incident)), watcher, view, send_answer if interactive else None
        )
        if failed is not None:
            raise Unavailable(
                f"the workflow stopped: {failed}", where=incident.id, next_step=f"runbook resume {incident.id}"
            ) from failed
        engine.close()
        return app.store.load(incident.id)
    except (KeyboardInterrupt, Interrupted):
        mark_interrupted(app, incident)
        raise Interrupted(f"interrupted; nothing is lost. Go on with `runbook resume {incident.id}`") from None
    finally:
        view.close()
        if caged:
            app.cage.close()


def _of_another(app: Application, incident: Incident) -> bool:
    """Whether the job is another user's: then what it left behind is not read in this process. What a person has of
    his own he reads here, without the seconds that the cage takes to start."""
    job = incident.failure.job if incident.failure is not None else app.scheduler.job(incident.root_job)
    return job.owner != current_identity().name


def send_answer(incident: Incident, yes: bool) -> None:
    """Answer in this process, which drives the incident."""
    DBOS.send(workflow_id(incident), {"yes": yes, "by": getpass.getuser()}, approval_topic_of(incident))


def answer_elsewhere(app: Application, incident: Incident, yes: bool) -> None:
    """Answer to whichever process drives the incident, now or later."""
    client = DBOSClient(system_database_url=app.database_url, sys_db_idle_transaction_timeout_sec=LEASE_S)
    try:
        topic = approval_topic_of(incident)
        client.send(
            workflow_id(incident),
            {"yes": yes, "by": getpass.getuser()},
            topic,
            idempotency_key=f"{workflow_id(incident)}:{topic}",
        )
    finally:
        client.destroy()


def _enqueue(app: Application, incident: Incident) -> None:
    config = dbos_config(app.database_url, "command")
    client = DBOSClient(system_database_url=app.database_url, sys_db_idle_transaction_timeout_sec=LEASE_S)
    try:
        if incident.run > 1:
            client.cancel_workflow(workflow_id(replace(incident, run=incident.run - 1)))
        client.enqueue(
            {
                "queue_name": QUEUE,
                "workflow_name": WORKFLOW,
                "workflow_id": workflow_id(incident),
                "app_version": config["application_version"],
            },
            packed(incident),
        )
    finally:
        client.destroy()


def follow(app: Application, incident: Incident, view: View, *, interactive: bool) -> Incident:
    """Draw an incident that another process drives, from what it stores; returns it once it is over, or waits for an
    answer that nobody here can give."""
    view.heading(f"{incident.id} is driven by the daemon; following")
    drawn = replace(incident, awaiting="")
    for current, _ in versions(app.store, incident.id):
        for event in news(drawn, current, titles_of(app.flow)):
            if not isinstance(event, Asked):
                view.draw(event)
            elif not interactive:
                return current
            else:
                still = partial(_still_asked, app, incident.id, question_of(current))
                if (answer := view.ask(event, still)) is not None:
                    answer_elsewhere(app, current, answer)
        if over(current):
            break
        drawn = current
    return current


def _still_asked(app: Application, incident: IncidentId, question: str) -> bool:
    return question_of(app.store.load(incident)) == question
