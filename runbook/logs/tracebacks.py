"""What a traceback shows: the functions, outermost first, the process that raised it, and where in the training loop
it was.

The rules on that are a document (`playbooks/oom/signatures/phases.yaml`), tried in order over the whole stack: the
outer frame says more than the inner one, because recomputation runs `forward` inside backward.
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


FUNCTIONS_KEPT = 80
_CHARACTERS = 600
_FRAME = re.compile(r'File "[^"\n]{1,400}", line \d{1,9}, in ([\w.<>]{1,120})')
_REMOTE_CALL = re.compile(r"ray::([A-Za-z_]\w{0,80})(?:\.(\w{1,120}))?\(\)")
_HIT = re.compile(r"\b([A-Z]\w{2,40}) (?:hit an exception|encountered a fatal error|failed to start)\b")
_SGLANG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: (?:DP|TP|PP|EP|CP)\d{1,4}){1,5}\] ")
"""SGLang's schedulers name their place in the parallel groups behind the stamp; its other processes have none."""


def functions_of(stack: Sequence[str]) -> tuple[str, ...]:
    """Names of the functions, outermost first. A call that Ray carried stands as "WorkerDict.actor_update_actor". Of
    more than 80, the outermost and the innermost 40: both ends tell, and a recursion is in the middle."""
    names = []
    for line in stack:
        if found := _FRAME.search(line[:_CHARACTERS]):
            names.append(found[1])
        elif "ray::" in line and (found := _REMOTE_CALL.search(line[:_CHARACTERS])):
            names.append(f"{found[1]}.{found[2]}" if found[2] else found[1])
    if len(names) > FUNCTIONS_KEPT:
        names = names[: FUNCTIONS_KEPT // 2] + names[-FUNCTIONS_KEPT // 2:]
    return tuple(names)


def speaker_of(name: str, text: str, stack: Sequence[str], role: str) -> str:
    """What the process is called: by its prefix, else as the head of its traceback says it, else as Ray's remote call
    does, else by the role whose log it is. "" where nothing names it."""
    if name:
        return name
    head = stack[0] if stack else ""
    for words in (head, text):
        if found := _HIT.search(words[:200]):
            return found[1]
        if words.startswith("[") and _SGLANG.match(words):
            return "Scheduler"
    if "ray::" in head and (found := _REMOTE_CALL.search(head[:_CHARACTERS])):
        return found[1]
    return role
