"""One job record from what the controller remembers and what accounting keeps, and where a batch job writes.

Log paths are sbatch's file name patterns expanded, for versions that do not tell. Source: sbatch(1), "FILENAME
PATTERN". In versions before 24.05 accounting does not keep the paths, so they are made from the submit line and
the script's `#SBATCH` lines.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runbook.errors import BadInput
from runbook.host_lists import expand_hosts
from runbook.model.job import JobRecord
from runbook.model.units import JobId, NodeName
from runbook.slurm import fields
from runbook.slurm.sbatch_options import (
    SbatchOption,
    SubmitLine,
    header_options,
    last_value,
    parse_submit_line,
    wrapped_text,
)

DEFAULT_OUTPUT = "slurm-%j.out"
DEFAULT_ARRAY_OUTPUT = "slurm-%A_%a.out"
_MOST_TASKS = 4096
_OF_A_TASK = re.compile(r"%\d*[tnN]")
"""A pattern that gives each task, or each node, a file of its own."""
"""Files of a step that are looked at."""


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
    step: str = "batch"
    """A step's number, where the pattern is srun's."""
    task: int = 0
    node_number: int = 0
    """Within the job."""


def expand_pattern(pattern: str, values: PatternValues) -> str | None:
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
            "J": values.job_id if values.step == "batch" else f"{values.job_id}.{values.step}",
            "j": values.job_id,
            "N": values.node.partition(".")[0],
            "n": str(values.node_number),
            "r": str(values.restarts),
            "s": values.step,
            "t": str(values.task),
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
    """(stdout, stderr) as `expanded_paths` has them, of the options of a submit line and a script."""
    default = DEFAULT_ARRAY_OUTPUT if values.array_job_id else DEFAULT_OUTPUT
    output = last_value(command_line, "output") or last_value(header, "output") or default
    error = last_value(command_line, "error") or last_value(header, "error") or ""
    return expanded_paths(output, error, work_dir, values)


def expanded_paths(output: str, error: str, work_dir: str, values: PatternValues) -> tuple[str, str]:
    """(stdout, stderr) as absolute paths; stderr is "" when it is the same file, either is "" when not known.

    Slurm resolves a relative pattern against the job's working directory, and does not say so: 24.11 prints the whole
    path of a job without `--output`, 25.11 and 26.05 print `slurm-%j.out`."""
    paths = []
    for pattern in (output, error):
        path = expand_pattern(pattern, values) if pattern else ""
        if path and not path.startswith("/"):
            path = posixpath.normpath(posixpath.join(work_dir, path)) if work_dir else ""
        paths.append(path or "")
    return paths[0], "" if paths[1] == paths[0] else paths[1]


def step_paths(
    output: str, error: str, work_dir: str, values: PatternValues, nodes: Sequence[NodeName], num_tasks: int
) -> Iterator[str]:
    """Where the tasks of a step write, by srun's `--output` and `--error`, some more than once; none where that is the
    job's own log.

    Source: srun(1), "I/O REDIRECTION": none, all and a task's number name no file. Tasks are taken to lie on the nodes
    in blocks, which matters to patterns with both task and node only."""
    wanted = [pattern for pattern in (output, error) if pattern not in ("", "none", "all") and not pattern.isdecimal()]
    each = [pattern for pattern in wanted if _OF_A_TASK.search(pattern)]
    for pattern in wanted:
        if pattern not in each:
            yield from filter(None, expanded_paths(pattern, "", work_dir, values))
    for task in range(min(num_tasks, _MOST_TASKS) if each else 0):
        number = task * len(nodes) // num_tasks
        here = replace(values, task=task, node_number=number, node=nodes[number] if nodes else "")
        for pattern in each:
            yield from filter(None, expanded_paths(pattern, "", work_dir, here))


def choose_record(records: Sequence[JobRecord], job: JobId) -> JobRecord | None:
    """The record that was asked for; None when there is none. Of several with its number the first, and none of another
    owner than the first of all: what follows may be its owner's writing (`fields.rows`).

    The number of a heterogeneous job stands for its first component, in which its script runs. Raises `BadInput` where
    the number stands for several array tasks."""
    own = [record for record in records if (record.uid, record.owner) == (records[0].uid, records[0].owner)]
    exact = [record for record in own if record.id in (job, f"{job}+0")]
    candidates = exact[:1] or own
    if len(candidates) > 1:
        shown = ", ".join(record.id for record in candidates[:8]) + (", …" if len(candidates) > 8 else "")
        raise BadInput(
            f"job {job} is several: {shown}", where="the job id", next_step=f"name one, e.g. {candidates[0].id}"
        )
    return candidates[0] if candidates else None


def merge_records(controller: JobRecord | None, accounting: JobRecord | None) -> JobRecord | None:
    """The controller's record, which is never behind, with what only accounting has."""
    if controller is None or accounting is None:
        return controller or accounting
    same_run = controller.submit_time_s is None or accounting.submit_time_s in (None, controller.submit_time_s)
    if not same_run and not controller.restarts:
        # Slurm gave the number out again: the older job's record must not lend its submit line.
        return controller
    return replace(
        controller,
        submit_line=accounting.submit_line,
        steps=accounting.steps,
        more_log_paths=accounting.more_log_paths,
        derived_exit_code=accounting.derived_exit_code or controller.derived_exit_code,
        excluded_nodes=accounting.excluded_nodes,
        source="squeue+sacct",
    )


def with_submit_line(record: JobRecord, wrapped: str = "") -> JobRecord:
    """Excluded nodes as they stand in the submit line; `wrapped` is the text of its `--wrap`, where known."""
    line = _submit_line(record, wrapped)
    excluded = (line.value("exclude") or "") if line else ""
    return replace(record, excluded_nodes=expand_hosts(excluded) if excluded and "/" not in excluded else ())


def with_log_paths(record: JobRecord, script: str) -> JobRecord:
    """Log paths for a record from accounting whose columns have none: patterns of submit line and script, expanded."""
    task = record.id.partition("_")[2]
    values = PatternValues(
        job_id=record.id,
        name=record.name,
        user=record.owner,
        node=record.nodes[0] if record.nodes else "",
        array_job_id=record.array_job_id or "",
        array_task_id=task,
        restarts=record.restarts,
    )
    if record.stdout_path:
        return record
    line = _submit_line(record, wrapped_text(script))
    header: tuple[SbatchOption, ...] = ()
    try:
        header = header_options(script)
    except BadInput:
        line = None
    if line is None:
        # An option that cannot be read may be --output: no path is better than another job's.
        return record
    if task and "%j" in f"{line.options}{header}":
        # The raw number of an array task is not its display id.
        return record
    stdout, stderr = batch_paths(line.options, header, record.work_dir, values)
    return replace(record, stdout_path=stdout, stderr_path=stderr, num_tasks=record.num_tasks or _tasks(line, header))


def _tasks(line: SubmitLine, header: tuple[SbatchOption, ...]) -> int | None:
    """Tasks asked for by --ntasks; accounting has them only for steps."""
    return fields.number(last_value((*header, *line.options), "ntasks"))


def _submit_line(record: JobRecord, wrapped: str = "") -> SubmitLine | None:
    if not record.submit_line:
        return None
    known = {"job-name": record.name, "comment": record.comment, "chdir": record.work_dir}
    try:
        parsed = parse_submit_line(record.submit_line, known=known, wrapped=wrapped)
    except BadInput:
        return None
    return parsed
