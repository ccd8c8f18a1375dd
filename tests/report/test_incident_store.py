"""Incident folders on a real file system: whole or not at all, private, quick to list, never outside the root."""

from __future__ import annotations

import io
import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.adapters.store import IncidentStore, check_incident_id
from runbook.adapters.store.read_model import ReadModel
from runbook.errors import BadInput, NotFound, Unavailable
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId
from tests.report.sample_incidents import OPENED_S, co_tenant, just_opened, recovered


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _numbered(number: int) -> Incident:
    return replace(just_opened(), id=IncidentId(f"oom-alpha-{number}"), opened_s=OPENED_S + number)


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    return IncidentStore(tmp_path / "state")


@pytest.fixture
def file_size_limit() -> Iterator[int]:
    """The kernel refuses to write past this size: a full disk, for real and for this process alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    yield 4_096
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_is_saved_is_loaded_again_with_its_contract(store: IncidentStore) -> None:
    store.save(recovered(), {"version": 1})
    assert store.load(recovered().id) == recovered()
    assert store.load_contract(recovered().id) == {"version": 1}
    assert store.exists(recovered().id)
    assert not store.exists(co_tenant().id)


def test_the_contract_is_made_where_none_is_given(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path, contract_of=lambda incident: {"of": incident.id})
    store.save(recovered())
    assert store.load_contract(recovered().id) == {"of": recovered().id}


def test_an_unknown_incident_is_not_found(store: IncidentStore) -> None:
    with pytest.raises(NotFound, match="no incident oom-alpha-1") as refusal:
        store.load(IncidentId("oom-alpha-1"))
    assert "runbook incidents" in refusal.value.next_step
    assert ReadModel(store).rows() == ()


@pytest.mark.parametrize(
    "name",
    [
        "", "oom-", "../x", "oom-a/../b", "oom-a..b-1", "oom-a-1\n", "oom-\u202e-1", "oom-a-1/..", "Oom-a-1", "x-",
        "oom-" + "a" * 300,
    ],
)
def test_what_is_no_incident_id_is_refused_before_the_disk_is_touched(store: IncidentStore, name: str) -> None:
    with pytest.raises(BadInput):
        store.write_file(IncidentId(name), "a", b"")
    with pytest.raises(BadInput):
        store.load(IncidentId(name))
    assert not store.root.exists()


@pytest.mark.parametrize(
    "name", ["oom-alpha-884213", "oom-alpha-884213_17", "oom-my.cluster_2-12+0", "oom-local-files-ab12"]
)
def test_ids_of_plain_array_and_heterogeneous_jobs_are_accepted(name: str) -> None:
    assert check_incident_id(name) == name


@given(st.text(st.sampled_from("./ab\0-~")))
@settings(max_examples=200)
def test_no_relative_path_leads_out_of_the_folder(relative: str) -> None:
    store = IncidentStore(Path("/nowhere"))
    try:
        path = store.path(IncidentId("oom-a-1"), relative)
    except BadInput:
        return
    assert Path(os.path.normpath(path)).parent.is_relative_to("/nowhere/incidents/oom-a-1")


def test_a_link_in_an_incident_folder_is_not_followed(store: IncidentStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    store.save(recovered())
    (store.folder(recovered().id) / "linked").symlink_to(secret)
    with pytest.raises(Unavailable):
        store.read_file(recovered().id, "linked")
    store.write_file(recovered().id, "linked", b"ours")
    assert secret.read_text() == "not yours"
    assert store.read_file(recovered().id, "linked") == b"ours"


def test_others_reach_the_patched_copy_and_nothing_else(store: IncidentStore) -> None:
    before = os.umask(0)
    try:
        saved = store.save(recovered())
        template = store.write_file(recovered().id, "attempts/1/train.sh", b"#!/bin/sh\n", mode=0o644)
        log, _ = store.copy_stream(recovered().id, "evidence/job.out", io.BytesIO(b"secret"), 100)
        ReadModel(store).rows()
    finally:
        os.umask(before)
    folder = store.folder(recovered().id)
    assert (_mode(saved), _mode(log), _mode(log.parent)) == (0o600, 0o600, 0o700)
    assert _mode(template) == 0o644
    passable = [store.root, folder.parent, folder, template.parent, template.parent.parent]
    assert [_mode(path) for path in passable] == [0o711] * 5


def test_a_full_disk_is_said_and_leaves_the_version_before(store: IncidentStore, file_size_limit: int) -> None:
    small = just_opened()
    store.save(small)
    large = replace(small, notes=("x" * file_size_limit,))
    with pytest.raises(Unavailable) as refusal:
        store.save(large)
    assert "incident.json" in refusal.value.where
    assert "resume" in refusal.value.next_step
    assert store.load(small.id) == small
    assert [path.name for path in store.folder(small.id).iterdir()] == ["incident.json"]
    with pytest.raises(Unavailable):
        store.copy_stream(small.id, "evidence/log", io.BytesIO(b"y" * 10_000), 100_000)
    assert list((store.folder(small.id) / "evidence").iterdir()) == []


def test_a_reader_never_sees_half_an_incident(store: IncidentStore, tmp_path: Path) -> None:
    """Another process saves without pause and is killed; every look in between finds a whole incident."""
    store.save(recovered())
    script = (
        "from pathlib import Path\nfrom dataclasses import replace\n"
        "from runbook.adapters.store import IncidentStore\nfrom tests.report.sample_incidents import recovered\n"
        f"store = IncidentStore(Path({str(store.root)!r}))\nprint('ready', flush=True)\n"
        "n = 0\nwhile True:\n    n += 1\n    store.save(replace(recovered(), notes=(str(n) * 50_000,)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        seen: set[tuple[str, ...]] = set()
        start = time.monotonic()
        # A second at least; longer only where a busy machine has not let the writer save a few times yet.
        while time.monotonic() - start < (1.0 if len(seen) > 3 else 30.0):
            seen.add(store.load(recovered().id).notes)
        writer.kill()
    assert len(seen) > 1
    store.load(recovered().id)


def test_the_list_is_newest_first_and_follows_every_change(store: IncidentStore) -> None:
    for number in (1, 3, 2):
        store.save(_numbered(number))
    incidents = ReadModel(store)
    assert [row.id for row in incidents.rows()] == ["oom-alpha-3", "oom-alpha-2", "oom-alpha-1"]
    store.save(replace(_numbered(2), state=IncidentState.ESCALATED))
    assert incidents.rows()[1].state is IncidentState.ESCALATED
    assert ReadModel(IncidentStore(store.root)).rows() == incidents.rows()


def test_the_row_says_what_a_list_needs(store: IncidentStore) -> None:
    store.save(recovered())
    (row,) = ReadModel(store).rows()
    assert (row.kind, row.node, row.rank, row.relaunches) == ("true_oom", "gpu-22", 19, 1)
    assert row.jobs == ("884213", "884301")
    assert [(lever.lever, lever.worked) for lever in row.levers] == [("micro_batch_size", True)]


def test_an_incident_that_cannot_be_read_does_not_hide_the_others(store: IncidentStore) -> None:
    store.save(_numbered(1))
    store.save(_numbered(2))
    (store.folder(IncidentId("oom-alpha-1")) / "incident.json").write_text("{")
    (store.root / "incidents" / "lost+found").mkdir()
    rows, unreadable = ReadModel(store).overview()
    assert [row.id for row in rows] == ["oom-alpha-2"]
    assert unreadable == ("oom-alpha-1",)


class _Pipe(io.RawIOBase):
    """A log that can only be read onwards."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._rest.read(size)


@pytest.mark.parametrize("seekable", [True, False], ids=["file", "pipe"])
@pytest.mark.parametrize("lines", [0, 1, 10, 399, 400, 401, 4_000, 300_000])
def test_a_log_is_kept_whole_or_as_head_and_tail(store: IncidentStore, seekable: bool, lines: int) -> None:
    log = b"".join(b"line %6d of the log\n" % number for number in range(lines))
    limit = 400 * 23
    stream = io.BytesIO(log) if seekable else _Pipe(log)
    path, shortened = store.copy_stream(recovered().id, "evidence/job.out", stream, limit)  # type: ignore[arg-type]
    kept = path.read_bytes()
    assert shortened == (len(log) > limit)
    if not shortened:
        assert kept == log
        return
    head, _, rest = kept.partition(b"[runbook: ")
    note, _, tail = rest.partition(b"]\n")
    left_out, begin = (int(word) for word in note.split() if word.isdigit())
    assert log.startswith(head.rstrip(b"\n"))
    assert tail.startswith(b"line ")
    assert log[begin:] == tail
    assert len(log) == begin + len(tail)
    assert begin - left_out == limit // 4
    assert len(kept) <= limit + 200


def test_what_is_sparse_is_kept_sparse_and_byte_for_byte(store: IncidentStore) -> None:
    log = b"step 1\n" + bytes(8 << 20) + b"step 2\n" + bytes(4 << 20)
    path, shortened = store.copy_stream(recovered().id, "evidence/sparse.out", io.BytesIO(log), 64 << 20)
    assert not shortened and path.read_bytes() == log
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_log_without_a_line_end_is_kept_too(store: IncidentStore) -> None:
    path, shortened = store.copy_stream(recovered().id, "evidence/one.out", io.BytesIO(b"z" * 5_000_000), 1_000_000)
    assert shortened
    assert 900_000 < path.stat().st_size < 1_000_200
