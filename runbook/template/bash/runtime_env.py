"""The runtime environment of `ray job submit` as JSON on the command line: what of it reaches every worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.template import TemplateFile
from runbook.template.bash.words import PLACEHOLDER, Atom, Quote, Token, shared_uses, unknown_of
from runbook.template.config import json_file
from runbook.template.config.document import Config, Form, Leaf
from runbook.template.config.write import into_brackets
from runbook.template.errors import CannotEdit
from runbook.template.splices import Change

_OPTION = "--runtime-env-json"
_VARIABLES = "env_vars"


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """The JSON, and the atom of the script that each of its bytes comes from."""

    config: Config
    atoms: tuple[Atom, ...]
    line: int
    level: int
    """Expansions that the whole JSON came through."""

    def variable(self, name: str) -> tuple[tuple[Atom, ...], tuple[int, int]] | None:
        """A variable's value without its quotes, and its place in the file; None when it is not there."""
        if self.config.broken is not None:
            reason = f"the JSON of {_OPTION} at line {self.line} is not known or not understood"
            return (Atom("", unknown=reason),), (-1, -1)
        found = [leaf for leaf in self.config.leaves if leaf.path == (_VARIABLES, name)]
        if len(found) > 1:
            return (Atom("", unknown=f"{name} stands twice in the JSON of {_OPTION} at line {self.line}"),), (-1, -1)
        if not found:
            around = [leaf for leaf in self.config.leaves if leaf.path == (_VARIABLES,)]
            if around:
                return (Atom("", unknown=f"{_VARIABLES} in {_OPTION} at line {self.line} is no object"),), (-1, -1)
            return None
        return self._value(found[0])

    def _value(self, leaf: Leaf) -> tuple[tuple[Atom, ...], tuple[int, int]]:
        inner = _distinct(self.atoms[leaf.start + 1 : leaf.end - 1])
        if leaf.form is not Form.STRING or "\\" in leaf.raw:
            return (Atom("", unknown=f"a value of {_OPTION} at line {self.line} is no plain text"),), (-1, -1)
        quote = self.atoms[leaf.start]
        return inner, (quote.end, self.atoms[leaf.end - 1].start)

    def names(self) -> tuple[str, ...]:
        """The variables that it sets."""
        return tuple(leaf.path[1] for leaf in self.config.leaves if len(leaf.path) == 2 and leaf.path[0] == _VARIABLES)

    def trouble(self) -> str:
        """Why nothing is known of it; "" when it is understood."""
        return unknown_of(self.atoms) or (self.config.broken.what if self.config.broken is not None else "")

    def added(self, name: str, value: str, where: str) -> Change:
        """The variable written into `env_vars`. Raises `CannotEdit` where the JSON is not written out."""
        if self.config.broken is not None:
            raise CannotEdit(
                f"the JSON of {_OPTION} is not known or not understood, so {name} cannot be added to it", where=where,
                next_step=f"add {name} to its {_VARIABLES} by hand",
            )
        holders = {holder.path: holder for holder in self.config.holders}
        holder = holders.get((_VARIABLES,)) or holders.get(())
        if holder is None:
            raise CannotEdit(f"the value of {_OPTION} is no object", where=where)
        rest = (name,) if holder.path else (_VARIABLES, name)
        changes = into_brackets(self.config, holder, rest, value, where, Form.STRING)
        if len(changes) != 1 or changes[0].start != changes[0].end:
            raise CannotEdit(f"there is no room in the JSON of {_OPTION}", where=where, next_step="add it by hand")
        before = self.atoms[changes[0].start - 1]
        if before.start < 0 or before.unknown or len(before.uses) != self.level:
            raise CannotEdit(f"the JSON of {_OPTION} is not written out here", where=where, next_step="add it by hand")
        return Change(before.end, before.end, _shell(changes[0].after.decode(), before.quote, where).encode())


def _shell(text: str, quote: Quote, where: str) -> str:
    """JSON as it is written between the quotes that stand around it."""
    if quote is Quote.SINGLE and "'" not in text:
        return text
    if quote is Quote.DOUBLE:
        return "".join(f"\\{letter}" if letter in '$`"\\' else letter for letter in text)
    raise CannotEdit(
        f"the JSON of {_OPTION} is quoted in a way that cannot be continued", where=where,
        next_step="put it into single quotes, then try again",
    )


def encoded(value: str) -> str:
    """A value between JSON's quotes."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def runtime_environment(argv: Sequence[Token]) -> RuntimeEnvironment | None:
    """What `--runtime-env-json` says among these words; None when it is not given."""
    found = None
    for at, token in enumerate(argv):
        if token.prefix.startswith(f"{_OPTION}="):
            found = _read(token.atoms[len(_OPTION) + 1 :], token)
        elif token.text == _OPTION and at + 1 < len(argv):
            found = _read(argv[at + 1].atoms, argv[at + 1])
    return found


def _read(atoms: tuple[Atom, ...], token: Token) -> RuntimeEnvironment:
    data = bytearray()
    places: list[Atom] = []
    for atom in atoms:
        piece = (PLACEHOLDER if atom.unknown else atom.char).encode("utf-8", "surrogateescape")
        data += piece
        places += [atom] * len(piece)
    config = json_file.read_bytes(TemplateFile("", ""), bytes(data))
    level = len(shared_uses([atom.uses for atom in atoms])) if atoms else 0
    return RuntimeEnvironment(config, tuple(places), token.line, level)


def _distinct(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """One atom a character, where a character has several bytes."""
    found: list[Atom] = []
    for atom in atoms:
        if not found or atom is not found[-1]:
            found.append(atom)
    return tuple(found)
