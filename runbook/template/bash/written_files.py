"""Configuration that a script writes before the program reads it: a heredoc or a printed text that goes into a file.
What it sets is read where the script has it, and changed there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from runbook.model.template import ParameterNames, SettingKind, TemplateFile, Unresolved
from runbook.template.bash.arguments import Occurrence, shown_use
from runbook.template.bash.expansion import Expander, Scope
from runbook.template.bash.launchers import starts_program
from runbook.template.bash.state import Atom, Command, Quote, Token, span_of
from runbook.template.config.config_tree import Config, Form, Leaf
from runbook.template.config.edit import deciding_leaf, read_config
from runbook.template.text_files import Language, to_text

_SUFFIXES = {".json": Language.JSON, ".yaml": Language.YAML, ".yml": Language.YAML}
_CHANGES = frozenset({"sed", "jq", "yq", "perl", "envsubst", "patch"})
"""Programs that make another text of a file."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A text that the script writes into a file."""

    path: tuple[Atom, ...]
    text: tuple[Atom, ...]
    line: int
    condition: str = ""
    appended: bool = False

    @property
    def shown(self) -> str:
        """Its name, with the code of what is not known."""
        return "".join(f"${{{atom.unknown.code}}}" if atom.unknown else atom.char for atom in self.path)


def written_by(expander: Expander, node: Node, scope: Scope, text: Sequence[Atom] | None) -> Iterator[WrittenFile]:
    """What a statement with a redirection writes. `text`: its heredoc, None where it has none."""
    body = node.child_by_field_name("body")
    name = body.child_by_field_name("name") if body is not None and body.type == "command" else None
    command = scope.text(name) if name is not None else ""
    if body is None or command not in ("cat", "tee", "echo", "printf"):
        return
    words = [child for child in body.named_children if child.type not in ("command_name", "file_redirect")]
    if text is None:
        if command not in ("echo", "printf") or len(words) != 1:
            return
        text = expander.tokens(words[0], scope)[0].atoms if expander.tokens(words[0], scope) else ()
    redirects = [
        child for part in (node, body, *(part for part in node.named_children if part.type == "heredoc_redirect"))
        for child in part.named_children if child.type == "file_redirect"
    ]
    for redirect in redirects:
        target = redirect.child_by_field_name("destination")
        sign = next((child.type for child in redirect.children if child.type in (">", ">>", ">|", "&>")), "")
        if target is not None and sign:
            yield _written(expander.tokens(target, scope), text, scope.line(node), scope.condition, sign == ">>")
    if command == "tee" and len(words) == 1:
        yield _written(expander.tokens(words[0], scope), text, scope.line(node), scope.condition, False)


def _written(
    target: Sequence[Token], text: Sequence[Atom], line: int, condition: str, appended: bool
) -> WrittenFile:
    return WrittenFile(target[0].atoms if target else (), tuple(text), line, condition, appended)


@dataclass(frozen=True, slots=True)
class Written:
    """The configuration that a script writes and that a program of it is given, one file."""

    file: WrittenFile
    trouble: str = ""
    """Why nothing is known of what it sets."""

    def occurrence(self, name: ParameterNames) -> Occurrence | None:
        """The parameter as this file has it; None where it certainly has not."""
        config = _read(self.file)
        if config is None or name.kind is not SettingKind.KEY:
            return None
        place = f"written to {self.file.shown} at line {self.file.line}"
        leaf, problem = deciding_leaf(config, name)
        if leaf is None and not problem:
            return None
        spelling = ".".join(leaf.path) if leaf is not None else name.spellings[0]
        if self.trouble or problem or leaf is None or leaf.start < 0:
            why = self.trouble or f"{problem or 'the value is not plain'} ({place})"
            return Occurrence(spelling, (), (-1, -1), Quote.NOWHERE, 0, self.file.line, (place,), "", Unresolved(why))
        atoms = self._value(leaf)
        span = span_of(atoms) or (-1, -1)
        quote = atoms[0].quote if atoms else Quote.NOWHERE
        uses = tuple(dict.fromkeys(shown_use(use) for atom in atoms for use in atom.uses))
        encoding = "json" if leaf.form is Form.STRING and config.language is Language.JSON else ""
        return Occurrence(
            spelling, atoms, span, quote, 0, self.file.line, (place, *uses), self.file.condition, encoding=encoding
        )

    def _value(self, leaf: Leaf) -> tuple[Atom, ...]:
        _, places = _bytes_of(self.file.text)
        start, end = leaf.start, leaf.end
        if leaf.form is Form.STRING and leaf.raw[:1] in "\"'" and len(leaf.raw) > 1:
            start, end = start + 1, end - 1
        found: list[Atom] = []
        for atom in places[start:end]:
            if not found or atom is not found[-1]:
                found.append(atom)
        return tuple(found)


def configurations(files: Sequence[WrittenFile], commands: Sequence[Command]) -> tuple[Written, ...]:
    """Of the files that a script writes, those that a program is given."""
    given = [
        atoms for command in commands if starts_program(command) for token in command.argv
        for atoms in (token.atoms, _behind_equals(token.atoms))
    ]
    found: dict[tuple[str, ...], Written] = {}
    for file in files:
        key = signature(file.path)
        if not key or not any(same_file(file.path, atoms) for atoms in given):
            continue
        trouble = ""
        changed = next((item for item in commands if _changes(item, file)), None)
        if key in found and file.appended:
            trouble = f"{file.shown} is written in several pieces (line {file.line})"
        elif changed is not None:
            trouble = f"{file.shown} is changed by {changed.argv[0].text} at line {changed.line}"
        found[key] = Written(file, trouble)
    return tuple(item for item in found.values() if _read(item.file) is not None)


def _changes(command: Command, file: WrittenFile) -> bool:
    name = (command.argv[0].text or "").rsplit("/", 1)[-1] if command.argv else ""
    return name in _CHANGES and any(same_file(file.path, token.atoms) for token in command.argv[1:])


def signature(atoms: Iterable[Atom]) -> tuple[str, ...]:
    """A path as far as it is known, with the code of what is not."""
    return tuple(f"${atom.unknown.code or atom.unknown.why}" if atom.unknown else atom.char for atom in atoms)


def same_file(one: Sequence[Atom], other: Sequence[Atom]) -> bool:
    """Whether two words name one file; a folder in front that differs is taken for the same place."""
    first, second = signature(one), signature(other)
    if not first or not second:
        return False
    return first == second or (
        _last_part(first) == _last_part(second) and "".join(first[-5:]).endswith(tuple(_SUFFIXES))
        and (first[0][:1] == "$" or second[0][:1] == "$" or "/" not in first or "/" not in second)
    )


def _last_part(path: tuple[str, ...]) -> tuple[str, ...]:
    at = max((index for index, char in enumerate(path) if char == "/"), default=-1)
    return path[at + 1 :]


def _behind_equals(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    at = next((index for index, atom in enumerate(atoms) if atom.char == "="), -1)
    return atoms[at + 1 :] if at >= 0 else ()


@lru_cache(maxsize=16)
def _read(file: WrittenFile) -> Config | None:
    """None for what is no configuration."""
    suffix = next((end for end in _SUFFIXES if file.shown.endswith(end)), "")
    data, _ = _bytes_of(file.text)
    language = _SUFFIXES.get(suffix) or (Language.JSON if re.match(rb"\s*\{", data) else None)
    return read_config(TemplateFile(file.shown, to_text(data)), language) if language is not None else None


def _bytes_of(atoms: Sequence[Atom]) -> tuple[bytes, tuple[Atom, ...]]:
    """The text with a number in place of what is not known, and the atom that each byte comes from."""
    data = bytearray()
    places: list[Atom] = []
    for atom in atoms:
        encoded = b"0" if atom.unknown else atom.char.encode("utf-8", "surrogateescape")
        data += encoded
        places += [atom] * len(encoded)
    return bytes(data), tuple(places)

