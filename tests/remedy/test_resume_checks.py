"""Before a relaunch: would it go on, and who else starts the job? After it: what its log proves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runbook.documents import DocumentsInvalid
from runbook.locations import data_folder
from runbook.model.checkpoint import Checkpoint
from runbook.model.log import LogStory, Progress
from runbook.model.template import SubmitContext, TemplateFile
from runbook.remedy import (
    ResumeKind,
    StartedJob,
    TemplateSettings,
    checkpoint_folders,
    find_restarters,
    load_levers,
    load_restarters,
    recognise,
    resume_edits,
    resume_findings,
    resume_proof,
    template_settings,
)
from runbook.report.vocabulary.sentences import in_words
from runbook.template import apply, find_settings

PLAYBOOK = data_folder("playbooks") / "oom"
ALL = load_levers(PLAYBOOK / "levers")
COMMON = load_restarters(PLAYBOOK / "restarters.yaml")
CASES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).parent / "resumes.yaml")
KNOWN = SubmitContext(environment={}, arguments=())


def told_of(text: str, submitted: str = "") -> TemplateSettings:
    file = TemplateFile("job.sh", text)
    system = recognise((file,), LogStory(None), ALL)
    assert system is not None, "no system is recognised"
    started = StartedJob("4711", "ada", "/home/ada/run", submitted)
    return template_settings(system, find_settings(file, system.parameter_names(), KNOWN), (file,), started)


def checkpoint_of(case: dict[str, Any]) -> Checkpoint | None:
    given = case.get("checkpoint")
    if given is None:
        return None
    return Checkpoint(given["path"], given["step"], True, format=given["format"], latest=given.get("latest"))


def agree(found: tuple[str, ...], wanted: list[str]) -> None:
    """Each sentence has all parts (divided by |) of its own wanted text."""
    assert len(found) == len(wanted), found
    for parts in wanted:
        assert any(all(part in text for part in parts.split("|")) for text in found), (parts, found)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["title"]) for case in CASES])
def test_a_template(case: dict[str, Any]) -> None:
    told = told_of(case["template"], case.get("submitted", ""))
    checkpoint = checkpoint_of(case)
    findings = resume_findings(told, checkpoint, made_steps=not case.get("died_at_once", False))
    said = (f"{in_words(item.why)} {in_words(item.question)}" for item in findings.refusals)
    agree(tuple(said), case.get("refused", []))
    agree(tuple(map(in_words, findings.notes)), case.get("notes", []))
    restarters = find_restarters(told, COMMON)
    agree(tuple(map(in_words, restarters.notes)), case.get("restarts", []))
    edits = (*restarters.edits, *findings.edits)
    if checkpoint is not None:
        edits = (*resume_edits(told, checkpoint), *edits)
    assert {edit.parameter: edit.new for edit in edits} == case.get("set", {})
    if edits and not findings.refusals:
        _written(told, case, checkpoint, edits)


def _written(told: TemplateSettings, case: dict[str, Any], checkpoint: Checkpoint | None, edits: Any) -> None:
    """The template with the edits asks for no further ones."""
    changed = apply(told.templates, edits, names=told.system.parameter_names(), known=KNOWN).files[0]
    again = told_of(changed.text)
    if checkpoint is not None:
        assert not resume_edits(again, checkpoint)
    assert not (*resume_findings(again, checkpoint, made_steps=True).edits, *find_restarters(again, COMMON).edits)


def test_what_a_word_that_is_not_known_may_hold_is_not_taken_to_be_absent() -> None:
    told = told_of('#!/bin/bash\nsrun python pretrain_gpt.py --tensor-model-parallel-size 2 --save /c $EXTRA\n')
    assert resume_findings(told, None, made_steps=True).refusals
    perhaps = replace(told, unresolved_argument="$EXTRA")
    findings = resume_findings(perhaps, None, made_steps=True)
    assert not findings.refusals and any("--save-interval" in in_words(note) for note in findings.notes)


def test_a_program_and_its_configuration_start_no_jobs() -> None:
    told = told_of("#!/bin/bash\nsrun torchrun train.py --save /ckpt\n")
    more = (TemplateFile("train.py", "os.system('scontrol requeue 1')\n"), TemplateFile("c.yaml", "a: sbatch $0\n"))
    with_files = template_settings(told.system, told.settings, (*told.templates, *more))
    assert not find_restarters(with_files, COMMON).notes


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("python -m verl.trainer.main_ppo trainer.project_name=p", "/home/ada/run/checkpoints/p/gsm8k"),
        ("python -m verl.trainer.main_ppo trainer.default_local_dir=out", "/home/ada/run/out"),
        ("srun torchrun train.py --save ../x --load /y/", "/home/ada/x /y"),
        ("srun torchrun train.py", ""),
    ],
)
def test_folders_that_are_looked_at(template: str, wanted: str) -> None:
    folders, notes = checkpoint_folders(told_of(f"#!/bin/bash\n{template}\n"))
    assert " ".join(folders) == wanted and not notes


def test_a_folder_that_is_not_known_is_said() -> None:
    folders, notes = checkpoint_folders(
        told_of("#!/bin/bash\nE=$(date)\npython -m verl.trainer.main_ppo trainer.experiment_name=$E\n")
    )
    assert not folders and len(notes) == 1 and "experiment_name" in in_words(notes[0])
    assert "$(date)" in in_words(notes[0])


AT_200 = Checkpoint("/ckpt/iter_0000200", 200, True, format="torch_dist", latest=True)


@pytest.mark.parametrize(
    ("progress", "kind"),
    [
        pytest.param(Progress(resumed_from_step=200), ResumeKind.RESUMED, id="the line says so"),
        pytest.param(Progress(resumed_from_step=201, first_step=201), ResumeKind.RESUMED, id="it names the next step"),
        pytest.param(Progress(first_step=201, last_step=203), ResumeKind.RESUMED, id="its steps say so"),
        pytest.param(Progress(first_step=210, last_step=230), ResumeKind.RESUMED, id="every tenth step is printed"),
        pytest.param(Progress(), ResumeKind.UNKNOWN, id="nothing yet"),
        pytest.param(Progress(from_scratch=True), ResumeKind.FROM_SCRATCH, id="it says that it starts over"),
        pytest.param(
            Progress(from_scratch=True, first_step=201, last_step=202), ResumeKind.RESUMED, id="its steps say otherwise"
        ),
        pytest.param(Progress(resumed_from_step=0), ResumeKind.UNKNOWN, id="a reference model is loaded first"),
        pytest.param(
            Progress(resumed_from_step=0, first_step=1, last_step=4), ResumeKind.FROM_SCRATCH, id="from iteration 0"
        ),
        pytest.param(
            Progress(resumed_from_step=100, first_step=101, last_step=104), ResumeKind.ELSEWHERE, id="an older one"
        ),
        pytest.param(Progress(resumed_from_step=100), ResumeKind.UNKNOWN, id="perhaps the weights of another model"),
        pytest.param(
            Progress(first_step=1, last_step=3, total_steps=1000, step_duration_s=9.0), ResumeKind.FROM_SCRATCH,
            id="1 of 1000",
        ),
        pytest.param(
            Progress(first_step=1, last_step=90, total_steps=1000, step_duration_s=0.1), ResumeKind.UNKNOWN,
            id="batches are skipped",
        ),
        pytest.param(
            Progress(first_step=1, last_step=3, total_steps=1000), ResumeKind.UNKNOWN,
            id="1 of 1000, how fast is not known",
        ),
        pytest.param(
            Progress(first_step=1, last_step=3, total_steps=120, step_duration_s=9.0), ResumeKind.UNKNOWN,
            id="1 of an epoch of 120",
        ),
        pytest.param(Progress(first_step=1, last_step=3), ResumeKind.UNKNOWN, id="1 of nobody knows how many"),
        pytest.param(Progress(first_step=40, last_step=41, total_steps=1000), ResumeKind.UNKNOWN, id="neither"),
    ],
)
def test_what_the_log_proves(progress: Progress, kind: ResumeKind) -> None:
    found = resume_proof(progress, AT_200, usual_step_s=10.0)
    assert found.kind is kind, found.why
    assert found.why


_STEPS = st.none() | st.integers(0, 400)


@given(_STEPS, _STEPS, st.booleans(), st.none() | st.integers(1, 400))
def test_a_job_whose_steps_go_on_is_never_stopped(
    said: int | None, ahead: int | None, scratch: bool, total: int | None
) -> None:
    """Stopping a job that did go on would cost a node: its own steps outweigh any line."""
    first = 200 + (ahead or 0)
    progress = Progress(
        resumed_from_step=said, from_scratch=scratch, first_step=first, last_step=first + 3, total_steps=total
    )
    assert resume_proof(progress, AT_200, 10.0).kind in (ResumeKind.RESUMED, ResumeKind.UNKNOWN)


def test_a_job_just_begun_is_no_proof_of_anything() -> None:
    first = Checkpoint("/c/step-1", 1, True, format="torchtitan")
    unknown = Checkpoint("/c/checkpoint_3", None, True, format="accelerate")
    started = Progress(from_scratch=True, first_step=1, last_step=2)
    assert resume_proof(started, first).kind is not ResumeKind.FROM_SCRATCH
    assert resume_proof(started, unknown).kind is ResumeKind.FROM_SCRATCH
    assert resume_proof(Progress(first_step=1), unknown).kind is ResumeKind.UNKNOWN


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("pattern: '\\bTORCHX", "condition: {parameter: x}\n    pattern: '\\bTORCHX", "`condition` or `pattern`"),
        ("  - id: shell_loop", "  - id: singleton", "id of two restarters"),
        ("title: --dependency=singleton", "titel: --dependency=singleton", "unknown key"),
        ("pattern: '--max[-_]restarts[", "pattern: '--max[-_]restarts(", "not a regular expression"),
    ],
)
def test_a_mistake_in_the_restarters_is_named(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    text = (PLAYBOOK / "restarters.yaml").read_text(encoding="utf-8")
    assert old in text, "the document changed; so must this test"
    (tmp_path / "restarters.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as caught:
        load_restarters(tmp_path / "restarters.yaml")
    assert wanted in str(caught.value)
