"""What the shell would know at a point of the script: variables, arrays, exports, functions, arguments. Values are made
of characters that know where they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import compress, pairwise
from operator import is_not
from typing import NamedTuple

from tree_sitter import Node

from runbook.model.template import Unresolved
from runbook.template.budget import MOST_DIGITS, Budget
from runbook.template.text_files import to_text

# Shell words as characters that remember where they were written and through which variables they came.

PLACEHOLDER = "\ue000"
"""Stands for an unknown piece where a text has to be parsed a second time."""


class Quote(StrEnum):
    """How a character was written, so that a new value can be written the same way."""

    BARE = "bare"
    DOUBLE = "double"
    SINGLE = "single"
    NESTED = "nested"
    """Inside a string or heredoc that a second shell reads."""
    NOWHERE = "nowhere"
    """Not in the file: computed, from the environment or from the script's arguments."""


@dataclass(frozen=True, slots=True)
class Use:
    """An expansion as it is written: `$MBS`, `${MBS:-8}`, `$((64 / 8))`."""

    name: str
    start: int
    end: int
    line: int
    quoted: bool
    default: bool = False
    """The text is that of `:-` inside this very expansion."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One character of a value (or one unknown piece, with the reason), and where it stands in the file."""

    char: str
    start: int = -1
    end: int = -1
    quote: Quote = Quote.NOWHERE
    uses: tuple[Use, ...] = ()
    """Expansions that it came through, the one nearest to the command first."""
    unknown: Unresolved | None = None
    condition: str = ""
    """Why it may not be there: "inside the `if` at line 12"."""

    def through(self, use: Use) -> Atom:
        uses = (use, *self.uses)
        return Atom(self.char, self.start, self.end, self.quote, uses, self.unknown, self.condition)


@dataclass(frozen=True, slots=True)
class Token:
    """One argument of a command, or one element of an array.

    `start` to `end` is the word as written in the list it stands in; `level` is how many leading `uses` of its
    atoms lie outside that list (the arrays and strings that the list came through).
    """

    atoms: tuple[Atom, ...]
    start: int
    end: int
    quote: Quote
    line: int
    level: int = 0
    trail: tuple[str, ...] = ()
    condition: str = ""
    in_array: bool = False
    """Its list is an array."""
    several: bool = False
    """An unknown unquoted expansion or `"$@"`: may stand for no argument or for many."""

    @property
    def text(self) -> str | None:
        """The argument, or None when a part of it is unknown."""
        return text_of(self.atoms)

    @property
    def prefix(self) -> str:
        """The argument up to its first unknown part."""
        known = []
        for atom in self.atoms:
            if atom.unknown:
                break
            known.append(atom.char)
        return "".join(known)


def text_of(atoms: Iterable[Atom]) -> str | None:
    known = []
    for atom in atoms:
        if atom.unknown:
            return None
        known.append(atom.char)
    return "".join(known)


def bytes_of(atoms: Iterable[Atom]) -> tuple[bytes, tuple[Atom, ...]]:
    """The text as it is parsed a second time, and the atom that each of its bytes comes from."""
    data = bytearray()
    places: list[Atom] = []
    for atom in atoms:
        encoded = (PLACEHOLDER if atom.unknown else atom.char).encode("utf-8", "surrogateescape")
        data += encoded
        places += [atom] * len(encoded)
    return bytes(data), tuple(places)


def unknown_of(atoms: Iterable[Atom]) -> Unresolved | None:
    """Why the text is not known; None when it is."""
    return next((atom.unknown for atom in atoms if atom.unknown), None)


def why_unknown(atoms: Iterable[Atom]) -> str:
    """The same in words; "" when the text is known."""
    return str(unknown_of(atoms) or "")


def span_of(atoms: Sequence[Atom]) -> tuple[int, int] | None:
    """The one stretch of the file that holds exactly these characters, or None.

    A gap is allowed only between characters of one quoting: an escape or a line end that was joined.
    """
    if not atoms or any(atom.start < 0 or atom.unknown for atom in atoms):
        return None
    first = atoms[0]
    if any(atom.uses != first.uses or atom.quote != first.quote for atom in atoms):
        return None
    for before, after in pairwise(atoms):
        if after.start != before.end:
            return None
    return first.start, atoms[-1].end


def unplaced(text: str, uses: tuple[Use, ...] = ()) -> tuple[Atom, ...]:
    """Characters that stand nowhere in the file."""
    return tuple(Atom(char, uses=uses) for char in text)


def split_words(pieces: Sequence[tuple[Atom, bool]], site: tuple[int, int], line: int) -> list[Token]:
    """Word splitting: unquoted results of expansions are cut at blanks; everything else holds together.

    `pieces` are atoms with "may be cut"; `site` is the whole word as written.
    """
    groups: list[list[tuple[Atom, bool]]] = [[]]
    for atom, cuttable in pieces:
        if cuttable and not atom.unknown and atom.char in " \t\n":
            if groups[-1]:
                groups.append([])
        else:
            groups[-1].append((atom, cuttable))
    if not groups[-1]:
        groups.pop()
    shared = [shared_uses([atom.uses for atom, _ in group]) for group in groups]
    tokens = []
    for index, group in enumerate(groups):
        atoms = tuple(atom for atom, _ in group)
        several = any(cuttable and atom.unknown for atom, cuttable in group)
        condition = next((atom.condition for atom in atoms if atom.condition), "")
        token = Token(atoms, *site, Quote.BARE, line, condition=condition, several=several)
        if len(groups) > 1:
            # Words are in the order in which expansions were entered and left, so a neighbour shares most.
            beside = [shared[at] for at in (index - 1, index + 1) if 0 <= at < len(groups)]
            level = max(len(shared_uses([shared[index], other])) for other in beside)
            token = at_level(token, level) if level else token
        tokens.append(token)
    return tokens


def shared_uses(paths: Sequence[tuple[Use, ...]]) -> tuple[Use, ...]:
    """The expansions that all have in common, from the outermost."""
    first = paths[0]
    length = 0
    while length < len(first) and all(len(path) > length and path[length] == first[length] for path in paths):
        length += 1
    return first[:length]


def at_level(token: Token, level: int) -> Token:
    """The token's place inside the string variable that it shares with its neighbours, `level` expansions in."""
    places = [_place_at_level(atom, level) for atom in token.atoms]
    known = [place for place in places if place is not None]
    first = token.atoms[0]
    return replace(
        token,
        start=min((place[0] for place in known), default=-1),
        end=max((place[1] for place in known), default=-1),
        quote=first.quote if len(first.uses) == level else Quote.DOUBLE,
        level=level,
        trail=tuple(f"{use.name} at line {use.line}" for use in first.uses[:level]),
    )


def _place_at_level(atom: Atom, level: int) -> tuple[int, int] | None:
    if len(atom.uses) > level:
        return atom.uses[level].start, atom.uses[level].end
    return (atom.start, atom.end) if atom.start >= 0 else None


# What the shell would know at a point of the script: variables, arrays, exports, functions, arguments.

@dataclass(frozen=True, slots=True)
class Binding:
    """A variable's value. `site` is where the value's word is written, (-1, -1) for one that is not in the file."""

    atoms: tuple[Atom, ...] = ()
    elements: tuple[Token, ...] | None = None
    """An array's elements; None for a plain variable."""
    line: int = 0
    site: tuple[int, int] = (-1, -1)

    @property
    def unknown(self) -> Unresolved | None:
        return unknown_of(self.atoms)


def not_known(why: str, line: int, code: str = "") -> Binding:
    return Binding((Atom("", unknown=Unresolved(why, code)),), None, line)


class Sourced(NamedTuple):
    """A file that the script reads as its own."""

    path: str
    line: int
    followed: bool = False
    """Its text is known, and what it sets."""

    def __str__(self) -> str:
        return f"{self.path} at line {self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A command that may run, with its arguments and the environment that the script gives it. One is like no other."""

    argv: tuple[Token, ...]
    prefix: tuple[tuple[str, Binding], ...]
    """`NAME=value` in front of it."""
    exported: dict[str, Binding]
    line: int
    start: int
    end: int
    condition: str = ""
    outer: Command | None = None
    """The command that runs this one: `srun` of `srun bash -c '…'`."""
    nested: bool = False
    """Stands in a string or heredoc that is read by a second shell."""
    sourced: tuple[Sourced, ...] = ()


@dataclass(slots=True)
class State:
    """The walker's own notebook; copied for branches and subshells."""

    variables: dict[str, Binding] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Node] = field(default_factory=dict)
    positional: tuple[Token, ...] | None = None
    """The script's or function's own arguments; None when they are not known."""
    sourced: tuple[Sourced, ...] = ()
    """Files read by `source` so far."""
    export_all: bool = False
    local: dict[str, Binding | None] | None = None
    """In a function: what its local variables were before; None outside of functions."""
    stopped: str = ""
    """"exit" or "return" was reached: what follows in the script, or in the function, does not run."""
    budget: Budget = field(default_factory=Budget)
    """One for all that is followed in a script."""

    def copy(self) -> State:
        self.budget.spend(1 + len(self.variables) // 8)
        return State(
            dict(self.variables), set(self.exported), dict(self.functions), self.positional, self.sourced,
            self.export_all, self.local, self.stopped, self.budget,
        )

    @property
    def not_followed(self) -> Sourced | None:
        """The last file that was read by `source` and whose text is not known."""
        return next((item for item in reversed(self.sourced) if not item.followed), None)

    def forget(self, name: str, reason: str, line: int) -> None:
        """The variable is set to something that is not followed."""
        self.variables[name] = not_known(reason, line, name)

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
        state.forget(name, f"{name} is set by arithmetic at line {line}", line)


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
    elif before is not None and before.atoms and all(_goes_on(name, before, way) for way in known):
        extra_atoms = tuple(
            replace(atom, condition=atom.condition or condition)
            for way in known
            for atom in way.atoms[len(before.atoms) :]
        )
        return replace(before, atoms=before.atoms + extra_atoms)
    texts = {text_of(way.atoms) if way is not None and way.elements is None else None for way in bindings}
    text = next(iter(texts))
    if len(texts) == 1 and text is not None:
        return Binding(unplaced(text), None, line)
    options = _options_of_branches(known, condition)
    if options:
        return Binding(options, None, line)
    return not_known(f"{name} is set {condition}, which may not have run", line, name)


def _options_of_branches(ways: Sequence[Binding], condition: str) -> tuple[Atom, ...]:
    """Options that some of the branches put into a variable, each with its condition; () where a branch puts something
    else there."""
    texts = [text_of(way.atoms) for way in ways]
    if any(text is None or way.elements is not None for text, way in zip(texts, ways)):
        return ()
    filled = [way for way, text in zip(ways, texts) if text and text.strip()]
    if not all(re.match(r"\s*--?[A-Za-z]", text_of(way.atoms) or "") for way in filled):
        return ()
    found: list[Atom] = []
    for way in filled:
        found += [Atom(" ", condition=condition)] if found else []
        found += [replace(atom, condition=atom.condition or condition) for atom in way.atoms]
    return tuple(found)


def _goes_on(name: str, before: Binding, way: Binding) -> bool:
    """Whether a value is the one from before with more behind it: `A+=" --x"`, `A="$A --x"`."""
    kept = way.atoms[: len(before.atoms)]
    if way.elements is not None or len(kept) < len(before.atoms):
        return False
    return all(
        now == old or (now.uses[:1] and now.uses[0].name == name and replace(now, uses=now.uses[1:]) == old)
        for now, old in zip(kept, before.atoms)
    )


# Whole-number arithmetic of `$(( … ))` over known variables: + - * / % and parentheses, nothing else.

_LARGEST = 1 << 62


def evaluate_arithmetic(node: Node, variable: Callable[[str], int | None]) -> int | None:
    """The value of an arithmetic node, or None when a part is not known or not plain whole-number arithmetic."""
    text = (node.text or b"").decode("utf-8", "replace")
    kind = node.type
    if kind in ("number", "word"):
        if len(text) > MOST_DIGITS and not text.isidentifier():
            return None
        return int(text) if text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0") else (
            variable(text) if text.isidentifier() else None
        )
    if kind == "variable_name":
        return variable(text)
    if kind in ("simple_expansion", "expansion"):
        names = [child for child in node.children if child.type == "variable_name"]
        simple = len(node.named_children) == 1 and len(names) == 1
        return variable(to_text(names[0].text or b"")) if simple else None
    if kind in ("parenthesized_expression", "arithmetic_expansion"):
        inner = node.named_children
        return evaluate_arithmetic(inner[0], variable) if len(inner) == 1 else None
    if kind == "binary_expression" and len(node.children) == 3:
        left, operator, right = node.children
        return _apply(operator.type, evaluate_arithmetic(left, variable), evaluate_arithmetic(right, variable))
    return None


def _apply(operator: str, left: int | None, right: int | None) -> int | None:
    if left is None or right is None or left < 0 or right < 0:
        return None
    value: int | None = None
    if operator == "+":
        value = left + right
    elif operator == "-":
        value = left - right
    elif operator == "*":
        value = left * right
    elif operator in ("/", "%") and right:
        value = left // right if operator == "/" else left % right
    return value if value is not None and abs(value) < _LARGEST else None
