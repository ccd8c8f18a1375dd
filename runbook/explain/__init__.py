"""What each word that the program or its surroundings say means: one `Topic` for a terminal, a page and a machine.

Everything is read from documents: signatures, kinds, levers, node rules, Xids, terms, the flow, the page on alerts.
`topics.py` finds what a word stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Row = tuple[str, str]
"""A label, "" where the line before goes on, and what it says."""


def rows(*given: Row) -> tuple[Row, ...]:
    """Those that say something."""
    return tuple(row for row in given if row[1])


def listed(label: str, values: Sequence[str]) -> tuple[Row, ...]:
    """One row for each, the label in front of the first."""
    return tuple((label if at == 0 else "", value) for at, value in enumerate(values))


@dataclass(frozen=True, slots=True)
class Topic:
    """What one name stands for."""

    name: str
    """What asks for just this one."""
    what: str
    """signature, kind, lever, parameter, Xid, Slurm job state, …"""
    title: str
    rows: tuple[Row, ...] = ()
    short: tuple[Row, ...] = ()
    """What is told of it where a word stands for several."""
    lines: tuple[str, ...] = ()
    """Lines of a log, patterns, documents: as they are."""
    hint: str = ""
    see: tuple[str, ...] = ()
    """Names of other topics."""
    data: Mapping[str, object] = field(default_factory=dict)
    """The entry for machines."""
    system: str = ""
    """Whose lever or parameter it is, where it is one."""
