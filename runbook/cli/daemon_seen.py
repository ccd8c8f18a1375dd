"""What the daemon of this machine has at work, seen from another process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runbook.adapters.driver_lock import DriverLock
from runbook.cli.wiring import Application

if TYPE_CHECKING:
    from runbook.cage import AtWork


def at_work_elsewhere(app: Application) -> tuple[AtWork, ...]:
    """Boxes that the daemon has at work, the longest first; () where there is no daemon."""
    holder = DriverLock(app.state, "look").holder()
    if holder is None or not daemon_drives(app.state):
        return ()
    from runbook.cage import marked_at_work

    still_open = [row.id for row in app.read_model.rows() if row.closed_s is None]
    return marked_at_work(app.flow, still_open, app.store.folder, holder.pid)


def daemon_drives(state: Path) -> bool:
    """Whether a daemon holds the driver's lock. Looked up in the kernel's table: taking the lock to find out would be
    in the way of a daemon that starts in that moment."""
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
