"""Which jobs are looked into at all, and which are nobody's business."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.store import records
from runbook.errors import BoxStopped, NotAllowed, Unavailable
from runbook.flow import Box, load_flow
from runbook.flow.walking import NoLedger, Walk
from runbook.model.incident import Attempt, BoxVisit, Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord, JobScript, JobState
from runbook.model.template import TemplateFile
from runbook.model.units import IncidentId, JobId, NodeName, Unknown
from runbook.remedy import load_restarters, submitted_by_another
from runbook.slurm.states import job_state
from runbook.steps import cancel_job, choose_lever, classify, identify, read_error, relaunch, report
from runbook.steps.cancel_job import of_another
from runbook.steps.shared.base import Proposal, StepContext, StepResult
from tests.contract.fakes import FakeScheduler, ends
from tests.flow.inventory import BY_QUESTION
from tests.flow.test_resuming import Scene

RESTARTERS = Path(__file__).parents[2] / "playbooks/oom/restarters.yaml"


def _identified(trigger: str, submit_line: str) -> tuple[str, IncidentState]:
    scene = Scene("true")
    job = scene.scheduler.add(
        life=ends("FAILED", 130), script=None, stdout_path="", command="", submit_line=submit_line, environment={}
    )
    scene.clock.sleep(600)
    scene.incident = replace(scene.incident, root_job=job, trigger=trigger, failure=None, original=None)
    result = identify.run(scene.context())
    return str(result.outcome), result.incident.state


@pytest.mark.parametrize("submit_line", ["salloc --gpus=8", "/usr/bin/srun --pty bash", "srun python train.py"])
def test_a_session_at_a_terminal_that_ends_badly_wakes_nobody(submit_line: str) -> None:
    assert _identified("epilog", submit_line) == ("interactive", IncidentState.CLOSED)


@pytest.mark.parametrize(
    ("trigger", "submit_line"), [("person", "salloc --gpus=8"), ("epilog", "sbatch train.sh"), ("epilog", "")]
)
def test_else_a_job_without_a_log_goes_to_a_person(trigger: str, submit_line: str) -> None:
    assert _identified(trigger, submit_line)[0] == "no_logs"


EXITED = b"srun: error: gpu-21: task 3: Exited with exit code 1\n"
OOM = b"""step 10 loss 1.0
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 7, in <module>
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB
"""


def _read(scene: Scene, log: bytes, **changes: object) -> list[str]:
    """The outcomes of identify, and of read_error behind it."""
    job = scene.scheduler.add(script="true", **changes)  # type: ignore[arg-type]
    scene.clock.sleep(600)
    record = scene.scheduler.job(job)
    scene.files.files |= type(scene.files)({record.log_paths[0]: log}).files
    scene.incident = replace(scene.incident, root_job=job, failure=None, original=None)
    result = identify.run(scene.context())
    scene.incident = result.incident
    if result.outcome != "identified":
        return [str(result.outcome)]
    result = read_error.run(scene.context())
    scene.incident = result.incident
    return ["identified", str(result.outcome)]


@pytest.mark.parametrize(
    ("trigger", "log", "outcomes"),
    [
        ("person", OOM, ["identified", "memory_error"]),
        ("person", b"step 10 loss 1.0\nTraining done\n", ["identified", "no_error_found"]),
        ("person", b"step 10\nthe docs say torch.OutOfMemoryError: CUDA out of memory.\n", ["identified", "healthy"]),
        ("epilog", OOM, ["identified", "healthy"]),
        ("epilog", OOM + EXITED, ["identified", "memory_error"]),
        ("epilog", OOM.replace(b"step 10", b"step 10/10") + EXITED, ["identified", "unreadable"]),
        ("alert", OOM, ["succeeded"]),
    ],
)
def test_a_job_whose_pipe_ended_well_is_read_when_a_person_asks_or_a_line_tells_of_its_end(
    trigger: str, log: bytes, outcomes: list[str]
) -> None:
    """`srun … | tee log` without pipefail: COMPLETED 0:0, whatever the ranks died of."""
    assert _read(Scene("true", trigger=trigger), log, life=ends("COMPLETED")) == outcomes


def test_a_relaunch_that_completed_is_not_read_once_more() -> None:
    """Case: one that caught a shortage was read as the epilog's job is, whose event tells of a failure in its log."""
    scene = Scene("true", trigger="epilog")
    job = scene.scheduler.add(script="true", life=ends("COMPLETED"))
    scene.clock.sleep(600)
    attempt = Attempt(1, job=job, submitted_s=scene.clock.now() - 600)
    scene.incident = replace(scene.incident, attempts=(attempt,))
    assert identify.run(scene.context()).outcome == "succeeded"


def test_a_job_that_was_requeued_and_held_is_read() -> None:
    held = {"reason": "JobHeldUser", "state": JobState("PENDING", JobClass.WAITING), "life": ()}
    assert _read(Scene("true"), OOM, restarts=1, **held) == ["identified", "memory_error"]
    assert _read(Scene("true"), OOM, restarts=0, **held) == ["waiting"]


@pytest.mark.parametrize("state", ["PENDING", "EXPEDITING", "REQUEUED"])
@pytest.mark.parametrize(
    ("trigger", "outcomes"),
    [("epilog", ["identified", "memory_error"]), ("person", ["identified", "memory_error"]), ("alert", ["waiting"])],
)
def test_a_job_that_slurm_starts_again_is_read_and_cancelled_before_it_does(
    state: str, trigger: str, outcomes: list[str]
) -> None:
    requeued = {"reason": "BeginTime", "state": job_state(state), "life": ()}
    scene = Scene("true", trigger=trigger)
    assert _read(scene, OOM, restarts=1, **requeued) == outcomes
    assert _read(Scene("true", trigger=trigger), OOM, restarts=0, **requeued) == ["waiting"]
    if trigger != "alert":
        proposal = cancel_job.propose(scene.context())
        assert proposal is not None and "starts again as it was" in proposal.sentence
        assert cancel_job.run(scene.context()).outcome == "cancelled"


def _waits_again(policy: Policy = Policy.APPLY, reason: str = "BeginTime") -> tuple[Scene, list[tuple[str, ...]]]:
    """A job that failed and waits to start again, once it was read; and what was done to it."""
    scene = Scene("true", trigger="epilog")
    scene.incident = replace(scene.incident, policy=policy)
    waits = {"reason": reason, "state": job_state("EXPEDITING"), "life": ()}
    assert _read(scene, OOM, restarts=1, **waits) == ["identified", "memory_error"]
    return scene, [act for act in scene.scheduler.acts if act[0] in ("hold", "release", "cancel")]


def test_a_job_that_waits_to_start_again_is_held_until_it_is_cancelled() -> None:
    scene, acts = _waits_again()
    job = scene.incident.root_job
    assert acts == [("hold", job)] and any("is held while" in note for note in scene.incident.notes)
    scene.incident = cancel_job.run(scene.context()).incident
    report.run(scene.context())
    assert scene.scheduler.acts[-1] == ("cancel", job)


def test_it_is_given_back_where_it_stays_also_by_a_run_that_was_killed_in_between() -> None:
    scene, _ = _waits_again()
    job = scene.incident.root_job
    again = identify.run(scene.context()).incident
    scene.incident = replace(again, state=IncidentState.ESCALATED)
    ended = report.run(scene.context()).incident
    assert scene.scheduler.acts == [("hold", job), ("release", job)]
    assert any("starts again as it was" in note for note in ended.notes)


def test_nothing_is_held_under_plan_and_what_somebody_else_holds_stays_so() -> None:
    assert _waits_again(Policy.PLAN)[1] == []
    # Also what Slurm itself holds, and what nobody has heard of.
    for reason in (
        "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held", "JobLaunchFailure", "New"
    ):
        scene, acts = _waits_again(reason=reason)
        report.run(scene.context())
        assert acts == [] and scene.scheduler.acts == []


class Slurmctld(FakeScheduler):
    """It stops answering before the script is read, or after a job was held; or refuses; or the job starts first."""

    does = ""

    def script(self, job: JobId) -> JobScript | Unknown:
        if self.does == "away at the script":
            raise Unavailable("Slurm does not answer")
        return super().script(job)

    def hold(self, job: JobRecord) -> bool:
        if self.does == "refuses":
            raise NotAllowed("access denied")
        if self.does == "starts it":
            return False
        held = super().hold(job)
        if self.does == "away after the hold":
            raise Unavailable("Slurm does not answer")
        return held


def _requeued(does: str) -> Scene:
    """A job that failed and waits to start again, before it is looked at."""
    scene = Scene("true", trigger="epilog")
    scene.scheduler = scheduler = Slurmctld(scene.clock)
    scheduler.does = does
    job = scheduler.add(script="true", life=(), restarts=1, reason="BeginTime", state=job_state("PENDING"))
    scene.incident = replace(scene.incident, root_job=job, failure=None, original=None)
    return scene


def test_it_is_held_once_all_is_read_and_given_back_whatever_became_of_the_box_that_held_it() -> None:
    """Case: it was held first, and the run that was ended over the owner's files knew of no job to release."""
    scene = _requeued("away at the script")
    with pytest.raises(Unavailable):
        identify.run(scene.context())
    assert scene.scheduler.acts == []
    scene = _requeued("away after the hold")
    with pytest.raises(Unavailable):
        identify.run(scene.context())
    job = scene.incident.root_job
    ended = report.run(scene.context()).incident
    assert ended.failure is None and scene.scheduler.acts == [("hold", job), ("release", job)]


def _held_by_its_owner(scene: Scene) -> None:
    job = scene.scheduler.job(scene.incident.root_job)
    scene.scheduler.jobs[job.id].record = replace(scene.scheduler.jobs[job.id].record, reason="JobHeldUser")


@pytest.mark.parametrize("does", ["", "refuses", "starts it"])
def test_what_its_owner_holds_later_stays_held(does: str) -> None:
    """Case: the mark outlived a release, and a hold that failed."""
    scene = _requeued(does)
    scene.incident = identify.run(scene.context()).incident
    if not does:
        scene.incident = report.run(scene.context()).incident
    before = list(scene.scheduler.acts)
    _held_by_its_owner(scene)
    report.run(scene.context())
    identify.run(scene.context())
    report.run(scene.context())
    assert scene.scheduler.acts == before


class _Broken:
    """Boxes of which one cannot go on."""

    def __init__(self, broken: str, error: Exception) -> None:
        self.broken, self.error = broken, error

    def run(self, box: Box, context: StepContext) -> StepResult:
        if box.name == self.broken:
            raise self.error
        return box.run(context)

    def propose(self, box: Box, context: StepContext) -> Proposal | None:
        return None


class _Nobody:
    """Looks on, and keeps the incident."""

    def __init__(self) -> None:
        self.saved: list[Incident] = []

    def entered(self, box: Box, incident: Incident) -> None: ...
    def left(self, box: Box, visit: BoxVisit, incident: Incident) -> None: ...
    def line(self, incident: IncidentId, text: str) -> None: ...
    def asked(self, incident: Incident, proposal: Proposal) -> None: ...

    def save(self, incident: Incident) -> None:
        self.saved.append(incident)

    def load(self, incident: IncidentId) -> Incident:
        return self.saved[-1]


@pytest.mark.parametrize(
    ("broken", "error", "state"),
    [
        ("read_error", Unavailable("the disk is gone"), IncidentState.INTERRUPTED),
        ("read_error", NotAllowed("access denied"), IncidentState.INTERRUPTED),
        ("read_error", ZeroDivisionError(), IncidentState.INTERRUPTED),
        ("report", BoxStopped("it took too long"), IncidentState.ESCALATED),
    ],
)
def test_an_incident_that_stops_before_its_report_says_that_the_job_is_held(
    broken: str, error: Exception, state: IncidentState
) -> None:
    scene, onlooker = _requeued(""), _Nobody()
    record = scene.scheduler.job(scene.incident.root_job)
    scene.files.files |= type(scene.files)({record.log_paths[0]: b"step 10\nTraining done\n"}).files

    def context_of(incident: Incident, _tell: Callable[[str], None]) -> StepContext:
        return replace(scene.context(), incident=incident)

    walk = Walk(
        load_flow(RESTARTERS.parent / "flow.yaml"), context_of, onlooker, scene.clock, BY_QUESTION, onlooker,
        draw=lambda _incident: None, boxes=_Broken(broken, error),
    )
    walk.run(records.packed(scene.incident), NoLedger())
    last = onlooker.saved[-1]
    assert last.state is state and scene.scheduler.acts == [("hold", scene.incident.root_job)]
    assert any(f"`scontrol release {scene.incident.root_job}`" in item for item in last.to_do), last.to_do


def test_a_running_job_of_which_srun_saw_a_task_end_is_not_healthy() -> None:
    """Its own words stand in a file that `srun --output` named and that is not known."""
    scene = Scene("true")
    said = b"step 10\nsrun: error: gpu-22: task 3: Exited with exit code 1\n"
    assert _read(scene, said) == ["identified", "unreadable"]
    assert "task 3 on gpu-22 ended with exit code 1" in scene.incident.conclusion
    assert _read(Scene("true"), b"step 10\n") == ["identified", "healthy"]


SUBMITIT = "#!/bin/bash\n#SBATCH --job-name=x\nsrun --output /runs/%j_%t.out python -u -m submitit.core._submit /runs"
SNAKEMAKE = "#!/bin/sh\ncd /w && python -m snakemake --snakefile S --target-jobs 'train:' --cores all --mode 'remote'"
NEXTFLOW = "#!/bin/bash\nset -e\nnxf_launch() {\n    /bin/bash -ue /w/.command.sh\n}\n$NXF_ENTRY"


@pytest.mark.parametrize(
    ("job", "script"),
    [
        ("7+1", "true"), ("7_[3-5]", "true"), ("7_3", "shards=$SLURM_ARRAY_TASK_COUNT"), ("7", SUBMITIT),
        ("7", SNAKEMAKE), ("7", NEXTFLOW),
    ],
)
def test_a_job_that_could_not_be_submitted_again_is_not_cancelled(job: str, script: str) -> None:
    scene = Scene("true")
    base = scene.scheduler.job(scene.scheduler.add())
    running = scene.scheduler.add(replace(base, id=JobId(job), state=job_state("RUNNING")), script=script)
    scene.clock.sleep(5)
    record: JobRecord = scene.scheduler.job(running)
    assert scene.incident.failure is not None
    failure = replace(scene.incident.failure, job=record)
    scene.incident = replace(scene.incident, root_job=running, failure=failure, original=failure, templates=())
    scene.incident = identify.run(scene.context()).incident
    assert cancel_job.propose(scene.context()) is None
    assert cancel_job.run(scene.context()).outcome == "left_running"
    assert relaunch.propose(scene.context()) is None
    assert scene.scheduler.job(running).state.job_class is JobClass.ACTIVE


@pytest.mark.parametrize(
    ("script", "what", "to_do"),
    [
        (SUBMITIT, "a job of submitit", "executor.submit"),
        (SNAKEMAKE, "a Snakemake workflow", "run the workflow again"),
        (NEXTFLOW, "a Nextflow pipeline", "-resume"),
    ],
)
def test_what_another_program_submits_is_handed_back_without_a_question_that_nobody_can_answer(
    script: str, what: str, to_do: str
) -> None:
    scene = Scene(script)
    scene.incident = classify.run(scene.context()).incident
    chosen = choose_lever.run(scene.context())
    scene.incident = chosen.incident
    assert chosen.outcome == "needs_person" and what in scene.incident.conclusion
    assert to_do in scene.incident.to_do[0] and "Write it into the template" not in str(scene.incident.to_do)
    # Away from a node that is broken, too: nothing of the job is this tool's to submit.
    scene.incident = replace(scene.incident, excluded_nodes=(NodeName("gpu-9"),), to_do=())
    refused = relaunch.run(scene.context())
    assert refused.outcome == "refused" and to_do in str(refused.incident.to_do)


def test_a_workflow_that_is_a_job_itself_is_its_owners() -> None:
    mentioned = "# python -m submitit.core._submit x"
    for script in ("snakemake --cores 8 --retries 2", "nextflow run main.nf -resume", mentioned):
        assert of_another(Scene(f"#!/bin/bash\n{script}\n").context()) is None


def test_a_line_made_to_be_searched_for_long_is_gone_through_once() -> None:
    began_s = time.process_time()
    submitted = submitted_by_another(TemplateFile("a.sh", "snakemake " * 32_000), load_restarters(RESTARTERS))
    assert submitted is None and time.process_time() - began_s < 2
