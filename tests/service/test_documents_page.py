"""The program's documents as pages: what an alert links to is there, at the place that the link names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from starlette.testclient import TestClient

from runbook.adapters.store import IncidentStore
from runbook.service.app import create_app
from runbook.service.plain_pages import to_html
from tests.service.shown import shown

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    app = create_app(shown(IncidentStore(tmp_path_factory.mktemp("state"))), hosts=("testserver",))
    return TestClient(app, raise_server_exceptions=False)


def test_every_alert_leads_to_its_own_section(client: TestClient) -> None:
    links = [
        rule["annotations"]["runbook_url"]
        for name in ("runbook.rules.yml", "runbook-absent.rules.yml")
        for group in YAML(typ="safe").load(REPOSITORY / "deploy" / "prometheus" / name)["groups"]
        for rule in group["rules"]
    ]
    page = client.get("/docs/alerts").text
    for link in links:
        path, _, section = link.removeprefix("http://127.0.0.1:8642").partition("#")
        assert path == "/docs/alerts"
        assert page.count(f'id="{section}"') == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in (REPOSITORY / "docs").glob("*.md")))
def test_every_document_is_a_page_whose_links_lead_somewhere(client: TestClient, name: str) -> None:
    answer = client.get(f"/docs/{name}")
    assert answer.status_code == 200
    assert answer.text.count("<h1") == 1
    for target in re.findall(r'href="/docs/([a-z-]+)', answer.text):
        assert client.get(f"/docs/{target}").status_code == 200


@pytest.mark.parametrize("name", ["no-such", "..%2fREADME", "incident-schema.json", "%00", "Alerts"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/docs/{name}").status_code == 404


def test_markup_in_a_document_is_text() -> None:
    _, body = to_html("# A <b>title</b>\n\n<script>x</script> [away](javascript:alert(1))\n")
    assert "<script" not in body
    assert "<b>" not in body
    assert 'href="javascript' not in body
