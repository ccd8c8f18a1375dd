"""What options a training program takes, read from its source: no file is opened here, and nothing is run.

The libraries that are known are the modules of `libraries/`. What the source does not show is said to be open, with the
place: an option that is not found is known not to be taken only where `ProgramOptions.complete` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runbook.model.program import OpenReason, ProgramOptions
from runbook.program.findings import Findings, said
from runbook.program.sources import Sources
from runbook.program.walkthrough import Reader

__all__ = ["read_program"]


def read_program(
    path: str, source_of: Callable[[str], bytes | None], *, search: Sequence[str]
) -> ProgramOptions | None:
    """The options of the program in the file `path`. `source_of` gives a file's bytes, None where there is none.

    `search`: the folders that Python would look for imports in (the program's own, the working directory for `-m`,
    `PYTHONPATH`, `site-packages`); the program's folder and those above it are looked into as well. None: no Python, or
    nothing in it reads a command line.
    """
    sources = Sources(source_of, tuple(search))
    entry = sources.module(path)
    findings = Findings()
    if entry is None:
        if not sources.full and not (path in sources.unreadable and path.endswith(".py")):
            return None
        reason = said(OpenReason.LIMIT if sources.full else OpenReason.UNREADABLE, "", path, 1)
        return ProgramOptions((), (), complete=False, open_because=(reason,))
    reader = Reader(sources, entry, findings)
    reader.walk()
    if reader.work.too_deep:
        findings.reasons.append(OpenReason.LIMIT.value)
    return findings.result(cut=reader.work.cut or sources.full)
