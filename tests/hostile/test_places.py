"""Who gets the next place in the cage: incidents without a diagnosis first, and no owner before the others."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from runbook.cage.at_work import DEAR_S, PATIENCE_S, Places, Turn
from runbook.cli.wiring import application
from runbook.errors import Unavailable
from runbook.flow import Box
from runbook.model.units import IncidentId, UserName


@pytest.fixture(scope="module")
def box() -> Box:
    flow = application(None).flow
    return flow.boxes[flow.start]


def _turn(box: Box, name: str, *, first: bool = True, waited_s: float = 0.0, opened_s: float = 0.0) -> Turn:
    """Of an incident that is called `owner` or `owner-number`."""
    return Turn(UserName(name.partition("-")[0]), IncidentId(name), box, first, opened_s, time.monotonic() - waited_s)


class _Queue:
    """Boxes that come one after the other, wait, and leave at once when they got a place."""

    def __init__(self, places: Places, *turns: Turn) -> None:
        self._got: list[str] = []
        self._threads = [threading.Thread(target=self._come, args=(places, turn)) for turn in turns]
        for number, thread in enumerate(self._threads, start=1):
            thread.start()
            while places.waiting < number:
                time.sleep(0.001)

    def _come(self, places: Places, turn: Turn) -> None:
        try:
            with places.taken(turn):
                self._got.append(turn.incident)
        except Unavailable:
            self._got.append(f"{turn.incident} was sent away")

    def served(self, how_many: int | None = None) -> list[str]:
        """In which order, once so many have got a place; without a number: once all of them have left."""
        until_s = time.monotonic() + 10
        while how_many is not None and len(self._got) < how_many and time.monotonic() < until_s:
            time.sleep(0.001)
        for thread in self._threads if how_many is None else ():
            thread.join(10)
        return list(self._got)


def test_every_job_has_its_diagnosis_before_one_is_relaunched(box: Box) -> None:
    places = Places(1)
    with places.taken(_turn(box, "ann")):
        relaunches = [_turn(box, "ann", first=False), _turn(box, "ben", first=False)]
        queue = _Queue(places, *relaunches, _turn(box, "cid"), _turn(box, "dan"))
        assert places.waiting == 4
    assert queue.served() == ["cid", "dan", "ben", "ann"] and places.waiting == 0


def test_a_stream_of_failures_does_not_keep_a_relaunch_waiting_for_ever(box: Box) -> None:
    places = Places(1)
    with places.taken(_turn(box, "ann")):
        queue = _Queue(places, _turn(box, "ben"), _turn(box, "cid", first=False, waited_s=PATIENCE_S + 1))
    assert queue.served() == ["cid", "ben"]


def test_whoever_has_fewest_at_work_is_next(box: Box) -> None:
    places = Places(4)
    with ExitStack() as held:
        for name in ("ann", "ben", "cid"):
            held.enter_context(places.taken(_turn(box, name)))
        with places.taken(_turn(box, "dan")):
            queue = _Queue(places, _turn(box, "ann-2"), _turn(box, "eve"))
        # While the others are at work: two places that are free at once are taken in any order.
        assert queue.served(1) == ["eve"]
    assert queue.served() == ["eve", "ann-2"]


def test_two_owners_undiagnosed_jobs_do_not_hold_up_anothers_next_box(box: Box) -> None:
    places = Places(4)
    with ExitStack() as held:
        for name in ("ann-1", "ann-2", "ben-1", "dan"):
            held.enter_context(places.taken(_turn(box, name)))
        turns = [_turn(box, f"{name}-{number}") for number in range(3, 9) for name in ("ann", "ben")]
        other = _turn(box, "cid", first=False)
        queue = _Queue(places, *turns, other)
    assert len(queue.served()) == 13
    assert all(other.since_s <= turn.since_s for turn in turns), "its place was the first that was given"


def test_owners_take_turns_where_none_is_at_work(box: Box) -> None:
    places = Places(1)
    with places.taken(_turn(box, "ann-1")):
        queue = _Queue(places, _turn(box, "ann-2"), _turn(box, "ann-3"), _turn(box, "ben-1"), _turn(box, "ben-2"))
    assert queue.served() == ["ben-1", "ann-2", "ben-2", "ann-3"]


def test_of_an_owners_incidents_the_one_that_was_opened_first_goes_on_and_a_dear_one_comes_last(box: Box) -> None:
    places = Places(1)
    places.took(UserName("ann"), IncidentId("ann-1"), DEAR_S + 1)
    with places.taken(_turn(box, "ben")):
        names = {"ann-3": 3.0, "ann-1": 1.0, "ann-2": 2.0}
        queue = _Queue(places, *(_turn(box, name, opened_s=opened_s) for name, opened_s in names.items()))
    assert queue.served() == ["ann-2", "ann-3", "ann-1"]


def test_one_owner_has_half_of_the_places_at_most_however_many_are_free(box: Box) -> None:
    places = Places(4)
    with places.taken(_turn(box, "ann-1")), places.taken(_turn(box, "ann-2")) as second:
        queue = _Queue(places, _turn(box, "ann-3"))
        with places.taken(_turn(box, "ben")) as other:
            assert other not in (0, second) and places.waiting == 1
            assert [one.incident for one in places.at_work()] == ["ann-1", "ann-2", "ben"]
    assert queue.served() == ["ann-3"] and places.at_work() == ()


def test_who_has_his_own_files_hang_has_one_place(box: Box) -> None:
    places = Places(4, lambda owner: owner == "ann")
    with places.taken(_turn(box, "ann-1")):
        queue = _Queue(places, _turn(box, "ann-2"))
        with places.taken(_turn(box, "ben-1")), places.taken(_turn(box, "ben-2")):
            assert places.waiting == 1
    assert queue.served() == ["ann-2"]


def test_owners_whose_files_are_slow_have_half_of_the_places_together(box: Box) -> None:
    places = Places(4, lambda owner: owner not in ("ben", "fay"))
    with places.taken(_turn(box, "ann")), places.taken(_turn(box, "cid")):
        queue = _Queue(places, _turn(box, "dan"), _turn(box, "eve"))
        with places.taken(_turn(box, "ben-1")), places.taken(_turn(box, "fay")):
            assert places.waiting == 2
    assert sorted(queue.served()) == ["dan", "eve"]


def test_two_owners_never_take_all_places(box: Box) -> None:
    places = Places(4)
    with places.taken(_turn(box, "ann-1")), places.taken(_turn(box, "ann-2")), places.taken(_turn(box, "ben-1")):
        queue = _Queue(places, _turn(box, "ben-2"))
        with places.taken(_turn(box, "cid")):
            assert places.waiting == 1
    assert queue.served() == ["ben-2"]


def test_whoever_had_boxes_compute_for_long_has_one_place_and_all_of_them_half(box: Box) -> None:
    places = Places(6)
    for owner in ("ann", "ben", "cid", "dan"):
        places.took(UserName(owner), IncidentId(f"{owner}-0"), DEAR_S + 1)
    places.took(UserName("eve"), IncidentId("eve-0"), DEAR_S - 1)
    with ExitStack() as held:
        for name in ("ann-1", "ben-1", "cid-1"):
            held.enter_context(places.taken(_turn(box, name)))
        queue = _Queue(places, _turn(box, "ann-2"), _turn(box, "dan-1"))
        with places.taken(_turn(box, "eve-1")), places.taken(_turn(box, "eve-2")), places.taken(_turn(box, "fay")):
            assert places.waiting == 2
    assert sorted(queue.served()) == ["ann-2", "dan-1"]


def test_whoever_waits_when_the_service_ends_is_sent_away(box: Box) -> None:
    places = Places(1)
    with places.taken(_turn(box, "ann")):
        queue = _Queue(places, _turn(box, "ben"))
        places.close()
        assert queue.served() == ["ben was sent away"]
    with pytest.raises(Unavailable, match="the service ends"), places.taken(_turn(box, "cid")):
        pass
    places.open()
    with places.taken(_turn(box, "cid")) as place:
        assert place == 0


def test_what_takes_no_room_yet_waits_where_its_owners_others_take_too_much(box: Box) -> None:
    places = Places(4)
    places.crowd(frozenset({UserName("ann")}))
    fresh = [replace(_turn(box, name), fresh=True) for name in ("ann-1", "ann-2", "ben-1")]
    queue = _Queue(places, fresh[0], fresh[1])
    with places.taken(fresh[2]), places.taken(_turn(box, "ann-3")):
        assert places.waiting == 2, "what has grown goes on, and so does everybody else"
    places.crowd(frozenset())
    assert sorted(queue.served()) == ["ann-1", "ann-2"]
