"""What a job script sets: the value in force of each parameter, or where the trail ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.template import ParameterNames, Setting, SettingKind
from runbook.template.bash import overrides
from runbook.template.bash.commands import chain, environment_entry, launches, ray_environment
from runbook.template.bash.options import Occurrence, shown_use
from runbook.template.bash.runs import Command
from runbook.template.bash.script import Script
from runbook.template.bash.state import Binding
from runbook.template.bash.syntax import line_of
from runbook.template.bash.words import Quote, plain, text_of, unknown_of


def settings(script: Script) -> tuple[Setting, ...]:
    """A setting for each parameter that the script sets or mentions; none for one that is absent."""
    found = []
    for name in script.names:
        occurrences, problem = in_force(script, name)
        if problem:
            found.append(_unresolved(script, name, occurrences, problem))
        elif occurrences:
            found.append(_setting(script, name, occurrences[0]))
    return tuple(found)


def written_at(script: Script, occurrence: Occurrence) -> int:
    """The line where the value stands in its list: the array, the command, the string of arguments."""
    start = occurrence.site[0]
    if start < 0 and occurrence.option is not None:
        start = occurrence.option.start
    return line_of(script.data, start) if start >= 0 else occurrence.line


def in_force(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], str]:
    """The occurrences that decide (one for each of the alike commands), or why nothing can be said."""
    if name.kind is SettingKind.SBATCH:
        return _directive(script, name)
    if name.kind is SettingKind.ENVIRONMENT:
        return _environment(script, name)
    deciding: list[Occurrence] = []
    commands = script.training if name.training_program else tuple(
        command for command in script.walker.commands if _reaches(script, command)
    )
    if name.program:
        commands = tuple(command for command in script.walker.commands if _starts(command, name.program.split()))
    for index, command in enumerate(script.walker.commands):
        occurrences = script.found[index].get(name.parameter, []) if command in commands else []
        if not occurrences:
            continue
        last = occurrences[-1]
        if last.condition:
            others = {text_of(item.value) for item in occurrences}
            if len(occurrences) == 1 or len(others) > 1:
                at = written_at(script, last)
                return (last,), f"{last.spelling} is given at line {at} only {last.condition}"
        if last.unresolved or unknown_of(last.value):
            return (last,), last.unresolved or unknown_of(last.value)
        deciding.append(last)
    values = {text_of(item.value) for item in deciding}
    if len(values) > 1:
        lines = ", ".join(f"{text_of(item.value)} at line {written_at(script, item)}" for item in deciding)
        return tuple(deciding), f"ambiguous: several commands take it with different values ({lines})"
    if not deciding:
        return _mentioned(script, name)
    return tuple(deciding), ""


def _reaches(script: Script, command: Command) -> bool:
    """Whether a launcher option on this command concerns the training: it is that command, or runs it."""
    return not script.training or any(command in _family(item) for item in script.training)


def _starts(command: Command, words: Sequence[str]) -> bool:
    """Whether the command runs the program that these words name, by itself or behind a launcher."""
    argv = [token.text or "" for token in command.argv]
    return any(
        argv[at].rsplit("/", 1)[-1] == words[0] and argv[at + 1 : at + len(words)] == list(words[1:])
        for at in range(len(argv))
    )


def _family(command: Command) -> list[Command]:
    family = [command]
    while family[-1].outer is not None:
        family.append(family[-1].outer)
    return family


def _environment(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], str]:
    commands = script.training or tuple(command for command in script.walker.commands if launches(command))
    commands = (*commands, *cluster_of(script, commands))
    found: list[Occurrence] = []
    absent: list[Command] = []
    for command in commands:
        for spelling in name.spellings:
            entry = environment_entry(command, spelling, script.header)
            if entry is None:
                continue
            found.append(
                Occurrence(
                    spelling, entry.atoms, entry.site, entry.quote, entry.level, entry.line,
                    (entry.where, *(shown_use(use) for atom in entry.atoms[:1] for use in atom.uses)),
                    next((atom.condition for atom in entry.atoms if atom.condition), ""),
                    entry.kept_away,
                    comma_ends=entry.comma_ends or _in_header(script, entry.site[0]), encoding=entry.encoding,
                )
            )
            break
        else:
            absent.append(command)
    if not commands:
        for spelling in name.spellings:
            binding: Binding | None = script.walker.final.variables.get(spelling)
            if binding is not None and spelling in script.walker.final.exported:
                trail = (f"exported at line {binding.line}",)
                found.append(
                    Occurrence(spelling, binding.atoms, binding.site, Quote.BARE, 0, binding.line, trail)
                )
                break
    for item in found:
        if item.unresolved:
            return (item,), f"{item.spelling} is set at line {item.line}, but {item.unresolved}"
        if unknown_of(item.value):
            return (item,), unknown_of(item.value)
        if item.condition:
            return (item,), f"{item.spelling} is set only {item.condition}"
    values = {text_of(item.value) for item in found}
    without = [item for item in absent if item in script.clusters]
    if found and without and len(values) == 1:
        shown = f"{found[0].spelling} is set at line {found[0].line}"
        return tuple(found), f"{shown}, but `ray start` at line {without[0].line} does not have it"
    if len(values) > 1 or (found and absent):
        lines = ", ".join(f"{text_of(item.value)} at line {item.line}" for item in found)
        return tuple(found), f"ambiguous: the commands do not all have the same value ({lines})"
    if not found:
        return _mentioned(script, name)
    return tuple(dict.fromkeys(found)), ""


def cluster_of(script: Script, commands: Sequence[Command]) -> tuple[Command, ...]:
    """The commands that start the Ray cluster in which these run, where no runtime environment says otherwise."""
    if not script.clusters:
        return ()
    if all(any(ray_environment(item) is not None for item in chain(command)) for command in commands):
        return ()
    return tuple(item for item in script.clusters if item not in commands)


def _in_header(script: Script, at: int) -> bool:
    return any(item.start <= at < item.end for item in script.header.directives)


def _directive(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], str]:
    directive = script.header.last(name.spellings)
    if directive is None:
        submitting = next((item for item in script.walker.commands if item.argv[0].text == "sbatch"), None)
        if submitting is not None and not script.header.directives:
            return (), f"the job is what sbatch at line {submitting.line} submits, with options of its own"
        return (), ""
    occurrence = Occurrence(
        directive.option, plain(directive.value or "true"), (directive.value_start, directive.value_end), Quote.BARE,
        0, directive.line, ("#SBATCH",), directive=directive,
    )
    if script.header.heterogeneous:
        return (occurrence,), "the job is heterogeneous: each component has its own directives"
    if directive.value is None and not name.flag:
        return (occurrence,), f"{directive.option} has no value (line {directive.line})"
    return (occurrence,), ""


def _mentioned(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], str]:
    """Why an absent parameter is not simply absent: its name stands somewhere that no command was seen to take."""
    if name.kind in (SettingKind.ARGUMENT, SettingKind.KEY):
        for index, command in enumerate(script.walker.commands):
            occurrences = script.found[index].get(name.parameter)
            if occurrences:
                shown = command.argv[0].text or "a command"
                return (occurrences[0],), (
                    f"{occurrences[0].spelling} is given only to {shown!r} at line {command.line}, which is not the "
                    "training command"
                )
    for spelling in name.spellings:
        tail = rb"=" if name.kind is SettingKind.ENVIRONMENT else rb"(?![\w-])"
        key = name.kind is SettingKind.KEY and not spelling.startswith("-")
        front = rb"(?<![\w.-])" if key else rb"(?<![\w-])"
        if key:
            tail, spelling = rb"(?![\w.-])", overrides.key_of(spelling)
            if "." not in spelling:
                continue  # a word of the language: it means nothing without its section
        if spelling.encode() not in script.data:
            continue
        for match in re.finditer(front + re.escape(spelling.encode()) + tail, script.data):
            if any(start <= match.start() < end for start, end in script.walker.quiet):
                continue
            line = line_of(script.data, match.start())
            if script.data.split(b"\n")[line - 1].lstrip().startswith(b"#"):
                continue
            place = Occurrence(spelling, (), (match.start(), match.end()), Quote.BARE, 0, line)
            where = f"{spelling} stands at line {line}"
            return (place,), f"{where}, where the trail from the training command does not lead"
    return (), ""


def _setting(script: Script, name: ParameterNames, occurrence: Occurrence) -> Setting:
    value = text_of(occurrence.value)
    if name.kind is SettingKind.KEY and value in ("True", "False"):
        value = value.lower()
    return Setting(
        name.parameter, name.kind, occurrence.spelling, value, script.file.path, written_at(script, occurrence),
        occurrence.trail,
    )


def _unresolved(
    script: Script, name: ParameterNames, occurrences: Sequence[Occurrence], problem: str
) -> Setting:
    first = occurrences[0] if occurrences else None
    return Setting(
        name.parameter, name.kind, first.spelling if first else name.spellings[0], None, script.file.path,
        written_at(script, first) if first else None, first.trail if first else (), problem,
    )
