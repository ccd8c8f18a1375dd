"""`runbook approve`, `resume`, `promote`, `rollback`: what a person does with an incident."""

from __future__ import annotations

import getpass
import sys
from dataclasses import replace

from runbook.adapters.store import check_incident_id
from runbook.cli.incident import code_of
from runbook.cli.incident.terminal import View, is_interactive, policy_for
from runbook.cli.say import echo
from runbook.cli.wiring import Application, application
from runbook.errors import NotAllowed, NothingToDo
from runbook.locations import without_a_home
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.report.vocabulary.clean import clean_line
from runbook.triggers import Opened, Opening, again

_SETTLES_S = 30.0
"""Between the verdict and the report."""


def approve(incident: str, decline: bool, inventory: str | None) -> int:
    """`runbook approve`."""
    app = application(inventory)
    stored = _load(app, incident)
    if stored.state is not IncidentState.AWAITING_APPROVAL and not stored.awaiting:
        raise NothingToDo(
            f"{stored.id} waits for no approval: it is {stored.state.value}", next_step=f"runbook show {stored.id}"
        )
    with without_a_home():
        from runbook.cli.incident.drive import answer_elsewhere

    answer_elsewhere(app, stored, not decline)
    echo(f"{'no' if decline else 'yes'} to: {clean_line(stored.awaiting)}")
    lock = app.driver("command")
    if not lock.take():
        return 0
    lock.release()
    return _go_on(app, stored)


def resume(incident: str, plan: bool, yes: bool, inventory: str | None) -> int:
    """`runbook resume`."""
    app = application(inventory)
    stored = _load(app, incident)
    if stored.cluster != app.inventory.cluster:
        raise NotAllowed(
            f"{stored.id} is of {stored.cluster!r}, not of this inventory's cluster {app.inventory.cluster!r}",
            next_step="run `runbook oom --log … --template …` again"
            if stored.trigger == "files"
            else "name the inventory of its cluster with --inventory",
        )
    if stored.finished and stored.state is IncidentState.RECOVERED:
        echo(f"{stored.id} is recovered already: {stored.conclusion}", err=True)
        return 0
    if stored.finished:
        policy = policy_for(app.inventory.policy.mode, plan=plan, yes=yes, interactive=is_interactive())
        fresh = again(stored, policy=policy, now_s=app.clock.now())
        return _go_on(app, fresh, new_run=True)
    if plan or yes:
        policy = policy_for(app.inventory.policy.mode, plan=plan, yes=yes, interactive=is_interactive())
        if policy is not stored.policy:
            # A run keeps the policy that it was begun with; another policy is another run from the same box.
            fresh = again(replace(stored, state=IncidentState.INTERRUPTED), policy=policy, now_s=app.clock.now())
            return _go_on(app, fresh, new_run=True)
    return _go_on(app, stored)


def _go_on(app: Application, incident: Incident, *, new_run: bool = False) -> int:
    if app.inventory.policy.mode is Policy.PLAN and incident.policy is not Policy.PLAN:
        raise NotAllowed(
            f"this inventory only plans by now, and {incident.id} was begun under {incident.policy.value}",
            next_step=f"`runbook resume {incident.id} --plan`, or have policy.mode of the inventory changed",
        )
    view = View(sys.stderr)
    view.heading(f"runbook resume {incident.id} · at {incident.box or 'the start'} · policy {incident.policy.value}")
    app.policy = incident.policy
    opened = Opened(Opening.AGAIN if new_run else Opening.JOIN, incident)
    with without_a_home():
        from runbook.cli.incident.drive import bring_back

    ended = bring_back(app, opened, view, interactive=is_interactive())
    view.conclude(ended, str(app.store.folder(ended.id) / "report.html"))
    return code_of(ended)


def promote(incident: str, yes: bool, inventory: str | None) -> int:
    """`runbook promote`."""
    from runbook.steps.promote import promote as write_back

    app = application(inventory)
    stored = _settled(app, incident)
    if stored.promoted:
        raise NothingToDo(f"already promoted; the backup is {stored.promoted}")
    target = stored.original.job.command if stored.original else ""
    if not yes:
        if stored.patch is not None:
            echo(stored.patch.diff)
        _confirm(f"write this into {clean_line(target)}?")
    changed = write_back(app.context(stored))
    _save(app, changed)
    echo(clean_line(f"{target} changed; the old file is {changed.promoted}"))
    return 0


def rollback(incident: str, undrain: bool, yes: bool, inventory: str | None) -> int:
    """`runbook rollback`."""
    from runbook.service.decisions import check_undoable, evidence, undo, what_is_undone

    app = application(inventory)
    stored = _settled(app, incident)
    check_undoable(stored, undrain=undrain)
    if undrain and stored.drained_nodes:
        for line in evidence(stored, app.context):
            echo(line)
    if not yes:
        _confirm(" and ".join(what_is_undone(stored, undrain=undrain)) + "?")
    for done in undo(stored, app.context, lambda changed: _save(app, changed), undrain=undrain, by=getpass.getuser()):
        echo(done)
    return 0


def _load(app: Application, incident: str) -> Incident:
    stored: Incident = app.store.load(check_incident_id(incident))
    return stored


def _settled(app: Application, incident: str) -> Incident:
    """The incident once its report is written: whoever still works on it would write over what is changed here."""
    until_s = app.clock.elapsed() + _SETTLES_S
    while (stored := _load(app, incident)).state.ended and not stored.finished:
        if app.clock.elapsed() > until_s:
            raise NotAllowed(
                f"{stored.id} is still at work", next_step=f"try again, or `runbook resume {stored.id}` where nobody is"
            )
        app.clock.sleep(0.2)
    return stored


def _save(app: Application, incident: Incident) -> None:
    app.store.save(incident)
    app.draw(incident)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise NotAllowed("nobody can be asked here", next_step="add --yes")
    echo(f"{question} yes or no: ", nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NothingToDo("left as it is")
