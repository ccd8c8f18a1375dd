"""Parse a shell script to byte ranges, and find what the parser is known to miss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Query, QueryCursor

_BACKQUOTE_COMMENT = re.compile(rb"(?<=[ \t])`#[^`\n]*`(?=[ \t\\]|\r?\n|$)")
"""The idiom for a comment inside a continued command: a command substitution that holds only a comment. The
grammar takes the comment to the end of the line and loses the closing backquote, so it is blanked before parsing."""


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


def parse(data: bytes) -> Node:
    """The syntax tree's root. Byte offsets are those of `data`."""
    blanked = _BACKQUOTE_COMMENT.sub(lambda match: b" " * len(match.group()), data)
    return _parser().parse(blanked).root_node


def line_of(data: bytes, offset: int) -> int:
    """Line number, from 1."""
    return data.count(b"\n", 0, offset) + 1


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
    for node in QueryCursor(_command_names()).captures(root).get("name", []):
        if node.text is None:
            continue
        if node.text.startswith(b"-"):
            found.append(_orphan(data, node))
        elif node.text in _RESERVED:
            word = node.text.decode()
            found.append(Hazard(node.start_point[0] + 1, f"{word!r} stands where a command should", True))
    return tuple(sorted(found, key=lambda hazard: hazard.line))


def walk(root: Node) -> Iterator[Node]:
    """All nodes, in order of the text."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _orphan(data: bytes, node: Node) -> Hazard:
    """A command that is an option: the command above ended before it was meant to."""
    line = node.start_point[0] + 1
    above = data.split(b"\n")[line - 2].rstrip(b"\r") if line > 1 else b""
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
    for node in walk(root) if b"<<" in data else ():
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
