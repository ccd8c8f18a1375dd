"""Which box of a system's training loop failed, by the names in the traceback and the process that speaks."""

from __future__ import annotations

import re
from functools import lru_cache

from runbook.model.log import Finding, Phase
from runbook.remedy.document import LeverDocument


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def phase_and_role(system: LeverDocument, cause: Finding | None) -> tuple[Phase, str]:
    """The phase and the role, each from the first cue of the system's document that says it.

    Frames outweigh the speaker's name: a driver process passes a worker's traceback on. Without a cue the phase is
    the one that the frames say in general, and the role is "".
    """
    if cause is None:
        return Phase.UNKNOWN, ""
    phase: Phase | None = None
    role = ""
    for text in ("\n".join(cause.frames), cause.speaker):
        if not text:
            continue
        for cue in system.cues:
            if (phase is not None or cue.phase is None) and (role or not cue.role):
                continue
            if _compiled(cue.pattern).search(text):
                phase = phase if phase is not None else cue.phase
                role = role or cue.role
    return phase if phase is not None else cause.phase, role
