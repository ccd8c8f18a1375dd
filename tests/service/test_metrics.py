"""The metrics over stored incidents: what they count, that counters only grow, and that Prometheus' own tools agree."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures, StoreFigures
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.adapters.store.totals import Key, figures_of
from runbook.model.incident import Act, BoxVisit, Incident, IncidentState
from runbook.model.units import IncidentId, JobId, NodeName, UserName
from runbook.report.summary import IncidentSummary, summarize
from runbook.triggers import again
from tests.report.sample_incidents import (
    HOSTILE,
    OPENED_S,
    awaiting,
    co_tenant,
    escalated,
    hardware_fault,
    hostile,
    just_opened,
    planned,
    recovered,
    two_attempts,
    unreachable_node,
)

LATER_S = OPENED_S + 20_000
ALL = (
    recovered, two_attempts, escalated, planned, awaiting, just_opened, hardware_fault, co_tenant, unreachable_node,
)
FIGURES = ServiceFigures(
    now_s=OPENED_S + 100, version="0.1.0", heartbeat_s=OPENED_S + 99, spool_depth=3, spool_oldest_s=OPENED_S + 40,
    spool_bad=1, events_opened=7, notifications=(("oncall", "failed", 2),),
    store=StoreFigures(5 << 30, 50 << 30, OPENED_S + 10),
)


def _stored(store: IncidentStore, *makes: Callable[[], Incident]) -> IncidentStore:
    for number, make in enumerate(makes):
        store.save(replace(make(), id=IncidentId(f"oom-alpha-{number}"), root_job=JobId(str(number))))
    return store


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    return _stored(IncidentStore(tmp_path), *ALL)


@dataclass(frozen=True)
class _Rows:
    """Incidents of which there are only rows."""

    rows: list[IncidentSummary]

    def totals(self) -> tuple[list[IncidentSummary], Mapping[Key, int]]:
        sums: Counter[Key] = Counter()
        for row in self.rows:
            sums.update(figures_of(row))
        return self.rows, sums


def _metrics(incidents: IncidentStore | _Rows, now_s: float = LATER_S) -> IncidentMetrics:
    labels = Labels("alpha", "oom", report_url="https://runbook.example/")
    asked = incidents if isinstance(incidents, _Rows) else ReadModel(incidents)
    return IncidentMetrics(asked, labels, lambda: FIGURES, now=lambda: now_s)


def _samples(metrics: IncidentMetrics) -> dict[str, float]:
    """Every line of the page, as `name{labels}` → value."""
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_what_is_stored_is_counted(store: IncidentStore) -> None:
    found = _samples(_metrics(store))
    expected = {
        'runbook_incidents{cluster="alpha",diagnosis="true_oom",flow="oom",outcome="recovered"}': 2,
        'runbook_incidents{cluster="alpha",diagnosis="true_oom",flow="oom",outcome="open"}': 2,
        'runbook_incidents{cluster="alpha",diagnosis="none",flow="oom",outcome="open"}': 1,
        'runbook_incidents{cluster="alpha",diagnosis="hardware_fault",flow="oom",outcome="recovered"}': 1,
        'runbook_incidents{cluster="alpha",diagnosis="kv_cache_sizing",flow="oom",outcome="escalated"}': 0,
        'runbook_open_incidents{cluster="alpha",state="awaiting_approval"}': 1,
        'runbook_open_incidents{cluster="alpha",state="interrupted"}': 0,
        'runbook_incidents_opened_total{cluster="alpha",flow="oom"}': 9,
        'runbook_incident_endings_total{cluster="alpha",flow="oom",outcome="recovered"}': 3,
        'runbook_incident_endings_total{cluster="alpha",flow="oom",outcome="planned"}': 1,
        'runbook_recoveries_total{by="tool",cluster="alpha"}': 3,
        'runbook_recovered_gpus_total{by="tool",cluster="alpha"}': 96,
        'runbook_levers_tried_total{cluster="alpha",lever="micro_batch_size"}': 5,
        'runbook_levers_worked_total{cluster="alpha",lever="micro_batch_size"}': 2,
        'runbook_levers_failed_total{cluster="alpha",lever="micro_batch_size"}': 2,
        'runbook_nodes_drained_total{cluster="alpha"}': 1,
        'runbook_drained_nodes{cluster="alpha"}': 1,
        'runbook_unreached_nodes{cluster="alpha",reason="timeout"}': 1,
        'runbook_box_outcomes_total{box="check_node",cluster="alpha",outcome="unknown"}': 1,
        'runbook_box_duration_seconds_count{box="classify",cluster="alpha"}': 10,
        'runbook_box_duration_seconds_bucket{box="classify",cluster="alpha",le="0.1"}': 10,
        'runbook_failure_to_proof_seconds_bucket{cluster="alpha",le="3600.0"}': 0,
        'runbook_failure_to_proof_seconds_bucket{cluster="alpha",le="+Inf"}': 3,
        'runbook_spool_depth{cluster="alpha"}': 3,
        'runbook_spool_oldest_age_seconds{cluster="alpha"}': 60,
        'runbook_spool_bad{cluster="alpha"}': 1,
        'runbook_driver_up{cluster="alpha"}': 1,
        'runbook_events_opened_total{cluster="alpha"}': 7,
        'runbook_notifications_total{cluster="alpha",outcome="failed",target="oncall"}': 2,
        'runbook_stored_bytes{cluster="alpha"}': 5 << 30,
        'runbook_stored_limit_bytes{cluster="alpha"}': 50 << 30,
        'runbook_last_prune_timestamp_seconds{cluster="alpha"}': OPENED_S + 10,
        'runbook_build_info{cluster="alpha",version="0.1.0"}': 1,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_lost_and_saved_gpu_time_of_one_recovery(tmp_path: Path) -> None:
    # 4 nodes of 8 GPUs; the error at -55 s, the relaunch at +11 s; died after step 1199, resumed from step 1000, proven
    # at step 1512; 21.4 s a step.
    found = _samples(_metrics(_stored(IncidentStore(tmp_path), recovered)))
    assert found['runbook_gpu_lost_seconds_total{cluster="alpha",reason="stopped"}'] == 66 * 32
    assert found['runbook_gpu_lost_seconds_total{cluster="alpha",reason="repeated"}'] == pytest.approx(199 * 21.4 * 32)
    assert found['runbook_gpu_saved_seconds_total{cluster="alpha"}'] == pytest.approx(512 * 21.4 * 32)
    assert found['runbook_failure_to_relaunch_seconds_sum{cluster="alpha"}'] == 66
    assert found['runbook_failure_to_proof_seconds_sum{cluster="alpha"}'] == pytest.approx(11_711.7)


def test_a_person_who_said_yes_is_told_from_the_tool(tmp_path: Path) -> None:
    incident = recovered()
    approved = replace(incident, acts=tuple(replace(act, approved_by="ben") for act in incident.acts))
    found = _samples(_metrics(_stored(IncidentStore(tmp_path), lambda: approved)))
    assert found['runbook_recoveries_total{by="person",cluster="alpha"}'] == 1
    assert found['runbook_recoveries_total{by="tool",cluster="alpha"}'] == 0
    assert found['runbook_gpu_saved_seconds_total{cluster="alpha"}'] == 0


def test_what_is_not_known_counts_as_nothing(tmp_path: Path) -> None:
    incident = recovered()
    assert incident.failure is not None
    without_gpus = replace(incident.failure, job=replace(incident.failure.job, gpus_per_node=None))
    unknown = replace(incident, failure=without_gpus)
    found = _samples(_metrics(_stored(IncidentStore(tmp_path), lambda: unknown)))
    assert found['runbook_gpu_lost_seconds_total{cluster="alpha",reason="stopped"}'] == 0
    assert found['runbook_recovered_gpus_total{by="tool",cluster="alpha"}'] == 0
    assert found['runbook_recoveries_total{by="tool",cluster="alpha"}'] == 1


@pytest.mark.parametrize("wrong_s", [OPENED_S - 1e6, OPENED_S + 3600.0], ids=["before the job", "after the opening"])
def test_a_wrong_clock_in_a_log_is_not_believed(wrong_s: float) -> None:
    incident = recovered()
    assert incident.failure is not None and incident.failure.story is not None
    cause = incident.failure.story.root_cause
    assert cause is not None
    story = replace(incident.failure.story, root_cause=replace(cause, time_s=wrong_s))
    told = replace(incident, failure=replace(incident.failure, story=story))
    assert summarize(told).tally.failed_s == OPENED_S - 40


def _taken_up_again(incident: Incident) -> Incident:
    """One more run, as `runbook resume` begins it, in the middle of its second look."""
    running = again(incident, policy=incident.policy, now_s=LATER_S)
    visit = BoxVisit("identify", 1, LATER_S, LATER_S + 1, "identified")
    return replace(running, visits=(*running.visits, visit), box="read_error", updated_s=LATER_S + 1)


def _proven_after(incident: Incident) -> Incident:
    """The same, relaunched once more and proven, with a node given back."""
    attempt = replace(
        recovered().attempts[0], number=len(incident.attempts) + 1, job=JobId("900001"), submitted_s=LATER_S + 5
    )
    visits = (
        BoxVisit("relaunch", 1, LATER_S + 5, LATER_S + 6, "submitted"),
        BoxVisit("verify", 2, LATER_S + 6, LATER_S + 900, "passed"),
        BoxVisit("report", 2, LATER_S + 900, LATER_S + 901, "written"),
    )
    return replace(
        incident, attempts=(*incident.attempts, attempt), visits=(*incident.visits, *visits), drained_nodes=(),
        state=IncidentState.RECOVERED, closed_s=LATER_S + 901, updated_s=LATER_S + 901,
        acts=(*incident.acts, Act("undrain", "gpu-22", LATER_S + 2)),
    )


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_no_counter_falls_when_an_incident_is_taken_up_again(tmp_path: Path, make: Callable[[], Incident]) -> None:
    store = _stored(IncidentStore(tmp_path), recovered, make)
    metrics = _metrics(store)
    before = _samples(metrics)
    incident = store.load(IncidentId("oom-alpha-1"))
    for change in (_taken_up_again, _proven_after, _taken_up_again):
        incident = change(incident)
        store.save(incident)
        now = _samples(metrics)
        fallen = {
            name: (value, now.get(name)) for name, value in before.items()
            if name.partition("{")[0].endswith(("_total", "_bucket", "_sum", "_count")) and now.get(name, -1) < value
        }
        assert not fallen
        before = now
    assert before['runbook_incident_endings_total{cluster="alpha",flow="oom",outcome="recovered"}'] >= 2


def test_another_process_says_the_same_whatever_it_saw_before(store: IncidentStore) -> None:
    watching = _metrics(store)
    watching.text()
    incident = store.load(IncidentId("oom-alpha-2"))
    store.save(_proven_after(_taken_up_again(incident)))
    shutil.rmtree(store.folder(IncidentId("oom-alpha-6")))
    fresh = _metrics(IncidentStore(store.root))
    seen = _samples(watching)
    # What is gone leaves its zeros behind in a process that knew it.
    assert {name: value for name, value in seen.items() if value} == {
        name: value for name, value in _samples(fresh).items() if value
    }


def test_the_first_incident_of_a_kind_is_a_rise_and_not_a_new_series(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    metrics = _metrics(store)
    before = _samples(metrics)
    _stored(store, recovered)
    for name, value in _samples(metrics).items():
        if name.startswith(("runbook_incident", "runbook_rec", "runbook_relaunches", "runbook_gpu")) and value:
            assert "runbook_incident_info" in name or before[name] == 0


def test_the_info_metric_names_job_node_and_link(store: IncidentStore) -> None:
    found = _samples(_metrics(store))
    assert found[
        'runbook_incident_info{budget="left",cluster="alpha",diagnosis="true_oom",died_again="yes",drained="",'
        'incident="oom-alpha-1",job_id="1",node="gpu-22",report_url="https://runbook.example/incidents/oom-alpha-1",'
        'state="recovered",user="ana"}'
    ] == 1
    drained = [name for name in found if 'drained="gpu-22"' in name]
    assert [name for name in drained if 'diagnosis="hardware_fault"' in name] == drained != []


def test_jobs_and_nodes_stand_nowhere_else(store: IncidentStore) -> None:
    labels = {
        label for family in text_string_to_metric_families(_metrics(store).text().decode())
        if family.name != "runbook_incident_info" for sample in family.samples for label in sample.labels
    }
    assert labels == {
        "cluster", "flow", "diagnosis", "outcome", "state", "by", "reason", "lever", "box", "le", "version", "target",
    }


def test_the_info_metric_stays_small_and_keeps_who_waits(tmp_path: Path) -> None:
    row = summarize(just_opened())
    waiting = replace(row, id=IncidentId("oom-alpha-0"), state=IncidentState.AWAITING_APPROVAL, opened_s=OPENED_S - 9e5)
    opened = [replace(row, id=IncidentId(f"oom-alpha-1{number}"), opened_s=OPENED_S + number) for number in range(800)]
    done = summarize(recovered())
    ended = [replace(done, id=IncidentId(f"oom-alpha-2{number}"), updated_s=OPENED_S + number) for number in range(800)]
    rows = [waiting, *opened, *ended]

    def info(now_s: float) -> list[str]:
        return [name for name in _samples(_metrics(_Rows(rows), now_s)) if name.startswith("runbook_incident_info")]

    shown = info(OPENED_S + 1000)
    assert len(shown) == 550
    assert [name for name in shown if 'incident="oom-alpha-0"' in name]
    assert [name for name in shown if 'incident="oom-alpha-2799"' in name]
    assert len(info(OPENED_S + 1000 + 73 * 3600)) == 500


@pytest.mark.parametrize("name", [HOSTILE, "gpu 1", "<b>", "a\nb", "x" * 65, "-rf"])
def test_names_that_are_none_are_left_out(name: str) -> None:
    row = replace(
        summarize(hardware_fault()), node=name, owner=UserName(name), root_job=JobId(name), drained=(NodeName(name),)
    )
    (info,) = [line for line in _samples(_metrics(_Rows([row]))) if line.startswith("runbook_incident_info")]
    assert 'job_id="",node=""' in info
    assert 'user=""' in info
    assert 'drained=""' in info


def test_a_hostile_incident_leaves_no_word_of_its_own(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(hostile())
    text = _metrics(store).text().decode()
    assert "script" not in text
    assert "\x1b" not in text


def test_odd_names_do_not_multiply_the_series(tmp_path: Path) -> None:
    first = recovered()
    plan = first.attempts[0].plan
    assert plan is not None
    rows = []
    for number in range(200):
        use = replace(plan.uses[0], lever=f"lever{number}")
        attempt = replace(first.attempts[0], plan=replace(plan, uses=(use,)))
        visits = (BoxVisit(f"box{number}", 0, 1.0, 2.0, f"outcome{number}"),)
        rows.append(summarize(replace(
            first, id=IncidentId(f"oom-c{number}-1"), cluster=f"c{number}", attempts=(attempt,), visits=visits
        )))
    found = _samples(_metrics(_Rows(rows)))
    assert len(found) < 12_000
    assert found['runbook_relaunches_total{cluster="other"}'] == 180
    assert found['runbook_levers_tried_total{cluster="other",lever="other"}'] > 60
    assert found['runbook_box_outcomes_total{box="other",cluster="other",outcome="other"}'] > 100
    assert found['runbook_box_duration_seconds_count{box="other",cluster="other"}'] > 100


def test_a_budget_is_spent_by_relaunches_and_not_for_want_of_a_change() -> None:
    visit = BoxVisit("relaunch", 4, OPENED_S, OPENED_S + 1, "limit_reached")
    assert summarize(replace(escalated(), visits=(visit,))).tally.budget_spent
    other = replace(visit, outcome="nothing_differs")
    assert not summarize(replace(escalated(), visits=(other,))).tally.budget_spent
    again = BoxVisit("identify", 4, OPENED_S + 3, OPENED_S + 4, "identified")
    written = BoxVisit("report", 4, OPENED_S + 1, OPENED_S + 2, "written")
    assert not summarize(replace(escalated(), visits=(visit, written, again))).tally.budget_spent


def test_a_wait_that_was_only_planned_ends_a_plan() -> None:
    visits = (
        BoxVisit("wait_for_tenant", 0, OPENED_S, OPENED_S + 1, "planned"),
        BoxVisit("report", 0, OPENED_S + 1, OPENED_S + 2, "written"),
    )
    assert summarize(replace(planned(), visits=visits)).tally.endings == (IncidentState.PLANNED,)


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_the_last_ending_is_the_state(make: Callable[[], Incident]) -> None:
    incident = make()
    endings = summarize(incident).tally.endings
    assert endings == ((incident.state,) if incident.state.ended else ())


@pytest.mark.prometheus
def test_promtool_finds_no_fault(store: IncidentStore) -> None:
    done = subprocess.run(
        ("promtool", "check", "metrics"), input=_metrics(store).text(), capture_output=True, timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
