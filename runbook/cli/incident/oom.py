"""`runbook oom`: the whole loop for one job, or a diagnosis and a patch from files alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runbook import __version__
from runbook.adapters.identity import PrivilegeMode, identity_of, privilege_mode
from runbook.adapters.offline import FilesScheduler, NoNodes
from runbook.adapters.process import Command, run
from runbook.adapters.store.records import packed
from runbook.cli.incident import code_of
from runbook.cli.incident.terminal import (
    QueueWatcher,
    View,
    is_interactive,
    mark_interrupted,
    policy_for,
    until_ended,
)
from runbook.cli.say import echo, say_json
from runbook.cli.wiring import Application, answering, application
from runbook.config import load_inventory
from runbook.errors import BadInput, Interrupted, NotAllowed, Unavailable
from runbook.locations import without_a_home
from runbook.model.incident import Incident, Policy
from runbook.model.remedy import Answers
from runbook.model.template import SubmitContext, TemplateFile
from runbook.model.units import JobId, UserName
from runbook.template.text_files import language
from runbook.triggers import Opening, Terms, incident_id, open_for

if TYPE_CHECKING:
    from runbook.flow.walking import Ledger

_OTHERS_WAIT_S = 10.0


def oom(
    job: str | None,
    logs: tuple[Path, ...],
    template: Path | None,
    output: Path | None,
    values: tuple[str, ...],
    versions: tuple[str, ...],
    options: tuple[str, ...],
    agreed: tuple[str, ...],
    why: bool,
    plan: bool,
    yes: bool,
    as_json: bool,
    inventory: str | None,
) -> int:
    """`runbook oom`."""
    answers = _answers(values, versions, options, agreed)
    if job and logs:
        raise BadInput("--job and --log exclude each other", next_step="name the job, or its log files")
    if logs:

        return from_files(logs, template, output, Said(answers, why, as_json))
    if not job:
        raise BadInput(
            "nothing to work on", next_step="name a job with --job ID, or log files with --log FILE --template FILE"
        )
    if template or output:
        raise BadInput("--template and --output belong to --log", next_step="leave them out, or name logs with --log")
    return _job(JobId(job.strip()), Said(answers, why, as_json), plan=plan, yes=yes, inventory=inventory)


@dataclass(frozen=True, slots=True)
class Said:
    """What a person says of the job beyond its files, and how much is to be told."""

    answers: Answers = Answers()
    why: bool = False
    as_json: bool = False


def _answers(
    values: tuple[str, ...], versions: tuple[str, ...], options: tuple[str, ...], agreed: tuple[str, ...]
) -> Answers:
    """Raises `BadInput` for one that has no value."""
    for option, given in (("--set", values), ("--version", versions)):
        for item in given:
            if not item.partition("=")[0] or not item.partition("=")[2]:
                raise BadInput(f"{option} {item}: it has to be NAME=VALUE", next_step=f"write {option} NAME=VALUE")
    return Answers(
        dict(item.split("=", 1) for item in values), dict(item.split("=", 1) for item in versions), options, agreed
    )


def _job(job: JobId, said: Said, *, plan: bool, yes: bool, inventory: str | None) -> int:
    app = application(inventory)
    interactive = is_interactive()
    policy = policy_for(app.inventory.policy.mode, plan=plan, yes=yes, interactive=interactive)
    view = View(sys.stderr)
    view.heading(f"runbook oom --job {job} · cluster {app.inventory.cluster} · policy {policy.value}")
    with view.working(f"asking the scheduler about job {job}"):
        record = app.scheduler.job(job)
        if policy is not Policy.PLAN:
            _may_act_as(record.owner)
    app.policy = policy
    terms = Terms(app.flow.id, app.inventory.cluster, policy, "person", __version__)
    opened = open_for(record, app.store, terms, app.clock.now())
    if opened.opening is Opening.AGAIN:
        view.heading(f"{opened.incident.id} is taken up again (run {opened.incident.run})")
    elif opened.opening is Opening.JOIN:
        stored = opened.incident
        if policy is Policy.PLAN and stored.policy is not Policy.PLAN:
            raise NotAllowed(
                f"{stored.id} is open under the policy {stored.policy.value}; planning it would go on with it",
                next_step=f"`runbook show {stored.id}` looks; `runbook resume {stored.id}` goes on",
            )
        view.heading(f"{stored.id} is open already under the policy {stored.policy.value}; joining it")
        app.policy = stored.policy
    if said.answers:
        if opened.opening is Opening.JOIN:
            raise NotAllowed(
                f"{opened.incident.id} is at work, so an answer would come too late for it",
                next_step="say it again once it has ended",
            )
        incident = opened.incident
        opened = replace(opened, incident=replace(incident, answers=incident.answers.joined(said.answers)))
    with without_a_home():
        from runbook.cli.incident.drive import bring_back

    incident = bring_back(app, opened, view, interactive=interactive)
    view.conclude(incident, str(app.store.folder(incident.id) / "report.html"), why=said.why)
    if said.as_json:
        say_json(app.store.read_file(incident.id, "incident.json").decode("utf-8"), nl=False)
    return code_of(incident)


def _may_act_as(owner: str) -> None:
    """Fail before anything is cancelled, not after, when the relaunch could not be submitted as the owner."""
    identity = identity_of(UserName(owner))
    if privilege_mode(identity) is not PrivilegeMode.SUDO:
        return
    if run(Command(("true",), as_user=identity, output_limit_bytes=4096), 10.0).exit_code != 0:
        raise NotAllowed(
            f"the job belongs to {owner}, and this user may not act as {owner}",
            next_step="run it as that user, as root, or with --plan to look without touching",
        )


def from_files(logs: tuple[Path, ...], template: Path | None, output: Path | None, said: Said) -> int:
    """Diagnose; write the patched template and the report to `output`. Nothing else is touched."""
    from runbook.cli.files.job_files import files_of, read_template

    with without_a_home():
        from runbook.flow.walking import NoLedger

    inventory = answering(load_inventory("local"))
    for path in logs:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not there" if not path.exists() else "is no regular file"
            raise BadInput(f"{path} {what}", next_step="name a file")
    if template is not None:
        # A template that nobody here can edit is bad input, whatever the logs say.
        language(TemplateFile(str(template), read_template(template)))
    scheduler = FilesScheduler(tuple(path.absolute() for path in logs), template.absolute() if template else None)
    app = Application(
        inventory, Policy.PLAN, scheduler_override=scheduler, nodes_override=NoNodes("no cluster is used")
    )
    if template is not None:
        app.files = files_of(template, logs)
    now_s = app.clock.now()
    incident = Incident(
        id=incident_id(app.flow.id, "files", scheduler.job_id),
        cluster="files",
        root_job=scheduler.job_id,
        policy=Policy.PLAN,
        trigger="files",
        opened_s=now_s,
        updated_s=now_s,
        tool_version=__version__,
        answers=said.answers,
    )
    view = View(sys.stderr)
    view.heading(f"runbook oom --log {logs[0]}{' …' if len(logs) > 1 else ''} · no cluster: plan only")
    app.check_room()
    with app.alone(f"look at {incident.id}", _OTHERS_WAIT_S, "another `runbook oom --log` is at the same files"):
        if app.store.exists(incident.id):
            # The same files again: a new look, under the same id.
            incident = replace(incident, run=app.store.load(incident.id).run + 1)
        incident = _walk(app, incident, view, NoLedger())
        written = _write(app.store.folder(incident.id), incident, template, output or (template or logs[0]).parent)
        document = app.store.read_file(incident.id, "incident.json") if said.as_json else b""
    report = next((path for path in written if path.suffix == ".html"), None)
    view.conclude(incident, str(report or app.store.folder(incident.id)), why=said.why)
    for path in (path for path in written if path is not report):
        echo(f"patched template: {path}", err=True)
    if said.as_json:
        say_json(document.decode("utf-8"), nl=False)
    return code_of(incident)


def _walk(app: Application, incident: Incident, view: View, ledger: Ledger) -> Incident:
    """Through the flow, without the engine: what was broken off is begun anew as well as gone on with."""
    app.store.save(incident)
    watcher = QueueWatcher()
    walk = app.walk(watcher)
    try:
        failed = until_ended(lambda: walk.run(packed(incident), ledger), watcher, view, None)
    except (KeyboardInterrupt, Interrupted):
        mark_interrupted(app, incident)
        raise Interrupted("interrupted; nothing was touched. Type the same again") from None
    finally:
        view.close()
    if failed is not None:
        raise failed
    return app.store.load(incident.id)


def _write(folder: Path, incident: Incident, template: Path | None, output: Path) -> list[Path]:
    """The patched copy and the report, under new names: an existing file of the user is never replaced."""
    from runbook.cli.files.job_files import put_beside, write_copies

    written: list[Path] = []
    try:
        if template is not None and incident.patch is not None and incident.patch.diff:
            said = SubmitContext(arguments=incident.answers.arguments, variables=incident.answers.variables)
            written += write_copies(incident.patch, template, output, incident.companions, said)
        if (folder / "report.html").exists():
            content = (folder / "report.html").read_bytes()
            written.append(put_beside(output, f"{incident.id}", ".html", content))
    except OSError as error:
        raise Unavailable(
            f"the result could not be written: {error.strerror}",
            where=str(output),
            next_step="name another folder with --output",
        ) from error
    return written
