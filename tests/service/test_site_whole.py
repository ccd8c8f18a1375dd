"""The daemon as a process, its engine and scheduler real: from an alert to a proven relaunch, approved by pages."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from runbook.adapters.local import LocalScheduler
from tests.cli.conftest import Shell
from tests.service.signed_in import FORM, hidden, serving

MORE = """\
sign_in: {{tokens_file: {folder}/tokens.yaml}}
webhook: {{quiet_s: 0.5}}
"""


@dataclass
class Site:
    shell: Shell
    spool: Path
    address: str
    process: subprocess.Popen[str]

    def client(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, headers=headers, timeout=20)

    def until(self, client: httpx2.Client, path: str, wanted: str, limit_s: float = 60.0) -> str:
        """The page, once it says so."""
        deadline = time.monotonic() + limit_s
        while True:
            page = client.get(path, headers={"accept": "text/html"})
            if page.status_code == 200 and re.search(wanted, page.text):
                return page.text
            assert time.monotonic() < deadline, re.sub(r"<style.*?</style>|<[^>]*>", "", page.text, flags=re.S)[:4000]
            time.sleep(0.1)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.work.mkdir()
    made.write_inventory()
    spool = tmp_path / "spool"
    spool.mkdir()
    text = made.inventory.read_text(encoding="utf-8").replace(f"spool: {made.state}/spool", f"spool: {spool}")
    made.inventory.write_text(text + MORE.format(folder=tmp_path), encoding="utf-8")
    return made


@pytest.fixture
def site(shell: Shell) -> Iterator[Site]:
    for name, role in (("alice", "act"), ("prometheus", "alert")):
        (shell.folder / name).write_text(shell("token", "new", name, "--role", role).stdout.strip(), encoding="utf-8")
    with serving(shell) as (address, process):
        yield Site(shell, shell.folder / "spool", address.replace("127.0.0.1", "localhost"), process)
    scheduler = LocalScheduler(shell.state / "scheduler")
    for job in scheduler.jobs():
        scheduler.cancel(job)


def _token(site: Site, name: str) -> str:
    return (site.shell.folder / name).read_text(encoding="utf-8")


def _signed_in(site: Site) -> httpx2.Client:
    client = site.client()
    assert client.post("/sign-in", data={"token": _token(site, "alice")}, headers=FORM).status_code == 303
    return client


def _notification(job: str, status: str = "firing", name: str = "TrainingStalled") -> dict[str, object]:
    began = time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime())
    labels = {"alertname": name, "slurm_job_id": job, "job": "node-exporter"}
    alert = {
        "status": status, "labels": labels, "annotations": {}, "startsAt": began, "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph", "fingerprint": "0123456789abcdef",
    }
    return {
        "version": "4", "groupKey": "{}", "truncatedAlerts": 0, "status": status, "receiver": "runbook",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://am", "alerts": [alert],
    }


def test_an_alert_on_a_hanging_job_whose_ranks_nobody_can_see_is_for_a_person_and_cancels_nothing(site: Site) -> None:
    job = site.shell.failed_job("--hang")
    prometheus = site.client(authorization=f"Bearer {_token(site, 'prometheus')}")
    assert prometheus.post("/webhooks/alertmanager", json=_notification(job)).json()["counts"] == {"accepted": 1}
    shown = site.until(_signed_in(site), f"/incidents/oom-here-{job}", "whether a rank of it is gone is not known")
    assert f"cancel job {job}" not in shown
    assert "RUNNING" in site.shell("jobs").stdout


def test_a_job_that_an_alert_told_of_comes_back_with_a_yes_from_the_page_and_is_rolled_back(site: Site) -> None:
    job = site.shell.failed_job()
    prometheus = site.client(authorization=f"Bearer {_token(site, 'prometheus')}")
    told = prometheus.post("/webhooks/alertmanager", json=_notification(job))
    assert told.json()["counts"] == {"accepted": 1}, told.text
    page, client = f"/incidents/oom-here-{job}", _signed_in(site)
    asked = hidden(site.until(client, page, r"Asked of you:</strong>"))
    # The same alert again joins, whatever stands behind it.
    assert prometheus.post("/webhooks/alertmanager", json=_notification(job)).json()["counts"] == {"joined": 1}
    assert client.post(f"{page}/answer", data={**asked, "answer": "yes"}, headers=FORM).status_code == 200
    site.until(client, page, ">Recovered<")
    incident = json.loads((site.shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_bytes())
    assert incident["trigger"] == "alert"
    assert [(act["what"], act["approved_by"]) for act in incident["acts"]] == [("submit", "alice")]
    # Promote by hand, then take it back from the page.
    script = site.shell.work / "train.sbatch"
    before = script.read_bytes()
    assert site.shell("promote", f"oom-here-{job}", "--yes").returncode == 0
    assert script.read_bytes() != before
    shown = client.get(f"{page}/rollback")
    assert str(script) in shown.text
    assert script.read_bytes() != before
    done = client.post(f"{page}/rollback", data=hidden(shown.text), headers=FORM)
    assert done.status_code == 200, done.text
    assert script.read_bytes() == before
    assert client.post(f"{page}/rollback", data=hidden(shown.text), headers=FORM).status_code == 409


def test_an_alert_about_a_job_that_runs_well_cancels_nothing(site: Site) -> None:
    text = site.shell.inventory.read_text(encoding="utf-8")
    script = site.shell.work / "well.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --output=well.out\necho step 1 loss 2.0\nsleep 60\n", encoding="utf-8")
    assert "mode: approve" in text
    job = site.shell("submit", str(script)).stdout.strip()
    prometheus = site.client(authorization=f"Bearer {_token(site, 'prometheus')}")
    assert prometheus.post("/webhooks/alertmanager", json=_notification(job)).status_code == 200
    client = _signed_in(site)
    page = site.until(client, f"/incidents/oom-here-{job}", ">Closed<|>Nothing to do<|show no failure")
    assert 'name="answer"' not in page
    assert "RUNNING" in site.shell("jobs").stdout
    # A job that nobody knows opens nothing, and neither does one of our own alerts on its way round.
    assert prometheus.post("/webhooks/alertmanager", json=_notification("999")).json()["counts"] == {"accepted": 1}
    own = prometheus.post("/webhooks/alertmanager", json=_notification(job, name="RunbookIncidentEscalated")).json()
    assert own["counts"] == {"ignored": 1}
    time.sleep(1.5)
    assert "oom-here-999" not in client.get("/").text
    assert {path.name for path in (site.shell.state / "incidents").iterdir()} == {f"oom-here-{job}"}


def test_a_file_of_tokens_that_others_can_read_stops_the_daemon(shell: Shell) -> None:
    assert shell("token", "new", "alice", "--role", "act").returncode == 0
    listed = shell("token", "list").stdout
    assert listed.split() == ["alice", "act"]
    (shell.folder / "tokens.yaml").chmod(0o644)
    refused = shell("serve", "--port", "0")
    assert refused.returncode == 3
    assert "can be read or changed by others" in refused.stderr
    (shell.folder / "tokens.yaml").chmod(0o600)
    assert "pages: on 127.0.0.1, sign-in by tokens" in shell("doctor").stdout
    assert shell("token", "remove", "alice").returncode == 0
    assert shell("token", "list").stdout == ""
    assert shell("token", "remove", "alice").returncode == 3


def test_pages_for_anybody_are_warned_of(shell: Shell) -> None:
    text = shell.inventory.read_text(encoding="utf-8").replace(MORE.format(folder=shell.folder), "")
    shell.inventory.write_text(text + "reports: {listen: 0.0.0.0}\n", encoding="utf-8")
    assert "the pages are shown to whoever reaches 0.0.0.0" in shell("doctor").stdout
