"""What the controller knows: jobs by `squeue`, nodes by `sinfo`, the GPUs of a running job by `scontrol`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runbook.host_lists import expand_hosts, fold_hosts
from runbook.model.job import Dependent, GpuIndices, JobClass, JobRecord, NodeState
from runbook.model.units import MIB, Bytes, JobId, NodeName, UserName
from runbook.slurm import fields
from runbook.slurm.fields import long_format, rows
from runbook.slurm.job_record import DEFAULT_ARRAY_OUTPUT, PatternValues, expanded_paths
from runbook.slurm.states import job_state, node_class, node_states

# `squeue`: a job as the controller remembers it (running, or ended less than MinJobAge ago).

JOB_COLUMNS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "UserName", "UserID", "GroupID",
    "State", "exit_code", "DerivedEC", "NodeList", "NumNodes", "NumTasks", "tres-alloc", "SubmitTime", "StartTime",
    "EndTime", "TimeLimit", "Partition", "Account", "QOS", "Restartcnt", "BatchHost", "Cluster",
    "Reason", "Requeue", "tres-per-node", "Name", "WorkDir", "Command", "Comment", "STDOUT", "STDERR",
)  # fmt: skip
"""What a user can write stands last: see `fields.rows`."""
TOKEN_COLUMNS = ("JobID", "JobArrayID", "SubmitTime", "Comment")


def job_arguments(job: JobId, separator: str) -> tuple[str, ...]:
    """Arguments of squeue for one job in whatever state, array tasks each on a row."""
    return ("--noheader", "--array", "--states=all", f"--jobs={job}", "-O", long_format(JOB_COLUMNS, separator))


def read_jobs(text: str, separator: str) -> tuple[JobRecord, ...]:
    return tuple(_record(row) for row in rows(text, JOB_COLUMNS, separator))


# `squeue`: everybody's running jobs. The answer holds no column that a user writes: in a list of more than one user's
# jobs a name with the separator in it would move the rows of all that follow. An account is one, too, where Slurm does
# not hold it against its associations.

RUNNING_COLUMNS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "UserName", "UserID", "State",
    "SubmitTime", "Partition",
)  # fmt: skip
WORDS_COLUMNS = ("JobID", "JobArrayID", "HetJobID", "HetJobOffset", "SubmitTime", "Account", "Comment")
_JOB_ID = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?")

Run = tuple[JobId, float | None]
"""A job's id, and when it was submitted: numbers are given out again."""


def running_arguments(separator: str) -> tuple[str, ...]:
    """Arguments of squeue for every job that runs, of all partitions, array tasks each on a row."""
    return ("--noheader", "--all", "--array", "--states=running", "-O", long_format(RUNNING_COLUMNS, separator))


def read_running(text: str, separator: str) -> tuple[list[JobRecord], int]:
    """The jobs, each once (of several rows the first), with what their rows hold; and how many rows are none of a
    running job's."""
    found: dict[JobId, JobRecord] = {}
    strange = int(text.count(separator) % len(RUNNING_COLUMNS) > 0)
    for row in rows(text, RUNNING_COLUMNS, separator):
        job = _record({**dict.fromkeys(JOB_COLUMNS, ""), **row})
        fits = (
            _JOB_ID.fullmatch(job.id) and job.owner and job.uid is not None and job.submit_time_s is not None
            and job.state.job_class is not JobClass.UNKNOWN
        )
        if fits:
            found.setdefault(job.id, job)
        strange += not fits
    return list(found.values()), strange


def words_arguments(uid: int, separator: str) -> tuple[str, ...]:
    """Arguments of squeue for what stands on one user's running jobs in words that a user can write."""
    return (
        "--noheader", "--all", "--array", "--states=running", f"--user={uid}",
        "-O", long_format(WORDS_COLUMNS, separator),
    )  # fmt: skip


def read_words(text: str, separator: str) -> dict[Run, tuple[str, str]]:
    """Account and comment. Of one user's jobs alone, so that a forged row says something of his own or counts for
    nothing: whoever asks knows which are his."""
    found: dict[Run, tuple[str, str]] = {}
    for row in rows(text, WORDS_COLUMNS, separator):
        said = fields.text_or_empty(row["Account"]).strip(), fields.text_or_empty(row["Comment"])
        found.setdefault((_display_id(row), fields.epoch_s(row["SubmitTime"])), said)
    return found


def token_arguments(owner: str, separator: str) -> tuple[str, ...]:
    """Arguments of squeue for the comments of one user's jobs in the controller's memory."""
    return (
        "--noheader", "--all", "--array", "--states=all", f"--user={owner}",
        "-O", long_format(TOKEN_COLUMNS, separator),
    )  # fmt: skip


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
        gpus_per_node=fields.per_node_gpus(row["tres-per-node"], row["tres-alloc"], num_nodes),
        memory_limit_bytes_per_node=fields.per_node_memory(row["tres-alloc"], num_nodes),
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
    output, error = (fields.text_or_empty(row[column]) for column in ("STDOUT", "STDERR"))
    stdout, stderr = expanded_paths(output, error, record.work_dir, values)
    if array_job and output.endswith(f"/slurm-{values.job_id}.out"):
        # 22.05 tells this of a task without `--output`, whose file is another; a pattern that was given it repeats.
        stdout = expanded_paths(DEFAULT_ARRAY_OUTPUT, "", record.work_dir, values)[0]
    return replace(record, stdout_path=stdout, stderr_path=stderr)


# `squeue`: who waits for a job, by its own `--dependency`.

DEPENDENT_COLUMNS = ("JobArrayID", "Name", "UserID", "State", "Reason", "Dependency")
_MOST_DEPENDENTS = 50
_CONDITION = re.compile(r"(?P<type>[a-z]+)(?::(?P<jobs>[^(]*))?(?:\([^()]*\))?")
_IN_VAIN = "DependencyNeverSatisfied"


def dependents_arguments(owner: str, separator: str) -> tuple[str, ...]:
    """Arguments of squeue for one user's jobs that wait, or that were cancelled lately."""
    return (
        "--noheader", "--all", "--states=PENDING,CANCELLED", f"--user={owner}",
        "-O", long_format(DEPENDENT_COLUMNS, separator),
    )  # fmt: skip


def read_dependents(text: str, job: JobRecord, separator: str) -> dict[Dependent, str]:
    """The jobs that wait for this one, of its owner and at most 50, with the dependency that lets each wait for another
    in its place: "afterok:NEW,afterany:9". "" where that cannot be said: singleton, all tasks of an array.

    Slurm writes "afterok:7(failed),afterany:9(unfulfilled)", and `?` for "one of them is enough"."""
    return dependents_of(rows(text, DEPENDENT_COLUMNS, separator), job)


def dependents_of(told: Iterable[Mapping[str, str]], job: JobRecord) -> dict[Dependent, str]:
    """As `read_dependents`, of jobs by the names of `DEPENDENT_COLUMNS`."""
    found: dict[Dependent, str] = {}
    for row in told:
        cancelled = job_state(row["State"]).job_class is JobClass.CANCELLED
        if fields.number(row["UserID"]) != job.uid or (cancelled and row["Reason"].strip() != _IN_VAIN):
            continue
        waits_for = fields.text_or_empty(row["Dependency"]).strip()
        parts = [_CONDITION.fullmatch(part) for part in re.split(r"[,?]", waits_for)] if waits_for else []
        named = [part for part in parts if part is not None and _waits_for(part, job, row["Name"])]
        if not named or len(found) >= _MOST_DEPENDENTS:
            continue
        others = ",".join(_instead(part, job) for part in parts if part is not None)
        plain = None not in parts and "?" not in waits_for
        sure = plain and all(part["jobs"] == job.id for part in named) and not cancelled
        waits = Dependent(JobId(row["JobArrayID"].strip()), row["Name"], named[0]["type"], cancelled)
        found[waits] = others if sure else ""
    return found


def dependency_arguments(job: JobId, dependency: str, new: JobId) -> tuple[str, ...]:
    """Arguments of scontrol that let a job wait for another, with a dependency of `read_dependents`."""
    return ("update", f"JobId={job}", f"Dependency={dependency.replace(NEW_JOB, new)}")


NEW_JOB = "NEW"


def _waits_for(condition: re.Match[str], job: JobRecord, name: str) -> bool:
    if condition["type"] == "singleton":
        return name == job.name
    return any(one in (job.id, f"{job.array_job_id}_*") for one in (condition["jobs"] or "").split(":"))


def _instead(condition: re.Match[str], job: JobRecord) -> str:
    jobs = condition["jobs"]
    if jobs is None:
        return condition["type"]
    return f"{condition['type']}:{NEW_JOB if jobs == job.id else jobs}"


# `sinfo`: nodes with all their state words, and the drain reason as it was written.

NODE_COLUMNS = ("NodeList", "StateComplete", "Reason", "Gres", "GresUsed", "Partition")


def node_arguments(names: Sequence[NodeName] | None, separator: str) -> tuple[str, ...]:
    """Arguments of sinfo: a row a node and partition, hidden partitions too."""
    chosen = (f"--nodes={fold_hosts(names)}",) if names else ()
    return ("--noheader", "--Node", "--all", *chosen, "-O", long_format(NODE_COLUMNS, separator))


def read_nodes(text: str, separator: str) -> tuple[NodeState, ...]:
    """Nodes in sinfo's order, each once."""
    found: dict[NodeName, NodeState] = {}
    for row in rows(text, NODE_COLUMNS, separator):
        name = NodeName(row["NodeList"].strip())
        partition = row["Partition"].strip().removesuffix("*")
        before = found.get(name)
        partitions = (*(before.partitions if before else ()), *((partition,) if partition else ()))
        words = node_states(row["StateComplete"])
        reason = row["Reason"]
        found[name] = NodeState(
            name=name,
            node_class=node_class(words),
            states=words,
            reason="" if reason.strip().lower() in ("none", "(null)", "") else reason,
            gpus=fields.gpu_count(row["Gres"]),
            gpus_allocated=fields.gpu_count(row["GresUsed"]),
            partitions=tuple(dict.fromkeys(partitions)),
        )
    return tuple(found.values())


# `scontrol show node` and `show partition`: how much main memory a job can be given on a node.

def node_memory_arguments(nodes: Sequence[NodeName]) -> tuple[str, ...]:
    """Arguments of scontrol: a line a node."""
    return ("--oneliner", "show", "node", fold_hosts(nodes))


def partition_arguments(partition: str) -> tuple[str, ...]:
    return ("--oneliner", "show", "partition", partition)


def read_memory_to_have(nodes: str, partition: str, asked: int) -> Bytes | None:
    """The least of `asked` nodes' RealMemory less MemSpecLimit (MiB), and of the partition's MaxMemPerNode. None where
    one of them does not say, or the partition limits it by CPU: then Slurm gives more CPUs for more memory."""
    found = []
    for line in nodes.splitlines():
        real = re.match(r"NodeName=\S+ .*? RealMemory=(\d{1,12}) ", line)
        if real is not None:
            kept = re.search(r" MemSpecLimit=(\d{1,12})(?= |$)", line)
            found.append(int(real[1]) - (int(kept[1]) if kept else 0))
    limit = re.search(r" MaxMemPer(Node|CPU)=(\w{1,12})(?= |$)", partition)
    if limit is None or len(found) != asked or (limit[1] == "CPU" and limit[2] != "UNLIMITED"):
        return None
    at_most = [int(limit[2])] if limit[2].isdecimal() and int(limit[2]) else []
    return Bytes(min(found + at_most) * MIB) if found else None


def drain_arguments(node: NodeName, reason: str) -> tuple[str, ...]:
    """Arguments of scontrol."""
    return ("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def resume_arguments(node: NodeName) -> tuple[str, ...]:
    return ("update", f"NodeName={node}", "State=RESUME")


# `scontrol show job -d`: which of each node's GPUs a job was given, while it runs.
#
# Slurm prints a line for each group of nodes with the same share, below `JOB_GRES`:
#
#          Nodes=gpu-[21-22] CPU_IDs=0-3 Mem=64 GRES=gpu:h100:2(IDX:0,3),nic:1(IDX:0)
#
# `IDX` counts the entries of the node's gres.conf, whatever their types. When the job has ended, `GRES=` is empty
# (seen on 22.05.8), and neither squeue, sacct nor the environment of EpilogSlurmctld has the indices.

_LINE = re.compile(r" {3,8}Nodes=(?P<nodes>\S+) CPU_IDs=\S* Mem=\d+ (?:GRES|GRES_IDX)=(?P<gres>\S*) *")
_PART = re.compile(r"(?:gres[:/])?(?P<name>[A-Za-z0-9_]+)(?::[^:()]+)*(?::\d+)?(?P<more>\([^()]*\))*")
_INDICES = re.compile(r"\(IDX:(?P<list>[0-9,-]+)\)")
_MOST_INDICES = 1024


def gpu_indices_arguments(job: JobId) -> tuple[str, ...]:
    """Arguments of scontrol."""
    return ("show", "job", "-d", job)


def read_gpu_indices(text: str) -> tuple[GpuIndices, ...]:
    """The indices of each node. () where a node comes twice, or a share of GPUs has no indices: then nothing is known.

    A job's name may hold lines that look like Slurm's own. It cannot take those away, so that a forged line makes its
    node come twice."""
    found: dict[NodeName, tuple[int, ...]] = {}
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        indices = listed_gpus(match["gres"])
        nodes = expand_hosts(match["nodes"])
        if indices is None or not nodes or any(node in found for node in nodes):
            return ()
        found.update(dict.fromkeys(nodes, indices))
    return tuple(GpuIndices(node, indices) for node, indices in found.items() if indices)


def index_list(text: str) -> tuple[int, ...] | None:
    """"0-2,5" as numbers; None for what is no such list."""
    numbers: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not (first.isdecimal() and len(first) < 5) or (dash and not (last.isdecimal() and len(last) < 5)):
            return None
        low, high = int(first), int(last or first)
        if not low <= high < _MOST_INDICES:
            return None
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def listed_gpus(gres: str) -> tuple[int, ...] | None:
    """The GPUs of one share, of all types; () for none. None where GPUs are named without their indices, and for
    shards and MPS, whose GPUs several jobs share."""
    numbers: list[int] = []
    for part in re.split(r",(?![^(]*\))", gres):
        match = _PART.fullmatch(part)
        if not part or (match and match["name"] not in ("gpu", "shard", "mps")):
            continue
        listed = _INDICES.search(part)
        indices = index_list(listed["list"]) if listed else None
        if match is None or match["name"] != "gpu" or indices is None:
            return None
        numbers += indices
    return tuple(sorted(numbers)) if len(set(numbers)) == len(numbers) else None
