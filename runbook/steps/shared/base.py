"""What every step is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Protocol, cast

from runbook.config import Inventory
from runbook.errors import NotAllowed, RunbookError
from runbook.foresight import MemoryDocument, load_memory
from runbook.kinds import load_kinds
from runbook.logs.signatures import Signatures, load_signatures
from runbook.model.incident import Act, Attempt, Failure, Incident
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.node_rules import NodeDocuments
from runbook.model.units import IncidentId
from runbook.node.catalogues import load_node_documents
from runbook.ports import Clock, Files, History, Nodes, Scheduler
from runbook.remedy import LeverDocument, Restarter, load_levers, load_restarters
from runbook.steps.shared.companion_files import ProgramSources, log_heads
from runbook.steps.shared.template_reading import TemplateReading

if TYPE_CHECKING:
    from runbook.logs.search import InOrder


class IncidentFolder(Protocol):
    """The incident's own folder, where evidence and patched copies are kept."""

    def write_file(
        self,
        incident: IncidentId,
        relative: str,
        content: bytes,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Write a file atomically, for `owner` (uid, gid) if given. Raises `Unavailable` on a full disk."""

    def copy_stream(self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int) -> tuple[Path, bool]:
        """Keep a log: whole, or its head and tail when larger than the limit. Returns (path, shortened)."""

    def folder(self, incident: IncidentId) -> Path:
        """The folder itself, which may not exist yet."""

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        """A kept file. Raises `NotFound`."""


@dataclass(frozen=True, slots=True)
class Playbook:
    """The documents that the steps judge with."""

    signatures: Signatures
    levers: tuple[LeverDocument, ...]
    node: NodeDocuments
    restarters: tuple[Restarter, ...] = ()
    """What starts a job again in every framework."""
    memory: MemoryDocument | None = None
    """What a training run needs on a GPU; None: this playbook foresees nothing."""


def load_playbook(folder: Path) -> Playbook:
    """The documents of a playbook's folder. Raises `DocumentsInvalid` with every fault of the first that has any."""
    kinds = load_kinds(folder)
    return Playbook(
        signatures=load_signatures(folder / "signatures", kinds),
        levers=load_levers(folder / "levers", kinds),
        node=load_node_documents(folder),
        restarters=load_restarters(folder / "restarters.yaml"),
        memory=load_memory(folder / "memory.yaml") if (folder / "memory.yaml").is_file() else None,
    )


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside, as the steps see it."""

    scheduler: Scheduler
    nodes: Nodes
    files: Files
    folder: IncidentFolder
    clock: Clock
    history: History | None = None
    """None: earlier incidents are not asked for."""
    in_order: InOrder = map
    """How logs are searched ahead of whoever judges them: on threads, where the outside has some."""


@dataclass(frozen=True)
class StepContext:
    """The incident so far, the outside, and what the cluster allows: made once a visit of a box."""

    incident: Incident
    ports: Ports
    playbook: Playbook
    settings: Inventory
    tell: Callable[[str], None] = field(default=lambda _line: None)
    """A line of progress for whoever watches."""

    @property
    def failure(self) -> Failure:
        """The failure under work. Boxes after `identify` always have one."""
        if self.incident.failure is None:
            raise RunbookError(
                "this incident has no identified job yet", where=self.incident.id, next_step="runbook resume"
            )
        return self.incident.failure

    @cached_property
    def template(self) -> TemplateReading:
        """The launch template as it stands for the next attempt, read once a visit."""
        incident, failure = self.incident, self.failure
        job = incident.original.job if incident.original else failure.job
        return TemplateReading(
            incident.templates, incident.unread, failure.story or LogStory(root_cause=None), self.playbook.levers,
            submitted=job, failed=failure.job.id, ask_environment=lambda: self.ports.scheduler.environment(job.id),
            answers=incident.answers, sources=ProgramSources.of(self.ports.files, job),
            log_heads=lambda: log_heads(self.ports.files, job),
        )

    @property
    def attempt(self) -> Attempt | None:
        """The relaunch under watch, the last one."""
        return self.incident.attempts[-1] if self.incident.attempts else None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a box found: its outcome, the incident with its findings, and a sentence for a person."""

    outcome: str
    """A member of the step's `Outcome`, or `planned` or `declined` from the engine."""
    incident: Incident
    summary: str = ""
    poll_s: float = 0.0
    """For an outcome that leads back to its own box: wait this long before looking again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an acting box is about to do, for a person to say yes or no to."""

    what: str
    """"cancel", "end_process", "drain", "submit", "promote"."""
    target: str
    sentence: str
    token: str = ""


def with_act(incident: Incident, act: Act) -> Incident:
    """The incident with one more entry in its log of acts."""
    return replace(incident, acts=(*incident.acts, act))


def with_last_attempt(incident: Incident, attempt: Attempt) -> Incident:
    """The incident with its last attempt replaced."""
    return replace(incident, attempts=(*incident.attempts[:-1], attempt))


def with_notes(incident: Incident, *notes: str) -> Incident:
    """The incident with notes added, each once."""
    fresh = tuple(note for note in notes if note and note not in incident.notes)
    return replace(incident, notes=(*incident.notes, *fresh)) if fresh else incident


def waiting_note(job: JobRecord) -> str:
    """Which jobs wait for one that has failed, in a sentence; "" for none."""
    told = [
        f"{one.id} ({one.name}, {one.condition}{', cancelled by Slurm' if one.cancelled else ''})"
        for one in job.dependents
    ]
    return f"These wait for job {job.id}: {', '.join(told)}." if told else ""


ACTS = frozenset({"submit", "cancel", "hold", "release", "drain", "undrain", "replace", "end_process"})
"""Methods of ports that do something outside."""


def read_only_ports(ports: Ports) -> Ports:
    """The same ports, with every act refused. What a box read when it proposed can have changed by the time it runs;
    without a yes it may then only find that out."""
    return replace(
        ports,
        scheduler=cast(Scheduler, _ReadOnly(ports.scheduler)),
        nodes=cast(Nodes, _ReadOnly(ports.nodes)),
        files=cast(Files, _ReadOnly(ports.files)),
    )


class _ReadOnly:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return _refuse if name in ACTS else getattr(self._inner, name)


def _refuse(*_arguments: object, **_named: object) -> NoReturn:
    raise NotAllowed(
        "the cluster changed between the question and the act, so nothing was done without a yes",
        next_step="`runbook resume` looks and asks again",
    )
