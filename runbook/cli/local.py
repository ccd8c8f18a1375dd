"""`runbook submit` and `runbook jobs`: the local scheduler's own commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from runbook.cli.main import inventory_option
from runbook.errors import BadInput


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--wait", is_flag=True, help="Wait until the job has ended; exit with 0 only if it completed.")
@inventory_option
def submit(script: Path, arguments: tuple[str, ...], wait: bool, inventory: str | None) -> int:
    """Submit a job script to the local scheduler, as `sbatch` would to Slurm. Prints the job id."""
    from runbook.cli.wiring import application
    from runbook.model.job import JobClass

    app = application(inventory)
    if app.inventory.scheduler.kind != "local":
        raise BadInput("this inventory's jobs are Slurm's", next_step="use sbatch, or --inventory local")
    if not script.is_file():
        raise BadInput(f"no job script {script}", next_step="check the path")
    job = app.local_scheduler.submit_script(str(script), arguments)
    click.echo(job)
    if not wait:
        return 0
    while not (record := app.local_scheduler.job(job)).state.job_class.ended:
        time.sleep(0.2)
    click.echo(f"{record.state.name} (log: {record.stdout_path})", err=True)
    return 0 if record.state.job_class is JobClass.SUCCEEDED else 1


@click.command()
@inventory_option
def jobs(inventory: str | None) -> int:
    """List the local scheduler's jobs, newest first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from runbook.cli.wiring import application
    from runbook.report.vocabulary.clean import clean_line

    app = application(inventory)
    if app.inventory.scheduler.kind != "local":
        raise BadInput("this inventory's jobs are Slurm's", next_step="use squeue or sacct")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("job", "name", "state", "comment", "log"):
        table.add_column(title)
    for record in app.local_scheduler.jobs():
        cells = (record.id, record.name, record.state.name, record.comment, record.stdout_path)
        table.add_row(*(Text(clean_line(cell)) for cell in cells))
    Console(file=sys.stdout, highlight=False).print(table)
    return 0
