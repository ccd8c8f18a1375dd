"""Find the last complete checkpoint that the next attempt can resume from."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.checkpoints import SMALL_FILE_BYTES, choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.errors import NotAllowed, NotFound
from runbook.model.checkpoint import Checkpoint
from runbook.model.incident import Incident
from runbook.model.log import LogStory, Phase
from runbook.remedy import ResumeFindings, checkpoint_folders, find_restarters, resume_findings
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.base import StepContext, StepResult, with_notes

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
    incident, stopped = _hindered(context, incident, chosen if isinstance(chosen, Checkpoint) else None)
    if stopped:
        return StepResult(Outcome.MISSING, replace(incident, conclusion=stopped), stopped)
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
    told = context.template.told
    if told is None:
        return (), ("the framework is not known, so neither is its checkpoint folder",)
    folders, unknown = checkpoint_folders(told)
    notes = [*map(in_words, unknown)]
    owner = context.failure.job.owner
    found: dict[str, Checkpoint] = {}
    for folder in folders:
        try:
            entries = context.ports.files.entries(folder, owner, told.system.checkpoint.depth)
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
        found |= {checkpoint.path: checkpoint for checkpoint in judge_checkpoints(entries, small)}
    newest_first = sorted(
        found.values(), key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0), reverse=True
    )
    return tuple(newest_first), tuple(notes)


def _hindered(context: StepContext, incident: Incident, chosen: Checkpoint | None) -> tuple[Incident, str]:
    """The incident with what has to be known of resuming and restarting, and why it cannot be relaunched, or ""."""
    told = context.template.told
    if told is None:
        return incident, ""
    findings = resume_findings(told, chosen, made_steps=_made_steps(context.failure.story, incident))
    restarters = find_restarters(told, context.playbook.restarters)
    incident = with_notes(incident, *map(in_words, (*findings.notes, *restarters.notes)))
    to_do = tuple(map(in_words, (*findings.to_do, *restarters.to_do)))
    stopped = _stopped(findings)
    if findings.refusals and incident.trigger == "files":
        # Nothing is submitted from files: the person who submits has to decide.
        to_do = (*(in_words(refusal.question) for refusal in findings.refusals), *to_do)
        incident, stopped = with_notes(incident, *(in_words(refusal.why) for refusal in findings.refusals)), ""
    elif findings.refusals:
        to_do = (*(in_words(refusal.question) for refusal in findings.refusals), *to_do)
    return replace(incident, to_do=tuple(dict.fromkeys((*to_do, *incident.to_do)))), stopped


def before_relaunch(context: StepContext) -> tuple[str, ...]:
    """What a person was told to do before the relaunch: once it is submitted it is out of date."""
    told = context.template.told
    if told is None:
        return ()
    findings = resume_findings(told, context.incident.checkpoint, made_steps=False)
    return tuple(map(in_words, (*findings.to_do, *find_restarters(told, context.playbook.restarters).to_do)))


def _stopped(findings: ResumeFindings) -> str:
    if not findings.refusals:
        return ""
    reasons = "; ".join(in_words(refusal.why) for refusal in findings.refusals).rstrip(".")
    return f"The relaunch would not go on from where the job was: {reasons}. It is left to a person."


def _made_steps(story: LogStory | None, incident: Incident) -> bool | None:
    """Whether the job had finished a step, so that starting over would lose something; None: not known."""
    if incident.checkpoints:
        return True
    if story is None:
        return None
    progress, cause = story.progress, story.root_cause
    if progress.saved_steps or progress.resumed_from_step:
        return True
    if progress.last_step is not None:
        return progress.last_step >= max(progress.numbered_from, 1)
    starting = cause is not None and cause.phase in (Phase.INIT, Phase.RESUME)
    if cause is not None and (starting or (cause.step is not None and cause.step <= 1)):
        return False
    return None
