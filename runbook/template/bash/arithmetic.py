"""Whole-number arithmetic of `$(( … ))` over known variables: + - * / % and parentheses, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

_LARGEST = 1 << 62


def evaluate(node: Node, variable: Callable[[str], int | None]) -> int | None:
    """The value of an arithmetic node, or None when a part is not known or not plain whole-number arithmetic."""
    text = (node.text or b"").decode("utf-8", "replace")
    kind = node.type
    if kind in ("number", "word"):
        return int(text) if text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0") else (
            variable(text) if text.isidentifier() else None
        )
    if kind == "variable_name":
        return variable(text)
    if kind in ("simple_expansion", "expansion"):
        names = [child for child in node.children if child.type == "variable_name"]
        simple = len(node.named_children) == 1 and len(names) == 1
        return variable((names[0].text or b"").decode()) if simple else None
    if kind in ("parenthesized_expression", "arithmetic_expansion"):
        inner = node.named_children
        return evaluate(inner[0], variable) if len(inner) == 1 else None
    if kind == "binary_expression" and len(node.children) == 3:
        left, operator, right = node.children
        return _apply(operator.type, evaluate(left, variable), evaluate(right, variable))
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
