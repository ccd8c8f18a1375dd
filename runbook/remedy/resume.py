"""How a template goes on from a checkpoint, whether it would, who else starts the job again, and whether it did go
on.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbook.model.checkpoint import Checkpoint
from runbook.model.log import Progress
from runbook.model.sentences import NOTHING, Sentence, as_written
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Edit, Setting, TemplateFile
from runbook.remedy.checkpoint_rules import FolderRule, MovingName, Obstacle, Restarter, ResumeRule
from runbook.remedy.lever_document import LeverDocument
from runbook.remedy.recognition import first_uncommented_match
from runbook.remedy.template_settings import Refusal, TemplateSettings, UncommentedLine

# What makes a template go on from a checkpoint.

def resume_edits(template: TemplateSettings, checkpoint: Checkpoint) -> tuple[Edit, ...]:
    """The edits of the document's resume rules that are not in force already.

    A value that cannot be read from the template gives an edit too: applying it is then refused with the reason,
    for a job that does not resume starts from scratch without a word.
    """
    edits = []
    for parameter, rules in _by_parameter(template.system, checkpoint).items():
        rule = next((item for item in rules if _applies(item, checkpoint)), None)
        present = template.setting(parameter)
        wanted = _wanted(rule, checkpoint) if rule is not None else None
        if present is None and (wanted in (None, template.default(parameter)) or not template.exists(parameter)):
            continue
        if present is not None and rule is not None and _same(present.value, wanted, rule):
            continue
        edits.append(template.edit(parameter, wanted))
    return tuple(edits)


def _by_parameter(system: LeverDocument, checkpoint: Checkpoint) -> dict[str, list[ResumeRule]]:
    """The rules for a checkpoint of this format. One that is for other formats only says nothing here."""
    found: dict[str, list[ResumeRule]] = {}
    for rule in system.checkpoint.resume:
        if not rule.formats or checkpoint.format in rule.formats:
            found.setdefault(rule.parameter, []).append(rule)
    return found


def _applies(rule: ResumeRule, checkpoint: Checkpoint) -> bool:
    not_the_latest = checkpoint.latest is False
    return rule.when == "always" or (rule.when == "not_the_latest") is not_the_latest


def _wanted(rule: ResumeRule, checkpoint: Checkpoint) -> str | None:
    """None: the parameter has no place there, and is taken out if it is set."""
    if rule.text is not None or rule.value is None:
        return rule.text
    values = {
        "parent": posixpath.dirname(checkpoint.path),
        "path": checkpoint.path,
        "name": posixpath.basename(checkpoint.path),
        "step": str(checkpoint.step) if checkpoint.step is not None else None,
        "true": "true",
    }
    return values[rule.value]


def _same(present: str | None, wanted: str | None, rule: ResumeRule) -> bool:
    if present is not None and present.casefold() in {item.casefold() for item in rule.accepts}:
        return True
    if present is not None and rule.text is not None and rule.value is None:
        return present.casefold() == rule.text.casefold()
    if present is None or wanted is None or rule.value not in ("parent", "path"):
        return present == wanted and present is not None
    if posixpath.isabs(present):
        return posixpath.normpath(present) == posixpath.normpath(wanted)
    # A relative path is meant from the job's own folder: the wanted one ends with it.
    tail = posixpath.normpath(present)
    return not tail.startswith("..") and f"{posixpath.normpath(wanted)}/".endswith(f"/{tail}/")


# Would the relaunched job go on, or start over without a word? Judged before it is submitted.

_MOVING = re.compile(
    r"[(`]\s*(?:date|uuidgen|mktemp)\b|\bnow:%|\bSLURM_(?:JOB_?ID|ARRAY_\w+|RESTART_COUNT|STEP_?ID)\b"
    r"|\b(?:RANDOM|EPOCHSECONDS|EPOCHREALTIME|SRANDOM|SECONDS|BASHPID|TIMESTAMP)\b|\$\$"
)
"""Code of a template that gives another value each time."""
_MOVING_VALUE = re.compile(r"\$\{now:|\$\(|`")
"""The same in a value that was read: Hydra's and OmegaConf's own time, a command that nobody ran."""
_CHANGES_FOLDER = re.compile(r"^\s*(?:cd|pushd)\s+(?P<to>\S[^;&|#]{0,200})|\bhydra\.job\.chdir=(?P<hydra>[Tt]rue)\b")
_STAYS = re.compile(r"""^["']?\$\{?SLURM_SUBMIT_DIR\}?["']?\s*$""")


@dataclass(frozen=True, slots=True)
class ResumeFindings:
    """What a person is told, what stops the relaunch, and what is changed beside the resume flags."""

    notes: tuple[Sentence, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    edits: tuple[Edit, ...] = ()
    to_do: tuple[Sentence, ...] = ()


def resume_findings(
    template: TemplateSettings, checkpoint: Checkpoint | None, *, made_steps: bool | None
) -> ResumeFindings:
    """`made_steps`: whether the job that died had finished any step; None when that is not known. One that had not
    loses nothing by starting over, so then nothing is refused."""
    rules = template.system.checkpoint
    notes: list[Sentence] = []
    to_do: list[Sentence] = []
    refusals: list[Refusal] = []
    edits: list[Edit] = []
    hindered = [*_moving(template, checkpoint)]
    if checkpoint is None:
        hindered += [_obstacle(template, item) for item in rules.never_saves if template.holds(item)]
        notes += [
            Say.WHETHER_IT_SAVES_NOT_KNOWN(named=template.named(item.parameter), why=item.why)
            for item in rules.never_saves
            if template.holds(item) is None
        ]
        if made_steps is False:
            notes += [item.why for item in hindered]
            to_do += [item.question for item in hindered]
        else:
            refusals += hindered
        return ResumeFindings(_once(notes), tuple(refusals), (), _once(to_do))
    refusals += hindered
    refusals += [_obstacle(template, item) for item in rules.downgrades if template.holds(item)]
    notes += [
        Say.MAY_STAND_IN_THE_WAY(named=template.named(item.parameter), why=item.why)
        for item in rules.downgrades
        if template.holds(item) is None
    ]
    notes += [Say.NOTHING_NEWER_WILL_BE_SAVED(why=item.why) for item in rules.never_saves if template.holds(item)]
    notes += [_rotation(template, item, checkpoint) for item in rules.rotates if template.holds(item)]
    if rules.only_latest and checkpoint.latest is False:
        refusals.append(Refusal(
            Say.LOADS_ONLY_WHAT_TRACKER_NAMES(title=template.system.title, path=checkpoint.path),
            Say.MAY_TRACKER_BE_SET_BACK(path=checkpoint.path),
        ))
    refusals += _unknown_options(template, checkpoint)
    for change in rules.adjust:
        if template.holds(change):
            edits.append(template.edit(change.parameter, change.set))
            notes.append(
                Say.IS_SET_TO(named=template.named(change.parameter), set=change.set or "nothing", why=change.why)
            )
    if rules.copy_first:
        notes.append(as_written(rules.copy_first))
        to_do.append(Say.COPY_THE_ONLY_CHECKPOINT(path=checkpoint.path))
    if rules.caution:
        notes.append(as_written(rules.caution))
    return ResumeFindings(_once(notes), tuple(refusals), tuple(edits), _once(to_do))


def _rotation(template: TemplateSettings, rule: Obstacle, checkpoint: Checkpoint) -> Sentence:
    setting = template.setting(rule.parameter)
    value = f" = {setting.value}" if setting is not None and setting.value is not None else ""
    return (
        Say.CHECKPOINT_CAN_BE_DELETED_LATER(
            named=template.named(rule.parameter), value=value, why=rule.why, path=checkpoint.path
        )
    )


def _obstacle(template: TemplateSettings, rule: Obstacle) -> Refusal:
    setting = template.setting(rule.parameter)
    named = template.named(rule.parameter)
    shown = named if setting is not None else Say.NAMED_NOT_IN_TEMPLATE(named=named)
    value = f" = {setting.value}" if setting is not None and setting.value not in (None, "true") else ""
    return Refusal(
        Say.STANDS_AND_SO(shown=shown, value=value, why=rule.why),
        as_written(rule.question) or Say.MAY_JOB_START_AGAIN_WITH_IT(why=rule.why, named=named)
    )


def _unknown_options(template: TemplateSettings, checkpoint: Checkpoint) -> Iterator[Refusal]:
    """Options that would have to be added to a program that may not know them."""
    for edit in resume_edits(template, checkpoint):
        entry = template.system.parameter(edit.parameter)
        if edit.new is not None and not entry.addable and template.setting(edit.parameter) is None:
            yield Refusal(
                Say.NO_OPTION_TO_GO_ON(spelling=entry.spellings[0]),
                Say.WHICH_OPTION_LOADS_CHECKPOINT(path=checkpoint.path)
            )


def _moving(template: TemplateSettings, checkpoint: Checkpoint | None) -> Iterator[Refusal]:
    """Folders that are another one in each submission, or in each working folder."""
    repaired = (
        {rule.parameter for rule in template.system.checkpoint.resume if rule.value in ("parent", "path")}
        if checkpoint is not None
        else set()
    )
    changes = next(iter(_folder_changes(template)), None)
    for rule in template.system.checkpoint.moving_names:
        if rule.unless and template.setting(rule.unless) is not None:
            continue
        if rule.parameter in repaired:
            continue
        setting = template.setting(rule.parameter)
        if setting is None:
            continue
        reason = _moves(setting, rule, changes)
        if reason:
            yield Refusal(
                Say.FOLDER_WOULD_MOVE(place=template.place(setting), reason=reason),
                Say.WHICH_FOLDER_HAS_CHECKPOINTS(number=_number(template, setting), place=template.place(setting))
            )


def _moves(setting: Setting, rule: MovingName, changes: UncommentedLine | None) -> Sentence:
    if setting.value is None:
        moves = setting.unresolved is not None and _MOVING.search(setting.unresolved.code)
        return Say.ANOTHER_IN_EACH_SUBMISSION(value=setting.unresolved) if moves else NOTHING
    if _MOVING_VALUE.search(setting.value):
        return Say.ANOTHER_IN_EACH_SUBMISSION(value=setting.value[:120])
    if not rule.relative or not setting.value or changes is None:
        return NOTHING
    if posixpath.isabs(setting.value) or "://" in setting.value or setting.value.startswith(("$", "~")):
        return NOTHING
    where = f"{changes.place}: {changes.text.strip()[:80]}"
    return Say.RELATIVE_AND_FOLDER_CHANGES(value=setting.value[:120], where=where)


def _number(template: TemplateSettings, setting: Setting) -> Sentence:
    """What the job's number was, where the folder is named after it."""
    job = template.job.id
    after_job = setting.unresolved is not None and "SLURM_JOB" in setting.unresolved.code
    return Say.ITS_JOB_ID_WAS(job=job) if job and after_job else NOTHING


def _folder_changes(template: TemplateSettings) -> Iterator[UncommentedLine]:
    """Live lines that change the folder in which the program runs to another than that of the submission."""
    submitted_in = template.job.work_dir.rstrip("/")
    for line in template.lines():
        match = _CHANGES_FOLDER.search(line.text) if not line.directive and line.number else None
        if match is None:
            continue
        to = match["to"]
        if to is not None and (_STAYS.match(to) or to.strip().strip("\"'").rstrip("/") == submitted_in):
            continue
        yield line


def checkpoint_folders(template: TemplateSettings) -> tuple[tuple[str, ...], tuple[Sentence, ...]]:
    """Where checkpoints are to be looked for, as the template has it, and what is not known about it."""
    rules = template.system.checkpoint
    folders: list[str] = []
    notes: list[Sentence] = []
    for setting in template.settings:
        if setting.parameter not in rules.parameters:
            continue
        if setting.value is None:
            notes.append(Say.NOT_KNOWN_BECAUSE(spelling=template.place(setting), why=setting.unresolved))
        elif setting.value:
            folders.append(setting.value)
    for rule in rules.folders:
        if rule.unless and template.setting(rule.unless) is not None:
            continue
        if rule.where and template.matching(rule.where) is None:
            continue
        path = _filled(template, rule, notes)
        if path:
            folders.append(path)
    joined = [posixpath.normpath(posixpath.join(template.job.work_dir or "/", folder)) for folder in folders]
    return tuple(dict.fromkeys(joined)), _once(notes)


def _filled(template: TemplateSettings, rule: FolderRule, notes: list[Sentence]) -> str:
    values: dict[str, str] = {"user": template.job.owner}
    for parameter in rule.parameters:
        setting = template.setting(parameter)
        value = setting.value if setting is not None else template.certain_default(parameter)
        if value is None:
            why = setting.unresolved if setting is not None else Say.TEMPLATE_DOES_NOT_SET()
            notes.append(Say.PART_OF_FOLDER_NOT_KNOWN(named=template.named(parameter), why=why))
            return ""
        values[parameter] = value
    return rule.path.format(**values)


def _once(texts: list[Sentence]) -> tuple[Sentence, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


# Whatever else starts the job again beside this tool: noticed in the template, with what the plan does about it.

@dataclass(frozen=True, slots=True)
class RestarterFindings:
    """What a person is told of them, what is changed for the relaunch, and what is left to look at."""

    notes: tuple[Sentence, ...] = ()
    edits: tuple[Edit, ...] = ()
    to_do: tuple[Sentence, ...] = ()


def find_restarters(template: TemplateSettings, common: Sequence[Restarter] = ()) -> RestarterFindings:
    """The restarters of the system and those that every system can have."""
    notes: list[Sentence] = []
    edits: list[Edit] = []
    to_do: list[Sentence] = []
    for restarter in (*template.system.restarters, *common):
        place = _place(template, restarter)
        if place is None:
            continue
        notes.append(Say.STARTS_AGAIN(title=restarter.title, place=place, what_happens=restarter.what_happens))
        if restarter.to_do:
            to_do.append(as_written(restarter.to_do))
        if restarter.set is not None and restarter.condition is not None:
            edits.append(template.edit(restarter.condition.parameter, restarter.set))
    return RestarterFindings(tuple(dict.fromkeys(notes)), tuple(edits), tuple(dict.fromkeys(to_do)))


def submitted_by_another(script: TemplateFile, common: Sequence[Restarter]) -> tuple[Restarter, str] | None:
    """The program whose job this is to submit, and where the script says so; None: it is its owner's."""
    for restarter in common:
        found = None if restarter.relaunched else first_uncommented_match(restarter.pattern, (script,))
        if found is not None:
            return restarter, f"{script.path}:{found[2]}"
    return None


def _place(template: TemplateSettings, restarter: Restarter) -> str | Sentence | None:
    """Where it is seen; None when it is not there."""
    if restarter.condition is not None:
        # A value that is not known may be one that restarts: it is told, and set where the rule sets one.
        if template.holds(restarter.condition) is False:
            return None
        parameter = restarter.condition.parameter
        return template.named(parameter) if template.is_set(parameter) else Say.NOT_SET(shown=template.named(parameter))
    compiled = re.compile(restarter.pattern)
    line = next((line for line in template.lines() if compiled.search(line.text)), None)
    return line.place if line is not None else None


# Did the relaunched job go on from its checkpoint? Told from what its log says.

TOLERANCE = 1
"""Programs number the step that a checkpoint was written after, or the one that comes next."""


SKIPPED_BELOW = 0.3
"""Steps that take less than this share of the usual time may be batches that are skipped."""


class ResumeKind(StrEnum):
    RESUMED = "resumed"
    FROM_SCRATCH = "from_scratch"
    ELSEWHERE = "elsewhere"
    """It went on from a step, but from another one."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the log proves, in a sentence."""

    kind: ResumeKind
    why: Sentence


def resume_proof(progress: Progress, checkpoint: Checkpoint, usual_step_s: float | None = None) -> Resumed:
    """The line by which the program says where it begins decides; the steps that it prints afterwards can contradict.

    Steps alone prove a start from scratch only where the counter runs to a total beyond the checkpoint's step, so that
    it cannot be one that begins anew with each epoch, and where a step takes as long as it did (`usual_step_s`): a
    program that skips the batches that it has seen counts them too, much faster.
    """
    wanted, said, first = checkpoint.step, progress.resumed_from_step, progress.first_step
    if wanted is None:
        if progress.from_scratch:
            return Resumed(ResumeKind.FROM_SCRATCH, Say.STARTS_FROM_SCRATCH())
        return Resumed(ResumeKind.UNKNOWN, Say.CHECKPOINT_STEP_NOT_KNOWN())
    goes_on = first is not None and first > TOLERANCE and first >= wanted - TOLERANCE
    if said is not None and said > 0:
        if abs(said - wanted) <= TOLERANCE:
            return Resumed(ResumeKind.RESUMED, Say.GOES_ON_FROM(said=said))
        if goes_on and first is not None and first - wanted <= TOLERANCE:
            return Resumed(ResumeKind.RESUMED, Say.FIRST_STEP_AFTER_CHECKPOINT(first=first, wanted=wanted))
        # Weights of another model can be loaded from a checkpoint too: only the steps show that it was this one.
        if first is not None and said < first + TOLERANCE < wanted:
            why = Say.GOES_ON_FROM_ANOTHER(said=said, wanted=wanted, first=first)
            return Resumed(ResumeKind.ELSEWHERE, why)
    if goes_on:
        return Resumed(ResumeKind.RESUMED, Say.FIRST_STEP_AFTER_CHECKPOINT(first=first, wanted=wanted))
    if wanted <= TOLERANCE:
        return Resumed(ResumeKind.UNKNOWN, Say.CHECKPOINT_LIKE_FROM_SCRATCH(wanted=wanted))
    if progress.from_scratch or (said == 0 and first is not None and first <= TOLERANCE):
        return Resumed(ResumeKind.FROM_SCRATCH, Say.STARTS_FROM_SCRATCH_NOT_FROM(wanted=wanted))
    counts_all = progress.total_steps is not None and progress.total_steps > wanted
    took = progress.step_duration_s
    trains = took is not None and usual_step_s is not None and took >= SKIPPED_BELOW * usual_step_s
    if first is not None and counts_all and trains and first <= TOLERANCE:
        return Resumed(
            ResumeKind.FROM_SCRATCH,
            Say.FIRST_STEP_ALTHOUGH_CHECKPOINT(first=first, total_steps=progress.total_steps, wanted=wanted)
        )
    return Resumed(ResumeKind.UNKNOWN, Say.LOG_DOES_NOT_SHOW_IT_WENT_ON(wanted=wanted))
