"""Where a batch job writes: sbatch's file name patterns expanded, for versions that do not tell.

Source: sbatch(1), "FILENAME PATTERN". In versions before 24.05 accounting does not keep the paths, so they are made
from the submit line and the script's `#SBATCH` lines.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.evidence.slurm_options import SbatchOption, last_value

DEFAULT_OUTPUT = "slurm-%j.out"
DEFAULT_ARRAY_OUTPUT = "slurm-%A_%a.out"


@dataclass(frozen=True, slots=True)
class PatternValues:
    """What a pattern's letters stand for in the batch step of one job."""

    job_id: str
    name: str
    user: str
    node: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    restarts: int = 0


def expand(pattern: str, values: PatternValues) -> str | None:
    """A pattern's path, relative as it was; None where a letter stands for something that is not known."""
    if "\\" in pattern:
        # A backslash anywhere turns the replacement off.
        return pattern.replace("\\", "")
    unknown = False

    def replace(match: re.Match[str]) -> str:
        nonlocal unknown
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        task = values.array_task_id
        table = {
            "A": values.array_job_id or values.job_id,
            "a": task or "4294967294",
            "b": str(int(task) % 10) if task.isdecimal() else "",
            "J": values.job_id,
            "j": values.job_id,
            "N": values.node.partition(".")[0],
            "n": "0",
            "r": str(values.restarts),
            "s": "batch",
            "t": "0",
            "u": values.user,
            "x": values.name,
        }
        if letter not in table:
            return match[0]
        value = table[letter]
        unknown = unknown or value == ""
        return value.zfill(min(int(width), 10)) if width and value.isdecimal() else value

    expanded = re.sub(r"%(\d*)([A-Za-z%])", replace, pattern)
    return None if unknown else expanded


def batch_paths(
    command_line: Sequence[SbatchOption], header: Sequence[SbatchOption], work_dir: str, values: PatternValues
) -> tuple[str, str]:
    """(stdout, stderr) as absolute paths; stderr is "" when it is the same file, either is "" when not known."""
    default = DEFAULT_ARRAY_OUTPUT if values.array_job_id else DEFAULT_OUTPUT
    output = last_value(command_line, "output") or last_value(header, "output") or default
    error = last_value(command_line, "error") or last_value(header, "error") or ""
    paths = []
    for pattern in (output, error):
        path = expand(pattern, values) if pattern else ""
        if path and not path.startswith("/"):
            path = posixpath.normpath(posixpath.join(work_dir, path)) if work_dir else ""
        paths.append(path or "")
    return paths[0], "" if paths[1] == paths[0] else paths[1]
