"""How much of a job's files is read: counts of what is made of them, never a clock, so that a file is cut at the same
place on every machine.

A script of 400 bytes can double a variable until no memory is left, a YAML file can name an alias of aliases. What is
past a budget is not known, and nothing in its file is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from runbook.template.text_files import CannotEdit

MOST_SCRIPT_BYTES = 256 << 10
MOST_CONFIG_BYTES = 1 << 20
MOST_LEVELS = 150
"""Of a syntax tree. Scripts and configurations in the field have 30; every level is a few calls deep here."""
MOST_VALUE = 128 << 10
"""Characters of one value: what Linux takes as one argument or variable (MAX_ARG_STRLEN, execve(2))."""
MOST_DIGITS = 18
"""Of a number that is reckoned with."""
_MOST_WORK = 1_500_000


class TooMuch(CannotEdit):
    """A file is larger, deeper or grows further than is read of any."""

    def __init__(self, what: str, *, where: str = "") -> None:
        super().__init__(what, where=where, next_step="write it out shorter, or make the change by hand")


@dataclass(slots=True)
class Budget:
    """What is left for one file. The unit is a character, a word or a value that is made; dearer things cost more."""

    where: str = ""
    """"file:line", where that is known."""
    left: int = _MOST_WORK

    def spend(self, units: int) -> None:
        """Raises `TooMuch`."""
        self.left -= units
        if self.left < 0:
            raise TooMuch("what the file says grows past all that is read of one, so it was cut", where=self.where)


def refuse_large(size: int, most: int) -> None:
    """Raises `TooMuch` for a file of more bytes."""
    if size > most:
        raise TooMuch(f"the file has {size} bytes, and no more than {most} are read")


def refuse_deep(root: Node) -> None:
    """Raises `TooMuch` for a syntax tree of more levels. A node is only looked into where it holds enough for that."""
    stack = [(root, 0)]
    while stack:
        node, level = stack.pop()
        if level > MOST_LEVELS:
            raise TooMuch(f"the file is nested deeper than {MOST_LEVELS} levels at line {node.start_point[0] + 1}")
        if node.descendant_count > MOST_LEVELS - level:
            stack += [(child, level + 1) for child in node.children]
