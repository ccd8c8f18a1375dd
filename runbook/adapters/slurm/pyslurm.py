"""The Scheduler port over pyslurm, for what it does faster and as safely; the commands do the rest.

pyslurm answers for jobs in the controller's memory, their script, cancelling, and nodes. Submitting as the job's owner,
accounting (submit line, steps, environment), jobs that the controller has forgotten, and finding tokens stay with the
commands: libslurm acts as the user of this process only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from runbook.adapters.clock import SystemClock
from runbook.adapters.drain_guards import drain_wanted, undrain_wanted
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.host_lists import expand_hosts
from runbook.model.job import Claim, GpuIndices, JobEnvironment, JobRecord, JobScript, NodeState, Submission
from runbook.model.units import MIB, Bytes, JobId, NodeName, Unknown, UserName
from runbook.ports import Clock, Scheduler
from runbook.slurm.complaints import Complaint, complaint
from runbook.slurm.controller import index_list
from runbook.slurm.fields import gpu_count
from runbook.slurm.job_record import PatternValues, expanded_paths
from runbook.slurm.ownership import check_same_run
from runbook.slurm.states import job_state, node_class, node_states

_MOST_RUNS_KEPT = 256
_ANSWER_HOLDS_S = 5.0


class PyslurmModule(Protocol):
    """What is used of the module `pyslurm` (25.11; shapes seen on a real Slurm 25.11.7)."""

    Job: Any
    Node: Any
    Nodes: Any
    PyslurmError: type[Exception]


class SlurmPyslurm:
    """pyslurm where it can, `fallback` (the commands) where it cannot."""

    def __init__(
        self,
        module: PyslurmModule,
        fallback: Scheduler,
        *,
        cluster: str = "",
        version: str = "",
        ping: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`ping` raises `Unavailable` where no controller answers."""
        self._ping = ping
        self._clock = clock or SystemClock()
        self._answered_s = float("-inf")
        self._module = module
        self._fallback = fallback
        self._cluster = cluster
        self._version = version
        self._looks: dict[tuple[JobId, float | None], tuple[int, tuple[str, ...]]] = {}

    def describe(self) -> str:
        return (
            f"pyslurm {self._version or '(unknown version)'} for live jobs, scripts, cancel and nodes; for submitting "
            f"as the owner, accounting and tokens: {self._fallback.describe()}"
        )

    def job(self, job: JobId) -> JobRecord:
        if not job.isdecimal():
            return self._fallback.job(job)
        try:
            found = self._call(lambda: self._module.Job.load(int(job)))
        except NotFound:
            return self._fallback.job(job)
        if _attribute(found, "array_id") or _attribute(found, "heterogeneous_id"):
            return self._fallback.job(job)
        record = read_job(found, self._cluster)
        if record.submit_line and not record.state.job_class.ended:
            if not record.nodes:
                return record
            return replace(record, gpu_indices=read_gpu_indices(found), more_log_paths=self._logs_of_steps(record))
        # Steps, and the submit line where the controller does not hold it, are accounting's.
        kept = self._fallback.job(job)
        return replace(kept, source=f"pyslurm+{kept.source}")

    def _logs_of_steps(self, record: JobRecord) -> tuple[str, ...]:
        """Where the tasks of a running job's steps write, which accounting knows. A step may start at any time, and
        most jobs have none with files of its own: asked at the first look, the second, the fourth, the eighth, …"""
        run = (record.id, record.start_time_s)
        looks, known = self._looks.pop(run, (0, ()))
        if not known and (looks & (looks - 1)) == 0:
            with contextlib.suppress(RunbookError):
                known = self._fallback.job(record.id).more_log_paths
        while len(self._looks) >= _MOST_RUNS_KEPT:
            del self._looks[next(iter(self._looks))]
        self._looks[run] = (looks + 1, known)
        return known

    def script(self, job: JobId) -> JobScript | Unknown:
        if job.isdecimal():
            try:
                text = self._call(lambda: self._module.Job.load(int(job)).get_batch_script())
            except (NotFound, NotAllowed):
                text = ""
            if isinstance(text, str) and text.strip():
                return JobScript(text, "pyslurm get_batch_script")
        return self._fallback.script(job)

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        return self._fallback.environment(job)

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        return self._fallback.submit(submission, original)

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        return self._fallback.find_submitted(claim)

    def hold(self, job: JobRecord) -> bool:
        return self._fallback.hold(job)

    def release(self, job: JobRecord) -> bool:
        return self._fallback.release(job)

    def cancel(self, job: JobRecord) -> None:
        if not job.id.isdecimal():
            self._fallback.cancel(job)
            return
        try:
            check_same_run(self.job(job.id), job)
            self._call(lambda: self._module.Job(int(job.id)).cancel())
        except NotFound:
            return
        except NotAllowed:
            self._fallback.cancel(job)

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        if names is None:
            every: Mapping[str, Any] = self._call(lambda: self._module.Nodes.load())
            return tuple(read_node(NodeName(name), node) for name, node in sorted(every.items()))
        return tuple(
            read_node(name, self._call(lambda name=name: self._module.Node.load(name))) for name in dict.fromkeys(names)
        )

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return self._fallback.memory_to_have(job)

    def drain(self, node: NodeName, reason: str) -> None:
        (present,) = self.nodes((node,))
        if drain_wanted(present, reason):
            self._call(lambda: self._module.Node(node).modify(self._module.Node(state="DRAIN", reason=reason)))

    def undrain(self, node: NodeName, token: str) -> None:
        (present,) = self.nodes((node,))
        if undrain_wanted(present, token):
            self._call(lambda: self._module.Node(node).modify(self._module.Node(state="RESUME")))

    def _call(self, action: Any) -> Any:
        """libslurm waits a minute for a controller that is down, and nothing in this process can end that: so a command
        that can be ended asks first, unless it answered a moment ago."""
        now_s = self._clock.now()
        if self._ping is not None and not 0 <= now_s - self._answered_s < _ANSWER_HOLDS_S:
            self._ping()
        try:
            result = action()
        except self._module.PyslurmError as error:
            told = _translated(str(error))
            if isinstance(told, Unavailable):
                self._answered_s = float("-inf")
            raise told from error
        self._answered_s = now_s
        return result


def read_job(found: object, cluster: str) -> JobRecord:
    """A pyslurm Job as our record. Attributes that a version lacks are "not said"."""
    state = job_state(_text(found, "state"))
    ended = state.job_class.ended
    num_nodes = _whole(found, "num_nodes")
    gpus = None
    per_node = _attribute(found, "gres_per_node")
    if isinstance(per_node, Mapping):
        gpus = gpu_count(",".join(f"{name}={count}" for name, count in per_node.items()))
    # `memory` is the job's total in MiB.
    memory_mib = _whole(found, "memory")
    even = memory_mib and num_nodes and memory_mib % num_nodes == 0
    nodes, work_dir = expand_hosts(_text(found, "allocated_nodes")), _text(found, "working_directory")
    restarts = _whole(found, "requeue_count") or 0
    values = PatternValues(
        job_id=str(_attribute(found, "id")),
        name=_text(found, "name"),
        user=_text(found, "user_name"),
        node=nodes[0] if nodes else "",
        restarts=restarts,
    )
    stdout, stderr = expanded_paths(
        _text(found, "standard_output"), _text(found, "standard_error"), work_dir, values
    )
    limit_minutes = _whole(found, "time_limit")
    return JobRecord(
        id=JobId(str(_attribute(found, "id"))),
        cluster=cluster or _text(found, "cluster"),
        name=_text(found, "name"),
        owner=UserName(_text(found, "user_name")),
        state=state,
        uid=_whole(found, "user_id"),
        gid=_whole(found, "group_id"),
        exit_code=(_whole(found, "exit_code") or 0) if ended else None,
        signal=(_whole(found, "exit_code_signal") or 0) if ended else None,
        derived_exit_code=_whole(found, "derived_exit_code") if ended else None,
        reason="" if _text(found, "state_reason") == "None" else _text(found, "state_reason"),
        nodes=nodes,
        num_nodes=num_nodes,
        num_tasks=_whole(found, "ntasks"),
        gpus_per_node=gpus,
        memory_limit_bytes_per_node=Bytes(memory_mib * MIB // num_nodes) if even and memory_mib and num_nodes else None,
        submit_time_s=_whole(found, "submit_time") or None,
        # Of a job that has not run it is the moment when it is expected to.
        start_time_s=(_whole(found, "start_time") or None) if nodes else None,
        end_time_s=(_whole(found, "end_time") or None) if ended else None,
        time_limit_s=limit_minutes * 60.0 if limit_minutes else None,
        work_dir=work_dir,
        stdout_path=stdout,
        stderr_path=stderr,
        command=_text(found, "command"),
        submit_line=_text(found, "submit_line"),
        comment=_text(found, "comment"),
        partition=_text(found, "partition"),
        account=_text(found, "account"),
        qos=_text(found, "qos"),
        excluded_nodes=expand_hosts(_text(found, "excluded_nodes")),
        restarts=restarts,
        requeueable=value if isinstance(value := _attribute(found, "is_requeueable"), bool) else None,
        source="pyslurm",
    )


def read_gpu_indices(found: object) -> tuple[GpuIndices, ...]:
    """The GPUs of a running job on each node, from `get_resource_layout_per_node`: {"gpu-21": {"gres": {"gpu:h100":
    {"count": 2, "indexes": "0,3"}}}}. () where a version lacks it or says it otherwise."""
    try:
        layout: object = getattr(found, "get_resource_layout_per_node", dict)()
    except (ValueError, TypeError):
        return ()
    told: list[GpuIndices] = []
    for node, share in layout.items() if isinstance(layout, Mapping) else ():
        gres = share.get("gres") if isinstance(share, Mapping) else None
        numbers: list[int] = []
        for name, one in gres.items() if isinstance(gres, Mapping) else ():
            kind = str(name).partition(":")[0]
            if kind not in ("gpu", "shard", "mps"):
                continue
            indices = index_list(str(one.get("indexes", ""))) if isinstance(one, Mapping) and kind == "gpu" else None
            if indices is None:
                return ()
            numbers += indices
        if numbers:
            told.append(GpuIndices(NodeName(str(node)), tuple(sorted(set(numbers)))))
    return tuple(told)


def read_node(name: NodeName, found: object) -> NodeState:
    words = node_states(_text(found, "state"))
    configured, allocated = (_attribute(found, key) for key in ("configured_gres", "allocated_gres"))
    partitions = _attribute(found, "partitions")
    return NodeState(
        name=name,
        node_class=node_class(words),
        states=words,
        reason=_text(found, "reason"),
        gpus=_gpus(configured),
        gpus_allocated=_gpus(allocated),
        partitions=tuple(str(item) for item in partitions) if isinstance(partitions, list | tuple) else (),
    )


def _gpus(gres: object) -> int | None:
    if not isinstance(gres, Mapping):
        return None
    return gpu_count(",".join(f"{name}:{count}" for name, count in gres.items()))


def _attribute(found: object, name: str) -> object:
    return getattr(found, name, None)


def _text(found: object, name: str) -> str:
    value = _attribute(found, name)
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


def _whole(found: object, name: str) -> int | None:
    value = _attribute(found, name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _translated(words: str) -> RunbookError:
    match complaint(words):
        case Complaint.NO_SUCH:
            return NotFound(f"Slurm does not know it: {words}", where="pyslurm", next_step="check the id or name")
        case Complaint.DENIED:
            return NotAllowed(f"Slurm refuses: {words}", where="pyslurm", next_step="run as an operator or the owner")
        case Complaint.UNREACHED | Complaint.LOST:
            return Unavailable(f"Slurm does not answer: {words}", where="pyslurm", next_step="try again")
        case _:
            return NotAllowed(f"Slurm refuses: {words}", where="pyslurm", next_step="mend what Slurm names")
