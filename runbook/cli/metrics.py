"""`runbook metrics`: the figures of /metrics as text, or as a file for node exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook import __version__
from runbook.adapters.whole_file import whole_file
from runbook.cli.main import inventory_option
from runbook.errors import BadInput, NotAllowed, RunbookError, Unavailable

if TYPE_CHECKING:
    from runbook.adapters.metrics import ServiceFigures
    from runbook.cli.wiring import Application
    from runbook.config import Inventory


@click.command()
@click.option(
    "--textfile", metavar="FILE", type=click.Path(path_type=Path),
    help="Write FILE.prom, whole or not at all, readable for everybody; for node exporter's textfile collector.",
)
@inventory_option
def metrics(textfile: Path | None, inventory: str | None) -> int:
    """Print the Prometheus metrics of the stored incidents and of the spool.

    For sites that want no new scrape target: run it every minute (deploy/systemd/runbook-metrics.timer).
    """
    from runbook.adapters.metrics import IncidentMetrics
    from runbook.cli.wiring import application

    if textfile is not None and textfile.suffix != ".prom":
        raise BadInput(
            "node exporter reads files that end in .prom only", where=str(textfile), next_step="name it so"
        )
    app = application(inventory)
    text = IncidentMetrics(
        app.store.list,
        lambda: _figures(app),
        cluster=app.inventory.cluster,
        report_url=report_address(app.inventory),
        boxes=tuple(app.flow.boxes),
        now=app.clock.now,
    ).text()
    if textfile is None:
        click.echo(text.decode("utf-8"), nl=False)
    else:
        write_readable(textfile, text)
    return 0


def report_address(inventory: Inventory, listen: str | None = None, port: int | None = None) -> str:
    """The address that links begin with, without a slash at its end: the inventory's, else where the daemon listens."""
    if inventory.reports.url:
        return inventory.reports.url.rstrip("/")
    host = listen or inventory.reports.listen
    if host in ("0.0.0.0", "::", ""):  # noqa: S104  (compared, not bound)
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port or inventory.reports.port}"


def write_readable(path: Path, content: bytes) -> None:
    """Put a file in place at once, readable for everybody: a collector must not see half of it. Raises `NotAllowed`,
    `Unavailable`; what was there before is then untouched."""
    try:
        # A collector reads *.prom only, so that the file under work is no metric yet.
        with whole_file(path, 0o644, durable=False) as stream:
            stream.write(content)
    except OSError as error:
        kind = NotAllowed if isinstance(error, PermissionError) else Unavailable
        raise kind(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            next_step="make its folder, writable for the user that runs this, or name another",
        ) from error


def _figures(app: Application) -> ServiceFigures:
    """What can be known of the daemon from outside: no heartbeat, and no count of its own."""
    from runbook.adapters.metrics import ServiceFigures
    from runbook.service.spool import SpoolReader, SpoolStatus

    readable = True
    try:
        spool = SpoolReader(Path(app.inventory.paths.spool)).status()
    except RunbookError:
        spool, readable = SpoolStatus(0, None), False
    return ServiceFigures(
        now_s=app.clock.now(),
        version=__version__,
        driver_alive=_daemon_drives(app.state),
        spool_depth=spool.depth,
        spool_oldest_s=spool.oldest_s,
        spool_readable=readable,
        spool_bad=spool.bad,
        events_opened=None,
    )


def _daemon_drives(state: Path) -> bool:
    """Whether a daemon holds the driver's lock. Looked up in the kernel's table: taking the lock to find out would be
    in the way of a daemon that starts in that moment."""
    from runbook.cli.driver import DriverLock

    holder = DriverLock(state, "metrics").holder()
    if holder is None or holder.kind != "daemon":
        return False
    try:
        inode = (state / "driver.lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF"; a line with "->" is one that waits.
    held = (line.split() for line in locks.splitlines() if "FLOCK" in line and "->" not in line)
    return any(part[4] == str(holder.pid) and part[5].rpartition(":")[2] == str(inode) for part in held)
