"""`runbook probe`: what the node probe says of this machine, and the one file that says it on a bare node."""

from __future__ import annotations

import json
from pathlib import Path

import click


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
    from runbook.errors import BadInput, NotAllowed
    from runbook.probe.build import NoPynvml, archive

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
