"""Parameters among the words of a command: each place where one is given, with its value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.model.template import ParameterNames, SettingKind
from runbook.template.bash import overrides
from runbook.template.bash.commands import basename, program_at
from runbook.template.bash.header import Directive
from runbook.template.bash.runs import Command
from runbook.template.bash.words import Atom, Quote, Token, Use, at_level, plain, span_of, unknown_of


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A parameter where it is written. `site` is the value as it stands in the list (array, command, string)."""

    spelling: str
    value: tuple[Atom, ...]
    site: tuple[int, int]
    quote: Quote
    level: int
    line: int
    trail: tuple[str, ...] = ()
    condition: str = ""
    unresolved: str = ""
    option: Token | None = None
    """The option's own word; for `--a=8` the whole word."""
    value_token: Token | None = None
    """The value's own word, for `--a 8`."""
    directive: Directive | None = None
    comma_ends: bool = False
    """Stands in a list of `--export`, where a comma would end the value."""
    encoding: str = ""
    """What reads the value after the shell: "json", "hydra", "hydra, quoted"."""


def options_given(command: Command, names: Sequence[ParameterNames]) -> dict[str, list[Occurrence]]:
    """By parameter: its occurrences among the words of a command, in order."""
    return options_among(command, by_spelling(names))


def by_spelling(names: Sequence[ParameterNames]) -> dict[str, list[ParameterNames]]:
    """What a word can be, by what stands in front of its `=`: a script has many words, and a system many names."""
    table: dict[str, list[ParameterNames]] = {}
    for name in names:
        for spelling in name.spellings:
            key = name.kind is SettingKind.KEY and not spelling.startswith("-")
            table.setdefault(overrides.key_of(spelling) if key else spelling, []).append(name)
    return table


def options_among(command: Command, table: dict[str, list[ParameterNames]]) -> dict[str, list[Occurrence]]:
    """The same by a table of `by_spelling`, which serves all commands of a script."""
    found: dict[str, list[Occurrence]] = {}
    skip = -1
    program = _behind_accelerate(command.argv)
    for index, token in enumerate(command.argv):
        if index == skip:
            continue
        head = token.prefix.partition("=")[0]
        possible = table.get(head, []) + (table.get(overrides.key_of(head), []) if head[:1] in ("+", "~") else [])
        for name in {item.parameter: item for item in possible}.values():
            occurrence = _argument(command.argv, index, token, name)
            if occurrence is not None:
                if index < program and name.training_program:
                    reason = f"{occurrence.spelling} at line {token.line} is accelerate's own, in front of the program"
                    occurrence = replace(occurrence, value=(), unresolved=reason)
                found.setdefault(name.parameter, []).append(occurrence)
                if occurrence.value_token is not None:
                    skip = index + 1
    return found


def _behind_accelerate(argv: Sequence[Token]) -> int:
    """Where the program of `accelerate launch` stands, whose own options bear names of the program's
    (`--gradient_accumulation_steps`); 0 for another command."""
    for at, token in enumerate(argv[:-1]):
        if basename(token) == "accelerate" and argv[at + 1].text == "launch":
            program = program_at(argv[at + 2 :])
            return at + 2 + program if program is not None else 0
    return 0


def _argument(argv: Sequence[Token], index: int, token: Token, name: ParameterNames) -> Occurrence | None:
    text, prefix = token.text, token.prefix
    for spelling in name.spellings:
        if name.kind is SettingKind.KEY and not spelling.startswith("-"):
            override = _override(token, spelling)
            if override is not None:
                return override
            continue
        if text == spelling:
            if name.flag:
                return Occurrence(
                    spelling, plain("true"), (-1, -1), Quote.NOWHERE, token.level, token.line, token.trail,
                    token.condition, option=token,
                )
            return _separate(argv, index, token, spelling, name.bare_is_true)
        if prefix.startswith(f"{spelling}=") and spelling.startswith("-"):
            value = token.atoms[len(spelling) + 1 :]
            site, quote = _place(token, value)
            return Occurrence(
                spelling, value, site, quote, token.level, token.line, trail_of(token, value), token.condition,
                option=token,
            )
    return None


def _place(token: Token, value: tuple[Atom, ...]) -> tuple[tuple[int, int], Quote]:
    """Where a value inside a word stands, and how it is quoted there."""
    quote = token.quote
    site = (token.end, token.end)
    if value:
        inside = at_level(replace(token, atoms=value), token.level)
        site = (inside.start, inside.end)
        if token.quote is not Quote.NESTED:
            quote = _written(value, 0) if token.level == 0 else inside.quote
    return span_of(value) or site, quote


def _override(token: Token, spelling: str) -> Occurrence | None:
    """A word `key=value` for Hydra."""
    found = overrides.parts(token, spelling)
    if found is None:
        return None
    shown, whole, missing = found
    value, quoted = overrides.unquoted(whole)
    site, quote = _place(token, value)
    return Occurrence(
        shown, value, site, quote, token.level, token.line, trail_of(token, value), token.condition, missing,
        option=token, encoding="hydra, quoted" if quoted else "hydra",
    )


def _written(value: Sequence[Atom], level: int) -> Quote:
    """How the piece of a word that holds this value is quoted."""
    first = value[0]
    if len(first.uses) > level:
        return Quote.DOUBLE if first.uses[level].quoted else Quote.BARE
    return first.quote


def _separate(
    argv: Sequence[Token], index: int, token: Token, spelling: str, bare_is_true: bool = False
) -> Occurrence:
    value = argv[index + 1] if index + 1 < len(argv) else None
    missing = ""
    if value is None:
        missing = f"{spelling} has no value (line {token.line})"
    elif value.several:
        missing = unknown_of(value.atoms) or f"what follows {spelling} at line {token.line} is not known"
    elif re.match(r"--[A-Za-z]", value.prefix):
        missing = f"{spelling} is followed by another option (line {token.line})"
    alone = value is None or (not value.several and bool(missing))
    if alone and bare_is_true:
        return Occurrence(
            spelling, plain("true"), (-1, -1), Quote.NOWHERE, token.level, token.line, token.trail, token.condition,
            option=token,
        )
    if value is None or missing:
        return Occurrence(
            spelling, (), (-1, -1), token.quote, token.level, token.line, token.trail, token.condition, missing, token
        )
    return Occurrence(
        spelling, value.atoms, (value.start, value.end), value.quote, value.level, value.line,
        trail_of(value, value.atoms), token.condition or value.condition, option=token, value_token=value,
    )


def trail_of(token: Token, value: Sequence[Atom]) -> tuple[str, ...]:
    names: list[str] = list(token.trail)
    for use in dict.fromkeys(use for atom in value for use in atom.uses[token.level :]):
        names.append(shown_use(use))
    return tuple(names)


def shown_use(use: Use) -> str:
    how = " (its default)" if use.default else ""
    return f"{use.name}{how} at line {use.line}"
