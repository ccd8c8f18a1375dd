"""What a traceback's lines name: the functions, outermost first, and the process that raised it."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
