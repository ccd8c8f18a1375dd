"""How long a running job's logs have been silent: what tells a wedged job from one between two lines."""

from __future__ import annotations

import posixpath

from runbook.errors import RunbookError, Unavailable
from runbook.model.job import JobRecord
from runbook.ports import Files


def silent_s(files: Files, job: JobRecord, now_s: float) -> float | None:
    """Seconds since any of the job's logs was written to, by the files' own times; None where none can be looked at.
    Raises `Unavailable`."""
    written_s: list[float] = []
    for path in job.log_paths:
        try:
            listed = files.entries(posixpath.dirname(path) or "/", job.owner)
        except Unavailable:
            raise
        except RunbookError:
            continue
        written_s += [entry.modified_s for entry in listed if entry.path == path]
    return max(now_s - max(written_s), 0.0) if written_s else None
