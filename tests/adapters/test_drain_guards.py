"""Who may drain and give back, decided once for all schedulers."""

from __future__ import annotations

import pytest

from runbook.adapters.drain_guards import drain_wanted, undrain_wanted
from runbook.errors import BadInput, NotAllowed
from runbook.model.job import NodeClass, NodeState
from runbook.model.units import NodeName

OURS = "runbook:oom-c-12 GPU 3: remapping failed"


def node(node_class: NodeClass, reason: str = "") -> NodeState:
    return NodeState(NodeName("gpu-21"), node_class, reason=reason)


@pytest.mark.parametrize("node_class", [NodeClass.AVAILABLE, NodeClass.BUSY, NodeClass.DOWN, NodeClass.UNKNOWN])
def test_a_node_that_nobody_marked_may_be_drained(node_class: NodeClass) -> None:
    assert drain_wanted(node(node_class), OURS) is True


def test_the_same_drain_twice_is_one() -> None:
    assert drain_wanted(node(NodeClass.DRAINED, OURS), OURS) is False


@pytest.mark.parametrize("present", [
    node(NodeClass.DRAINED, "NHC: bad fan"), node(NodeClass.DRAINED), node(NodeClass.AVAILABLE, "reboot planned"),
    node(NodeClass.DRAINED, "runbook:oom-c-99 GPU 1"), node(NodeClass.DOWN, "Not responding"),
])
def test_nobody_elses_reason_is_written_over(present: NodeState) -> None:
    with pytest.raises(NotAllowed, match="already"):
        drain_wanted(present, OURS)


@pytest.mark.parametrize("reason", ["", " \t"])
def test_a_drain_has_a_reason(reason: str) -> None:
    with pytest.raises(BadInput):
        drain_wanted(node(NodeClass.AVAILABLE), reason)


@pytest.mark.parametrize("reason", [OURS, "runbook:oom-c-12"])
def test_our_own_drain_is_given_back(reason: str) -> None:
    assert undrain_wanted(node(NodeClass.DRAINED, reason), "runbook:oom-c-12") is True


@pytest.mark.parametrize(("token", "reason"), [
    ("runbook:oom-c-1", OURS), ("runbook:oom-c", OURS), ("runbook:", OURS), (OURS, OURS), ("", OURS),
    ("", "NHC: bad"), ("runbook:oom-c-12", "NHC: runbook:oom-c-12"),
    ("runbook:oom-c-12", ""),
])
def test_a_drain_of_another_incident_or_of_a_person_stays(token: str, reason: str) -> None:
    with pytest.raises(NotAllowed, match="somebody else"):
        undrain_wanted(node(NodeClass.DRAINED, reason), token)


def test_what_is_not_drained_needs_nothing() -> None:
    assert undrain_wanted(node(NodeClass.AVAILABLE), "runbook:oom-c-12") is False
    assert undrain_wanted(node(NodeClass.DOWN, "Not responding"), "runbook:oom-c-12") is False


def test_a_node_that_is_down_is_not_given_back() -> None:
    with pytest.raises(NotAllowed, match="is down"):
        undrain_wanted(node(NodeClass.DOWN, OURS), "runbook:oom-c-12")
    both = NodeState(NodeName("gpu-21"), NodeClass.DRAINED, ("DOWN", "DRAIN"), OURS)
    with pytest.raises(NotAllowed, match="is down"):
        undrain_wanted(both, "runbook:oom-c-12")
