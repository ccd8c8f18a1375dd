"""The steps around a checkpoint: found or refused before the relaunch, proven or stopped after it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runbook.errors import NotFound
from runbook.flow import load_flow
from runbook.locations import data_folder
from runbook.logs.signatures import load_signatures
from runbook.model.checkpoint import Checkpoint
from runbook.model.incident import Attempt, Failure, Incident, IncidentState, Policy
from runbook.model.job import JobRecord
from runbook.model.log import Finding, LogStory, Phase, Progress
from runbook.model.remedy import Plan
from runbook.model.template import TemplateFile
from runbook.model.units import IncidentId, JobId, Unknown
from runbook.node.catalogues import load_node_documents
from runbook.remedy import load_levers, load_restarters
from runbook.slurm.states import job_state
from runbook.steps import cancel_job, find_checkpoint, patch, verify
from runbook.steps.shared.base import Playbook, Ports, StepContext
from tests.contract.fakes import FakeClock, FakeFiles, FakeScheduler
from tests.flow.inventory import inventory
from tests.kinds import Kind

FOLDER = data_folder("playbooks") / "oom"
PLAYBOOK = Playbook(
    load_signatures(FOLDER / "signatures"), load_levers(FOLDER / "levers"), load_node_documents(FOLDER),
    load_restarters(FOLDER / "restarters.yaml"),
)


class OnePlace:
    """A folder and a mailbox that keep what they are given; nodes that do not answer."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    def write_file(
        self, incident: IncidentId, relative: str, content: bytes, mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        self.written[relative] = content
        return Path("/incidents") / relative

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        if relative not in self.written:
            raise NotFound(f"no {relative}")
        return self.written[relative]

    def copy_stream(self, incident: IncidentId, relative: str, stream: BinaryIO, limit: int) -> tuple[Path, bool]:
        return self.write_file(incident, relative, stream.read(limit)), False

    def folder(self, incident: IncidentId) -> Path:
        return Path("/incidents")

    def processes(self, *_: Any) -> tuple[Any, ...] | Unknown:
        return Unknown("the node does not answer")


class Scene:
    """A job that died, its template, its folders, and its log."""

    def __init__(self, template: str, files: dict[str, bytes] | None = None, trigger: str = "person") -> None:
        self.clock = FakeClock()
        self.scheduler = FakeScheduler(self.clock)
        self.files = FakeFiles(files)
        self.place = OnePlace()
        job = self.scheduler.add(work_dir="/home/alice", environment={})
        self.clock.sleep(5)
        record = self.scheduler.job(job)
        text = f"#!/bin/bash\n{template}\n"
        cause = Finding("PT-CUDA-07", Kind.TRUE_OOM, "log", 0, 1, "out of memory", step=61, phase=Phase.FORWARD)
        failure = Failure(record, LogStory(cause, progress=Progress(last_step=60, first_step=1)))
        self.incident = Incident(
            IncidentId("i1"), "fake", job, Policy.APPLY, trigger, self.clock.now(), failure=failure, original=failure,
            templates=(TemplateFile("job.sh", text),), plan=Plan(uses=()), evidence_files=("logs/a.out",),
        )

    def context(self) -> StepContext:
        place: Any = self.place
        ports = Ports(self.scheduler, place, self.files, place, self.clock)
        return StepContext(self.incident, ports, PLAYBOOK, inventory())

    def relaunched(self, checkpoint: Checkpoint, log: str) -> JobRecord:
        """A second job runs, as an attempt that was to go on from a checkpoint."""
        job = self.scheduler.add(work_dir="/home/alice")
        self.clock.sleep(60)
        record = self.scheduler.job(job)
        self.files.files |= FakeFiles({record.stdout_path: log.encode()}).files
        attempt = Attempt(1, checkpoint=checkpoint, job=job, submitted_s=self.clock.now() - 60, failed_step=61)
        self.incident = replace(self.incident, attempts=(attempt,))
        return record


def megatron_checkpoint(folder: str, step: int) -> dict[str, bytes]:
    here = f"{folder}/iter_{step:07d}"
    return {
        f"{here}/__0_0.distcp": b"x", f"{here}/.metadata": b"x", f"{here}/common.pt": b"x",
        f"{here}/metadata.json": json.dumps({"world_size": 1}).encode(),
        f"{folder}/latest_checkpointed_iteration.txt": str(step).encode(),
    }


MEGATRON = "srun python pretrain_gpt.py --tensor-model-parallel-size 2 --save-interval 20 --save /ckpt/a"
VERL = "python3 -m verl.trainer.main_ppo trainer.default_local_dir=/ckpt/v"


def test_the_checkpoint_is_found_and_the_template_goes_on_from_it() -> None:
    scene = Scene(MEGATRON, megatron_checkpoint("/ckpt/a", 40))
    found = find_checkpoint.run(scene.context())
    assert found.outcome == "found" and found.incident.checkpoint is not None
    scene.incident = found.incident
    changed = patch.run(scene.context())
    assert changed.outcome == "patched"
    text = scene.place.written["attempts/1/job.sh"].decode()
    assert "--load /ckpt/a" in text and "--exit-on-missing-checkpoint" in text


def test_a_task_of_an_array_goes_on_from_the_folder_of_its_index() -> None:
    """It is submitted again with the same index, so that the folder is not another one in each submission."""
    scene = Scene(MEGATRON.replace("/a", "/run-$SLURM_ARRAY_TASK_ID"), megatron_checkpoint("/ckpt/run-3", 40))
    assert scene.incident.failure is not None
    task = replace(scene.incident.failure.job, id=JobId("7_3"), array_job_id=JobId("7"))
    failure = replace(scene.incident.failure, job=task)
    scene.incident = replace(scene.incident, failure=failure, original=failure)
    found = find_checkpoint.run(scene.context())
    assert found.outcome == "found" and found.incident.checkpoint is not None
    assert found.incident.checkpoint.path.startswith("/ckpt/run-3")


@pytest.mark.parametrize(
    ("template", "files", "word"),
    [
        pytest.param(VERL, {}, "writes no checkpoint", id="never saves"),
        pytest.param(MEGATRON.replace("/a", "/$(date +%F)"), {}, "another one in each submission", id="moves"),
        pytest.param(
            f"{MEGATRON} --no-load-optim", megatron_checkpoint("/ckpt/a", 40), "optimizer state would not be loaded",
            id="a downgrade",
        ),
        pytest.param(f"cd $TMPDIR\n{MEGATRON.replace('/ckpt/a', 'ckpt')}", {}, "is relative", id="relative elsewhere"),
    ],
)
def test_a_relaunch_that_would_start_over_goes_to_a_person(template: str, files: dict[str, bytes], word: str) -> None:
    scene = Scene(template, files)
    found = find_checkpoint.run(scene.context())
    assert found.outcome == "missing"
    assert word in found.incident.conclusion
    assert found.incident.to_do and found.incident.to_do[0].count("?") >= 1
    from_files = Scene(template, files, trigger="files")
    looked = find_checkpoint.run(from_files.context())
    assert looked.outcome != "missing", "nothing is submitted from files, so the patch is still written"
    assert any("?" in item for item in looked.incident.to_do)


def test_a_job_that_died_in_its_first_step_may_start_over() -> None:
    scene = Scene(VERL)
    failure = scene.incident.failure
    assert failure is not None and failure.story is not None and failure.story.root_cause is not None
    story = LogStory(replace(failure.story.root_cause, phase=Phase.INIT, step=None))
    scene.incident = replace(scene.incident, failure=replace(failure, story=story))
    found = find_checkpoint.run(scene.context())
    assert found.outcome == "none_yet"
    assert any("writes no checkpoint" in note for note in found.incident.notes)


def test_other_restarters_are_named_and_forgotten_once_the_relaunch_is_out() -> None:
    scene = Scene(f"#SBATCH --requeue\n#SBATCH --dependency=singleton\n{MEGATRON}", megatron_checkpoint("/ckpt/a", 40))
    found = find_checkpoint.run(scene.context())
    assert found.outcome == "found"
    assert any("--dependency=singleton (job.sh:3)" in note for note in found.incident.notes)
    assert any("requeue (job.sh:2)" in note for note in found.incident.notes)
    assert any("squeue --name" in item for item in found.incident.to_do)
    scene.incident = found.incident
    assert set(find_checkpoint.before_relaunch(scene.context())) <= set(found.incident.to_do)


AT_40 = Checkpoint("/ckpt/v/global_step_40", 40, True, format="verl_fsdp", latest=True)


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        ("Setting global step to 40\nstep:41 - actor/loss:0.1\nstep:42 - actor/loss:0.1\n", "waiting"),
        ("Training from scratch\n", "started_over"),
        ("Training from scratch\nstep:1 - actor/loss:0.1\nstep:2 - actor/loss:0.1\n", "started_over"),
        ("nothing yet\n", "waiting"),
    ],
)
def test_a_job_that_starts_over_is_stopped(log: str, outcome: str) -> None:
    scene = Scene(VERL)
    job = scene.relaunched(AT_40, log)
    looked = verify.run(scene.context())
    assert looked.outcome == outcome, looked.summary
    if outcome != "started_over":
        return
    flow = load_flow(FOLDER / "flow.yaml")
    stop = flow.boxes[flow.after("verify", outcome)]
    assert stop.acts and stop.run is cancel_job.run
    scene.incident = looked.incident
    assert "/ckpt/v/global_step_40" in scene.incident.conclusion and "starts from scratch" in scene.incident.conclusion
    asked = cancel_job.propose(scene.context())
    assert asked is not None and asked.target == job.id
    stopped = cancel_job.run(scene.context())
    assert scene.scheduler.acts == [("cancel", job.id)]
    assert flow.after(stop.name, stopped.outcome) == "escalate"
    assert stopped.incident.state is IncidentState.RUNNING and stopped.incident.conclusion == scene.incident.conclusion


def test_what_is_proven_says_where_it_went_on() -> None:
    scene = Scene(VERL)
    scene.relaunched(AT_40, "Setting global step to 40\n" + "".join(f"step:{n} - actor/x:1\n" for n in range(41, 80)))
    files = {
        "actor/model_world_size_1_rank_0.pt": b"x", "actor/optim_world_size_1_rank_0.pt": b"x",
        "actor/extra_state_world_size_1_rank_0.pt": b"x", "data.pt": b"x",
    }
    saved = {f"/ckpt/v/global_step_70/{name}": content for name, content in files.items()}
    scene.files.files |= FakeFiles({**saved, "/ckpt/v/latest_checkpointed_iteration.txt": b"70"}).files
    looked = verify.run(scene.context())
    assert looked.outcome == "passed", looked.summary
    assert "goes on from step 40" in looked.summary and "wrote a checkpoint at step 70" in looked.summary


def test_a_relaunch_that_ended_is_judged_once_accounting_told_where_its_tasks_wrote() -> None:
    """Case: a job that wrote to files of srun's --output ended well within seconds, and was called not proven."""
    scene = Scene(VERL)
    record = scene.relaunched(AT_40, "nothing yet\n")
    known = scene.scheduler.jobs[record.id]
    now_s = scene.clock.now()
    ended = replace(record, state=job_state("COMPLETED"), end_time_s=now_s, source="squeue+sacct")
    known.life, known.record = (), ended
    assert verify.run(scene.context()).outcome == "waiting"
    scene.clock.sleep(61)
    assert verify.run(scene.context()).outcome == "not_proven"
