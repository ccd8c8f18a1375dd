"""Alerts over HTTP: each told what became of it, none opens what it should not, none is lost, none is counted twice."""

from __future__ import annotations

import getpass
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from runbook.adapters.files import OwnerFiles
from runbook.config import WebhookDocument
from runbook.errors import BadInput, NotFound, Unavailable
from runbook.model.checkpoint import DirectoryEntry
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import IncidentId, JobId, NodeName, UserName
from runbook.ports import Scheduler
from runbook.service.daemon import Daemon, Declined, NotYet, Opener, ServiceStatus
from runbook.service.spool import SpoolEvent, SpoolReader, alert_file, alert_text, parse_event
from runbook.service.tokens import Role
from runbook.service.webhook import MOST_BYTES, Webhook
from tests.contract.fakes import FakeClock, FakeFiles
from tests.report.sample_incidents import awaiting, recovered
from tests.service.signed_in import FORM, Place

PATH = "/webhooks/alertmanager"
NOW = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)


def alert(labels: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    return {
        "status": "firing", "labels": {"alertname": "GpuXid", "job": "dcgm", **(labels or {"slurm_job_id": "4711"})},
        "annotations": {"summary": "x"}, "startsAt": (NOW - timedelta(minutes=5)).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "", "fingerprint": "00000000deadbeef", **changed,
    }


def notification(*alerts: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "runbook",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "", "alerts": list(alerts),
        "aNewerField": 1, **changed,
    }


class Site:
    def __init__(self, folder: Path, settings: WebhookDocument) -> None:
        self.folder = folder / "spool"
        self.folder.mkdir()
        self.spool = SpoolReader(self.folder)
        self.place = Place(folder)
        self.place.more_routes = Webhook(
            "oom", "alpha", settings, self.spool, self.place.store, lambda: NOW.timestamp()
        ).routes()
        self.client: TestClient = self.place.client()

    def post(self, body: Any, role: Role | None = Role.ALERT, more: Mapping[str, str] = MappingProxyType({})) -> Any:
        given = self.place.bearer(role) if role else {}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(PATH, content=content, headers={"content-type": "application/json", **given, **more})

    def told(self, *alerts: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.post(notification(*alerts))
        assert answer.status_code == 200, answer.text
        return list(answer.json()["alerts"])

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, WebhookDocument())


def test_an_alert_becomes_an_event_of_the_spool(site: Site) -> None:
    (told,) = site.told(alert())
    assert (told["outcome"], told["job"], told["incident"]) == ("accepted", "4711", None)
    (event,) = site.spool.scan()
    assert (event.trigger, event.alert, event.job, event.cluster) == ("alert", "GpuXid", "4711", "alpha")
    assert event.time_s == pytest.approx(NOW.timestamp() - 300, abs=1)
    assert site.files() == [event.file]


def test_the_same_notification_again_waits_only_once(site: Site) -> None:
    outcomes = [site.told(alert())[0]["outcome"] for _ in range(3)]
    assert outcomes == ["accepted", "waiting", "waiting"]
    assert len(site.files()) == 1
    later = alert(startsAt=(NOW - timedelta(minutes=1)).isoformat())
    assert site.told(later)[0]["outcome"] == "accepted"
    assert len(site.files()) == 2


@pytest.mark.parametrize(
    ("changed", "outcome", "why"),
    [
        ({"status": "resolved"}, "ignored", "resolved"),
        ({"startsAt": (NOW - timedelta(hours=25)).isoformat()}, "ignored", "25 hours ago"),
        ({"startsAt": (NOW + timedelta(hours=1)).isoformat()}, "ignored", "in the future"),
        ({"labels": {"alertname": "X", "slurm_job_id": "4711", "cluster": "beta"}}, "ignored", "another cluster"),
        ({"labels": {"alertname": "X"}}, "not_assignable", "none of its labels"),
        ({"labels": {"alertname": "X", "job": "4711"}}, "not_assignable", "none of its labels"),
        ({"labels": {"alertname": "X", "slurm_job_id": "4711,4712"}}, "not_assignable", "no single"),
        ({"labels": {"alertname": "X", "slurm_job_id": "4711; rm -rf /"}}, "not_assignable", "no single"),
        ({"labels": {"alertname": "X", "slurm_job_id": "--all"}}, "not_assignable", "no single"),
        ({"labels": {"alertname": "X", "slurm_job_id": "\u0664\u0667\u0661\u0661"}}, "not_assignable", "no single"),
        ({"labels": {"alertname": "X", "instance": "-w all"}}, "not_assignable", "none of its labels"),
        ({"labels": {"alertname": "RunbookIncidentEscalated", "slurm_job_id": "4711"}}, "ignored", "own alert"),
        ({"labels": {"alertname": "RunbookDown", "incident": "oom-alpha-99"}}, "ignored", "own alert"),
        ({"labels": {"alertname": "RunbookDown", "incident": "../../x"}}, "ignored", "own alert"),
    ],
)
def test_what_opens_nothing_is_told_why(site: Site, changed: dict[str, Any], outcome: str, why: str) -> None:
    (told,) = site.told(alert(**changed))
    assert told["outcome"] == outcome
    assert why in told["why"]
    assert site.files() == []


def test_our_own_alert_on_its_way_round_joins_its_incident_and_starts_nothing(site: Site) -> None:
    stopped = replace(awaiting(), id=IncidentId("oom-alpha-4711"), state=IncidentState.INTERRUPTED)
    site.place.store.save(stopped)
    labels = {"alertname": "RunbookIncidentInterrupted", "incident": "oom-alpha-4711", "slurm_job_id": "4711"}
    for status in ("firing", "resolved"):
        (told,) = site.told(alert(labels, status=status))
        assert (told["outcome"], told["incident"]) == ("joined", "oom-alpha-4711")
    assert site.files() == []


def test_an_alert_about_a_job_at_work_joins(site: Site) -> None:
    site.place.store.save(replace(awaiting(), id=IncidentId("oom-alpha-4711")))
    assert site.told(alert())[0]["incident"] == "oom-alpha-4711"
    # One that has ended may be taken up again: the scheduler has to be asked.
    site.place.store.save(replace(recovered(), id=IncidentId("oom-alpha-4711")))
    assert site.told(alert())[0]["outcome"] == "accepted"


@pytest.mark.parametrize(
    ("labels", "job", "node"),
    [
        ({"jobid": "4700_3"}, "4700_3", None),
        ({"slurm_job_id": "", "job_id": " 12 "}, "12", None),
        ({"slurm_job_id": "12", "node": "gpu-21"}, "12", None),
        ({"instance": "gpu-21.site.example:9400"}, None, "gpu-21.site.example"),
        ({"Hostname": "gpu-22", "instance": "10.0.0.1:9400"}, None, "gpu-22"),
    ],
)
def test_which_label_names_the_job_or_the_node(
    site: Site, labels: dict[str, str], job: str | None, node: str | None
) -> None:
    (told,) = site.told(alert({"alertname": "X", **labels}))
    assert (told["outcome"], told["job"], told["node"]) == ("accepted", job, node)
    (event,) = site.spool.scan()
    assert (event.job or None, event.node or None) == (job, node)


def test_the_labels_are_the_inventorys(tmp_path: Path) -> None:
    site = Site(tmp_path, WebhookDocument(job_labels=("my_job",), node_labels=(), cluster_label="", oldest_hours=48))
    old = (NOW - timedelta(hours=47)).isoformat()
    first = alert({"alertname": "X", "my_job": "5", "cluster": "k8s"}, startsAt=old)
    second = alert({"alertname": "X", "slurm_job_id": "5", "node": "gpu-1"}, fingerprint="0" * 16)
    assert [told["outcome"] for told in site.told(first, second)] == ["accepted", "not_assignable"]


def test_hostile_labels_reach_neither_the_answer_nor_the_file(site: Site) -> None:
    name = "</x><script>\x1b[2J\nformat=2\u202e" + "y" * 5000
    site.told(alert({"alertname": name, "slurm_job_id": "1"}))
    (event,) = site.spool.scan()
    assert len(event.alert) == 80
    data = (site.folder / event.file).read_text(encoding="ascii")
    assert data.count("\n") == 5
    assert "<" not in data
    assert "\x1b" not in data


@pytest.mark.parametrize("role", [None, Role.READ])
def test_only_the_role_for_it_may_tell(site: Site, role: Role | None) -> None:
    assert site.post(notification(alert()), role).status_code == (403 if role else 401)
    assert site.post(notification(alert()), None, {"authorization": "Bearer wrong"}).status_code == 401
    browser = site.place.browser(Role.ACT)
    assert browser.post(PATH, json=notification(alert()), headers=FORM).status_code == 401
    assert site.files() == []
    assert site.post(notification(alert()), Role.ACT).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "JSON"), (b"not json", "JSON"), (b"[]", "object"), (b"{}", "version"), (b"\xff\xfe", "JSON"),
        (notification(alert(), version="3"), "version"), (notification(alert(), version=4), "version"),
        (notification(alerts="x"), "alerts"), (notification(alert(status="burning")), "alerts.0.status"),
        (notification(alert(startsAt="yesterday")), "alerts.0.startsAt"),
        (notification(alert(startsAt="2026-11-21T12:00:00")), "alerts.0.startsAt"),
        (notification(alert(fingerprint="../../etc")), "alerts.0.fingerprint"),
        (notification(alert(fingerprint=None)), "alerts.0.fingerprint"),
        (notification(alert(labels={"a": 1})), "alerts.0.labels.a"),
        (notification({**alert(), "labels": []}), "alerts.0.labels"),
        (notification(*[alert()] * 2001), "alerts"),
        (b'{"version":"4","alerts":' + b"[" * 2000 + b"]" * 2000 + b"}", ""),
    ],
)
def test_what_is_no_notification_is_refused_in_a_sentence(site: Site, body: Any, said: str) -> None:
    answer = site.post(body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert len(answer.text) < 2000
    assert site.files() == []


def test_one_bad_alert_writes_nothing_of_the_others(site: Site) -> None:
    assert site.post(notification(alert(), alert(fingerprint="x"))).status_code == 400
    assert site.files() == []


def test_other_kinds_of_requests_are_refused(site: Site) -> None:
    assert site.post(b" " * (MOST_BYTES + 1)).status_code == 413
    assert site.post(notification(alert()), more={"content-type": "text/plain"}).status_code == 415
    assert site.client.get(PATH, headers=site.place.bearer(Role.ALERT)).status_code == 405


def test_a_spool_that_takes_nothing_makes_the_sender_try_again(site: Site) -> None:
    site.folder.rename(site.folder.with_name("away"))
    assert site.post(notification(alert())).status_code == 503
    site.folder.with_name("away").rename(site.folder)
    assert site.post(notification(alert())).status_code == 200


# -- from the event to the incident ----------------------------------------------------------------------------


def event(job: str = "4711", node: str = "", began_s: float = 1_000_000.0) -> SpoolEvent:
    return SpoolEvent(
        alert_file("alpha", "0" * 16, began_s), "alpha", JobId(job), job, 0, began_s, trigger="alert", alert="GpuXid",
        node=NodeName(node),
    )


def test_an_alerts_file_is_read_as_it_was_written() -> None:
    for one in (event(), event("4700_3"), event("", "gpu-21.site.example")):
        assert parse_event(one.file, alert_text(one).encode(), 5.0) == one
    for bad in (event("x"), event("", "-w"), event("", ""), replace(event(), cluster="beta"), event("1\nformat=1")):
        with pytest.raises(ValueError, match="no event"):
            alert_text(bad)


class Jobs:
    """A scheduler that knows some jobs, and nothing else."""

    def __init__(self, *jobs: JobRecord) -> None:
        self._jobs = {job.id: job for job in jobs}

    def job(self, job: JobId) -> JobRecord:
        if job not in self._jobs:
            raise NotFound(f"no job {job}")
        return self._jobs[job]


class Stored:
    """No incident yet."""

    def load(self, incident: IncidentId) -> Incident:
        raise NotFound(f"no incident {incident}")


def record(state: str = "RUNNING", job_class: JobClass = JobClass.ACTIVE, **times: float) -> JobRecord:
    made = JobRecord(JobId("4711"), "alpha", "train", UserName("alice"), JobState(state, job_class))
    return replace(made, start_time_s=times.get("start_s", 990_000.0), end_time_s=times.get("end_s"))


def opener(*jobs: JobRecord, had: tuple[str, ...] | None = None) -> Opener:
    def on_node(_node: NodeName, _at_s: float) -> tuple[JobId, ...]:
        return tuple(JobId(job) for job in had or ())

    return Opener(
        cast(Scheduler, Jobs(*jobs)), Stored(), FakeClock(1_000_000.0), "oom", "alpha", Policy.APPROVE,
        on_node if had is not None else None, OwnerFiles(), re.compile(b"CUDA out of memory"), 120.0,
    )


def test_a_node_stands_for_its_job_only_where_one_had_it() -> None:
    assert opener(record(), had=("4711",)).decide(event("", "gpu-21")).incident.root_job == "4711"
    for had, why in (((), "no job had gpu-21"), (("4711", "4712"), "2 jobs had gpu-21"), (None, "is not asked")):
        with pytest.raises(Declined, match=why):
            opener(record(), had=had).decide(event("", "gpu-21"))


def test_an_alert_from_outside_its_jobs_time_opens_nothing() -> None:
    failed = record("FAILED", JobClass.FAILED, end_s=999_000.0)
    assert opener(failed).decide(event()).incident.trigger == "alert"
    with pytest.raises(Declined, match="had ended"):
        opener(replace(failed, end_time_s=990_100.0)).decide(event())
    with pytest.raises(Declined, match=r"started .* after"):
        opener(record(start_s=1_000_100.0)).decide(event())
    with pytest.raises(NotFound):
        opener().decide(event())


def test_an_end_of_a_job_with_good_codes_opens_an_incident_only_where_it_did_not_complete() -> None:
    """RUNBOOK_ENDS=all: Slurm gives 0:0 for a job that hung until its time limit."""
    end = SpoolEvent("alpha-4711-0.event", "alpha", JobId("4711"), "4711", 0, 1_000_000.0, None, (0, 0), (0, 0))
    timeout = record("TIMEOUT", JobClass.STOPPED, end_s=999_999.0)
    assert opener(timeout).decide(end).incident.root_job == "4711"
    completed = record("COMPLETED", JobClass.SUCCEEDED, end_s=999_999.0)
    lately = FakeFiles({"/a/out": b"step 1\n" * 9999 + b"CUDA out of memory\n"})
    piped = replace(opener(replace(completed, stdout_path="/a/out")), files=lately)
    assert piped.decide(end).incident.root_job == "4711", "behind `| tee` the script's end is tee's"
    long_ago = FakeFiles({"/a/out": b"CUDA out of memory\n" + b"step 1\n" * 9999})
    with pytest.raises(Declined, match="completed"):
        replace(piped, files=long_ago).decide(end)
    for job, why in ((completed, "completed"), (replace(timeout, restarts=1), "started again")):
        with pytest.raises(Declined, match=why):
            opener(job).decide(end)
    assert opener(replace(completed, derived_exit_code=1)).decide(end), "a step failed"
    with pytest.raises(NotYet, match="does not say yet"):
        opener(record("RUNNING", JobClass.ACTIVE)).decide(end)


def test_the_components_of_a_heterogeneous_job_are_one_failure() -> None:
    """Slurm's epilog runs for each of them, and the script in the first."""
    first, second = (replace(record("FAILED", JobClass.FAILED), id=JobId(f"4711+{number}")) for number in (0, 1))
    assert opener(first).decide(event(first.id)).incident.root_job == "4711+0"
    with pytest.raises(Declined, match="component of the heterogeneous job 4711"):
        opener(second).decide(replace(event(second.id), trigger="epilog"))


@pytest.mark.parametrize("trigger", ["alert", "watch"])
def test_what_is_seen_at_a_component_is_its_heterogeneous_jobs(trigger: str) -> None:
    """Case: a hang that the watch saw at the second component was declined as the epilog's second word is."""
    first, second = (replace(record(), id=JobId(f"4711+{number}")) for number in (0, 1))
    seen = replace(event(second.id), trigger=trigger)
    assert opener(second, replace(first, id=JobId("4711"))).decide(seen).incident.root_job == "4711"


def test_two_questions_on_a_jobs_logs_have_an_answer_each(tmp_path: Path) -> None:
    """Case: what came late on how long a job was silent was taken for what its log tells of memory."""
    log = tmp_path / "out"
    log.write_text("step 1\n")
    os.utime(log, (5.0, 5.0))
    answers = threading.Event()

    class Slow(OwnerFiles):
        def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
            assert answers.wait(60)
            return super().entries(folder, owner, depth)

    jobs = Jobs(replace(record(), owner=UserName(getpass.getuser()), stdout_path=str(log)))
    asked = replace(opener(), files=Slow(), scheduler=cast(Scheduler, jobs))
    with pytest.raises(NotYet, match="did not answer yet"):
        asked.decide(event())
    answers.set()
    (look,) = asked.looks._of.values()
    assert look.ended.wait(20)
    ended = replace(jobs.job(JobId("4711")), state=JobState("COMPLETED", JobClass.SUCCEEDED), end_time_s=999_999.0)
    end = SpoolEvent("alpha-4711-0.event", "alpha", JobId("4711"), "4711", 0, 1_000_000.0, None, (0, 0), (0, 0))
    with pytest.raises(Declined, match="completed"):
        replace(asked, scheduler=cast(Scheduler, Jobs(ended))).decide(end)


def test_an_epilogs_event_about_another_users_job_opens_nothing() -> None:
    failed = replace(record("FAILED", JobClass.FAILED, end_s=999_000.0), uid=1003)
    told = SpoolEvent("alpha-4711-0.event", "alpha", JobId("4711"), "4711", 0, 1_000_000.0, uid=1001)
    with pytest.raises(BadInput, match="of user 1001, and the job is of 1003"):
        opener(failed).decide(told)
    assert opener(failed).decide(replace(told, uid=1003)).incident.root_job == "4711"


def test_what_the_watch_saw_opens_an_incident_of_a_job_that_runs_and_is_declined_for_one_that_ended() -> None:
    seen = replace(event(), trigger="watch")
    assert opener(record()).decide(seen).incident.trigger == "watch"
    with pytest.raises(Declined, match="its end is the epilog's to tell"):
        opener(record("CANCELLED", JobClass.CANCELLED, end_s=1_000_000.0)).decide(seen)


def test_a_job_that_runs_is_looked_at_when_its_logs_are_silent(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text("iteration 7\n", encoding="utf-8")
    me = UserName(getpass.getuser())
    running = replace(record(), owner=me, stdout_path=str(log))
    for ago_s, waits in ((0.0, True), (119.0, True), (121.0, False), (-30.0, True)):
        os.utime(log, (1_000_000.0 - ago_s, 1_000_000.0 - ago_s))
        if waits:
            with pytest.raises(NotYet, match="runs and wrote to its log"):
                opener(running).decide(event())
        else:
            assert opener(running).decide(event()).incident.trigger == "alert"
    # The second log counts as well; one that cannot be looked at is the flow's to tell of.
    other = tmp_path / "rank1.out"
    other.write_text("x", encoding="utf-8")
    os.utime(other, (1_000_000.0, 1_000_000.0))
    os.utime(log, (5.0, 5.0))
    with pytest.raises(NotYet):
        opener(replace(running, more_log_paths=(str(other),))).decide(event())
    assert opener(replace(running, stdout_path="/nowhere/x.out")).decide(event())
    ended = replace(running, state=JobState("FAILED", JobClass.FAILED), end_time_s=999_999.0, stdout_path=str(other))
    assert opener(ended).decide(event())


def test_a_job_that_goes_on_writing_is_left_alone_at_last(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    spool, clock = SpoolReader(folder), FakeClock(1_000_000.0)
    spool.write(event())
    asked: list[float] = []

    def busy(event: SpoolEvent) -> object:
        asked.append(clock.now())
        raise NotYet(f"job {event.job} runs and wrote to its log 1 s ago")

    daemon = Daemon(spool, busy, clock, ServiceStatus(clock.now()))
    for _ in range(590):
        daemon.round()
        clock.now_s += 1
    assert len(list(folder.iterdir())) == 1
    for _ in range(310):
        daemon.round()
        clock.now_s += 1
    # Before the rule that watches the spool's age (deploy/prometheus) has anything to say.
    assert list(folder.iterdir()) == []
    assert 5 < len(asked) < 20
    assert (daemon.status.alerts_declined, daemon.status.spool_bad) == (1, 0)


def test_what_opens_nothing_is_forgotten_and_told_and_is_not_bad(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    spool, clock = SpoolReader(folder), FakeClock(1_000_000.0)
    problems: dict[str, Exception] = {"1": Declined("2 jobs had gpu-21 then"), "2": NotFound("no job 2")}

    def look(event: SpoolEvent) -> object:
        raise problems.get(event.job, Unavailable("later"))

    daemon = Daemon(spool, look, clock, ServiceStatus(clock.now()))
    for number in (1, 2):
        spool.write(replace(event(str(number)), file=alert_file("alpha", f"{number:016x}", 1_000_000.0)))
    daemon.round()
    assert len(list(folder.iterdir())) == 1
    assert daemon.status.document(clock.now())["last_declined"] == "GpuXid: 2 jobs had gpu-21 then"
    for _ in range(700):
        clock.now_s += 1
        daemon.round()
    assert list(folder.iterdir()) == []
    assert (daemon.status.alerts_declined, daemon.status.spool_bad) == (2, 0)


def test_the_epilogs_word_on_a_job_is_heard_beside_an_alerts(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    spool, clock = SpoolReader(folder), FakeClock(1_000_000.0)
    spool.write(event("7"))
    (folder / "alpha-7-0.event").write_text("format=1\njob_id=7\nrestart_count=0\ncluster=alpha\n", encoding="ascii")
    heard: list[str] = []

    def hear(event: SpoolEvent) -> object:
        heard.append(event.trigger)
        return None

    daemon = Daemon(spool, hear, clock, ServiceStatus(clock.now()))
    daemon.round()
    assert sorted(heard) == ["alert", "epilog"]
    assert list(folder.iterdir()) == []


def test_logs_that_do_not_answer_hold_up_nobody_elses_event(tmp_path: Path) -> None:
    """A look at them has their owner's rights, and his processes can stop it, folder after folder."""
    answers = threading.Event()

    class Slow(OwnerFiles):
        def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
            assert owner != "eve" or answers.wait(60)
            return (DirectoryEntry(f"{folder}/job.out", False, 1, 999_000.0),)

    def job(number: str, owner: str) -> JobRecord:
        return replace(record(), id=JobId(number), owner=UserName(owner), stdout_path=f"{tmp_path}/job.out")

    jobs = (job("1", "eve"), job("2", "eve"), job("3", "bob"))
    asked = replace(opener(*jobs), files=Slow())
    try:
        with pytest.raises(NotYet, match="did not answer yet"):
            asked.decide(event("1"))
        with pytest.raises(NotYet, match="other logs are looked at before"):
            asked.decide(event("2"))
        assert asked.decide(event("3")).incident.root_job == "3"
    finally:
        answers.set()
    assert asked.decide(event("1")).incident.root_job == "1"
    assert asked.decide(event("2")).incident.root_job == "2"
