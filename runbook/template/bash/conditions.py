"""Which branch of a `case` or an `if` runs, where the words that decide it are known. Nothing is run for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tree_sitter import Node

from runbook.template.bash.expand import Expander
from runbook.template.bash.source import Source
from runbook.template.bash.state import State
from runbook.template.bash.words import text_of

_PLAIN = re.compile(r"[\w./:+@%,=-]+")
_GLOB = re.compile(r"[\w./:+@%,=*?-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})")
_NUMERIC = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}


def chosen_item(expander: Expander, node: Node, source: Source, state: State) -> Node | None | bool:
    """The item of a `case` that runs, None where none does, False where that is not known."""
    word = node.child_by_field_name("value")
    text = known_text(expander, word, source, state) if word is not None else None
    if text is None:
        return False
    for item in node.named_children:
        if item.type != "case_item":
            continue
        if any(child.type in (";&", ";;&") for child in item.children):
            return False
        answers = [_fits(text, pattern, source) for pattern in item.children_by_field_name("value")]
        if True in answers:
            return item
        if None in answers:
            return False
    return None


def holds(expander: Expander, conditions: Sequence[Node], source: Source, state: State) -> bool | None:
    """Whether the condition of an `if` is met: one comparison of known words. None: not known."""
    if len(conditions) != 1 or conditions[0].type != "test_command" or len(conditions[0].named_children) != 1:
        return None
    return _met(expander, conditions[0].named_children[0], source, state)


def _met(expander: Expander, node: Node, source: Source, state: State) -> bool | None:
    parts = node.children
    if node.type == "unary_expression" and len(parts) == 2:
        operator = source.text(parts[0])
        if operator == "!":
            inner = _met(expander, parts[1], source, state)
            return None if inner is None else not inner
        if operator not in ("-z", "-n"):
            return None
        text = known_text(expander, parts[1], source, state)
        return None if text is None else (text == "") is (operator == "-z")
    if node.type != "binary_expression" or len(parts) != 3:
        return None
    left, operator, right = parts[0], source.text(parts[1]), parts[2]
    if operator not in ("=", "==", "!=", *_NUMERIC):
        return None
    first, second = known_text(expander, left, source, state), known_text(expander, right, source, state)
    if first is None or second is None:
        return None
    if operator in _NUMERIC:
        both = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)
        return bool(_NUMERIC[operator](int(first), int(second))) if both else None
    if second and not _PLAIN.fullmatch(second):
        return None  # between double brackets it is a pattern
    return (first == second) is (operator != "!=")


def known_text(expander: Expander, node: Node, source: Source, state: State) -> str | None:
    """A single word's text. What a default of an unknown environment decides counts as not known."""
    if node.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
        return None
    if node.type == "extglob_pattern":
        shown = source.text(node)
        return shown if _PLAIN.fullmatch(shown) else None
    tokens = expander.tokens(node, source, state)
    if len(tokens) != 1 or tokens[0].condition or tokens[0].several:
        return None
    atoms = tokens[0].atoms
    text = text_of(atoms)
    open_ended = expander.environment is None and (
        not text or any(use.default for atom in atoms for use in atom.uses)
    )
    if text is None or open_ended or any(atom.condition for atom in atoms):
        return None
    return text


def _fits(text: str, pattern: Node, source: Source) -> bool | None:
    shown = source.text(pattern)
    if pattern.type in ("string", "raw_string"):
        inner = shown[1:-1]
        return text == inner if not re.search(r"[$`\\]", inner) else None
    if not _GLOB.fullmatch(shown):
        return None
    if _PLAIN.fullmatch(shown):
        return text == shown
    if shown.count("*") > 2:
        return None
    expression = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in shown)
    return re.fullmatch(expression, text, re.DOTALL) is not None
