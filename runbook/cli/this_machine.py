"""`runbook submit`, `jobs` and `probe`: this machine's own scheduler, and what the node probe says of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from runbook.cli.main import inventory_option
from runbook.errors import BadInput, NotAllowed
from runbook.model.job import JobClass
from runbook.probe.build import NoPynvml, archive
from runbook.report.vocabulary.clean import clean_line


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--wait", is_flag=True, help="Wait until the job has ended; exit with 0 only if it completed.")
@inventory_option
def submit(script: Path, arguments: tuple[str, ...], wait: bool, inventory: str | None) -> int:
    """Submit a job script to the local scheduler, as `sbatch` would to Slurm. Prints the job id."""
    from runbook.cli.wiring import application

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


@click.command()
@click.option(
    "--build", "target", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the probe as one file that runs under any Python from 3.6 on, and end.",
)
@click.option(
    "--deadline", type=click.FloatRange(1, 600), default=15.0, show_default=True, metavar="SECONDS",
    help="For everything; what is not read by then is unknown.",
)
@click.option("--since", type=float, metavar="EPOCH", help="A job's start: the journal is read from a day before it.")
def probe(target: Path | None, deadline: float, since: float | None) -> int:
    """Look at this machine: GPUs, kernel log, processes, Slurm's cgroups. One JSON document; nothing is changed.

    Slurm's own epilog can run the file that --build writes (deploy/slurm/README.md).
    """
    if target is not None:
        return _build(target)
    from runbook.probe.main import probe as look

    click.echo(json.dumps(look(deadline, since, "/", False), indent=2, sort_keys=True))
    return 0


def _build(target: Path) -> int:
    try:
        data = archive()
    except NoPynvml as error:
        raise BadInput(str(error), next_step="pip install nvidia-ml-py, then build again") from error
    try:
        target.write_bytes(data)
        target.chmod(0o755)
    except OSError as error:
        raise NotAllowed(
            f"the file cannot be written: {error.strerror}", where=str(target), next_step="name another file"
        ) from error
    click.echo(f"{target}: {len(data)} bytes; try it: python3 {target}")
    return 0
