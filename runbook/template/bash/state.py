"""What the shell would know at a point of the script: variables, arrays, exports, functions, arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import is_not

from tree_sitter import Node

from runbook.template.bash.words import Atom, Token, plain, text_of


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable's value. `site` is where the value's word is written, (-1, -1) for one that is not in the file."""

    atoms: tuple[Atom, ...] = ()
    elements: tuple[Token, ...] | None = None
    """An array's elements; None for a plain variable."""
    line: int = 0
    site: tuple[int, int] = (-1, -1)

    @property
    def unknown(self) -> str:
        return next((atom.unknown for atom in self.atoms if atom.unknown), "")


def not_known(reason: str, line: int) -> Binding:
    return Binding((Atom("", unknown=reason),), None, line)


@dataclass(slots=True)
class State:
    """The walker's own notebook; copied for branches and subshells."""

    variables: dict[str, Binding] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Node] = field(default_factory=dict)
    positional: tuple[Token, ...] | None = None
    """The script's or function's own arguments; None when they are not known."""
    sourced: tuple[str, ...] = ()
    """Files read by `source` so far: ("env.sh at line 12",)."""
    export_all: bool = False
    local: dict[str, Binding | None] | None = None
    """In a function: what its local variables were before; None outside of functions."""
    stopped: str = ""
    """"exit" or "return" was reached: what follows in the script, or in the function, does not run."""

    def copy(self) -> State:
        return State(
            dict(self.variables), set(self.exported), dict(self.functions), self.positional, self.sourced,
            self.export_all, self.local, self.stopped,
        )


    def become(self, other: State) -> None:
        """Go on as that branch does."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))


_ARITHMETIC_CHANGE = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\[[^]]*\]\s*)?(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)"
)


def change_by_arithmetic(state: State, text: str, line: int) -> None:
    """`(( MBS /= 2 ))`, `let i++`: variables that arithmetic sets are not followed."""
    for match in _ARITHMETIC_CHANGE.finditer(text):
        name = match[1] or match[2]
        state.variables[name] = not_known(f"{name} is set by arithmetic at line {line}", line)


def merge(state: State, branches: Sequence[State], covers_all: bool, where: str) -> None:
    """Go on after branches: what all agree on stays, what differs is conditional or unknown.

    `covers_all` is False when no branch may have run. `where` is "the `if` at line 12".
    """
    ways = [branch for branch in branches if not branch.stopped]
    if not ways:
        if branches and covers_all:
            state.stopped = "exit" if all(branch.stopped == "exit" for branch in branches) else "return"
        return
    before = state.variables
    if not covers_all:
        ways = [state.copy(), *ways]
    merged = dict(before)
    for name in _touched(before, ways):
        bindings = [way.variables.get(name) for way in ways]
        first = bindings[0]
        if all(binding == first for binding in bindings):
            merged.pop(name, None)
            if first is not None:
                merged[name] = first
        else:
            merged[name] = _differing(name, before.get(name), bindings, where)
    state.variables = merged
    state.exported = set.union(*(way.exported for way in ways))
    for way in ways:
        state.functions.update(way.functions)
    state.sourced = tuple(dict.fromkeys(item for way in ways for item in way.sourced))
    state.positional = ways[0].positional if all(way.positional == ways[0].positional for way in ways) else None
    state.export_all = any(way.export_all for way in ways)


def _touched(before: dict[str, Binding], ways: Sequence[State]) -> dict[str, None]:
    """The names that a branch set or unset: those whose very value is not the one from before.

    A branch starts as a copy, so its names stand in the same order unless it unset one; comparing them side by side
    keeps scripts with hundreds of variables and branches quick.
    """
    names: dict[str, None] = {}
    old = list(before)
    for way in ways:
        now = list(way.variables)
        if now[: len(old)] == old:
            names |= dict.fromkeys(compress(now, map(is_not, way.variables.values(), before.values())))
            names |= dict.fromkeys(now[len(old) :])
        else:
            names |= dict.fromkeys(name for name in now if before.get(name) is not way.variables[name])
            names |= dict.fromkeys(name for name in old if name not in way.variables)
    return names


def _differing(name: str, before: Binding | None, bindings: Sequence[Binding | None], where: str) -> Binding:
    known = [binding for binding in bindings if binding is not None]
    condition = f"inside {where}"
    line = known[-1].line if known else 0
    if before is not None and before.elements is not None:
        kept = before.elements
        if all(way.elements is not None and way.elements[: len(kept)] == kept for way in known):
            added = [way.elements[len(kept) :] for way in known if way.elements is not None]
            extra = tuple(
                replace(token, condition=token.condition or condition) for tokens in added for token in tokens
            )
            return replace(before, elements=kept + extra)
    elif before is not None and before.atoms and all(
        way.elements is None and way.atoms[: len(before.atoms)] == before.atoms for way in known
    ):
        extra_atoms = tuple(
            replace(atom, condition=atom.condition or condition)
            for way in known
            for atom in way.atoms[len(before.atoms) :]
        )
        return replace(before, atoms=before.atoms + extra_atoms)
    texts = {text_of(way.atoms) if way is not None and way.elements is None else None for way in bindings}
    text = next(iter(texts))
    if len(texts) == 1 and text is not None:
        return Binding(plain(text), None, line)
    return not_known(f"{name} is set {condition}, which may not have run", line)
