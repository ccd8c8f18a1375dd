"""The engine's database: how it is opened, whether it answers, and what it says when it cannot be written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import DBAPIError

_ANSWER_S = 10.0
_LATE_S = 30.0
APPLICATION_VERSION = "1"
"""Set by hand: raised only when an open incident of the version before could not be carried on."""


def dbos_config(database_url: str, executor: str) -> dict[str, Any]:
    """DBOS set up for one small process: no admin server, no telemetry, quick notifications."""
    return {
        "name": "runbook",
        "system_database_url": database_url,
        "application_version": APPLICATION_VERSION,
        "executor_id": executor,
        "run_admin_server": False,
        "enable_otlp": False,
        "log_level": "CRITICAL",
        "notification_listener_polling_interval_sec": 0.1,
    }


def silence_library_logs() -> None:
    """The library prints its own banner and warnings to the terminal; ours is the only voice there."""
    for name in ("dbos", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def in_words(error: DBAPIError) -> str:
    """Without the statement, which holds what a job left behind."""
    return f"the workflow database cannot be written: {str(error.orig).partition(chr(10))[0]}"


@dataclass
class DatabaseProbe:
    """Asks the database in a thread of its own: the library waits for one that is gone, for as long as that takes."""

    ask: Callable[[], None]
    answer_s: float = _ANSWER_S
    late_s: float = _LATE_S
    _asked_s: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)
    _failed: str = field(default="", init=False, repr=False)

    def problem(self) -> str:
        """What is wrong with it, in words; "" when it answers."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="database-probe", daemon=True)
            self._thread.start()
        self._thread.join(self.answer_s)
        if self._thread.is_alive():
            return "the workflow database does not answer"
        return f"the workflow database does not answer ({self._failed})" if self._failed else ""

    def answers(self) -> bool:
        """Whether it answered when it was last asked, without waiting: each call asks anew. False, too, once a question
        has been without an answer for half a minute."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                well = not self._failed
                self._asked_s = time.monotonic()
                self._thread = threading.Thread(target=self._look, name="database-probe", daemon=True)
                self._thread.start()
                return well
            return not self._failed and time.monotonic() - self._asked_s < self.late_s

    def _look(self) -> None:
        try:
            self.ask()
            self._failed = ""
        except Exception as error:
            # Its text may hold the address with the password.
            self._failed = type(error).__name__
