"""Sentences are made in report/ and cli/ alone: what is refused, noted or asked is a code with its parameters.

    python -m tests.checks.sentences             # fails with each place; `make check` runs it
    python -m tests.checks.sentences --write     # writes what is found to the list of what is still allowed

Found are functions of the rooms below that hold a sentence (a text of several words that is no docstring and no
pattern), and codes that are given other parameters than their wording names.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from runbook.model.sentences import Wording
from tests.checks.literals import PRODUCT, Finding, modules, verdict

ALLOWED = Path(__file__).with_name("sentences.allowed")
ROOMS = ("remedy", "template", "steps", "logs", "diagnosis")
WORDINGS = "runbook.model.sentences"
_WORDS = re.compile(r"[A-Za-z]{2,} (?=[a-zA-Z{0-9])|\} [a-z]")
_FEWEST = 2
_NAMED_FIRST = frozenset({"Vote"})
"""Whose first argument is a name: that of a rule, as the document of rules has it."""
_PATTERNS = frozenset({"compile", "search", "match", "fullmatch", "finditer", "findall", "sub", "split"})


def main() -> int:
    found: list[Finding] = []
    for file, tree in modules(PRODUCT):
        room = file.split("/")[1]
        found += _other_parameters(file, tree)
        if room in ROOMS:
            found += sorted({finding.key: finding for finding in _sentences(file, tree)}.values())
    return verdict(found, ALLOWED, "Say it by a code of runbook/model/sentences/; report/ puts it into words.")


def _sentences(file: str, tree: ast.AST, within: str = "module") -> Iterator[Finding]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PATTERNS:
            continue
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            if len(_WORDS.findall(_shown(node))) >= _FEWEST:
                yield Finding(file, node.lineno, within)
            if isinstance(node, ast.Constant):
                continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMED_FIRST:
            node.args = node.args[1:]
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else within
        yield from _sentences(file, node, inner)


def _shown(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def _other_parameters(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Calls `Say.CODE(name=…)` whose names are not those of the wording."""
    wording = _wording(tree)
    for node in ast.walk(tree):
        code = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or not isinstance(code, ast.Attribute):
            continue
        if wording is None or not isinstance(code.value, ast.Name) or code.value.id != "Say":
            continue
        wanted = {name for _, name, _, _ in Formatter().parse(wording[code.attr].value) if name}
        if wanted != {keyword.arg for keyword in node.keywords} or node.args:
            yield Finding(file, node.lineno, f"{code.attr} wants {', '.join(sorted(wanted)) or 'nothing'}")


def _wording(tree: ast.Module) -> type[Wording] | None:
    """The enum that a module imports as `Say`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{WORDINGS}."):
            say: type[Wording] = importlib.import_module(node.module or "").Say
            return say
    return None


if __name__ == "__main__":
    sys.exit(main())
