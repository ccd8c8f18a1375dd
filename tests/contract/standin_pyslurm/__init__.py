"""A STAND-IN for pyslurm, not pyslurm: what was seen of pyslurm 25.11.2 on Slurm 25.11.7, over a fake controller.

It has the attributes, types and messages that were recorded there, and nothing else; `connect` gives it its jobs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from runbook.errors import RunbookError
from runbook.model.units import MIB, JobId, NodeName
from tests.contract.fakes import FakeScheduler

__version__ = "25.11.2"


class PyslurmError(Exception):
    """Base of the module's errors."""


class RPCError(PyslurmError):
    """What slurmctld answered."""


_controllers: list[FakeScheduler] = []


def connect(controller: FakeScheduler) -> ModuleType:
    """Take this controller from now on; returns the module."""
    import sys

    _controllers[:] = [controller]
    return sys.modules[__name__]


class Job:
    """`Job(id)` names a job, `Job.load(id)` reads it."""

    def __init__(self, job_id: int) -> None:
        self.id = job_id

    @classmethod
    def load(cls, job_id: int) -> Job:
        try:
            record = _controllers[0].job(JobId(str(job_id)))
        except RunbookError as error:
            raise RPCError("Invalid job id specified") from error
        job = cls(job_id)
        ended = record.state.job_class.ended
        memory = record.memory_limit_bytes_per_node
        values: dict[str, Any] = {
            "name": record.name,
            "user_name": record.owner,
            "user_id": record.uid,
            "group_id": record.gid,
            "state": record.state.name,
            "state_reason": record.reason or "None",
            "exit_code": record.exit_code,
            "exit_code_signal": record.signal if ended and record.signal else None,
            "derived_exit_code": 0,
            # 25.11 gives the default without the folder and with its pattern.
            "standard_output": record.stdout_path.replace(f"{record.work_dir}/slurm-{job_id}.out", "slurm-%j.out"),
            "standard_error": record.stderr_path,
            "working_directory": record.work_dir,
            "command": record.command,
            "submit_line": record.submit_line,
            "comment": record.comment or None,
            "allocated_nodes": ",".join(record.nodes),
            "num_nodes": record.num_nodes,
            "ntasks": record.num_tasks,
            "requeue_count": record.restarts,
            "submit_time": int(record.submit_time_s or 0),
            # The controller's guess, for one that waits.
            "start_time": int(record.start_time_s or record.submit_time_s or 0) or None,
            "end_time": int(record.end_time_s or 0) or None,
            "time_limit": None,
            "partition": "gpu",
            "account": None,
            "qos": "normal",
            "gres_per_node": {"gres/gpu": record.gpus_per_node} if record.gpus_per_node else {},
            "memory": memory * (record.num_nodes or 1) // MIB if memory else None,
            "is_requeueable": True,
            "array_id": None,
            "heterogeneous_id": None,
        }
        for name, value in values.items():
            setattr(job, name, value)
        return job

    def cancel(self) -> None:
        _controllers[0].cancel(_controllers[0].job(JobId(str(self.id))))

    def get_batch_script(self) -> str:
        return _controllers[0].jobs[str(self.id)].script or ""


class Node:
    """`Node(state=…, reason=…)` is a wish, `Node(name).modify(wish)` makes it so."""

    def __init__(self, name: str = "", *, state: str = "", reason: str | None = None) -> None:
        self.name = name
        self.state = state
        self.reason = reason
        self.configured_gres: dict[str, int] = {}
        self.allocated_gres: dict[str, int] = {}

    @classmethod
    def load(cls, name: str) -> Node:
        try:
            (found,) = _controllers[0].nodes((NodeName(name),))
        except RunbookError as error:
            raise RPCError(f"Node {name} does not exist") from error
        node = cls(name, state="+".join(found.states), reason=found.reason or None)
        node.configured_gres = {"gpu": found.gpus or 0}
        node.allocated_gres = {"gpu": found.gpus_allocated or 0}
        return node

    def modify(self, wish: Node) -> None:
        controller = _controllers[0]
        if wish.state == "DRAIN":
            controller.drains[self.name] = wish.reason or ""
        elif wish.state == "RESUME":
            controller.drains.pop(self.name, None)
        else:
            raise RPCError(f"Invalid node state specified: {wish.state}")


class Nodes:
    @staticmethod
    def load() -> dict[str, Node]:
        return {name: Node.load(name) for name in _controllers[0].node_names}
