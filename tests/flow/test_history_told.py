"""The second incident of the same script: the first one is a reason for or against the lever, and never an obstacle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.errors import Unavailable
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.incident import Attempt, Incident, IncidentState, Verdict
from runbook.model.log import LogStory
from runbook.model.remedy import Remembered
from runbook.model.units import GIB, Bytes, IncidentId, JobId, UserName
from runbook.report.text.incident_text import render_text
from runbook.steps import choose_lever
from runbook.steps.shared.base import StepContext
from tests.flow.test_resuming import Scene
from tests.kinds import Kind

SCRIPT = (
    "srun python train.py --model-name /secret/place/llama-8b --micro-batch-size 8 --gradient-accumulation-steps 1 "
    "--seq-length 4096 --save /ckpt --load /ckpt"
)


def scene(number: int, owner: str = "alice", command: str = "/home/alice/train.sh") -> Scene:
    """A job of the script that died for want of memory."""
    made = Scene(SCRIPT)
    failure = made.incident.failure
    assert failure is not None and failure.story is not None and failure.story.root_cause is not None
    cause = replace(
        failure.story.root_cause, fields=replace(failure.story.root_cause.fields, capacity_bytes=Bytes(80 * GIB))
    )
    failure = replace(
        failure,
        job=replace(failure.job, owner=UserName(owner), name=f"{owner}-secret-name", command=command, gpus_per_node=8),
        story=LogStory(cause, framework_version="2.6.0"),
        diagnosis=Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.95)),
    )
    made.incident = replace(
        made.incident, id=IncidentId(f"oom-fake-{number}"), opened_s=float(number), failure=failure, original=failure,
        plan=None,
    )
    return made


def chosen(made: Scene, store: IncidentStore) -> Incident:
    context = made.context()
    context = replace(context, ports=replace(context.ports, history=ReadModel(store)))
    result = choose_lever.run(context)
    assert result.outcome == "lever", result.summary
    assert all(told in result.summary for told in seen_before(result.incident)[:1])
    return result.incident


def ended(incident: Incident, passed: bool) -> Incident:
    """The relaunch with the chosen lever worked, or died of memory again."""
    attempt = Attempt(
        1, incident.plan, job=JobId("99"), verdict=Verdict(passed), diagnosis=Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.9))
    )
    state = IncidentState.RECOVERED if passed else IncidentState.ESCALATED
    return replace(incident, attempts=(attempt,), state=state)


def seen_before(incident: Incident) -> tuple[str, ...]:
    assert incident.plan is not None
    (use,) = incident.plan.uses
    assert use.lever == "smaller_micro_batch", "what is remembered does not change the order"
    return use.seen_before


def test_the_first_incident_of_a_script_is_a_reason_in_the_second(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    first = chosen(scene(1), store)
    assert seen_before(first) == ()
    told = first.circumstances
    assert told is not None
    assert (told.system, told.model, told.micro_batch, told.sequence_length) == ("pytorch", "llama-8b", 8, 4096)
    store.save(ended(first, passed=True))
    second = chosen(scene(2), store)
    assert seen_before(second) == (
        "worked in 1 of 1 with the same script: oom-fake-1 (the same values); one case proves little",
    )
    assert "Before: worked in 1 of 1 with the same script: oom-fake-1" in " ".join(render_text(second).split())


def test_a_lever_that_failed_there_is_told_and_tried_all_the_same(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(ended(chosen(scene(1), store), passed=False))
    (told,) = seen_before(chosen(scene(2), store))
    assert told.startswith("did not suffice in 1 of 1 with the same script: oom-fake-1 (the same values)")


def test_of_somebody_elses_job_only_its_incident_is_named(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(ended(chosen(scene(1, "bob", "/home/bob/secret/run.sh"), store), passed=True))
    (told,) = seen_before(chosen(scene(2), store))
    assert told.startswith("worked in 1 of 1 in similar failures") and "oom-fake-1" in told
    assert not [word for word in ("bob", "secret", "run.sh") if word in told]


def test_where_no_lever_is_left_a_person_is_told_what_worked_last_time(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    leaks = Diagnosis(Hypothesis(Kind.MEMORY_LEAK, 0.9))

    def leaking(incident: Incident) -> Incident:
        assert incident.failure is not None
        failure = replace(incident.failure, diagnosis=leaks)
        return replace(incident, failure=failure, original=failure)

    store.save(leaking(ended(chosen(scene(1), store), passed=True)))
    second = scene(2)
    second.incident = leaking(second.incident)
    context = second.context()
    result = choose_lever.run(replace(context, ports=replace(context.ports, history=ReadModel(store))))
    assert result.outcome != "lever"
    assert any("With the same script, oom-fake-1 got past this failure with smaller micro batch" in note
               for note in result.incident.notes), result.incident.notes


def test_a_memory_that_cannot_be_read_costs_the_reasons_alone() -> None:
    class Broken:
        def like(self, now: Remembered) -> tuple[Remembered, ...]:
            raise Unavailable("the state folder does not answer")

        def drains_since(self, time_s: float) -> int:
            raise Unavailable("the state folder does not answer")

    context: StepContext = scene(1).context()
    result = choose_lever.run(replace(context, ports=replace(context.ports, history=Broken())))
    assert result.outcome == "lever"
    assert seen_before(result.incident) == ()
    assert any("earlier incidents could not be read" in note for note in result.incident.notes)


def test_a_damaged_memory_is_made_again(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(ended(chosen(scene(1), store), passed=True))
    for damage in (b"", b"\xff" * 99, b"SQLite format 3\0" + b"\0" * 999):
        (tmp_path / "incidents.sqlite").write_bytes(damage)
        assert len(seen_before(chosen(scene(2), store))) == 1


def test_what_was_read_once_is_read_from_the_file_and_what_is_new_from_its_incident(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    first = ended(chosen(scene(1), store), passed=True)
    for number in range(40):
        store.save(replace(first, id=IncidentId(f"oom-fake-{100 + number}")))
    assert len(ReadModel(store).all()) == 40
    store.save(replace(first, id=IncidentId("oom-fake-3"), opened_s=3.0))
    (tmp_path / "incidents" / "oom-fake-100" / "incident.json").unlink()
    known = ReadModel(store).all()
    assert "oom-fake-3" in known and "oom-fake-100" not in known and len(known) == 40
    (tmp_path / "incidents" / "oom-fake-101" / "incident.json").write_text("{", encoding="utf-8")
    assert "oom-fake-101" not in ReadModel(store).all()
