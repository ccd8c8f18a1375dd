"""Add what a job script does not set: an option of the training program, a variable, a `#SBATCH` line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.model.template import Edit, SettingKind, TakenAs
from runbook.template.bash import arguments
from runbook.template.bash.arguments import needs_no_quotes, quoted_as_there, shell_quoted
from runbook.template.bash.launchers import (
    LAUNCHERS,
    basename,
    command_chain,
    launcher_words,
    program_position,
    ray_environment_of,
    slurm_export,
    training_among,
    why_not_passed_on,
)
from runbook.template.bash.script import Script, with_cluster
from runbook.template.bash.state import Command, Quote, Token, Use
from runbook.template.text_files import CannotEdit, Change, line_end, line_start


def insert(script: Script, edit: Edit) -> list[Change]:
    """The changes that add the parameter. Raises `CannotEdit` where it would not reach the program for certain."""
    if edit.kind is SettingKind.SBATCH:
        return [_directive(script, edit)]
    if edit.kind is SettingKind.ENVIRONMENT:
        return _variable(script, edit)
    if edit.kind is SettingKind.KEY:
        changes = [_for_a_key(script, edit, command) for command in _targets(script, edit)]
    else:
        changes = [_option(script, edit, command) for command in _targets(script, edit)]
    return list(dict.fromkeys(changes))


def _directive(script: Script, edit: Edit) -> Change:
    where = f"{script.file.path}:1"
    if script.header.insert_at == 0:
        raise CannotEdit("the file has no `#!` line, so it is no job script", where=where)
    if script.header.heterogeneous:
        raise CannotEdit(
            "the job is heterogeneous: each component has its own directives", where=where, next_step="set it by hand"
        )
    value = "" if edit.flag else f"={edit.new}"
    if not re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]*-]*", value):
        raise CannotEdit(f"the value {edit.new!r} cannot stand in a #SBATCH line", where=where)
    return _line(script, f"#SBATCH {edit.spellings[0]}{value}")


def _behind_sourced(script: Script, commands: Sequence[Command]) -> int:
    """Behind the last file that is sourced in front of these commands, which might set the variable too; else -1."""
    sourced = commands[0].sourced
    if not sourced or any(command.sourced != sourced for command in commands):
        return -1
    lines = script.data.split(b"\n")
    number = sourced[-1].line
    if number > len(lines) or not re.fullmatch(rb"(?:source|\.)[ \t]+[^\s;&|#]+[ \t]*", lines[number - 1]):
        return -1
    at = sum(len(line) + 1 for line in lines[:number])
    return at if all(command.start >= at for command in commands) else -1


def note_of(script: Script, edit: Edit) -> str:
    """What a person has to know of an addition: a file that is sourced behind it may set the variable again."""
    commands = script.starting
    sourced = next((command.sourced[-1] for command in commands if command.sourced), None)
    if edit.kind is not SettingKind.ENVIRONMENT or sourced is None or _behind_sourced(script, commands) >= 0:
        return ""
    return f"{edit.spellings[0]} is set in front of {sourced}, which may set it again"


def _line(script: Script, text: str, at: int = -1) -> Change:
    """A line of its own, behind the header where no place is given."""
    at = at if at >= 0 else script.header.insert_at
    missing = b"\n" if at and script.data[at - 1 : at] != b"\n" else b""
    return Change(at, at, missing + text.encode("utf-8", "surrogateescape") + b"\n")


def _variable(script: Script, edit: Edit) -> list[Change]:
    name = edit.spellings[0]
    new = edit.new or ""
    if not name.isidentifier() or not name.isascii():
        raise CannotEdit(f"{name!r} is no name for a variable", where=f"{script.file.path}:1")
    commands = with_cluster(script)
    if not commands:
        raise CannotEdit(
            "no command that starts the training was found, so it is not certain that the variable would reach it",
            where=f"{script.file.path}:1", next_step=f"export {name} in the script that starts the training",
        )
    changes = [_line(script, f"export {name}={shell_quoted(new)}", _behind_sourced(script, commands))]
    given = [(command, ray_environment_of(command)) for command in commands]
    if all(item is not None for _, item in given):
        changes = []
    for command, runtime in given:
        where = f"{script.file.path}:{command.line}"
        if runtime is not None:
            changes.append(runtime.added(name, new, where))
            continue
        reason = why_not_passed_on(command)
        if reason:
            raise CannotEdit(
                f"a variable set in the job script would not reach the ranks: {reason}",
                where=where, next_step=f"set {name}={new} where the ranks are started, by hand",
            )
        export = slurm_export(command, script.header)
        if export.mode == "none":
            raise CannotEdit(
                f"{export.where} is NONE, so a variable set in the job script would not reach the ranks",
                where=f"{script.file.path}:{export.line}",
                next_step="write --export=ALL at the srun of the training, or set the variable inside its command",
            )
        if export.mode == "list" and name not in export.names:
            if export.end < 0:
                raise CannotEdit(
                    f"{export.where} lists the variables that reach the ranks and cannot be extended here",
                    where=f"{script.file.path}:{export.line}", next_step=f"add {name} to that list by hand",
                )
            changes.append(Change(export.end, export.end, f",{name}".encode()))
    return list(dict.fromkeys(changes))


def _for_a_key(script: Script, edit: Edit, command: Command) -> Change:
    """An override where the command line has such, else the option that sets the same."""
    where = f"{script.file.path}:{command.line}"
    options = tuple(item for item in edit.spellings if item.startswith("-"))
    first = edit.spellings[0]
    if options and (first.startswith("-") or not arguments.accepts_overrides(command)):
        return _option(script, replace(edit, kind=SettingKind.ARGUMENT, spellings=options), command)
    taken = edit.taken_as is TakenAs.OVERRIDE or arguments.accepts_overrides(command)
    if not taken and not first.startswith("+"):
        raise CannotEdit(
            f"{first} is a key of a configuration file, and the command takes no overrides", where=where,
            next_step="give the configuration file that the script names as well",
        )
    value = arguments.hydra_value(edit.new or "", where)
    neighbour = arguments.last_override(command)
    token = neighbour or arguments.last_word(command)
    if token is None:
        raise CannotEdit(
            f"there is no safe place for {first} on the command that trains", where=where,
            next_step=f"add {first}={edit.new} by hand",
        )
    uses: tuple[Use, ...] = token.atoms[0].uses[: token.level] if token.atoms else ()
    text = first.encode() + b"=" + quoted_as_there(value, token.quote, uses, where)
    if token.quote is not Quote.BARE and not needs_no_quotes(value):
        raise CannotEdit(f"the value {value!r} needs quotes inside a quoted text", where=where)
    place = _Place(token, token.end, False, "override" if neighbour is not None else "", True)
    return _laid_out(script.data, place, text)


def _targets(script: Script, edit: Edit) -> tuple[Command, ...]:
    """The commands that train. Raises `CannotEdit` when they cannot be told."""
    if script.training:
        return script.training
    programs = [command for command in script.commands if program_position(command.argv) is not None]
    distributed = [command for command in programs if any(_distributes(item) for item in command_chain(command))]
    chosen = training_among(distributed or programs)
    if len(chosen) == 1:
        return (chosen[0],)
    if not chosen:
        raise CannotEdit(
            f"no command that starts a training program was found, so {edit.spellings[0]} cannot be added",
            where=f"{script.file.path}:1",
            next_step="give the script whose command line starts the training",
        )
    lines = ", ".join(str(command.line) for command in chosen)
    raise CannotEdit(
        f"several commands start a program (lines {lines}) and none has a known option, so {edit.spellings[0]} is not "
        "added",
        where=f"{script.file.path}:{chosen[0].line}", next_step=f"add {edit.spellings[0]} {edit.new} by hand",
    )


def _distributes(command: Command) -> bool:
    names = {basename(token) for token in launcher_words(command)}
    return bool(names & (set(LAUNCHERS) - {"python", "python3"}))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a new option goes: behind or in front of an option that stands in the same list."""

    option: Token
    end: int
    """Byte behind the neighbour's last word."""
    before: bool
    spelling: str
    equals: bool


def _option(script: Script, edit: Edit, command: Command) -> Change:
    where = f"{script.file.path}:{command.line}"
    place = _sibling(script, command) or _last_option(command) or _behind_program(command)
    if edit.taken_as is TakenAs.JOINED:  # what is read in turn is written over by what stands behind it
        last = arguments.last_word(command)
        place = _Place(last, last.end, False, "", True) if last is not None else None
    if place is None:
        raise CannotEdit(
            f"there is no safe place for {edit.spellings[0]} on the command that trains", where=where,
            next_step=f"add {edit.spellings[0]} {edit.new} by hand",
        )
    option = place.option
    uses: tuple[Use, ...] = option.atoms[0].uses[: option.level] if option.atoms else ()
    spelling = _like(edit.spellings, place.spelling)
    quote = option.quote if option.quote is not Quote.BARE else Quote.BARE
    value = b"" if edit.flag else quoted_as_there(edit.new or "", quote, uses, where)
    if not edit.flag and quote is not Quote.BARE and not needs_no_quotes(edit.new or ""):
        raise CannotEdit(
            f"the value {edit.new!r} needs quotes inside a quoted text", where=where, next_step="set it by hand"
        )
    joint = b"=" if place.equals or edit.taken_as is TakenAs.JOINED else b" "
    text = spelling.encode() + (b"" if edit.flag else joint + value)
    return _laid_out(script.data, place, text)


def _sibling(script: Script, command: Command) -> _Place | None:
    """The last known option of the training program on this command that stands there as plain text."""
    index = next(at for at, item in enumerate(script.commands) if item is command)
    launcher_only = {name.parameter for name in script.names if not name.training_program}
    program = program_position(command.argv)
    best: tuple[int, _Place] | None = None
    for parameter, occurrences in script.found[index].items():
        for item in occurrences:
            if parameter in launcher_only or item.condition or item.unresolved or item.option is None:
                continue
            at = next((at for at, token in enumerate(command.argv) if token is item.option), -1)
            if (program is not None and at < program) or not _literal(item.option):
                continue
            token = item.value_token or item.option
            if token.level != item.option.level or token.end < 0:
                continue
            equals = item.value_token is None and bool(item.value) and item.quote is not Quote.NOWHERE
            if best is None or at > best[0]:
                several = _has_more_values(command, at + (1 if item.value_token is None else 2))
                best = at, _Place(item.option, token.end, several, item.spelling, equals)
    return best[1] if best else None


def _has_more_values(command: Command, at: int) -> bool:
    """Whether the word here may be one more value of the option in front (`--rampup-batch-size 16 16 1000`): nothing
    comes between the two."""
    token = command.argv[at] if at < len(command.argv) else None
    return token is not None and token.text is not None and not re.match(r"-\D", token.text) and not token.several


def _last_option(command: Command) -> _Place | None:
    """In front of the last option of the program: that is right however many values the options take."""
    program = program_position(command.argv)
    if program is None:
        return None
    for token in reversed(command.argv[program + 1 :]):
        text = token.text or ""
        if re.match(r"--[A-Za-z]", text) and _literal(token) and not token.condition:
            return _Place(token, token.end, True, text.split("=", 1)[0], False)
    return None


def _behind_program(command: Command) -> _Place | None:
    program = program_position(command.argv)
    if program is None or command.argv[program].end < 0 or not command.argv[program].atoms:
        return None
    token = command.argv[program]
    return _Place(token, token.end, False, "", False)


def _literal(token: Token) -> bool:
    """Written out in its list, not brought in by a variable."""
    return token.start >= 0 and all(len(atom.uses) == token.level and not atom.unknown for atom in token.atoms)


def _like(spellings: tuple[str, ...], neighbour: str) -> str:
    """The spelling with the neighbour's habit of `_` or `-` between words."""
    if "_" in neighbour and "-" not in neighbour.lstrip("-"):
        return next((item for item in spellings if "_" in item), spellings[0])
    return spellings[0]


def _laid_out(data: bytes, place: _Place, text: bytes) -> Change:
    """The new words on a line of their own where the neighbour has one, else in the neighbour's line."""
    option = place.option
    begin = line_start(data, option.start)
    indent = data[begin : option.start]
    own_line = option.quote is Quote.BARE and not indent.strip() and place.spelling != ""
    rest = data[place.end : line_end(data, place.end)]
    if place.before:
        if own_line and option.in_array and not data[:begin].endswith(b"\\\n"):
            return Change(option.start, option.start, text + b"\n" + indent)
        if own_line:
            return Change(option.start, option.start, text + b" \\\n" + indent)
        return Change(option.start, option.start, text + b" ")
    if own_line and option.in_array and re.fullmatch(rb"[ \t]*(?:#.*)?", rest):
        at = place.end + len(rest)
        return Change(at, at, b"\n" + indent + text)
    if own_line and re.fullmatch(rb"[ \t]*\\?", rest):
        return Change(place.end, place.end, b" \\\n" + indent + text)
    return Change(place.end, place.end, b" " + text)
