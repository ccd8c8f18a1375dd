"""The engine's database: how it is opened, whether it answers, and what it says when it cannot be written."""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from runbook.adapters.driver.lease_tables import LEASE_S
from runbook.errors import Unavailable

_ANSWER_S = 10.0
_LATE_S = 30.0
APPLICATION_VERSION = "1"
"""Set by hand: raised only when an open incident of the version before could not be carried on."""
_OLDEST_SQLITE = (3, 35)
"""The library asks for RETURNING (https://sqlite.org/releaselog/3_35_0.html)."""
_KNOWS_FRACTIONS = (3, 42)
"""The first SQLite whose `unixepoch` takes 'subsec' (https://sqlite.org/releaselog/3_42_0.html)."""


def _tell_the_time(connection: object, _record: object) -> None:
    """From Python 3.12 on the library's tables ask for `unixepoch('subsec')`, whatever the SQLite that Python was built
    with: Debian 12's (3.40) says NULL, where none is allowed, and an older one does not know the function."""
    if isinstance(connection, sqlite3.Connection):
        connection.create_function("unixepoch", 1, lambda _modifier: time.time())


if sqlite3.sqlite_version_info < _KNOWS_FRACTIONS:
    event.listen(Engine, "connect", _tell_the_time)


def dbos_config(database_url: str, executor: str) -> dict[str, Any]:
    """DBOS set up for one small process: no admin server, no telemetry, quick notifications. Raises `Unavailable` where
    this Python's SQLite cannot hold its tables."""
    if database_url.startswith("sqlite:") and sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise Unavailable(
            f"this Python's SQLite ({sqlite3.sqlite_version}) is too old for the workflow database: {oldest} is needed",
            where=sys.executable,
            next_step="name a PostgreSQL database in the inventory (`database`), or use a Python with a newer SQLite",
        )
    return {
        "name": "runbook",
        "system_database_url": database_url,
        "application_version": APPLICATION_VERSION,
        "executor_id": executor,
        "run_admin_server": False,
        "enable_otlp": False,
        "log_level": "CRITICAL",
        "notification_listener_polling_interval_sec": 0.1,
        # A host that is cut off within a transaction leaves what it locked to the next driver, as it does the lease.
        "sys_db_idle_transaction_timeout_sec": LEASE_S,
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
