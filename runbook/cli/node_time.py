"""A moment in the past as people write it on a command line."""

from __future__ import annotations

import re
from datetime import datetime

_AGO = re.compile(r"(?P<number>\d{1,6})\s?(?P<unit>s|m|min|h|d)\Z")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EPOCH = re.compile(r"@?(?P<seconds>\d{9,11})(?:\.\d{1,9})?\Z")


def moment_of(text: str, now_s: float) -> float | None:
    """Epoch seconds of "2h" (ago), an ISO date and time (local where it has no zone), or epoch seconds themselves.
    None: none of these."""
    text = text.strip()
    ago = _AGO.match(text)
    if ago:
        return now_s - int(ago["number"]) * _SECONDS[ago["unit"]]
    epoch = _EPOCH.match(text)
    if epoch:
        return float(text.removeprefix("@"))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
