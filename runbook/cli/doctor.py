"""`runbook doctor`: can the tool do its work here? Each check says what it found and what to do."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import click

from runbook.adapters.delivery import service_of
from runbook.adapters.driver import DriverLock
from runbook.adapters.whole_file import Wrong, mend, wrong_in
from runbook.cli.daemon_seen import at_work_elsewhere
from runbook.cli.sign_in import shown_to_anybody, ways_in
from runbook.cli.wiring import Application, application, targets_of
from runbook.config import find_inventory
from runbook.errors import RunbookError
from runbook.model.node import Reach
from runbook.model.units import NodeName, Unknown
from runbook.report.vocabulary.clean import clean


class Mark(StrEnum):
    GOOD = "ok"
    WARNING = "warning"
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Found:
    mark: Mark
    what: str
    next_step: str = ""


def doctor(node: str | None, mending: bool, inventory: str | None) -> int:
    """`runbook doctor`."""
    click.echo(f"inventory: {find_inventory(inventory)}")
    app = application(inventory)
    worst = Mark.GOOD
    for title, check in (
        ("state folder", _state),
        ("rights", lambda a: _rights(a, mending)),
        ("playbooks", _playbooks),
        ("scheduler", _scheduler),
        ("acting as owners", _identity),
        ("reading apart", _cage),
        ("nodes", lambda a: _nodes(a, node)),
        ("pages", _pages),
        ("notifications", _notifications),
        ("daemon", _daemon),
    ):
        for found in _guarded(check, app):
            click.echo(f"{found.mark.value:>8}  {title}: {clean(found.what)}")
            if found.next_step:
                click.echo(f"{'':>8}  → {clean(found.next_step)}")
            if found.mark is Mark.BAD or (found.mark is Mark.WARNING and worst is Mark.GOOD):
                worst = found.mark
    return 0 if worst is not Mark.BAD else 6


def _guarded(check: Callable[[Application], Iterator[Found]], app: Application) -> Iterator[Found]:
    try:
        yield from check(app)
    except RunbookError as error:
        where = f" ({error.where})" if error.where else ""
        yield Found(Mark.BAD, error.what + where, error.next_step)


def _state(app: Application) -> Iterator[Found]:
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


def _rights(app: Application, mending: bool) -> Iterator[Found]:
    """Whether what the tool has made is private, and everything is whose it should be."""
    spool = app.inventory.spool_folder
    try:
        found = list(wrong_in(app.state, apart=spool))
    except OSError as error:
        what = f"{error.filename}: {(error.strerror or str(error)).lower()}"
        yield Found(Mark.BAD, what, "run as the folder's owner")
        return
    if spool.is_dir() and spool.stat().st_mode & 0o002:
        yield Found(Mark.BAD, f"anybody can write into {spool}", f"chmod o-rwx {spool} (deploy/slurm/README.md)")
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
    if mending or (sys.stdin.isatty() and click.confirm(f"take others' rights to {len(ours)} of them?")):
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


def _playbooks(app: Application) -> Iterator[Found]:
    flow, playbook = app.flow, app.playbook
    yield Found(Mark.GOOD, f"{len(flow.boxes)} boxes, {len(playbook.signatures.all)} signatures, documents are sound")


def _cage(app: Application) -> Iterator[Found]:
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


def _pages(app: Application) -> Iterator[Found]:
    listen = app.inventory.reports.listen
    if warning := shown_to_anybody(app, listen):
        yield Found(Mark.WARNING, warning, "add sign_in, or let reports.listen be 127.0.0.1")
    elif app.inventory.sign_in is None:
        yield Found(Mark.GOOD, f"on {listen}, without sign-in: whoever reaches it looks, nobody acts")
    else:
        tokens, proxy = ways_in(app)
        ways = [name for name, way in (("tokens", tokens), ("a proxy", proxy)) if way is not None]
        yield Found(Mark.GOOD, f"on {listen}, sign-in by {' and '.join(ways)}")


def _notifications(app: Application) -> Iterator[Found]:
    """Whether the addresses are understood. Nothing is sent."""
    targets = targets_of(app.inventory.notify)
    if not targets:
        yield Found(Mark.GOOD, "nobody is told (notify of the inventory)")
    for target in targets:
        services = [service_of(address.replace("{owner}", "owner")) for address in target.addresses()]
        unknown = services.count(None)
        if unknown or not services:
            what = f"{unknown} of {len(services)} addresses are not understood" if services else "no address"
            yield Found(Mark.BAD, f"{target.name}: {what}", "docs/notifications.md; `runbook notify test` sends one")
            continue
        named = ", ".join(dict.fromkeys(service or "" for service in services))
        yield Found(Mark.GOOD, f"{target.name}: {named}; {', '.join(target.severities)}")


def _scheduler(app: Application) -> Iterator[Found]:
    yield Found(Mark.GOOD, app.scheduler.describe())
    nodes = app.scheduler.nodes()
    yield Found(Mark.GOOD, f"nodes: {', '.join(state.name for state in nodes[:8])}")
    ours = [state.name for state in nodes if state.token]
    if ours:
        yield Found(
            Mark.WARNING, f"drained by this tool: {', '.join(ours)}", "runbook rollback INCIDENT --undrain when mended"
        )


def _identity(app: Application) -> Iterator[Found]:
    name = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:
        yield Found(Mark.GOOD, "runs as root, acts as each job's owner")
    elif app.inventory.scheduler.kind == "local":
        yield Found(Mark.GOOD, f"runs as {name}, and so do its jobs")
    else:
        yield Found(
            Mark.WARNING,
            f"runs as {name}: jobs of others need a sudoers line",
            f"{name} ALL=(OWNERS) NOPASSWD: ALL, or run as root; own jobs work without",
        )


_TO_REACH = {
    Reach.HOST_KEY: "put the node's key, from a place you trust, into known_hosts or nodes.known_hosts_file",
    Reach.AUTHENTICATION: "set nodes.user and nodes.key_file, and let the node know the key's public half",
    Reach.REFUSED: "see whether sshd runs there, and whether nodes.port is right",
}


def _nodes(app: Application, wanted: str | None) -> Iterator[Found]:
    if app.inventory.nodes.kind == "none":
        yield Found(Mark.WARNING, "the inventory reaches no nodes: every node check is unknown", "set nodes.kind: ssh")
        return
    names = [state.name for state in app.scheduler.nodes()]
    node = NodeName(wanted) if wanted else (names[0] if names else None)
    if node is None:
        yield Found(Mark.WARNING, "the scheduler names no node", "name one with --node")
        return
    facts = app.nodes.check(node, since_s=None, until_s=None)
    if facts.reach is not Reach.OK:
        yield Found(
            Mark.BAD,
            f"{node}: {facts.reach.value}: {facts.reach_detail}",
            _TO_REACH.get(facts.reach, "ssh there by hand with the inventory's key and known_hosts file"),
        )
        return
    if isinstance(facts.gpus, Unknown):
        yield Found(Mark.WARNING, f"{node} answers; GPUs unknown: {facts.gpus.unknown}", "a check says `unknown` there")
    else:
        kind = " (simulated)" if facts.simulated else ""
        yield Found(Mark.GOOD, f"{node} answers, {len(facts.gpus)} GPUs{kind}")
    if isinstance(facts.xids, Unknown):
        yield Found(
            Mark.WARNING,
            f"{node}: kernel log unknown: {facts.xids.unknown}",
            "let the ssh user read it (kernel.dmesg_restrict, or the adm group)",
        )


def _daemon(app: Application) -> Iterator[Found]:
    if app.inventory.database:
        yield from _daemons(app)
        return
    lock = DriverLock(app.state, "doctor")
    if lock.take():
        lock.release()
        spool = app.inventory.spool_folder
        waiting = len([n for n in os.listdir(spool) if n.endswith(".event")]) if os.path.isdir(spool) else 0  # noqa: PTH208, PTH112
        if waiting:
            yield Found(Mark.WARNING, f"not running, and {waiting} events wait in {spool}", "runbook serve")
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
