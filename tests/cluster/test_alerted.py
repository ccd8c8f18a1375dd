"""An alert that names a node only: the job that had it is asked of Slurm, and only one job is an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from runbook.adapters.clock import SystemClock
from runbook.adapters.slurm.commands import SlurmCommands, SlurmOnNode
from runbook.model.units import NodeName
from tests.cluster.conftest import SLURM, Cluster
from tests.service.signed_in import address_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def _alert(node: str, fingerprint: str, began_s: float) -> dict[str, object]:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s))
    labels = {"alertname": "GpuXid", "instance": f"{node}:9400", "job": "dcgm"}
    return {
        "version": "4", "alerts": [
            {"status": "firing", "labels": labels, "startsAt": began, "fingerprint": fingerprint}
        ],
    }


def test_an_alert_on_a_node_brings_the_one_job_back_that_had_it(cluster: Cluster) -> None:
    tokens = cluster.state / "tokens.yaml"
    with cluster.inventory.open("a", encoding="utf-8") as inventory:
        inventory.write(f"sign_in: {{tokens_file: {tokens}}}\nwebhook: {{quiet_s: 1}}\n")
    made = subprocess.run(
        (sys.executable, "-m", "runbook", "token", "new", "prometheus", "--role", "alert"),
        capture_output=True, text=True, check=True, env={**os.environ, "RUNBOOK_INVENTORY": str(cluster.inventory)},
    )
    job = cluster.submit("true-oom.sbatch", "--nodelist=gpu-[21-22]")
    cluster.until_dead(job, "true-oom")
    assert cluster.state_of(job) == "RUNNING"  # one rank is dead, the others wait: Slurm sees nothing
    on_node = SlurmOnNode(SlurmCommands(slurm_conf=SLURM["SLURM_CONF"]), SystemClock())
    now_s = time.time()
    assert on_node(NodeName("gpu-22"), now_s) == on_node(NodeName("gpu-22.site.example"), now_s) == (job,)
    assert on_node(NodeName("gpu-23"), now_s) == ()
    assert job not in on_node(NodeName("gpu-22"), now_s - 86_400)
    daemon = cluster.start_runbook("serve", "--port", "0")
    try:
        client = httpx2.Client(
            base_url=address_of(daemon), headers={"authorization": f"Bearer {made.stdout.strip()}"}, timeout=20
        )
        for node, fingerprint in (("gpu-23", "0" * 16), ("gpu-22", "1" * 16)):
            answer = client.post("/webhooks/alertmanager", json=_alert(node, fingerprint, time.time()))
            assert answer.json()["alerts"][0]["outcome"] == "accepted", answer.text
        incidents: Path = cluster.state / "incidents"
        opened = incidents / f"oom-sandbox-{job}" / "incident.json"
        cluster.until(opened.exists, "the daemon opened the incident", 60)
        cluster.until(lambda: cluster.incident(job)["state"] in ("recovered", "escalated", "closed"), "it ended", 90)
        assert (cluster.incident(job)["state"], cluster.incident(job)["trigger"]) == ("recovered", "alert")
        assert [path.name for path in incidents.iterdir()] == [f"oom-sandbox-{job}"]
        assert list((cluster.state / "spool").glob("*.alert")) == []
    finally:
        daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate(timeout=60)
    assert "no job had gpu-23 then" in said
