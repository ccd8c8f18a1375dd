"""One user's failed jobs take no more than their share: of the places, of the disk, of a backup's time."""

from __future__ import annotations

import io
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS, SetWorkflowID
from sqlalchemy.exc import DBAPIError

from runbook.adapters.clock import SystemClock
from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.silent import FileSystems
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.archive import Manifest, give_modes, unpack, write_archive
from runbook.adapters.store.records import Packed
from runbook.adapters.whole_file import wrong_in
from runbook.cli import serve
from runbook.cli.wiring import Application
from runbook.config import CageDocument, KeepDocument
from runbook.engine import QUEUE
from runbook.errors import BadInput, Hung, NotAllowed, Unavailable
from runbook.flow import load_flow
from runbook.locations import playbook_folder
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.model.units import GIB, IncidentId, UserName
from runbook.service.daemon import Daemon, NoPlace, Opener, ServiceStatus
from runbook.service.daemon.opening import Disk, Room, TakingUp, in_turn
from runbook.service.spool import SpoolEvent, SpoolReader
from runbook.triggers import Opening
from tests.contract.fakes import FakeClock
from tests.flow.test_nodes_of_a_log import MESSAGE
from tests.hostile.scene import Quiet, Service, application, ended, failed_job, opened
from tests.report.stored_long_ago import closed, place, put


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)), check=True)
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as full, pytest.raises(OSError, match="No space"):
        while True:
            full.write(b"x" * 4096)


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _waits(number: int, owner: str) -> Incident:
    return replace(closed(number, 0, owner), state=IncidentState.AWAITING_APPROVAL, closed_s=None)


def _opener(app: Application) -> Opener:
    return replace(serve._opener_of(app), places=12)


def test_an_owner_whose_incidents_all_wait_keeps_nobody_elses_from_being_opened(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "train")
    mine = app.scheduler.job(job).owner
    event = SpoolEvent("f", "alpha", job, job, 0, SystemClock().now())
    # What is not looked at yet counts by what the scheduler told of its owner.
    app.cage.tell_owner(IncidentId("oom-here-2"), mine)
    nobody_yet = replace(_waits(2, mine), failure=None, state=IncidentState.RUNNING)
    for incident in (_waits(0, mine), _waits(1, mine), nobody_yet):
        app.store.save(incident)
    with pytest.raises(NoPlace, match=f"3 incidents of {mine} are at work or wait .*, and 9 of 12 places are free"):
        _opener(app).decide(event)
    # What has stopped for a person to resume it takes none of his places.
    app.store.save(replace(closed(0, 0, mine), state=IncidentState.INTERRUPTED, closed_s=None))
    assert _opener(app).decide(event).opening is Opening.NEW


def test_however_many_owners_wait_there_is_a_place_for_the_next(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "train")
    event = SpoolEvent("f", "alpha", job, job, 0, SystemClock().now())
    begun: Counter[UserName] = Counter()
    opener = replace(serve._opener_of(app), begun=lambda: begun)
    for number in range(12):
        owner = UserName(f"mallory{number}")
        with pytest.raises(NoPlace):
            while True:
                opener.check_place(owner)
                begun[owner] += 1
    assert max(begun.values()) == begun[UserName("mallory0")] == 256 and min(begun.values()) >= 10
    assert opener.decide(event).opening is Opening.NEW


def test_events_that_wait_for_a_place_are_counted_by_owner_and_hold_up_nobody_elses(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()

    def put_event(job: int, uid: int) -> None:
        (spool / f"alpha-{job}-0.event").write_text(
            f"format=1\njob_id={job}\nuid={uid}\nrestart_count=0\ncluster=alpha\n"
        )

    for job in range(1, 101):
        put_event(job, 1001)
    put_event(500, 1002)
    places, slurm_answers, asked = 0, False, []

    def opens(event: SpoolEvent) -> None:
        nonlocal places
        asked.append(event.job)
        if event.uid == 1001 and not places:
            raise NoPlace(UserName("mallory"), "all of his wait", next_step="answer")
        if event.uid == 1002 and not slurm_answers:
            raise Unavailable("Slurm does not answer")
        places -= event.uid == 1001

    clock = FakeClock(2_000_000.0)
    status = ServiceStatus(clock.now())
    daemon = Daemon(SpoolReader(spool), opens, clock, status)
    daemon.round()
    assert sorted(asked, key=int) == ["1", "500"], "Slurm is not asked of each"
    document = status.document(clock.now())
    assert (document["events_held"], document["held_owners"]) == (100, "mallory: 100")
    assert b"runbook_events_held 100.0" in IncidentMetrics(
        None, Labels(), lambda: ServiceFigures(now_s=0, events_held=document["events_held"])
    ).text()
    clock.now_s += 10
    slurm_answers, places = True, 3
    asked.clear()
    daemon.round()
    assert "500" in asked[:2] and status.held == {"mallory": 97}, "places are taken as they come"


def test_evidence_leaves_room_for_the_incidents_themselves(small_disk: Path) -> None:
    store = IncidentStore(small_disk)
    name = IncidentId("oom-here-1")
    kept = 0
    with pytest.raises(NotAllowed, match="are free where incidents are kept"):
        for kept in range(30):
            store.copy_stream(name, f"evidence/{kept}.out", io.BytesIO(os.urandom((1 << 20) + 1)), 64 << 20)
    assert kept >= 15
    disk = os.statvfs(small_disk)
    assert disk.f_bavail * disk.f_frsize >= 2 << 20
    put(store, closed(2, 1))
    # Small ones are kept within the reserve, up to half of it.
    with pytest.raises(NotAllowed, match="are free where incidents are kept"):
        for kept in range(300):
            store.copy_stream(name, f"evidence/small{kept}.out", io.BytesIO(os.urandom(16 << 10)), 64 << 20)
    assert kept >= 60
    disk = os.statvfs(small_disk)
    assert disk.f_bavail * disk.f_frsize >= 1 << 20


def test_an_owner_meets_his_bound_before_the_disk_is_full_for_others(small_disk: Path) -> None:
    app = place(small_disk)
    for number in range(1, 21):
        app.store.save(replace(closed(number, 0, "ann"), closed_s=None, state=IncidentState.AWAITING_APPROVAL))
    app.store.save(replace(closed(30, 0, "ben"), closed_s=None, state=IncidentState.RUNNING))

    def keep(number: int) -> None:
        name, stream = IncidentId(f"oom-here-{number}"), io.BytesIO(os.urandom(2 << 20))
        app.store.copy_stream(name, f"evidence/{number}.out", stream, 64 << 20)

    with pytest.raises(NotAllowed, match=r"ann's open incidents and their logs, .*, half of what there is"):
        for number in range(1, 21):
            keep(number)
    assert number >= 4
    keep(30)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.timeout(240)
def test_a_log_that_was_read_is_diagnosed_where_the_disk_has_no_room_for_its_copy(tmp_path: Path, kept: bool) -> None:
    app = application(tmp_path)
    disk = os.statvfs(tmp_path)
    reserve_gib = 1.5 * disk.f_bavail * disk.f_frsize / 2**30 if kept else 1_000_000.0
    app = replace(app, inventory=app.inventory.model_copy(update={
        "keep": KeepDocument(reserve_gib=reserve_gib), "cage": CageDocument(),
    }))
    job = failed_job(app, tmp_path, "train", says=MESSAGE.replace("\n", ""))
    with Service(app) as engine:
        incident = opened(app, job)
        engine.enqueue(incident)
        incident = ended(app, engine, incident)
    assert incident.failure is not None and incident.failure.story is not None
    cause = incident.failure.story.root_cause
    assert cause is not None and "OutOfMemory" in cause.excerpt, incident.conclusion
    assert "could be read" not in incident.conclusion
    assert bool(incident.evidence_files) is kept
    assert kept or any("it was read and not kept" in note for note in incident.notes)


def test_the_inventory_says_how_much_stays_free(tmp_path: Path) -> None:
    app = place(tmp_path, "reserve_gib: 1000000")
    name = IncidentId("oom-here-1")
    app.store.save(replace(closed(1, 0, "ann"), closed_s=None, state=IncidentState.RUNNING))
    with pytest.raises(NotAllowed, match=r"and 1000000\.00 GiB of it stay free for the incidents themselves"):
        app.store.copy_stream(name, "evidence/1.out", io.BytesIO(b"x" * (2 << 20)), 64 << 20)


def test_logs_of_an_owners_open_incidents_take_no_more_than_his_share(tmp_path: Path) -> None:
    def keep(app: Application, number: int) -> None:
        name, stream = IncidentId(f"oom-here-{number}"), io.BytesIO(os.urandom(1 << 20))
        app.store.copy_stream(name, f"evidence/{number}.out", stream, 64 << 20)

    share = f"owner_gib: {5 / 1024}"
    app = place(tmp_path, share)
    for number in range(8):
        app.store.save(replace(closed(number, 0, "ann"), closed_s=None, state=IncidentState.AWAITING_APPROVAL))
    app.store.save(replace(closed(8, 0, "ben"), closed_s=None, state=IncidentState.RUNNING))
    for number in range(4):
        keep(app, number)
    for _ in range(3):
        keep(app, 3)  # in the place of the copy before, as while a job still writes
    # Another process adds up what is there.
    for other in (app, place(tmp_path, share)):
        with pytest.raises(NotAllowed, match=r"4\.\d MiB are kept of ann's open incidents and their logs"):
            keep(other, 5)
        keep(other, 8)


def test_a_copy_that_its_owner_has_swollen_holds_no_backup_up(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path / "state")
    put(store, closed(1, 1), closed(2, 1))
    swollen = store.folder(IncidentId("oom-here-1")) / "attempts" / "1" / "train.sh"
    os.truncate(swollen, 12 << 40)
    rows = tmp_path / "rows"
    rows.write_bytes(b"")
    left = write_archive(tmp_path / "b.zst", store, rows, Manifest(0.0, "0", "here"), {})
    assert left == (str(swollen),)
    (tmp_path / "back").mkdir()
    found = unpack(tmp_path / "b.zst", tmp_path / "back").files
    assert "incidents/oom-here-2/attempts/1/train.sh" in found and "incidents/oom-here-1/incident.json" in found


@pytest.mark.timeout(240)
def test_the_workflow_database_holds_what_a_job_names_once(tmp_path: Path) -> None:
    """Not the whole incident with each box, a dozen times what its owner's files have."""
    app = application(tmp_path, CageDocument())
    app.__dict__["flow"] = load_flow(playbook_folder() / "flow.yaml")
    names, size_bytes = ("a.yaml", "b.yaml"), 0
    for name in names:
        text = "micro_batch_size: 4\n" + "".join(f"# {os.urandom(60).hex()}\n" for _ in range(6000))
        (tmp_path / name).write_text(text, encoding="utf-8")
        size_bytes += len(text)
    long_ago = time.time() - 9000
    for name in names:
        os.utime(tmp_path / name, (long_ago, long_ago))
    runs = "\n".join(f"python train.py --config {tmp_path / name}" for name in names)
    job = failed_job(app, tmp_path, "train", says=MESSAGE.replace("\n", ""), runs=runs)
    with Service(app) as engine:
        incident = opened(app, job)
        engine.enqueue(incident)
        incident = ended(app, engine, incident)
        assert engine.held() == {}
    assert [item.source for item in incident.companions] == [str(tmp_path / name) for name in names]
    assert len(incident.visits) >= 5
    database = (tmp_path / "state" / "workflows.sqlite").stat().st_size
    assert database < size_bytes + (600 << 10), f"{database} for {size_bytes}"


def _room(**other: object) -> Room:
    usual: dict[str, Any] = {
        "held": dict, "stored": dict, "disk": lambda: Disk(50 << 30, 1 << 30), "owner_bytes": 5 << 30,
    }
    return Room(**(usual | other))


def test_who_holds_much_of_the_memory_begins_nothing_more_and_others_do() -> None:
    held = {UserName("mallory"): 33 << 20, UserName("ann"): 5 << 20, UserName("ben"): 20_000}
    assert set(_room(held=lambda: held).crowded()) == {"mallory"}
    # However much all hold together: who holds little goes on.
    held |= {UserName(f"mallory{number}"): 30 << 20 for number in range(9)}
    assert set(_room(held=lambda: held).crowded()) == held.keys() - {"ben"}


def test_who_takes_much_of_the_disk_begins_nothing_more_and_others_do(tmp_path: Path) -> None:
    app = place(tmp_path, "owner_gib: 0.002")
    for number in range(20):
        large = replace(closed(number, 1, "mallory"), notes=("x" * 80_000,))
        app.store.save(large)
    app.store.save(closed(30, 1, "ann"))
    room = _room(stored=app.read_model.stored, owner_bytes=round(app.inventory.keep.owner_gib * GIB))
    assert set(room.crowded()) == {"mallory"} and "keep.owner_gib" in room.crowded()[UserName("mallory")]
    # Where little is free for the incidents themselves: he who takes the most.
    full = _room(stored=app.read_model.stored, disk=lambda: Disk(400 << 20, 1 << 30))
    assert set(full.crowded()) == {"mallory"}
    assert not _room(stored=app.read_model.stored, disk=lambda: Disk(600 << 20, 1 << 30)).crowded()


def test_an_event_waits_where_its_owners_incidents_take_too_much(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "train")
    mine = app.scheduler.job(job).owner
    event = SpoolEvent("f", "alpha", job, job, 0, SystemClock().now())
    held = {mine: 64 << 20}
    opener = serve._opener_of(app, _room(held=lambda: held))
    with pytest.raises(NoPlace, match=f"the incidents of {mine} that are at work hold 64 MiB of memory"):
        opener.decide(event)
    other = {UserName("mallory"): 64 << 20}
    assert serve._opener_of(app, _room(held=lambda: other)).decide(event).opening is Opening.NEW


def test_what_was_left_is_taken_up_a_little_at_a_time_and_of_each_owner_in_turn() -> None:
    theirs = [(UserName("mallory"), IncidentId(f"oom-a-{number}"), 5 << 20) for number in range(80)]
    rising: set[IncidentId] = set()
    order: list[IncidentId] = []
    over: list[int] = []

    def take_up(name: IncidentId) -> None:
        rising.add(name)
        order.append(name)

    left = in_turn([*theirs, (UserName("ann"), IncidentId("oom-a-900"), 20_000)])
    taking = TakingUp(left, rising, take_up, lambda _failing: over.append(len(order)))
    taking.some()
    assert order == ["oom-a-0", "oom-a-900", "oom-a-1", "oom-a-2"] and not over
    taking.some()
    assert len(order) == 4, "nothing has arrived"
    while len(order) < 81:
        rising.clear()
        taking.some()
        assert len(rising) <= 4
    taking.some()
    assert over == [81]
    # Small ones come thirty at a time, and one that is larger than all may be comes alone.
    many = in_turn((UserName("ann"), IncidentId(f"oom-b-{number}"), 20_000) for number in range(99))
    small = TakingUp(many, rising, take_up, len)
    rising.clear()
    small.some()
    assert len(rising) == 32
    rising.clear()
    large = TakingUp(in_turn([(UserName("ann"), IncidentId("oom-c-1"), 1 << 30)]), rising, take_up, len)
    large.some()
    assert rising == {"oom-c-1"}


def test_what_cannot_be_taken_up_keeps_none_of_the_others_and_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising: set[IncidentId] = set()
    order: list[IncidentId] = []
    over: list[list[IncidentId]] = []
    wrong: dict[str, Exception] = {
        "oom-a-0": Unavailable("incident.json cannot be read: Input/output error"),
        "oom-a-1": BadInput("incident.json is damaged"),
        "oom-a-2": DBAPIError("SELECT 1", None, OSError()),
    }
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def take_up(name: IncidentId) -> None:
        rising.add(name)
        if name in wrong:
            raise wrong[name]
        order.append(name)

    # Each is as large as all that may rise at a time.
    left = in_turn((UserName("ann"), IncidentId(f"oom-a-{number}"), 16 << 20) for number in range(5))
    taking = TakingUp(left, rising, take_up, lambda failing: over.append(list(failing)))
    taking.some()
    assert order == ["oom-a-3"] and rising == {"oom-a-3"} and not over
    for _ in range(50):
        rising.clear()
        taking.some()
    assert order == ["oom-a-3", "oom-a-4"] and over == [list(wrong)]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3, "once each"
    wrong.clear()
    for _ in range(4):
        now_s += 100
        rising.clear()
        taking.some()
    assert order[2:] == ["oom-a-0", "oom-a-1", "oom-a-2"] and len(over) == 1


def test_the_loop_comes_round_where_none_can_be_taken_up() -> None:
    tried: list[IncidentId] = []

    def take_up(name: IncidentId) -> None:
        tried.append(name)
        raise Unavailable("no answer")

    over: list[int] = []
    left = in_turn((UserName("ann"), IncidentId(f"oom-a-{number}"), 10) for number in range(9))
    taking = TakingUp(left, set(), take_up, lambda failing: over.append(len(failing)))
    taking.some()
    assert len(tried) == 4 and not over
    for _ in range(9):
        taking.some()
    assert sorted(tried) == [f"oom-a-{number}" for number in range(9)] and over == [9]


@pytest.mark.timeout(240)
def test_a_run_of_which_nothing_can_be_read_makes_room_for_the_next(tmp_path: Path) -> None:
    app = application(tmp_path)
    with Service(app) as engine:
        name = IncidentId("oom-alpha-77")
        engine.rising.add(name)
        assert engine._workflow is not None
        with SetWorkflowID(f"{name}~2"):
            DBOS.enqueue_workflow(QUEUE, engine._workflow, Packed(b"no record"))
        until(lambda: not engine.rising)


@pytest.mark.timeout(240)
def test_what_an_earlier_process_left_goes_on_by_the_rounds_of_the_loop(tmp_path: Path) -> None:
    app = application(tmp_path)
    with Service(app) as engine:
        engine.rising.add(IncidentId("nobody"))
        incident = opened(app, failed_job(app, tmp_path, "honest"))
    taking = serve._taking_up(app, engine)
    assert [name for name, _ in taking.left] == [incident.id] and taking.left[0][1] > 0
    again = application(tmp_path)
    with Service(again) as engine:
        taking = serve._taking_up(again, engine)

        def ends() -> bool:
            taking.some()
            return again.store.load(incident.id).finished

        until(ends)
        until(lambda: not engine.rising and not engine.held())


@pytest.mark.timeout(240)
def test_an_event_of_what_was_not_taken_up_yet_does_no_more_than_the_inventory_allows_now(tmp_path: Path) -> None:
    app = application(tmp_path)
    job = failed_job(app, tmp_path, "honest")
    app.store.save(replace(opened(app, job), policy=Policy.APPLY))
    with Service(app) as engine:
        event = SpoolEvent("f", "alpha", job, job, 0, SystemClock().now())
        assert serve._open(app, engine, serve._opener_of(app), event) == "begun"
        incident = app.store.load(IncidentId(f"oom-alpha-{job}"))
        assert (incident.policy, incident.run) == (Policy.PLAN, 2)
        assert ended(app, engine, incident).finished


def test_a_full_disk_is_no_fault_of_the_program_and_the_event_waits(small_disk: Path) -> None:
    app = application(small_disk)
    job = failed_job(app, small_disk, "train")
    spool = small_disk / "spool"
    spool.mkdir()
    (spool / f"alpha-{job}-0.event").write_text(f"format=1\njob_id={job}\nrestart_count=0\ncluster=alpha\n")
    status = ServiceStatus(SystemClock().now())
    with Service(app) as engine:
        opener = serve._opener_of(app)
        daemon = Daemon(
            SpoolReader(spool), lambda event: serve._open(app, engine, opener, event), SystemClock(), status
        )
        filler = small_disk / "filler"
        fill(filler)
        daemon.round()
        assert "fault of this program" not in status.last_problem and status.events_waiting_again == 1
        assert "No space" in status.last_problem or "full" in status.last_problem
        filler.unlink()

        def opens() -> bool:
            daemon.round()
            return status.events_opened > 0

        until(opens)
    assert not list(spool.glob("*.event"))


@pytest.mark.parametrize("moment", ["entered", "left"])
@pytest.mark.timeout(240)
def test_an_incident_at_work_on_a_full_disk_goes_on_once_there_is_room(small_disk: Path, moment: str) -> None:
    app = application(small_disk)
    job = failed_job(app, small_disk, "honest")
    filler = small_disk / "filler"

    class Fills(Quiet):
        """Has the disk full at a moment of the first box."""

        filled = ""

        def entered(self, *_: object) -> None:
            self._fill("entered")

        def left(self, *_: object) -> None:
            self._fill("left")

        def _fill(self, now: str) -> None:
            if now == moment and not self.filled:
                self.filled = now
                fill(filler)

    spool = small_disk / "spool"
    spool.mkdir()
    with Service(app, watcher=Fills()) as engine:
        status = ServiceStatus(SystemClock().now(), stopped=lambda: engine.stopped)
        daemon = Daemon(
            SpoolReader(spool), lambda _event: None, SystemClock(), status, go_on=lambda: serve.go_on(app, engine)
        )
        incident = opened(app, job)
        engine.enqueue(incident)
        until(lambda: bool(engine.stopped))
        daemon.round()
        document = status.document(time.time())
        assert not document["ok"]
        assert re.fullmatch(f"{incident.id}: .*(is full|No space left).*", document["incidents_stopped"])
        filler.unlink()

        def goes_on() -> bool:
            daemon.round()
            return app.store.load(incident.id).finished

        until(goes_on)
        until(lambda: status.document(time.time())["ok"])
    last = app.store.load(incident.id)
    assert last.state is IncidentState.ESCALATED and "fault" not in last.conclusion
    assert [visit.box for visit in last.visits] == ["look", "ask", "tell"]


def test_who_stops_some_of_his_own_processes_counts_as_slow_whatever_the_others_do() -> None:
    systems = FileSystems()
    with pytest.raises(Hung), systems.asked("/srv/a", "ann"):
        raise Hung("stopped")
    with systems.asked("/srv/b", "ann"):
        pass
    assert systems.slow("ann") and not systems.slow(UserName("ben"))


@pytest.mark.needs("setpriv")
def test_a_copy_for_its_owner_is_his_to_read_and_not_to_write(tmp_path: Path) -> None:
    """It lies on the service's disk, where no quota of his holds."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    tmp_path.chmod(0o711)
    for above in list(tmp_path.parents)[:3]:
        if above != Path("/tmp"):
            above.chmod(0o711)
    store = IncidentStore(tmp_path / "state")
    put(store, closed(1, 1))
    path = store.write_file(IncidentId("oom-here-1"), "attempts/1/run.toml", b"batch = 2\n", 0o600, (4711, 4711))

    def by(uid: int, *command: str) -> int:
        words = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command)
        return subprocess.run(words, capture_output=True, check=False).returncode

    assert by(4711, "cat", str(path)) == 0, "the job reads it"
    assert by(4712, "cat", str(path)) != 0
    assert by(4711, "sh", "-c", f"echo x >> {path}") != 0 and by(4711, "chmod", "666", str(path)) != 0
    assert path.stat().st_uid == 0 and not list(wrong_in(tmp_path / "state"))
    rows = tmp_path / "rows"
    rows.write_bytes(b"")
    assert write_archive(tmp_path / "b.zst", store, rows, Manifest(0.0, "0", "here"), {}) == ()
    back = tmp_path / "back"
    back.mkdir(mode=0o711)
    give_modes(back, unpack(tmp_path / "b.zst", back))
    (back / "incidents").chmod(0o711)
    assert by(4711, "cat", str(back / "incidents/oom-here-1/attempts/1/run.toml")) == 0
    assert by(4712, "cat", str(back / "incidents/oom-here-1/attempts/1/run.toml")) != 0
