"""The past in groups, and nodes beside their peers: sound where there is enough to tell, silent where there is not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.model.remedy import Circumstances, Remembered, TriedLever
from runbook.model.units import GIB, IncidentId, NodeName
from runbook.report.html.list_pages import render_history
from runbook.report.incident_search import HistoryQuery, groups
from runbook.report.past_incidents import NodeHistory, Verdict, draws_tail, node_histories, remember
from runbook.report.summary import IncidentSummary, summarize
from tests.kinds import KINDS, Kind
from tests.report.sample_incidents import OPENED_S, hostile, recovered, two_attempts

NODES = tuple(NodeName(f"gpu-{number}") for number in range(8))
ROW = replace(summarize(recovered()), nodes=NODES[:4], num_nodes=4)


def row(number: int, failing: int, nodes: tuple[NodeName, ...] = NODES[:4], **changes: object) -> IncidentSummary:
    """One job's failure; every job is another one's."""
    made = replace(
        ROW, id=IncidentId(f"oom-a-{number}"), job_name=f"job{number}", nodes=nodes, num_nodes=len(nodes),
        node=NODES[failing], opened_s=OPENED_S + number, owner=f"user{number}",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def of(found: tuple[NodeHistory, ...], number: int) -> NodeHistory:
    return next(item for item in found if item.node == f"gpu-{number}")


def test_a_node_that_fails_far_more_often_than_its_peers_is_named_and_no_other() -> None:
    rows = [row(number, 2 if number % 4 else number // 4 % 4) for number in range(40)]
    found = node_histories(rows)
    assert [item.node for item in found if item.verdict is Verdict.MORE] == ["gpu-2"]
    worst = found[0]
    assert (worst.observed, worst.draws, worst.expected) == (32, 40, 10.0)
    assert worst.probability < 1e-9
    assert of(found, 1).verdict is Verdict.NOT_MORE


def test_no_node_is_named_by_the_jobs_of_one_user() -> None:
    """Which node failed is what a job's log says, and the log is its owner's."""
    forged = [row(number, 2, NODES[1:3], owner="eve") for number in range(40)]
    found = node_histories(forged)
    assert [(item.node, item.verdict, item.owners, item.most_of) for item in found] == [
        ("gpu-2", Verdict.ONE_OWNER, 1, "eve"),
    ]
    others = [row(100 + number, number % 4) for number in range(40)]
    beside = of(node_histories(forged + others), 2)
    assert (beside.verdict, beside.owners, beside.most_of) == (Verdict.ONE_OWNER, 11, "eve")
    seen = [row(200 + number, 2, NODES[1:3], owner=("bob", "carol")[number % 2]) for number in range(24)]
    assert of(node_histories(forged + seen), 2).verdict is Verdict.MORE
    assert of(node_histories(forged + others + [row(300, 2, owner="bob")]), 2).verdict is Verdict.ONE_OWNER


def test_one_users_jobs_hide_no_node_that_others_name() -> None:
    seen = [row(number, 2) for number in range(20)]
    elsewhere = [row(100 + number, 1, owner="eve") for number in range(12)]
    found = node_histories(seen + elsewhere)
    assert [item.node for item in found if item.verdict is Verdict.MORE] == ["gpu-2"]


def test_nodes_that_take_turns_are_as_their_peers() -> None:
    found = node_histories([row(number, number % 4) for number in range(80)])
    assert {item.verdict for item in found} == {Verdict.NOT_MORE}


def test_few_incidents_tell_nothing_and_it_is_said() -> None:
    found = node_histories([row(0, 2), row(1, 2)])
    assert [(item.node, item.verdict, item.observed) for item in found] == [("gpu-2", Verdict.TOO_FEW, 2)]


def test_jobs_on_one_node_have_no_peers() -> None:
    (only,) = node_histories([row(number, 3, NODES[3:4]) for number in range(30)])
    assert (only.failures, only.draws, only.observed, only.verdict) == (30, 0, 0, Verdict.TOO_FEW)


def test_the_same_job_on_the_same_nodes_again_is_one_observation() -> None:
    found = node_histories([row(number, 0, job_name="one job", owner="ana") for number in range(30)])
    first = of(found, 0)
    assert (first.failures, first.observed, first.draws, first.as_first) == (30, 1, 1, 1)
    assert first.verdict is Verdict.TOO_FEW


def test_faults_and_co_tenants_stand_beside_and_faults_are_no_memory_failures() -> None:
    rows = [row(number, 1, kind=Kind.HARDWARE_FAULT) for number in range(3)]
    rows += [row(10, 1, kind=Kind.CO_TENANT), row(11, 1, kind=Kind.NOT_OOM), row(12, 1, node="elsewhere")]
    found = node_histories(rows)
    beside = of(found, 1)
    assert (beside.failures, beside.hardware_faults, beside.co_tenants, beside.observed) == (1, 3, 1, 1)
    assert next(item for item in found if item.node == "elsewhere").draws == 0


@given(st.lists(st.integers(1, 6), max_size=7), st.integers(0, 8))
def test_the_tail_is_that_of_all_outcomes_counted_one_by_one(sizes: list[int], at_least: int) -> None:
    exact = Fraction(0)
    for outcome in itertools.product((0, 1), repeat=len(sizes)):
        if sum(outcome) >= at_least:
            chance = Fraction(1)
            for came, size in zip(outcome, sizes, strict=True):
                chance *= Fraction(1, size) if came else 1 - Fraction(1, size)
            exact += chance
    assert draws_tail([1 / size for size in sizes], at_least) == pytest.approx(float(exact), abs=1e-12)


def test_a_long_sum_is_bounded_from_above() -> None:
    many = [0.25] * 4000
    assert draws_tail(many, 1000) == 1.0
    assert 0 < draws_tail(many, 1200) < 1e-7


def past(number: int, **changes: object) -> Remembered:
    made = Remembered(
        IncidentId(f"oom-a-{number}"), OPENED_S + number, Kind.TRUE_OOM,
        circumstances=Circumstances("megatron", model="llama-70b", micro_batch=4, sequence_length=8192),
        gpu="NVIDIA H100 80GB HBM3", gpu_bytes=round(79.1 * GIB),
        levers=(TriedLever("smaller_micro_batch", "k", "8 → 4", 1, number % 2 == 0),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_groups_say_how_often_what_worked() -> None:
    rows = [row(number, 1) for number in range(5)]
    remembered: dict[str, Remembered] = {f"oom-a-{number}": past(number) for number in range(4)}
    remembered["oom-a-3"] = past(3, gpu_bytes=round(79.65 * GIB))
    remembered["oom-a-4"] = past(4, circumstances=Circumstances("verl", model="qwen"))
    query = HistoryQuery()
    first, second = groups(query.choose(rows, remembered, OPENED_S), remembered)
    assert (first.count, first.figures.model, first.figures.gpu_gib) == (4, "llama-70b", 80)
    (lever,) = first.levers
    assert (lever.worked, lever.failed, lever.open) == (2, 2, 0)
    assert first.incidents == ("oom-a-3", "oom-a-2", "oom-a-1")
    assert second.address == "/incidents/oom-a-4"


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, 4), ({"system": "Megatron"}, 4), ({"system": "verl"}, 0), ({"model": "LLAMA"}, 4), ({"user": "ana"}, 4),
        ({"user": "an"}, 0), ({"node": "gpu-3"}, 4), ({"node": "gpu-7"}, 0), ({"kind": "fragmentation"}, 0),
        ({"kind": "no-such"}, 4), ({"days": "1"}, 2), ({"days": "x"}, 4), ({"days": "99999999"}, 4),
    ],
)
def test_what_is_chosen(parameters: dict[str, str], count: int) -> None:
    rows = [row(number, 1, opened_s=OPENED_S + 86_400 * number, owner="ana") for number in (-1, 0, 1, 2)]
    remembered: dict[str, Remembered] = {one.id: past(number) for number, one in enumerate(rows)}
    query = HistoryQuery.read(parameters, KINDS)
    assert len(query.choose(rows, remembered, OPENED_S + 86_400 * 2 - 5)) == count
    assert HistoryQuery.read(dict(parse_qsl(query.address.partition("?")[2])), KINDS) == query


def test_what_is_kept_of_an_incident_names_nobody_and_is_small() -> None:
    kept = remember(two_attempts())
    assert kept is not None
    assert (kept.gpu, kept.gpus, round((kept.gpu_bytes or 0) / GIB, 1)) == ("NVIDIA H100 80GB HBM3", 32, 79.1)
    assert [(tried.attempt, tried.worked) for tried in kept.levers] == [(1, False), (2, True), (2, True)]
    assert kept.levers[0].change == "--micro-batch-size 4 → 2"
    assert "ana" not in repr(kept).replace("analys", "") and "llama-70b-sft" not in repr(kept)


def test_a_hostile_job_is_text_on_the_page() -> None:
    kept = remember(hostile())
    rows = [summarize(hostile())]
    remembered: dict[str, Remembered] = {rows[0].id: kept} if kept else {}
    said = Circumstances("<script>", model="<img src=x>\u202eevil")
    evil: dict[str, Remembered] = {rows[0].id: past(0, circumstances=said)}
    for known in (remembered, evil):
        page = render_history(rows, known, HistoryQuery(model="<b>"), OPENED_S)
        page += render_history(rows, known, HistoryQuery(), OPENED_S)
        assert "<script>" not in page and "<img" not in page and "<b>" not in page and "\u202e" not in page
