"""`runbook template show`: what a launch script sets, where each value is written, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import click

from runbook.model.log import LogStory


@click.group()
def template() -> None:
    """Look at a launch script."""


@template.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also everything else that the files set.")
@click.option("--system", metavar="NAME", help="The system, where the template does not show it.")
@click.option("--json", "as_json", is_flag=True, help="All of it for machines.")
@click.option("--playbook", metavar="DIR", type=click.Path(path_type=Path), help="Another playbook folder.")
def show(file: Path, show_all: bool, system: str | None, as_json: bool, playbook: Path | None) -> int:
    """What a launch script and the files that it names set: the system, the version whose spelling it has, every memory
    parameter with the value in force and where it is written, and what stands in the way of going on from a checkpoint.

    FILE is a job script, or a configuration file (YAML, JSON, TOML, Python) by itself. Nothing is run or changed; what
    cannot be known says where the trail ended.
    """
    from runbook.cli.job_files import lever_documents, named_system, read_job_files
    from runbook.cli.template_view import view_of
    from runbook.remedy import recognise
    from runbook.template.text_files import language_of

    documents = lever_documents(playbook)
    chosen = named_system(system, documents) if system is not None else None
    job = read_job_files(file)
    language_of(job.script)
    story = LogStory(root_cause=None)
    document = chosen or recognise(job.files, story, documents)
    view = view_of(job, document, documents, playbook, named=chosen is not None, with_rest=show_all or document is None)
    if as_json:
        click.echo(json.dumps(view.plain(), indent=2, ensure_ascii=True))
        return 0
    from runbook.cli.levers import terminal_width

    for number, line in enumerate(view.lines(terminal_width())):
        bold = number == 0 or (line.endswith(":") and not line.startswith(" "))
        click.echo(click.style(line, bold=True) if bold else line)
    return 0
