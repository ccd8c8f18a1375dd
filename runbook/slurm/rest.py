"""How slurmrestd writes its answers: jobs of the controller, jobs of accounting, nodes, and what it complains of.

Versions of the format (`data_parser`) from v0.0.42 (Slurm 24.11) to v0.0.45 (26.05); the shapes were seen on 26.05.5.
Everything is read by its name. A figure is `{"set": true, "infinite": false, "number": 3}`: one that is not set, or is
infinite, is not told. An answer may come with status 200 and still say no: `errors`, or an `error` of a job's `status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.host_lists import expand_hosts
from runbook.model.job import Dependent, GpuIndices, JobRecord, NodeState, StepRecord
from runbook.model.units import JobId, NodeName, UserName
from runbook.slurm import fields
from runbook.slurm.controller import dependents_of, listed_gpus
from runbook.slurm.job_record import PatternValues, expanded_paths
from runbook.slurm.states import job_state, node_class, node_states

VERSIONS = ("v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45")

Answer = Mapping[str, Any]


def complaints_of(answer: Answer) -> tuple[str, ...]:
    """Every error that the answer holds, in Slurm's words, whatever its status was; a warning is none."""
    found = []
    for error in _list(answer, "errors"):
        words = [text for key in ("error", "description") if (text := _text(error, key))]
        found.append(": ".join(words) or "an error without words")
    for one in _list(answer, "status"):
        of_job = _part(one, "error")
        if of_job.get("code") not in (None, 0):
            found.append(_text(of_job, "string") or _text(of_job, "message") or f"error {of_job.get('code')}")
    return tuple(found)


def read_jobs(answer: Answer) -> tuple[JobRecord, ...]:
    """Of `GET /slurm/…/job/N` and `/slurm/…/jobs/`."""
    return tuple(map(_controllers, _list(answer, "jobs")))


def read_accounted(answer: Answer) -> tuple[JobRecord, ...]:
    """Of `GET /slurmdb/…/job/N`, of a job that was requeued its last run. A user's number is not told, only the
    name."""
    last: dict[JobId, JobRecord] = {}
    for record in map(_accountings, _list(answer, "jobs")):
        before = last.get(record.id)
        if before is None or (before.submit_time_s or 0.0) <= (record.submit_time_s or 0.0):
            last[record.id] = record
    return tuple(last.values())


def read_nodes(answer: Answer) -> tuple[NodeState, ...]:
    """Of `GET /slurm/…/nodes/` and `/slurm/…/node/NAME`."""
    found = []
    for node in _list(answer, "nodes"):
        words = node_states(str(word) for word in _plain_list(node, "state"))
        found.append(
            NodeState(
                name=NodeName(_text(node, "name")), node_class=node_class(words), states=words,
                reason=_text(node, "reason"), gpus=fields.gpu_count(_text(node, "gres")),
                gpus_allocated=fields.gpu_count(_text(node, "gres_used")),
                partitions=tuple(str(name) for name in _plain_list(node, "partitions")),
            )
        )
    return tuple(found)


_OF_DEPENDENTS = (
    "job_id", "array_job_id", "array_task_id", "array_task_string", "het_job_id", "het_job_offset", "name", "user_id",
    "job_state", "state_reason", "dependency",
)


def of_dependents(answer: Answer) -> Answer:
    """What `read_dependents` reads of an answer, and nothing else of it."""
    return {"jobs": [{key: one[key] for key in _OF_DEPENDENTS if key in one} for one in _list(answer, "jobs")]}


def read_dependents(answer: Answer, job: JobRecord) -> tuple[Dependent, ...]:
    """Of all jobs those that wait for this one, as `controller.dependents_of` says."""
    return tuple(dependents_of(
        (
            {
                "JobArrayID": _id(one), "Name": _text(one, "name"), "UserID": str(figure(one.get("user_id")) or ""),
                "State": ",".join(map(str, _plain_list(one, "job_state"))), "Reason": _text(one, "state_reason"),
                "Dependency": _text(one, "dependency"),
            }
            for one in _list(answer, "jobs")
        ),
        job,
    ))


def figure(value: object) -> int | None:
    """A whole number, plain or with its `set` and `infinite`."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") is True and value.get("infinite") is not True else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _controllers(job: Answer) -> JobRecord:
    state = job_state(str(word) for word in _plain_list(job, "job_state"))
    ended = state.job_class.ended
    nodes, work_dir = expand_hosts(_text(job, "nodes")), _text(job, "current_working_directory")
    num_nodes, shown = figure(job.get("node_count")), _id(job)
    array_job = shown.partition("_")[0] if "_" in shown else ""
    exit_code, signal = _exit(job.get("exit_code"))
    derived, _ = _exit(job.get("derived_exit_code"))
    limit_minutes, requeue = figure(job.get("time_limit")), job.get("requeue")
    restarts = figure(job.get("restart_cnt")) or 0
    allocated = _text(job, "tres_alloc_str") or _text(job, "tres_req_str")
    values = PatternValues(
        job_id=str(figure(job.get("job_id")) or ""), name=_text(job, "name"), user=_text(job, "user_name"),
        node=_text(job, "batch_host"), array_job_id=array_job,
        array_task_id=str(figure(job.get("array_task_id"))) if array_job and "[" not in shown else "",
        restarts=restarts,
    )
    stdout, stderr = expanded_paths(_text(job, "standard_output"), _text(job, "standard_error"), work_dir, values)
    return JobRecord(
        id=JobId(shown),
        cluster=_text(job, "cluster"),
        name=values.name,
        owner=UserName(values.user),
        state=state,
        uid=figure(job.get("user_id")),
        gid=figure(job.get("group_id")),
        exit_code=exit_code if ended else None,
        signal=signal if ended else None,
        derived_exit_code=derived if ended else None,
        reason=_unless_none(_text(job, "state_reason")),
        nodes=nodes,
        num_nodes=num_nodes,
        num_tasks=figure(job.get("tasks")),
        gpus_per_node=fields.per_node_gpus(_text(job, "tres_per_node"), allocated, num_nodes),
        memory_limit_bytes_per_node=fields.per_node_memory(allocated, num_nodes),
        submit_time_s=_moment(job.get("submit_time")),
        # Of a job that has not run it is the moment when it is expected to.
        start_time_s=_moment(job.get("start_time")) if nodes else None,
        end_time_s=_moment(job.get("end_time")) if ended else None,
        time_limit_s=limit_minutes * 60.0 if limit_minutes else None,
        work_dir=work_dir,
        stdout_path=stdout,
        stderr_path=stderr,
        command=_text(job, "command"),
        comment=_text(job, "comment"),
        partition=_text(job, "partition"),
        account=_text(job, "account"),
        qos=_text(job, "qos"),
        excluded_nodes=expand_hosts(_text(job, "excluded_nodes")),
        restarts=restarts,
        requeueable=requeue if isinstance(requeue, bool) else None,
        array_job_id=JobId(array_job) if array_job else None,
        gpu_indices=() if ended else _gpu_indices(_plain_list(job, "gres_detail"), nodes),
        source="slurmrestd",
    )


def _accountings(job: Answer) -> JobRecord:
    told = _part(job, "state")
    state = job_state(str(word) for word in _plain_list(told, "current"))
    ended = state.job_class.ended
    nodes = expand_hosts(_text(job, "nodes"))
    times = _part(job, "time")
    exit_code, signal = _exit(job.get("exit_code"))
    derived, _ = _exit(job.get("derived_exit_code"))
    num_nodes = figure(job.get("allocation_nodes"))
    asked = _part(job, "tres")
    allocated = ",".join(_tres(asked, "allocated") or _tres(asked, "requested"))
    limit_minutes = figure(times.get("limit"))
    shown = _accounted_id(job)
    steps = tuple(_step(step, shown) for step in _list(job, "steps"))
    restarts, work_dir = figure(job.get("restart_cnt")) or 0, _text(job, "working_directory")
    array_job, _, task = shown.partition("_")
    values = PatternValues(
        job_id=str(figure(job.get("job_id")) or ""), name=_text(job, "name"), user=_text(job, "user"),
        node=nodes[0] if nodes else "", array_job_id=array_job if task else "", array_task_id=task, restarts=restarts,
    )
    stdout, stderr = expanded_paths(_text(job, "stdout"), _text(job, "stderr"), work_dir, values)
    return JobRecord(
        id=JobId(shown),
        cluster=_text(job, "cluster"),
        name=values.name,
        owner=UserName(values.user),
        state=state,
        exit_code=exit_code if ended else None,
        signal=signal if ended else None,
        derived_exit_code=derived if ended else None,
        reason=_unless_none(_text(told, "reason")),
        nodes=nodes,
        num_nodes=num_nodes,
        gpus_per_node=fields.per_node_gpus("", allocated, num_nodes),
        memory_limit_bytes_per_node=fields.per_node_memory(allocated, num_nodes),
        submit_time_s=_moment(times.get("submission")),
        start_time_s=_moment(times.get("start")) if nodes else None,
        end_time_s=_moment(times.get("end")),
        time_limit_s=limit_minutes * 60.0 if limit_minutes else None,
        work_dir=work_dir,
        stdout_path=stdout,
        stderr_path=stderr,
        submit_line=_text(job, "submit_line"),
        comment=_text(_part(job, "comment"), "job"),
        partition=_text(job, "partition"),
        account=_text(job, "account"),
        qos=_text(job, "qos"),
        restarts=restarts,
        array_job_id=JobId(array_job) if task else None,
        steps=steps,
        source="slurmrestd's accounting",
    )


def _step(step: Answer, job: str) -> StepRecord:
    exit_code, signal = _exit(step.get("exit_code"))
    named, name = _part(step, "nodes").get("list"), _text(_part(step, "step"), "id").rpartition(".")[2]
    return StepRecord(
        # It is told by the number that an array's task has, too.
        id=f"{job}.{name}",
        state=job_state(str(word) for word in _plain_list(step, "state")),
        exit_code=exit_code,
        signal=signal,
        nodes=tuple(NodeName(str(node)) for node in named) if isinstance(named, list) else (),
        tasks=figure(_part(step, "tasks").get("count")) if name not in ("batch", "extern") else None,
    )


def _id(job: Answer) -> str:
    """"123", an array task "123_4", tasks that wait together "123_[5-9%2]", a heterogeneous component "123+1"."""
    number, het, array = (figure(job.get(key)) for key in ("job_id", "het_job_id", "array_job_id"))
    offset, task = figure(job.get("het_job_offset")), figure(job.get("array_task_id"))
    if het and offset is not None:
        return f"{het}+{offset}"
    if array and task is not None:
        return f"{array}_{task}"
    waiting = _text(job, "array_task_string")
    return f"{array}_[{waiting}]" if array and waiting else str(number or "")


def _accounted_id(job: Answer) -> str:
    array, het = _part(job, "array"), _part(job, "het")
    task, offset, waiting = figure(array.get("task_id")), figure(het.get("job_offset")), _text(array, "task")
    if figure(het.get("job_id")) and offset is not None:
        return f"{figure(het.get('job_id'))}+{offset}"
    if figure(array.get("job_id")) and (task is not None or waiting):
        return f"{figure(array.get('job_id'))}_{f'[{waiting}]' if task is None else task}"
    return str(figure(job.get("job_id")) or "")


def _exit(value: object) -> tuple[int, int]:
    """Exit status and signal: one that is not set is 0, as Slurm's commands write it."""
    if not isinstance(value, Mapping):
        return 0, 0
    return figure(value.get("return_code")) or 0, figure(_part(value, "signal").get("id")) or 0


def _moment(value: object) -> float | None:
    seconds = figure(value)
    return float(seconds) if seconds else None


def _tres(asked: Answer, key: str) -> list[str]:
    """As the commands write it: "mem=600M,gres/gpu=4"; memory is in MiB."""
    found = []
    for one in _list(asked, key):
        name = "/".join(filter(None, (_text(one, "type"), _text(one, "name"))))
        if (count := figure(one.get("count"))) is not None:
            found.append(f"{name}={count}{'M' if name == 'mem' else ''}")
    return found


def _gpu_indices(shares: list[Any], nodes: tuple[NodeName, ...]) -> tuple[GpuIndices, ...]:
    """`gres_detail`: a share a node, "gpu:h100:2(IDX:0,3)", in the order of the nodes. () where it is not so."""
    if len(shares) != len(nodes):
        return ()
    found = [(node, listed_gpus(str(share))) for node, share in zip(nodes, shares, strict=True)]
    if any(indices is None for _, indices in found):
        return ()
    return tuple(GpuIndices(node, indices) for node, indices in found if indices)


def _unless_none(word: str) -> str:
    """Slurm writes "None" where it has no reason."""
    return "" if word == "None" else word


def _list(answer: object, key: str) -> list[Answer]:
    return [entry for entry in _plain_list(answer, key) if isinstance(entry, Mapping)]


def _plain_list(answer: object, key: str) -> list[Any]:
    value = answer.get(key) if isinstance(answer, Mapping) else None
    return list(value) if isinstance(value, list) else [value] if isinstance(value, str) and value else []


def _part(answer: Answer, key: str) -> Answer:
    value = answer.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(answer: Answer, key: str) -> str:
    value = answer.get(key)
    return value if isinstance(value, str) else ""
