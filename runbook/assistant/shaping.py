"""What answers are made of: chosen parts, times, command lines, and what is said where there is no answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from runbook.assistant import Answer, Outside, Told

NOT_ANSWERED = "This could not be looked at: neither that something is wrong nor that all is well is known from it."


def failed(told: Told, words: Sequence[str]) -> Answer:
    """No answer: what the command said of it, and the command, for a person who may know better."""
    return Answer(None, not_seen=(NOT_ANSWERED, *map(Outside, told.said)), next=commands(words, ("doctor",)))


def commands(*lines: Sequence[str]) -> tuple[str, ...]:
    """As a person may type them. One with a word that does not show what it is stays away."""
    return tuple(f"runbook {shlex.join(words)}" for words in lines if all(word.isprintable() for word in words))


def said(told: Told) -> tuple[Outside, ...]:
    return tuple(map(Outside, told.said))


def unread(sources: Iterable[Mapping[str, Any]]) -> Iterator[Outside]:
    for one in sources:
        if one["bytes_read"] < one["size_bytes"] or one["note"]:
            read = f"{one['bytes_read']:,} of {one['size_bytes']:,} bytes were read"
            yield Outside(f"{one['path']}: {read}{'; ' if one['note'] else ''}{one['note']}")


def chosen(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def times(values: Mapping[str, Any], *names: str) -> dict[str, str]:
    """`opened_s` as `opened`, written out in UTC."""
    return {
        name.removesuffix("_s"): datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in names if isinstance(value := values.get(name), int | float) and 0 < value < 1e11
    }


def line_of(word: str, text: str) -> int:
    """The line of a document on which a word stands first; 1 where it has it nowhere."""
    return text.count("\n", 0, max(text.find(word), 0)) + 1
