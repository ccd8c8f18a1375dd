"""The web pages over a real store: found, filtered, safe to serve, and honest when something is broken."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.model.incident import IncidentState
from runbook.model.template import Patch, Splice, TemplateFile
from runbook.model.units import IncidentId
from runbook.report.html import live_script_address
from runbook.service.app import create_app
from tests.report.sample_incidents import (
    HOSTILE,
    OPENED_S,
    awaiting,
    escalated,
    hardware_fault,
    hostile,
    just_opened,
    planned,
    recovered,
)
from tests.service.shown import HEALTHY, shown


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    store = IncidentStore(tmp_path)
    for number, make in enumerate((recovered, escalated, planned, awaiting, hardware_fault, just_opened)):
        incident = make()
        store.save(replace(incident, id=IncidentId(f"oom-alpha-{number}"), opened_s=OPENED_S + number), {"version": 1})
    return store


def _client(store: IncidentStore, health: Mapping[str, Any] = HEALTHY) -> TestClient:
    figures = ServiceFigures(
        now_s=OPENED_S + 100, version="0.1.0", heartbeat_s=OPENED_S + 99, spool_depth=3, spool_oldest_s=OPENED_S + 40,
        spool_bad=1, events_opened=7,
    )
    metrics = IncidentMetrics(ReadModel(store), Labels(), lambda: figures)
    app = create_app(shown(store, health, metrics.text), hosts=("testserver",))
    return TestClient(app, raise_server_exceptions=False)


def test_the_list_names_every_incident_newest_first(store: IncidentStore) -> None:
    page = _client(store).get("/").text
    places = [page.index(f'href="/incidents/oom-alpha-{number}"') for number in (5, 4, 3, 2, 1, 0)]
    assert places == sorted(places)
    assert "True out of memory" in page
    assert "rank 19 on gpu-22" in page


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [("person", {1, 3}), ("recovered", {0, 4}), ("planned", {2}), ("running", {5}), ("closed", set()),
     ("no-such-filter", {0, 1, 2, 3, 4, 5})],
)
def test_the_list_by_state(store: IncidentStore, chosen: str, ids: set[int]) -> None:
    page = _client(store).get("/", params={"state": chosen}).text
    assert {number for number in range(6) if f'/incidents/oom-alpha-{number}"' in page} == ids


def test_a_search_has_an_address_without_its_empty_fields(store: IncidentStore) -> None:
    client = _client(store)
    answer = client.get("/?q=&diagnosis=&user=ana&node=&period=&from=&to=", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?user=ana")
    assert client.get("/?user=ana", follow_redirects=False).status_code == 200


def test_a_list_of_the_last_day_is_of_the_day_before_now(store: IncidentStore) -> None:
    day_s = 86_400.0
    app = create_app(shown(store), hosts=("testserver",), now=lambda: OPENED_S + day_s + 2.5)
    page = TestClient(app).get("/", params={"period": "day"}).text
    assert {number for number in range(6) if f'/incidents/oom-alpha-{number}"' in page} == {3, 4, 5}


@pytest.mark.parametrize("path", ["/", "/incidents/oom-alpha-0", "/incidents/oom-alpha-5"])
def test_whoever_has_the_page_is_told_that_it_is_the_same_until_it_is_not(store: IncidentStore, path: str) -> None:
    client = _client(store)
    tag = client.get(path).headers["etag"]
    same = client.get(path, headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    for number in (0, 5):
        name = IncidentId(f"oom-alpha-{number}")
        changed = replace(store.load(name), conclusion="Something else happened.", state=IncidentState.ESCALATED)
        store.save(changed, {"version": 1})
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_the_script_is_the_programs_own_and_only_pages_may_run_it(store: IncidentStore) -> None:
    client = _client(store)
    page = client.get("/incidents/oom-alpha-5")
    assert f'<script src="{live_script_address()}" defer></script>' in page.text
    assert "script-src 'self'; connect-src 'self'" in page.headers["content-security-policy"]
    answer = client.get(live_script_address())
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert client.get("/assets/live-0000000000000000.js").status_code == 404
    for path in (live_script_address(), "/incidents/oom-alpha-0/incident.json", "/nothing"):
        assert "script-src" not in client.get(path).headers["content-security-policy"]


def test_what_is_served_is_masked(store: IncidentStore) -> None:
    secret = "q7w8e9r0t1y2u3i4"
    first = store.load(IncidentId("oom-alpha-0"))
    assert first.failure is not None
    job = replace(first.failure.job, name=f"API_KEY={secret}", submit_line=f"sbatch --export=SITE_TOKEN={secret} x.sh")
    noted = replace(first, failure=replace(first.failure, job=job), notes=(f"export WANDB_API_KEY={secret}",))
    store.save(noted, {"version": 1})
    client = _client(store)
    for path in ("/", "/?q=API_KEY", "/incidents/oom-alpha-0", "/incidents/oom-alpha-0/incident.json"):
        answer = client.get(path).text
        assert secret not in answer
        assert "***" in answer
    assert secret.encode() in store.read_file(noted.id, "incident.json")


def test_texts_of_scripts_are_shown_to_nobody_where_anybody_may_look(store: IncidentStore) -> None:
    first = store.load(IncidentId("oom-alpha-0"))
    script = TemplateFile("train.sh", "#!/bin/bash\n# what no masking knows: hunter2-forever\n")
    store.save(replace(first, templates=(script,)))
    text = _client(store).get("/incidents/oom-alpha-0/incident.json").text
    assert json.loads(text)["templates"] == [
        {"path": "train.sh", "text": "(not shown to those who are not signed in)"}
    ]
    assert "hunter2" not in text


def test_lines_beside_a_change_are_shown_to_nobody_where_anybody_may_look(store: IncidentStore) -> None:
    """Case: a private configuration's lines beside the lever came to whoever reached the address, in the diff."""
    first = store.load(IncidentId("oom-alpha-0"))
    beside = "secret_dataset: /private/merger-with-acme"
    patch = Patch(
        (TemplateFile("cfg.yaml", f"{beside}\nmicro_batch_size: 8\n"),),
        (Splice("cfg.yaml", 42, f"{beside}\n8", "4"),),
        f"--- a/cfg.yaml\n+++ b/cfg.yaml\n@@ -1,2 +1,2 @@\n {beside}\n-micro_batch_size: 8\n+micro_batch_size: 4\n",
    )
    attempts = tuple(replace(attempt, patch=patch) for attempt in first.attempts)
    assert attempts
    store.save(replace(first, patch=patch, attempts=attempts))
    client = _client(store)
    for path in ("/incidents/oom-alpha-0", "/incidents/oom-alpha-0/incident.json"):
        text = html.unescape(client.get(path).text)
        assert "merger-with-acme" not in text
        assert "(not shown to those who are not signed in)" in text


def test_an_empty_list_says_how_incidents_come(tmp_path: Path) -> None:
    assert "runbook oom --job ID" in _client(IncidentStore(tmp_path / "new")).get("/").text


@pytest.mark.parametrize("page", ["0", "2", "3", "999999", "99999999999999", "-1", "x", "²"])
def test_pages_of_a_long_list(tmp_path: Path, page: str) -> None:
    store = IncidentStore(tmp_path)
    for number in range(150):
        store.save(replace(just_opened(), id=IncidentId(f"oom-alpha-{number}"), opened_s=OPENED_S + number))
    answer = _client(store).get("/", params={"page": page})
    assert answer.status_code == 200
    second = page in ("2", "3", "999999")
    assert answer.text.count('href="/incidents/') == (50 if second else 100)


def test_the_page_of_an_incident(store: IncidentStore) -> None:
    page = _client(store).get("/incidents/oom-alpha-0").text
    assert "What to do first" in page
    assert "The diagnosis for machines" in page
    assert "./evidence/" not in page
    assert "data-live" not in page
    assert "data-live" in _client(store).get("/incidents/oom-alpha-5").text


def test_the_document_is_the_stored_one(store: IncidentStore) -> None:
    answer = _client(store).get("/incidents/oom-alpha-0/incident.json")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["contract"] == {"version": 1}


@pytest.mark.parametrize(
    "path",
    [
        "/incidents/oom-alpha-77", "/incidents/oom-alpha-77/incident.json", "/incidents/x", "/incidents/..%2f..%2fetc",
        "/incidents/%00", "/incidents/<script>", "/incidents/oom-alpha-0/evidence/job.out",
        "/incidents/oom-alpha-0/evidence", "/incidents/oom-alpha-0/crash.txt", "/nothing",
    ],
)
def test_what_there_is_not_is_a_page_that_says_so(store: IncidentStore, path: str) -> None:
    store.write_file(IncidentId("oom-alpha-0"), "evidence/job.out", b"the user's log")
    answer = _client(store).get(path)
    assert answer.status_code == 404
    assert "<h1>" in answer.text
    assert "<script>" not in answer.text
    assert "user's log" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(store: IncidentStore, method: str) -> None:
    assert _client(store).request(method, "/incidents/oom-alpha-0").status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/incidents/oom-alpha-0", "/incidents/oom-alpha-0/incident.json", "/healthz", "/metrics", "/nothing"]
)
def test_every_answer_forbids_scripts_frames_and_guessing(store: IncidentStore, path: str) -> None:
    headers = _client(store).get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_request_under_another_name_is_refused(store: IncidentStore) -> None:
    answer = _client(store).get("/", headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert "oom-alpha" not in answer.text


def test_a_hostile_incident_is_text(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(hostile())
    client = _client(store)
    for path in ("/", f"/incidents/{hostile().id}"):
        page = client.get(path).text.replace(f'<script src="{live_script_address()}" defer></script>', "")
        assert "<script" not in page
        assert "&lt;script&gt;document" in page
        assert "\x1b" not in page
    assert HOSTILE not in client.get("/metrics").text


@pytest.mark.parametrize("damage", [b"{", b'{"version": 99}', b'{"version": 1}'])
def test_a_damaged_incident_is_said_and_hides_no_other(store: IncidentStore, damage: bytes) -> None:
    store.write_file(IncidentId("oom-alpha-0"), "incident.json", damage)
    client = _client(store)
    assert client.get("/incidents/oom-alpha-0").status_code == 503
    page = client.get("/").text
    assert "1 incident folder cannot be read and is not listed: oom-alpha-0" in page
    assert "oom-alpha-1" in page


def test_a_fault_of_the_program_shows_no_trace(store: IncidentStore) -> None:
    def broken(_incident: object) -> Any:
        raise ZeroDivisionError("secret")

    app = create_app(replace(shown(store), flow_picture=broken), hosts=("testserver",))
    answer = TestClient(app, raise_server_exceptions=False).get("/incidents/oom-alpha-0")
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_health_is_a_status_code_too(store: IncidentStore) -> None:
    assert _client(store).get("/healthz").json() == {"ok": True}
    answer = _client(store, {"ok": False, "spool_depth": 9}).get("/healthz")
    assert (answer.status_code, answer.json()["spool_depth"]) == (503, 9)
