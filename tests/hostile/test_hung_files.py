"""File systems that do not answer, under what a job left behind: real ones, where whoever asks waits in the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runbook.adapters import silent
from runbook.adapters.files import OwnerFiles
from runbook.adapters.silent import MOST_AN_OWNER, FileSystems
from runbook.cage import keeper, visit
from runbook.errors import Hung
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import UserName
from tests.hostile.hanging_files import Place, mounted, place
from tests.hostile.scene import LIMITS, Service, application, ended, failed_job, opened

pytestmark = [
    pytest.mark.needs("fusermount3"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system for other users"),
]
OWNER = UserName("daemon")
__all__ = ["place"]


def _gone(systems: FileSystems) -> None:
    deadline = time.monotonic() + 20
    while systems.left:
        assert time.monotonic() < deadline, systems.waiting()
        time.sleep(0.02)


@pytest.mark.parametrize("what", ["stat", "open"])
def test_opening_a_file_ends_with_the_path_and_what_to_do(place: Place, what: str) -> None:
    path = place.file(f"hangs-at-{what}.log")
    with pytest.raises(Hung) as raised, OwnerFiles(timeout_s=0.5, apart=True).handed(path, OWNER):
        pass
    assert path in raised.value.what and f"{place.shown} (fuse" in raised.value.next_step


@pytest.mark.timeout(300)
def test_incidents_end_with_a_person_and_the_service_can_end(place: Place, tmp_path: Path) -> None:
    """Logs that hang when they are looked for, opened, read or closed, and an honest job before each."""
    app = application(tmp_path, LIMITS.model_copy(update={"wall_s": 60}))
    app.__dict__["settings"] = app.inventory.model_copy(
        update={"policy": app.inventory.policy.model_copy(update={"unavailable_patience_s": 0.0})}
    )
    app.__dict__["files"] = OwnerFiles(timeout_s=3, systems=app.file_systems, apart=True)
    hangs = {what: place.file(f"hangs-at-{what}.log") for what in ("stat", "open", "read", "close")}
    good = tmp_path / "good.log"
    good.write_text("x\n")
    last = {}
    with Service(app) as engine:

        def begun(what: str, path: str) -> Incident:
            job = failed_job(app, tmp_path, f"reads_beside.{what}")
            (tmp_path / f"reads_beside.{what}.sh.path").write_text(path)
            incident = opened(app, job)
            engine.enqueue(incident)
            return incident

        # One after the other: an owner's second read of a mount that did not answer would not be begun.
        for what, path in hangs.items():
            # The honest one is ended first: behind four reads that hang its owner's files are not asked at all.
            honest = ended(app, engine, begun(f"good-{what}", str(good)))
            assert honest.visits[0].outcome == "identified", honest.conclusion
            last[what] = ended(app, engine, begun(what, path))
        for what, path in hangs.items():
            assert last[what].state is IncidentState.INTERRUPTED, (what, last[what].conclusion)
            assert last[what].conclusion == f"Interrupted: the file system of {path} did not answer within " + (
                "20 s." if what == "read" else "3 s."
            )
            assert f"{place.shown} (fuse" in last[what].to_do[0] and "runbook resume" in last[what].to_do[-1]
        assert 0 < app.file_systems.left <= MOST_AN_OWNER + 1
        assert app.cage.at_work() == (), "no place is held by what hangs"
        # What waits in the kernel cannot be ended: none of it may be a part of the service.
        tasks = [path.read_text().rpartition(")")[2].split()[0] for path in Path("/proc/self/task").glob("*/stat")]
        assert "D" not in tasks


def test_no_more_than_a_few_wait_for_one_owner_and_others_are_read(place: Place, tmp_path: Path) -> None:
    systems = FileSystems()
    files = OwnerFiles(timeout_s=0.2, systems=systems, apart=True)
    path = place.file("hangs-at-open.log")
    for _ in range(MOST_AN_OWNER + 3):
        with pytest.raises(Hung):
            files.open(path, OWNER)
    assert systems.left == MOST_AN_OWNER
    assert systems.waiting() == (f"{MOST_AN_OWNER} of daemon for {place.shown}",)
    elsewhere = tmp_path / "elsewhere.log"
    elsewhere.write_text("y\n")
    with pytest.raises(Hung, match=f"{MOST_AN_OWNER} earlier reads of daemon's files still wait"):
        files.open(str(elsewhere), OWNER)
    with OwnerFiles(systems=systems, apart=True).open(str(elsewhere), UserName("root")) as stream:
        assert stream.read() == b"y\n"
    with OwnerFiles(systems=systems, apart=True).open(place.file("good.log"), UserName("root")) as stream:
        assert stream.read() == b"x\n", "another's read of the same mount, which answers him"


def test_once_it_answers_all_is_read_again(tmp_path: Path) -> None:
    systems, source = FileSystems(), tmp_path / "source"
    source.mkdir()
    files = OwnerFiles(timeout_s=0.3, systems=systems, apart=True)
    with mounted(tmp_path / "shown", source):
        place = Place(tmp_path / "shown", source)
        path = place.file("hangs-at-open.log")
        with pytest.raises(Hung):
            files.open(path, UserName("root"))
        assert systems.left == 1
    _gone(systems)
    elsewhere = tmp_path / "elsewhere.log"
    elsewhere.write_text("y\n")
    assert files.read_small(str(elsewhere), UserName("root")) == b"y\n"


@pytest.mark.timeout(120)
def test_a_box_waits_only_so_long_for_its_owners_files_and_then_he_has_one_place(
    monkeypatch: pytest.MonkeyPatch, place: Place, tmp_path: Path
) -> None:
    """Who stops his own helpers has each answer in time, if late."""
    monkeypatch.setattr(visit, "FILES_S", 1.0)
    monkeypatch.setattr(keeper, "FILES_S", 1.0)
    app = application(tmp_path, LIMITS)
    app.__dict__["files"] = OwnerFiles(timeout_s=60, systems=app.file_systems, apart=True)
    job = failed_job(app, tmp_path, "reads_beside.slow")
    (tmp_path / "reads_beside.slow.sh.path").write_text(place.file("hangs-at-open.log"))
    with Service(app) as engine:
        incident = opened(app, job)
        engine.enqueue(incident)
        incident = ended(app, engine, incident)
    assert "waited for its owner's files for more than 1 s" in " ".join((incident.conclusion, *incident.notes))
    assert app.file_systems.slow(app.scheduler.job(job).owner)


def test_an_owner_whose_files_are_late_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = FileSystems()
    with systems.asked("/", "ann"):
        pass
    monkeypatch.setattr(silent, "_SLOW_ANSWER_S", 0.0)
    with systems.asked("/", "ben"):
        pass
    with pytest.raises(FileNotFoundError), systems.asked("/", "cid"):
        raise FileNotFoundError
    assert [systems.slow(owner) for owner in ("ann", "ben", "cid")] == [False, True, True]
