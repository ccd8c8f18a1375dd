"""From an inventory to a working application: every adapter is made here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.adapters.clock import SystemClock
from runbook.adapters.delivery import Target
from runbook.adapters.driver import DriverLock
from runbook.adapters.offline import NoNodes
from runbook.adapters.silent import FileSystems, must_answer
from runbook.adapters.whole_file import Locked, private_file, private_folder, process_lock
from runbook.config import Inventory, NotifyDocument, NotifyTargetDocument, load_inventory
from runbook.errors import BadInput, Unavailable
from runbook.locations import playbook_folder
from runbook.model.incident import Incident, Policy
from runbook.model.units import GIB, IncidentId, UserName

if TYPE_CHECKING:
    from runbook.adapters.driver.lease import DriverLease
    from runbook.adapters.local import LocalScheduler
    from runbook.adapters.notify import TargetsNotify, Telling
    from runbook.adapters.slurm.commands import SlurmCommands
    from runbook.adapters.store import IncidentStore, LogsKept
    from runbook.adapters.store.read_model import ReadModel
    from runbook.adapters.traces import Traces
    from runbook.cage import Cage
    from runbook.engine import Engine
    from runbook.flow import Boxes, Flow
    from runbook.flow.walking import Walk, Watcher
    from runbook.ports import Clock, Files, Nodes, Scheduler
    from runbook.report.charts.flow_chart import FlowPicture
    from runbook.steps.shared.base import Playbook, Ports, StepContext


_LEAST_FREE_BYTES = 4 << 20
UNFINISHED_RESTORE = "restoring.json"
"""In a state folder into which a backup is being put: nothing works on the half of it."""


@dataclass
class Application:
    """One inventory's parts, made when first asked for, so that a command pays only for what it uses."""

    inventory: Inventory
    policy: Policy | None = None
    """The command line's policy; None: the inventory's."""
    named: str | None = None
    """The inventory as it was named, for processes of our own; None: the usual one."""
    scheduler_override: Scheduler | None = None
    nodes_override: Nodes | None = None
    apart: bool = False
    """No file of a user's is opened in this process, not even our own: a service has to be able to end."""
    playbook_folder: Path = field(default_factory=playbook_folder)
    drives_as: str = "command"
    """Or "daemon"."""
    patience_s: float = 20.0
    """How long Slurm is asked again while it is not reached."""
    looks: bool = False
    """It reads what is stored and writes nothing: whoever may read the state folder can."""

    @cached_property
    def settings(self) -> Inventory:
        return self.inventory.with_mode(self.policy)

    @cached_property
    def state(self) -> Path:
        """The state folder, made if it is missing. Raises `Unavailable` where that fails."""
        folder = self.inventory.state_folder
        try:
            if not self.looks:
                private_folder(folder)
        except OSError as error:
            raise Unavailable(
                f"the state folder cannot be made: {error.strerror}",
                where=str(folder),
                next_step="make it, or name another under paths.state of the inventory",
            ) from error
        if (folder / UNFINISHED_RESTORE).exists():
            raise Unavailable(
                "a backup is being restored into the state folder, or was and did not come to its end",
                where=str(folder), next_step="`runbook restore FILE` again",
            )
        if not self.looks and not os.access(folder, os.W_OK):
            raise Unavailable(
                "the state folder cannot be written",
                where=str(folder),
                next_step="run as the user that it belongs to, or name another under paths.state of the inventory",
            )
        return folder

    def check_room(self) -> None:
        """Before anything is begun: the workflow database cannot tell a full disk from a passing fault and would wait.
        Raises `Unavailable`."""
        free = os.statvfs(self.state)
        if free.f_bavail * free.f_frsize < _LEAST_FREE_BYTES:
            raise Unavailable(
                f"the disk is full: less than {_LEAST_FREE_BYTES >> 20} MiB are free, so no act could be recorded",
                where=str(self.state),
                next_step="make room, then type the same again",
            )

    @cached_property
    def database_url(self) -> str:
        """Of the workflows. A file of them is made here, so that nobody else reads the scripts in it, whatever the
        umask. Raises `Unavailable`."""
        if not self.inventory.database:
            try:
                private_file(self.state / "workflows.sqlite")
            except OSError as error:
                raise Unavailable(
                    f"the workflow database cannot be made: {error.strerror}", where=str(self.state),
                    next_step="make room or mend the folder's rights, then try again",
                ) from error
        return self.inventory.database_url

    @cached_property
    def lease(self) -> DriverLease:
        """Whose turn it is, where a PostgreSQL database serves several hosts."""
        from runbook.adapters.driver.lease import DriverLease

        return DriverLease(self.inventory.database_url, self.drives_as, self.inventory.cluster, self.state)

    def driver(self, kind: str) -> DriverLock | DriverLease:
        """What a "daemon" or a "command" takes before it drives."""
        self.drives_as = kind
        return self.lease if self.inventory.database else DriverLock(self.state, kind)

    @cached_property
    def clock(self) -> Clock:
        return SystemClock()

    @cached_property
    def store(self) -> IncidentStore:
        if self.inventory.database:
            from runbook.adapters.driver.lease import LeasedStore

            return LeasedStore(self.state, contract_of, lambda: self.lease, self._logs_kept)
        from runbook.adapters.store import IncidentStore

        return IncidentStore(self.state, contract_of, self._logs_kept)

    @property
    def _logs_kept(self) -> LogsKept:
        from runbook.adapters.store import LogsKept

        keep = self.inventory.keep
        reserve = None if keep.reserve_gib is None else round(keep.reserve_gib * GIB)
        return LogsKept(reserve, round(keep.owner_gib * GIB), self._open_of)

    def _open_of(self, incident: IncidentId) -> tuple[UserName, Sequence[IncidentId]]:
        owners = {row.id: UserName(row.owner) for row in self.read_model.rows() if row.closed_s is None}
        owner = owners.get(incident, UserName(""))
        return owner, [name for name, whose in owners.items() if whose == owner]

    @contextmanager
    def alone(self, name: str, wait_s: float, what: str) -> Iterator[None]:
        """One process at a time does what `name` names. Raises `Unavailable` with `what` where another still does after
        so long."""
        with ExitStack() as held:
            try:
                held.enter_context(process_lock(self.state / "locks", name, wait_s))
            except Locked as error:
                raise Unavailable(what, where=error.where, next_step="try again when it is done") from error
            yield

    @cached_property
    def read_model(self) -> ReadModel:
        from runbook.adapters.store.read_model import ReadModel

        return ReadModel(self.store)

    @cached_property
    def files(self) -> Files:
        from runbook.adapters.files import OwnerFiles

        return OwnerFiles(systems=self.file_systems, apart=self.apart)

    @cached_property
    def file_systems(self) -> FileSystems:
        """Which of them do not answer."""
        return FileSystems()

    @cached_property
    def local_scheduler(self) -> LocalScheduler:
        from runbook.adapters.local import LocalScheduler

        return LocalScheduler(self.state / "scheduler", cluster=self.inventory.cluster)

    @cached_property
    def scheduler(self) -> Scheduler:
        if self.scheduler_override is not None:
            return self.scheduler_override
        document = self.inventory.scheduler
        if document.kind == "local":
            return self.local_scheduler
        if document.slurm_conf and not os.access(document.slurm_conf, os.R_OK):
            # Slurm's commands would ask the name service for a controller instead, until they are ended.
            raise Unavailable(
                "there is no slurm.conf that can be read where the inventory names it",
                where=document.slurm_conf,
                next_step="mend scheduler.slurm_conf of the inventory, or leave it out for Slurm's own",
            )
        if document.rest is not None:
            from runbook.adapters.slurm.slurmrestd import RestLine, RestSettings, SlurmRest

            settings = RestSettings(timeout_s=document.command_timeout_s, **document.rest.model_dump())
            return SlurmRest(RestLine(settings), document.rest.version, cluster=self.inventory.cluster)
        from runbook.adapters.slurm import choose_scheduler

        return choose_scheduler(
            self.slurm_commands,
            cluster=self.inventory.cluster,
            prefer="auto" if document.adapter == "auto" else "cli",
            locks=self.state / "locks",
            left=self.inventory.spool_folder / "nodes",
        )

    @cached_property
    def slurm_commands(self) -> SlurmCommands:
        from runbook.adapters.slurm.commands import SlurmCommands

        document = self.inventory.scheduler
        if document.adapter == "rest":
            raise Unavailable(
                "this takes Slurm's commands, and the inventory names slurmrestd instead",
                where="scheduler.adapter of the inventory",
                next_step="do it on a host with Slurm's commands",
            )
        return SlurmCommands(
            bin_dir=document.commands_folder, slurm_conf=document.slurm_conf, timeout_s=document.command_timeout_s,
            patience_s=self.patience_s,
            ends_s=(lambda: self.lease.ends_s()) if self.inventory.database else lambda: None,
        )

    @cached_property
    def nodes(self) -> Nodes:
        if self.nodes_override is not None:
            return self.nodes_override
        document = self.inventory.nodes
        if document.kind == "ssh":
            from runbook.adapters.node_access import NodesWithLeft, SshNodes
            from runbook.adapters.ssh import SshSettings

            must_answer(Path("~/.ssh").expanduser(), limit_s=self.patience_s or document.connect_timeout_s)
            asked = SshNodes(
                SshSettings(
                    user=document.user,
                    key_file=document.key_file,
                    known_hosts_file=document.known_hosts_file,
                    config_file=document.config_file,
                    port=document.port,
                    jump_host=document.jump_host,
                    sudo=document.sudo,
                    probe=document.probe,
                    connect_timeout_s=document.connect_timeout_s,
                    command_timeout_s=document.command_timeout_s,
                )
            )
            return NodesWithLeft(asked, self.inventory.spool_folder / "nodes")
        if document.kind == "none":
            return NoNodes()
        from runbook.adapters.node_access import LocalNodes

        return LocalNodes(probe=document.probe)

    @cached_property
    def notify(self) -> TargetsNotify:
        from runbook.adapters.notify import TargetsNotify

        return TargetsNotify(targets_of(self.inventory.notify), self.clock)

    def telling(self, *, attended: bool = False) -> Telling:
        """Who tells people of incidents. `attended`: a person at the terminal is asked there."""
        from runbook.adapters.notify import Telling

        return Telling(
            self.notify, self.store, self.clock, report_url=self.settings.reports.url, attended=attended,
            most_once=bool(self.inventory.database),
        )

    @cached_property
    def playbook(self) -> Playbook:
        from runbook.steps.shared.base import load_playbook

        return load_playbook(self.playbook_folder)

    @cached_property
    def flow(self) -> Flow:
        from runbook.flow import load_flow

        return load_flow(self.playbook_folder / "flow.yaml")

    @cached_property
    def ports(self) -> Ports:
        from runbook.adapters.log_files import THREADS, on_threads
        from runbook.steps.shared.base import Ports

        ports = Ports(
            scheduler=self.scheduler,
            nodes=self.nodes,
            files=self.files,
            folder=self.store,
            clock=self.clock,
            history=self.read_model,
            in_order=on_threads(THREADS),
        )
        if not self.inventory.database:
            return ports
        from runbook.adapters.driver.lease import fenced

        return replace(
            ports,
            scheduler=fenced(ports.scheduler, self.lease),
            nodes=fenced(ports.nodes, self.lease),
            files=fenced(ports.files, self.lease),
        )

    def context(self, incident: Incident, tell: Callable[[str], None] = lambda _line: None) -> StepContext:
        """What a step is given for this incident."""
        from runbook.steps.shared.base import StepContext

        return StepContext(incident, self.ports, self.playbook, self.settings, tell)

    @cached_property
    def cage(self) -> Cage:
        """Where boxes run that read files of others."""
        from runbook.cage import Cage

        return Cage(
            self.flow, self.playbook_folder, self.inventory.cage, self.inventory.workers, self.file_systems
        )

    def engine(self, watcher: Watcher, *, attended: bool = False, boxes: Boxes | None = None) -> Engine:
        """The durable engine over all of it; `launch` it before use. The rest as of `walk`."""
        from runbook.engine import Engine

        return Engine(self.walk(watcher, attended=attended, boxes=boxes))

    def walk(self, watcher: Watcher, *, attended: bool = False, boxes: Boxes | None = None) -> Walk:
        """The walk through the flow. `attended` as in `Telling`; `boxes`: where they run, here unless it is said."""
        from runbook.flow import Here
        from runbook.flow.walking import Walk

        told = [self.telling(attended=attended).of] if self.notify.reaches else []
        if self.inventory.traces.endpoint:
            told.append(self.traces.of)

        def tell(before: Incident | None, after: Incident) -> None:
            for one in told:
                one(before, after)

        return Walk(
            self.flow, self.context, self.store, self.clock, self.settings.policy, watcher, self.draw, tell,
            boxes or Here(),
        )

    @cached_property
    def traces(self) -> Traces:
        """Where incidents are sent as traces. Raises `BadInput` where the libraries for it are missing."""
        try:
            from runbook.adapters.traces import Traces
        except ImportError as error:
            raise BadInput(
                f"no traces can be sent from here: {error}", where="traces.endpoint of the inventory",
                next_step="install runbook with its extra `otel` (pip install 'runbook-oom[otel]'), or leave it out",
            ) from error
        return Traces(self.inventory.traces.endpoint, self.inventory.cluster, self.settings.reports.url)

    def draw(self, incident: Incident) -> None:
        """Write the report page of an incident into its folder."""
        from runbook.report.html import render_html

        page = render_html(self.store.as_kept(incident), flow_picture(self.flow, incident), contract_of(incident))
        self.store.write_file(incident.id, "report.html", page.encode("utf-8", "replace"))


def application(inventory: str | None, policy: Policy | None = None, *, looks: bool = False) -> Application:
    """The application of a named inventory; `looks` as there. Raises `BadInput` with every fault of the document, and
    `Hung`."""
    if inventory:
        must_answer(Path(inventory).expanduser())
    return Application(answering(load_inventory(inventory)), policy, inventory, looks=looks)


def answering(inventory: Inventory) -> Inventory:
    """The same, once its folders answer. Raises `Hung` where one does not: the home folder, perhaps. Raises `BadInput`
    where the spool holds what is kept, by way of a link."""
    must_answer(inventory.state_folder, inventory.spool_folder)
    if wrong := inventory.misplaced_spool(Path.resolve):
        raise BadInput(wrong, next_step="name another folder under paths.spool of the inventory")
    return inventory


def contract_of(incident: Incident) -> dict[str, Any] | None:
    """The diagnosis in its published shape: of the first failure, which is what the incident is about."""
    from runbook.report.contract import to_contract

    failure = incident.original or incident.failure
    if failure is None or failure.story is None or failure.diagnosis is None:
        return None
    return dict(to_contract(failure.story, failure.diagnosis))


def flow_picture(flow: Flow, incident: Incident) -> FlowPicture:
    """The flow as the report draws it, with the path that the incident took."""
    from runbook.flow import END
    from runbook.report.charts.flow_chart import FlowArrow, FlowBox, FlowPhase, FlowPicture

    boxes = tuple(FlowBox(box.name, box.title, bool(box.acts)) for box in flow.boxes.values())
    arrows = tuple(
        FlowArrow(box.name, target, outcome)
        for box in flow.boxes.values()
        for outcome, target in box.next.items()
        if target != END
    )
    phases = tuple(
        FlowPhase(name, phase.title, frozenset(phase.boxes), all(bool(flow.boxes[box].acts) for box in phase.boxes))
        for name, phase in flow.phases.items()
    )
    return FlowPicture(flow.title, boxes, arrows, incident.visits, phases, flow.afterwards, flow.proof)


def targets_of(document: NotifyDocument) -> tuple[Target, ...]:
    """One target each. Files of addresses are read when there is something to send."""
    return tuple(
        Target(
            name=target.name,
            addresses=_addresses_of(target),
            severities=target.severities,
            partitions=target.partitions,
            accounts=target.accounts,
            users=target.users,
            per_hour=target.per_hour,
            quiet_hours=target.quiet_hours,
        )
        for target in document.all_targets
    )


def _addresses_of(target: NotifyTargetDocument) -> Callable[[], tuple[str, ...]]:
    here = tuple(address.get_secret_value() for address in target.urls)
    path = Path(target.urls_file).expanduser() if target.urls_file else None

    def addresses() -> tuple[str, ...]:
        if path is None:
            return here
        from runbook.service.tokens import read_private

        text = read_private(path, "file of notification addresses", "one address a line, chmod 600")
        lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
        return (*here, *(line for line in lines if line and not line.startswith("#")))

    return addresses
