"""The engine's records of incidents, read out of its database and put into another: rows of data, a line of JSON each.

Neither a database file nor a dump is kept: both are programs to whoever opens them (triggers, views, statements), and a
backup may come from anywhere. So the tables are made by the library itself, of the version that is installed, and rows
are put in by parameters, plain values alone. The same rows fit SQLite and PostgreSQL, and no `pg_dump` of the server's
version is needed.

A backup is one moment's: of SQLite by its backup interface, of PostgreSQL by one transaction that sees one snapshot.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from dbos import DBOS
from psycopg.types.json import Jsonb

from runbook.adapters.store.plain_pickles import plain_value
from runbook.errors import BadInput, RunbookError, Unavailable

TABLES: Mapping[str, str] = {
    "workflow_status": "workflow_uuid",
    "workflow_input": "workflow_uuid",
    "workflow_output": "workflow_uuid",
    "operation_outputs": "workflow_uuid",
    "notifications": "destination_uuid",
    "workflow_events": "workflow_uuid",
    "workflow_events_history": "workflow_uuid",
    "streams": "workflow_uuid",
}
"""What the library keeps of a workflow, and the column with the workflow's id: the workflow itself first. Queues,
versions and schedules are made again by whoever starts."""
_PICKLED = ("inputs", "input", "output", "message", "value")
"""Columns in which the library keeps pickles. An error is one as well, and is never read."""
_SCHEMA = "dbos"
_LONGEST_LINE_BYTES = 512 << 20

Row = dict[str, Any]


def dump_rows(url: str, prefix: str, target: Path) -> int:
    """Everything of workflows whose id begins so, as of one moment; returns the number of rows. Raises
    `Unavailable`."""
    with _told("read", url), target.open("w", encoding="utf-8") as out:
        count = 0
        for table, row in _sqlite_rows(url, prefix) if _is_sqlite(url) else _postgresql_rows(url, prefix):
            out.write(json.dumps({"table": table, "row": row}) + "\n")
            count += 1
    return count


def load_rows(url: str, prefix: str, source: Path) -> int:
    """Put them into a database whose tables are there, all or none; one that is there already is left. Raises
    `BadInput` for rows that are not ours or do not fit, `Unavailable`."""
    with _told("written", url), source.open(encoding="utf-8") as lines:
        into = _into_sqlite if _is_sqlite(url) else _into_postgresql
        return into(url, _rows(lines, prefix))


def make_tables(config: dict[str, Any]) -> None:
    """Let the library make what it needs in an empty database, and let go of it. Raises `Unavailable`."""
    with _told("made", str(config["system_database_url"])):
        DBOS(config=config)  # type: ignore[arg-type]
        try:
            DBOS.listen_queues([])
            DBOS.launch()
        finally:
            DBOS.destroy(workflow_completion_timeout_sec=0)


def holds_workflows(url: str, prefix: str) -> bool:
    """Whether there is any whose id begins so. A database without the library's tables holds none. Raises
    `Unavailable`."""
    with _told("read", url):
        if _is_sqlite(url):
            path = _path_of(url)
            if not path.is_file() or not path.stat().st_size:
                return False
            with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as db:
                return bool(_sqlite_columns(db, "workflow_status")) and any(_of_table(db, "workflow_status", prefix))
        with _postgresql(url) as db:
            if not _postgresql_columns(db, "workflow_status"):
                return False
            found = db.execute(*_like("workflow_status", prefix, "%s", f"{_SCHEMA}."))
            return found.fetchone() is not None


def _rows(lines: Iterator[str], prefix: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(lines, start=1):
        document = json.loads(line) if len(line) <= _LONGEST_LINE_BYTES else None
        table, row = (document.get("table"), document.get("row")) if isinstance(document, dict) else (None, None)
        key = TABLES.get(table) if isinstance(table, str) else None
        if key is None or not isinstance(row, dict) or not str(row.get(key, "")).startswith(prefix):
            raise BadInput("a row of the backup is none of a workflow of this cluster", where=f"line {number}")
        _check_plain(row, number)
        yield str(table), row


def _check_plain(row: Row, number: int) -> None:
    """Raises `BadInput` for a recorded value that would be a program to the library."""
    if row.get("serialization") not in (None, "py_pickle"):
        return
    for name in _PICKLED:
        value = row.get(name)
        try:
            if value is not None:
                plain_value(str(value))
        except ValueError as error:
            raise BadInput(f"a row of the backup holds {error}", where=f"line {number}, {name}") from error


def _like(table: str, prefix: str, mark: str, schema: str = "") -> tuple[str, tuple[str]]:
    # Names come from the table above, never from a backup; the prefix holds characters that LIKE reads as patterns.
    pattern = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    return f"SELECT * FROM {schema}{table} WHERE {TABLES[table]} LIKE {mark} ESCAPE '\\'", (pattern,)  # noqa: S608


def _insert(table: str, columns: list[str], known: Mapping[str, str], mark: str, schema: str = "") -> str:
    if unknown := [column for column in columns if column not in known]:
        raise BadInput(
            f"the backup has a column that this version's tables have not: {table}.{unknown[0]:.60}",
            next_step="install the version that made the backup, or a newer one",
        )
    names = ", ".join(f'"{column}"' for column in columns)
    marks = ", ".join(mark for _ in columns)
    return f"INSERT INTO {schema}{table} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608


# SQLite


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


def _path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _sqlite_rows(url: str, prefix: str) -> Iterator[tuple[str, Row]]:
    path = _path_of(url)
    if not path.is_file() or not path.stat().st_size:
        return
    # Not read-only: what a process that was killed had half written is taken back by whoever opens it next.
    live = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=30)
    with closing(live), closing(sqlite3.connect("")) as db:
        # Copied first, so that a long look keeps no writer waiting.
        live.backup(db)
        for table in TABLES:
            if _sqlite_columns(db, table):
                for row in _of_table(db, table, prefix):
                    yield table, row


def _of_table(db: sqlite3.Connection, table: str, prefix: str) -> Iterator[Row]:
    found = db.execute(*_like(table, prefix, "?"))
    names = [column[0] for column in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))


def _sqlite_columns(db: sqlite3.Connection, table: str) -> dict[str, str]:
    return {str(row[1]): str(row[2]).lower() for row in db.execute(f"PRAGMA table_info({table})")}


def _into_sqlite(url: str, rows: Iterator[tuple[str, Row]]) -> int:
    with closing(sqlite3.connect(_path_of(url), timeout=30)) as db, db:
        known = {table: _sqlite_columns(db, table) for table in TABLES}
        count = 0
        for table, row in rows:
            values = [json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()]
            db.execute(_insert(table, list(row), known[table], "?"), values)
            count += 1
    return count


# PostgreSQL


@contextmanager
def _postgresql(url: str) -> Iterator[Any]:
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://", 1), connect_timeout=15) as db:
        yield db


def _postgresql_rows(url: str, prefix: str) -> Iterator[tuple[str, Row]]:
    with _postgresql(url) as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in TABLES:
            if not _postgresql_columns(db, table):
                continue
            with db.cursor(name=f"rows_of_{table}") as cursor:
                found = cursor.execute(*_like(table, prefix, "%s", f"{_SCHEMA}."))
                names = [column.name for column in found.description]
                for row in found:
                    yield table, dict(zip(names, row, strict=True))


def _postgresql_columns(db: Any, table: str) -> dict[str, str]:
    asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    return {str(name): str(kind) for name, kind in db.execute(asked, (_SCHEMA, table))}


def _into_postgresql(url: str, rows: Iterator[tuple[str, Row]]) -> int:
    reading: Mapping[str, Callable[[Any], Any]] = {
        "boolean": bool, "jsonb": lambda value: Jsonb(json.loads(value) if isinstance(value, str) else value),
    }
    count = 0
    with _postgresql(url) as db:
        known = {table: _postgresql_columns(db, table) for table in TABLES}
        for table, row in rows:
            kinds = known[table]
            values = [
                value if value is None or kinds.get(name) not in reading else reading[kinds[name]](value)
                for name, value in row.items()
            ]
            db.execute(_insert(table, list(row), kinds, "%s", f"{_SCHEMA}."), values)
            count += 1
    return count


@contextmanager
def _told(done: str, url: str) -> Iterator[None]:
    try:
        yield
    except (RunbookError, OSError):
        raise
    except Exception as error:
        if isinstance(error, ValueError):
            raise BadInput("the rows of the backup cannot be read", next_step="take another backup") from error
        # Its text may hold the address with the password.
        where = str(_path_of(url)) if _is_sqlite(url) else url.rpartition("@")[2]
        raise Unavailable(
            f"the workflow database could not be {done} ({type(error).__name__})", where=where,
            next_step="see that it runs and that this user may do that, then try again",
        ) from error
