"""Looking for incidents: words, filters, addresses that say the same again."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest

from runbook.model.units import IncidentId, JobId
from runbook.report.html.list_pages import render_index
from runbook.report.incident_search import IndexQuery
from runbook.report.summary import IncidentSummary, summarize
from tests.kinds import KINDS, Kind
from tests.report.sample_incidents import (
    OPENED_S,
    SAMPLES,
    co_tenant,
    hardware_fault,
    recovered,
    two_attempts,
)

DAY_S = 86_400.0
NOW_S = OPENED_S + 40 * DAY_S


def rows() -> list[IncidentSummary]:
    """Four incidents, one a week, newest first, of two users."""
    made = []
    for number, make in enumerate((recovered, two_attempts, hardware_fault, co_tenant)):
        row = summarize(make())
        made.append(replace(
            row, id=IncidentId(f"oom-alpha-{number}"), root_job=JobId(f"7{number}"), jobs=(JobId(f"7{number}"),),
            owner="ana" if number < 3 else "bo", opened_s=NOW_S - (3 - number) * 10 * DAY_S - 60,
        ))
    return made[::-1]


def found(**parameters: str) -> list[str]:
    query = IndexQuery.read(parameters, KINDS)
    return [row.id[-1] for row in query.choose(rows(), NOW_S) if row.state in query.states]


@pytest.mark.parametrize(
    ("parameters", "ids"),
    [
        ({}, "3210"),
        ({"q": "71"}, "1"),
        ({"q": "oom-alpha-2"}, "2"),
        ({"q": "LLAMA ana"}, "210"),
        ({"q": "bo"}, "3"),
        ({"q": "gpu-23"}, "3210"),
        ({"q": "micro batch size"}, "10"),
        ({"q": "micro_batch_size"}, "10"),
        ({"q": "hardware fault"}, "2"),
        ({"q": "hardware_fault"}, ""),
        ({"q": "does not fit"}, "10"),
        ({"q": "drained gpu-22"}, "2"),
        ({"q": "%"}, ""),
        ({"user": "ANA"}, "210"),
        ({"user": "an"}, ""),
        ({"node": "gpu-20"}, "3210"),
        ({"node": "gpu-2"}, ""),
        ({"diagnosis": "co_tenant"}, "3"),
        ({"diagnosis": "no-such"}, "3210"),
        ({"state": "recovered"}, "210"),
        ({"state": "escalated"}, "3"),
        ({"state": "person", "user": "ana"}, ""),
        ({"period": "day"}, "3"),
        ({"period": "week"}, "3"),
        ({"period": "month"}, "321"),
        ({"from": "2026-10-13", "to": "2026-10-14"}, "2"),
        ({"to": "2026-09-24"}, "0"),
        ({"from": "yesterday"}, "3210"),
    ],
)
def test_what_is_found(parameters: dict[str, str], ids: str) -> None:
    assert "".join(found(**parameters)) == ids


@pytest.mark.parametrize(
    "parameters",
    [
        {"q": "a b", "state": "person", "diagnosis": "true_oom", "user": "ana", "node": "gpu-22", "page": "3"},
        {"period": "week"}, {"from": "2026-09-01", "to": "2026-09-30"}, {"q": "<script>&x=1#"}, {"q": "ä 日本"}, {},
    ],
)
def test_an_address_says_the_same_view_again(parameters: dict[str, str]) -> None:
    query = IndexQuery.read(parameters, KINDS)
    again = IndexQuery.read(dict(parse_qsl(urlsplit(query.address).query)), KINDS)
    assert again == query
    assert again.address == query.address


def test_fields_that_are_empty_or_not_understood_leave_no_trace_in_the_address() -> None:
    assert IndexQuery.read({"q": " ", "state": "x", "user": "", "period": "year", "page": "-1"}, KINDS).address == "/"


def test_counts_of_states_are_those_of_what_was_looked_for() -> None:
    page = render_index(rows(), IndexQuery.read({"user": "ana"}, KINDS), NOW_S)
    assert ">Recovered 3</a>" in page
    assert ">Need a person 0</a>" in page
    assert "found: 3, of 4 in all" in page


def test_a_list_without_a_match_says_how_to_find_more() -> None:
    page = render_index(rows(), IndexQuery.read({"user": "bo", "diagnosis": Kind.TRUE_OOM}, KINDS), NOW_S)
    assert "No incident fits." in page
    assert '<a href="/?user=bo">without true out of memory</a>: 1 incident<' in page
    assert '<a href="/?diagnosis=true_oom">without user bo</a>: 2 incidents<' in page


def test_a_row_answers_who_what_done_and_asked() -> None:
    page = render_index([summarize(hardware_fault())], IndexQuery(), NOW_S)
    for piece in (
        "884213</a> <bdi>llama-70b-sft</bdi>", "<bdi>ana</bdi> on 4 nodes", "GPU hardware fault", "rank 19 on gpu-22",
        "Cancelled job 884213; drained gpu-22; relaunched as job 884301 from step 1000.", ">Yes</span>",
        "Run the field diagnostic on gpu-22",
    ):
        assert piece in page


def test_a_plan_is_asked_to_be_read() -> None:
    page = render_index([summarize(SAMPLES["planned"]())], IndexQuery(), NOW_S)
    assert "Read the plan below" in page
    assert "No, only planned" in page


def test_a_hundred_of_the_largest_rows_are_a_small_page() -> None:
    row = summarize(SAMPLES["hostile"]())
    many = [replace(row, id=IncidentId(f"oom-alpha-{number}"), owner=f"user{number}{'x' * 40}")
            for number in range(250)]
    for words in ("", "\U0001f600" * 200):
        assert len(render_index(many, IndexQuery(words=words), NOW_S).encode()) < 300_000
