"""Two daemons over one PostgreSQL and one state folder: whatever happens to either, each attempt is submitted once, the
incident ends well, and nobody is told the same twice.

RUNBOOK_TWO_ROUNDS=60 does more than the few rounds of every run, RUNBOOK_TWO_AT_ONCE=2 fewer at a time where the
machine has other work; RUNBOOK_TWO_SEED repeats one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.test_postgresql import database
from tests.cluster.two_daemons import Daemon, TwoDaemons, until
from tests.service.notify_servers import HttpServer, http_server

__all__ = ["database"]

TAKEN_OVER_S = 30.0
ROUNDS = int(os.environ.get("RUNBOOK_TWO_ROUNDS", "5"))
AT_ONCE = int(os.environ.get("RUNBOOK_TWO_AT_ONCE", "5"))
SEED = int(os.environ.get("RUNBOOK_TWO_SEED", str(random.randrange(1 << 30))))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900 + 60 * ROUNDS)]
BLOWS = ("kill", "stop", "cut", "kill the one that waits", "stop")


def _strike(two: TwoDaemons, blow: str) -> Daemon:
    """Returns the daemon that is struck, once it is gone or as good as gone."""
    struck = two.driving()
    match blow:
        case "kill":
            struck.send(signal.SIGKILL)
        case "stop":
            struck.send(signal.SIGSTOP)
        case "cut":
            struck.line.cut()
        case _:
            struck = two.other(struck)
            struck.send(signal.SIGKILL)
    return struck


def _round(folder: Path, database: str, told: HttpServer, blow: str, after_s: float) -> str:
    """What happened, for the log. The blow falls at any moment of an incident's work."""
    with TwoDaemons(folder, database, told) as two:
        two.both_up()
        two.event()
        time.sleep(after_s)
        at = two.state()
        struck = _strike(two, blow)
        began, other = time.monotonic(), two.other(struck)
        until(other.drives, f"{blow} after {after_s:.2f} s: the other takes over")
        took_s = time.monotonic() - began
        assert took_s < TAKEN_OVER_S, blow
        if blow == "stop":
            # Woken long after its turn was over, it must not get to do anything.
            struck.send(signal.SIGCONT)
        until(struck.gone, "the one that was struck has ended")
        struck.line.mend()
        struck.start()
        until(lambda: struck.health().get("drives") is False, "it is there again, and waits")
        until(lambda: two.state() == "recovered", f"{blow} after {after_s:.2f} s: recovered")
        incident = two.place.incident()
        until(lambda: two.place.incident()["closed_s"] is not None, "closed")
        until(lambda: not two.waiting_events(), "every event is taken")
        tokens = [attempt["claim"]["token"] for attempt in incident["attempts"]]
        assert len(tokens) == 1, blow
        assert two.relaunches() == tokens, blow
        assert [act["what"] for act in incident["acts"]].count("submit") == 1, blow
        kept = json.loads((two.place.state / "incidents" / str(incident["id"]) / "told.json").read_text("utf-8"))
        assert list(kept) == ["relaunched:1", "recovered:1:1"], blow
        titles = two.titles()
        assert len(set(titles)) == len(titles) <= 2, titles
        return f"{blow} after {after_s:.2f} s ({at or 'not open'}): taken over in {took_s:.1f} s, told {len(titles)}"


def test_either_may_be_killed_stopped_or_cut_off_at_any_moment(tmp_path: Path, database: str) -> None:
    chance = random.Random(SEED)
    rounds = [(BLOWS[number % len(BLOWS)], chance.uniform(0.0, 6.0)) for number in range(ROUNDS)]
    print(f"RUNBOOK_TWO_SEED={SEED} RUNBOOK_TWO_ROUNDS={ROUNDS}")
    failed = []
    with http_server() as told, ThreadPoolExecutor(AT_ONCE) as together:
        done = [
            together.submit(_round, tmp_path / f"round-{number}", database, told, *each)
            for number, each in enumerate(rounds)
        ]
        for each in done:
            try:
                print(each.result(), flush=True)
            except AssertionError as error:
                failed.append(str(error))
                print(f"FAILED: {error}", flush=True)
    assert not failed


def test_one_that_is_cut_off_as_it_begins_holds_nobody_up(tmp_path: Path, database: str) -> None:
    """The database keeps what its transaction holds for as long as the session is there."""
    with http_server() as told, TwoDaemons(tmp_path / "begins", database, told) as two:
        two.both_up()
        first = two.driving()
        struck = two.other(first)
        struck.line.cut_after(b"INSERT INTO dbos.queues")
        first.send(signal.SIGKILL)
        until(struck.line.is_cut, "the other begins, and is cut off")
        began = time.monotonic()
        first.start()
        until(lambda: two.driving() is first, "the first takes over again")
        assert time.monotonic() - began < TAKEN_OVER_S
        two.event()
        until(lambda: two.state() == "recovered", "recovered")
        assert len(two.relaunches()) == 1


def test_a_question_is_put_once_and_answered_from_anywhere_and_no_stranger_joins(tmp_path: Path, database: str) -> None:
    with http_server() as told, TwoDaemons(tmp_path / "asked", database, told, "approve", one_spool=True) as two:
        two.both_up()
        two.event()

        def asked() -> list[str]:
            return [title for title in two.titles() if "waits for your yes" in title]

        until(lambda: len(asked()) == 1, "the first question")
        first = two.driving()
        first.send(signal.SIGKILL)
        second = two.other(first)
        until(second.drives, "the other takes over")
        first.start()
        until(lambda: first.health().get("drives") is False, "the first waits")
        for number in (1, 2):
            until(lambda number=number: len(asked()) == number, f"question {number}")  # type: ignore[misc]
            until(lambda: two.place.incident()["awaiting"] != "", "it is stored")
            yes = two.place.run("approve", "oom-crash-1", inventory=first.inventory)
            assert yes.returncode in (0, 4), yes.stderr
        until(lambda: two.state() == "recovered", "recovered")
        until(lambda: len(two.titles()) == 4, "all is told")
        assert len(set(two.titles())) == 4
        assert len(two.relaunches()) == 1
        both = two.place.run("doctor", inventory=first.inventory).stdout
        assert f"pid {second.process.pid} on" in both
        assert f"waiting to take over: pid {first.process.pid} on" in both
        assert "runbook_relaunches_total" in second.get("/metrics")
        assert "runbook_relaunches_total" not in first.get("/metrics")
        assert 'runbook_waiting_daemons{cluster="crash"} 1.0' in second.get("/metrics")
        # A third that does not belong to them.
        for before, after, said in (
            ("cluster: crash", "cluster: elsewhere", "give each cluster a database of its own"),
            (str(two.place.state), str(tmp_path / "other"), "name the same shared folder in both inventories"),
        ):
            third = tmp_path / "third.yaml"
            third.write_text(first.inventory.read_text("utf-8").replace(before, after), "utf-8")
            refused = two.place.run("serve", "--port", "0", inventory=third)
            assert refused.returncode == 2, refused.stderr
            assert said in refused.stderr
