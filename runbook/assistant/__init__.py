"""What an assistant may ask, and how it is answered: nothing here acts, and an empty answer is never "all is well".

Each question runs commands of this program that only read, as processes of their own, and tells with its answer the
evidence by file and line, what was not looked at, and what a person may type. `questions.py` has the questions,
`from_store.py` and `from_files.py` make answers of what the commands print. Text of jobs and logs is fenced here: an
assistant takes what it reads for words to it, and anybody may write a log.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runbook.report.vocabulary.clean import clean

MOST_TEXT = 2_000
"""Characters of one text."""
MOST_ITEMS = 100
"""Of one list or mapping."""
MOST_IN_ALL = 100_000
"""Characters of the texts of one answer: half for what was found, the rest for evidence and for what was not seen."""
_LEAST = 8
"""What an item takes whatever it is."""
_KEPT_FREE = 400
"""For each item behind one that is told, so that a long one does not silence the others; half of the room at most."""
_Item = TypeVar("_Item")
_Shown = TypeVar("_Shown")
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_.:/@+=,-]{0,199}")
"""Names, paths, figures, times: one word, which has to be usable in the next question as it stands."""


@dataclass(frozen=True, slots=True)
class Told:
    """How one of our own commands ended."""

    exit_code: int
    data: Any
    """What it printed, read as JSON; None where it printed none."""
    text: str = ""
    """The same as it was printed."""
    said: tuple[str, ...] = ()
    """What it said beside its answer, by line."""


Ask = Callable[[Sequence[str]], Told]
"""Runs a command of this program, given its words."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where what the commands tell of is kept."""

    state: Path
    documents: Path
    """The folder of playbooks."""
    docs: Path

    def incident(self, name: str) -> str:
        return str(self.state / "incidents" / name / "incident.json")


class Outside(str):
    """Words that are not ours among those that are: to be fenced."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One place that an answer rests on. `line` counts from 1; None: the file as a whole."""

    file: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is told of one question. `answer` None: it could not be answered, and `not_seen` says why."""

    answer: Any
    evidence: tuple[Evidence, ...] = ()
    not_seen: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    """Command lines for a person."""
    ours: bool = False
    """All of it is of this program's own documents, and no job wrote any of it."""


def fenced(answer: Answer) -> dict[str, Any]:
    """An answer as it is handed out: texts from outside between marks that nobody could foresee, without control
    characters and secrets, and of a length that can be read; what was cut is said."""
    fence = _Fence(secrets.token_hex(8), ours=answer.ours)
    not_seen = fence.some("not_seen", answer.not_seen, lambda one: fence.text(one) if isinstance(one, Outside) else one)
    fence.left = MOST_IN_ALL // 4
    evidence = fence.some("evidence", answer.evidence, lambda one: {
        "file": fence.text(one.file), "line": one.line, "text": fence.text(one.text)
    })
    fence.left = MOST_IN_ALL // 2
    told = fence.value(answer.answer, "answer")
    return {
        "fence": fence.mark, "answer": told, "evidence": evidence, "not_seen": [*not_seen, *fence.cuts[:MOST_ITEMS]],
        "next": list(answer.next),
    }


class _Fence:
    """The marks of one answer, and how much room is left in it."""

    def __init__(self, mark: str, *, ours: bool) -> None:
        self.mark = mark
        self.cuts: list[str] = []
        self._ours = ours
        self.left = MOST_IN_ALL // 4
        """Characters that there is room for in the part that is told."""

    def text(self, text: str) -> str:
        limit = max(min(MOST_TEXT, self.left), 0)
        shown, cut = clean(text[:limit]), ""
        if len(text) > limit:
            # A secret that is cut in two has lost the shape by which it is known: the last word goes, too.
            shown, cut = shown.rpartition(" ")[0], f" (cut at {limit:,} of {len(text):,} characters)"
        if shown and not self._ours and (cut or not _PLAIN.fullmatch(shown)):
            shown = f"<data-{self.mark}>{shown}</data-{self.mark}>"
        self.left -= len(shown) + len(cut)
        return shown + cut

    def value(self, value: Any, where: str) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, Mapping):
            return dict(self.some(where, list(value.items()), lambda item: (
                self.text(str(item[0])),
                self.value(item[1], f"{where}.{item[0]}" if _PLAIN.fullmatch(str(item[0])) else where),
            )))
        if isinstance(value, list | tuple):
            return self.some(where, value, lambda item: self.value(item, where))
        return value

    def some(self, where: str, items: Sequence[_Item], told: Callable[[_Item], _Shown]) -> list[_Shown]:
        """As many as there is room for; what is left out is said."""
        shown = []
        for following, item in zip(reversed(range(len(items))), items[:MOST_ITEMS]):
            if self.left <= 0:
                break
            kept_free = min(_KEPT_FREE * min(following, MOST_ITEMS), self.left // 2)
            self.left -= kept_free + _LEAST
            shown.append(told(item))
            self.left += kept_free
        if len(shown) < len(items):
            self.cuts.append(f"{where}: cut at {len(shown)} of {len(items):,}")
        return shown
