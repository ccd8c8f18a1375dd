"""`${a.b}` in a value: OmegaConf's references within one document, followed to the value they lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runbook.template.config.document import Form, Leaf

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_DEEPEST = 8


def resolved(leaves: Sequence[Leaf], mappings: Iterable[tuple[str, ...]]) -> Iterator[Leaf]:
    """The leaves with the value that their references lead to, or where the trail ended."""
    if not any("${" in (leaf.value or "") for leaf in leaves):
        yield from leaves
        return
    table: dict[tuple[int, str], list[Leaf]] = {}
    for leaf in leaves:
        table.setdefault((leaf.document, ".".join(leaf.path)), []).append(leaf)
    for leaf in leaves:
        yield _followed(leaf, table, 0) if "${" in (leaf.value or "") else leaf


def _followed(leaf: Leaf, table: dict[tuple[int, str], list[Leaf]], depth: int) -> Leaf:
    text = leaf.value or ""
    whole = _REFERENCE.fullmatch(text)
    trail = leaf.trail
    pieces: list[str] = []
    position = 0
    form = Form.STRING
    for match in _REFERENCE.finditer(text):
        target = _target(leaf, match[1])
        found = table.get((leaf.document, target), []) if target else []
        if len(found) == 1 and found[0].value is not None and depth < _DEEPEST:
            other = found[0]
            if "${" in (other.value or ""):
                other = _followed(other, table, depth + 1)
        else:
            other = None
        if other is None or other.value is None:
            return replace(leaf, value=None, unresolved=f"the reference {match[0]} decides (line {leaf.line})")
        trail = (*trail, f"{match[0]} at line {leaf.line}", f"{target} at line {other.line}")
        pieces += [text[position : match.start()], other.value]
        position = match.end()
        form = other.form if whole else Form.STRING
    rest = text[position:]
    if "${" in rest or not pieces:
        return replace(leaf, value=None, unresolved=f"the reference in {text[:60]!r} decides (line {leaf.line})")
    return replace(leaf, value="".join([*pieces, rest]), form=form, trail=trail)


def _target(leaf: Leaf, name: str) -> str:
    """The dotted path that a reference names; leading dots go up from the key's own mapping."""
    if not re.fullmatch(r"\.*[A-Za-z_][\w-]*(?:\.[\w-]+)*", name):
        return ""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    base = leaf.path[:-dots]
    return ".".join([*base, name[dots:]])
