"""A text that is read as a shell's: its characters, and where each of them stands in the file."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tree_sitter import Node

from runbook.template.bash.words import Atom, Quote

Piece = tuple[Atom, bool]
"""An atom, and whether word splitting may cut there."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text that was parsed, and where its bytes stand in the file: itself, or a string that a shell reads again."""

    data: bytes
    atoms: tuple[Atom, ...] | None = None
    """None: the file itself. Otherwise the outer atom of each byte."""
    first_line: int = 1
    what: str = ""

    def atom(self, start: int, end: int, char: str, quote: Quote) -> Atom:
        """The character that bytes `start` to `end` of this text stand for."""
        if self.atoms is None:
            return Atom(char, start, end, quote)
        first, last = self.atoms[start], self.atoms[end - 1]
        if first.unknown:
            return first
        placed = first.start >= 0 and last.start >= 0 and first.uses == last.uses
        return replace(
            first, char=char, start=first.start if placed else -1, end=last.end if placed else -1,
            quote=Quote.NESTED if placed else Quote.NOWHERE, condition=first.condition or last.condition,
        )

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Bytes of the file that hold this stretch, or (-1, -1)."""
        if self.atoms is None:
            return start, end
        inside = self.atoms[start:end]
        if not inside or any(atom.start < 0 or atom.unknown for atom in inside):
            return -1, -1
        return inside[0].start, inside[-1].end

    def line(self, node: Node) -> int:
        return node.start_point[0] + self.first_line

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def literal(self, start: int, end: int, quote: Quote, escapes: str = "none") -> list[Piece]:
        """Text between these bytes, with no expansions in it."""
        return [(self.atom(at, to, char, quote), False) for char, at, to in characters(self.data, start, end, escapes)]


def characters(data: bytes, start: int, end: int, escapes: str) -> list[tuple[str, int, int]]:
    """Characters with their bytes. `escapes`: "none", "double" (inside double quotes) or "all"."""
    found: list[tuple[str, int, int]] = []
    position = start
    while position < end:
        first = position
        if escapes != "none" and data[position] == 0x5C and position + 1 < end:
            following = data[position + 1]
            if following == 0x0A:
                position += 2
                continue
            if escapes == "all" or following in b'$`"\\':
                position += 1
        width = _width(data[position])
        char = data[position : min(position + width, end)].decode("utf-8", "surrogateescape")
        position = min(position + width, end)
        found.append((char, first, position))
    return found


def _width(byte: int) -> int:
    if byte < 0xC0:
        return 1
    return 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
