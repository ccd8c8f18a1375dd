"""Columns of Slurm's commands, told apart by a separator that no job could have known.

Job names, comments, paths and drain reasons are free text of users: spaces, `=`, `|` and line breaks in them make
`scontrol show job` and any fixed separator ambiguous (a job name can hold a whole forged record). So `squeue`, `sinfo`
and `sacct` are asked with a random separator, made anew for each question after the text was stored: it ends every
column of every row, and only it is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Letters first: squeue and sinfo read leading digits as a width (and cut there); no comma, colon or percent sign.
SEPARATOR_FORM = re.compile(r"~[a-z]{4,40}~")


def long_format(columns: Sequence[str], separator: str) -> str:
    """The argument of `squeue -O` and `sinfo -O`. Without a width a column is not cut (seen in 22.05.8; the parser in
    `src/squeue/opts.c` is the same in later versions). A column that a version lacks is left empty there."""
    _check(separator)
    return ",".join(f"{column}:{separator}" for column in columns)


def rows(text: str, columns: Sequence[str], separator: str) -> list[dict[str, str]]:
    """Rows as column → text. A row cut short (at the output limit) is dropped."""
    _check(separator)
    pieces = text.split(separator)
    width = len(columns)
    found = []
    for start in range(0, len(pieces) - width, width):
        values = pieces[start : start + width]
        # The line break that ends the row before stands at the head of the first column.
        values[0] = values[0].lstrip("\r\n")
        found.append(dict(zip(columns, values, strict=True)))
    return found


def _check(separator: str) -> None:
    if not SEPARATOR_FORM.fullmatch(separator):
        raise ValueError(f"not a separator: {separator!r}")
