"""Logs named on the command line, read as the story of one job: for `runbook diagnose` and `runbook patch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from runbook.adapters.log_files import LogFile, open_logs
from runbook.errors import Interrupted
from runbook.evidence.logs import THREADS, LogReader
from runbook.evidence.signatures import load_signatures
from runbook.locations import playbook_folder
from runbook.model.job import JobRecord
from runbook.model.log import LogSource, LogStory


def read_logs(
    files: Sequence[LogFile], playbook: Path | None, *, job: JobRecord | None,
    progress: Callable[[int, int], None] | None = None, threads: int = THREADS, tail_first: bool | None = None,
    prefixes: Sequence[str] = (),
) -> LogStory:
    """What files that `find_logs` found say; those that are refused are among its sources and its notes.

    Raises `DocumentsInvalid`, `NotFound` for a file that may not be opened, `Interrupted` at Ctrl-C."""
    reader = LogReader(load_signatures(playbook_folder(playbook) / "signatures"))
    try:
        with ExitStack() as stack:
            story = reader.read(
                open_logs(files, stack), job=job, progress=progress, threads=threads, tail_first=tail_first,
                prefixes=prefixes,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted while reading; nothing was touched") from None
    note = refused_note(files)
    if not note:
        return story
    refused = tuple(LogSource(one.path, one.size_bytes, 0, f"not read: {one.refused}") for one in files if one.refused)
    return replace(story, notes=(note, *story.notes), sources=(*refused, *story.sources))


def refused_note(files: Sequence[LogFile]) -> str:
    """What could not be read is said: the first failure may stand there. "" where all was."""
    refused = [one for one in files if one.refused]
    if not refused:
        return ""
    several = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"Not read: {refused[0].path}{several}. The first failure may stand there."
