"""What the checks of this folder share: the product's string literals, and the findings that are still allowed."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PRODUCT = REPOSITORY / "runbook"


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One place in the product's code."""

    file: str
    line: int
    what: str

    @property
    def key(self) -> str:
        """As it stands in a list of allowed findings: without the line, which moves."""
        return f"{self.file} {self.what}"


def modules(folder: Path = PRODUCT) -> Iterator[tuple[str, ast.Module]]:
    """Every module of the product, by its path from the repository."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder.parent).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """String literals, without docstrings and other texts that stand alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def verdict(findings: Iterable[Finding], allowed: Path, advice: str) -> int:
    """Print what is not allowed, and what is allowed and not there any more: lists only get shorter."""
    found = sorted(findings)
    if "--write" in sys.argv[1:]:
        allowed.write_text("".join(f"{key}\n" for key in sorted(item.key for item in found)), encoding="utf-8")
        return 0
    left = Counter(allowed.read_text(encoding="utf-8").splitlines() if allowed.exists() else ())
    problems = []
    for item in found:
        if left[item.key]:
            left[item.key] -= 1
        else:
            problems.append(f"{item.file}:{item.line}: {item.what}")
    gone = sorted(left.elements())
    if problems:
        print("\n".join(problems), f"{len(problems)} found. {advice}", sep="\n")
    if gone:
        print("\n".join(gone), f"not found any more: take them out of {allowed.relative_to(REPOSITORY)}", sep="\n")
    return 1 if problems or gone else 0
