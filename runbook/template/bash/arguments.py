"""Parameters among the words of a command, as options and as Hydra's overrides: where each is given, with its value,
and how a value is written there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.model.template import ParameterNames, SettingKind, Unresolved
from runbook.template.bash.launchers import basename, program_position
from runbook.template.bash.state import (
    Atom,
    Command,
    Quote,
    Token,
    Use,
    at_level,
    span_of,
    text_of,
    unknown_of,
    unplaced,
)
from runbook.template.bash.syntax import Directive
from runbook.template.text_files import CannotEdit

# Hydra's overrides on a command line: `key=value`, `+key=value`, `++key=value`, `~key`.

_OVERRIDE = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w.@/-]*(?:\.[\w-]+)*=")
_CONFIG_OPTIONS = re.compile(r"(?:--config-(?:name|path|dir)|-c[npd])(?:=|$)")
_HYDRA_FLAGS = frozenset({"--multirun", "--run", "--resolve", "--shell-completion"})
_HYDRA_BARE = re.compile(r"[A-Za-z0-9_./:+%*@?|-]+")
"""What Hydra's grammar takes as one value without quotes. A comma would make a sweep of it."""


def override_key(spelling: str) -> str:
    return spelling.lstrip("+~")


def is_override(text: str) -> bool:
    return bool(_OVERRIDE.match(text))


_PAIRED = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)+")


def begins_pair(text: str | None) -> bool:
    """Whether a word is the key of an override whose value is the next word, as yacs has them: `TRAIN.BATCH_SIZE 8`."""
    return text is not None and _PAIRED.fullmatch(text) is not None


def override_parts(token: Token, spelling: str) -> tuple[str, tuple[Atom, ...], Unresolved | None] | None:
    """An override of this key: how it is spelt, its value's atoms, and why it has none; None for another word."""
    key = override_key(spelling)
    text = token.prefix
    prefix = text[: len(text) - len(text.lstrip("+~"))]
    rest = text[len(prefix) :]
    if prefix not in ("", "+", "++", "~") or not rest.startswith(key):
        return None
    tail = rest[len(key) :]
    if prefix == "~":
        if tail and not tail.startswith("="):
            return None
        return f"~{key}", (), Unresolved(f"~{key} at line {token.line} takes the key out of the configuration")
    if not tail.startswith("="):
        return None
    return f"{prefix}{key}", token.atoms[len(prefix) + len(key) + 1 :], None


def without_hydra_quotes(atoms: tuple[Atom, ...]) -> tuple[tuple[Atom, ...], bool]:
    """A value without the quotes that Hydra itself takes away, and whether it had some."""
    text = text_of(atoms)
    if text is None or len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return atoms, False
    inner = text[1:-1]
    return (atoms[1:-1], True) if inner and text[0] not in inner and "\\" not in inner else (atoms, False)


def hydra_value(value: str, where: str, *, inside_quotes: bool = False) -> str:
    """A value as Hydra reads it. Raises `CannotEdit` for one that it could not be told to read so."""
    bare = _HYDRA_BARE.fullmatch(value) or (value[:1] + value[-1:] in ("[]", "{}") and "\\" not in value)
    if bare and not inside_quotes:
        return value
    quotes = set(value) & {"'", '"'}
    if set(value) & {"\\", "$"} or len(quotes) > (0 if inside_quotes else 1):
        raise CannotEdit(
            f"the value {value!r} cannot be written for Hydra for certain", where=where, next_step="set it by hand"
        )
    if inside_quotes:
        return value
    return f'"{value}"' if "'" in value else f"'{value}'"


def spelled_like(present: str | None, new: str) -> str:
    """`True` beside `True`, `true` beside `true`."""
    return new.capitalize() if present in ("True", "False") and new.lower() in ("true", "false") else new


def same_value(kind: SettingKind, present: str | None, wanted: str | None) -> bool:
    """Whether two values are the same; for a key, `True` is `true`."""
    if present == wanted or present is None or wanted is None:
        return present == wanted
    pair = {present.lower(), wanted.lower()}
    return kind is SettingKind.KEY and len(pair) == 1 and pair <= {"true", "false"}


def accepts_overrides(command: Command) -> bool:
    named = any(_CONFIG_OPTIONS.match(token.prefix) for token in _program_arguments(command))
    return named or last_override(command) is not None


def _program_arguments(command: Command) -> Sequence[Token]:
    program = program_position(command.argv)
    return command.argv[program + 1 :] if program is not None else ()


def last_override(command: Command) -> Token | None:
    """The last override that is a word of its own in the command or in an array: a further one stands behind it."""
    words = _program_arguments(command)
    found = [
        token for before, token in zip((None, *words), words)
        if is_override(token.prefix) and token.start >= 0 and not token.condition and not _awaits_a_value(before)
        and all(len(atom.uses) >= token.level for atom in token.atoms)
    ]
    return found[-1] if found else None


def _awaits_a_value(word: Token | None) -> bool:
    """`--rdzv_conf` in front of `backend=c10d`: what follows is the option's value and no override."""
    text = word.prefix if word is not None else ""
    return text.startswith("--") and "=" not in text and text not in _HYDRA_FLAGS


def last_word(command: Command) -> Token | None:
    """The last word, where options with their values end; None where it is not written out on the command itself."""
    word = command.argv[-1] if command.argv else None
    return word if word is not None and word.level == 0 and word.end >= 0 and not word.several else None


# Parameters among the words of a command: each place where one is given, with its value.

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
    unresolved: Unresolved | None = None
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
            table.setdefault(override_key(spelling) if key else spelling, []).append(name)
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
        possible = table.get(head, []) + (table.get(override_key(head), []) if head[:1] in ("+", "~") else [])
        for name in {item.parameter: item for item in possible}.values():
            occurrence = _argument(command.argv, index, token, name)
            if occurrence is not None:
                if index < program and name.training_program:
                    reason = f"{occurrence.spelling} at line {token.line} is accelerate's own, in front of the program"
                    occurrence = replace(occurrence, value=(), unresolved=Unresolved(reason))
                found.setdefault(name.parameter, []).append(occurrence)
                if occurrence.value_token is not None:
                    skip = index + 1
    return found


def _behind_accelerate(argv: Sequence[Token]) -> int:
    """Where the program of `accelerate launch` stands, whose own options bear names of the program's
    (`--gradient_accumulation_steps`); 0 for another command."""
    for at, token in enumerate(argv[:-1]):
        if basename(token) == "accelerate" and argv[at + 1].text == "launch":
            program = program_position(argv[at + 2 :])
            return at + 2 + program if program is not None else 0
    return 0


def _argument(argv: Sequence[Token], index: int, token: Token, name: ParameterNames) -> Occurrence | None:
    text, prefix = token.text, token.prefix
    for spelling in name.spellings:
        if name.kind is SettingKind.KEY and not spelling.startswith("-"):
            override = _hydra_override(token, spelling)
            if override is not None:
                return override
            if text == spelling and begins_pair(text):
                return _with_value_behind(argv, index, token, spelling)
            continue
        if text == spelling:
            if name.flag:
                return Occurrence(
                    spelling, unplaced("true"), (-1, -1), Quote.NOWHERE, token.level, token.line, token.trail,
                    token.condition, option=token,
                )
            return _with_value_behind(argv, index, token, spelling, name.bare_is_true)
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
            quote = _quote_of_value(value, 0) if token.level == 0 else inside.quote
    return span_of(value) or site, quote


def _hydra_override(token: Token, spelling: str) -> Occurrence | None:
    """A word `key=value` for Hydra."""
    found = override_parts(token, spelling)
    if found is None:
        return None
    shown, whole, missing = found
    value, quoted = without_hydra_quotes(whole)
    site, quote = _place(token, value)
    return Occurrence(
        shown, value, site, quote, token.level, token.line, trail_of(token, value), token.condition, missing,
        option=token, encoding="hydra, quoted" if quoted else "hydra",
    )


def _quote_of_value(value: Sequence[Atom], level: int) -> Quote:
    """How the piece of a word that holds this value is quoted."""
    first = value[0]
    if len(first.uses) > level:
        return Quote.DOUBLE if first.uses[level].quoted else Quote.BARE
    return first.quote


def _with_value_behind(
    argv: Sequence[Token], index: int, token: Token, spelling: str, bare_is_true: bool = False
) -> Occurrence:
    value = argv[index + 1] if index + 1 < len(argv) else None
    missing: Unresolved | None = None
    if value is None:
        missing = Unresolved(f"{spelling} has no value (line {token.line})")
    elif value.several:
        missing = unknown_of(value.atoms) or Unresolved(f"what follows {spelling} at line {token.line} is not known")
    elif re.match(r"--[A-Za-z]", value.prefix):
        missing = Unresolved(f"{spelling} is followed by another option (line {token.line})")
    alone = value is None or (not value.several and bool(missing))
    if alone and bare_is_true:
        return Occurrence(
            spelling, unplaced("true"), (-1, -1), Quote.NOWHERE, token.level, token.line, token.trail, token.condition,
            option=token,
        )
    if value is None or missing:
        alone_there = value is not None and value.several and value.level == token.level
        atoms, site = (value.atoms, (value.start, value.end)) if value is not None and alone_there else ((), (-1, -1))
        return Occurrence(
            spelling, atoms, site, token.quote, token.level, token.line, token.trail, token.condition, missing,
            token, value if alone_there else None,
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
    return f"{use.name}{how} at line {use.line}" if use.line else f"{use.name}{how} in a file that is sourced"


# Write a value so that the shell gives exactly that value to the program.

_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
"""Text that means itself in every kind of quoting and at every depth."""


_ESCAPED = re.compile(r'([$`"\\])')


def shell_quoted(value: str) -> str:
    """One shell word in one kind of quotes, so that it can be changed again."""
    if needs_no_quotes(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"' + _ESCAPED.sub(r"\\\1", value) + '"'


def needs_no_quotes(value: str) -> bool:
    return bool(_NEEDS_NO_QUOTES.fullmatch(value))


def quoted_as_there(value: str, quote: Quote, uses: Sequence[Use], where: str) -> bytes:
    """The bytes to write for `value` where the text is quoted like `quote` and goes on through `uses`.

    Raises `CannotEdit` where quoting would have to hold through a second reading or a word split.
    """
    if "\0" in value or "\n" in value:
        raise CannotEdit("the new value holds a line end", where=where, next_step="set it by hand")
    if needs_no_quotes(value):
        return value.encode()
    if any(not use.quoted for use in uses):
        raise CannotEdit(
            f"the value {value!r} needs quotes, but it goes through an expansion without quotes, which would cut it",
            where=where, next_step="put the expansion in double quotes, then try again",
        )
    if quote is Quote.BARE:
        return shell_quoted(value).encode("utf-8", "surrogateescape")
    if quote is Quote.DOUBLE:
        return _ESCAPED.sub(r"\\\1", value).encode("utf-8", "surrogateescape")
    if quote is Quote.SINGLE and "'" not in value:
        return value.encode("utf-8", "surrogateescape")
    raise CannotEdit(
        f"the value {value!r} needs quotes, and it stands in text that is read twice",
        where=where, next_step="write this value by hand",
    )
