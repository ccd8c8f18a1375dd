"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """Epoch seconds of this machine; `sleep` is a plain wait."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
