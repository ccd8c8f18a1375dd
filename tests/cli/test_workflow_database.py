"""The engine's database under the versions of SQLite that distributions have."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from runbook.adapters.store.workflow_database import dbos_config
from runbook.errors import Unavailable


def test_a_table_that_asks_for_the_time_as_later_pythons_do_gets_it(tmp_path: Path) -> None:
    """From Python 3.12 on the library writes this default, which SQLite before 3.42 answers with NULL."""
    engine = create_engine(f"sqlite:///{tmp_path / 'workflows.sqlite'}")
    with engine.begin() as database:
        database.execute(text("CREATE TABLE one (a INTEGER, at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000))"))
        database.execute(text("INSERT INTO one (a) VALUES (1)"))
        (at,) = database.execute(text("SELECT at FROM one")).one()
    engine.dispose()
    assert abs(at - time.time() * 1000) < 60_000


def test_an_sqlite_that_cannot_hold_it_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(Unavailable) as refused:
        dbos_config("sqlite:////var/lib/runbook/workflows.sqlite", "command")
    assert "3.34.1" in refused.value.what and "PostgreSQL" in refused.value.next_step
    assert dbos_config("postgresql://db/runbook", "command")["system_database_url"] == "postgresql://db/runbook"
