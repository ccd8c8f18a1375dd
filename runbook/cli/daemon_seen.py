"""What the daemon of this machine has at work, seen from another process."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.adapters.driver import DriverLock, Holder
from runbook.cli.wiring import Application
from runbook.errors import Unavailable

if TYPE_CHECKING:
    from runbook.cage import AtWork


def at_work_elsewhere(app: Application) -> tuple[AtWork, ...]:
    """Boxes that the daemon of this machine has at work, the longest first; () where there is none."""
    holder = _daemon_that_drives(app)
    if holder is None or holder.host not in ("", socket.gethostname()):
        return ()
    from runbook.cage import marked_at_work

    still_open = [row.id for row in app.read_model.rows() if row.closed_s is None]
    return marked_at_work(app.flow, still_open, app.store.folder, holder.pid)


def daemon_drives(app: Application) -> bool:
    """Whether a daemon holds the driver's lock on this machine, or the lease of the database on any."""
    return _daemon_that_drives(app) is not None


def _daemon_that_drives(app: Application) -> Holder | None:
    holder: Holder | None
    if app.inventory.database:
        try:
            holder = app.lease.holder()
        except Unavailable:
            return None
    else:
        holder = DriverLock(app.state, "look").holder()
    if holder is None or holder.kind != "daemon":
        return None
    return holder if app.inventory.database or _locked(app.state, holder) else None


def _locked(state: Path, holder: Holder) -> bool:
    """Looked up in the kernel's table: taking the lock to find out would be in the way of a daemon that starts in that
    moment."""
    try:
        inode = (state / "driver.lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF"; a line with "->" is one that waits.
    held = (line.split() for line in locks.splitlines() if "FLOCK" in line and "->" not in line)
    return any(part[4] == str(holder.pid) and part[5].rpartition(":")[2] == str(inode) for part in held)
