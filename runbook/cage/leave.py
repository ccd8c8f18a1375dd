"""What a box in the cage may ask of the outside: a table by port and method, from the incident as it is stored and from
what the flow document says that the box does.

A box that read hostile text is believed no more than that text. So it is answered only what its incident needs: files
of the job's owner, nodes of the job, its own folder; an act only where its flow document names that act, on the job,
the nodes and the files of this very incident, and only as often as one visit does it. Whatever else it asks for ends
it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import BoundArguments
from typing import Any

from runbook.model.incident import Failure, Incident
from runbook.model.job import Claim, JobRecord, Submission
from runbook.model.node import GpuProcess
from runbook.model.units import IncidentId, JobId, NodeName, UserName
from runbook.slurm.ownership import attempt_mark

_LONGEST_SLEEP_S = 900.0
_MOST_CALLS = 50_000
_KEPT = re.compile(r"evidence/[^/]+")
_WRITTEN = re.compile(r"(attempts/(\d+)|acts)/[^/]+")


class NotItsBusiness(Exception):
    """What a box asked for, in words."""


@dataclass
class Leave:
    """What one visit of a box may ask for, and what it was told. Asked before each call, told after it."""

    incident: Incident
    acts: frozenset[str]
    """Methods of ports, as the flow document names them."""
    records: dict[JobId, JobRecord] = field(default_factory=dict, init=False)
    """What the scheduler itself said of this incident's jobs in this visit."""
    submitted: set[JobId] = field(default_factory=set, init=False)
    """Jobs that carry this incident's token, by the scheduler's word."""
    claims: list[Claim] = field(default_factory=list, init=False)
    """Under which they were asked for."""
    _counts: dict[str, int] = field(default_factory=dict, init=False)

    def check(self, port: str, method: str, arguments: BoundArguments) -> None:
        """Raises `NotItsBusiness`."""
        name = f"{port}.{method}"
        self._counts[name] = self._counts.get(name, 0) + 1
        rule = RULES.get(name)
        if rule is None:
            raise NotItsBusiness(f"{name}, which no box calls")
        act = _ACTS.get(name)
        if act is not None and act not in self.acts:
            raise NotItsBusiness(f"{name}, and this box does not act so")
        if sum(self._counts.values()) > _MOST_CALLS:
            raise NotItsBusiness(f"more than {_MOST_CALLS:,} answers")
        if problem := rule(self, **arguments.arguments):
            raise NotItsBusiness(f"{name} {problem}")

    def told(self, port: str, method: str, arguments: BoundArguments, answer: Any) -> None:
        """What the outside said, by which later calls and the box's result are judged."""
        if isinstance(answer, JobRecord) and (port, method) == ("scheduler", "job"):
            # A task of an array may be asked for by one number and answer by another.
            if self.is_own(arguments.arguments["job"]):
                self.records[answer.id] = answer
        elif (port, method) == ("scheduler", "submit"):
            self.submitted.add(answer)
            self.claims.append(arguments.arguments["submission"].claim)
        elif (port, method) == ("scheduler", "find_submitted"):
            self.submitted.update(answer)
            self.claims.append(arguments.arguments["claim"])

    # -- what is the incident's ------------------------------------------------------------------------------

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(one for one in (self.incident.original, self.incident.failure) if one is not None)

    @property
    def known(self) -> tuple[JobRecord, ...]:
        """The records of this incident's jobs: those that are stored, and those that the scheduler gave just now."""
        return (*(failure.job for failure in self.failures), *self.records.values())

    @property
    def owner(self) -> UserName | None:
        """Whose files are read: the first job's owner, by the scheduler's word."""
        return self.known[0].owner if self.known else None

    @property
    def nodes(self) -> frozenset[NodeName]:
        return frozenset(node for job in self.known for node in job.nodes)

    def is_own(self, job: JobId) -> bool:
        attempts = (attempt.job for attempt in self.incident.attempts)
        return job in {self.incident.root_job, *attempts, *(known.id for known in self.known)}

    def count(self, name: str) -> int:
        """How often it was asked for, with this time."""
        return self._counts.get(name, 0)


Rule = Callable[..., str]
"""Takes the leave and the call's arguments by their names; says what is wrong with them, or ""."""


def _anything(_leave: Leave, **_given: Any) -> str:
    return ""


def _own_job(leave: Leave, *, job: JobId) -> str:
    return "" if leave.is_own(job) else f"of job {job:.40}, which is not this incident's"


def _owners_file(leave: Leave, *, owner: UserName, **_given: Any) -> str:
    return "" if leave.owner is not None and owner == leave.owner else f"as {owner:.40}"


def _own_node(leave: Leave, *, node: NodeName, **_given: Any) -> str:
    return "" if node in leave.nodes else f"of {node:.60}, which is no node of the job"


def _own_processes(leave: Leave, *, node: NodeName, job: JobRecord, **_given: Any) -> str:
    if _whose(job) not in {_whose(one) for one in leave.known}:
        return f"of job {job.id:.40}, of which the scheduler has not told so"
    return _own_node(leave, node=node) or _own_job(leave, job=job.id)


def _own_record(leave: Leave, *, job: JobRecord) -> str:
    """Of a job as the scheduler told it: a box may have made up the rest of a record."""
    told = {(one.id, one.partition, one.nodes) for one in leave.known}
    return _own_job(leave, job=job.id) or ("" if (job.id, job.partition, job.nodes) in told else "of a record made up")


def _short_sleep(_leave: Leave, *, seconds: float) -> str:
    return "" if seconds <= _LONGEST_SLEEP_S else f"for {seconds:.0f} s"


def _own_folder(leave: Leave, *, incident: IncidentId, **_given: Any) -> str:
    return "" if incident == leave.incident.id else "of another incident"


def _write(
    leave: Leave, *, incident: IncidentId, relative: str, mode: int, owner: tuple[int, int] | None, **_given: Any
) -> str:
    """Copies for the next attempt, and marks of acts: never what is published or what the service itself writes."""
    place = _WRITTEN.fullmatch(relative)
    if place is None or (place[2] is not None and int(place[2]) != len(leave.incident.attempts) + 1):
        return f"to {relative:.80}"
    if mode & ~0o755:
        return f"with mode {mode:o}"
    if owner is not None and owner not in {(one.uid, one.gid) for one in leave.known if one.owner == leave.owner}:
        return "for another user"
    return _own_folder(leave, incident=incident)


def _keep(leave: Leave, *, incident: IncidentId, relative: str, **_given: Any) -> str:
    if _KEPT.fullmatch(relative) is None:
        return f"to {relative:.80}"
    # Whole first, and shortened once it is known that it did not die of memory.
    if leave.count("folder.copy_stream") > 2 * max((len(one.log_paths) for one in leave.known), default=0):
        return "more often than twice for each of the job's logs"
    return _own_folder(leave, incident=incident)


def _find(leave: Leave, *, claim: Claim) -> str:
    return "" if claim.owner == leave.owner else f"of {claim.owner:.40}"


def _cancel(leave: Leave, *, job: JobRecord) -> str:
    failure = leave.incident.failure
    if failure is None or job.id != failure.job.id or job.owner != leave.owner:
        return f"of job {job.id:.40}, which is not the one that failed"
    return _own_job(leave, job=job.id)


def _hold(leave: Leave, *, job: JobRecord) -> str:
    """No act that a person has a say in: it is given back with the report."""
    return _own_job(leave, job=job.id) if job.owner == leave.owner else f"of a job of {job.owner:.40}"


def _drain(leave: Leave, *, node: NodeName, **_given: Any) -> str:
    """Only what the check of the node asked to drain, which a person may have approved."""
    judged = {one.node for failure in leave.failures for one in failure.judgements if one.drain}
    return "" if node in judged & leave.nodes else f"of {node:.60}, which was not judged so"


def _end(leave: Leave, *, node: NodeName, process: GpuProcess, **_given: Any) -> str:
    tenants = {
        (one.node, tenant.pid) for failure in leave.failures for one in failure.judgements for tenant in one.tenants
    }
    if (node, process.pid) not in tenants:
        return f"of process {process.pid}, which the check of the node did not name"
    return _own_node(leave, node=node)


def _submit(leave: Leave, *, submission: Submission, original: JobRecord) -> str:
    if leave.count("scheduler.submit") > 1:
        return "twice"
    stored = leave.incident.original
    if stored is None or original.id != stored.job.id:
        return "like a job that is not this incident's"
    claim, number = submission.claim, len(leave.incident.attempts) + 1
    if claim.owner != leave.owner or original.owner != leave.owner or claim.uid != stored.job.uid:
        return f"as {claim.owner:.40}"
    if not claim.token.startswith(f"{attempt_mark(leave.incident.id, number)}:"):
        return "under a comment that is not this attempt's"
    if f"/{leave.incident.id}/attempts/{number}/" not in submission.script_path or "/../" in submission.script_path:
        return f"of {submission.script_path:.120}"
    return ""


def _replace(leave: Leave, *, path: str, owner: UserName, **_given: Any) -> str:
    original = leave.incident.original
    named = {item.source for item in leave.incident.companions} | ({original.job.command} if original else set())
    return _owners_file(leave, owner=owner) if path in named else f"of {path:.120}"


RULES: Mapping[str, Rule] = {
    "scheduler.describe": _anything,
    "scheduler.job": _anything,  # tenants' jobs are asked for, too
    "scheduler.script": _own_job,
    "scheduler.environment": _own_job,
    "scheduler.find_submitted": _find,
    "scheduler.nodes": _anything,
    "scheduler.memory_to_have": _own_record,
    "scheduler.cancel": _cancel,
    "scheduler.hold": _hold,
    "scheduler.release": _hold,
    "scheduler.drain": _drain,
    "scheduler.submit": _submit,
    "nodes.check": _own_node,
    "nodes.processes": _own_processes,
    "nodes.end_process": _end,
    "files.open": _owners_file,
    "files.entries": _owners_file,
    "files.replace": _replace,
    "folder.folder": _own_folder,
    "folder.read_file": _own_folder,
    "folder.write_file": _write,
    "folder.copy_stream": _keep,
    "history.like": _anything,
    "history.drains_since": _anything,
    "clock.now": _anything,
    "clock.elapsed": _anything,
    "clock.sleep": _short_sleep,
}
_ACTS: Mapping[str, str] = {
    f"{port}.{act}": act
    for port, act in (
        ("scheduler", "cancel"), ("scheduler", "drain"), ("scheduler", "submit"), ("nodes", "end_process"),
        ("files", "replace"),
    )
}


def check_result(leave: Leave, after: Incident) -> str:
    """What of a box's result is not believed, in words; "" when it may be the incident's next state. Who the job is,
    whose it is and which jobs were submitted comes from the scheduler; what was done, from the acts that were let
    through."""
    before = leave.incident
    for name in _FIXED:
        if getattr(after, name) != getattr(before, name):
            return f"another {name}"
    if before.script is not None and after.script != before.script:
        return "another script than the one that was submitted"
    if after.acts[: len(before.acts)] != before.acts or (len(after.acts) > len(before.acts) and not leave.acts):
        return "acts that it did not do"
    said = {_whose(job) for job in leave.known}
    for failure in (after.original, after.failure):
        if failure is not None and (_whose(failure.job) not in said or failure.job.owner != leave.owner):
            return "a job that the scheduler did not tell of so"
    if before.original is not None and (after.original is None or after.original.job.id != before.original.job.id):
        return "another original job"
    old = [(attempt.job, attempt.claim) for attempt in before.attempts]
    new = [(attempt.job, attempt.claim) for attempt in after.attempts]
    if new[: len(old)] != old:
        return "another earlier attempt"
    if not all(job in leave.submitted and claim in leave.claims for job, claim in new[len(old) :]):
        return "an attempt whose job was not submitted"
    return ""


_FIXED = ("id", "cluster", "root_job", "policy", "trigger", "opened_s", "version", "tool_version", "run", "visits")


def _whose(job: JobRecord) -> tuple[object, ...]:
    return job.id, job.cluster, job.owner, job.uid, job.gid, job.work_dir, job.command
