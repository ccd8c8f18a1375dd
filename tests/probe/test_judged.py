"""The stand-in's GPUs through the probe to a verdict: what each scenario means for its node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runbook.diagnosis.nodes import NodePolicy, judge_node
from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import NodeAction, NodeJudgement, NodeVerdict
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.node import read_left_document
from runbook.node.catalogues import load_node_documents
from tests.nvml.standin import document_of

pytestmark = pytest.mark.needs("gcc")

FOLDER = data_folder("playbooks") / "oom"


def judged(scenario: str) -> NodeJudgement:
    """The GPUs alone: the kernel log is given as read and empty."""
    facts = read_left_document(json.dumps(document_of(scenario)), NodeName("gpu-21"))
    count = None if isinstance(facts.gpus, Unknown) else len(facts.gpus)
    job = JobRecord(
        id=JobId("4711"), cluster="test", name="train", owner=UserName("alice"),
        state=JobState("FAILED", JobClass.FAILED), gpus_per_node=count, start_time_s=1000.0, end_time_s=2000.0,
    )
    facts = replace(facts, xids=(), log_covers_since_s=0.0, partial_view="")
    return judge_node(facts, job, load_node_documents(FOLDER), NodePolicy())


@pytest.mark.parametrize(("scenario", "verdict", "action", "rules"), [
    ("h100_570_healthy", "clean", "ignore", ["ruled_out"]),
    ("h200_590_healthy", "clean", "ignore", ["ruled_out"]),
    ("a100_535_pending_remap", "clean", "reset_when_idle", ["ruled_out", "row_remap_pending"]),
    ("b200_590_repair_pending", "faulty", "drain", ["recovery_action", "repair_pending"]),
    ("h100_550_failed_remap", "faulty", "drain", ["row_remap_failed", "row_remap_pending", "uncorrectable_errors"]),
    ("h100_570_sram_threshold", "faulty", "drain", ["sram_threshold"]),
    ("h100_570_lost", "faulty", "drain", ["gpu_lost"]),
    ("h100_570_lost_in_a_row", "faulty", "drain", ["gpu_lost"]),
    ("h100_570_reset_required", "faulty", "drain", ["gpu_lost"]),
    ("driver_mismatch", "unknown", "unknown", ["driver_mismatch", "not_read"]),
    ("driver_not_loaded", "unknown", "unknown", ["not_read"]),
    ("h100_570_hung_call", "unknown", "unknown", ["not_read", "not_read"]),
    ("h100_570_hung_init", "unknown", "unknown", ["not_read"]),
    ("h100_570_no_permission", "unknown", "unknown", ["not_read"]),
])
def test_what_a_scenario_means(scenario: str, verdict: str, action: str, rules: list[str]) -> None:
    found = judged(scenario)
    assert (found.verdict, found.action, found.drain) == (verdict, action, action == "drain"), found
    assert [finding.rule for finding in found.findings] == rules


@pytest.mark.parametrize("scenario", ["h100_570_tenants", "h100_570_mps", "h100_590_mig", "v100_418_healthy"])
def test_processes_that_are_not_in_sight_are_unknown_and_never_drain(scenario: str) -> None:
    found = judged(scenario)
    assert (found.verdict, found.action) == (NodeVerdict.UNKNOWN, NodeAction.UNKNOWN)
    assert not found.drain and not found.tenants
