"""Which incident a failed job belongs to, whatever its comment claims."""

from __future__ import annotations

from dataclasses import replace

from runbook.errors import NotFound
from runbook.model.incident import Attempt, Failure, Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import IncidentId, JobId, UserName
from runbook.triggers import Opened, Opening, Terms, incident_id, open_for


class Stored:
    """Incidents in memory."""

    def __init__(self, *incidents: Incident) -> None:
        self._incidents = {incident.id: incident for incident in incidents}

    def load(self, incident: IncidentId) -> Incident:
        if incident not in self._incidents:
            raise NotFound(f"no incident {incident}")
        return self._incidents[incident]


def job(number: str, comment: str = "") -> JobRecord:
    return JobRecord(
        id=JobId(number),
        cluster="c",
        name="train",
        owner=UserName("alice"),
        state=JobState("FAILED", JobClass.FAILED),
        comment=comment,
    )


def incident(state: IncidentState, *, closed: bool = True, attempts: tuple[Attempt, ...] = ()) -> Incident:
    return Incident(
        id=incident_id("oom", "c", JobId("1")),
        cluster="c",
        root_job=JobId("1"),
        policy=Policy.APPLY,
        trigger="epilog",
        opened_s=1.0,
        state=state,
        closed_s=2.0 if closed else None,
        attempts=attempts,
    )


def opened(record: JobRecord, known: Stored, trigger: str = "epilog") -> Opened:
    return open_for(record, known, Terms("oom", "c", Policy.APPLY, trigger, "0"), 5.0)


RELAUNCH = (Attempt(number=1, job=JobId("2")),)


def test_a_new_failure_opens_an_incident_named_after_cluster_and_job() -> None:
    result = opened(job("1"), Stored())
    assert (result.opening, result.incident.id) == (Opening.NEW, "oom-c-1")


def test_the_same_failure_reported_again_joins() -> None:
    running = incident(IncidentState.RUNNING, closed=False)
    for _ in range(100):
        assert opened(job("1"), Stored(running)).opening is Opening.JOIN


def test_an_interrupted_one_is_joined_not_begun_beside_itself() -> None:
    assert opened(job("1"), Stored(incident(IncidentState.INTERRUPTED, closed=False))).opening is Opening.JOIN


def test_a_verdict_without_a_report_is_joined() -> None:
    assert opened(job("1"), Stored(incident(IncidentState.RECOVERED, closed=False))).opening is Opening.JOIN


def test_the_epilog_does_not_reopen_what_has_ended() -> None:
    for state in (IncidentState.RECOVERED, IncidentState.ESCALATED, IncidentState.CLOSED, IncidentState.PLANNED):
        assert opened(job("1"), Stored(incident(state, attempts=RELAUNCH))).opening is Opening.DONE


def test_a_person_takes_an_escalated_or_planned_one_up_again() -> None:
    for state in (IncidentState.ESCALATED, IncidentState.CLOSED, IncidentState.PLANNED):
        result = opened(job("1"), Stored(incident(state)), "person")
        assert result.opening is Opening.AGAIN
        assert (result.incident.run, result.incident.state, result.incident.box) == (2, IncidentState.RUNNING, "")


def test_a_proven_relaunch_that_fails_later_is_the_next_attempt_of_the_same_incident() -> None:
    known = Stored(incident(IncidentState.RECOVERED, attempts=RELAUNCH))
    result = opened(job("2", "runbook:oom-c-1:1"), known)
    assert result.opening is Opening.AGAIN
    assert result.incident.id == "oom-c-1"
    assert result.incident.attempts == RELAUNCH


def test_a_forged_comment_joins_nothing() -> None:
    known = Stored(incident(IncidentState.RUNNING, closed=False, attempts=RELAUNCH))
    for comment in ("runbook:oom-c-1:1", "runbook:../../etc:1", "runbook:oom-c-1:1; rm", "runbook:oom-c-77:1"):
        result = opened(job("9", comment), known)
        assert (result.opening, result.incident.id) == (Opening.NEW, "oom-c-9")


def test_hostile_job_ids_and_cluster_names_stay_inside_an_id() -> None:
    assert "/" not in incident_id("oom", "../x", JobId("1/../../2"))
    assert opened(replace(job("4_7")), Stored()).incident.id == "oom-c-4_7"


def test_a_job_that_ran_well_when_it_was_looked_at_and_failed_since_is_taken_up() -> None:
    running = replace(job("1"), state=JobState("RUNNING", JobClass.ACTIVE))
    closed = replace(incident(IncidentState.CLOSED), failure=Failure(running))
    assert opened(job("1"), Stored(closed)).opening is Opening.AGAIN
    assert opened(running, Stored(closed)).opening is Opening.DONE
    told = replace(incident(IncidentState.CLOSED), failure=Failure(job("1")))
    assert opened(job("1"), Stored(told)).opening is Opening.DONE


def told(record: JobRecord, known: Stored, now_s: float) -> Opening:
    return open_for(record, known, Terms("oom", "c", Policy.APPLY, "alert", "0"), now_s).opening


def test_an_alert_opens_and_joins_and_takes_up_nothing_that_waits_for_a_person() -> None:
    assert told(job("1"), Stored(), 5.0) is Opening.NEW
    assert told(job("1"), Stored(incident(IncidentState.RUNNING, closed=False)), 5.0) is Opening.JOIN
    for state in (IncidentState.INTERRUPTED, IncidentState.ESCALATED, IncidentState.PLANNED, IncidentState.RECOVERED):
        stored = incident(state, closed=state is not IncidentState.INTERRUPTED)
        assert told(job("1"), Stored(stored), 1e9) is Opening.DONE


def test_a_later_alert_looks_again_at_a_job_that_ran_well() -> None:
    running = replace(job("1"), state=JobState("RUNNING", JobClass.ACTIVE))
    closed = replace(incident(IncidentState.CLOSED), failure=Failure(running), closed_s=1000.0)
    assert told(running, Stored(closed), 2700.0) is Opening.DONE
    assert told(running, Stored(closed), 2801.0) is Opening.AGAIN
    assert told(running, Stored(replace(closed, failure=Failure(job("1")))), 1e9) is Opening.DONE


def looked_at(state: IncidentState, record: JobRecord) -> Incident:
    failure = Failure(record)
    return replace(incident(state), failure=failure, original=failure)


def test_a_number_that_was_given_out_again_is_another_job_with_an_incident_of_its_own() -> None:
    first = replace(job("1"), submit_time_s=1000.0)
    for later in (
        replace(first, submit_time_s=9000.0),
        replace(first, submit_time_s=9000.0, owner=UserName("bob"), restarts=1),
    ):
        for state in IncidentState:
            known = Stored(looked_at(state, first))
            result = opened(later, known)
            assert (result.opening, result.incident.id) == (Opening.NEW, "oom-c-1-s9000")
            both = Stored(looked_at(state, first), replace(result.incident, state=IncidentState.RUNNING))
            assert opened(later, both).opening is Opening.JOIN
            assert opened(first, both).incident.id == "oom-c-1"


def test_a_requeued_job_that_fails_again_is_taken_up_in_the_same_incident() -> None:
    first = replace(job("1"), submit_time_s=1000.0)
    requeued = replace(first, submit_time_s=9000.0, restarts=1)
    result = opened(requeued, Stored(looked_at(IncidentState.ESCALATED, first)))
    assert (result.opening, result.incident.id) == (Opening.AGAIN, "oom-c-1")
    taken_up = replace(looked_at(IncidentState.ESCALATED, requeued), original=Failure(first))
    assert opened(requeued, Stored(taken_up)).opening is Opening.DONE, "the same end is noted twice and counts once"
