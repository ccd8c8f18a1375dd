"""Find the last complete checkpoint that the next attempt can resume from."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed, NotFound
from runbook.evidence.checkpoints import SMALL_FILE_BYTES, choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.model.checkpoint import Checkpoint
from runbook.model.job import JobRecord
from runbook.model.template import Setting
from runbook.steps.base import StepContext, StepResult, with_notes
from runbook.steps.template_view import settings_in_force, system_of

MOST_ENTRIES = 100_000
"""What the Files port lists at most."""


class Outcome(StrEnum):
    FOUND = "found"
    NONE_YET = "none_yet"
    MISSING = "missing"


def run(context: StepContext) -> StepResult:
    """Fill `incident.checkpoint`. Starting over is fine only where the logs saved nothing either."""
    story = context.failure.story
    saved = story.progress.saved_steps if story else ()
    checkpoints, notes = list_checkpoints(context)
    incident = with_notes(replace(context.incident, checkpoints=checkpoints, checkpoint=None), *notes)
    uses = incident.plan.uses if incident.plan else ()
    changes = incident.num_nodes is not None or any(use.needs_reshard for use in uses)
    chosen = choose_checkpoint(checkpoints, world_size_changes=changes)
    failed = story.root_cause.step if story and story.root_cause else None
    if isinstance(chosen, Checkpoint) and failed is not None and chosen.step is not None and chosen.step > failed:
        conclusion = (
            f"The newest complete checkpoint, {chosen.path}, is of step {chosen.step}, beyond step {failed} where the "
            "job died: another run wrote it. Which one to resume from is left to a person."
        )
        return StepResult(Outcome.MISSING, replace(incident, conclusion=conclusion), conclusion)
    if isinstance(chosen, Checkpoint):
        torn = [checkpoint for checkpoint in checkpoints if not checkpoint.complete]
        skipped = f"; {len(torn)} torn left aside" if torn else ""
        return StepResult(
            Outcome.FOUND, replace(incident, checkpoint=chosen), f"step {chosen.step} in {chosen.path}{skipped}"
        )
    if context.incident.trigger == "files":
        # Nothing is submitted from files, so nothing can be overwritten: the person who submits has to look.
        sentence = f"no checkpoint was looked at ({chosen.unknown})"
        check = "Before you submit it: see that the patched template resumes from the last complete checkpoint."
        incident = replace(incident, to_do=tuple(dict.fromkeys((check, *incident.to_do))))
        return StepResult(Outcome.NONE_YET, with_notes(incident, sentence), sentence)
    made_progress = story is not None and story.progress.last_step is not None
    if saved or checkpoints or (notes and made_progress):
        conclusion = (
            f"No checkpoint can be resumed from ({chosen.unknown}), although "
            + (
                f"the log says that step {max(saved)} was saved"
                if saved
                else "checkpoint folders are there"
                if checkpoints
                else f"the job made progress: {'; '.join(notes)}"
            )
            + ". Starting over could overwrite them, so it is left to a person."
        )
        return StepResult(Outcome.MISSING, replace(incident, conclusion=conclusion), conclusion)
    sentence = f"no checkpoint was written yet ({chosen.unknown}); the job starts as it did the first time"
    return StepResult(Outcome.NONE_YET, with_notes(incident, sentence), sentence)


def list_checkpoints(context: StepContext) -> tuple[tuple[Checkpoint, ...], tuple[str, ...]]:
    """All checkpoints under the folders that the template names, newest first, and what could not be read."""
    folders, notes = _folders(context)
    owner = context.failure.job.owner
    found: list[Checkpoint] = []
    for folder in folders:
        try:
            entries = context.ports.files.entries(folder, owner, depth=2)
            wanted = wanted_small_files(entries)
            small = {path: context.ports.files.read_small(path, owner, SMALL_FILE_BYTES) for path in wanted}
        except NotFound:
            continue
        except NotAllowed as error:
            notes.append(f"{folder}: {error.what}")
            continue
        if len(entries) >= MOST_ENTRIES:
            # What lies beyond the limit could be the newest of them: nothing is chosen from a part.
            notes.append(f"{folder} holds more than {MOST_ENTRIES:,} files, so not every checkpoint was seen")
            continue
        found.extend(judge_checkpoints(entries, small))
    found.sort(key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0), reverse=True)
    return tuple(found), tuple(notes)


def _folders(context: StepContext) -> tuple[list[str], list[str]]:
    """Folders of the parameters that the lever document calls checkpoint folders, made absolute."""
    system = system_of(context)
    if system is None:
        return [], ["the framework is not known, so neither is its checkpoint folder"]
    folders: list[str] = []
    notes: list[str] = []
    for setting in settings_in_force(context):
        if setting.parameter not in system.checkpoint_parameters:
            continue
        if setting.value is None:
            notes.append(f"{setting.spelling} is not known: {setting.unresolved}")
            continue
        folders.append(_absolute(setting, context.failure.job))
    return list(dict.fromkeys(folders)), notes


def _absolute(setting: Setting, job: JobRecord) -> str:
    return posixpath.normpath(posixpath.join(job.work_dir or "/", setting.value or ""))
