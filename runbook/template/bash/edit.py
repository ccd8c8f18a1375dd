"""Edits of a job script as replaced byte ranges, refused where they could change anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.model.template import Edit, ParameterNames, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash import arguments, launchers
from runbook.template.bash.arguments import Occurrence, needs_no_quotes, quoted_as_there, same_value
from runbook.template.bash.insert import insert, note_of
from runbook.template.bash.launchers import starts_program
from runbook.template.bash.script import Script, occurrences_in_force, read_script, written_at
from runbook.template.bash.state import Quote, Token, Use, span_of, text_of
from runbook.template.bash.syntax import broken_nodes, parse
from runbook.template.text_files import (
    CannotEdit,
    Change,
    line_end,
    line_of,
    line_start,
    not_in_force,
    not_safely,
    to_bytes,
)

Alike = Mapping[str, set[tuple[int, int]]]
"""By new value: the places where parameters that get it take it from a variable."""


def change_value(
    script: Script, occurrence: Occurrence, new: str, alike: Alike | None = None, variable: str = ""
) -> tuple[Change, str]:
    """The one replacement that gives the parameter its new value, and a remark for the person ("" for none). A
    variable that serves only parameters which get the same value is changed itself, and so is `variable`."""
    where = f"{script.file.path}:{occurrence.line}"
    if occurrence.directive is not None:
        return _directive_value(script, occurrence, new, where)
    if occurrence.comma_ends and "," in new:
        raise CannotEdit(
            f"{occurrence.spelling} stands in a list of --export, where a comma ends a value; the new value has one",
            where=where,
            next_step=f"export {occurrence.spelling} in the script and name it in --export without a value",
        )
    beside = (alike or {}).get(new, set())
    new = _encoded(occurrence, new, where)
    value = occurrence.value
    chain = value[0].uses[occurrence.level :] if value else ()
    uniform = all(atom.uses[occurrence.level :] == chain for atom in value)
    outside = value[0].uses[: occurrence.level] if value else ()
    if value and uniform:
        depth = _deepest(script, chain, beside, variable)
        span = span_of(value)
        if depth == len(chain) and span is not None:
            text = quoted_as_there(new, value[0].quote, (*outside, *chain), where)
            remark = _remark(script, chain)
            return Change(*span, text), remark
        if depth == len(chain) and chain:
            depth -= 1
        if depth < len(chain) and chain[depth].start >= 0:
            use = chain[depth]
            quote = _quote_at(occurrence, use, depth)
            text = quoted_as_there(new, quote, (*outside, *chain[:depth]), where)
            return Change(use.start, use.end, text), _used_elsewhere(script, use)
    if occurrence.site[0] >= 0 and (occurrence.value_token is not None or not value or occurrence.option is None):
        if occurrence.quote is Quote.BARE:
            return Change(*occurrence.site, quoted_as_there(new, Quote.BARE, outside, where)), ""
        if needs_no_quotes(new):
            return Change(*occurrence.site, new.encode()), ""
    rest = _rest_of_word(occurrence)
    if rest is not None:
        return Change(*rest, quoted_as_there(new, Quote.BARE, outside, where)), ""
    raise CannotEdit(
        f"the value of {occurrence.spelling} is put together from several pieces",
        where=where, next_step=f"write the value of {occurrence.spelling} as one word, then try again",
    )


def _encoded(occurrence: Occurrence, new: str, where: str) -> str:
    """The value as what reads it after the shell wants it."""
    if occurrence.encoding == "json":
        return launchers.json_string_body(new)
    if not occurrence.encoding:
        return new
    text = arguments.spelled_like(text_of(occurrence.value), new)
    return arguments.hydra_value(text, where, inside_quotes=occurrence.encoding == "hydra, quoted")


def remove_value(script: Script, edit: Edit, occurrence: Occurrence) -> Change:
    """Take the parameter out."""
    where = f"{script.file.path}:{occurrence.line}"
    if occurrence.directive is not None:
        directive = occurrence.directive
        start, end = directive.start, directive.end
        if directive.alone:
            start = line_start(script.data, start)
            end = line_end(script.data, end) + 1
        return Change(start, min(end, len(script.data)), b"")
    if edit.kind is SettingKind.ENVIRONMENT:
        start = line_start(script.data, occurrence.site[0])
        end = line_end(script.data, occurrence.site[1])
        if occurrence.encoding:
            raise CannotEdit(
                f"{occurrence.spelling} stands in JSON on a command line", where=where, next_step="remove it by hand"
            )
        pattern = rb"[ \t]*export[ \t]+" + re.escape(occurrence.spelling.encode()) + rb"=\S*[ \t]*"
        if occurrence.site[0] < 0 or not re.fullmatch(pattern, script.data[start:end]):
            raise CannotEdit(
                f"{occurrence.spelling} does not stand on a line of its own", where=where, next_step="remove it by hand"
            )
        return Change(start, min(end + 1, len(script.data)), b"")
    option = occurrence.option
    if option is None or option.start < 0 or option.quote is Quote.NESTED:
        raise CannotEdit(
            f"{occurrence.spelling} stands in text that is read twice", where=where, next_step="remove it by hand"
        )
    end = _value_end(option, occurrence)
    line_rest = script.data[end : line_end(script.data, end)]
    if option.quote is Quote.BARE and re.fullmatch(rb"[ \t]*(?:\\|#.*)?", line_rest):
        before = re.search(rb"(?:[ \t\n]|\\\n)*\Z", script.data[: option.start])
        return Change(before.start() if before else option.start, end, b"")
    after = re.match(rb"[ \t]*", script.data[end:])
    return Change(option.start, end + (after.end() if after else 0), b"")


def _value_end(option: Token, occurrence: Occurrence) -> int:
    token = occurrence.value_token
    if token is None:
        return option.end
    if token.level != option.level or token.end < option.end:
        raise CannotEdit(
            f"{occurrence.spelling} and its value do not stand together", where=f"line {option.line}",
            next_step="remove it by hand",
        )
    return token.end


def _rest_of_word(occurrence: Occurrence) -> tuple[int, int] | None:
    """What follows the `=` of `--option=…` in its word, where the option itself is written without quotes."""
    token = occurrence.option
    if token is None or occurrence.value_token is not None or token.quote is not Quote.BARE:
        return None
    sign = token.atoms[len(occurrence.spelling)]
    if sign.quote is not Quote.BARE or len(sign.uses) != token.level or sign.end < 0:
        return None
    return sign.end, token.end


def _deepest(script: Script, chain: Sequence[Use], beside: set[tuple[int, int]], variable: str) -> int:
    """How far towards the literal an edit may go: past each variable that nothing else uses, but for `beside`."""
    spans = {(use.start, use.end) for use in chain} | beside
    for depth, use in enumerate(chain):
        if variable and use.name == variable and not use.default:
            continue
        if not use.name.isidentifier() or _other_uses(script, use.name, spans):
            return depth
        if use.default and script.environment is not None and use.name in script.environment:
            return depth
        if use.name in script.walker.final.exported and not use.default:
            return depth
    return len(chain)


def _other_uses(script: Script, name: str, mine: set[tuple[int, int]]) -> list[int]:
    """Lines that use a variable for something else than this parameter; printing it does not count."""
    plain_use = re.compile(rb"\$\{?[#!]?" + re.escape(name.encode()) + rb"(?!\w)")
    found = [match.start() for match in plain_use.finditer(script.data)]
    for arithmetic in re.finditer(rb"\(\((.*?)\)\)", script.data, re.DOTALL):
        word = rb"(?<![\w$\{])" + re.escape(name.encode()) + rb"(?!\w)"
        found += [arithmetic.start(1) + match.start() for match in re.finditer(word, arithmetic.group(1))]
    return [
        line_of(script.data, at)
        for at in found
        if not any(start <= at < end for start, end in mine)
        and not any(start <= at < end for start, end in script.walker.quiet)
    ]


def _used_elsewhere(script: Script, use: Use) -> str:
    lines = _other_uses(script, use.name, {(use.start, use.end)}) if use.name.isidentifier() else []
    others = ", ".join(str(line) for line in dict.fromkeys(lines) if line != use.line)
    if not others:
        return ""
    return f"{use.name} also serves line {others}, so the value was written at line {use.line} instead"


def _remark(script: Script, chain: Sequence[Use]) -> str:
    for use in chain:
        if use.default and script.environment is None:
            return (
                f"{use.name} at line {use.line} is a default: a value of {use.name} in the submitting environment "
                "would win over the new one"
            )
    return ""


def _quote_at(occurrence: Occurrence, use: Use, depth: int) -> Quote:
    nested = depth == 0 and occurrence.quote is Quote.NESTED
    return Quote.NESTED if nested else Quote.DOUBLE if use.quoted else Quote.BARE


def _directive_value(script: Script, occurrence: Occurrence, new: str, where: str) -> tuple[Change, str]:
    if not re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]*-]+", new):
        raise CannotEdit(
            f"the value {new!r} cannot stand in a #SBATCH line", where=where, next_step="set it by hand"
        )
    start, end = occurrence.site
    return Change(start, end, new.encode()), ""


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
    alike = _alike(script, edits)
    for edit in edits:
        made, remarks = _changes_of_edit(script, edit, alike)
        changes += made
        notes += remarks
    if changes:
        _refuse_broken(script, changes)
        notes += [
            f"{script.file.path}:{hazard.line}: {hazard.what}; the change does not touch it"
            for hazard in script.hazards
        ]
    return Edited(tuple(dict.fromkeys(changes)), tuple(dict.fromkeys(note for note in notes if note)))


def _alike(script: Script, edits: Sequence[Edit]) -> Alike:
    found: dict[str, set[tuple[int, int]]] = {}
    for edit in edits:
        name = next((item for item in script.names if item.parameter == edit.parameter), names_of(edit))
        occurrences, problem = occurrences_in_force(script, name)
        wanted = wanted_value(edit)
        if wanted is not None and not problem:
            spans = {(use.start, use.end) for item in occurrences for atom in item.value for use in atom.uses}
            found.setdefault(wanted, set()).update(spans)
    return found


def _changes_of_edit(script: Script, edit: Edit, alike: Alike) -> tuple[list[Change], list[str]]:
    name = next((item for item in script.names if item.parameter == edit.parameter), names_of(edit))
    occurrences, problem = occurrences_in_force(script, name)
    line = written_at(script, occurrences[0]) if occurrences else 1
    where = f"{script.file.path}:{line}"
    if problem and edit.told and edit.new is not None and _can_be_written(occurrences):
        problem = None
    if problem:
        _refuse_hazards(script)
        also = "".join(f"; and at line {broken.line} {broken.what}" for broken in script.hazards[:1])
        raise not_safely(edit.spellings[0], edit.new, f"{problem}{also}", where)
    wanted = wanted_value(edit)
    if not occurrences:
        if wanted is None:
            return [], []
        note = note_of(script, edit)
        return insert(script, edit), [f"{script.file.path}: {note}"] if note else []
    present = text_of(occurrences[0].value)
    if edit.told and present is None:
        made = [change_value(script, item, wanted or "", alike) for item in occurrences]
        return [change for change, _ in made], [note for _, note in made]
    if same_value(edit.kind, present, wanted):
        return [], []
    if edit.old is not None and not same_value(edit.kind, present, edit.old):
        raise CannotEdit(
            f"{occurrences[0].spelling} is {present}, but the change was planned for {edit.old}",
            where=where, next_step="plan again from the present template",
        )
    if wanted is None:
        return [remove_value(script, edit, item) for item in occurrences], []
    changes, notes = [], []
    for item in occurrences:
        if _elsewhere(script, item):
            change, note = _behind_elsewhere(script, item, wanted, present)
            changes.append(change)
            notes.append(f"{script.file.path}: {note}")
            continue
        if item.option is not None and item.quote is Quote.NOWHERE and item.option.text == item.spelling:
            raise CannotEdit(
                f"{item.spelling} stands without a value", where=where, next_step="change it by hand",
            )
        change, note = change_value(script, item, wanted, alike, edit.variable)
        changes.append(change)
        notes.append(f"{script.file.path}: {note}" if note else "")
    return changes, notes


def _can_be_written(occurrences: Sequence[Occurrence]) -> bool:
    """Whether a value that the template leaves open stands where a new one can be written: as a word of its own behind
    its option, given whatever happens."""
    return bool(occurrences) and all(
        item.option is not None and item.site[0] >= 0 and not item.condition for item in occurrences
    )


def _elsewhere(script: Script, occurrence: Occurrence) -> bool:
    """Whether the option and its value are written in a file that the script sources."""
    option = occurrence.option
    if not script.sources or option is None or option.start >= 0 or not option.atoms or not option.atoms[0].uses:
        return False
    inside = [use for atom in occurrence.value for use in atom.uses[occurrence.level :]]
    placed = any(atom.start >= 0 for atom in occurrence.value) or any(use.start >= 0 for use in inside)
    return not placed and option.atoms[0].uses[0].end >= 0


def _behind_elsewhere(script: Script, occurrence: Occurrence, new: str, present: str | None) -> tuple[Change, str]:
    """The option once more, behind the words that come out of that file: the last of equal options wins."""
    where = f"{script.file.path}:{occurrence.line}"
    assert occurrence.option is not None
    use = occurrence.option.atoms[0].uses[0]
    joint = " " if occurrence.value_token is not None else "="
    text = f" {occurrence.spelling}{joint}".encode() + quoted_as_there(new, Quote.NESTED, (), where)
    files = ", ".join(sorted(script.sources))
    return Change(use.end, use.end, text), (
        f"{occurrence.spelling} {present} stands in {files}, and the new one behind {use.name} wins over it"
    )


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
        occurrences, problem = occurrences_in_force(script, name)
        wanted = wanted_value(edit)
        present = text_of(occurrences[0].value) if occurrences else None
        if problem or not same_value(edit.kind, present, wanted):
            line = occurrences[0].line if occurrences else 1
            raise not_in_force(edit.spellings[0], present, wanted, problem, f"{after.path}:{line}")
        line = _mentions(before, script, name)
        if line:
            raise CannotEdit(
                f"the change would also change {edit.spellings[0]} of another program, at line {line}",
                where=f"{after.path}:{line}",
                next_step=f"write {edit.spellings[0]} on the command of each program, then try again",
            )
    for name in names:
        if name.parameter in edited:
            continue
        old, new = occurrences_in_force(before, name), occurrences_in_force(script, name)
        if [text_of(item.value) for item in old[0]] != [text_of(item.value) for item in new[0]]:
            raise CannotEdit(
                f"the change would also change {name.spellings[0]}", where=f"{after.path}:1",
                next_step="make the change by hand",
            )


def _mentions(before: Script, after: Script, name: ParameterNames) -> int:
    """The line of a program beside the training whose value of this parameter is another one now; 0: none."""
    if name.program or not name.training_program or not before.training:
        return 0
    if len(before.commands) != len(after.commands):
        return 0
    for index, command in enumerate(before.commands):
        if command in before.training or not starts_program(command):
            continue
        old, new = (script.found[index].get(name.parameter, []) for script in (before, after))
        if [text_of(item.value) for item in old] != [text_of(item.value) for item in new]:
            return command.line
    return 0
