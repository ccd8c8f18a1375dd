"""A real Prometheus asks a real server with stored incidents; every query and every rule is answered."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.cli.monitoring import prometheus_files, write_files
from runbook.config import Inventory, load_inventory
from runbook.model.incident import BoxVisit, Incident, IncidentState
from runbook.model.units import IncidentId, JobId
from runbook.service.app import create_app
from tests.deploy.prometheus_tools import ask, prometheus, wait_for
from tests.report.sample_incidents import (
    FLOW,
    awaiting,
    co_tenant,
    escalated,
    hardware_fault,
    planned,
    recovered,
    two_attempts,
    unreachable_node,
)
from tests.service.shown import shown

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "runbook.json"

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(120)]


@dataclass
class Site:
    """A daemon's pages with their store, and the Prometheus that asks them."""

    store: IncidentStore
    address: str
    figures: ServiceFigures

    def query(self, expression: str) -> list[Any]:
        answer = ask(f"{self.address}/api/v1/query", query=expression)
        assert answer["status"] == "success", f"{expression}\n{answer.get('error')}"
        return list(answer["data"]["result"])

    def firing(self, name: str, **labels: str) -> list[dict[str, Any]]:
        found = ask(f"{self.address}/api/v1/alerts")["data"]["alerts"]
        return [
            alert for alert in found
            if alert["labels"]["alertname"] == name and alert["state"] == "firing"
            and labels.items() <= alert["labels"].items()
        ]


def _numbered(number: int, incident: Incident, **changes: Any) -> Incident:
    return replace(
        incident, id=IncidentId(f"oom-alpha-{number}"), root_job=JobId(str(number)), updated_s=time.time(), **changes
    )


def _stored(store: IncidentStore) -> None:
    limit = BoxVisit("relaunch", 4, 1.0, 2.0, "limit_reached")
    samples = (
        recovered(), two_attempts(), escalated(), planned(), awaiting(), hardware_fault(), co_tenant(),
        unreachable_node(), replace(recovered(), state=IncidentState.INTERRUPTED, closed_s=None),
        replace(two_attempts(), state=IncidentState.RUNNING, closed_s=None),
        replace(escalated(), visits=(*escalated().visits, limit)),
    )
    for number, incident in enumerate(samples, start=1):
        store.save(_numbered(number, incident))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The rules are those of `runbook deploy prometheus`, with every waiting time cut to nothing."""
    folder = tmp_path_factory.mktemp("prometheus")
    store = IncidentStore(folder / "state")
    with socket.socket() as channel:
        channel.bind(("127.0.0.1", 0))
        port = channel.getsockname()[1]
        inventory = _inventory(port)
        found = Site(store, "", ServiceFigures(
            now_s=time.time(), version="0.1.0", driver_alive=False, heartbeat_s=time.time() - 400, spool_depth=3,
            spool_oldest_s=time.time() - 4000, spool_bad=1, spool_readable=False, events_opened=7,
        ))
        labels = Labels("alpha", "oom", tuple(box.name for box in FLOW.boxes), f"http://127.0.0.1:{port}")
        metrics = IncidentMetrics(ReadModel(store), labels, lambda: found.figures)
        app = create_app(shown(store, metrics=metrics.text))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        channel.listen(64)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [channel]}, daemon=True)
        thread.start()
        try:
            files = prometheus_files(inventory)
            rules = {name: text for name, text in files.items() if name.endswith("rules.yml")}
            waits = ("for:", "keep_firing_for:")
            write_files(folder, {
                name: "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith(waits))
                for name, text in rules.items()
            }, force=False)
            scrape = files["runbook-scrape.yml"].replace("scrape_interval: 15s", "scrape_interval: 1s")
            settings = f"global: {{evaluation_interval: 1s}}\nrule_files: [{', '.join(rules)}]\n"
            with prometheus(folder, settings + scrape) as address:
                found.address = address
                # Seen empty first: what is stored afterwards is a rise.
                wait_for(lambda: found.query("runbook_incidents_opened_total") or None, 20, "the first scrape")
                time.sleep(2.5)
                _stored(store)
                wait_for(lambda: found.query("runbook_incident_info") or None, 20, "the incidents")
                time.sleep(3)
                yield found
        finally:
            server.should_exit = True
            thread.join(10)


def _inventory(port: int) -> Inventory:
    inventory = load_inventory(str(REPOSITORY / "inventories" / "sandbox.yaml"))
    return inventory.model_copy(
        update={"cluster": "alpha", "reports": inventory.reports.model_copy(update={"port": port})}
    )


def _queries() -> list[tuple[str, str]]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def _filled(expression: str) -> str:
    for name, value in (
        ("$__range", "1m"), ("$__interval", "30s"), ("$cluster", ".*"), ("$person_minutes", "60"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def test_the_stored_dashboard_is_the_one_that_the_program_makes() -> None:
    made = subprocess.run(
        (sys.executable, str(DASHBOARD.with_name("dashboard.py"))), capture_output=True, text=True, check=True
    )
    assert made.stdout == DASHBOARD.read_text()


@pytest.mark.parametrize(("panel", "expression"), _queries())
def test_every_query_of_the_dashboard_finds_something(site: Site, panel: str, expression: str) -> None:
    found = site.query(_filled(expression))
    assert found, panel
    values = [float(series["value"][1]) for series in found]
    assert all(value == value for value in values), f"{panel}: {values}"


@pytest.mark.parametrize(
    ("panel", "figure"),
    [("Waits for a person", 5), ("At work", 4), ("Drained nodes", 1)],
)
def test_figures_at_a_glance(site: Site, panel: str, figure: float) -> None:
    (expression,) = [text for title, text in _queries() if title == panel]
    (series,) = site.query(_filled(expression))
    assert float(series["value"][1]) == figure


def test_the_diagnosis_of_every_incident_is_a_rise(site: Site) -> None:
    (expression,) = [text for title, text in _queries() if title == "Died of"]
    assert {series["metric"]["diagnosis"] for series in site.query(_filled(expression))} == {
        "true_oom", "hardware_fault", "co_tenant",
    }


def test_every_rule_is_loaded_and_evaluated_without_a_fault(site: Site) -> None:
    groups = ask(f"{site.address}/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {group["name"] for group in groups} == {"runbook-incidents", "runbook-daemon", "runbook-absent-alpha"}
    assert [rule["name"] for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []


@pytest.mark.parametrize(
    ("name", "incident"),
    [
        ("RunbookJobOutOfMemory", "oom-alpha-8"), ("RunbookApprovalNeeded", "oom-alpha-5"),
        ("RunbookEscalated", "oom-alpha-3"), ("RunbookEscalated", "oom-alpha-7"),
        ("RunbookRelaunchBudgetSpent", "oom-alpha-11"), ("RunbookOutOfMemoryAgain", "oom-alpha-10"),
        ("RunbookInterrupted", "oom-alpha-9"), ("RunbookNodeDrained", "oom-alpha-6"),
        ("RunbookGpuFault", "oom-alpha-6"),
    ],
)
def test_the_alert_on_an_incident_links_to_its_page(site: Site, name: str, incident: str) -> None:
    (alert,) = wait_for(lambda: site.firing(name, incident=incident) or None, 15, f"{name} of {incident}")
    notes = alert["annotations"]
    assert notes["report_url"].endswith(f"/incidents/{incident}")
    assert "<no value>" not in notes["summary"] + notes["description"]
    page = ask_text(notes["report_url"])
    assert "<h1" in page


def ask_text(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(
    "name", ["RunbookStuck", "RunbookSpoolUnreadable", "RunbookSpoolGrowing", "RunbookSpoolBadFiles"]
)
def test_the_daemons_own_alerts_fire_on_its_figures(site: Site, name: str) -> None:
    (alert,) = wait_for(lambda: site.firing(name, cluster="alpha") or None, 15, name)
    assert alert["labels"]["instance"] in alert["annotations"]["summary"]


def test_an_alert_ends_when_the_incident_moves_on(site: Site) -> None:
    incident = _numbered(77, awaiting())
    site.store.save(incident)
    wait_for(lambda: site.firing("RunbookApprovalNeeded", incident="oom-alpha-77") or None, 15, "the question")
    site.store.save(replace(incident, state=IncidentState.RUNNING, awaiting=""))
    wait_for(
        lambda: True if not site.firing("RunbookApprovalNeeded", incident="oom-alpha-77") else None, 15, "its end"
    )
    wait_for(lambda: site.firing("RunbookJobOutOfMemory", incident="oom-alpha-77") or None, 15, "the work on it")
    shutil.rmtree(site.store.folder(incident.id))
