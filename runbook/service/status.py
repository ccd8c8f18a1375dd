"""What the daemon knows about itself: for /healthz, the metrics and systemd's watchdog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LATE_S = 60.0
"""A loop that has not come round for this long is stuck."""


@dataclass
class ServiceStatus:
    """Written by the daemon's loop, read by the web server's threads; every field is replaced whole."""

    started_s: float
    last_scan_s: float | None = None
    """The last time that the loop came round, whether the spool could be read or not."""
    spool_problem: str = ""
    spool_depth: int = 0
    spool_oldest_s: float | None = None
    spool_bad: int = 0
    """Files that were set aside in bad/."""
    events_opened: int = 0
    events_waiting_again: int = 0
    """Events whose incident could not be opened yet and that are tried again."""
    alerts_declined: int = 0
    """Alerts that opened nothing."""
    last_declined: str = ""
    last_problem: str = ""
    stopping: bool = False
    driver_alive: Callable[[], bool] = field(default=lambda: True)
    """Whether incidents are being worked on; wiring says how that is known."""

    def healthy(self, now_s: float) -> bool:
        """The loop comes round, the spool can be read, and incidents are driven."""
        last_s = self.last_scan_s if self.last_scan_s is not None else self.started_s
        return not self.spool_problem and not self.stopping and now_s - last_s < LATE_S and self.driver_alive()

    def document(self, now_s: float) -> dict[str, Any]:
        """The body of /healthz."""
        return {
            "ok": self.healthy(now_s),
            "driver_alive": self.driver_alive(),
            "last_scan_s": self.last_scan_s,
            "last_scan_age_s": None if self.last_scan_s is None else round(now_s - self.last_scan_s, 3),
            "spool_depth": self.spool_depth,
            "spool_oldest_age_s": (
                None if self.spool_oldest_s is None else round(max(now_s - self.spool_oldest_s, 0.0), 3)
            ),
            "spool_problem": self.spool_problem,
            "events_opened": self.events_opened,
            "spool_bad": self.spool_bad,
            "events_waiting_again": self.events_waiting_again,
            "alerts_declined": self.alerts_declined,
            "last_declined": self.last_declined,
            "last_problem": self.last_problem,
            "uptime_s": round(now_s - self.started_s, 3),
        }
