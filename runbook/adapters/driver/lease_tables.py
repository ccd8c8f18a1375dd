"""What PostgreSQL keeps for several daemons: whose turn it is, who waits, and what decides whether an act is repeated.

Every time is the database's own, so that no host's clock counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from runbook.adapters.driver import Holder
from runbook.errors import BadInput, RunbookError, Unavailable
from runbook.model.units import IncidentId

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

LEASE_S = 15.0
"""What is granted each time."""
ANSWER_S = 3.0
"""A database that takes longer does not answer."""
_SEEN_S = 10.0
"""A daemon that waits says so every second; one that has not for so long is gone."""
_Answer = TypeVar("_Answer")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runbook_driver (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), cluster text NOT NULL, store text NOT NULL, token text NOT NULL,
    kind text NOT NULL, host text NOT NULL, pid integer NOT NULL, until timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS runbook_waiting (
    host text, pid integer, seen timestamptz NOT NULL, PRIMARY KEY (host, pid));
CREATE TABLE IF NOT EXISTS runbook_kept (
    incident text, place text, content bytea NOT NULL, PRIMARY KEY (incident, place));
"""
_HELD = "SELECT cluster, store, host, pid FROM runbook_driver WHERE until > clock_timestamp()"
_TAKE = f"""
INSERT INTO runbook_driver (cluster, store, token, kind, host, pid, until) VALUES (%(cluster)s, %(store)s, %(token)s,
    %(kind)s, %(host)s, %(pid)s, clock_timestamp() + interval '{LEASE_S} seconds')
ON CONFLICT (one) DO UPDATE SET (cluster, store, token, kind, host, pid, until) = (excluded.cluster, excluded.store,
    excluded.token, excluded.kind, excluded.host, excluded.pid, excluded.until)
WHERE runbook_driver.until < clock_timestamp() RETURNING 1
"""  # noqa: S608  (a number of ours)
_WAIT = """
INSERT INTO runbook_waiting VALUES (%(host)s, %(pid)s, clock_timestamp())
ON CONFLICT (host, pid) DO UPDATE SET seen = excluded.seen
"""
_WAITS_NO_MORE = """
DELETE FROM runbook_waiting WHERE (host = %(host)s AND pid = %(pid)s) OR seen < clock_timestamp() - interval '1 day'
"""
_RENEW = f"""
UPDATE runbook_driver SET until = clock_timestamp() + interval '{LEASE_S} seconds'
WHERE token = %s AND until > clock_timestamp() RETURNING 1
"""  # noqa: S608  (a number of ours)
_GIVE_BACK = "UPDATE runbook_driver SET until = to_timestamp(0) WHERE token = %s"
_DRIVER = """
SELECT kind, host, pid, extract(epoch FROM until - clock_timestamp())::float FROM runbook_driver
WHERE until > clock_timestamp()
"""
_WAITING = f"""
SELECT host, pid FROM runbook_waiting WHERE seen > clock_timestamp() - interval '{_SEEN_S} seconds' ORDER BY host, pid
"""  # noqa: S608  (a number of ours)
_KEEP = """
WITH ours AS (SELECT 1 FROM runbook_driver WHERE token = %(token)s AND until > clock_timestamp() FOR SHARE)
INSERT INTO runbook_kept SELECT %(incident)s, %(place)s, %(content)s FROM ours
ON CONFLICT (incident, place) DO UPDATE SET content = excluded.content RETURNING 1
"""
_FORGET = "DELETE FROM runbook_kept WHERE incident = %s"
_KEPT_OF = "SELECT incident, place, content FROM runbook_kept WHERE starts_with(incident, %s)"
_KEPT = "SELECT content FROM runbook_kept WHERE incident = %s AND place = %s"


@dataclass(frozen=True, slots=True)
class Seen:
    """Who is there, as the database has it."""

    holder: Holder | None
    """None: nobody drives."""
    left_s: float
    """Of the holder's lease."""
    waiting: tuple[Holder, ...]
    """Daemons that would take over."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and for what."""

    cluster: str
    store: str
    """What the state folder is known by."""
    kind: str
    host: str
    pid: int


class LeaseTables:
    """Every method raises `Unavailable` when there is no answer within 3 s: what was asked may have been done then."""

    def __init__(self, url: str) -> None:
        self._line = _Line(url)

    def take(self, asker: Asker, token: str) -> bool:
        """Whether the lease is the token's now. A daemon that does not get it is noted as waiting. Raises `BadInput`
        where whoever holds it works over another state folder or for another cluster."""
        values = {
            "cluster": asker.cluster, "store": asker.store, "kind": asker.kind, "host": asker.host, "pid": asker.pid,
            "token": token,
        }

        def work(connection: Connection) -> bool:
            held = connection.execute(_HELD).fetchone()
            if held is not None:
                _check_same(held, asker)
            taken = held is None and connection.execute(_TAKE, values).fetchone() is not None
            if taken or asker.kind == "daemon":
                connection.execute(_WAITS_NO_MORE if taken else _WAIT, _who(values))
            return taken

        return self._line.ask(work)

    def renew(self, token: str) -> bool:
        """False: it is another's, or has run out."""
        return self._line.ask(lambda connection: connection.execute(_RENEW, [token]).fetchone()) is not None

    def give_back(self, token: str) -> None:
        self._line.ask(lambda connection: connection.execute(_GIVE_BACK, [token]))

    def waits_no_more(self, asker: Asker) -> None:
        values = {"host": asker.host, "pid": asker.pid}
        self._line.ask(lambda connection: connection.execute(_WAITS_NO_MORE, values))

    def seen(self) -> Seen:
        def work(connection: Connection) -> Seen:
            driver = connection.execute(_DRIVER).fetchone()
            waiting = tuple(Holder("daemon", pid, host) for host, pid in connection.execute(_WAITING).fetchall())
            if driver is None:
                return Seen(None, 0.0, waiting)
            kind, host, pid, left_s = driver
            return Seen(Holder(kind, pid, host), left_s, waiting)

        return self._line.ask(work)

    def keep(self, token: str, incident: IncidentId, place: str, content: bytes) -> bool:
        """Keep a small document of an incident, in one go with the look whether the lease is the token's; False where
        it is not."""
        values = {"token": token, "incident": incident, "place": place, "content": content}
        return self._line.ask(lambda connection: connection.execute(_KEEP, values).fetchone()) is not None

    def kept(self, incident: IncidentId, place: str) -> bytes | None:
        """What was kept."""
        found = self._line.ask(lambda connection: connection.execute(_KEPT, [incident, place]).fetchone())
        return None if found is None else bytes(found[0])

    def kept_of(self, prefix: str) -> dict[tuple[str, str], bytes]:
        """All that was kept of incidents whose id begins so, by incident and place."""
        rows = self._line.ask(lambda connection: connection.execute(_KEPT_OF, [prefix]).fetchall())
        return {(incident, place): bytes(content) for incident, place, content in rows}

    def forget(self, incident: IncidentId) -> None:
        """Keep nothing more of the incident."""
        self._line.ask(lambda connection: connection.execute(_FORGET, [incident]))

    def close(self) -> None:
        self._line.close()


def _who(values: Mapping[str, object]) -> dict[str, object]:
    return {name: values[name] for name in ("host", "pid")}


def _check_same(held: tuple[Any, ...], asker: Asker) -> None:
    cluster, store, host, pid = held
    if cluster != asker.cluster:
        raise BadInput(
            f"the workflow database is that of cluster {cluster}, which pid {pid} on {host} drives, and this inventory "
            f"is of {asker.cluster}",
            where="database of the inventory", next_step="give each cluster a database of its own",
        )
    if store != asker.store:
        raise BadInput(
            f"pid {pid} on {host} drives the same database over another state folder: what one does would be unknown "
            "to the other",
            where="paths.state of the inventory", next_step="name the same shared folder in both inventories",
        )


class _Line:
    """One connection that is asked one thing at a time and never waited for longer than is said: the library itself
    waits for a database that is cut off as long as that takes."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def ask(self, work: Callable[[Connection], _Answer]) -> _Answer:
        if not self._lock.acquire(timeout=ANSWER_S):
            raise _no_answer("it was asked something else before")
        try:
            return self._asked(work)
        finally:
            self._lock.release()

    def _asked(self, work: Callable[[Connection], _Answer]) -> _Answer:
        found: list[_Answer] = []
        failed: list[BaseException] = []
        used = [self._connection] if self._connection is not None else []

        def go() -> None:
            try:
                if not used:
                    used.append(_connected(self._url))
                found.append(work(used[0]))
            except BaseException as error:  # handed to whoever waits
                failed.append(error)

        thread = threading.Thread(target=go, name="lease-question", daemon=True)
        thread.start()
        thread.join(ANSWER_S)
        if found:
            self._connection = used[0]
            return found[0]
        self._connection = None
        for connection in used:
            # Wakes the thread where it still waits for an answer.
            with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        if failed and isinstance(failed[0], RunbookError):
            raise failed[0]
        # Its text may hold the address with the password.
        raise _no_answer(type(failed[0]).__name__ if failed else f"not within {ANSWER_S:g} s")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._connection is not None:
                self._connection.close()
        self._connection = None


def _connected(url: str) -> Connection:
    try:
        import psycopg
    except ImportError as error:
        raise BadInput(
            f"PostgreSQL cannot be spoken to here: {error}", where="database of the inventory",
            next_step="install runbook with its extra `postgres`",
        ) from error

    def connect(**other: str) -> Connection:
        return psycopg.connect(url, autocommit=True, connect_timeout=int(ANSWER_S), **other)  # type: ignore[arg-type]

    try:
        connection = connect()
    except psycopg.OperationalError:
        # As the workflows' library does: the database itself is made where the server has none of the name.
        name = str(psycopg.conninfo.conninfo_to_dict(url).get("dbname") or "")
        with connect(dbname="postgres") as server:
            if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                raise
            with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                server.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        connection = connect()
    with connection.transaction():
        # Two that make the same tables at once would trip over each other; one that is cut off must not hold the other.
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{LEASE_S}s'")
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('runbook_driver'))")
        connection.execute(_SCHEMA)
    return connection


def _no_answer(why: str) -> Unavailable:
    return Unavailable(
        f"the workflow database does not answer ({why})", where="database of the inventory",
        next_step="see whether PostgreSQL runs and is reached from here; nothing is done meanwhile",
    )
