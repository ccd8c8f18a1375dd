"""No decision on prose: reasons, refusals, notes and questions are for people, and no code looks into them.

    python -m tests.checks.prose_decisions             # fails with each place; `make check` runs it
    python -m tests.checks.prose_decisions --write     # writes what is found to the list of what is still allowed

Found are comparisons with a literal, `in`, `startswith`, `endswith` and the functions of `re` on anything that is
called a reason, a note, a question and so on. What is decided on has to be a value: an enum with its parameters.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.checks.literals import PRODUCT, Finding, modules, verdict

ALLOWED = Path(__file__).with_name("prose_decisions.allowed")
PROSE = frozenset({
    "why", "whys", "reason", "reasons", "note", "notes", "sentence", "sentences", "summary", "question", "questions",
    "refused", "refusal", "remark", "remarks", "expectation", "unresolved", "explanation", "unread", "because",
    "next_step", "to_do", "wording",
})
"""Names of attributes and variables that hold texts for people."""
_METHODS = frozenset({"startswith", "endswith", "removeprefix", "partition", "find", "index", "count"})
_PATTERNS = frozenset({"search", "match", "fullmatch", "findall", "finditer", "split"})


def main() -> int:
    found = [item for file, tree in modules(PRODUCT) for item in _found(file, tree)]
    return verdict(found, ALLOWED, "Decide on a value of an enum; the sentence is made where it is shown.")


def _found(file: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, on = node.func.attr, node.func.value
            if method in _METHODS and _prose(on):
                yield Finding(file, node.lineno, f"{_prose(on)}.{method}")
            elif method in _PATTERNS:
                yield from (
                    Finding(file, node.lineno, f"{method} in {_prose(item)}") for item in node.args if _prose(item)
                )
        elif isinstance(node, ast.Compare):
            yield from _compared(file, node)


def _compared(file: str, node: ast.Compare) -> Iterator[Finding]:
    """`"…" in why`, `word in why`, `why == "…"`; whether there is one at all (`why != ""`) may be asked, and whether a
    note is among the notes."""
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        held = _prose(right)
        inside = isinstance(operator, (ast.In, ast.NotIn)) and held and not held.endswith("s")
        if inside or any(_says_something(text) and _prose(prose) for text, prose in ((left, right), (right, left))):
            yield Finding(file, node.lineno, f"{type(operator).__name__} {held or _prose(left)}")
        left = right


def _says_something(node: ast.expr) -> bool:
    """A literal that is not empty, or a tuple, set or list of such."""
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(_says_something(item) for item in node.elts)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and bool(str(node.value).strip())
                                               and isinstance(node.value, str))


def _prose(node: ast.expr) -> str:
    """The name by which a text for people is held; "" where it is none."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if name in PROSE else ""


if __name__ == "__main__":
    sys.exit(main())
