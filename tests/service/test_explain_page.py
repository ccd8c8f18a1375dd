"""/explain: the same words as `runbook explain`, for whoever looks at a report."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from runbook.adapters.store import IncidentStore
from runbook.service.app import create_app
from tests.service.shown import shown


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    app = create_app(shown(IncidentStore(tmp_path_factory.mktemp("state"))), hosts=("testserver",))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(("word", "says"), [
    ("xid 79", "GPU has fallen off the bus"), ("0:53", "output file"), ("true_oom", "True out of memory"),
    ("PT-CUDA-07", "PyTorch"), ("--max-tokens-per-gpu", "smaller_token_budget"),
])
def test_a_word_has_a_page_by_its_address_and_by_the_form(client: TestClient, word: str, says: str) -> None:
    for answer in (client.get(f"/explain/{quote(word, safe='')}"), client.get("/explain", params={"q": word})):
        assert answer.status_code == 200 and says in unescape(answer.text)


def test_without_a_word_it_offers_some_and_each_leads_somewhere(client: TestClient) -> None:
    links = re.findall(r'href="(/explain/[^"]+)"', client.get("/explain").text)
    assert len(links) > 15
    for link in links:
        assert client.get(unescape(link)).status_code == 200, link


def test_what_is_not_known_is_said_with_names_that_are_near(client: TestClient) -> None:
    answer = client.get("/explain/trueoom")
    assert answer.status_code == 404 and 'href="/explain/true_oom"' in answer.text


def test_what_is_asked_for_stays_text(client: TestClient) -> None:
    answer = client.get("/explain", params={"q": "<script>alert(1)</script>\u202e" + "x" * 5000})
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text and "\u202e" not in answer.text and len(answer.text) < 60_000
