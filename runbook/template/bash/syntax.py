"""A job script to byte ranges: its `#SBATCH` lines, its syntax tree, what the parser is known to miss, and where the
text of a second shell stands in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from runbook.template.bash.state import Atom, Quote, Use
from runbook.template.budget import refuse_deep
from runbook.template.text_files import line_of, to_text

# Parse a shell script to byte ranges, and find what the parser is known to miss.

_BACKQUOTE_COMMENT = re.compile(rb"(?<=[ \t])`#[^`\n]*`(?=[ \t\\]|\r?\n|$)")
"""The idiom for a comment inside a continued command: a command substitution that holds only a comment. The
grammar takes the comment to the end of the line and loses the closing backquote, so it is blanked before parsing."""


_ASSIGNED = rb"""[A-Za-z_]\w*=(?:[\w./:,@%+-]|"[^"\n$`\\]*"|'[^'\n]*'|\$\w+)*"""
_ASSIGNMENTS_AT_AN_END = re.compile(
    rb"(?m)(?:^|;|\b(?:then|else|do)[ \t]|\{[ \t])[ \t]*(" + _ASSIGNED + rb"(?:[ \t]+" + _ASSIGNED + rb")+)"
    rb"(?=[ \t\r]*\n\s*(?:elif|else|fi|done|esac|\})(?=[\s;]|$))"
)
"""Assignments beside one another that end a branch. The grammar takes the word on the next line for a command behind
them, and loses the structure, so each is ended by itself before parsing."""


def _apart(match: re.Match[bytes]) -> bytes:
    before = match.string[: match.start(1)].rpartition(b"\n")[0]
    if before.endswith(b"\\"):
        return match.group()  # words of a command that began on an earlier line
    text = bytearray(match.group())
    ends = [item.end() for item in re.finditer(_ASSIGNED, match.group(1))][:-1]
    for end in ends:
        text[match.start(1) - match.start() + end] = ord(";")
    return bytes(text)


_RESERVED = frozenset({b"else", b"elif", b"fi", b"then", b"do", b"done", b"esac", b"}"})
"""Words that begin no command: where the grammar takes one for a command, it has lost the structure."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """Something that makes a script other than it looks, or that the parser could not read."""

    line: int
    what: str
    blocks: bool
    """True: nothing in this file can be edited safely."""


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


@cache
def _command_names() -> Query:
    return Query(Language(tree_sitter_bash.language()), "(command_name) @name")

_PLACEHOLDER = re.compile(rb"""(?<=\w)=<[A-Za-z][^<>\n"'`$()]{0,80}>[\w./-]{0,80}(?=[ \t]*(?:\\?\r?\n|&&|\|\||;|$))""")
"""`NAME=<your path>`, which a published script has where its user writes a value: bash has no such assignment."""


def parse(data: bytes) -> Node:
    """The syntax tree's root. Byte offsets are those of `data`. Raises `TooMuch` for one that is too deep."""
    blanked = _BACKQUOTE_COMMENT.sub(lambda match: b" " * len(match.group()), data)
    blanked = _ASSIGNMENTS_AT_AN_END.sub(_apart, blanked)
    blanked = _PLACEHOLDER.sub(lambda match: b"=" + b"_" * (len(match.group()) - 1), blanked)
    root = _parser().parse(blanked).root_node
    refuse_deep(root)
    return root


def broken_nodes(root: Node) -> Iterator[Node]:
    """ERROR and MISSING nodes, in order."""
    if not root.has_error:
        return
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            stack.extend(reversed(node.children))


def hazards(data: bytes, root: Node) -> tuple[Hazard, ...]:
    """What a person has to mend first (`blocks`), or at least to know."""
    found: list[Hazard] = []
    if b"\r\n" in data:
        found.append(
            Hazard(line_of(data, data.index(b"\r\n")), "the file has DOS line ends, which Slurm and bash refuse", True)
        )
    found += _heredocs(data, root)
    found += [
        Hazard(node.start_point[0] + 1, "the shell syntax is not understood here", False)
        for node in broken_nodes(root)
    ]
    lines = data.split(b"\n")
    for node in QueryCursor(_command_names()).captures(root).get("name", []):
        if node.text is None:
            continue
        if node.text.startswith(b"-"):
            found.append(_orphan(lines, node))
        elif node.text in _RESERVED:
            word = to_text(node.text)
            found.append(Hazard(node.start_point[0] + 1, f"{word!r} stands where a command should", True))
    return tuple(sorted(found, key=lambda hazard: hazard.line))


def tree_nodes(root: Node) -> Iterator[Node]:
    """All nodes, in order of the text."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _orphan(lines: Sequence[bytes], node: Node) -> Hazard:
    """A command that is an option: the command above ended before it was meant to."""
    line = node.start_point[0] + 1
    above = lines[line - 2].rstrip(b"\r") if line > 1 else b""
    option = (node.text or b"").decode("utf-8", "replace")[:40]
    if above.endswith((b" ", b"\t")) and above.rstrip(b" \t").endswith(b"\\"):
        cause = f"there is a blank after the backslash that ends line {line - 1}"
    elif above.lstrip().startswith(b"#"):
        cause = f"the comment on line {line - 1} ends the command above it"
    elif not above.strip():
        cause = f"the empty line {line - 1} ends the command above it"
    else:
        cause = f"line {line - 1} does not end with a backslash"
    return Hazard(line, f"{option} stands at the start of a command and is no argument: {cause}", True)


def _heredocs(data: bytes, root: Node) -> list[Hazard]:
    """Heredocs without their end word on a line of its own: neither the grammar nor `bash -n` reports them."""
    found: list[Hazard] = []
    for node in tree_nodes(root) if b"<<" in data else ():
        if node.type != "heredoc_redirect":
            continue
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        end = next((child for child in node.children if child.type == "heredoc_end"), None)
        if start is None:
            continue
        word = (start.text or b"").strip(b"'\"\\")
        if end is not None:
            last = data.rfind(b"\n", 0, end.end_byte) + 1
            stop = data.find(b"\n", end.end_byte)
            line = data[last : len(data) if stop < 0 else stop]
            dash = any(child.type == "<<-" for child in node.children)
            if (line.lstrip(b"\t") if dash else line) == word:
                continue
        shown = word.decode("utf-8", "replace")
        what = f"the heredoc that starts here has no closing {shown!r} alone on a line"
        found.append(Hazard(start.start_point[0] + 1, what, True))
    return found


# A text that is read as a shell's: its characters, and where each of them stands in the file.

Piece = tuple[Atom, bool]
"""An atom, and whether word splitting may cut there."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text that was parsed, and where its bytes stand in the file: itself, or a string that a shell reads again."""

    data: bytes
    atoms: tuple[Atom, ...] | None = None
    """None: the file itself. Otherwise the outer atom of each byte."""
    first_line: int = 1
    paths: Counter[tuple[Use, ...]] = field(default_factory=Counter)
    """The expansions that the outer atoms came through, and how many of them each way."""
    elsewhere: bool = False
    """Of a file of its own, so that its lines are none of the script's."""

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
        return 0 if self.elsewhere else node.start_point[0] + self.first_line

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
        width = _width(data, position)
        char = data[position : min(position + width, end)].decode("utf-8", "surrogateescape")
        position = min(position + width, end)
        found.append((char, first, position))
    return found


def _width(data: bytes, position: int) -> int:
    """Of the letter there; a byte that is no UTF-8 is one by itself, and takes no quote behind it along."""
    byte = data[position]
    width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
    return width if all(0x80 <= each < 0xC0 for each in data[position + 1 : position + width]) else 1


# The `#SBATCH` lines at the head of a job script, as Slurm reads them.

_DIRECTIVE_WORD = re.compile(rb"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a `#SBATCH` line. Spans are bytes of the file."""

    option: str
    """As written: "--nodes", "-N"."""
    value: str | None
    start: int
    end: int
    value_start: int
    value_end: int
    line: int
    alone: bool
    """The only option of its line."""


@dataclass(frozen=True, slots=True)
class Header:
    """Directives in order, and where a line can be added."""

    directives: tuple[Directive, ...]
    insert_at: int
    """Byte behind the last `#SBATCH` line, or behind the `#!` line: a line can be put there."""
    heterogeneous: bool = False

    def last(self, options: Sequence[str]) -> Directive | None:
        """The one in force: Slurm lets the last win."""
        return next((item for item in reversed(self.directives) if item.option in options), None)


def read_header(data: bytes) -> Header:
    """Directives up to the first line that is neither blank nor a comment: Slurm ignores later ones."""
    directives: list[Directive] = []
    insert_at = 0
    heterogeneous = False
    start = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        end = start + len(line)
        if number == 1 and line.startswith(b"#!"):
            insert_at = end
        elif line.startswith(b"#SBATCH") and line[7:8] in (b" ", b"\t", b"\n", b""):
            directives += _directives_of_line(line, start, number)
            insert_at = end
            heterogeneous = heterogeneous or bool(re.match(rb"#SBATCH\s+(?:hetjob|packjob)\b", line))
        elif line.strip() and not line.startswith(b"#"):
            break
        start = end
    return Header(tuple(directives), insert_at, heterogeneous)


def _directives_of_line(line: bytes, offset: int, number: int) -> list[Directive]:
    words = []
    for match in _DIRECTIVE_WORD.finditer(line, 7):
        if match.group().startswith(b"#"):
            break
        words.append(match)
    found: list[Directive] = []
    at = 0
    while at < len(words):
        match = words[at]
        text = match.group().decode("utf-8", "surrogateescape")
        start, end = offset + match.start(), offset + match.end()
        at += 1
        if not text.startswith("-"):
            continue
        option, value, value_start, value_end = text, None, end, end
        if text.startswith("--") and "=" in text:
            option, value = text.split("=", 1)
            value_start = start + len(option.encode("utf-8", "surrogateescape")) + 1
        elif not text.startswith("--") and len(text) > 2:
            option, value, value_start = text[:2], text[2:], start + 2
        elif at < len(words) and not words[at].group().startswith(b"-"):
            value = words[at].group().decode("utf-8", "surrogateescape")
            value_start, value_end = offset + words[at].start(), offset + words[at].end()
            end = value_end
            at += 1
        found.append(
            Directive(option, _unquoted(value), start, end, value_start, value_end, number, False)
        )
    if len(found) == 1:
        only = found[0]
        found = [
            Directive(
                only.option, only.value, only.start, only.end, only.value_start, only.value_end, only.line, True
            )
        ]
    return found


def _unquoted(value: str | None) -> str | None:
    if value and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
