"""A job that runs and that somebody's alert names: what its log shows is weighed against its silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runbook.model.incident import Failure
from runbook.model.job import JobClass, StepRecord
from runbook.model.node import ProcessView
from runbook.model.units import IncidentId, NodeName, Unknown
from runbook.slurm.states import job_state
from runbook.steps import cancel_job, identify, read_error
from runbook.steps.shared.base import StepResult
from tests.contract.fakes import FakeFiles, ends
from tests.flow.test_resuming import OnePlace, Scene

STEP_S = 300
STEPS = "".join(
    f"2026-09-14 {hour:02d}:{minute:02d}:00 step {step} loss 2.1\n"
    for step, (hour, minute) in enumerate(((s // 12, s % 12 * 5) for s in range(24)), start=1)
)
CAUGHT = """2026-09-14 01:55:20 evaluation at this batch size failed, trying half of it
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/alice/train.py", line 210, in evaluate
[rank3]:     logits = model(batch)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.10 GiB of which 1.20 GiB is free. Process 4711 has 77.00 GiB memory in use. Of the allocated memory \
70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.
"""
DIED = CAUGHT + "srun: error: gpu-21: task 3: Exited with exit code 1\n"
HEARTBEAT = "2026-09-14 01:56:{:02d} heartbeat: 3 of 4 ranks are waiting in all_reduce\n"


class Place(OnePlace):
    """A folder that keeps logs, too."""

    def copy_stream(self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int) -> tuple[Path, bool]:
        return self.write_file(incident, relative, stream.read(limit_bytes)), False

    ranks: tuple[int, ...] | None = None
    """Of the job's four, those that have a process; None: the node does not answer."""

    def processes(self, *_: Any) -> tuple[ProcessView, ...] | Unknown:
        if self.ranks is None:
            return Unknown("the node does not answer")
        shown = [{"RANK": str(rank), "WORLD_SIZE": "4"} for rank in self.ranks]
        return tuple(ProcessView(NodeName("gpu-21"), 100 + at, ("python",), one) for at, one in enumerate(shown))


ONE_GONE = (0, 1, 2)
ALL = (0, 1, 2, 3)


def scene_of(
    trigger: str, silent_s: float, steps: str = STEPS, ranks: tuple[int, ...] | None = ONE_GONE, end: str = DIED,
    seen_alive: int | None = 4,
) -> Scene:
    scene = Scene("true", trigger=trigger)
    place = Place()
    place.ranks = ranks
    scene.place = place
    job = scene.scheduler.add(work_dir="/home/alice")
    scene.clock.sleep(7200)
    record = scene.scheduler.job(job)
    assert record.state.job_class is JobClass.ACTIVE
    scene.files.files |= FakeFiles({record.stdout_path: (steps + end).encode()}).files
    scene.files.files[record.stdout_path].modified_s = scene.clock.now() - silent_s
    scene.incident = replace(
        scene.incident, root_job=job, failure=Failure(record, whole_ranks=seen_alive), original=None,
        opened_s=scene.clock.now(),
    )
    return scene


@pytest.mark.parametrize(
    ("trigger", "silent_s", "outcome"),
    [
        ("alert", 150, "waiting"), ("alert", 4 * STEP_S, "memory_error"), ("person", 150, "memory_error"),
        ("watch", 150, "waiting"), ("watch", 4 * STEP_S, "memory_error"),
    ],
)
def test_an_alert_waits_until_the_silence_is_longer_than_a_few_steps(
    trigger: str, silent_s: float, outcome: str
) -> None:
    scene = scene_of(trigger, silent_s)
    found = read_error.run(scene.context())
    assert found.outcome == outcome, found.summary
    assert found.poll_s == (3 * STEP_S - 150 if outcome == "waiting" else 0)
    assert found.incident.failure is not None and found.incident.failure.story is not None
    assert found.incident.failure.story.progress.step_duration_s == pytest.approx(STEP_S)


def look(scene: Scene, wrote: str = "", later_s: float = 0.0) -> StepResult:
    """One more look, a while later, at a job that wrote something the moment before."""
    scene.clock.sleep(later_s)
    for file in scene.files.files.values():
        file.content += wrote.encode()
        file.modified_s = scene.clock.now() - (0.0 if wrote else 5.0)
    found = read_error.run(scene.context())
    scene.incident = found.incident
    return found


@pytest.mark.parametrize("trigger", ["alert", "watch"])
def test_survivors_that_go_on_printing_do_not_hold_it_up_as_their_lines_are_no_steps(trigger: str) -> None:
    scene = scene_of(trigger, 0.0)
    assert look(scene, HEARTBEAT.format(1)).outcome == "waiting"
    found = look(scene, HEARTBEAT.format(2), 2 * STEP_S)
    assert found.outcome == "waiting" and found.poll_s == pytest.approx(STEP_S)
    assert look(scene, HEARTBEAT.format(3), STEP_S).outcome == "memory_error"


def test_a_step_that_is_completed_meanwhile_is_progress() -> None:
    scene = scene_of("watch", 0.0, end=CAUGHT)
    assert look(scene, HEARTBEAT.format(1)).outcome == "waiting"
    assert look(scene, "2026-09-14 02:05:00 step 25 loss 2.1\n", 3 * STEP_S).outcome == "waiting"
    assert look(scene, "2026-09-14 02:10:00 step 26 loss 2.1\n", 3 * STEP_S).outcome == "healthy"


@pytest.mark.parametrize("steps", [STEPS, "tuning the widgets\nall is well\n"])
def test_without_a_word_that_a_process_ended_badly_a_person_decides(steps: str) -> None:
    """Ranks that share out work without waiting for each other end one by one: one caught an error and is done."""
    scene = scene_of("watch", 4 * STEP_S, steps, end=CAUGHT)
    found = read_error.run(scene.context())
    assert found.outcome == "unreadable"
    assert "no line tells that a process ended" in found.incident.conclusion
    young = scene_of("watch", 0.0, "tuning the widgets\nall is well\n", end=CAUGHT)
    assert look(young, "still here\n").outcome == "waiting"
    died = "srun: error: gpu-21: task 3: Exited with exit code 1\n"
    assert look(young, died, 121).outcome == "unreadable", "it writes, and nobody counts its steps"
    assert look(young, "", 121).outcome == "unreadable"
    young.files.files[next(iter(young.files.files))].modified_s = young.clock.now() - 121
    assert read_error.run(young.context()).outcome == "memory_error"


def test_a_job_that_has_completed_all_its_steps_may_lose_its_ranks_one_by_one() -> None:
    steps = STEPS.replace(" loss", "/24 loss")
    assert read_error.run(scene_of("watch", 4 * STEP_S, steps, end=CAUGHT).context()).outcome == "healthy"
    assert read_error.run(scene_of("person", 4 * STEP_S, steps).context()).outcome == "memory_error"


@pytest.mark.parametrize("line", ["Epoch [1/10], Step [{}/24], Loss: 2.1", "{}/24 [=====] - 300s/step - loss: 2.1"])
def test_an_epoch_that_is_done_is_not_the_whole_and_a_person_is_asked(line: str) -> None:
    """Case: a job that hung in its first validation was closed as one that has completed all of its steps."""
    steps = "Epoch 1/10\n" + "".join(f"{line.format(step)}\n" for step in range(1, 25))
    scene = scene_of("watch", 4 * STEP_S, steps)
    found = read_error.run(scene.context())
    assert found.outcome == "unreadable" and "epoch's is not known" in found.incident.conclusion, found.summary
    completed = scene_of("epilog", 4 * STEP_S, steps)
    completed.scheduler.jobs[completed.incident.root_job].life = ends("COMPLETED", after_s=7100)
    record = completed.scheduler.job(completed.incident.root_job)
    completed.incident = replace(completed.incident, failure=Failure(record))
    found = read_error.run(completed.context())
    assert found.outcome == "unreadable" and "epoch's is not known" in found.incident.conclusion, found.summary


def test_a_job_that_goes_on_writing_is_left_alone_and_one_that_ends_meanwhile_is_not_waited_for() -> None:
    scene = scene_of("alert", 150)
    scene.clock.sleep(4000)
    for file in scene.files.files.values():
        file.modified_s = scene.clock.now() - 150
    assert read_error.run(scene.context()).outcome == "healthy"
    ended = scene_of("alert", 150)
    ended.scheduler.cancel(ended.scheduler.job(ended.incident.root_job))
    assert read_error.run(ended.context()).outcome == "ended"


def test_one_that_completes_while_it_is_looked_at_is_not_brought_back() -> None:
    """A shard that was done, or the last rank's upload: what was taken for a hang was an end."""
    scene = scene_of("watch", 0.0, end=CAUGHT)
    assert look(scene, "still here\n").outcome == "waiting"
    scene.scheduler.jobs[scene.incident.root_job].life = ends("COMPLETED", after_s=7205)
    assert look(scene, "done\n", 60).outcome == "ended"
    closed = identify.run(scene.context())
    assert (closed.outcome, closed.incident.state) == ("succeeded", "closed")
    hung = scene_of("watch", 4 * STEP_S)
    assert look(hung).outcome == "waiting" and look(hung, "", 4 * STEP_S).outcome == "memory_error"
    hung.scheduler.jobs[hung.incident.root_job].life = ends("COMPLETED", after_s=7201)
    assert cancel_job.run(hung.context()).outcome == "completed"


def test_a_job_whose_steps_nobody_can_count_has_to_be_silent_for_long_on_the_watchs_word() -> None:
    words = "tuning the widgets\nall is well\n"
    assert read_error.run(scene_of("watch", 60, words).context()).outcome == "waiting"
    assert read_error.run(scene_of("watch", 150, words).context()).outcome == "memory_error"
    assert read_error.run(scene_of("alert", 60, words).context()).outcome == "memory_error"


@pytest.mark.parametrize("trigger", ["alert", "watch"])
def test_a_silent_job_whose_ranks_are_all_there_is_not_cancelled_on_its_logs_word(trigger: str) -> None:
    scene = scene_of(trigger, 4 * STEP_S, ranks=ALL)
    found = read_error.run(scene.context())
    assert (found.outcome, found.poll_s) == ("waiting", 30)
    assert "all of its 4 ranks are there" in found.summary
    scene.clock.sleep(4000)
    assert read_error.run(scene.context()).outcome == "healthy"
    assert read_error.run(scene_of("person", 4 * STEP_S, ranks=ALL).context()).outcome == "memory_error"


@pytest.mark.parametrize("trigger", ["alert", "watch"])
def test_where_no_node_tells_a_person_decides(trigger: str) -> None:
    found = read_error.run(scene_of(trigger, 4 * STEP_S, ranks=None).context())
    assert found.outcome == "unreadable"
    assert "whether a rank of it is gone is not known" in found.incident.conclusion


def test_an_alert_on_a_job_whose_ranks_were_never_seen_alive_goes_to_a_person() -> None:
    """Who may write into a job's log has an alert name it, and its ranks' number is one process's word."""
    found = read_error.run(scene_of("alert", 4 * STEP_S, ranks=(0,), seen_alive=None).context())
    assert found.outcome == "unreadable"
    assert "3 of 4 show no process, and were not seen alive before" in found.incident.conclusion
    scene = scene_of("alert", 4 * STEP_S, ranks=ALL, seen_alive=None)
    found = read_error.run(scene.context())
    assert found.outcome == "waiting"
    scene.incident = found.incident
    assert isinstance(scene.place, Place)
    scene.place.ranks = ONE_GONE
    assert read_error.run(scene.context()).outcome == "memory_error", "its first look saw all of them"


def test_an_incident_keeps_so_much_of_a_jobs_logs_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_error, "KEPT_IN_ALL_BYTES", 256 << 10)
    scene = scene_of("person", 4 * STEP_S)
    failure = scene.incident.failure
    assert failure is not None
    more = tuple(f"/home/alice/task-{number}.log" for number in range(9))
    scene.files.files |= FakeFiles(dict.fromkeys(more, b"step 1\n" * (100 << 7))).files
    job = replace(failure.job, more_log_paths=more)
    scene.incident = replace(scene.incident, failure=Failure(job))
    found = read_error.run(scene.context())
    kept = sum(len(content) for name, content in scene.place.written.items() if name.startswith("evidence/"))
    assert kept <= 256 << 10
    assert any("logs were read and not kept" in note for note in found.incident.notes), found.incident.notes


def test_a_job_that_died_before_accounting_knew_its_steps_is_read_once_their_logs_are_known() -> None:
    """srun's --output names files that Slurm's accounting alone knows of, some seconds after a quick end."""
    scene = scene_of("epilog", 0.0, end="srun: error: gpu-21: task 3: Exited with exit code 1\n")
    job = scene.incident.root_job
    known = scene.scheduler.jobs[job]
    known.life = ends("FAILED", 1, after_s=7200)
    known.record = replace(known.record, source="squeue")
    scene.incident = replace(scene.incident, failure=Failure(scene.scheduler.job(job)))
    first = read_error.run(scene.context())
    assert first.outcome == "waiting" and first.poll_s > 0, first.summary
    scene.incident = first.incident
    steps = tuple(
        StepRecord(f"{job}.{name}", job_state("FAILED"), exit_code=1, tasks=4) for name in ("batch", "0")
    )
    known.record = replace(known.record, source="squeue+sacct", steps=steps, more_log_paths=("/home/alice/task-3.log",))
    scene.files.files |= FakeFiles({"/home/alice/task-3.log": CAUGHT.encode()}).files
    found = read_error.run(scene.context())
    assert found.outcome == "memory_error", found.summary
    assert found.incident.failure is not None and found.incident.failure.job.steps == steps


@pytest.mark.parametrize("set_s", [0.0, -7200.0])
def test_accounting_that_never_tells_of_the_steps_holds_nobody_up_for_long(set_s: float) -> None:
    """Case: a clock that was set back by hours made it wait for as long."""
    scene = scene_of("epilog", 0.0, end="srun: error: gpu-21: task 3: Exited with exit code 1\n")
    known = scene.scheduler.jobs[scene.incident.root_job]
    known.life, known.record = ends("FAILED", 1, after_s=7200), replace(known.record, source="squeue")
    scene.incident = replace(scene.incident, failure=Failure(scene.scheduler.job(scene.incident.root_job)))
    ended = scene.scheduler.job(scene.incident.root_job)
    known.life, known.record = (), ended
    assert read_error.run(scene.context()).outcome == "waiting"
    scene.clock.set(set_s)
    scene.clock.sleep(61)
    found = read_error.run(scene.context())
    assert found.outcome == "no_error_found"
    assert any("accounting did not tell" in note for note in found.incident.notes)
