"""Where in the training loop a process was, told from the frames of its traceback or from a cue near its line.

The rules are a document (`playbooks/oom/signatures/phases.yaml`), tried in order over the whole stack: the outer frame
says more than the inner one, because recomputation runs `forward` inside backward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from runbook.model.log import Phase

_NEAR_CHARACTERS = 400
_TIMER = re.compile(r"\bTimer (\w{1,60}) (start|end)\b")
"""slime and Relax say when a part of the loop begins and ends: the one that is still open is where it was."""


@dataclass(frozen=True)
class PhaseRule:
    """One rule ready for use; its patterns are compiled when first needed."""

    phase: Phase
    frames: str = ""
    near: str = ""
    line: str = ""
    also: str = ""
    """A second expression that the frames must hold, in whatever order."""

    @cached_property
    def in_frames(self) -> re.Pattern[str] | None:
        return re.compile(self.frames) if self.frames else None

    @cached_property
    def also_in_frames(self) -> re.Pattern[str] | None:
        return re.compile(self.also) if self.also else None

    @cached_property
    def in_words(self) -> re.Pattern[str] | None:
        return re.compile(self.near) if self.near else None

    @cached_property
    def in_line(self) -> re.Pattern[str] | None:
        return re.compile(self.line) if self.line else None


def opens_timer(words: str) -> bool:
    """Whether a line says that a part of the loop begins."""
    found = _TIMER.search(words[:_NEAR_CHARACTERS])
    return found is not None and found[2] == "start"


def phase_of(rules: Sequence[PhaseRule], frames: Sequence[str], line: str = "", before: Sequence[str] = ()) -> Phase:
    """The phase that a traceback's lines show, unless the failing line itself says it. Without a traceback, what that
    line and then those before it (nearest first) speak of. UNKNOWN where no rule applies."""
    for rule in rules:
        if rule.in_line is not None and rule.in_line.search(line[:_NEAR_CHARACTERS]):
            return rule.phase
    if frames:
        text = "\n".join(frames)
        for rule in rules:
            if rule.in_frames is not None and rule.in_frames.search(text) and (
                rule.also_in_frames is None or rule.also_in_frames.search(text)
            ):
                return rule.phase
        return Phase.UNKNOWN
    ended: set[str] = set()
    for words in (line, *before):
        if timer := _TIMER.search(words[:_NEAR_CHARACTERS]):
            if timer[2] == "end":
                ended.add(timer[1])
            if timer[1] in ended:
                continue
        for rule in rules:
            if rule.in_words is not None and rule.in_words.search(words[:_NEAR_CHARACTERS]):
                return rule.phase
    return Phase.UNKNOWN
