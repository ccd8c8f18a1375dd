"""Every name, address, port and path of the sandbox cluster, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CLUSTER = "sandbox"
CONTROLLER = "sandbox-ctl"
CONTROLLER_ADDRESS = "10.213.77.1"
SUBNET_PREFIX = "10.213.77."
PREFIX_LENGTH = 24
BRIDGE = "rb-sandbox"

ROOT = Path("/var/lib/runbook-sandbox")
RUN = Path("/run/runbook-sandbox")
LOCK = Path("/run/lock/runbook-sandbox.lock")
MARKER = ROOT / ".runbook-sandbox"
ETC = ROOT / "etc"
LOGS = ROOT / "log"
SLURM_CONF = ETC / "slurm.conf"
SPOOL = ROOT / "spool"
NODE_EPILOG = ROOT / "node-epilog"
SSH = ROOT / "ssh"
GPUS = ROOT / "gpus"
HOMES = ROOT / "home"
STAND_INS = ROOT / "stand-ins"
SLURM_STATE = ROOT / "slurmctld"
SLURMD_SPOOL = ROOT / "slurmd"
MUNGE_SOCKET = RUN / "munge" / "munge.socket"
MARIADB_DATA = ROOT / "mariadb"
MARIADB_SOCKET = RUN / "mariadb" / "mariadb.sock"
HOSTS = Path("/etc/hosts")
SUDOERS = Path("/etc/sudoers.d/runbook-sandbox")
HOSTS_MARK = "# runbook-sandbox"

JWT_KEY = ETC / "jwt.key"
SLURMRESTD = Path("/usr/sbin/slurmrestd")
"""Installed on the machines of other versions; Debian 12's speaks none of the versions that are read."""
REST_SOCKET = RUN / "rest" / "slurmrestd.sock"

MARIADB_PORT = 16816
SLURMCTLD_PORT = 16817
SLURMD_PORT = 16818
SLURMDBD_PORT = 16819

GPUS_PER_NODE = 8
FIRST_DEVICE = 10
"""Slurm wants a device file for each GPU: terminals from this number on stand in for them."""
CPUS_PER_NODE = 16
MEMORY_MIB_PER_NODE = 65536

#: Users that `up` created carry this comment in /etc/passwd; `down` removes only those.
USER_MARK = "runbook sandbox"


@dataclass(frozen=True, slots=True)
class Node:
    """One compute node: its name is also its host name and its Slurm name."""

    name: str
    address: str

    @property
    def link(self) -> str:
        """The host's end of the cable to this node (at most 15 characters)."""
        return f"rb-{self.name}"


@dataclass(frozen=True, slots=True)
class User:
    """A user of the sandbox; `account` is the Slurm account, None for one that Slurm does not know."""

    name: str
    uid: int
    account: str | None
    admin_level: str = "None"


NODES = tuple(Node(f"gpu-{number}", f"{SUBNET_PREFIX}{number}") for number in range(21, 25))
ALICE = User("sb-alice", 77001, "research")
BOB = User("sb-bob", 77002, "inference")
SERVICE = User("sb-runbook", 77003, "operations", "Administrator")
PROBE = User("sb-probe", 77004, None)
USERS = (ALICE, BOB, SERVICE, PROBE)

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "munge",
    "mariadb-server",
    "openssh-server",
    "openssh-client",
    "iproute2",
    "sudo",
)


def node_named(name: str) -> Node | None:
    """The node of that name, or None."""
    return next((node for node in NODES if node.name == name), None)
