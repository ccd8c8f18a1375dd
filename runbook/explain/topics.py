"""What a word stands for, for `runbook explain` and the service's /explain pages."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from runbook.explain import Topic, changes, lines, terms
from runbook.locations import playbook_folder
from runbook.remedy import LeverDocument, load_levers

LONGEST_WORD = 300
"""Characters of a word that is looked up: a line of the driver's log is one."""
_MOST_NEAR = 6


def topics_of(word: str, playbook: Path | None = None) -> tuple[Topic, ...]:
    """Everything that the word means, what this program names so first. Raises `DocumentsInvalid`."""
    word = " ".join(word.split())[:LONGEST_WORD]
    own = lines.topics_of(word, lines.entries(playbook), playbook)
    if own and own[0].what == "signature":
        return tuple(own)
    found = (*own, *changes.topics_of(word, _systems(playbook)), *terms.topics_of(word, playbook))
    # A kind is also how the box that judges ends: that adds nothing to what the kind says.
    return tuple(topic for topic in found if not own or topic.what != terms.OUTCOME)


def near(word: str, playbook: Path | None = None) -> list[str]:
    """Names that hold what was typed ("oom"), else those that differ by a slip of the fingers."""
    word = word[:LONGEST_WORD]
    wanted = terms.plain(word)
    own = lines.names(lines.entries(playbook), playbook)
    by_plain: dict[str, str] = {}
    for name in (*own, *terms.names(playbook)):
        by_plain.setdefault(terms.plain(name), name)
    holding = [name for low, name in by_plain.items() if wanted and wanted in low]
    if holding:
        return holding[:_MOST_NEAR]
    close = difflib.get_close_matches(wanted, by_plain, 3, 0.6)
    close.sort(key=lambda low: sorted(low) != sorted(wanted))
    return [by_plain[low] for low in close] or changes.near(word, _systems(playbook))


@cache
def _systems(playbook: Path | None) -> tuple[LeverDocument, ...]:
    return load_levers(playbook_folder(playbook) / "levers")
