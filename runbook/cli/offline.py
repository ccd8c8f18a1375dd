"""`runbook oom --log FILE --template FILE`: the same flow over files, planning only, on any machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from runbook import __version__
from runbook.cli.copies import write_copies
from runbook.cli.exit import code_of
from runbook.errors import BadInput, Unavailable
from runbook.model.incident import Incident, Policy


def from_files(logs: tuple[Path, ...], template: Path | None, output: Path | None, *, as_json: bool) -> int:
    """Diagnose; write the patched template and the report to `output`. Nothing else is touched."""
    from runbook.adapters.offline import FilesScheduler, NoNodes
    from runbook.cli.drive import bring_back
    from runbook.cli.job_files import read_template
    from runbook.cli.terminal import View
    from runbook.cli.wiring import Application
    from runbook.config import load_inventory
    from runbook.model.template import TemplateFile
    from runbook.template.text_files import language
    from runbook.triggers import Opened, Opening, incident_id

    for path in logs:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not there" if not path.exists() else "is no regular file"
            raise BadInput(f"{path} {what}", next_step="name a file")
    if template is not None:
        # A template that nobody here can edit is bad input, whatever the logs say.
        language(TemplateFile(str(template), read_template(template)))
    scheduler = FilesScheduler(tuple(path.absolute() for path in logs), template.absolute() if template else None)
    app = Application(
        load_inventory("local"), Policy.PLAN, scheduler_override=scheduler, nodes_override=NoNodes("no cluster is used")
    )
    now_s = app.clock.now()
    incident = Incident(
        id=incident_id("files", scheduler.job_id),
        cluster="files",
        root_job=scheduler.job_id,
        policy=Policy.PLAN,
        trigger="files",
        opened_s=now_s,
        updated_s=now_s,
        tool_version=__version__,
    )
    if app.store.exists(incident.id):
        # The same files again: a new look, under the same id.
        incident = replace(incident, run=app.store.load(incident.id).run + 1)
    view = View(sys.stderr)
    view.heading(f"runbook oom --log {logs[0]}{' …' if len(logs) > 1 else ''} · no cluster: plan only")
    incident = bring_back(app, Opened(Opening.NEW, incident), view, interactive=False)
    written = _write(app.store.folder(incident.id), incident, template, output or (template or logs[0]).parent)
    report = next((path for path in written if path.suffix == ".html"), None)
    view.conclude(incident, str(report or app.store.folder(incident.id)))
    for path in (path for path in written if path is not report):
        click.echo(f"patched template: {path}", err=True)
    if as_json:
        click.echo(app.store.read_file(incident.id, "incident.json").decode("utf-8"), nl=False)
    return code_of(incident)


def _write(folder: Path, incident: Incident, template: Path | None, output: Path) -> list[Path]:
    """The patched copy and the report, under new names: an existing file of the user is never replaced."""
    written: list[Path] = []
    try:
        output.mkdir(parents=True, exist_ok=True)
        if template is not None and incident.patch is not None and incident.patch.diff:
            written += write_copies(incident.patch, template, output)
        if (folder / "report.html").exists():
            report = output / f"{incident.id}.html"
            report.write_bytes((folder / "report.html").read_bytes())
            written.append(report)
    except OSError as error:
        raise Unavailable(
            f"the result could not be written: {error.strerror}",
            where=str(output),
            next_step="name another folder with --output",
        ) from error
    return written
