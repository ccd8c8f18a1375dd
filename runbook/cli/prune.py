"""`runbook prune`: what of closed incidents goes by the inventory's `keep`, shown before it goes. The daemon does the
same by itself, a little at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dbos import DBOSClient

from runbook.adapters.driver.lease_tables import LEASE_S
from runbook.adapters.store.keep import Going, Held, Remover, measure, plan
from runbook.adapters.store.totals import Key, figures_of
from runbook.cli.say import echo
from runbook.cli.wiring import Application, application
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, size
from runbook.report.summary import IncidentSummary, summarize
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.report.vocabulary.titles import counted
from runbook.slurm.ownership import new_claim

_ENDED = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
"""Of workflows, in the library's words: none of them is taken up again."""
_WORKFLOWS_AT_ONCE = 200
_CLOSED_FOR_S = 600.0
"""So long after an incident was closed what the workflow database holds of it goes."""
_SHOWN = 10
_LOCK_S = 5.0
PRUNING = "another process is at it, the daemon or another `runbook prune`"


@dataclass(frozen=True, slots=True)
class Look:
    """What lies there, and what has to go."""

    held: tuple[Held, ...]
    going: tuple[Going, ...]
    left: tuple[tuple[str, str], ...]
    """Incidents that would go and stay, each with the reason."""
    unreadable: tuple[str, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(one.evidence_bytes + one.other_bytes for one in self.held)


@dataclass(frozen=True, slots=True)
class Gone:
    going: tuple[Going, ...]
    workflows: int
    more: bool
    """There is more to do than one turn does."""


def prune(dry_run: bool, as_json: bool, inventory: str | None) -> int:
    """`runbook prune`."""
    app = application(inventory)
    check_owner(app)
    look = look_at(app)
    if not as_json:
        for line in _lines(app, look):
            echo(line)
    gone = Gone((), 0, False)
    if not dry_run:
        gone = remove(app, look)
    if as_json:
        echo(json.dumps(_document(app, look, gone, dry_run=dry_run), indent=1))
    elif not dry_run:
        echo(f"removed: {in_words(gone.going)}; {counted(gone.workflows, 'ended workflow')}")
    return 0


def check_owner(app: Application) -> None:
    """Raises `NotAllowed` for anybody but the user that the state folder belongs to; `NotFound` where there is none."""
    folder = app.inventory.state_folder
    try:
        owner = folder.stat().st_uid
    except OSError as error:
        raise NotFound(
            "there is no state folder", where=str(folder), next_step="name its inventory with --inventory"
        ) from error
    if owner != os.geteuid():
        # Root as well: what it wrote there the daemon could not read.
        name = str(owner)
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(owner).pw_name
        raise NotAllowed(
            f"the stored incidents belong to {name}, and only that user removes any",
            where=str(folder), next_step=f"run it as {name}: sudo -u {name} runbook prune",
        )


def look_at(app: Application, most_asked: int | None = None) -> Look:
    """What lies there, and what has to go by the inventory's `keep`. Removes nothing. `most_asked`: after so many
    questions to the scheduler the rest stays for now."""
    rows, unreadable = app.read_model.overview()
    held = {row.id: one for row in rows if (one := _held(app, row)) is not None}
    asked = _Asked(app, most_asked)
    known: set[str] = set()
    while True:
        going = plan(tuple(held.values()), app.inventory.keep, app.clock.now())
        new = [one.held for one in going if one.whole and one.held.name not in known]
        known.update(one.name for one in new)
        found = {one.name: why for one in new if (why := asked.needed(one.name))}
        if not found:
            break
        # What cannot go is no help against too much: it is chosen again without those.
        for name, why in found.items():
            held[IncidentId(name)] = replace(held[IncidentId(name)], needed=why)
    left = [(one.name, one.strange or one.needed) for one in held.values() if one.strange or one.needed]
    return Look(tuple(held.values()), going, tuple(left), unreadable)


def _held(app: Application, row: IncidentSummary) -> Held | None:
    stamp = app.store.stamp(row.id)
    if stamp is None:
        return None
    evidence, other, strange = measure(app.store, row.id)
    closed_s = row.closed_s if row.state.ended else None
    return Held(row.id, stamp, row.owner, closed_s, evidence, other, strange)


@dataclass
class _Asked:
    """Why the whole of an incident cannot go, though its evidence may."""

    app: Application
    most: int | None
    silent: str = ""
    """The scheduler did not answer, or was asked often enough: it is not asked again for each incident."""
    asked: int = 0

    def needed(self, name: str) -> str:
        """"" where nothing needs it any more."""
        if self.silent:
            return self.silent
        try:
            incident = self.app.store.load(IncidentId(name))
        except RunbookError as error:
            return error.what
        if not incident.finished:
            return "it is open"
        if incident.drained_nodes:
            return f"it drained {', '.join(incident.drained_nodes)}, which `runbook rollback --undrain` gives back"
        if incident.cluster != self.app.inventory.cluster:
            return f"it is of {incident.cluster}, and its relaunches cannot be asked for here"
        try:
            return self._runs(incident) or self._claimed(incident)
        except Unavailable as error:
            self.silent = f"whether its relaunch runs is not known: {error.what}"
            return self.silent
        except RunbookError as error:
            return f"whether its relaunch runs is not known: {error.what}"

    def _runs(self, incident: Incident) -> str:
        for job in dict.fromkeys(attempt.job for attempt in incident.attempts if attempt.job):
            self._count()
            with contextlib.suppress(NotFound):
                if not self.app.scheduler.job(job).state.job_class.ended:
                    # Its configuration may lie in the incident's folder, and its end belongs to the incident.
                    return f"its relaunched job {job} has not ended"
        return ""

    def _claimed(self, incident: Incident) -> str:
        """A relaunch that was written down, and whose submission nobody has recorded."""
        number = len(incident.attempts) + 1
        original = incident.original or incident.failure
        try:
            kept = json.loads(self.app.store.read_file(incident.id, f"attempts/{number}/claim.json"))
        except NotFound:
            return ""
        except ValueError:
            return "what was written down of a relaunch cannot be read"
        if original is None:
            return "a relaunch was begun, and its job is not known"
        self._count()
        claim = new_claim(incident.id, number, original.job, kept["written_s"])
        found = self.app.scheduler.find_submitted(replace(claim, token=kept["token"]))
        return f"job {found[0]} carries its mark" if found else ""


    def _count(self) -> None:
        if self.most is not None and self.asked >= self.most:
            raise Unavailable("it is asked in a later turn")
        self.asked += 1


def remove(app: Application, look: Look, most: int | None = None) -> Gone:
    """Remove what goes, `most` incidents of it, and what the workflow database still holds of incidents that were
    closed long ago. Raises `Unavailable`."""
    with app.alone("prune", _LOCK_S, PRUNING):
        remover = Remover(app.store, lambda name: _figures(app, name))
        remover.finish()
        now = look.going if most is None else look.going[:most]
        gone = remover.remove(now)
        for one in gone:
            if one.whole and app.inventory.database:
                app.lease.forget(IncidentId(one.held.name))
            if not one.whole:
                with contextlib.suppress(RunbookError):
                    app.draw(app.store.load(IncidentId(one.held.name)))
        left = look.stored_bytes - sum(one.size_bytes for one in gone)
        workflows = forget_workflows(app, most)
        remover.ended(app.clock.now(), left)
    full = most is not None and workflows >= _WORKFLOWS_AT_ONCE
    return Gone(gone, workflows, len(now) < len(look.going) or full)


def _figures(app: Application, name: str) -> dict[Key, int]:
    return dict(figures_of(summarize(app.store.load(IncidentId(name)))))


def forget_workflows(app: Application, most: int | None) -> int:
    """Delete the engine's records of runs that have ended, of incidents that are closed or gone: nothing takes them up
    again, and `incident.json` says all that they do. Returns how many."""
    file = app.state / "workflows.sqlite"
    if not app.inventory.database and not (file.is_file() and file.stat().st_size):
        return 0
    before_s = app.clock.now() - _CLOSED_FOR_S
    closed = {row.id: row.closed_s for row in app.read_model.rows()}
    unreadable = set(app.read_model.overview()[1])
    forgotten, start = 0, 0
    client = None
    try:
        client = DBOSClient(
            system_database_url=app.database_url, retry_connection_errors=False,
            sys_db_idle_transaction_timeout_sec=LEASE_S,
        )
        while True:
            found = client.list_workflows(
                workflow_id_prefix=f"{app.flow.id}-{app.inventory.cluster}-", status=list(_ENDED),
                end_time=_iso(before_s), limit=_WORKFLOWS_AT_ONCE, offset=start, load_input=False, load_output=False,
            )
            names = []
            for status in found:
                incident = status.workflow_id.partition("~")[0]
                closed_s = closed.get(IncidentId(incident), 0.0)
                if closed_s is not None and closed_s < before_s and incident not in unreadable:
                    names.append(status.workflow_id)
            if names:
                client.delete_workflows(names)
            forgotten += len(names)
            start += len(found) - len(names)
            if len(found) < _WORKFLOWS_AT_ONCE or (most is not None and forgotten >= _WORKFLOWS_AT_ONCE):
                return forgotten
    except Exception as error:
        # Its text may hold the address with the password.
        raise Unavailable(
            f"the workflow database does not answer ({type(error).__name__})",
            next_step="what had to go of the incidents is gone; try again",
        ) from error
    finally:
        if client is not None:
            client.destroy()


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


# By itself, in the daemon.

LOG = logging.getLogger("runbook")
_FIRST_S = 60.0
_TURN_S = 3600.0
_MOST_A_TURN = 50
_MOST_ASKED = 100


def keep_pruning(app: Application, stop: threading.Event) -> None:
    """A turn an hour, of so many incidents at most; the next comes in a minute where there is more. What the workflow
    database holds of closed incidents goes each minute. Never raises."""
    due_s = 0.0
    while not stop.wait(_FIRST_S):
        try:
            check_owner(app)
            if time.monotonic() < due_s:
                forget_workflows(app, _WORKFLOWS_AT_ONCE)
                continue
            due_s = time.monotonic() + _TURN_S
            gone = remove(app, look_at(app, _MOST_ASKED), _MOST_A_TURN)
            if gone.going or gone.workflows:
                LOG.info("kept too long or too much, and removed: %s; %s", in_words(gone.going),
                         counted(gone.workflows, "ended workflow"))
            if gone.more:
                due_s = 0.0
        except RunbookError as error:
            LOG.warning("stored incidents could not be pruned: %s", error)
        except Exception:
            LOG.exception("stored incidents could not be pruned")


# What is shown.


def in_words(going: Sequence[Going]) -> str:
    whole, evidence = sum(one.whole for one in going), sum(not one.whole for one in going)
    took = size(sum(one.size_bytes for one in going))
    return f"{counted(whole, 'whole incident')}, the kept logs of {evidence} more, {took}"


def _by_owner(look: Look) -> list[tuple[str, int, list[Going]]]:
    """Owner, what lies here of theirs, and what goes of it; whose most goes, first."""
    stored: dict[str, int] = defaultdict(int)
    going: dict[str, list[Going]] = defaultdict(list)
    for held in look.held:
        stored[held.owner] += held.evidence_bytes + held.other_bytes
    for one in look.going:
        going[one.held.owner].append(one)
    return sorted(
        ((owner, stored[owner], theirs) for owner, theirs in going.items()),
        key=lambda row: (-sum(one.size_bytes for one in row[2]), row[0]),
    )


def _lines(app: Application, look: Look) -> Iterator[str]:
    keep = app.inventory.keep
    yield f"stored: {size(look.stored_bytes)} of at most {keep.total_gib:g} GiB, {counted(len(look.held), 'incident')}"
    yield f"goes: {in_words(look.going)}"
    for owner, stored, theirs in _by_owner(look):
        yield f"  {shorten(clean_line(owner), 40) or '(owner not known)'}: {in_words(theirs)}, of {size(stored)}"
    for name, why in look.left[:_SHOWN]:
        yield f"stays: {name}: {shorten(clean_line(why), 200)}"
    if len(look.left) > _SHOWN:
        yield f"stays: {len(look.left) - _SHOWN} more"
    for name in look.unreadable[:_SHOWN]:
        yield f"stays: {clean_line(name)}: its incident.json cannot be read"


def _document(app: Application, look: Look, gone: Gone, *, dry_run: bool) -> dict[str, Any]:
    def figures(going: Sequence[Going]) -> dict[str, int]:
        return {
            "incidents": sum(one.whole for one in going),
            "evidence_of": sum(not one.whole for one in going),
            "bytes": sum(one.size_bytes for one in going),
        }

    return {
        "version": 1,
        "removes": not dry_run,
        "keep": app.inventory.keep.model_dump(),
        "stored_bytes": look.stored_bytes,
        "going": figures(look.going),
        "by_owner": [
            {"owner": owner, "stored_bytes": stored, **figures(theirs)} for owner, stored, theirs in _by_owner(look)
        ],
        "incidents": [
            {"incident": one.held.name, "what": "all" if one.whole else "evidence", "why": str(one.why),
             "bytes": one.size_bytes}
            for one in look.going
        ],
        "stays": [{"incident": name, "why": why} for name, why in look.left],
        "removed": {**figures(gone.going), "workflows": gone.workflows},
    }
