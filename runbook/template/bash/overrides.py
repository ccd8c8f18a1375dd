"""Hydra's overrides on a command line: `key=value`, `+key=value`, `++key=value`, `~key`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.model.template import Edit, SettingKind
from runbook.template.bash.commands import program_at
from runbook.template.bash.runs import Command
from runbook.template.bash.words import Atom, Token, text_of

if TYPE_CHECKING:
    from runbook.template.bash.script import Script

_OVERRIDE = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w.@/-]*(?:\.[\w-]+)*=")
_CONFIG_OPTIONS = re.compile(r"(?:--config-(?:name|path|dir)|-c[npd])(?:=|$)")
_HYDRA_FLAGS = frozenset({"--multirun", "--run", "--resolve", "--shell-completion"})
_UNQUOTED = re.compile(r"[A-Za-z0-9_./:+%*@?|-]+")
"""What Hydra's grammar takes as one value without quotes. A comma would make a sweep of it."""


def key_of(spelling: str) -> str:
    return spelling.lstrip("+~")


def is_override(text: str) -> bool:
    return bool(_OVERRIDE.match(text))


def parts(token: Token, spelling: str) -> tuple[str, tuple[Atom, ...], str] | None:
    """An override of this key: how it is spelt, its value's atoms, and why it has none; None for another word."""
    key = key_of(spelling)
    text = token.prefix
    prefix = text[: len(text) - len(text.lstrip("+~"))]
    rest = text[len(prefix) :]
    if prefix not in ("", "+", "++", "~") or not rest.startswith(key):
        return None
    tail = rest[len(key) :]
    if prefix == "~":
        if tail and not tail.startswith("="):
            return None
        return f"~{key}", (), f"~{key} at line {token.line} takes the key out of the configuration"
    if not tail.startswith("="):
        return None
    return f"{prefix}{key}", token.atoms[len(prefix) + len(key) + 1 :], ""


def unquoted(atoms: tuple[Atom, ...]) -> tuple[tuple[Atom, ...], bool]:
    """A value without the quotes that Hydra itself takes away, and whether it had some."""
    text = text_of(atoms)
    if text is None or len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return atoms, False
    inner = text[1:-1]
    return (atoms[1:-1], True) if inner and text[0] not in inner and "\\" not in inner else (atoms, False)


def written(value: str, *, inside_quotes: bool = False) -> str | None:
    """A value as Hydra reads it; None for one that it could not be told to read so."""
    if inside_quotes:
        return value if not set(value) & set("\"'\\$") else None
    if _UNQUOTED.fullmatch(value) or (value[:1] + value[-1:] in ("[]", "{}") and "\\" not in value):
        return value
    if "\\" in value or "$" in value or ("'" in value and '"' in value):
        return None
    return f'"{value}"' if "'" in value else f"'{value}'"


def like(present: str | None, new: str) -> str:
    """`True` beside `True`, `true` beside `true`."""
    return new.capitalize() if present in ("True", "False") and new.lower() in ("true", "false") else new


def alike(kind: SettingKind, present: str | None, wanted: str | None) -> bool:
    """Whether two values are the same; for a key, `True` is `true`."""
    if present == wanted or present is None or wanted is None:
        return present == wanted
    pair = {present.lower(), wanted.lower()}
    return kind is SettingKind.KEY and len(pair) == 1 and pair <= {"true", "false"}


def takes(script: Script, edit: Edit) -> bool:
    """Whether a key that is set nowhere can be given on this script's command line."""
    if edit.spellings[0].startswith(("+", "-")):
        return True
    return any(_last(command) is not None or _configured(command) for command in _programs(script))


def last_override(command: Command) -> Token | None:
    """The last override that is a word of its own in the command or in an array: a further one stands behind it."""
    return _last(command)


def accepts_overrides(command: Command) -> bool:
    return _last(command) is not None or _configured(command)


def _programs(script: Script) -> Sequence[Command]:
    return script.training or [item for item in script.walker.commands if program_at(item.argv) is not None]


def _arguments(command: Command) -> Sequence[Token]:
    program = program_at(command.argv)
    return command.argv[program + 1 :] if program is not None else ()


def _last(command: Command) -> Token | None:
    words = _arguments(command)
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


def _configured(command: Command) -> bool:
    return any(_CONFIG_OPTIONS.match(token.prefix) for token in _arguments(command))


def last_word(command: Command) -> Token | None:
    """The last word that is written out on the command itself, where options with their values end."""
    words = [token for token in command.argv if token.level == 0 and token.end >= 0 and not token.several]
    return words[-1] if words else None
