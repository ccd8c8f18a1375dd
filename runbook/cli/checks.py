"""What can be told of this machine and its cluster before anything happens: each check says what it found, and what a
person does about it. `runbook doctor` makes all of them, `runbook setup` those that its site needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import click

from runbook.adapters.delivery import Contact, Target, contact
from runbook.adapters.driver import DriverLock
from runbook.adapters.whole_file import Wrong, mend, wrong_in
from runbook.cli.daemon_seen import at_work_elsewhere
from runbook.cli.sign_in import shown_to_anybody, ways_in
from runbook.cli.wiring import Application, targets_of
from runbook.model.incident import About, Message, Severity
from runbook.report.vocabulary.clean import clean_line


class Mark(StrEnum):
    GOOD = "ok"
    WARNING = "warning"
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Found:
    mark: Mark
    what: str
    next_step: str = ""


def state_folder(app: Application) -> Iterator[Found]:
    folder = app.state
    free = os.statvfs(folder)
    free_gib = free.f_bavail * free.f_frsize / (1 << 30)
    text = f"{folder}, {free_gib:.1f} GiB free"
    if free_gib < 0.05:
        yield Found(Mark.BAD, text, "make room: nothing can be stored, so nothing will be done")
    elif free_gib < 1:
        yield Found(Mark.WARNING, text, "kept logs need room: up to 64 MiB each")
    else:
        yield Found(Mark.GOOD, text)
    waiting = [row for row in app.read_model.rows() if row.state == "interrupted"]
    if waiting:
        names = ", ".join(row.id for row in waiting[:5])
        yield Found(Mark.WARNING, f"interrupted: {names}", "runbook resume INCIDENT")


_MOST_TOLD = 10
"""Files of the same fault that are named one by one."""


def private_state(app: Application, mending: bool, *, asking: bool = True) -> Iterator[Found]:
    """Whether what the tool has made is private, and everything is whose it should be. Without `asking` nobody is asked
    whether to mend it."""
    try:
        found = list(wrong_in(app.state, apart=app.inventory.spool_folder))
    except OSError as error:
        what = f"{error.filename}: {(error.strerror or str(error)).lower()}"
        yield Found(Mark.BAD, what, "run as the folder's owner")
        return
    if not found:
        yield Found(Mark.GOOD, "what lies in the state folder is private")
        return
    for one in found[:_MOST_TOLD]:
        mark = Mark.WARNING if mending and one.mode is not None else Mark.BAD
        yield Found(mark, f"{one.path}: {one.why}", "" if one.mode is not None else "look who has put it there")
    if len(found) > _MOST_TOLD:
        yield Found(Mark.BAD, f"and {len(found) - _MOST_TOLD} more")
    ours = [one for one in found if one.mode is not None]
    if not ours:
        return
    if mending or (asking and sys.stdin.isatty() and click.confirm(f"take others' rights to {len(ours)} of them?")):
        yield from _mended(ours)
    else:
        yield Found(Mark.BAD, f"{len(ours)} can be mended", "runbook doctor --mend")


def _mended(wrong: list[Wrong]) -> Iterator[Found]:
    done = 0
    for one in wrong:
        try:
            mend(one)
            done += 1
        except OSError as error:
            yield Found(Mark.BAD, f"{one.path}: not mended: {(error.strerror or str(error)).lower()}")
    yield Found(Mark.GOOD, f"{done} mended; what others have read meanwhile stays read: change the secrets in it")


def playbooks(app: Application) -> Iterator[Found]:
    flow, playbook = app.flow, app.playbook
    yield Found(Mark.GOOD, f"{len(flow.boxes)} boxes, {len(playbook.signatures.all)} signatures, documents are sound")


def cage(app: Application) -> Iterator[Found]:
    """What keeps in the process that reads what jobs left behind, by starting it."""
    try:
        walls = app.cage.walls()
    finally:
        app.cage.close()
    there, missing = walls.there, walls.missing
    if missing:
        yield Found(
            Mark.WARNING, f"{there}; this machine does not give {' or '.join(missing)}",
            "docs/trust.md says what that costs; a kernel from 6.7 on with landlock in its `lsm=` gives both",
        )
    else:
        yield Found(Mark.GOOD, there)


def pages(app: Application) -> Iterator[Found]:
    listen = app.inventory.reports.listen
    if warning := shown_to_anybody(app, listen):
        yield Found(Mark.WARNING, warning, "add sign_in, or let reports.listen be 127.0.0.1")
    elif app.inventory.sign_in is None:
        yield Found(Mark.GOOD, f"on {listen}, without sign-in: whoever reaches it looks, nobody acts")
    else:
        tokens, proxy = ways_in(app)
        ways = [name for name, way in (("tokens", tokens), ("a proxy", proxy)) if way is not None]
        yield Found(Mark.GOOD, f"on {listen}, sign-in by {' and '.join(ways)}")


def notifications(app: Application, *, sending: bool = False) -> Iterator[Found]:
    """Whether the addresses are understood and their hosts take a connection. Nothing is sent unless `sending`."""
    targets = targets_of(app.inventory.notify)
    if not targets:
        yield Found(Mark.GOOD, "nobody is told (notify of the inventory)")
        return
    with ThreadPoolExecutor(_CONNECTIONS, "contact") as several:
        asked = [(one, [several.submit(contact, each, _CONNECT_S) for each in _examples(one)]) for one in targets]
        for target, addresses in asked:
            if sending:
                yield from _sent(app, target)
            else:
                yield _reached(target, [each.result() for each in addresses])


_CONNECTIONS = 16
_CONNECT_S = 3.0


def _examples(target: Target) -> tuple[str, ...]:
    return tuple(address.replace("{owner}", "owner") for address in target.addresses())


def _reached(target: Target, addresses: Sequence[Contact]) -> Found:
    unknown = sum(1 for one in addresses if not one.service)
    if unknown or not addresses:
        what = f"{unknown} of {len(addresses)} addresses are not understood" if addresses else "no address"
        return Found(Mark.BAD, f"{target.name}: {what}", "docs/notifications.md; `runbook notify test` sends one")
    if lost := [f"{one.service}: {one.problem}" for one in addresses if one.problem]:
        return Found(
            Mark.BAD, f"{target.name}: {'; '.join(lost)}",
            "see whether this machine may connect there (firewall, HTTPS_PROXY); `runbook doctor --send` sends one",
        )
    named = ", ".join(dict.fromkeys(one.service for one in addresses))
    known = "reached" if all(one.tried for one in addresses) else "only a message would tell whether it is reached"
    return Found(Mark.GOOD, f"{target.name}: {named}, {known}; hears {', '.join(target.severities)}")


def _sent(app: Application, target: Target) -> Iterator[Found]:
    message = Message(
        event="test", severity=Severity.INFO,
        title=f"test from {app.inventory.cluster}: nothing has happened",
        body="Somebody ran `runbook doctor --send`. No job is concerned and nothing is asked.",
        link=app.settings.reports.url, about=About(owner=""),
    )
    sent = app.notify.test(message, target.name)
    if not sent:
        yield Found(Mark.WARNING, f"{target.name}: no address without an owner", "runbook notify test --owner USER")
    for each in sent:
        if each.delivery.delivered:
            yield Found(Mark.GOOD, f"{target.name}: {each.delivery.service} took a message")
        else:
            yield Found(
                Mark.BAD, f"{target.name}: not delivered: {clean_line(each.delivery.reason)}",
                "check the address with its service, and that this machine reaches it",
            )


def daemon(app: Application) -> Iterator[Found]:
    if app.inventory.database:
        yield from _daemons(app)
        return
    lock = DriverLock(app.state, "doctor")
    if lock.take():
        lock.release()
        folder = app.inventory.spool_folder
        waiting = len(list(folder.glob("*.event"))) if os.access(folder, os.R_OK | os.X_OK) else 0
        if waiting:
            yield Found(Mark.WARNING, f"not running, and {waiting} events wait in {folder}", "runbook serve")
        else:
            yield Found(Mark.GOOD, "not running; commands drive their own incidents")
        return
    holder = lock.holder()
    who = f"{holder.kind}, pid {holder.pid}" if holder else "an unknown process"
    yield Found(Mark.GOOD, f"the database is driven by {who}")
    yield from _late(app)


def _daemons(app: Application) -> Iterator[Found]:
    """Who drives and who would take over, as the database has it."""
    seen = app.lease.seen()
    waiting = ", ".join(f"pid {one.pid} on {one.host}" for one in seen.waiting)
    if seen.holder is None and not waiting:
        yield Found(Mark.GOOD, "none is running; commands drive their own incidents")
    elif seen.holder is None:
        yield Found(Mark.WARNING, f"none drives at this moment; waiting: {waiting}", "ask again in half a minute")
    else:
        yield Found(Mark.GOOD, f"the database is driven by {seen.holder}, for {seen.left_s:.0f} s more unless renewed")
        others = f"waiting to take over: {waiting}" if waiting else "no other daemon waits to take over"
        yield Found(Mark.GOOD, f"{others} (docs/two-daemons.md)")
        yield from _late(app)


def _late(app: Application) -> Iterator[Found]:
    for one in at_work_elsewhere(app):
        if one.late:
            yield Found(
                Mark.WARNING, f"at work for too long: {one}",
                f"runbook show {one.incident}; docs/alerts.md, RunbookBoxLate, says what to look at",
            )
