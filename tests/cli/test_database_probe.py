"""Whether incidents are driven: what /healthz, runbook_driver_up and the alert on it rest on."""

from __future__ import annotations

import threading
import time

from runbook.adapters.store.workflow_database import DatabaseProbe


def settled(probe: DatabaseProbe) -> bool:
    """What it says once the question under way has been answered."""
    probe.answers()
    time.sleep(0.05)
    return probe.answers()


def test_a_database_that_answers_is_well() -> None:
    assert settled(DatabaseProbe(lambda: None))


def test_one_that_refuses_is_not_and_is_well_again_when_it_answers() -> None:
    down = threading.Event()
    down.set()

    def ask() -> None:
        if down.is_set():
            raise OSError("refused")

    probe = DatabaseProbe(ask)
    assert not settled(probe)
    down.clear()
    assert settled(probe)


def test_one_that_never_answers_keeps_nobody_waiting_and_is_not_well_after_a_while() -> None:
    back = threading.Event()
    probe = DatabaseProbe(back.wait, late_s=0.2)  # type: ignore[arg-type]
    began_s = time.monotonic()
    assert probe.answers()
    assert probe.answers()
    assert time.monotonic() - began_s < 0.2
    time.sleep(0.3)
    assert not probe.answers()
    back.set()
    assert settled(probe)
