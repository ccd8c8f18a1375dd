"""Slurm host lists: "gpu-[21-23,30]" to names and back, by ClusterShell's NodeSet."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runbook.locations import without_a_home
from runbook.model.units import NodeName

with without_a_home():
    from ClusterShell.NodeSet import NodeSet, NodeSetException

_MOST_NODES = 100_000
_NONE = frozenset({"", "(null)", "None", "None assigned", "N/A", "Unknown"})


def expand_hosts(text: str) -> tuple[NodeName, ...]:
    """Names in the order of the list (numeric within a bracket, as Slurm lays out ranks). () for "none assigned".

    ClusterShell gives `@group`, wildcards and `!^&` a meaning that Slurm does not: a list with them has no names."""
    stripped = text.strip()
    if stripped in _NONE or any(mark in stripped for mark in "@*?!&^%$ \n\t"):
        return ()
    names: dict[NodeName, None] = {}
    try:
        for part in _split(stripped):
            if _count(part) + len(names) > _MOST_NODES:
                return ()
            nodes = NodeSet(part)
            names.update(dict.fromkeys(NodeName(str(name)) for name in nodes))
    except NodeSetException:
        return ()
    return tuple(names)


def fold_hosts(names: Iterable[NodeName]) -> str:
    """The short form for `--exclude` and the like."""
    folded = NodeSet()
    for name in names:
        folded.update(str(name))
    return str(folded)


def _count(part: str) -> int:
    """An upper bound of the names in one part, before any is made."""
    product = 1
    for inside in re.findall(r"\[([^\]]*)\]", part):
        total = 0
        for item in inside.split(","):
            first, _, last = item.partition("-")
            last = last.partition("/")[0]
            if len(first) > 9 or len(last) > 9 or not (first + last).isdecimal():
                return _MOST_NODES + 1
            total += max(int(last) - int(first), 0) + 1 if last else 1
        product *= max(total, 1)
    return product


def _split(text: str) -> list[str]:
    """At commas outside brackets, so that the list's own order stays."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part for part in (*parts, current) if part]
