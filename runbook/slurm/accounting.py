"""`sacct`: a job as accounting keeps it, its steps, its script and its environment; which jobs had a node."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from runbook.host_lists import expand_hosts
from runbook.model.job import JobRecord, StepRecord
from runbook.model.units import JobId, NodeName, UserName
from runbook.slurm import fields
from runbook.slurm.fields import rows
from runbook.slurm.job_record import PatternValues, expanded_paths, step_paths
from runbook.slurm.sbatch_options import last_value, step_options
from runbook.slurm.states import job_state

#: JobID must stay first. Restarts, StdOut and StdErr came with 24.05 and 24.11: what a version lacks is not asked for.
COLUMNS = (
    "JobID", "JobIDRaw", "User", "UID", "GID", "State", "ExitCode", "DerivedExitCode", "NodeList", "NNodes", "NTasks",
    "AllocTRES", "MaxRSS", "Submit", "Start", "End", "TimelimitRaw", "Partition", "Account", "QOS", "Cluster",
    "Restarts", "Reason", "ReqTRES", "JobName", "WorkDir", "SubmitLine", "Comment", "StdOut", "StdErr",
)  # fmt: skip
"""What a user can write stands last: see `fields.rows`."""
TOKEN_COLUMNS = ("JobID", "Submit", "Comment", "SubmitLine")

_TITLE = re.compile(r"^(?:Batch Script for|Environment used for) [^\n]{1,200}\n-+\n", re.MULTILINE)
"""At the start of a line alone, and short: what follows is a user's, who may repeat these words a million times."""
_MOST_LOGS = 8192
_MOST_LETTERS = 4 << 20
"""Of the paths of all of a job's steps together."""
_MOST_TRIED = 65_536


def known_columns(help_format: str) -> frozenset[str]:
    """The columns that `sacct --helpformat` lists, in lower case."""
    return frozenset(word.lower() for word in help_format.split())


def job_arguments(job: JobId, known: Collection[str], separator: str) -> tuple[str, ...]:
    """Arguments of sacct for one job with its steps, of its latest run (sacct leaves out earlier ones itself)."""
    columns = _format(COLUMNS, known)
    return ("--noheader", "--parsable", f"--delimiter={separator}", f"--jobs={job}", f"--format={columns}")


def token_arguments(owner: str, since: str, known: Collection[str], separator: str) -> tuple[str, ...]:
    """Arguments of sacct for the comments and submit lines of one user's jobs since then ("now-30days")."""
    return (
        "--noheader", f"--user={owner}", "--allocations", "--parsable", f"--delimiter={separator}",
        f"--starttime={since}", f"--format={_format(TOKEN_COLUMNS, known)}",
    )  # fmt: skip


def script_arguments(job: JobId) -> tuple[str, ...]:
    return (f"--jobs={job}", "--batch-script")


def environment_arguments(job: JobId) -> tuple[str, ...]:
    return (f"--jobs={job}", "--env-vars")


def read_stored_text(text: str) -> str | None:
    """The script or environment under sacct's title; None when it was not kept ("NONE", or no title)."""
    title = _TITLE.match(text)
    if title is None:
        return None
    body = text[title.end() :]
    following = _TITLE.search(body)
    if following and body[: following.start()].endswith("\n"):
        body = body[: following.start()]
    # sacct ends what it prints with a line break of its own.
    body = body.removesuffix("\n")
    return None if body.strip() in ("", "NONE") else body


def read_jobs(text: str, known: Collection[str], separator: str) -> tuple[JobRecord, ...]:
    """One record a job, steps inside. Array tasks are jobs of their own."""
    columns = [column for column in COLUMNS if column.lower() in known]
    found: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    for row in rows(text, columns, separator):
        if "." in row["JobID"]:
            if found:
                found[-1][1].append(row)
        else:
            found.append((row, []))
    return tuple(_record(row, steps) for row, steps in found)


def read_comments(text: str, known: Collection[str], separator: str) -> list[tuple[JobId, float, str]]:
    """(job, submit time, comment)."""
    columns = [column for column in TOKEN_COLUMNS if column.lower() in known]
    return [
        (JobId(row["JobID"].strip()), fields.epoch_s(row["Submit"]) or 0.0, _comment(row))
        for row in rows(text, columns, separator)
    ]


def _comment(row: dict[str, str]) -> str:
    """Where accounting keeps no comments, the token that a relaunch was submitted with."""
    comment = fields.text_or_empty(row.get("Comment"))
    given = None if comment else re.search(r" --comment[= ](runbook:\S+)", row.get("SubmitLine", ""))
    return given[1] if given else comment


def _format(columns: Collection[str], known: Collection[str]) -> str:
    return ",".join(column for column in columns if column.lower() in known)


def _record(row: dict[str, str], steps: list[dict[str, str]]) -> JobRecord:
    job = row["JobID"].strip()
    state = job_state(row.get("State", ""))
    ended = state.job_class.ended
    exit_code, signal = fields.exit_and_signal(row.get("ExitCode"))
    derived, _ = fields.exit_and_signal(row.get("DerivedExitCode"))
    num_nodes = fields.number(row.get("NNodes"))
    limit = fields.number(row.get("TimelimitRaw"))
    nodes = expand_hosts(row.get("NodeList", ""))
    restarts = fields.number(row.get("Restarts")) or 0
    array_job, _, task = job.partition("_")
    values = PatternValues(
        job_id=row.get("JobIDRaw", "").strip(),
        name=row.get("JobName", ""),
        user=row.get("User", "").strip(),
        node=nodes[0] if nodes else "",
        array_job_id=array_job if task else "",
        array_task_id=task,
        restarts=restarts,
    )
    output, error = (fields.text_or_empty(row.get(column)) for column in ("StdOut", "StdErr"))
    stdout, stderr = expanded_paths(output, error, row.get("WorkDir", ""), values)
    allocated = row.get("AllocTRES", "") or row.get("ReqTRES", "")
    launched = [step for step in steps if _is_launched(step)]
    tasks = max((fields.number(step.get("NTasks")) or 0 for step in launched), default=0)
    return JobRecord(
        id=JobId(job),
        cluster=row.get("Cluster", "").strip(),
        name=row.get("JobName", ""),
        owner=UserName(row.get("User", "").strip()),
        state=state,
        uid=fields.number(row.get("UID")),
        gid=fields.number(row.get("GID")),
        exit_code=exit_code if ended else None,
        signal=signal if ended else None,
        derived_exit_code=derived if ended else None,
        reason="" if row.get("Reason", "None").strip() == "None" else row["Reason"].strip(),
        nodes=nodes,
        num_nodes=num_nodes,
        num_tasks=tasks or None,
        gpus_per_node=fields.per_node_gpus("", allocated, num_nodes),
        memory_limit_bytes_per_node=fields.per_node_memory(allocated, num_nodes),
        submit_time_s=fields.epoch_s(row.get("Submit")),
        start_time_s=fields.epoch_s(row.get("Start")) if nodes else None,
        end_time_s=fields.epoch_s(row.get("End")),
        time_limit_s=limit * 60.0 if limit else None,
        work_dir=row.get("WorkDir", ""),
        stdout_path=stdout,
        stderr_path=stderr,
        more_log_paths=_log_paths(launched, values, row.get("WorkDir", "")),
        submit_line=fields.text_or_empty(row.get("SubmitLine")),
        comment=_comment(row),
        partition=row.get("Partition", "").strip(),
        account=row.get("Account", "").strip(),
        qos=row.get("QOS", "").strip(),
        restarts=restarts,
        array_job_id=JobId(array_job) if task else None,
        steps=tuple(_step(step) for step in steps),
        source="sacct",
    )


def _log_paths(steps: Sequence[dict[str, str]], values: PatternValues, work_dir: str) -> tuple[str, ...]:
    """Where the tasks of all steps wrote, as far as the bounds go: a user may start thousands of steps of thousands of
    tasks, whose paths are as long as he likes. Where it is too much the last steps count: a job ends with them."""
    found: dict[str, None] = {}
    kept: list[tuple[str, ...]] = []
    letters = tried = 0
    for step in reversed(steps):
        of_step: list[str] = []
        for path in _step_paths(step, values, work_dir):
            tried += 1
            if path not in found:
                letters += len(path)
                if len(found) >= _MOST_LOGS or letters > _MOST_LETTERS:
                    tried = _MOST_TRIED
                    break
                found[path] = None
            of_step.append(path)
        kept.append(tuple(of_step))
        if tried >= _MOST_TRIED:
            break
    return tuple(dict.fromkeys(path for of_step in reversed(kept) for path in of_step))


def _step_paths(row: dict[str, str], values: PatternValues, work_dir: str) -> Iterator[str]:
    """Where the tasks of a step wrote: 26.05 keeps the patterns, earlier versions the step's own submit line."""
    options = step_options(row.get("SubmitLine", ""))
    output, error = (
        fields.text_or_empty(row.get(column)) or last_value(options, name) or ""
        for column, name in (("StdOut", "output"), ("StdErr", "error"))
    )
    work_dir = posixpath.join(work_dir, last_value(options, "chdir") or "")
    nodes, step = expand_hosts(row.get("NodeList", "")), row["JobID"].strip().partition(".")[2]
    return step_paths(output, error, work_dir, replace(values, step=step), nodes, fields.number(row.get("NTasks")) or 1)


def _step(row: dict[str, str]) -> StepRecord:
    exit_code, signal = fields.exit_and_signal(row.get("ExitCode"))
    return StepRecord(
        id=row["JobID"].strip(),
        state=job_state(row.get("State", "")),
        exit_code=exit_code,
        signal=signal,
        max_rss_bytes=fields.resident_bytes(row.get("MaxRSS")),
        nodes=expand_hosts(row.get("NodeList", "")),
        tasks=fields.number(row.get("NTasks")) if _is_launched(row) else None,
    )


def _is_launched(step: dict[str, str]) -> bool:
    return not step["JobID"].strip().endswith((".batch", ".extern"))


ON_NODE_COLUMNS = ("JobID", "Start", "End", "NodeList")
_MARGIN_S = 60


def on_node_arguments(node: NodeName, ago_s: float, separator: str) -> tuple[str, ...]:
    """Arguments of sacct for everybody's jobs on a node around a moment so many seconds ago. Times are relative, so
    that no time zone and no summer time come in between."""
    since = f"now-{max(int(ago_s), 0) + _MARGIN_S}seconds"
    until = f"now-{int(ago_s) - _MARGIN_S}seconds" if ago_s > _MARGIN_S else "now"
    return (
        "--noheader", "--allusers", "--allocations", "--parsable", f"--delimiter={separator}", f"--nodelist={node}",
        f"--starttime={since}", f"--endtime={until}", f"--format={','.join(ON_NODE_COLUMNS)}",
    )  # fmt: skip


def jobs_on_node(text: str, node: NodeName, at_s: float, separator: str) -> tuple[JobId, ...]:
    """The jobs that had the node at that moment, each once. A job without a start did not run; one without an end
    runs."""
    found: list[JobId] = []
    for row in rows(text, ON_NODE_COLUMNS, separator):
        start_s, end_s = fields.epoch_s(row["Start"]), fields.epoch_s(row["End"])
        ran = start_s is not None and start_s <= at_s and (end_s is None or at_s <= end_s)
        if ran and node in expand_hosts(row["NodeList"]):
            found.append(JobId(row["JobID"].strip()))
    return tuple(dict.fromkeys(found))
