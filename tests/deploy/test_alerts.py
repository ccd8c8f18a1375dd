"""The alert rules and routes, before promtool, amtool and a real Alertmanager."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.deploy.prometheus_tools import alertmanager, ask, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy" / "prometheus"
UNIT_TESTS = Path(__file__).with_name("alerts.test.yml")
RULE_FILES = ("runbook.rules.yml", "runbook-absent.rules.yml")


def _rules() -> list[Mapping[str, Any]]:
    documents = [YAML(typ="safe").load(FOLDER / name) for name in RULE_FILES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.prometheus
def test_every_alert_fires_and_is_silent_where_it_should() -> None:
    done = _run("promtool", "test", "rules", str(UNIT_TESTS))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_the_rules_have_no_fault() -> None:
    done = _run("promtool", "check", "rules", *(str(FOLDER / name) for name in RULE_FILES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_a_test_of_firing_and_of_silence() -> None:
    checks = [check for test in YAML(typ="safe").load(UNIT_TESTS)["tests"] for check in test["alert_rule_test"]]
    names = {rule["alert"] for rule in _rules()}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == names
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == names


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_is_asked_and_where_to_read_on(rule: Mapping[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "page")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "report_url", "runbook_url"}
    address, _, section = notes["runbook_url"].partition("#")
    assert address.endswith("/docs/alerts")
    headings = re.findall(r"^## (\w+)$", (REPOSITORY / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert section in {heading.lower() for heading in headings}
    assert rule["alert"] in headings


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ("alertname=RunbookEscalated severity=page", "on-call"),
        ("alertname=RunbookNodeDrained severity=warning", "look-today"),
        ("alertname=RunbookJobOutOfMemory severity=info", "for-information"),
        ("alertname=GpuXid severity=page runbook=open job_id=4711", "runbook,look-today"),
    ],
)
def test_who_is_told(labels: str, receivers: str) -> None:
    done = _run("amtool", "config", "routes", "test", f"--config.file={FOLDER}/alertmanager.yml", *labels.split())
    assert done.stdout.strip() == receivers, done.stderr


@pytest.mark.prometheus
def test_the_routes_have_no_fault() -> None:
    done = _run("amtool", "check-config", str(FOLDER / "alertmanager.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_one_message_for_one_thing(tmp_path: Path) -> None:
    # The receivers are placeholders under .invalid: nothing leaves this machine.
    text = (FOLDER / "alertmanager.yml").read_text().replace("/etc/prometheus/runbook.token", str(tmp_path / "token"))
    now = datetime.now(UTC).isoformat()
    sent = [
        {"alertname": "RunbookJobOutOfMemory", "cluster": "alpha", "incident": "oom-alpha-1"},
        {"alertname": "RunbookEscalated", "cluster": "alpha", "incident": "oom-alpha-1"},
        {"alertname": "RunbookJobOutOfMemory", "cluster": "alpha", "incident": "oom-alpha-2"},
        {"alertname": "RunbookGpuFault", "cluster": "alpha", "incident": "oom-alpha-2"},
        {"alertname": "RunbookNodeDrained", "cluster": "alpha", "incident": "oom-alpha-2"},
        {"alertname": "RunbookJobOutOfMemory", "cluster": "beta", "incident": "oom-beta-1"},
        {"alertname": "RunbookEscalated", "cluster": "beta", "incident": "oom-beta-2"},
        {"alertname": "RunbookDown", "cluster": "beta"},
        {"alertname": "RunbookAbsent", "cluster": "beta"},
        {"alertname": "RunbookSpoolGrowing", "cluster": "alpha"},
    ]
    with alertmanager(tmp_path, text) as address:
        ask(f"{address}/api/v2/alerts", [{"labels": labels, "startsAt": now} for labels in sent])

        def shown() -> set[tuple[str, str, str]] | None:
            alerts = ask(f"{address}/api/v2/alerts")
            judged = [alert for alert in alerts if alert["status"]["state"] != "unprocessed"]
            if len(judged) < len(sent):
                return None
            return {
                (alert["labels"]["alertname"], alert["labels"]["cluster"], alert["labels"].get("incident", ""))
                for alert in judged if not alert["status"]["inhibitedBy"]
            }

        # An alert may be judged before the one that inhibits it has arrived, so the last word counts.
        wanted = {
            ("RunbookEscalated", "alpha", "oom-alpha-1"),
            ("RunbookJobOutOfMemory", "alpha", "oom-alpha-2"),
            ("RunbookNodeDrained", "alpha", "oom-alpha-2"),
            ("RunbookEscalated", "beta", "oom-beta-2"),
            ("RunbookDown", "beta", ""),
            ("RunbookSpoolGrowing", "alpha", ""),
        }
        assert wait_for(lambda: shown() == wanted or None, 30, "one message for one thing")
