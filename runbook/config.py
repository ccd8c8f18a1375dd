"""Inventories: one document a cluster, turned into settings. Every fault is reported with file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from runbook.documents import Document, load_document
from runbook.errors import BadInput, NotAllowed
from runbook.locations import check_own, data_folder
from runbook.model.incident import Policy, Severity

SITE_INVENTORY = Path("/etc/runbook/inventory.yaml")
_FIRST_POLL_S = 0.5
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class RestDocument(Document):
    """How slurmrestd is asked: over a socket of this machine, or over TLS."""

    url: str = Field(pattern=r"^(unix:/.+|https://[^/@\s]+(/\S*)?)$")
    version: Literal["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"]
    """The one format that is asked for."""
    token_file: str = Field(pattern="^/")
    ca_file: str = ""
    """Empty: the machine's own certificates."""


class SchedulerDocument(Document):
    """Where jobs run. `slurm` uses Slurm's commands; pyslurm only where it fits the cluster; slurmrestd only where it
    is named."""

    kind: Literal["slurm", "local"]
    adapter: Literal["auto", "commands", "rest"] = "auto"
    rest: RestDocument | None = None
    slurm_conf: str = ""
    """SLURM_CONF for every Slurm command; empty: Slurm's own default."""
    commands_folder: str = ""
    """Folder of sbatch, scontrol and the others; empty: the PATH."""
    command_timeout_s: float = Field(default=20.0, gt=0)

    @model_validator(mode="after")
    def _says_where_slurmrestd_is(self) -> Self:
        if (self.adapter == "rest") != (self.rest is not None):
            raise ValueError("`rest` (url, version, token_file) belongs to `adapter: rest`, and only there")
        return self


class NodesDocument(Document):
    """How nodes are reached. Keys left out are taken from the user's ssh configuration."""

    kind: Literal["ssh", "local", "none"]
    user: str = ""
    key_file: str = ""
    known_hosts_file: str = ""
    config_file: str = ""
    port: int | None = Field(default=None, ge=1, le=65535)
    jump_host: str = ""
    sudo: bool = False
    """Prefix the node commands that need root with `sudo -n`."""
    probe: bool = True
    """Run the node probe where the node has Python and NVML; false: nvidia-smi only."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    command_timeout_s: float = Field(default=15.0, gt=0)
    fan_out: int = Field(default=32, ge=1, le=512)
    """Nodes asked at a time."""
    gpus_per_node: int | None = Field(default=None, ge=1)


class VerifyDocument(Document):
    """When a relaunch counts as proven, and for how long to watch."""

    steps_past_failure: int = Field(default=1, ge=0)
    """How many steps beyond the one that failed must be completed."""
    needs_checkpoint: bool = True
    limit_hours: float = Field(default=24.0, gt=0)
    """Give up watching after this long, time in the queue not counted; a person is told."""
    longest_poll_s: float = Field(default=30.0, gt=0)

    @property
    def limit_s(self) -> float:
        return self.limit_hours * 3600

    def pause_s(self, waited_s: float) -> float:
        """Look often at first, then ever more seldom: a tenth of the time already waited, within limits."""
        return min(max(_FIRST_POLL_S, waited_s / 10), self.longest_poll_s)


class Foresight(StrEnum):
    """What is made of forecasts of memory when a change is chosen."""

    OFF = "off"
    ADVISE = "advise"
    """They are told."""
    CHOOSE = "choose"
    """Where figures of the job anchor them, a change that cannot suffice is passed over, and a batch that cannot fit at
    half is made smaller at once."""


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return Foresight.OFF if value is False else value


class PolicyDocument(Document):
    """What the tool may do by itself."""

    mode: Policy = Policy.APPROVE
    max_relaunches: int = Field(default=4, ge=0, le=20)
    """Relaunches an incident, all attempts together."""
    may_drain: bool = True
    max_drained_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the cluster's nodes, and of each partition's that a node is in, that may be drained by this tool at one
    time; one node is always allowed where `may_drain` is set."""
    max_drains_per_hour: int = Field(default=3, ge=0, le=1000)
    """By all incidents together. Beyond it a person is paged instead: so many GPUs seldom fail at once."""
    may_promote: bool = False
    """Write a proven change back into the owner's template without being asked."""
    may_change_training: bool = False
    """Levers that change the experiment (sequence length) without asking."""
    may_reduce_world: bool = True
    foresight: Annotated[Foresight, BeforeValidator(_off)] = Foresight.CHOOSE
    """What is made of forecasts of memory when a change is chosen."""
    drain_on_pending_reset: bool = False
    """Drain for a row that waits to be remapped, so that the reset comes."""
    drain_on_contained_error: bool = False
    """Drain for Xid 94, after which the GPU stays usable."""
    drain_on_hidden_memory: bool = False
    may_end_leaked_processes: bool = False
    """End a process that an ended job left on a GPU, where nothing speaks against it."""
    wait_for_tenant_hours: float = Field(default=4.0, ge=0)
    """How long to wait for somebody else's job to leave the GPUs, where the job has no other node; 0: not at all."""
    wait_for_spare_hours: float = Field(default=24.0, gt=0)
    """How long a relaunched job may wait in the queue at a time before a person is told."""
    approval_limit_hours: float = Field(default=24.0, gt=0)
    cancel_wait_s: float = Field(default=60.0, gt=0)
    unavailable_patience_s: float = Field(default=300.0, ge=0)
    """How long a box is tried again while Slurm, SSH or a file system does not answer."""
    verify: VerifyDocument = VerifyDocument()

    @property
    def wait_for_tenant_s(self) -> float:
        return self.wait_for_tenant_hours * 3600

    @property
    def wait_for_spare_s(self) -> float:
        return self.wait_for_spare_hours * 3600

    @property
    def approval_limit_s(self) -> float:
        return self.approval_limit_hours * 3600


class PathsDocument(Document):
    state: str = ""
    """Incidents and the workflow database; empty: the user's state folder."""
    spool: str = ""
    """Where the epilog leaves its files; empty: see `Inventory.spool_folder`."""


class ReportsDocument(Document):
    url: str = ""
    """Address under which `runbook serve` is reached, for links."""
    listen: str = "127.0.0.1"
    port: int = Field(default=8642, ge=1, le=65535)


class McpDocument(Document):
    """What assistants may ask over HTTP (the extra `mcp`)."""

    over_http: bool = False
    """`runbook serve` answers at /mcp whoever shows a token of the role `read`."""


class TracesDocument(Document):
    """Incidents as OpenTelemetry traces (the extra `otel`); off without an endpoint."""

    endpoint: str = Field(default="", pattern=r"^(https?://[^/@\s?#]+/\S*)?$")
    """Where OTLP over HTTP is taken, whole: http://127.0.0.1:4318/v1/traces. It holds no password: what a collector
    asks for stands in the environment (OTEL_EXPORTER_OTLP_HEADERS)."""


class ProxyDocument(Document):
    """A reverse proxy that has asked who a person is, and says so in headers."""

    addresses: tuple[str, ...] = Field(min_length=1)
    """Where it connects from: addresses or networks. The headers of anybody else are not read."""
    secret_file: str = ""
    """Holds what the proxy sends as X-Runbook-Proxy-Secret. Needed where it connects from this machine, as anybody with
    an account here can do that too."""
    user_header: str = Field(default="X-Forwarded-User", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,60}$")
    groups_header: str = Field(default="", pattern=r"^([A-Za-z][A-Za-z0-9-]{0,60})?$")
    """Group or role names, separated by commas."""
    act_users: tuple[str, ...] = ()
    act_groups: tuple[str, ...] = ()
    """Who may act; everybody else whom the proxy names may read."""

    @field_validator("addresses")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_network(text, strict=False)
        return value

    @model_validator(mode="after")
    def _is_known_from_its_neighbours(self) -> ProxyDocument:
        networks = [ip_network(text, strict=False) for text in self.addresses]
        if not self.secret_file and any(
            network.version == here.version and network.overlaps(here) for network in networks for here in _LOOPBACK
        ):
            raise ValueError("secret_file is needed for a proxy on this machine: any user here could say the same")
        if self.act_groups and not self.groups_header:
            raise ValueError("act_groups needs groups_header, the header that names the groups")
        return self


class SignInDocument(Document):
    """Who may look and act over HTTP. Without this section pages are for looking, by whoever reaches the address."""

    tokens_file: str = ""
    proxy: ProxyDocument | None = None
    session_hours: float = Field(default=12.0, gt=0, le=720)
    open: tuple[Literal["healthz", "metrics"], ...] = ("healthz", "metrics")
    """What needs no token; /healthz then says no more than whether all is well."""

    @model_validator(mode="after")
    def _has_a_way_in(self) -> SignInDocument:
        if not self.tokens_file and self.proxy is None:
            raise ValueError("tokens_file or proxy is needed: nobody could come in")
        return self


class WebhookDocument(Document):
    """How alerts that Alertmanager sends are read. The webhook is there where `sign_in.tokens_file` is."""

    job_labels: tuple[str, ...] = ("slurm_job_id", "slurm_jobid", "job_id", "jobid", "hpc_job")
    """Labels that may hold a Slurm job id, the first that is there counts. `job` is Prometheus' own and never one."""
    node_labels: tuple[str, ...] = ("node", "nodename", "Hostname", "instance")
    """Labels that may hold a node, with or without a domain and a port."""
    cluster_label: str = "cluster"
    """An alert that has this label with another cluster's name is not ours; "" does not look."""
    oldest_hours: float = Field(default=24.0, gt=0)
    """An alert that began before this opens nothing."""
    quiet_s: float = Field(default=120.0, ge=0)
    """A job that runs is looked at once none of its logs was written to for so long."""

    @field_validator("job_labels")
    @classmethod
    def _not_prometheus_own(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "job" in value:
            raise ValueError("`job` is the name of Prometheus' scrape job, never a Slurm job's id")
        return value


class WatchDocument(Document):
    """Which running jobs' logs the daemon follows, so that a job that hangs after one rank died of memory is found
    before NCCL's timeout or the job's time limit. A job is followed where any of these takes it in; none does unless
    one is set."""

    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    opt_in: str = ""
    """A word of the job's comment by which its owner asks for it: `#SBATCH --comment=runbook`."""
    list_s: float = Field(default=15.0, ge=1)
    """How often the scheduler is asked which jobs run."""
    unknown_step_s: float = Field(default=120.0, ge=5)
    """So long a job has to be still that has not shown yet how often it writes, or whose steps are not known."""
    most_jobs: int = Field(default=5000, ge=1)

    @property
    def is_on(self) -> bool:
        return bool(self.partitions or self.accounts or self.opt_in)


class CageDocument(Document):
    """What reading one job's files may use at a time. Beyond it the reading is ended and tried once more; after that
    the incident goes to a person."""

    memory_mib: int = Field(default=512, ge=64, le=65_536)
    cpu_s: int = Field(default=120, ge=1, le=3600)
    wall_s: int = Field(default=300, ge=1, le=7200)
    """Time in which it computes or reads; waiting for Slurm or a node does not count."""
    whole_s: int = Field(default=3600, ge=1, le=86_400)
    """All time together."""
    file_mib: int = Field(default=128, ge=65, le=4096)
    """The largest copy of a log that it makes; kept logs are at most 64 MiB."""
    answer_mib: int = Field(default=16, ge=1, le=256)
    """The largest incident that it gives back."""


class KeepDocument(Document):
    """How long and how much is kept of incidents. Of an open one nothing is ever removed."""

    evidence_days: float = Field(default=90.0, ge=1)
    """So long after it was closed the kept logs go."""
    days: float = Field(default=730.0, ge=7)
    """So long after it was closed the whole of it goes."""
    total_gib: float = Field(default=50.0, gt=0)
    """On disk, all incidents together."""
    owner_gib: float = Field(default=5.0, gt=0)
    """On disk, the incidents of one owner of jobs; logs of open ones beyond it are not kept."""
    reserve_gib: float | None = Field(default=None, ge=0)
    """No log is copied where less than this would stay free. None: 1, and on a small disk a tenth of it."""

    @model_validator(mode="after")
    def _evidence_goes_first(self) -> KeepDocument:
        if self.evidence_days > self.days:
            raise ValueError("evidence_days is more than days, and evidence goes with its incident at the latest")
        return self


def _is_address(value: SecretStr) -> SecretStr:
    # What apprise makes of it is looked at by `runbook doctor`: importing it here would cost every command.
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,40}://.", value.get_secret_value()):
        raise ValueError("expected an address as apprise knows it: mailto://…, slack://…")
    return value


Address = Annotated[SecretStr, AfterValidator(_is_address)]
"""Holds a password or a token, so it is never shown."""


class NotifyTargetDocument(Document):
    """Some people, how they are reached, and what they want to hear."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")
    urls: tuple[Address, ...] = ()
    """Addresses as apprise knows them. `{owner}` stands for the name of the job's owner."""
    urls_file: str = ""
    """More of them, one a line, in a file that only the service may read."""
    severities: tuple[Severity, ...] = Field(default=tuple(Severity), min_length=1)
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    """Only jobs of these; empty: of all."""
    per_hour: int = Field(default=30, ge=1, le=10_000)
    """Pages are counted apart from all else, so that nothing keeps them back but themselves."""
    quiet_hours: str = Field(default="", pattern=r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$")
    """"22:00-07:00", this machine's time: only pages are sent then."""

    @model_validator(mode="after")
    def _leads_somewhere(self) -> NotifyTargetDocument:
        if not self.urls and not self.urls_file:
            raise ValueError("urls or urls_file is needed: nobody could be reached")
        return self


class NotifyDocument(Document):
    """Who is told. Without it nobody is."""

    urls: tuple[Address, ...] = ()
    """One target by the name of `all`, which hears everything."""
    targets: tuple[NotifyTargetDocument, ...] = ()

    @field_validator("targets")
    @classmethod
    def _have_names_of_their_own(cls, value: tuple[NotifyTargetDocument, ...]) -> tuple[NotifyTargetDocument, ...]:
        names = [target.name for target in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are called {twice[0]}")
        return value

    @property
    def all_targets(self) -> tuple[NotifyTargetDocument, ...]:
        """Every target, with the one of `urls` first."""
        return (*((NotifyTargetDocument(name="all", urls=self.urls),) if self.urls else ()), *self.targets)


class Inventory(Document):
    """One cluster."""

    version: int = Field(ge=1, le=1)
    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    title: str
    why: str = ""
    source: str = ""
    cluster: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The name in Slurm's ClusterName; part of every incident's id."""
    scheduler: SchedulerDocument
    nodes: NodesDocument
    policy: PolicyDocument = PolicyDocument()
    paths: PathsDocument = PathsDocument()
    database: str = ""
    """A PostgreSQL URL for several daemons; empty: an SQLite file in the state folder."""
    reports: ReportsDocument = ReportsDocument()
    sign_in: SignInDocument | None = None
    webhook: WebhookDocument = WebhookDocument()
    mcp: McpDocument = McpDocument()
    watch: WatchDocument = WatchDocument()
    notify: NotifyDocument = NotifyDocument()
    traces: TracesDocument = TracesDocument()
    cage: CageDocument = CageDocument()
    keep: KeepDocument = KeepDocument()
    workers: int = Field(default=4, ge=1, le=64)
    """Boxes that the daemon works on at a time, at most half of them for jobs of one owner."""

    @model_validator(mode="after")
    def _has_a_spool_of_its_own(self) -> Inventory:
        if wrong := self.misplaced_spool(lambda path: Path(os.path.abspath(path))):  # noqa: PTH100
            raise ValueError(wrong)
        return self

    @model_validator(mode="after")
    def _knows_who_asks(self) -> Self:
        if self.mcp.over_http and not (self.sign_in and self.sign_in.tokens_file):
            raise ValueError("mcp.over_http needs sign_in.tokens_file: nobody could show who they are")
        return self

    def misplaced_spool(self, real: Callable[[Path], Path]) -> str:
        """Why the spool is where it may not be; "" where it may. `real` says where a path is: by its words alone, or by
        asking the file system."""
        # What lies in the spool and is no event is set aside: incidents would be.
        spool, state = real(self.spool_folder), real(self.state_folder)
        if spool == state or spool in state.parents or state / "incidents" in (spool, *spool.parents):
            return f"paths.spool has to be a folder of its own, and {spool} holds the state folder {state}"
        return ""

    @property
    def state_folder(self) -> Path:
        if self.paths.state:
            return Path(self.paths.state).expanduser()
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(base) / "runbook" / self.id

    @property
    def spool_folder(self) -> Path:
        """The one that is named; else the site's own, or, where jobs are processes of this machine and no epilog
        writes, one in the state folder."""
        if self.paths.spool:
            return Path(self.paths.spool).expanduser()
        return self.state_folder / "spool" if self.scheduler.kind == "local" else Path("/var/spool/runbook")

    @property
    def database_url(self) -> str:
        if self.database:
            # SQLAlchemy's name for psycopg 3, which DBOS speaks.
            return self.database.replace("postgres://", "postgresql://", 1)
        return f"sqlite:///{self.state_folder / 'workflows.sqlite'}"

    def with_mode(self, mode: Policy | None) -> Inventory:
        """The same with the policy that a command line names; None: as it is."""
        if mode is None:
            return self
        return self.model_copy(update={"policy": self.policy.model_copy(update={"mode": mode})})


def find_inventory(name: str | None) -> Path:
    """The document to use: the one named, `$RUNBOOK_INVENTORY`, the site's, else `local`. Only what has a "/" is a
    path: a plain word never means a file of the working folder, which may be anybody's. Raises `BadInput`, and
    `NotAllowed` where this user may not look, or where another user could have written it."""
    try:
        path = _found_inventory(name or os.environ.get("RUNBOOK_INVENTORY") or "")
        if path.parent != data_folder("inventories"):
            check_own(path)
        return path
    except PermissionError as error:
        raise NotAllowed(
            "the inventory cannot be looked for", where=str(error.filename),
            next_step=f"let this user pass that folder (chmod 755 {Path(str(error.filename)).parent}), or name another "
            "inventory with --inventory",
        ) from error


def _found_inventory(wanted: str) -> Path:
    folder = data_folder("inventories")
    if not wanted:
        return SITE_INVENTORY if SITE_INVENTORY.is_file() else folder / "local.yaml"
    if "/" in wanted:
        path = Path(wanted).expanduser()
    else:
        path = next(
            (
                place
                for place in (Path("/etc/runbook") / f"{wanted}.yaml", folder / f"{wanted}.yaml")
                if place.is_file()
            ),
            folder / f"{wanted}.yaml",
        )
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in folder.glob("*.yaml")))
        raise BadInput(
            f"no inventory {wanted!r}",
            where=str(path),
            next_step=f"name one of {known}, or the path of your own, with a slash in it (./{wanted.lstrip('/')}); "
            "inventories/local.yaml is an example",
        )
    return path


def load_inventory(name: str | None) -> Inventory:
    """Read and check the inventory. Raises `DocumentsInvalid` with every problem."""
    return load_document(find_inventory(name), Inventory)
