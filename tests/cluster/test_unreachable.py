"""A node that cannot be looked at, over real SSH: unknown, never drained; the loop goes on and says what it missed."""

from __future__ import annotations

import time

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("command", "reach", "reason"),
    [
        ("ssh-down", "refused", "refused"),
        ("ssh-hang", "timeout", "no answer within 2 s"),
        ("ssh-freeze", "timeout", "no answer within 2 s"),
        ("ssh-newkey", "host_key", "host key"),
    ],
    ids=["refused", "silent", "frozen", "changed-key"],
)
def test_a_node_that_is_not_reached_is_unknown_and_not_drained(
    cluster: Cluster, command: str, reach: str, reason: str
) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    cluster.sandbox(command, "gpu-22")
    started = time.monotonic()
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, (done.stdout, done.stderr, time.monotonic() - started)
    incident = cluster.incident(job)
    visits = {visit["box"]: visit for visit in incident["visits"]}
    assert visits["check_node"]["outcome"] == "unknown"
    assert "drain_node" not in visits
    (facts,) = incident["original"]["nodes"]
    assert (facts["node"], facts["reach"]) == ("gpu-22", reach)
    assert reason in facts["reach_detail"].lower()
    (judgement,) = incident["original"]["judgements"]
    assert (judgement["verdict"], judgement["drain"]) == ("unknown", False)
    assert (incident["drained_nodes"], incident["excluded_nodes"]) == ([], [])
    assert "DRAIN" not in cluster.node_field("gpu-22", "State")
    # The loop went on by what the log says, and says what it could not see.
    assert incident["state"] == "recovered", incident["conclusion"]
    assert incident["original"]["diagnosis"]["best"]["missing"]
    shown = cluster.runbook("show", incident["id"])
    assert shown.returncode == 0, shown.stderr
    page = (cluster.state / "incidents" / incident["id"] / "report.html").read_text(encoding="utf-8")
    for text in (shown.stdout, page):
        assert "gpu-22" in text
        assert reason in text.lower(), text


def test_a_node_whose_driver_never_answers_is_unknown_and_not_drained(cluster: Cluster) -> None:
    """SSH works, and nvidia-smi hangs: no figure of the node is known, and none is taken for healthy or for faulty."""
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    cluster.sandbox("gpu", "gpu-22", "--hang")
    done = cluster.runbook("oom", "--job", job, "--yes")
    incident = cluster.incident(job)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert {visit["box"]: visit["outcome"] for visit in incident["visits"]}["check_node"] == "unknown"
    assert incident["drained_nodes"] == []
    (facts,) = incident["original"]["nodes"]
    assert facts["reach"] == "ok"
    assert "unknown" in facts["gpus"], facts["gpus"]
