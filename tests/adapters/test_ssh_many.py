"""The fan-out over nodes: bounded, told about, and broken off at once."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from runbook.adapters.node_access import SshNodes
from runbook.adapters.ssh import SshSettings
from runbook.fan_out import Progress, ask_many, check_many
from runbook.model.node import NodeFacts, Reach
from runbook.model.units import NodeName
from tests.loopback import free_port

NAMES = tuple(NodeName(f"gpu-{number}") for number in range(40))


def test_no_more_nodes_are_asked_at_a_time_than_allowed() -> None:
    lock, busy, most = threading.Lock(), [0], [0]

    def ask(name: NodeName) -> str:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.01)
        with lock:
            busy[0] -= 1
        return name.upper()

    assert ask_many(ask, NAMES + NAMES[:3], limit=5) == tuple(name.upper() for name in NAMES)
    assert most == [5]


def test_an_interrupt_drops_the_nodes_not_yet_asked() -> None:
    asked: list[NodeName] = []

    def ask(name: NodeName) -> NodeName:
        asked.append(name)
        time.sleep(0.02)
        return name

    def interrupt(_name: NodeName) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_many(ask, NAMES, limit=2, on_done=interrupt)
    assert len(asked) < 10


def test_of_many_nodes_it_is_told_how_far_and_which_do_not_answer() -> None:
    lines: list[str] = []
    told = Progress(len(NAMES), lines.append)
    for name in NAMES:
        told(NodeFacts(name, Reach.TIMEOUT if name == "gpu-7" else Reach.OK, "no answer within 5 s"))
    assert lines[0] == "5 of 40 nodes checked"
    assert lines[1] == "gpu-7: not reached: no answer within 5 s"
    assert lines[-1] == "40 of 40 nodes checked, 1 not reached"
    assert len(lines) == 9


def test_of_a_few_nodes_nothing_is_told() -> None:
    lines: list[str] = []
    Progress(2, lines.append)(NodeFacts(NAMES[0], Reach.TIMEOUT, "no answer"))
    assert lines == []


def test_connections_made_at_once_share_nothing_that_changes() -> None:
    """fabric's Config, shared, is empty for a moment while another connection is made."""
    settings = SshSettings(port=free_port(), config_file="/dev/null", known_hosts_file="/dev/null", use_agent=False)
    names = tuple(NodeName(f"127.20.0.{number}") for number in range(1, 201))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        facts = check_many(SshNodes(settings), names, since_s=None, until_s=None, limit=16)
    finally:
        sys.setswitchinterval(before)
    assert {(fact.reach, fact.reach_detail) for fact in facts} == {(Reach.REFUSED, "connection refused")}
