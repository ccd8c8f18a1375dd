"""`runbook canary`: submits tiny jobs that fail, as an ordinary user, and shows which part of the chain works here.

Where no daemon drives, it does itself what a daemon would, in a state folder of its own, so that nothing of it counts
among the site's incidents; where one does, the daemon is watched at its work.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook import __version__
from runbook.adapters.identity import Identity, current_identity, identity_of
from runbook.adapters.process import Command
from runbook.adapters.whole_file import private_file, private_folder
from runbook.cli.daemon_seen import daemon_drives
from runbook.cli.first_hour import canary_chain, heading, say
from runbook.cli.first_hour.canary_chain import Link, Seen, Works
from runbook.cli.first_hour.canary_jobs import PREFIX, TRIALS, Place, Trial, make_place
from runbook.cli.incident.drive import answer_elsewhere, bring_back
from runbook.cli.incident.terminal import View
from runbook.cli.say import echo
from runbook.cli.slurm_checks import slurm_config
from runbook.cli.wiring import Application, application
from runbook.config import Inventory, NotifyDocument
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.incident import Incident, Policy
from runbook.model.job import Claim, JobClass, JobRecord
from runbook.model.units import JobId, UserName
from runbook.slurm.ownership import submitted_under
from runbook.slurm.site import SlurmConfig
from runbook.triggers import Opened, Opening, Terms, incident_id, open_for

_POLL_S = 0.5
_EVENT_S = 10.0
"""After a job's end, for its epilog."""
_LEAST_S = 10.0
"""For an incident, where hardly any time is left."""
_STILL_S = 2.0
_ENDS_S = 30.0
"""A job with a failure in its log that has not ended by then hangs."""
_FAILED = b"OutOfMemoryError"


def canary(
    as_user: str, folder: str, only: tuple[str, ...], plan: bool, limit: float, as_json: bool, inventory: str | None
) -> int:
    """`runbook canary`."""
    app = application(inventory)
    mode = app.inventory.policy.mode
    watched = daemon_drives(app)
    if watched and plan and mode is not Policy.PLAN:
        raise BadInput(
            f"the daemon acts by its inventory's policy, which is {mode.value}", where="--plan",
            next_step="stop the daemon (this command acts in its place then), or leave --plan out",
        )
    policy = mode if watched else Policy.PLAN if plan or mode is Policy.PLAN else Policy.APPLY
    owner = _owner_of(as_user, app)
    slurm = app.inventory.scheduler.kind != "local"
    config = slurm_config(app) if slurm else SlurmConfig()
    run = _Run(app if watched else _apart(app), app, owner, policy, config, watched, time.monotonic() + limit)
    if not as_json:
        who = "the daemon acts, and is watched" if watched else "no daemon runs, so this command acts in its place"
        if watched and mode is Policy.APPROVE:
            who += "; what it asks about these jobs is answered no"
        elif policy is not mode:
            who += f" and asks nobody (the inventory's policy is {mode.value})"
        say(f"runbook canary · cluster {app.inventory.cluster} · as {owner.name} · policy {policy.value} · {who}")
    place: Place | None = None
    try:
        place = make_place(owner, folder, slurm=slurm)
        chosen = [trial for trial in TRIALS if trial.name in only] if only else list(TRIALS)
        seen = run.all(chosen, place, lambda text: None if as_json else say(text, first="  "))
    except BaseException:
        for problem in run.clean(place):
            echo(f"left behind: {problem}", err=True)
        raise
    problems = run.clean(place)
    chain = canary_chain.links(seen, run.surroundings())
    document = _document(run, seen, chain, problems)
    if as_json:
        echo(json.dumps(document, indent=2))
    else:
        _tell(run, seen, chain, problems)
    return 0 if all(one.works is not Works.NO for one in chain) else 6


def _owner_of(as_user: str, app: Application) -> Identity:
    if as_user:
        if app.inventory.scheduler.kind == "local" and as_user != current_identity().name:
            raise BadInput("local jobs run as whoever starts them", where="--as", next_step="leave --as out")
        return identity_of(UserName(as_user))
    if os.geteuid() == 0 and app.inventory.scheduler.kind != "local":
        raise BadInput("root's jobs would prove little", next_step="name an ordinary user with --as USER")
    return current_identity()


def _apart(app: Application) -> Application:
    """The same, with a state folder that holds the last canary and nothing else. No node is drained, and nobody is told
    of an incident that is none. Raises `NotAllowed` where another canary runs."""
    folder = app.state / "canary"
    lock = app.state / "canary.lock"
    private_file(lock)
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # until this process ends
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NotAllowed("another canary runs here", where=str(folder), next_step="wait for its end") from None
    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    given = app.inventory
    paths = given.paths.model_copy(update={"state": str(folder), "spool": str(given.spool_folder)})
    verify = given.policy.verify.model_copy(update={"longest_poll_s": 1.0})
    policy = given.policy.model_copy(update={
        "verify": verify, "wait_for_tenant_hours": 0.0, "may_drain": False,
        "may_promote": False, "may_end_leaked_processes": False, "unavailable_patience_s": 10.0, "max_relaunches": 1,
    })  # fmt: skip
    quiet = {"notify": NotifyDocument(), "reports": given.reports.model_copy(update={"url": ""})}
    return Application(given.model_copy(update={"paths": paths, "database": "", "policy": policy, **quiet}))


def _within(given: Inventory, limit_s: float) -> Inventory:
    """The same, with so long for an incident."""
    hours = max(limit_s, _LEAST_S) / 3600
    verify = given.policy.verify.model_copy(update={"limit_hours": hours})
    policy = given.policy.model_copy(update={"verify": verify, "wait_for_spare_hours": hours})
    return given.model_copy(update={"policy": policy})


@dataclass
class _Run:
    """One run of the canary."""

    app: Application
    """Whose incidents are looked at: of its own, or the site's."""
    site: Application
    owner: Identity
    policy: Policy
    config: SlurmConfig
    watched: bool
    """A daemon acts."""
    until_s: float
    jobs: list[JobId] = field(default_factory=list)
    unseen: dict[str, Claim] = field(default_factory=dict)
    """By job name: what was handed to sbatch, and which job it became is not known."""
    without_job: set[str] = field(default_factory=set)
    """Those of which sbatch said that they became none."""

    def all(self, trials: list[Trial], place: Place, tell: Callable[[str], None]) -> list[Seen]:
        """Submit them together, then follow each to its end."""
        began_s = time.monotonic()
        submitted: list[tuple[Trial, JobId]] = []
        seen: list[Seen] = []
        for trial in trials:
            if trial.on_host and (self.config.kills_at_memory_limit is False or not self._slurm):
                seen.append(Seen(trial, skipped="nothing here holds a job to its --mem"))
                continue
            submitted.append((trial, self._submit(trial, place)))
        for trial, job in submitted:
            seen.append(self._follow(trial, job))
            tell(f"{trial.name}: job {job}: {canary_chain.sentence(seen[-1])} ({time.monotonic() - began_s:.0f} s)")
        return seen

    @property
    def _slurm(self) -> bool:
        return self.site.inventory.scheduler.kind != "local"

    def _submit(self, trial: Trial, place: Place) -> JobId:
        script = f"{place.folder}/{trial.name}.sbatch"
        if not self._slurm:
            # The relaunch is looked for where the first job was submitted.
            job = self.app.local_scheduler.submit_script(script, work_dir=place.folder)
        else:
            commands, given = self.site.slurm_commands, self.site.inventory
            claim = Claim(
                owner=self.owner.name, uid=self.owner.uid, cluster=given.cluster,
                token=f"{PREFIX}:{secrets.token_hex(16)}", written_s=self.app.clock.now(),
            )  # fmt: skip
            comment = f"{claim.token} {given.watch.opt_in}".strip()
            name = f"{PREFIX}-{trial.name}"
            self.unseen[name] = claim
            words = ("--parsable", f"--comment={comment}", script)
            done = commands.run(Command(
                ("sbatch", *words), as_user=self.owner, cwd=place.folder,
                env=commands.environment(self.owner.login_environment()),
            ))  # fmt: skip
            if done.exit_code != 0:
                self.without_job.add(name)
                raise commands.error(done)
            job = self._submitted(claim)
            del self.unseen[name]
        self.jobs.append(job)
        return job

    def _submitted(self, claim: Claim) -> JobId:
        """The job that the controller knows under the claim. What sbatch printed could be anybody's job: it runs as a
        user, whose other processes may have taken its pipe."""
        until_s = time.monotonic() + _EVENT_S
        while True:
            if (job := self._under(claim)) is not None:
                return job
            if time.monotonic() > until_s:
                raise NotFound(
                    f"Slurm knows no job of {claim.owner} that was submitted just now", where=claim.token,
                    next_step="see whether this Slurm changes the comments of jobs",
                )
            time.sleep(_POLL_S)

    def _under(self, claim: Claim) -> JobId | None:
        for job in self.app.scheduler.find_submitted(claim):
            if submitted_under(self.app.scheduler.job(job), claim):
                return job
        return None

    def _follow(self, trial: Trial, job: JobId) -> Seen:
        seen = Seen(trial, job=job)
        try:
            record = self._until(lambda: self._settled(job), f"job {job} did not end")
            seen.state, seen.job_class = record.state.name, record.state.job_class
            if not trial.fails:
                seen.event = self._event(job, 1.0) if seen.ended else ""
                seen.incident = self._incident(job)
                return seen
            seen.event = self._event(job, _EVENT_S) if seen.ended and self._slurm else ""
            seen.incident = self._watch(job, trial) if self.watched else self._bring_back(record)
            if seen.incident is not None:
                report = self.app.store.folder(seen.incident.id) / "report.html"
                seen.report = str(report) if report.is_file() else ""
                self.jobs.extend(one.job for one in seen.incident.attempts if one.job is not None)
        except (NotFound, Unavailable, NotAllowed) as error:
            seen.problem, seen.next_step = error.what, error.next_step
        return seen

    def _until(self, ask: Callable[[], JobRecord | None], late: str) -> JobRecord:
        while True:
            found = ask()
            if found is not None:
                return found
            if time.monotonic() > self.until_s:
                raise Unavailable(
                    f"{late} within the canary's time", next_step="see why it waits (squeue), or give more with --limit"
                )
            time.sleep(_POLL_S)

    def _settled(self, job: JobId) -> JobRecord | None:
        """The job's record once it has ended, or has failed and stands still."""
        record = self.app.scheduler.job(job)
        if record.state.job_class.ended:
            return record
        if record.state.job_class is not JobClass.ACTIVE or not record.stdout_path:
            return None
        try:
            log = self.app.files.read_small(record.stdout_path, self.owner.name)
        except RunbookError:
            return None
        if _FAILED not in log:
            return None
        time.sleep(_STILL_S)
        return self.app.scheduler.job(job)

    def _until_ended(self, job: JobId) -> None:
        """For a while: what a job still writes would be in the way of removing its folder."""
        until_s = time.monotonic() + _ENDS_S
        while not self.app.scheduler.job(job).state.job_class.ended and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _event(self, job: JobId, wait_s: float) -> str:
        """The file that the epilog left, or left and the daemon took; "" where none came."""
        pattern = f"{self.site.inventory.cluster}-{job}-*.event"
        folder, until_s = self.site.inventory.spool_folder, time.monotonic() + wait_s
        while True:
            try:
                found = next((path.name for path in folder.glob(pattern)), "")
            except OSError:
                return ""
            if not found and self.watched and self._incident(job) is not None:
                return "taken by the daemon"
            if found or time.monotonic() > until_s:
                return found
            time.sleep(_POLL_S)

    def _incident(self, job: JobId) -> Incident | None:
        name = incident_id(self.app.flow.id, self.app.inventory.cluster, job)
        return self.app.store.load(name) if self.app.store.exists(name) else None

    def _watch(self, job: JobId, trial: Trial) -> Incident | None:
        """The daemon's incident, once it has ended or waits for a person."""
        while time.monotonic() < self.until_s:
            found = self._incident(job)
            if found is not None and (found.finished or found.awaiting):
                return found
            time.sleep(_POLL_S)
        return self._incident(job)

    def _bring_back(self, record: JobRecord) -> Incident:
        """What the daemon would do, here."""
        # One application an incident: the cage that reads another user's files ends with it.
        app = Application(_within(self.app.inventory, self.until_s - time.monotonic()), self.policy)
        terms = Terms(app.flow.id, app.inventory.cluster, self.policy, "person", __version__)
        opened = open_for(record, app.store, terms, app.clock.now())
        if opened.opening is Opening.DONE:
            return opened.incident
        with _quiet() as view:
            return bring_back(app, Opened(opened.opening, opened.incident), view, interactive=False)

    def surroundings(self) -> canary_chain.Surroundings:
        """What the chain is judged by beside the jobs."""
        given, spool = self.site.inventory, self.site.inventory.spool_folder
        return canary_chain.Surroundings(
            slurm=self._slurm, plans=self.policy is Policy.PLAN, watched=self.watched,
            epilog=self.config.get("EpilogSlurmctld"), spool=str(spool), spool_there=os.access(spool, os.R_OK),
            targets=len(given.notify.all_targets),
            reaches_nodes=given.nodes.kind != "none",
        )  # fmt: skip

    def _decline(self, job: JobId) -> None:
        """Says no to what the daemon asks about a job whose folder goes."""
        until_s, answered = time.monotonic() + _EVENT_S, -1
        found = self._incident(job)
        while found is not None and not found.finished and (found.awaiting or answered >= 0):
            if found.awaiting and len(found.visits) != answered:
                answer_elsewhere(self.app, found, False)
                answered = len(found.visits)
            if time.monotonic() > until_s:
                raise Unavailable("it was answered no, which the daemon has not taken up yet")
            time.sleep(_POLL_S)
            found = self._incident(job)

    def clean(self, place: Place | None) -> list[str]:
        """End what still runs, remove the folder and the events of these jobs. Returns what could not be."""
        problems, cluster = [], self.site.inventory.cluster
        for name, claim in self.unseen.items():
            # sbatch ended with an error, what it made cannot be found, or this command was ended beside it.
            try:
                job = self._under(claim)
            except RunbookError as error:
                problems.append(f"{name}: {error.what}")
                continue
            if job is not None:
                self.jobs.append(job)
            elif name not in self.without_job:
                look = f"squeue --user={claim.owner} --name={name}"
                problems.append(f"the job {name}, if sbatch made one: none carries its comment ({look} lists it)")
        for job in [*self.jobs] if self.watched else []:
            try:
                self._decline(job)
            except RunbookError as error:
                problems.append(f"the daemon's question about job {job}: {error.what}")
        for job in [*self.jobs]:
            # Also what was relaunched by an incident that this command did not see the end of.
            try:
                incident = self._incident(job)
                attempts = incident.attempts if incident is not None else ()
                self.jobs.extend(one.job for one in attempts if one.job is not None)
            except RunbookError as error:
                problems.append(f"what was relaunched for job {job}: {error.what}")
        for job in dict.fromkeys(self.jobs):
            try:
                record = self.app.scheduler.job(job)
                if not record.state.job_class.ended:
                    self.app.scheduler.cancel(record)
                    self._until_ended(job)
            except RunbookError as error:
                problems.append(f"job {job}: {error.what}")
            if not self.watched:
                for path in self.site.inventory.spool_folder.glob(f"{cluster}-{job}-*.event"):
                    try:
                        path.unlink(missing_ok=True)
                    except OSError as error:
                        problems.append(f"{path}: {error.strerror}")
        try:
            if place is not None:
                place.remove()
        except RunbookError as error:
            problems.append(f"{place.folder if place else ''}: {error.what}")
        return problems


@contextmanager
def _quiet() -> Iterator[View]:
    view = View(io.StringIO(), quiet=True)
    try:
        yield view
    finally:
        view.close()


def _document(run: _Run, seen: list[Seen], chain: list[Link], problems: list[str]) -> dict[str, Any]:
    return {
        "cluster": run.site.inventory.cluster, "as": run.owner.name, "policy": run.policy.value, "daemon": run.watched,
        "gpus": "simulated",
        "jobs": [canary_chain.document(one) for one in seen],
        "chain": [
            {"part": one.part, "works": one.works.value, "what": one.what, "next": one.next_step} for one in chain
        ],
        "left_behind": problems,
    }  # fmt: skip


def _tell(run: _Run, seen: list[Seen], chain: list[Link], problems: list[str]) -> None:
    for one in seen:
        if one.skipped:
            say(f"{one.trial.name}: not tried: {one.skipped}", first="  ")
    heading("The chain")
    for link in chain:
        say(f"{link.part}: {link.what}", " " * 12, first=f"{link.works.value:>10}  ")
        if link.next_step and link.works is not Works.YES:
            say(f"→ {link.next_step}", " " * 14, first=" " * 12)
    heading("Left")
    reports = [one.report for one in seen if one.report]
    for problem in problems:
        say(f"could not be removed: {problem}", first="  ")
    if not problems:
        say("jobs, their folder and their events are gone again", first="  ")
    for path in reports:
        echo(f"  {Path(path)}")
