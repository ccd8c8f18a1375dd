"""The judgement on a node for nobody's job: what a person sees who names a node and no job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.diagnosis.nodes import NodePolicy, SchedulerView, judge_node_alone
from runbook.model.node import NodeJudgement, Reach
from runbook.model.units import JobId, Unknown
from tests.diagnosis.test_nodes import DOCUMENTS, START_S, facts_of


def judged(case: dict[str, Any], since_s: float | None = None, live: set[str] | None = None) -> NodeJudgement:
    facts = facts_of(case)
    facts = replace(facts, gpus=tuple(
        replace(gpu, name="GPU of no listed model") for gpu in facts.gpus
    )) if not isinstance(facts.gpus, Unknown) else facts
    known = None if live is None else frozenset(map(JobId, live))
    return judge_node_alone(
        facts, DOCUMENTS, NodePolicy(), since_s=since_s, scheduler=SchedulerView(live_jobs=known)
    )


MINE = {"pid": 7, "gib": 60, "owner": "alice", "job": "4711"}


@pytest.mark.parametrize(("case", "live", "verdict", "rules"), [
    ({}, None, "clean", ["ruled_out"]),
    ({"gpus": {0: {"processes": [MINE]}}}, {"4711"}, "clean", ["ruled_out", "tenant_running"]),
    ({"gpus": {0: {"processes": [MINE]}}}, None, "unknown", ["tenant_running"]),
    ({"gpus": {0: {"processes": [MINE]}}}, set(), "occupied", ["tenant_ended_job"]),
    ({"gpus": {0: {"processes": [{**MINE, "job": None}]}}}, {"4711"}, "occupied", ["tenant_no_job"]),
    ({"gpus": {0: {"used_gib": 20}}}, None, "occupied", ["hidden_memory"]),
    ({"gpus": {0: {"row_remap_failed": True}}}, None, "faulty", ["row_remap_failed"]),
    ({"gpus": {0: {"row_remap_pending": True}}}, None, "clean", ["ruled_out", "row_remap_pending"]),
    ({"xids": {"unknown": "refused"}}, None, "unknown", ["not_read"]),
])
def test_what_a_node_is_without_a_job(
    case: dict[str, Any], live: set[str] | None, verdict: str, rules: list[str]
) -> None:
    found = judged(case, live=live)
    assert (found.verdict, [one.rule for one in found.findings]) == (verdict, rules), found


@pytest.mark.parametrize(("code", "verdict", "rules"), [
    (79, "unknown", ["xid_no_time"]), (95, "unknown", ["xid_no_time"]), (94, "unknown", ["xid_no_time"]),
    (9999, "unknown", ["xid_no_time"]), (63, "clean", ["ruled_out"]), (92, "clean", ["ruled_out"]),
    (13, "clean", ["ruled_out"]), (45, "clean", ["ruled_out"]),
])
def test_an_event_of_some_time_blames_nobody_and_a_heavy_one_clears_nothing(
    code: int, verdict: str, rules: list[str]
) -> None:
    found = judged({"xids": [{"code": code, "gpu": 3}]})
    assert (found.verdict, found.drain, [one.rule for one in found.findings]) == (verdict, False, rules)


def test_since_a_time_an_event_counts_and_before_it_is_a_warning() -> None:
    case = {"xids": [{"code": 79, "gpu": 3, "at": 3000}, {"code": 95, "gpu": 1, "at": 100, "in": False}]}
    found = judged(case, since_s=START_S + 2000)
    assert (found.verdict, found.drain, found.faulty_gpus) == ("faulty", True, (3,))
    assert any("before the time that was asked for" in text for text in found.warnings)


def test_a_log_that_does_not_reach_back_to_the_time_asked_for_clears_nothing() -> None:
    found = judged({"covers": 3000}, since_s=START_S + 2000)
    assert found.verdict == "unknown" and "does not reach back" in found.missing[0]
    assert judged({"covers": 3000}).verdict == "clean"


def test_a_node_that_was_not_reached_is_unknown() -> None:
    found = judge_node_alone(replace(facts_of({}), reach=Reach.REFUSED), DOCUMENTS, NodePolicy(), since_s=None)
    assert (found.verdict, found.drain) == ("unknown", False)
