"""The judgement on a node, as cases: `node_scenarios.yaml` says facts and verdict, and explains its own words."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.diagnosis.nodes import FailureClues, NodePolicy, SchedulerView, judge_node, judge_node_alone
from runbook.documents import DocumentsInvalid
from runbook.locations import data_folder
from runbook.model.job import GpuIndices, JobClass, JobRecord, JobState, NodeState
from runbook.model.node import (
    Cause,
    GpuFacts,
    GpuProcess,
    NodeAction,
    NodeFacts,
    NodeJudgement,
    NodeVerdict,
    Reach,
    SlurmGpus,
    Unread,
    XidEvent,
)
from runbook.model.node_rules import Weight
from runbook.model.units import GIB, MIB, Bytes, JobId, NodeName, Unknown, UserName
from runbook.node.catalogues import load_node_documents, load_node_rules
from runbook.slurm.states import node_class

START_S = 1_700_000_000.0
PLAYBOOK = data_folder("playbooks") / "oom"
DOCUMENTS = load_node_documents(PLAYBOOK)
RULES = DOCUMENTS.rules.rules
KEYS = {
    "name", "gpus", "xids", "count", "covers", "reach", "detail", "expected_gpus", "partial_view", "job", "policy",
    "oom_device", "visible_gpus", "live_jobs", "verdict", "drain", "faulty_gpus", "tenants", "reasons", "warnings",
    "missing", "never", "rules", "action", "hidden_gib", "failing_gpu", "named_pids", "own_pids", "node_states",
    "node_device", "spare_nodes", "slurm", "minors", "job_gpus", "simulated",
    "software_fault",
}


@cache
def cases() -> tuple[Any, ...]:
    found = YAML(typ="safe").load((Path(__file__).parent / "node_scenarios.yaml").read_text(encoding="utf-8"))
    assert len({case["name"] for case in found}) == len(found)
    assert len(found) >= 150
    return tuple(pytest.param(case, id=case["name"]) for case in found)


def known(value: Any) -> Any:
    if isinstance(value, dict) and "cause" in value:
        return Unread(value["unknown"], Cause[value["cause"].upper()])
    return Unknown(value["unknown"]) if isinstance(value, dict) and "unknown" in value else value


def gib(value: Any) -> Any:
    return Bytes(int(value * GIB)) if isinstance(value, int | float) else known(value)


def process_of(row: dict[str, Any]) -> GpuProcess:
    job = known(row["job"])
    return GpuProcess(
        pid=row["pid"],
        used_bytes=gib(row["gib"]),
        name=row.get("name", "python"),
        owner=UserName(row["owner"]) if isinstance(row["owner"], str) else known(row["owner"]),
        job=JobId(job) if isinstance(job, str) else job,
        age_s=float(row.get("age_s", 600)) if not isinstance(row.get("age_s"), dict) else known(row["age_s"]),
        start_ticks=row.get("ticks", Unknown("not given")),
        cgroup=row.get("cgroup", Unknown("not given")),
    )


def gpu_of(index: int, changes: dict[str, Any]) -> GpuFacts:
    ours = ("processes", "used_gib", "reserved_gib", "total_mib")
    values = {name: known(value) for name, value in changes.items() if name not in ours}
    if "processes" in changes:
        rows = known(changes["processes"])
        values["processes"] = rows if isinstance(rows, Unknown) else tuple(map(process_of, rows))
    processes = values.get("processes", ())
    listed = 0 if isinstance(processes, Unknown) else sum(
        p.used_bytes for p in processes if not isinstance(p.used_bytes, Unknown)
    )
    used = int(changes["used_gib"] * GIB) if "used_gib" in changes else listed
    total = known(changes.get("total_mib", 80 * 1024))
    whole = Bytes(80 * GIB) if isinstance(total, Unknown) else Bytes(total * MIB)
    free = whole - used - int(changes.get("reserved_gib", 0.5) * GIB)
    healthy = GpuFacts(
        index=index, uuid=f"GPU-{index}", bus_id=f"0000:1{index}:00", name="Simulated GPU",
        total_bytes=total if isinstance(total, Unknown) else whole, used_bytes=Bytes(used),
        free_bytes=Bytes(free), ecc_uncorrectable_volatile=0, ecc_uncorrectable_aggregate=0,
        sram_threshold_exceeded=False, row_remap_pending=False, row_remap_failed=False, recovery_action="None",
        mig_enabled=False, processes=(), minor=index,
    )
    return replace(healthy, **values)


def xid_of(row: dict[str, Any]) -> XidEvent:
    bus = row.get("bus") or f"0000:1{row['gpu']}:00"
    at = row.get("at", 3000)
    line = row.get("line") or f"NVRM: Xid (PCI:{bus}): {row['code']}, pid=1, name=python, {row.get('text', 'words')}"
    return XidEvent(
        code=row["code"], time_s=None if at is None else START_S + at, bus_id=bus, line=line,
        count=row.get("count", 1), last_time_s=START_S + row["last"] if "last" in row else None,
        in_window=known(row.get("in", True)), on_job_gpu=Unknown("not known on the node"),
        witness=known(row.get("witness", True)),
    )


def facts_of(case: dict[str, Any]) -> NodeFacts:
    changes = known(case.get("gpus", {}))
    gpus: tuple[GpuFacts, ...] | Unknown = Unknown("replaced")
    if isinstance(changes, Unknown):
        gpus = changes
    else:
        everywhere = changes.get("all", {})
        minors = case.get("minors", range(8))
        gpus = tuple(
            gpu_of(i, {"minor": minors[i], **everywhere, **changes.get(i, {})}) for i in range(case.get("count", 8))
        )
    xids = known(case.get("xids", []))
    covers = known(case.get("covers", -86400))
    return NodeFacts(
        node=NodeName("gpu-21"),
        reach=Reach(case.get("reach", "ok")),
        reach_detail=case.get("detail", ""),
        checked_at_s=START_S + 3700,
        driver="570.124.06",
        software_fault=case.get("software_fault", ""),
        gpus=gpus,
        expected_gpus=case.get("expected_gpus", 8 if "slurm" in case else None),
        slurm_gpus=slurm_gpus_of(case.get("slurm", {"unknown": "not read"})),
        simulated=case.get("simulated", False),
        xids=xids if isinstance(xids, Unknown) else tuple(map(xid_of, xids)),
        log_covers_since_s=covers if isinstance(covers, Unknown) else START_S + covers,
        partial_view=case.get("partial_view", ""),
    )


def slurm_gpus_of(row: dict[str, Any]) -> SlurmGpus | Unknown:
    if "unknown" in row:
        return Unknown(row["unknown"])
    files = tuple(row.get("files", ()))
    return SlurmGpus("/etc/slurm/gres.conf", row.get("autodetect", ""), files, known(row.get("constrained", False)))


def judgement_of(case: dict[str, Any], facts: NodeFacts | None = None) -> NodeJudgement:
    job = JobRecord(
        id=JobId("4711"), cluster="test", name="train", owner=UserName("alice"),
        state=JobState("FAILED", JobClass.FAILED), gpus_per_node=8, start_time_s=START_S, end_time_s=START_S + 3600,
    )
    indices = case.get("slurm", {}).get("indices")
    if indices is not None:
        job = replace(
            job, gpus_per_node=len(indices), gpu_indices=(GpuIndices(NodeName("gpu-21"), tuple(indices)),)
        )
    live = case.get("live_jobs")
    return judge_node(
        facts or facts_of(case),
        replace(job, **case.get("job", {})),
        DOCUMENTS,
        NodePolicy(**case.get("policy", {})),
        FailureClues(
            oom_device=case.get("oom_device"),
            node_device=case.get("node_device"),
            visible_gpus=tuple(case["visible_gpus"]) if "visible_gpus" in case else None,
            named_pids=frozenset(case.get("named_pids", ())),
            own_pids=frozenset(case.get("own_pids", ())),
        ),
        SchedulerView(
            live_jobs=None if live is None else frozenset(map(JobId, live)),
            node_state=node_state_of(case.get("node_states")),
            spare_nodes=case.get("spare_nodes"),
        ),
    )


def node_state_of(words: list[str] | None) -> NodeState | None:
    if words is None:
        return None
    return NodeState(NodeName("gpu-21"), node_class(words), tuple(words), gpus=8, gpus_allocated=0)


def expected_action(case: dict[str, Any]) -> str:
    by_verdict = {"faulty": "drain", "unknown": "unknown"}
    action = case.get("action") or by_verdict.get(case["verdict"])
    return str(action) if action else pytest.fail("the case says no action")


@pytest.mark.parametrize("case", cases())
def test_verdict(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS
    found = judgement_of(case)
    assert found.verdict == case["verdict"], found
    assert found.drain is case.get("drain", False), found
    assert list(found.faulty_gpus) == case.get("faulty_gpus", []), found
    assert [process.pid for process in found.tenants] == case.get("tenants", []), found
    assert found.action == expected_action(case), found
    assert found.hidden_bytes == int(case.get("hidden_gib", 0) * GIB)
    assert set(case.get("rules", ())) <= {finding.rule for finding in found.findings}, found.findings
    if "failing_gpu" in case:
        assert found.failing_gpu == case["failing_gpu"]
    if "job_gpus" in case:
        known_gpus = None if isinstance(found.job_gpus, Unknown) else list(found.job_gpus)
        assert known_gpus == case["job_gpus"], found.job_gpus
        assert found.job_gpus_source
    for part in ("reasons", "warnings", "missing"):
        said = getattr(found, part)
        if case.get(part) == []:
            assert said == (), f"{part}: {said}"
        for words in case.get(part, ()):
            assert any(words in line for line in said), f"{part} lack {words!r}: {said}"
    everything = "\n".join((*found.reasons, *found.warnings, *found.missing))
    for words in case.get("never", ()):
        assert words not in everything
    assert found.reasons
    assert found.source


def test_every_rule_is_shown_by_a_case() -> None:
    shown = {rule for (case,) in (param.values for param in cases()) for rule in case.get("rules", ())}
    assert shown == set(RULES)


def test_every_sentence_of_the_document_is_said_in_a_case() -> None:
    """With a job or for nobody's job: a condition that nothing finds any more is found here."""
    said: dict[str, set[str]] = {}
    for (case,) in (param.values for param in cases()):
        alone = [
            judge_node_alone(facts_of(case), DOCUMENTS, NodePolicy(), since_s=since_s) for since_s in (None, START_S)
        ]
        for judgement in (judgement_of(case), *alone):
            for finding in judgement.findings:
                said.setdefault(finding.rule, set()).add(finding.text)
    for found in DOCUMENTS.rules.cases.values():
        for one in found:
            sentence = re.sub(r"\\\{\w+\\\}", ".*", re.escape(one.says))
            assert any(re.match(sentence, text) for text in said[one.rule]), one


@pytest.mark.parametrize(("found", "instead", "words"), [
    ("when: mig_on", "when: mig_off", "is expected"),
    ("when: mig_on", "when: gpus_none", "no rule says what follows from mig_on"),
    ("{gpu}: MIG is on", "{action}: MIG is on", "mig_on tells gpu, not action"),
    ("- id: mig", "- id: gpu_lost", "stands here a second time"),
    ("source: totals", "source: nowhere", "'nowhere' is not among sources"),
    ("note: ignore}", "warn: watch}", "not valid YAML"),
    (", note: ignore}", "}", "note is missing"),
    ("  unknown: {source:", "  faulty: {source:", "unknown is missing"),
    ("policy: drain_on_hidden_memory", "policy: drain_on_monday", "drain_on_contained_error"),
])
def test_a_document_that_says_too_little_or_too_much_is_refused(
    found: str, instead: str, words: str, tmp_path: Path
) -> None:
    text = (PLAYBOOK / "node_rules.yaml").read_text(encoding="utf-8")
    assert found in text
    (tmp_path / "node_rules.yaml").write_text(text.replace(found, instead, 1), encoding="utf-8")
    with pytest.raises(DocumentsInvalid, match=re.escape(words)):
        load_node_rules(tmp_path / "node_rules.yaml")


def test_every_row_of_the_decision_table_has_a_rule() -> None:
    rows = {meaning.row for meaning in RULES.values()}
    for words in (
        "remap failure", "GPU count below Gres", "Xid 48, 95, 140, 168", "Xid 94", "pending remap", "Xid 74, 136",
        "Xid 92", "Xid 13, 31, 43, 45", "two unrelated jobs", "live job", "no job or dead job", "no PIDs", "MIG on",
        "unknown Xid", "all readable and clean",
    ):
        assert any(words in row for row in rows), words


def test_only_rules_of_the_drain_rows_drain_by_themselves() -> None:
    for rule, meaning in RULES.items():
        assert (meaning.weight is Weight.DRAIN) == (meaning.action is NodeAction.DRAIN), rule
        if meaning.weight is Weight.UNDETERMINED:
            assert meaning.action is NodeAction.UNKNOWN, rule


@pytest.mark.parametrize("case", cases())
def test_what_drains_is_a_fault_that_was_seen(case: dict[str, Any]) -> None:
    """No drain without a finding that says drain, none on another verdict, and none on a node with a wish to drain
    taken away: every finding of a drained node that is only unknown, a tenant or a watch leaves it in service."""
    found = judgement_of(case)
    draining = [finding for finding in found.findings if finding.action is NodeAction.DRAIN]
    assert bool(draining) is found.drain
    assert (found.action is NodeAction.DRAIN) is found.drain
    assert not found.drain or found.verdict is NodeVerdict.FAULTY
    for finding in draining:
        assert finding.text in found.reasons
        assert finding.source


@pytest.mark.parametrize("figure", [
    "total_bytes", "used_bytes", "free_bytes", "ecc_uncorrectable_volatile", "sram_threshold_exceeded",
    "row_remap_pending", "row_remap_failed", "unrepairable_memory", "repair_pending", "retired_pages", "processes",
    "mig_enabled",
])
def test_losing_sight_of_a_figure_never_drains(figure: str) -> None:
    for (case,) in (param.values for param in cases()):
        facts = facts_of(case)
        if isinstance(facts.gpus, Unknown) or (figure == "mig_enabled" and case.get("expected_gpus") == 56):
            continue
        if figure == "processes" and "gpus_per_node" in case.get("job", {}):
            continue  # They may be all that tells which GPUs of a shared node the job had; then all of them count.
        blind = tuple(replace(gpu, **{figure: Unknown("not read")}) for gpu in facts.gpus)  # type: ignore[arg-type]
        before, after = judgement_of(case), judgement_of(case, replace(facts, gpus=blind))
        assert before.drain or not after.drain, case["name"]


def test_losing_sight_of_the_kernel_log_never_drains_and_never_clears() -> None:
    for (case,) in (param.values for param in cases()):
        unread = Unknown("not read")
        before = judgement_of(case)
        after = judgement_of(case, replace(facts_of(case), xids=unread, log_covers_since_s=unread))
        assert before.drain or not after.drain, case["name"]
        assert after.verdict is not NodeVerdict.CLEAN, case["name"]


@pytest.mark.parametrize("reach", list(Reach))
def test_a_faulty_node_that_is_out_of_sight_is_unknown(reach: Reach) -> None:
    """Losing sight never drains: the facts of a lost GPU, no longer readable, are unknown."""
    seen = facts_of({"gpus": {3: {"lost": True}}})
    gone = Unknown("not read")
    blind = replace(seen, reach=reach, gpus=gone, xids=gone, log_covers_since_s=gone)
    job = JobRecord(
        id=JobId("4711"), cluster="test", name="train", owner=UserName("alice"),
        state=JobState("FAILED", JobClass.FAILED), gpus_per_node=8, start_time_s=START_S,
    )
    clues = FailureClues(oom_device=0)
    assert judge_node(seen, job, DOCUMENTS, NodePolicy(), clues).drain is True
    found = judge_node(blind, job, DOCUMENTS, NodePolicy(), clues)
    assert (found.verdict, found.drain, found.faulty_gpus, found.tenants) == (NodeVerdict.UNKNOWN, False, (), ())
    assert found.missing


def test_the_document_lists_every_rule_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "node-check.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
    verdicts = {
        Weight.DRAIN: "faulty", Weight.ELSEWHERE: "faulty", Weight.OCCUPIED: "occupied",
        Weight.UNDETERMINED: "unknown", Weight.WARN: "clean, with a warning", Weight.NOTE: "clean",
    }
    assert rows == {
        rule: f"{one.shows} | {verdicts[one.weight]} | {one.action.value.replace('_', ' ')}"
        for rule, one in RULES.items()
    }
