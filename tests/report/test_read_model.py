"""The one file behind list, history and metrics: made anew whenever it has to be, never in anybody's way."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.model.incident import Act, Incident, IncidentState
from runbook.model.units import IncidentId
from runbook.report.json_documents import dump_incident
from runbook.report.summary import IncidentSummary
from tests.report.sample_incidents import OPENED_S, just_opened, recovered


def _numbered(number: int) -> Incident:
    return replace(recovered(), id=IncidentId(f"oom-alpha-{number}"), opened_s=OPENED_S + number)


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    store = IncidentStore(tmp_path / "state")
    for number in range(3):
        store.save(_numbered(number))
    return store


@contextmanager
def _full_disk() -> Iterator[None]:
    """The kernel refuses every write of this process alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def _file(store: IncidentStore) -> Path:
    return store.root / "incidents.sqlite"


def _answers(store: IncidentStore) -> tuple[object, ...]:
    """Everything that is asked of it, by a process that knows nothing yet."""
    incidents = ReadModel(store)
    return incidents.overview(), incidents.all(), incidents.totals()


def test_it_is_private_and_there_from_the_first_question_on(store: IncidentStore) -> None:
    ReadModel(store).rows()
    assert stat.S_IMODE(_file(store).stat().st_mode) == 0o600


def test_a_store_without_incidents_has_empty_answers(tmp_path: Path) -> None:
    assert _answers(IncidentStore(tmp_path / "nowhere")) == (((), ()), {}, ((), {}))
    assert not (tmp_path / "nowhere").exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _scribbled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)


def _of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 7")
        file.commit()


def _row_of_another_shape(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE incidents SET summary = '{}', witness = '{}'")
        file.commit()


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"\xff" * 100), _cut, _scribbled,
        _of_another_version, _row_of_another_shape,
    ],
    ids=["gone", "empty", "no database", "cut", "scribbled", "another version", "rows of another shape"],
)
def test_a_file_that_cannot_be_used_is_made_again(store: IncidentStore, damage: Callable[[Path], object]) -> None:
    watching = ReadModel(store)
    expected = _answers(store)
    assert (watching.overview(), watching.all(), watching.totals()) == expected
    damage(_file(store))
    assert _answers(store) == expected
    assert (watching.overview(), watching.all(), watching.totals()) == expected
    with closing(sqlite3.connect(_file(store))) as file:
        assert file.execute("SELECT count(*) FROM incidents").fetchone() == (3,)
    assert stat.S_IMODE(_file(store).stat().st_mode) == 0o600


def test_a_full_disk_keeps_nobody_from_an_answer(store: IncidentStore) -> None:
    expected = _answers(store)
    _file(store).unlink()
    with _full_disk():
        assert _answers(store) == expected
    ReadModel(store).rows()
    store.save(_numbered(7))
    with _full_disk():
        assert len(ReadModel(store).rows()) == 4


def test_a_reader_who_may_not_write_is_answered() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = IncidentStore(Path(folder))
        for number in range(3):
            store.save(_numbered(number))
        ReadModel(store).rows()
        store.save(replace(_numbered(1), state=IncidentState.ESCALATED))
        before = _file(store).read_bytes()
        for path in (*store.root.rglob("*"), store.root):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with multiprocessing.get_context("fork").Pool(1, initializer=_become_somebody) as pool:
            found = pool.apply(_rows_of, (store.root,))
        for path in (store.root, *store.root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        assert _file(store).read_bytes() == before
    assert [row.state for row in found] == [IncidentState.RECOVERED, IncidentState.ESCALATED, IncidentState.RECOVERED]


def _become_somebody() -> None:
    """The superuser may write everywhere."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def _rows_of(root: Path) -> tuple[IncidentSummary, ...]:
    return ReadModel(IncidentStore(root)).rows()


def test_a_file_that_is_held_by_another_keeps_nobody_from_an_answer(store: IncidentStore) -> None:
    ReadModel(store).rows()
    store.save(_numbered(9))
    with closing(sqlite3.connect(_file(store), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert len(ReadModel(store).rows()) == 4


def test_what_another_process_wrote_is_seen(store: IncidentStore) -> None:
    here, there = ReadModel(store), ReadModel(IncidentStore(store.root))
    assert here.rows() == there.rows()
    store.save(_numbered(5))
    assert here.totals() == there.totals()
    assert len(there.rows()) == 4
    (store.folder(IncidentId("oom-alpha-5")) / "incident.json").unlink()
    assert here.totals() == there.totals()
    assert len(there.rows()) == 3


def test_many_processes_make_it_at_once_and_none_counts_twice(store: IncidentStore) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(_sums_of, [store.root] * 8)
    assert len({tuple(sorted(sums.items())) for sums in found}) == 1
    assert found[0]["opened", "alpha", "oom"] == 3


def _sums_of(root: Path) -> dict[tuple[str, ...], int]:
    return dict(ReadModel(IncidentStore(root)).totals()[1])


def test_a_document_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    document = dump_incident(replace(just_opened(), id=IncidentId("oom-alpha-1")))
    for number in range(50):
        folder = store.root / "incidents" / f"oom-alpha-{number}"
        folder.mkdir(parents=True)
        (folder / "incident.json").write_bytes(document.replace(b"oom-alpha-1", f"oom-alpha-{number}".encode()))
    before = ReadModel(store).rows()
    assert len(before) == 50
    for path in store.root.glob("incidents/*/incident.json"):
        # Whoever opened it would stumble; size, inode and time say that it is the one that was read.
        stamp = path.stat()
        with path.open("r+b") as file:
            file.write(b"\0" * stamp.st_size)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert ReadModel(IncidentStore(store.root)).rows() == before


def test_drains_of_all_incidents_are_counted_from_a_time_on(store: IncidentStore) -> None:
    def act(node: str, time_s: float, planned_only: bool = False) -> Act:
        return Act("drain", node, time_s, result="runbook:x GPU 1", planned_only=planned_only)

    drained = replace(_numbered(0), acts=(act("gpu-1", OPENED_S), act("gpu-2", OPENED_S + 100)))
    store.save(drained)
    store.save(replace(_numbered(1), acts=(act("gpu-3", OPENED_S + 200), act("gpu-4", OPENED_S, planned_only=True))))
    assert [ReadModel(store).drains_since(OPENED_S + late) for late in (0, 100, 201)] == [3, 2, 0]
