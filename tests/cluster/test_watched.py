"""A rank dies of memory, the others wait: Slurm sees a running job, and the watch brings it back."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.conftest import Cluster
from tests.service.signed_in import address_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_a_job_whose_owner_asks_for_it_is_brought_back_while_it_hangs_and_no_other_is_touched(cluster: Cluster) -> None:
    with cluster.inventory.open("a", encoding="utf-8") as inventory:
        inventory.write("watch: {opt_in: runbook, list_s: 1}\n")
    daemon = cluster.start_runbook("serve", "--port", "0")
    try:
        address_of(daemon)
        healthy = cluster.submit("healthy.sbatch", "--comment=runbook", "--job-name=healthy")
        job = cluster.submit("true-oom.sbatch", "--comment=prio,runbook")
        cluster.until_dead(job, "true-oom")
        assert cluster.state_of(job) == "RUNNING"
        died_s = time.time()
        opened = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
        cluster.until(opened.exists, "the watch opened the incident", 60)
        assert opened.stat().st_mtime >= died_s - 1
        cluster.until(lambda: cluster.incident(job)["state"] in ("recovered", "escalated", "closed"), "it ended", 120)
        incident = cluster.incident(job)
        assert (incident["state"], incident["trigger"]) == ("recovered", "watch")
        assert cluster.state_of(job) == "CANCELLED"
        assert [folder.name for folder in (cluster.state / "incidents").iterdir()] == [f"oom-sandbox-{job}"]
        assert cluster.state_of(healthy) in ("RUNNING", "COMPLETED")
        assert list((cluster.state / "spool").glob("*.alert")) == []
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=60)
