"""From sbatch to the browser: a job dies of memory, the alert fires and links to its page, an alert of the site's own
comes back by the webhook and joins the incident, and the proven relaunch resolves what was fired."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.deploy.prometheus_tools import alertmanager, ask, prometheus, wait_for
from tests.loopback import free_port

CHROMIUM = "/usr/bin/chromium"

pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(300),
    pytest.mark.needs("prometheus", "prometheus-alertmanager", "chromium"),
]

SITE_RULES = """
groups:
  - name: site
    rules:
      # Stands for whatever a site watches logs with: it knows the job's number and nothing of runbook.
      - alert: LineOfOutOfMemory
        expr: max by (cluster, job_id) (runbook_incident_info{state="running"})
        labels: {runbook: open, slurm_job_id: '{{ $labels.job_id }}'}
"""


@contextlib.contextmanager
def _pager() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and every alert that it was sent."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            told.extend(body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", told
        server.shutdown()


def _token(cluster: Cluster, name: str, role: str) -> str:
    made = subprocess.run(
        (sys.executable, "-m", "runbook", "token", "new", name, "--role", role),
        capture_output=True, text=True, check=True, env={**os.environ, "RUNBOOK_INVENTORY": str(cluster.inventory)},
    )
    return made.stdout.strip()


def _configured(cluster: Cluster, folder: Path, pager: str, manager_port: int) -> tuple[str, str]:
    """Prometheus' and Alertmanager's configuration as `runbook deploy prometheus` writes them, made quick."""
    done = subprocess.run(
        (sys.executable, "-m", "runbook", "deploy", "prometheus", "-i", str(cluster.inventory), "-o", str(folder)),
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "site.rules.yml").write_text(SITE_RULES)
    scrape = (folder / "runbook-scrape.yml").read_text().replace("scrape_interval: 15s", "scrape_interval: 500ms")
    manager = (folder / "runbook-alertmanager.yml").read_text()
    for old, new in (
        ("/etc/prometheus/runbook.token", str(folder / "token")), ("group_wait: 10s", "group_wait: 0s"),
        ("group_interval: 1m", "group_interval: 1s"), ("https://chat.example.invalid/PLACEHOLDER-information", pager),
    ):
        assert old in manager
        manager = manager.replace(old, new)
    return (
        "global: {evaluation_interval: 500ms}\n"
        "rule_files: [runbook.rules.yml, runbook-absent-sandbox.rules.yml, site.rules.yml]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{manager_port}']}}]}}]}}\n{scrape}",
        manager,
    )


def test_from_sbatch_to_the_browser(cluster: Cluster, tmp_path: Path) -> None:
    spool = cluster.state.parents[1] / "spool"
    text = cluster.inventory.read_text(encoding="utf-8").replace(f"spool: {cluster.state}/spool", f"spool: {spool}")
    text += f"reports: {{port: {free_port()}}}\nsign_in: {{tokens_file: {cluster.state}/tokens.yaml}}\n"
    cluster.inventory.write_text(text, encoding="utf-8")
    for left in spool.glob("*.event"):
        left.unlink()
    (tmp_path / "token").write_text(_token(cluster, "alertmanager", "alert"))
    reader = _token(cluster, "on-call", "read")
    daemon = cluster.start_runbook("serve")
    try:
        with contextlib.ExitStack() as around:
            pager, told = around.enter_context(_pager())
            port = free_port()
            settings, routes = _configured(cluster, tmp_path, pager, port)
            around.enter_context(alertmanager(tmp_path, routes, port))
            address = around.enter_context(prometheus(tmp_path, settings))

            def firing(name: str, **labels: str) -> dict[str, Any] | None:
                alerts = ask(f"{address}/api/v1/alerts")["data"]["alerts"]
                found = [
                    one for one in alerts if one["labels"]["alertname"] == name and one["state"] == "firing"
                    and labels.items() <= one["labels"].items()
                ]
                return found[0] if found else None

            seen = f"{address}/api/v1/query"
            wait_for(lambda: ask(seen, query="up == 1")["data"]["result"] or None, 60, "Prometheus sees the daemon")
            job = cluster.submit("true-oom.sbatch", SLURM_KILL_BAD_EXIT="1")
            alert = wait_for(lambda: firing("RunbookJobOutOfMemory", job_id=job), 90, "the alert on the job")
            assert alert["labels"]["incident"] == f"oom-sandbox-{job}"
            _looks_right(alert["annotations"]["report_url"], reader, job)
            cluster.until(lambda: cluster.incident(job)["state"] == "recovered", "the relaunch is proven", 90)
            wait_for(
                lambda: True if firing("RunbookJobOutOfMemory", job_id=job) is None else None, 30, "the alert ends"
            )

            def of_the_job() -> list[str]:
                return [
                    one["status"] for one in told
                    if one["labels"]["alertname"] == "RunbookJobOutOfMemory" and one["labels"]["job_id"] == job
                ]

            wait_for(lambda: "resolved" in of_the_job() or None, 30, "the message that it is over")
            assert of_the_job()[0] == "firing"
            _looks_right(alert["annotations"]["report_url"], reader, job, "ecovered")
    finally:
        daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate(timeout=60)
    assert "alerts from alertmanager: {'joined': " in said, said
    assert [path.name for path in (cluster.state / "incidents").iterdir()] == [f"oom-sandbox-{job}"]
    assert len(cluster.relaunches(job)) == 1


def _looks_right(url: str, token: str, job: str, more: str = "") -> None:
    """The page in Chromium on a phone, signed in as one who may only look."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(
                viewport={"width": 390, "height": 844}, extra_http_headers={"authorization": f"Bearer {token}"}
            )
            answer = page.goto(url)
            assert answer is not None and answer.status == 200, url
            text = page.inner_text("main")
            assert job in text
            assert "out of GPU memory" in text or "out of memory" in text.lower()
            assert more in text
        finally:
            browser.close()
