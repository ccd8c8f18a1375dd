"""Write a value so that the shell gives exactly that value to the program."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.template.bash.words import Quote, Use
from runbook.template.errors import CannotEdit

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
"""Text that means itself in every kind of quoting and at every depth."""


_ESCAPED = re.compile(r'([$`"\\])')


def quoted(value: str) -> str:
    """One shell word in one kind of quotes, so that it can be changed again."""
    if is_plain(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"' + _ESCAPED.sub(r"\\\1", value) + '"'


def is_plain(value: str) -> bool:
    return bool(_PLAIN.fullmatch(value))


def written(value: str, quote: Quote, uses: Sequence[Use], where: str) -> bytes:
    """The bytes to write for `value` where the text is quoted like `quote` and goes on through `uses`.

    Raises `CannotEdit` where quoting would have to hold through a second reading or a word split.
    """
    if "\0" in value or "\n" in value:
        raise CannotEdit("the new value holds a line end", where=where, next_step="set it by hand")
    if is_plain(value):
        return value.encode()
    if any(not use.quoted for use in uses):
        raise CannotEdit(
            f"the value {value!r} needs quotes, but it goes through an expansion without quotes, which would cut it",
            where=where, next_step="put the expansion in double quotes, then try again",
        )
    if quote is Quote.BARE:
        return quoted(value).encode("utf-8", "surrogateescape")
    if quote is Quote.DOUBLE:
        return _ESCAPED.sub(r"\\\1", value).encode("utf-8", "surrogateescape")
    if quote is Quote.SINGLE and "'" not in value:
        return value.encode("utf-8", "surrogateescape")
    raise CannotEdit(
        f"the value {value!r} needs quotes, and it stands in text that is read twice",
        where=where, next_step="write this value by hand",
    )
