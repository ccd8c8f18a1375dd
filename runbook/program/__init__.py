"""What options a training program takes, read from its source: no file is opened here, and nothing is run.

The libraries that are known are the modules of `libraries/`. What the source does not show is said to be open, with the
place: an option that is not found is known not to be taken only where `ProgramOptions.complete` holds.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from runbook.model.program import OpenReason, ProgramOptions
from runbook.program.abstract_values import Module
from runbook.program.findings import Findings, said
from runbook.program.numbers import (
    configurations_opened,
    configurations_said,
    may_be_configuration,
    number_given,
    printed_constants,
    program_constants,
    texts_that_run,
)
from runbook.program.sources import Sources
from runbook.program.walkthrough import Reader

__all__ = [
    "configurations_opened", "configurations_said", "may_be_configuration", "number_given", "printed_constants",
    "program_constants", "program_text", "read_program", "texts_that_run",
]


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


_MOST_MODULES = 40


def program_text(
    path: str, source_of: Callable[[str], bytes | None], *, search: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The program's file and the modules of its own that it imports, and those these import: (path, text), nearest
    first, 40 at most. What is installed is no module of its own."""
    sources = Sources(source_of, tuple(folder for folder in search if "site-packages" not in folder))
    ahead, found = [path], dict[str, str]()
    while ahead and len(found) < _MOST_MODULES:
        here = ahead.pop(0)
        module = sources.module(here)
        if module is None or here in found:
            continue
        found[here] = (source_of(here) or b"").decode("utf-8", "replace")
        for node in ast.walk(module.tree):
            ahead += [item.path for item in _imported(node, here, sources)]
    return tuple(found.items())


def _imported(node: ast.AST, by: str, sources: Sources) -> list[Module]:
    if isinstance(node, ast.Import):
        names, folder = [alias.name for alias in node.names], None
    elif isinstance(node, ast.ImportFrom):
        above = PurePosixPath(by).parents
        folder = str(above[min(node.level, len(above)) - 1]) if node.level else None
        base = node.module or ""
        names = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")]
    else:
        return []
    wanted = [name for name in names if name and name.partition(".")[0] not in sys.stdlib_module_names]
    return [found for name in wanted if (found := sources.named(name, folder, by)) is not None]
