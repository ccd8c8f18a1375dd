"""What of closed incidents goes: by age, by owner, by all of it; nothing that is open, needed or not ours."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.adapters.metrics import IncidentMetrics, Labels
from runbook.adapters.store import Stamp
from runbook.adapters.store.keep import SETTLED_S, Held, Why, load_pruned, plan
from runbook.adapters.store.read_model import ReadModel
from runbook.cli.monitoring import store_figures
from runbook.cli.prune import keep_pruning, look_at, prune, remove
from runbook.config import KeepDocument
from runbook.model.units import GIB, NodeName
from tests.report.stored_long_ago import DAY_S, THINNED, WHOLE, closed, place, put, still_open, there

NOW_S = 2_000_000_000.0
STAMP = Stamp(0, 0, 0)


def _held(name: str, owner: str, days: float | None, evidence: float, other: float = 0.0) -> Held:
    """Sizes in GiB."""
    closed_s = None if days is None else NOW_S - days * DAY_S
    return Held(name, STAMP, owner, closed_s, round(evidence * GIB), round(other * GIB))


def _goes(held: list[Held], **keep: float) -> dict[str, tuple[str, Why]]:
    going = plan(held, KeepDocument(**keep), NOW_S)
    return {one.held.name: ("all" if one.whole else "evidence", one.why) for one in going}


def test_evidence_goes_by_age_and_long_after_it_the_rest() -> None:
    ages = {"new": 80, "old": 95, "ancient": 800, "open": None}
    held = [_held(name, "a", days, 1) for name, days in ages.items()]
    assert _goes(held) == {"old": ("evidence", Why.AGE), "ancient": ("all", Why.AGE)}


def test_an_owner_over_the_share_loses_the_oldest_and_nobody_else_anything() -> None:
    held = [_held(f"big-{age}", "a", age, 1) for age in range(1, 9)] + [_held("small", "b", 50, 1)]
    assert _goes(held) == {f"big-{age}": ("evidence", Why.OWNER) for age in (6, 7, 8)}


def test_where_all_is_too_much_whoever_has_the_most_loses() -> None:
    held = [_held(f"a-{age}", "a", age, 1) for age in range(1, 5)] + [_held("b-80", "b", 80, 1)]
    assert _goes(held, total_gib=3) == {"a-4": ("evidence", Why.TOTAL), "a-3": ("evidence", Why.TOTAL)}


def test_whole_incidents_go_for_room_only_once_they_are_settled() -> None:
    held = [_held("young", "a", 3, 0, 4), _held("settled", "a", 8, 0, 4)]
    assert _goes(held, total_gib=1, owner_gib=1) == {"settled": ("all", Why.OWNER)}


def test_open_incidents_of_one_owner_push_out_nobody_elses() -> None:
    held = [_held(f"open-{number}", "a", None, 10) for number in range(9)] + [_held("b-80", "b", 80, 1)]
    assert _goes(held, total_gib=5) == {}


_SIZES = st.floats(0, 4)
_ANY = st.builds(
    lambda owner, days, evidence, other, strange, needed: Held(
        "", STAMP, owner, None if days is None else NOW_S - days * DAY_S, round(evidence * GIB), round(other * GIB),
        strange, needed,
    ),
    st.sampled_from("abc"), st.none() | st.floats(0, 900), _SIZES, _SIZES, st.sampled_from(("", "", "", "a link")),
    st.sampled_from(("", "", "", "its job runs")),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_ANY, max_size=12), st.floats(0.5, 30), st.floats(0.5, 10))
def test_whatever_lies_there(held: list[Held], total: float, owner: float) -> None:
    held = [Held(f"i{number}", *one_of(one)) for number, one in enumerate(held)]
    keep = KeepDocument(total_gib=total, owner_gib=owner)
    going = {one.held.name: one for one in plan(held, keep, NOW_S)}
    left = {who: sum(one.evidence_bytes + one.other_bytes for one in held if one.owner == who) for who in "abc"}
    for gone in going.values():
        left[gone.held.owner] -= gone.size_bytes
    part = total * GIB / max(len({one.owner for one in held}), 1)
    for one in held:
        free = one.closed_s is not None and not one.strange
        if one.name not in going:
            stays_too_much = free and one.evidence_bytes and left[one.owner] > owner * GIB + 1
            assert not stays_too_much, f"{one} could have gone: its owner has more than the share"
            continue
        gone = going[one.name]
        assert free and one.closed_s is not None
        if gone.whole:
            assert not one.needed and NOW_S - one.closed_s >= SETTLED_S
        if gone.why is Why.TOTAL:
            # Taken from somebody who had more than an equal part, and not a step beyond the one that fell below it.
            assert left[one.owner] + max(other.size_bytes for other in going.values()) >= part - 1


def one_of(held: Held) -> tuple[Any, ...]:
    return (held.stamp, held.owner, held.closed_s, held.evidence_bytes, held.other_bytes, held.strange, held.needed)


def test_what_has_gone_is_gone_and_the_answers_agree(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800), closed(2, 100), closed(3, 1), still_open(4, 900))
    app.read_model.rows()
    gone = remove(app, look_at(app))
    assert {one.held.name for one in gone.going} == {"oom-here-1", "oom-here-2"}
    assert there(app.state) == {"oom-here-2": THINNED, "oom-here-3": WHOLE, "oom-here-4": WHOLE}
    assert [row.id for row in app.read_model.rows()] == ["oom-here-3", "oom-here-2", "oom-here-4"]
    assert app.read_model.totals() == ReadModel(app.store).totals()
    assert app.store.as_kept(app.store.load(closed(2, 0).id)).evidence_files == ()
    assert "evidence/job.out" not in (app.state / "incidents" / "oom-here-2" / "report.html").read_text()
    assert look_at(app).going == ()
    assert list((app.state / "trash").iterdir()) == []


def _counters(app: Any) -> dict[str, float]:
    lines = IncidentMetrics(ReadModel(app.store), Labels("here", "oom")).text().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples if "_total{" in name or "_bucket{" in name}


def test_no_counter_falls_when_an_incident_goes(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800), closed(2, 801), closed(3, 1))
    before = _counters(app)
    remove(app, look_at(app))
    assert len(app.read_model.rows()) == 1
    assert _counters(app) == before
    put(app.store, closed(5, 900))
    remove(app, look_at(app))
    assert _counters(app)['runbook_incidents_opened_total{cluster="here",flow="oom"}'] == 4


def test_links_devices_and_strangers_files_keep_their_incident_and_lead_nowhere(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800), closed(2, 800), closed(3, 800), closed(4, 800))
    incidents = app.state / "incidents"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (incidents / "oom-here-1" / "evidence" / "link").symlink_to(outside)
    os.mkfifo(incidents / "oom-here-2" / "pipe")
    (incidents / "oom-here-3").rename(tmp_path / "elsewhere")
    (incidents / "oom-here-3").symlink_to(tmp_path / "elsewhere")
    (incidents / "notes.txt").write_text("a person's")
    look = look_at(app)
    remove(app, look)
    assert sorted(there(app.state)) == ["notes.txt", "oom-here-1", "oom-here-2", "oom-here-3"]
    assert {name for name, _ in look.left} == {"oom-here-1", "oom-here-2", "oom-here-3"}
    assert (outside / "precious").read_text() == "mine" and (tmp_path / "elsewhere" / "evidence" / "job.out").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_user_keeps_its_incident_and_patched_copies_do_not(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800), closed(2, 800))
    incidents = app.state / "incidents"
    os.chown(incidents / "oom-here-1" / "evidence" / "job.out", 4711, 4711)
    os.chown(incidents / "oom-here-2" / "attempts" / "1" / "train.sh", 4711, 4711)
    remove(app, look_at(app))
    assert sorted(there(app.state)) == ["oom-here-1"]


def test_a_sparse_log_counts_as_what_it_takes(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 1))
    with (app.state / "incidents" / "oom-here-1" / "evidence" / "job.out").open("r+b") as log:
        log.truncate(8 << 30)
    assert look_at(app).stored_bytes < 1 << 20


def test_an_incident_that_was_taken_up_again_meanwhile_is_left(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800), closed(2, 100))
    look = look_at(app)
    app.store.save(still_open(1, 800))
    app.store.save(still_open(2, 100))
    assert remove(app, look).going == ()
    assert there(app.state) == {"oom-here-1": WHOLE, "oom-here-2": WHOLE}


def test_drained_nodes_keep_the_incident_that_gives_them_back(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, replace(closed(1, 800), drained_nodes=(NodeName("gpu-21"),)))
    remove(app, look_at(app))
    assert there(app.state) == {"oom-here-1": THINNED}


EFFECTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})


def _killed_at(point: int, inventory: str) -> bool:
    """`runbook prune` in a process that ends itself just before its effect of this number. False: it never did."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, _arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in EFFECTS:
                seen += 1
                if seen == point:
                    os.kill(os.getpid(), signal.SIGKILL)

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.addaudithook(watch)
        code = 70
        try:
            code = prune(False, False, inventory)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def test_killed_before_any_of_its_effects_nothing_is_half_done_and_the_next_turn_ends_it(tmp_path: Path) -> None:
    point, killed = 0, True
    while killed:
        point += 1
        folder = tmp_path / str(point)
        folder.mkdir()
        app = place(folder)
        put(app.store, closed(1, 800), closed(2, 100), closed(3, 1))
        before = _counters(app)
        killed = _killed_at(point, str(folder / "here.yaml"))
        found = there(app.state)
        assert found.get("oom-here-1", WHOLE) == WHOLE
        assert WHOLE - {"evidence/job.out"} <= found["oom-here-2"] <= WHOLE | THINNED
        assert found["oom-here-3"] == WHOLE
        assert _counters(app) == before, point
        assert not _killed_at(0, str(folder / "here.yaml"))
        assert sorted(there(app.state)) == ["oom-here-2", "oom-here-3"]
        assert "evidence/job.out" not in there(app.state)["oom-here-2"]
        assert _counters(app) == before, point
        assert list((app.state / "trash").iterdir()) == [] and load_pruned(app.state).leaving == {}
    assert point > 10


def test_what_it_writes_is_private(tmp_path: Path) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800))
    remove(app, look_at(app))
    assert stat.S_IMODE((app.state / "pruned.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((app.state / "trash").stat().st_mode) == 0o700


class _Turns(threading.Event):
    """Lets the daemon's loop come round so often, and keeps how long it meant to wait."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns, self.pauses = turns, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return len(self.pauses) > self.turns


def test_the_daemon_prunes_a_little_at_a_time_and_says_so_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = place(tmp_path)
    put(app.store, *(closed(number, 800 + number) for number in range(60)))
    turns = _Turns(3)
    with caplog.at_level("INFO", "runbook"):
        keep_pruning(app, turns)
    assert turns.pauses == [60.0] * 4, "what the workflow database holds of closed incidents goes each minute"
    told = [line.message for line in caplog.records]
    assert [f"removed: {count} whole incidents" in line for count, line in zip((50, 10), told)] == [True, True], told
    assert len(told) == 2
    assert there(app.state) == {} and store_figures(app).stored_bytes == 0
    assert store_figures(app).last_prune_s > 0


def test_the_daemon_outlives_a_turn_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = place(tmp_path)
    put(app.store, closed(1, 800))
    (app.state / "trash").write_text("a person's")
    turns = _Turns(1)
    with caplog.at_level("INFO", "runbook"):
        keep_pruning(app, turns)
    assert "could not be pruned" in caplog.text
    assert there(app.state) == {"oom-here-1": WHOLE} and store_figures(app).last_prune_s == 0
