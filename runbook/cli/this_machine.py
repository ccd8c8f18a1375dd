"""`runbook submit`, `jobs` and `probe`: this machine's own scheduler, and what the node probe says of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from runbook.adapters.whole_file import whole_file
from runbook.cli.say import clean_console, echo
from runbook.errors import BadInput, NotAllowed
from runbook.model.job import JobClass
from runbook.report.vocabulary.clean import clean_line


def submit(script: Path, arguments: tuple[str, ...], wait: bool, inventory: str | None) -> int:
    """`runbook submit`."""
    from runbook.cli.wiring import application

    app = application(inventory)
    if app.inventory.scheduler.kind != "local":
        raise BadInput("this inventory's jobs are Slurm's", next_step="use sbatch, or --inventory local")
    if not script.is_file():
        raise BadInput(f"no job script {script}", next_step="check the path")
    job = app.local_scheduler.submit_script(str(script), arguments)
    echo(job)
    if not wait:
        return 0
    while not (record := app.local_scheduler.job(job)).state.job_class.ended:
        time.sleep(0.2)
    echo(f"{record.state.name} (log: {record.stdout_path})", err=True)
    return 0 if record.state.job_class is JobClass.SUCCEEDED else 1


def jobs(inventory: str | None) -> int:
    """`runbook jobs`."""
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
    clean_console(sys.stdout).print(table)
    return 0


def probe(target: Path | None, deadline: float, since: float | None) -> int:
    """`runbook probe`."""
    if target is not None:
        return _build(target)
    from runbook.probe.main import probe as look

    echo(json.dumps(look(deadline, since, "/", False), indent=2, sort_keys=True))
    return 0


def _build(target: Path) -> int:
    from runbook.probe.build import NoPynvml, archive

    try:
        data = archive()
    except NoPynvml as error:
        raise BadInput(str(error), next_step="pip install nvidia-ml-py, then build again") from error
    try:
        with whole_file(target, 0o755, durable=False) as stream:
            stream.write(data)
    except OSError as error:
        raise NotAllowed(
            f"the file cannot be written: {error.strerror}", where=str(target), next_step="name another file"
        ) from error
    echo(f"{target}: {len(data)} bytes; try it: python3 {target}")
    return 0
