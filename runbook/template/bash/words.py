"""Shell words as characters that remember where they were written and through which variables they came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

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
    unknown: str = ""
    condition: str = ""
    """Why it may not be there: "inside the `if` at line 12"."""

    def through(self, use: Use) -> Atom:
        return replace(self, uses=(use, *self.uses))


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


def unknown_of(atoms: Iterable[Atom]) -> str:
    """Why the text is not known; "" when it is."""
    return next((atom.unknown for atom in atoms if atom.unknown), "")


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


def plain(text: str, uses: tuple[Use, ...] = ()) -> tuple[Atom, ...]:
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
            others = [shared_uses([shared[index], other]) for at, other in enumerate(shared) if at != index]
            level = max(len(other) for other in others)
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
    places = [_place(atom, level) for atom in token.atoms]
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


def _place(atom: Atom, level: int) -> tuple[int, int] | None:
    if len(atom.uses) > level:
        return atom.uses[level].start, atom.uses[level].end
    return (atom.start, atom.end) if atom.start >= 0 else None
