"""`squeue`: a job as the controller remembers it (running, or ended less than MinJobAge ago)."""

from __future__ import annotations

from dataclasses import replace

from runbook.evidence import slurm_fields as fields
from runbook.evidence.slurm_columns import long_format, rows
from runbook.evidence.slurm_hosts import expand_hosts
from runbook.evidence.slurm_paths import PatternValues, expand
from runbook.evidence.states import job_state
from runbook.model.job import JobRecord
from runbook.model.units import Bytes, JobId, UserName

COLUMNS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "Name", "UserName", "UserID",
    "GroupID", "State", "Reason", "exit_code", "DerivedEC", "NodeList", "NumNodes", "NumTasks", "tres-alloc",
    "tres-per-node", "SubmitTime", "StartTime", "EndTime", "TimeLimit", "WorkDir", "Command", "Comment",
    "Partition", "Account", "QOS", "Restartcnt", "Requeue", "STDOUT", "STDERR", "BatchHost", "Cluster",
)  # fmt: skip
TOKEN_COLUMNS = ("JobID", "JobArrayID", "SubmitTime", "Comment")


def job_arguments(job: JobId, separator: str) -> tuple[str, ...]:
    """Arguments of squeue for one job in whatever state, array tasks each on a row."""
    return ("--noheader", "--array", "--states=all", f"--jobs={job}", "-O", long_format(COLUMNS, separator))


def read_jobs(text: str, separator: str) -> tuple[JobRecord, ...]:
    return tuple(_record(row) for row in rows(text, COLUMNS, separator))


def token_arguments(separator: str) -> tuple[str, ...]:
    """Arguments of squeue for the comments of all jobs in the controller's memory."""
    return ("--noheader", "--all", "--array", "--states=all", "-O", long_format(TOKEN_COLUMNS, separator))


def read_comments(text: str, separator: str) -> list[tuple[JobId, float, str]]:
    """(job, submit time, comment)."""
    return [
        (_display_id(row), fields.epoch_s(row["SubmitTime"]) or 0.0, fields.text_or_empty(row["Comment"]))
        for row in rows(text, TOKEN_COLUMNS, separator)
    ]


def wait_status(value: str | None) -> tuple[int | None, int | None]:
    """squeue's `exit_code`: a raw wait status in 22.05 (2816 is exit 11, 15 is SIGTERM), "status:signal" elsewhere."""
    if ":" in (value or ""):
        return fields.exit_and_signal(value)
    status = fields.number(value)
    return (None, None) if status is None else ((status >> 8) & 0xFF, status & 0x7F)


def _display_id(row: dict[str, str]) -> JobId:
    """"123", an array task "123_4", a heterogeneous component "123+1"."""
    het = fields.number(row.get("HetJobID"))
    if het is not None and fields.number(row.get("HetJobOffset")) is not None:
        return JobId(f"{het}+{row['HetJobOffset'].strip()}")
    return JobId((row["JobArrayID"] or row["JobID"]).strip())


def _record(row: dict[str, str]) -> JobRecord:
    state = job_state(row["State"])
    ended = state.job_class.ended
    exit_code, signal = wait_status(row["exit_code"])
    derived, _ = wait_status(row["DerivedEC"])
    job = _display_id(row)
    nodes = expand_hosts(row["NodeList"])
    num_nodes = fields.number(row["NumNodes"])
    array_job = row["ArrayJobID"].strip() if "_" in job else ""
    name = fields.text_or_empty(row["Name"])
    record = JobRecord(
        id=job,
        cluster=fields.text_or_empty(row["Cluster"]).strip(),
        name=name,
        owner=UserName(row["UserName"].strip()),
        state=state,
        uid=fields.number(row["UserID"]),
        gid=fields.number(row["GroupID"]),
        exit_code=exit_code if ended else None,
        signal=signal if ended else None,
        derived_exit_code=derived if ended else None,
        reason="" if row["Reason"].strip() == "None" else row["Reason"].strip(),
        nodes=nodes,
        num_nodes=num_nodes,
        num_tasks=fields.number(row["NumTasks"]),
        gpus_per_node=per_node_gpus(row["tres-per-node"], row["tres-alloc"], num_nodes),
        memory_limit_bytes_per_node=per_node_memory(row["tres-alloc"], num_nodes),
        submit_time_s=fields.epoch_s(row["SubmitTime"]),
        start_time_s=fields.epoch_s(row["StartTime"]) if nodes else None,
        end_time_s=fields.epoch_s(row["EndTime"]) if ended else None,
        time_limit_s=fields.duration_s(row["TimeLimit"]),
        work_dir=fields.text_or_empty(row["WorkDir"]),
        command=fields.text_or_empty(row["Command"]),
        comment=fields.text_or_empty(row["Comment"]),
        partition=row["Partition"].strip(),
        account=fields.text_or_empty(row["Account"]).strip(),
        qos=fields.text_or_empty(row["QOS"]).strip(),
        restarts=fields.number(row["Restartcnt"]) or 0,
        requeueable={"1": True, "0": False}.get(row["Requeue"].strip()),
        array_job_id=JobId(array_job) if array_job else None,
        source="squeue",
    )
    values = PatternValues(
        job_id=row["JobID"].strip(),
        name=name,
        user=record.owner,
        node=row["BatchHost"].strip(),
        array_job_id=array_job,
        array_task_id=row["ArrayTaskID"].strip() if array_job else "",
        restarts=record.restarts,
    )
    stdout = expand(fields.text_or_empty(row["STDOUT"]), values) or ""
    stderr = expand(fields.text_or_empty(row["STDERR"]), values) or ""
    return replace(record, stdout_path=stdout, stderr_path="" if stderr == stdout else stderr)


def per_node_gpus(requested: str, allocated: str, num_nodes: int | None) -> int | None:
    """GPUs a node as requested, or else the allocation's total where it divides evenly."""
    asked = fields.gpu_count(requested)
    if asked is not None:
        return asked
    total = fields.gpu_count(allocated)
    return total // num_nodes if total and num_nodes and total % num_nodes == 0 else None


def per_node_memory(allocated: str, num_nodes: int | None) -> Bytes | None:
    """Memory a node of an allocation ("cpu=2,mem=2G,node=2"), where it divides evenly."""
    for part in allocated.split(","):
        if part.startswith("mem="):
            total = fields.memory_bytes(part[4:])
            if total and num_nodes and total % num_nodes == 0:
                return Bytes(total // num_nodes)
    return None
