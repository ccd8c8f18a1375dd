"""`runbook serve`: the daemon. It reads the spool, drives incidents, and shows reports, metrics and health."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from runbook import __version__
from runbook.adapters.driver import DriverLock
from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.process import end_questions_with_us
from runbook.adapters.slurm.commands import SlurmOnNode
from runbook.adapters.store.workflow_database import DatabaseProbe
from runbook.adapters.whole_file import private_folder, process_lock
from runbook.cli.monitoring import box_figures, job_watch_of, labels_of, report_address, store_figures
from runbook.cli.prune import keep_pruning
from runbook.cli.say import CleanLines
from runbook.cli.sign_in import shown_to_anybody, ways_in
from runbook.cli.wiring import Application, application, flow_picture
from runbook.engine import Engine
from runbook.errors import RunbookError, Unavailable
from runbook.flow import Box
from runbook.model.incident import BoxVisit, Incident, IncidentState, Policy
from runbook.model.units import GIB, IncidentId, UserName
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.service.actions import Actions
from runbook.service.app import LOOPBACK_HOSTS, People, Shown, create_app
from runbook.service.auth import Signer, SignIn, session_key
from runbook.service.daemon import LATE_S, Daemon, Opener, ServiceStatus
from runbook.service.daemon.opening import Disk, Room, TakingUp, in_turn
from runbook.service.decisions import answer_here
from runbook.service.job_watch import memory_pattern
from runbook.service.serve import Turn, Watch
from runbook.service.serve import serve as run_until_stopped
from runbook.service.spool import SharedSpool, SpoolEvent, SpoolReader
from runbook.service.webhook import Webhook
from runbook.steps.shared.base import Proposal
from runbook.triggers import Opening, again

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from runbook.adapters.driver.lease import DriverLease

    Driver = DriverLock | DriverLease
    from runbook.adapters.store.read_model import ReadModel


LOG = logging.getLogger("runbook")
_ROLLBACK_WAIT_S = 60.0
_MOST_BEGUN = 1024
"""Incidents that are begun: most wait, for a job to run, for a person's yes, or until others have their diagnosis. Each
has a thread then; one that is not begun has no place among those whose turn it is."""


class LogWatcher:
    """What happens, one line of the log each."""

    def entered(self, box: Box, incident: Incident) -> None:
        LOG.debug("%s: %s", incident.id, box.name)

    def left(self, box: Box, visit: BoxVisit, incident: Incident) -> None:
        LOG.info("%s: %s: %s: %s", incident.id, box.name, visit.outcome, shorten(clean_line(visit.summary), 400))

    def line(self, incident: IncidentId, text: str) -> None:
        LOG.debug("%s: %s", incident, shorten(clean_line(text), 400))

    def asked(self, incident: Incident, proposal: Proposal) -> None:
        LOG.warning("%s waits for a yes: %s (runbook approve %s)", incident.id, proposal.sentence, incident.id)


def serve(listen: str | None, port: int | None, verbose: bool, inventory: str | None) -> int:
    """`runbook serve`."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(CleanLines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[lines], level=logging.DEBUG if verbose else logging.INFO)
    for name in ("paramiko", "fabric", "invoke", "asyncio", "mcp"):
        logging.getLogger(name).setLevel(logging.ERROR)
    app = application(inventory)
    app.apart = True
    where = Where(listen or app.inventory.reports.listen, app.inventory.reports.port if port is None else port)
    end_questions_with_us()
    with app.driver("daemon") as driver:
        # What is wrong with the sign-in or the spool is said before anything is taken up.
        sign_in, spool = _sign_in_of(app), _spool_of(app)
        if warning := shown_to_anybody(app, where.listen):
            LOG.warning("%s", warning)
        if isinstance(driver, DriverLock):
            _take_lock(app, driver)
        # Started before any thread of the service, and before anything that a job left behind is read.
        kept = app.cage.walls()
        try:
            LOG.info("what jobs left behind is read apart, %s", kept.there)
            if kept.missing:
                LOG.warning("this machine does not give the cage %s: see docs/trust.md", " or ".join(kept.missing))
            if isinstance(driver, DriverLock) or _its_turn(app, driver, where, sign_in, spool):
                _drive(app, driver, where, sign_in, spool)
        finally:
            app.cage.close()
    return 0


@dataclass(frozen=True, slots=True)
class Where:
    """Where the web server listens."""

    listen: str
    port: int


def _take_lock(app: Application, lock: DriverLock) -> None:
    if not lock.take():
        holder = lock.holder()
        raise Unavailable(
            f"another runbook ({holder.kind}, pid {holder.pid}) drives this database"
            if holder
            else "another runbook drives this database",
            where=str(app.state),
            next_step="stop it, or wait until it is done; for two daemons see docs/two-daemons.md",
        )


def _its_turn(
    app: Application, lease: DriverLease, where: Where, sign_in: SignIn | None, spool: SpoolReader | SharedSpool
) -> bool:
    """Show pages, health and figures until the lease is ours. False: it was told to stop before."""
    turn = Turn(lambda: lease.take() or _waits(lease, spool))
    started_s = time.time()

    def figures() -> ServiceFigures:
        now_s = time.time()
        return ServiceFigures(
            now_s=now_s, version=__version__, driver_alive=False, heartbeat_s=turn.looked_s or started_s,
            waiting=_waiting(lease), drives=False,
        )

    def health() -> Mapping[str, Any]:
        alive = time.time() - (turn.looked_s or started_s) < LATE_S
        return {
            "ok": alive and not turn.problem, "drives": False, "problem": turn.problem,
            "uptime_s": round(time.time() - started_s, 3), **_seen(lease),
        }

    if _may_take(turn):
        return True
    threading.Thread(target=_read_all, args=(app.read_model,), name="read-model", daemon=True).start()
    metrics = IncidentMetrics(None, Labels(app.inventory.cluster), figures)
    web = create_app(
        Shown(app.store, app.read_model, partial(flow_picture, app.flow), health, metrics.text),
        hosts=_hosts(app),
        people=People(sign_in) if sign_in else None,
        more_routes=_programs_routes(app, sign_in, spool),
    )
    told = run_until_stopped(
        web, turn, where.listen, where.port,
        lambda address: LOG.info("waiting until no other drives; pages and health at %s", address),
    )
    if turn.fault is not None:
        raise turn.fault
    return not told and lease.held


def _waits(lease: DriverLease, spool: SpoolReader | SharedSpool) -> bool:
    """Nothing is left lying while another one drives; nobody's turn is ours by that."""
    holder = lease.holder()
    if isinstance(spool, SharedSpool) and holder is not None and holder.kind == "daemon":
        spool.hand_over(str(holder))
    return False


def _may_take(turn: Turn) -> bool:
    """Whether the first look is enough, so that nothing has to be shown meanwhile."""
    taken = turn.look()
    if turn.fault is not None:
        raise turn.fault
    return taken


def _seen(lease: DriverLease) -> dict[str, Any]:
    """Who drives and who waits, for /healthz; words are for those who are signed in."""
    try:
        seen = lease.seen()
    except Unavailable as error:
        return {"database": error.what}
    return {
        "driver": str(seen.holder or ""), "lease_left_s": round(seen.left_s, 3), "waiting_daemons": len(seen.waiting),
        "waiting": "; ".join(map(str, seen.waiting)),
    }


def _waiting(lease: DriverLease) -> int | None:
    try:
        return len(lease.seen().waiting)
    except Unavailable:
        return None


def _drive(
    app: Application, driver: Driver, where: Where, sign_in: SignIn | None, spool: SpoolReader | SharedSpool
) -> None:
    """Work on incidents until told to stop."""
    lease = None if isinstance(driver, DriverLock) else driver
    stopped = threading.Event()
    woken = threading.Event()

    def leave(event: SpoolEvent) -> None:
        spool.write(event)
        woken.set()

    watch_of_jobs = job_watch_of(app, leave)
    engine = app.engine(LogWatcher(), boxes=app.cage)
    engine.launch(
        app.database_url, executor=f"daemon-{socket.gethostname()}-{os.getpid()}-{int(time.time())}",
        queue_concurrency=_MOST_BEGUN,
    )
    try:
        if lease is not None and isinstance(spool, SharedSpool):
            spool.drive(str(lease.here))
        # In the loop's first round: reading what is there may take longer than anybody should wait for an answer.
        taking_up = cache(partial(_taking_up, app, engine))
        # Without its database nothing is driven, however well the loop comes round.
        status = ServiceStatus(
            started_s=time.time(), driver_alive=DatabaseProbe(engine.ask_database).answers,
            at_work=app.cage.at_work, waiting=lambda: app.cage.waiting, places=app.inventory.workers,
            given_up=app.file_systems.waiting, stopped=lambda: engine.stopped,
        )
        if watch_of_jobs is not None:
            status.watch = lambda: watch_of_jobs.problem
            threading.Thread(target=watch_of_jobs.run, name="job-watch", daemon=True).start()
        most_of_one = round(app.inventory.keep.owner_gib * GIB)
        room = Room(engine.held, app.read_model.stored, lambda: Disk(*app.store.disk()), most_of_one)

        def each_round() -> None:
            app.cage.crowd(room.crowded())
            try:
                taking_up().some()
            finally:
                go_on(app, engine)

        opener = _opener_of(app, room)
        daemon = Daemon(
            spool, lambda event: _open(app, engine, opener, event), app.clock, status,
            go_on=each_round, woken=woken,
        )

        def figures() -> ServiceFigures:
            return ServiceFigures(
                now_s=time.time(), version=__version__,
                driver_alive=status.driver_alive() and not status.stopped(),
                heartbeat_s=status.last_scan_s, spool_depth=status.spool_depth,
                spool_oldest_s=status.spool_oldest_s,
                spool_readable=not status.spool_problem,
                spool_bad=status.spool_bad,
                events_opened=status.events_opened,
                events_held=sum(status.held.values()),
                boxes=box_figures(status.at_work()),
                boxes_waiting=status.waiting(),
                reads_given_up=app.file_systems.left,
                notifications=app.notify.figures(),
                waiting=_waiting(lease) if lease is not None else None,
                store=store_figures(app),
                watch=watch_of_jobs.figures if watch_of_jobs is not None else None,
            )

        def health() -> Mapping[str, Any]:
            shared = {"drives": True, **_seen(lease)} if lease is not None else {}
            return {**status.document(time.time()), **shared}

        labels = labels_of(app, report_address(app.inventory, where.listen, where.port))
        metrics = IncidentMetrics(app.read_model, labels, figures, app.clock.now)
        people = _people_of(app, sign_in) if sign_in else None
        # After an upgrade every incident is read once, which nobody should wait for.
        threading.Thread(target=_read_all, args=(app.read_model,), name="read-model", daemon=True).start()
        pictures = partial(flow_picture, app.flow)
        web = create_app(
            Shown(app.store, app.read_model, pictures, health, metrics.text),
            hosts=_hosts(app),
            people=people,
            more_routes=_programs_routes(app, sign_in, spool),
        )
        upkeep = threading.Thread(target=keep_pruning, args=(app, stopped), name="keep", daemon=True)
        upkeep.start()
        watch = watch_of(app, engine, status)
        if watch is not None:
            watch.start()
        run_until_stopped(
            web,
            daemon,
            where.listen,
            where.port,
            lambda address: LOG.info("reports and metrics at %s", address),
        )
    finally:
        stopped.set()
        if watch_of_jobs is not None:
            watch_of_jobs.stop()
        engine.close()


def _read_all(incidents: ReadModel) -> None:
    try:
        incidents.all()
    except RunbookError as error:
        LOG.warning("earlier incidents could not be read: %s", error.what)


def _open(app: Application, engine: Engine, opener: Opener, event: SpoolEvent) -> str:
    """Open or join, durably: the event is only forgotten once its workflow is on the queue."""
    opened = opener.decide(event)
    incident = opened.incident
    if opened.opening is Opening.DONE:
        return "done before"
    if opened.opening is Opening.JOIN:
        return _work_on(app, engine, incident)
    if opened.opening is Opening.NEW:
        app.cage.tell_owner(incident.id, opened.owner)
    app.store.save(incident)
    LOG.info("%s: opened for job %s, told by %s", incident.id, incident.root_job, event.alert or event.trigger)
    engine.enqueue(incident)
    return opened.opening.value


def _work_on(app: Application, engine: Engine, incident: Incident) -> str:
    """See to it that an open incident is worked on, whatever became of its workflow."""
    if app.settings.policy.mode is not Policy.PLAN or incident.policy is Policy.PLAN:
        return engine.ensure(incident, lambda left: _again(app, left))
    # The inventory was changed to planning only: what was allowed before is not any more.
    incident = _again(app, incident)
    app.store.save(incident)
    engine.enqueue(incident)
    return "begun"


def _again(app: Application, incident: Incident) -> Incident:
    """One more run from where it stopped, never with more leave than the inventory gives today."""
    policy = Policy.PLAN if app.settings.policy.mode is Policy.PLAN else incident.policy
    stopped = replace(incident, state=IncidentState.INTERRUPTED)
    return again(stopped, policy=policy, now_s=app.clock.now())


def go_on(app: Application, engine: Engine) -> None:
    """Take up what stopped as nothing could be recorded of it. Raises what still stops it."""
    for incident in engine.go_on(lambda left: _again(app, left)):
        LOG.info("%s: taken up again", incident)


def _taking_up(app: Application, engine: Engine) -> TakingUp:
    """Incidents that an earlier daemon or command left open, whatever became of their workflows."""
    sizes = app.read_model.sizes()
    rows = [row for row in reversed(app.read_model.rows()) if row.closed_s is None]

    def take_up(name: IncidentId) -> None:
        if (incident := app.store.load(name)).finished or incident.trigger == "files":
            return  # of files: a command works on it by itself, and the scheduler here knows nothing of it
        engine.rising.add(name)
        _work_on(app, engine, incident)
        if engine.holds(name):
            engine.rising.discard(name)
        LOG.info("%s: taken up", name)

    left = in_turn((UserName(row.owner), row.id, sizes.get(row.id, 0)) for row in rows)
    return TakingUp(left, engine.rising, take_up, engine.adopt)


def _spool_of(app: Application) -> SpoolReader | SharedSpool:
    folder = _spool_folder(app)
    return SharedSpool(folder, app.state / "handed-over") if app.inventory.database else SpoolReader(folder)


def _spool_folder(app: Application) -> Path:
    folder = app.inventory.spool_folder
    if folder.parent == app.state and not folder.exists():
        # Nobody else writes there: it is ours to make, as the state folder is.
        private_folder(folder, 0o700)
    if not folder.is_dir():
        raise Unavailable(
            "there is no spool folder",
            where=str(folder),
            next_step="make it, writable for Slurm's user (deploy/slurm/README.md), or set paths.spool",
        )
    return folder


def _hosts(app: Application) -> tuple[str, ...]:
    """Names that a request may ask for: loopback's, the address that is listened on, and the one in links."""
    reports = app.inventory.reports
    listen = "" if reports.listen in ("0.0.0.0", "::") else reports.listen  # noqa: S104  (compared, not bound)
    named = urlsplit(reports.url).hostname if reports.url else None
    return (*LOOPBACK_HOSTS, *(f"[{host}]" if ":" in host else host for host in (listen, named) if host))


def watch_of(app: Application, engine: Engine, status: ServiceStatus) -> Watch | None:
    """None where nobody is told."""
    if not app.notify.reaches:
        return None
    telling, database = app.telling(), DatabaseProbe(engine.ask_database)

    def awaiting() -> tuple[Incident, ...]:
        rows = [row for row in app.read_model.rows() if row.state is IncidentState.AWAITING_APPROVAL]
        return tuple(app.store.load(row.id) for row in rows)

    def troubles() -> dict[str, str]:
        found: dict[str, str] = {}
        if status.spool_problem:
            found["spool"] = f"the spool cannot be read: {status.spool_problem}"
        last_s = status.last_scan_s or status.started_s
        if app.clock.now() - last_s > LATE_S:
            found["loop"] = "the daemon's loop does not come round"
        if problem := database.problem() or next(iter(engine.stopped.values()), ""):
            found["workflow database"] = problem
        if late := status.late():
            found["boxes"] = f"boxes take too long ({'; '.join(str(one) for one in late)})"
        return found

    limit_s = app.settings.policy.approval_limit_s
    return Watch(
        app.inventory.cluster, app.notify, app.clock, troubles, awaiting,
        lambda incident: telling.remind(incident, limit_s),
    )


def _sign_in_of(app: Application) -> SignIn | None:
    """How people sign in; None where the inventory has no `sign_in`. Raises what is wrong with its files."""
    document = app.inventory.sign_in
    if document is None:
        return None
    tokens, proxy = ways_in(app)
    return SignIn(
        signer=Signer(session_key(app.state), document.session_hours * 3600),
        tokens=tokens,
        proxy=proxy,
        open_paths=frozenset(f"/{name}" for name in document.open),
        site_url=app.inventory.reports.url,
    )


def _people_of(app: Application, sign_in: SignIn) -> People:
    """The gate, and the acts behind it. The engine of this process has to be launched."""

    def save(incident: Incident) -> None:
        app.store.save(incident)
        app.draw(incident)

    def one_at_a_time(incident: IncidentId) -> AbstractContextManager[object]:
        return process_lock(app.state / "locks", f"rollback of {incident}", _ROLLBACK_WAIT_S)

    acts = Actions(
        store=app.store,
        sign_in=sign_in,
        policy=app.settings.policy.mode,
        answer=answer_here,
        context_of=app.context,
        save=save,
        alone=one_at_a_time,
    )
    return People(sign_in, acts)


def _programs_routes(app: Application, sign_in: SignIn | None, spool: SpoolReader | SharedSpool) -> Sequence[BaseRoute]:
    """Where there are tokens to know a program by: the alert webhook, and what assistants ask, if it is on."""
    if sign_in is None or sign_in.tokens is None:
        return ()
    webhook = Webhook(app.flow.id, app.inventory.cluster, app.inventory.webhook, spool, app.store).routes()
    if not app.inventory.mcp.over_http:
        return webhook
    from runbook.cli.mcp import mcp_routes

    return (*webhook, *mcp_routes(app.named, app.inventory))


def _opener_of(app: Application, room: Room | None = None) -> Opener:
    """Which incident an event belongs to."""
    document = app.inventory.scheduler
    on_node = None
    if document.kind != "local":
        on_node = SlurmOnNode(app.slurm_commands, app.clock)

    def begun() -> Mapping[UserName, int]:
        rows = (row for row in app.read_model.rows() if row.begun)
        return Counter(UserName(row.owner or app.cage.owner_told(row.id)) for row in rows)

    return Opener(
        app.scheduler, app.store, app.clock, app.flow.id, app.inventory.cluster, app.settings.policy.mode,
        jobs_on_node=on_node,
        files=app.files, quiet_s=app.inventory.webhook.quiet_s,
        words=memory_pattern(app.playbook.signatures), begun=begun, places=_MOST_BEGUN,
        crowded=room.crowded if room is not None else dict,
    )
