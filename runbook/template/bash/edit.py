"""Edits of a job script as replaced byte ranges, refused where they could change anything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.template import Edit, ParameterNames, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash.change import change_value, remove
from runbook.template.bash.commands import launches
from runbook.template.bash.find import in_force, written_at
from runbook.template.bash.insert import insert, note_of
from runbook.template.bash.overrides import alike
from runbook.template.bash.script import Script, read_script
from runbook.template.bash.syntax import broken_nodes, line_of, parse
from runbook.template.bash.words import Quote, text_of
from runbook.template.errors import CannotEdit
from runbook.template.splices import Change, to_bytes


@dataclass(frozen=True, slots=True)
class Edited:
    """What is to be replaced, and remarks for the person."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def names_of(edit: Edit) -> ParameterNames:
    return ParameterNames(edit.parameter, edit.kind, edit.spellings, edit.flag)


def wanted_value(edit: Edit) -> str | None:
    """None for what is to be absent: a bare option that is off. A key is `false` and not absent."""
    return None if edit.flag and edit.new == "false" and edit.kind is not SettingKind.KEY else edit.new


def plan_changes(script: Script, edits: Sequence[Edit]) -> Edited:
    """Every edit as changes of this script. Raises `CannotEdit`."""
    changes: list[Change] = []
    notes: list[str] = []
    for edit in edits:
        made, remarks = _one(script, edit)
        changes += made
        notes += remarks
    if changes:
        _refuse_broken(script, changes)
        notes += [
            f"{script.file.path}:{hazard.line}: {hazard.what}; the change does not touch it"
            for hazard in script.hazards
        ]
    return Edited(tuple(dict.fromkeys(changes)), tuple(dict.fromkeys(note for note in notes if note)))


def _one(script: Script, edit: Edit) -> tuple[list[Change], list[str]]:
    name = next((item for item in script.names if item.parameter == edit.parameter), names_of(edit))
    occurrences, problem = in_force(script, name)
    line = written_at(script, occurrences[0]) if occurrences else 1
    where = f"{script.file.path}:{line}"
    if problem:
        _refuse_hazards(script)
        broken = next((hazard for hazard in script.hazards), None)
        if broken is not None:
            problem = f"{problem}; and at line {broken.line} {broken.what}"
        raise CannotEdit(
            f"{edit.spellings[0]} cannot be set safely: {problem}",
            where=where, next_step=f"set {edit.spellings[0]} to {edit.new} by hand, or write it as plain text",
        )
    wanted = wanted_value(edit)
    if not occurrences:
        if wanted is None:
            return [], []
        note = note_of(script, edit)
        return insert(script, edit), [f"{script.file.path}: {note}"] if note else []
    present = text_of(occurrences[0].value)
    if alike(edit.kind, present, wanted):
        return [], []
    if edit.old is not None and not alike(edit.kind, present, edit.old):
        raise CannotEdit(
            f"{occurrences[0].spelling} is {present}, but the change was planned for {edit.old}",
            where=where, next_step="plan again from the present template",
        )
    if wanted is None:
        return [remove(script, edit, item) for item in occurrences], []
    changes, notes = [], []
    for item in occurrences:
        if item.option is not None and item.quote is Quote.NOWHERE and item.option.text == item.spelling:
            raise CannotEdit(
                f"{item.spelling} stands without a value", where=where, next_step="change it by hand",
            )
        change, note = change_value(script, item, wanted)
        changes.append(change)
        notes.append(f"{script.file.path}: {note}" if note else "")
    return changes, notes


def _refuse_broken(script: Script, changes: Sequence[Change]) -> None:
    """Refuse where a hazard makes the whole file doubtful, or where the syntax near a change is not understood."""
    _refuse_hazards(script)
    root = parse(script.data)
    for statement in root.children:
        if not statement.has_error and not statement.is_error:
            continue
        for change in changes:
            if statement.start_byte <= change.start <= statement.end_byte:
                raise CannotEdit(
                    "the shell syntax around the place of the change is not understood",
                    where=f"{script.file.path}:{line_of(script.data, change.start)}",
                    next_step="check the script with `bash -n`, simplify that statement, then try again",
                )


def _refuse_hazards(script: Script) -> None:
    for hazard in script.hazards:
        if hazard.blocks:
            raise CannotEdit(
                f"the script is not what it looks like: {hazard.what}",
                where=f"{script.file.path}:{hazard.line}", next_step="mend that line, then try again",
            )


def check_result(
    before: Script, after: TemplateFile, edits: Sequence[Edit], names: Sequence[ParameterNames],
    known: SubmitContext | None, above: Sequence[Script] = (),
) -> None:
    """Read the patched text again: every edit is in force, nothing else moved, the syntax is no worse."""
    script = read_script(after, names, known, above)
    broken = sum(1 for _ in broken_nodes(parse(to_bytes(after.text))))
    if broken > sum(1 for _ in broken_nodes(parse(before.data))) or len(script.hazards) > len(before.hazards):
        raise CannotEdit(
            "the changed script would not be understood", where=f"{after.path}:1",
            next_step="make the change by hand",
        )
    edited = {edit.parameter for edit in edits}
    for edit in edits:
        name = next((item for item in names if item.parameter == edit.parameter), names_of(edit))
        occurrences, problem = in_force(script, name)
        wanted = wanted_value(edit)
        present = text_of(occurrences[0].value) if occurrences else None
        if problem or not alike(edit.kind, present, wanted):
            raise CannotEdit(
                f"after the change {edit.spellings[0]} would be {present} and not {wanted}"
                + (f": {problem}" if problem else ""),
                where=f"{after.path}:{occurrences[0].line if occurrences else 1}", next_step="make the change by hand",
            )
        line = _elsewhere(before, script, name)
        if line:
            raise CannotEdit(
                f"the change would also change {edit.spellings[0]} of another program, at line {line}",
                where=f"{after.path}:{line}",
                next_step=f"write {edit.spellings[0]} on the command of each program, then try again",
            )
    for name in names:
        if name.parameter in edited:
            continue
        old, new = in_force(before, name), in_force(script, name)
        if [text_of(item.value) for item in old[0]] != [text_of(item.value) for item in new[0]]:
            raise CannotEdit(
                f"the change would also change {name.spellings[0]}", where=f"{after.path}:1",
                next_step="make the change by hand",
            )


def _elsewhere(before: Script, after: Script, name: ParameterNames) -> int:
    """The line of a program beside the training whose value of this parameter is another one now; 0: none."""
    if name.program or not name.training_program or not before.training:
        return 0
    if len(before.walker.commands) != len(after.walker.commands):
        return 0
    for index, command in enumerate(before.walker.commands):
        if command in before.training or not launches(command):
            continue
        old, new = (script.found[index].get(name.parameter, []) for script in (before, after))
        if [text_of(item.value) for item in old] != [text_of(item.value) for item in new]:
            return command.line
    return 0
