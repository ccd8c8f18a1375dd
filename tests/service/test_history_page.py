"""/history over a real store: found from the list, filtered by its address, for those alone who may look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from runbook.adapters.store import IncidentStore
from runbook.model.remedy import Circumstances
from runbook.model.units import IncidentId
from runbook.service.app import create_app
from runbook.service.tokens import Role
from tests.report.sample_incidents import OPENED_S, escalated, hardware_fault, recovered
from tests.service.shown import shown
from tests.service.signed_in import Place


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    store = IncidentStore(tmp_path / "state")
    ran_with = Circumstances("megatron", model="llama-70b", micro_batch=4, sequence_length=8192)
    for number, make in enumerate((recovered, recovered, escalated, hardware_fault)):
        made = replace(make(), id=IncidentId(f"oom-alpha-{number}"), opened_s=OPENED_S + number)
        store.save(replace(made, circumstances=ran_with) if make is recovered else made)
    return store


def client(store: IncidentStore) -> TestClient:
    return TestClient(create_app(shown(store), hosts=("testserver",), now=lambda: OPENED_S + 60))


def test_the_page_is_reached_from_the_list_and_leads_back_to_the_incidents(store: IncidentStore) -> None:
    visitor = client(store)
    assert '<a href="/history">History</a>' in visitor.get("/").text
    page = visitor.get("/history")
    assert page.status_code == 200 and "script-src 'self'" in page.headers["content-security-policy"]
    assert "llama-70b" in page.text and "80 GiB" in page.text and "worked in 2 of 2" in page.text
    link = "/?q=llama-70b-sft&amp;diagnosis=true_oom&amp;user=ana"
    assert f'<a href="{link}">2</a>' in page.text
    listed = visitor.get(link.replace("&amp;", "&")).text
    assert 'href="/incidents/oom-alpha-0"' in listed and 'href="/incidents/oom-alpha-1"' in listed
    assert '<a href="/?node=gpu-22">gpu-22</a>' in page.text and "Too few to tell" in page.text


def test_the_address_is_the_view(store: IncidentStore) -> None:
    visitor = client(store)
    answer = visitor.get("/history?system=megatron&model=&kind=&user=&node=&days=", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/history?system=megatron")
    page = visitor.get("/history?system=megatron&model=llama").text
    assert 'value="llama"' in page and "2 incidents whose cause is known" in page
    assert "No incident whose cause is known fits" in visitor.get("/history?user=nobody").text


def test_a_store_without_incidents_says_so(tmp_path: Path) -> None:
    page = client(IncidentStore(tmp_path)).get("/history")
    assert page.status_code == 200
    assert "No incident whose cause is known fits" in page.text
    assert "No memory failure is known to have been on a certain node" in page.text


def test_the_page_is_for_those_who_are_signed_in(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.client().get("/history").status_code == 401
    assert place.client().get("/history", headers={"accept": "text/html"}).headers["location"].startswith("/sign-in")
    assert place.client().get("/history", headers=place.bearer(Role.READ)).status_code == 200
