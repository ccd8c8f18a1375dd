"""Would the relaunched job go on, or start over without a word? Judged before it is submitted."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runbook.model.checkpoint import Checkpoint
from runbook.model.template import Edit, Setting
from runbook.remedy.checkpoint_rules import FolderRule, MovingName, Obstacle
from runbook.remedy.resume import resume_edits
from runbook.remedy.settings_told import Line, Told
from runbook.remedy.situation import Refusal

_MOVING = re.compile(
    r"[(`]\s*(?:date|uuidgen|mktemp)\b|\bnow:%|\bSLURM_(?:JOB_?ID|ARRAY_\w+|RESTART_COUNT|STEP_?ID)\b"
    r"|\b(?:RANDOM|EPOCHSECONDS|EPOCHREALTIME|SRANDOM|SECONDS|BASHPID|TIMESTAMP)\b|\$\$"
)
"""What the reader of templates says it could not follow, where that is another one each time."""
_MOVING_VALUE = re.compile(r"\$\{now:|\$\(|`")
"""The same in a value that was read: Hydra's and OmegaConf's own time, a command that nobody ran."""
_CHANGES_FOLDER = re.compile(r"^\s*(?:cd|pushd)\s+(?P<to>\S[^;&|#]{0,200})|\bhydra\.job\.chdir=(?P<hydra>[Tt]rue)\b")
_STAYS = re.compile(r"""^["']?\$\{?SLURM_SUBMIT_DIR\}?["']?\s*$""")


@dataclass(frozen=True, slots=True)
class ResumeFindings:
    """What a person is told, what stops the relaunch, and what is changed beside the resume flags."""

    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    edits: tuple[Edit, ...] = ()
    to_do: tuple[str, ...] = ()


def resume_findings(told: Told, checkpoint: Checkpoint | None, *, made_steps: bool | None) -> ResumeFindings:
    """`made_steps`: whether the job that died had finished any step; None when that is not known. One that had not
    loses nothing by starting over, so then nothing is refused."""
    rules = told.system.checkpoint
    notes: list[str] = []
    to_do: list[str] = []
    refusals: list[Refusal] = []
    edits: list[Edit] = []
    hindered = [*_moving(told, checkpoint)]
    if checkpoint is None:
        hindered += [_obstacle(told, item) for item in rules.never_saves if told.holds(item)]
        notes += [
            f"what {told.named(item.parameter)} is, is not known, and so neither whether the job saves: {item.why}"
            for item in rules.never_saves
            if told.holds(item) is None
        ]
        if made_steps is False:
            notes += [item.why for item in hindered]
            to_do += [item.question for item in hindered]
        else:
            refusals += hindered
        return ResumeFindings(_once(notes), tuple(refusals), (), _once(to_do))
    refusals += hindered
    refusals += [_obstacle(told, item) for item in rules.downgrades if told.holds(item)]
    notes += [
        f"whether {told.named(item.parameter)} stands in the way is not known: {item.why}"
        for item in rules.downgrades
        if told.holds(item) is None
    ]
    notes += [
        f"nothing newer will be saved: {item.why}" for item in rules.never_saves if told.holds(item)
    ]
    notes += [_rotation(told, item, checkpoint) for item in rules.rotates if told.holds(item)]
    if rules.only_latest and checkpoint.latest is False:
        refusals.append(Refusal(
            f"{told.system.title} loads only what its tracker names, which is not {checkpoint.path}",
            f"May the tracker beside {checkpoint.path} be set back to it? Another process could be writing there.",
        ))
    refusals += _unknown_options(told, checkpoint)
    for change in rules.adjust:
        if told.holds(change):
            edits.append(told.edit(change.parameter, change.set))
            notes.append(f"{told.named(change.parameter)} is set to {change.set or 'nothing'}: {change.why}")
    if rules.copy_first:
        notes.append(rules.copy_first)
        to_do.append(f"Before the relaunch, copy {checkpoint.path}: it is the only checkpoint, and is written over.")
    if rules.caution:
        notes.append(rules.caution)
    return ResumeFindings(_once(notes), tuple(refusals), tuple(edits), _once(to_do))


def _rotation(told: Told, rule: Obstacle, checkpoint: Checkpoint) -> str:
    setting = told.setting(rule.parameter)
    value = f" = {setting.value}" if setting is not None and setting.value is not None else ""
    return (
        f"{told.named(rule.parameter)}{value}: {rule.why} Once the relaunched job saves, {checkpoint.path} "
        "can be deleted; copy it where it is to be kept."
    )


def _obstacle(told: Told, rule: Obstacle) -> Refusal:
    setting = told.setting(rule.parameter)
    shown = told.place(setting) if setting is not None else f"{told.named(rule.parameter)} (not in the template)"
    value = f" = {setting.value}" if setting is not None and setting.value not in (None, "true") else ""
    return Refusal(
        f"{shown}{value}: {rule.why}",
        rule.question or f"{rule.why} May the job start again with {told.named(rule.parameter)} as it is? If not, "
        "change it in the template and submit the job anew.",
    )


def _unknown_options(told: Told, checkpoint: Checkpoint) -> Iterator[Refusal]:
    """Options that would have to be added to a program that may not know them."""
    for edit in resume_edits(told.settings, checkpoint, system=told.system, templates=told.templates):
        entry = told.system.parameter(edit.parameter)
        if edit.new is not None and not entry.addable and told.setting(edit.parameter) is None:
            yield Refusal(
                f"the template has no option by which the program goes on from a checkpoint (such as "
                f"{entry.spellings[0]}), so the relaunch would start from scratch",
                f"By which option does the program load {checkpoint.path}? Write it into the template.",
            )


def _moving(told: Told, checkpoint: Checkpoint | None) -> Iterator[Refusal]:
    """Folders that are another one in each submission, or in each working folder."""
    repaired = (
        {rule.parameter for rule in told.system.checkpoint.resume if rule.value in ("parent", "path")}
        if checkpoint is not None
        else set()
    )
    changes = next(iter(_folder_changes(told)), None)
    for rule in told.system.checkpoint.moving_names:
        if rule.unless and told.setting(rule.unless) is not None:
            continue
        if rule.parameter in repaired:
            continue
        setting = told.setting(rule.parameter)
        if setting is None:
            continue
        reason = _moves(setting, rule, changes)
        if reason:
            yield Refusal(
                f"{told.place(setting)}: {reason}, so the relaunch would neither find the checkpoints of the job that "
                "died nor write to their folder",
                f"Which folder did the job write its checkpoints to{_number(told, setting)}? Write it into "
                f"{told.place(setting)} as plain text, an absolute path, and submit that.",
            )


def _moves(setting: Setting, rule: MovingName, changes: Line | None) -> str:
    if setting.value is None:
        moves = _MOVING.search(setting.unresolved)
        return f"it is another one in each submission ({setting.unresolved})" if moves else ""
    if _MOVING_VALUE.search(setting.value):
        return f"it is another one in each submission ({setting.value[:120]})"
    if not rule.relative or not setting.value or changes is None:
        return ""
    if posixpath.isabs(setting.value) or "://" in setting.value or setting.value.startswith(("$", "~")):
        return ""
    where = f"{changes.place}: {changes.text.strip()[:80]}"
    return f"{setting.value[:120]} is relative, and the job changes its folder ({where})"


def _number(told: Told, setting: Setting) -> str:
    """What the job's number was, where the folder is named after it."""
    return f" (its SLURM_JOB_ID was {told.job})" if told.job and "SLURM_JOB" in setting.unresolved else ""


def _folder_changes(told: Told) -> Iterator[Line]:
    """Live lines that change the folder in which the program runs to another than that of the submission."""
    for line in told.lines():
        match = _CHANGES_FOLDER.search(line.text) if not line.directive and line.number else None
        if match is None:
            continue
        to = match["to"]
        if to is not None and (_STAYS.match(to) or to.strip().strip("\"'").rstrip("/") == told.work_dir.rstrip("/")):
            continue
        yield line


def checkpoint_folders(told: Told) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where checkpoints are to be looked for, as the template has it, and what is not known about it."""
    rules = told.system.checkpoint
    folders: list[str] = []
    notes: list[str] = []
    for setting in told.settings:
        if setting.parameter not in rules.parameters:
            continue
        if setting.value is None:
            notes.append(f"{told.place(setting)} is not known: {setting.unresolved}")
        elif setting.value:
            folders.append(setting.value)
    for rule in rules.folders:
        if rule.unless and told.setting(rule.unless) is not None:
            continue
        if rule.where and told.matching(rule.where) is None:
            continue
        path = _filled(told, rule, notes)
        if path:
            folders.append(path)
    joined = [posixpath.normpath(posixpath.join(told.work_dir or "/", folder)) for folder in folders]
    return tuple(dict.fromkeys(joined)), _once(notes)


def _filled(told: Told, rule: FolderRule, notes: list[str]) -> str:
    values: dict[str, str] = {"user": told.owner}
    for parameter in rule.parameters:
        setting = told.setting(parameter)
        value = setting.value if setting is not None else told.default(parameter)
        if value is None:
            why = setting.unresolved if setting is not None else "the template does not set it"
            notes.append(f"{told.named(parameter)}, a part of the checkpoint folder, is not known: {why}")
            return ""
        values[parameter] = value
    return rule.path.format(**values)


def _once(texts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
