"""How a cluster is set up, and what Slurm lets a user do: `scontrol show config` and `sacctmgr show user`.

Slurm's controller takes root and its SlurmUser for administrators; everybody else is what the accounting says of them
(AdminLevel None, Operator or Administrator; coordinators have Operator's rights over the jobs of their accounts). An
operator may cancel anybody's job; only an administrator may drain a node (seen on 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

CONFIG_ARGUMENTS = ("show", "config")
"""Of scontrol."""

_LINE = re.compile(r"^([A-Za-z][A-Za-z0-9_]*)(?:\[[0-9]+\])?\s*= ?(.*)$", re.MULTILINE)
_NOTHING = frozenset({"", "(null)", "(none)", "n/a", "none"})
_USER = re.compile(r"^(\S+?)(?:\(\d+\))?$")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """What the controller says of its configuration; names in lower case, as versions write them differently."""

    values: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """"" where it is not set or not known to this version. Of one that stands several times the first."""
        value = self.values.get(name.lower(), "").strip()
        return "" if value.lower() in _NOTHING else value

    @property
    def cluster(self) -> str:
        return self.get("ClusterName")

    @property
    def slurm_user(self) -> str:
        """"slurm" of "slurm(64030)"."""
        found = _USER.match(self.get("SlurmUser"))
        return found[1] if found else ""

    @property
    def controllers(self) -> tuple[str, ...]:
        """Host names, the primary first: "ctl" of "ctl(10.0.0.1)"."""
        hosts = (value for name, value in self.values.items() if name.startswith("slurmctldhost"))
        return tuple(host.split("(")[0].strip() for host in hosts if host.strip().lower() not in _NOTHING)

    @property
    def version(self) -> str:
        return self.get("SLURM_VERSION")

    @property
    def has_accounting(self) -> bool:
        return self.get("AccountingStorageType").endswith("slurmdbd")

    @property
    def kept_of_jobs(self) -> frozenset[str]:
        """What accounting keeps of a job: "job_script", "job_env", "job_comment"."""
        return frozenset(word.strip().lower() for word in self.get("AccountingStoreFlags").split(",") if word.strip())

    @property
    def kills_at_memory_limit(self) -> bool | None:
        """Whether the kernel holds jobs to their `--mem`, and kills one over it; None: not told."""
        if "task/cgroup" not in self.get("TaskPlugin"):
            return False
        said = self.get("ConstrainRAMSpace").lower()
        return None if not said else said == "yes"


def read_config(text: str) -> SlurmConfig:
    """The answer of `scontrol show config`, with its section on control groups."""
    values: dict[str, str] = {}
    for found in re.finditer(r"^(SlurmctldHost\[\d+\])\s*= ?(.*)$", text, re.MULTILINE):
        values[found[1].lower()] = found[2]
    for found in _LINE.finditer(text):
        values.setdefault(found[1].lower(), found[2])
    if any(name.startswith("slurmctldhost[") for name in values):
        del values["slurmctldhost"]
    return SlurmConfig(values)


class Level(StrEnum):
    """A user's rights over everybody's jobs and the nodes."""

    NONE = "None"
    OPERATOR = "Operator"
    ADMINISTRATOR = "Administrator"
    SUPER_USER = "super user"
    """Root, or the SlurmUser: asked of nobody."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Privileges:
    """What Slurm lets one user do."""

    user: str
    level: Level
    coordinates: tuple[str, ...] = ()
    """Accounts whose jobs it may cancel, too."""
    known: bool = True
    """Whether the accounting has this user."""

    @property
    def may_cancel(self) -> bool:
        return self.level in (Level.OPERATOR, Level.ADMINISTRATOR, Level.SUPER_USER)

    @property
    def may_drain(self) -> bool:
        return self.level in (Level.ADMINISTRATOR, Level.SUPER_USER)


def user_arguments(user: str) -> tuple[str, ...]:
    """Arguments of sacctmgr for a user's level and accounts that it coordinates."""
    return (
        "--readonly", "--noheader", "--parsable2", "show", "user", f"name={user}", "withcoordinator",
        "format=User,AdminLevel,Coordinators",
    )  # fmt: skip


def privileges_without_asking(user: str, config: SlurmConfig) -> Privileges | None:
    """Those of root and of the SlurmUser, of anybody where no accounting says more; None: to be asked."""
    if user == "root" or user == config.slurm_user:
        return Privileges(user, Level.SUPER_USER)
    return None if config.has_accounting else Privileges(user, Level.NONE)


def read_privileges(text: str, user: str) -> Privileges:
    """The answer to `user_arguments`; a user whom the accounting does not know has no rights."""
    for line in text.splitlines():
        name, level, coordinates = (*line.split("|"), "", "", "")[:3]
        if name.strip() == user:
            known = next((one for one in Level if one.value.lower() == level.strip().lower()), Level.UNKNOWN)
            accounts = tuple(word.strip() for word in coordinates.split(",") if word.strip())
            return Privileges(user, known, accounts)
    return Privileges(user, Level.NONE, known=False)
