"""What is asked of all incidents at once: the list, the witnesses for an incident like them, the sums of the metrics.

    <root>/incidents.sqlite   0600   made from the incidents' documents, and made anew from them at any time

Every question first looks at the documents: those written since are read, those gone are taken out, so that any number
of processes say the same. A file that is damaged or of another version is made again. Where it cannot be written (the
disk is full or only to be read, or a network's file system gives no locks) a process goes on with a copy in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from runbook.adapters.store import RECORDED, IncidentStore, Stamp
from runbook.adapters.store.keep import load_pruned
from runbook.adapters.store.totals import Key, figures_of
from runbook.errors import RunbookError, Unavailable
from runbook.kinds import load_kinds
from runbook.model.remedy import Circumstances, Remembered, TriedLever
from runbook.model.units import IncidentId, UserName
from runbook.report.json_documents import without_surrogates
from runbook.report.past_incidents import remember
from runbook.report.summary import IncidentSummary, LeverTry, Tally, summarize

_MADE = 1
"""Raised by hand when what a column means changes and its name stays."""
_LOCK_S = 2.0
_READ_AT_ONCE = 1000
_READ_FOR_FEW = 64
"""Changed incidents that `like` reads before it answers: the choice of a lever must not wait for thousands."""
_MOST_OWN = 200
_MOST_OTHERS = 1000
_MOST_LOOKS = 5

_TABLES = (
    "DROP TABLE IF EXISTS incidents",
    "DROP TABLE IF EXISTS totals",
    """CREATE TABLE incidents (
        name TEXT PRIMARY KEY, modified_ns INTEGER, size_bytes INTEGER, inode INTEGER,
        summary TEXT, witness TEXT, kind TEXT, system TEXT, script TEXT, series TEXT
    )""",
    "CREATE INDEX alike ON incidents (kind, system, modified_ns)",
    "CREATE TABLE totals (figure TEXT PRIMARY KEY, value INTEGER)",
)
_ALIKE = """
    SELECT name, witness FROM incidents
    WHERE kind = :kind AND system = :system AND name != :incident AND witness != ''
    AND ((:script != '' AND script = :script) OR (:series != '' AND series = :series)) = :own
    ORDER BY modified_ns DESC LIMIT :most
"""
_Answer = TypeVar("_Answer")
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class _Made:
    """What is stored of one document. `summary` "": it cannot be read; `witness` "": it is none."""

    name: str
    stamp: Stamp
    figures: Mapping[Key, int] = field(default_factory=dict)
    summary: str = ""
    witness: str = ""
    found_by: tuple[str, str, str, str] = ("", "", "", "")
    """Kind, system, script and series of the witness."""


class ReadModel:
    """The incidents of one store. May be asked by several threads, and by any number of processes."""

    def __init__(self, store: IncidentStore) -> None:
        self._store = store
        self._path = store.root / "incidents.sqlite"
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is open; None: the copy in memory."""
        self._version = -1
        self._stamps: dict[str, Stamp] = {}
        self._summaries: dict[str, tuple[Stamp, IncidentSummary | None]] = {}
        self._witnesses: dict[str, tuple[Stamp, Remembered | None]] = {}
        self._newest: tuple[IncidentSummary, ...] | None = None
        """The rows in the order of lists, while nothing changes."""

    def rows(self) -> tuple[IncidentSummary, ...]:
        """Every incident, newest first. One that cannot be read is left out; `overview` names it."""
        return self.overview()[0]

    def overview(self) -> tuple[tuple[IncidentSummary, ...], tuple[str, ...]]:
        """`rows`, and the names of folders that hold no readable incident."""
        return self._ask(lambda db: (self._rows(db), self._unreadable(db)))

    def stored(self) -> Mapping[UserName, int]:
        """Bytes on disk of incidents' documents and of what the workflow database holds of them, by the owner of their
        jobs; an owner that is not known yet is left out."""

        def ask(db: sqlite3.Connection) -> Mapping[UserName, int]:
            sums: Counter[UserName] = Counter()
            for row in self._rows(db):
                if row.owner and row.id in self._stamps:
                    sums[UserName(row.owner)] += RECORDED * self._stamps[row.id].size_bytes
            return sums

        return self._ask(ask)

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each incident's document."""
        return self._ask(lambda _db: {name: stamp.size_bytes for name, stamp in self._stamps.items()})

    def totals(self) -> tuple[tuple[IncidentSummary, ...], Mapping[Key, int]]:
        """`rows`, and the sums over them and over those that were removed, from one look at the documents."""
        figures = "SELECT figure, value FROM totals"
        for _ in range(_MOST_LOOKS):
            # Of incidents that have gone; what goes while this looks is neither missed nor counted twice.
            pruned = load_pruned(self._store.root)
            rows, sums, names = self._ask(
                lambda db: (
                    self._rows(db), {tuple(json.loads(key)): value for key, value in db.execute(figures)},
                    frozenset(self._stamps),
                )
            )
            if pruned == load_pruned(self._store.root):
                break
        whole = Counter(sums)
        whole.update(pruned.figures(names.__contains__))
        return rows, whole

    def all(self) -> dict[str, Remembered]:
        """Every witness by its incident's name."""

        def ask(db: sqlite3.Connection) -> dict[str, Remembered]:
            found = self._parsed(db, "SELECT witness FROM incidents WHERE name = ?", _witness(), self._witnesses)
            return {name: past for name, past in found.items() if past is not None}

        return self._ask(ask)

    def like(self, now: Remembered) -> tuple[Remembered, ...]:
        """As the port says. What was written since is read first, as far as it is not too much."""
        asked = {
            "kind": now.kind, "system": now.circumstances.system, "incident": now.incident, "script": now.script,
            "series": now.series,
        }

        def ask(db: sqlite3.Connection) -> tuple[Remembered, ...]:
            found = [
                _witness().validate_json(text, context=load_kinds())
                for own, most in ((1, _MOST_OWN), (0, _MOST_OTHERS))
                for _, text in db.execute(_ALIKE, {**asked, "own": own, "most": most})
            ]
            return tuple(sorted(found, key=lambda past: past.opened_s, reverse=True))

        return self._ask(ask, whole=False)

    def drains_since(self, time_s: float) -> int:
        """As the port says."""
        return sum(1 for row in self.rows() for drained_s in row.tally.drained_at if drained_s >= time_s)

    # -- looking at the documents ----------------------------------------------------------------------------

    def _ask(self, question: Callable[[sqlite3.Connection], _Answer], *, whole: bool = True) -> _Answer:
        """The answer once everything written since is read; not `whole`: once a little of it is."""
        while True:
            # A thousand documents at a time, so that a question that needs few of them does not wait for all.
            with self._lock:
                answered = self._tried(question, whole)
            if answered is not None:
                return answered[0]

    def _tried(self, question: Callable[[sqlite3.Connection], _Answer], whole: bool) -> tuple[_Answer] | None:
        """None: there is more to read. A file that fails is made again where it is damaged, and left alone for a copy
        in memory where it cannot be used."""
        for last in (False, False, True):
            try:
                db = self._connected()
                left = self._look(db, _READ_AT_ONCE if whole else _READ_FOR_FEW)
                return None if left and whole else (question(db),)
            except (sqlite3.Error, ValueError) as error:
                if last:
                    raise Unavailable(
                        f"the incidents could not be read together: {error}", where=str(self._path),
                        next_step="remove the file, it is made again",
                    ) from error
                self._give_up(damaged=not isinstance(error, sqlite3.OperationalError))
        raise AssertionError("the last attempt returns or raises")

    def _look(self, db: sqlite3.Connection, most: int) -> bool:
        """Read what was written since, the newest first, `most` at a time. True: there is more."""
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            # Another process has written, or the file was just opened.
            read = db.execute("SELECT name, modified_ns, size_bytes, inode FROM incidents")
            self._stamps = {name: Stamp(*stamp) for name, *stamp in read}
            self._version, self._newest = version, None
        known, found = self._stamps, self._store.stamps(self._stamps)
        changed = [name for name, stamp in found.items() if known.get(name) != stamp]
        gone = [name for name in known if name not in found]
        if changed or gone:
            changed.sort(key=lambda name: found[name].modified_ns, reverse=True)
            self._write(db, [self._made(name, found[name]) for name in changed[:most]], gone)
            self._newest = None
        return len(changed) > most

    def _made(self, name: str, stamp: Stamp) -> _Made:
        try:
            incident = self._store.load(IncidentId(name))
        except RunbookError:
            return _Made(name, stamp)
        row, past = summarize(incident), remember(incident)
        made = _Made(name, stamp, figures_of(row), _text(_summary(), row))
        # What cannot be told in JSON is no witness.
        with contextlib.suppress(ValueError):
            if past is not None:
                found_by = (past.kind, past.circumstances.system, past.script, past.series)
                return replace(made, witness=_text(_witness(), past), found_by=found_by)
        return made

    def _write(self, db: sqlite3.Connection, made: list[_Made], gone: list[str]) -> None:
        """All of it or nothing. A document that another process has written meanwhile is left for the next look, as a
        sum that falls and rises again is a restart to Prometheus."""
        totals: Counter[Key] = Counter()
        with db:
            db.execute("BEGIN IMMEDIATE")
            for one in made:
                if self._store.stamp(one.name) == one.stamp:
                    totals.subtract(self._taken_out(db, one.name))
                    totals.update(one.figures)
                    row = (one.name, *one.stamp, one.summary, one.witness, *one.found_by)
                    db.execute("INSERT INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                    self._stamps[one.name] = one.stamp
            for name in gone:
                if self._store.stamp(name) is None:
                    totals.subtract(self._taken_out(db, name))
            db.executemany(
                "INSERT INTO totals VALUES (?, ?) ON CONFLICT (figure) DO UPDATE SET value = value + excluded.value",
                [(json.dumps(key), value) for key, value in totals.items()],
            )

    def _taken_out(self, db: sqlite3.Connection, name: str) -> Mapping[Key, int]:
        """The figures of a row that is no longer there."""
        self._stamps.pop(name, None)
        (before,) = db.execute("SELECT summary FROM incidents WHERE name = ?", (name,)).fetchone() or ("",)
        db.execute("DELETE FROM incidents WHERE name = ?", (name,))
        return figures_of(_summary().validate_json(before, context=load_kinds())) if before else {}

    def _rows(self, db: sqlite3.Connection) -> tuple[IncidentSummary, ...]:
        if self._newest is None:
            found = self._parsed(db, "SELECT summary FROM incidents WHERE name = ?", _summary(), self._summaries)
            rows = [row for row in found.values() if row is not None]
            self._newest = tuple(sorted(rows, key=lambda row: (row.opened_s, row.id), reverse=True))
        return self._newest

    def _unreadable(self, db: sqlite3.Connection) -> tuple[str, ...]:
        return tuple(name for (name,) in db.execute("SELECT name FROM incidents WHERE summary = '' ORDER BY name"))

    def _parsed(
        self,
        db: sqlite3.Connection,
        column: str,
        adapter: TypeAdapter[_Parsed],
        known: dict[str, tuple[Stamp, _Parsed | None]],
    ) -> dict[str, _Parsed | None]:
        """A column of every incident; what is `known` of unchanged ones is not read twice."""
        for name in known.keys() - self._stamps.keys():
            del known[name]
        for name, stamp in self._stamps.items():
            if name not in known or known[name][0] != stamp:
                (text,) = db.execute(column, (name,)).fetchone()
                known[name] = stamp, adapter.validate_json(text, context=load_kinds()) if text else None
        return {name: value for name, (_, value) in known.items()}

    # -- the file --------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._file is not None and self._file != _on_disk(self._path):
            # Somebody has removed it, or made it anew.
            self._close()
        if self._db is None:
            self._open()
        elif self._file is not None and not _is_ours(self._db):
            # A process of another version has made it anew: two of them must not do that in turns.
            self._copy()
        assert self._db is not None
        return self._db

    def _open(self) -> None:
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError:
            self._copy()
            return
        self._db, self._file = _connect(str(self._path)), _on_disk(self._path)
        if not _is_ours(self._db):
            _make_tables(self._db)

    def _copy(self) -> None:
        """In memory, with what can be read of the file."""
        self._close()
        self._db = _connect(":memory:")
        readable = f"file:{quote(str(self._path))}?mode=ro"
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(readable)) as file:
            if _is_ours(file):
                file.backup(self._db)
        if not _is_ours(self._db):
            _make_tables(self._db)

    def _give_up(self, damaged: bool) -> None:
        """Of the database that is open: what comes next is made anew, in the file or else in memory."""
        if not damaged:
            self._copy()
            return
        self._close()
        try:
            for name in (f"{self._path}-journal", self._path):
                Path(name).unlink(missing_ok=True)
        except OSError:
            self._db = _connect(":memory:")
            _make_tables(self._db)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._file, self._version, self._stamps, self._newest = None, None, -1, {}, None


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name, timeout=_LOCK_S, isolation_level=None, check_same_thread=False, uri=name.startswith("file:")
    )


def _on_disk(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_ours(db: sqlite3.Connection) -> bool:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return bool(version == _schema())


def _make_tables(db: sqlite3.Connection) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        if not _is_ours(db):
            for statement in (*_TABLES, f"PRAGMA user_version = {_schema()}"):
                db.execute(statement)


def _text(adapter: TypeAdapter[_Parsed], value: _Parsed) -> str:
    """Rows are shown to people and compared: bytes that were not UTF-8 are U+FFFD in them."""
    try:
        return adapter.dump_json(value).decode()
    except ValueError:
        return json.dumps(without_surrogates(adapter.dump_python(value, mode="json")), allow_nan=False)


@cache
def _schema() -> int:
    """A file whose rows have other fields is made again."""
    kinds = (IncidentSummary, LeverTry, Tally, Remembered, TriedLever, Circumstances)
    names = [field.name for kind in kinds for field in dataclass_fields(kind)]
    return zlib.crc32(" ".join((str(_MADE), *_TABLES, *names)).encode()) & 0x7FFFFFFF


@cache
def _summary() -> TypeAdapter[IncidentSummary]:
    return TypeAdapter(IncidentSummary)


@cache
def _witness() -> TypeAdapter[Remembered]:
    return TypeAdapter(Remembered)
