"""What Slurm, its nodes and sudo let this user do: asked, never tried. `runbook doctor` asks it all, `runbook
setup` for the user that the service is to run as.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from runbook.adapters.identity import LOGIN_PATH, current_identity
from runbook.adapters.process import Command, run
from runbook.adapters.slurm.commands import NoAccounting
from runbook.cli.checks import Found, Mark
from runbook.cli.wiring import Application
from runbook.errors import RunbookError
from runbook.model.incident import Policy
from runbook.model.node import Reach
from runbook.model.units import NodeName, Unknown
from runbook.report.vocabulary.clean import clean_line
from runbook.slurm.site import (
    CONFIG_ARGUMENTS,
    Level,
    Privileges,
    SlurmConfig,
    privileges_without_asking,
    read_config,
    read_privileges,
    user_arguments,
)


def scheduler(app: Application) -> Iterator[Found]:
    yield Found(Mark.GOOD, app.scheduler.describe())
    nodes = app.scheduler.nodes()
    yield Found(Mark.GOOD, f"nodes: {', '.join(state.name for state in nodes[:8])}")
    ours = [state.name for state in nodes if state.token]
    if ours:
        yield Found(
            Mark.WARNING, f"drained by this tool: {', '.join(ours)}", "runbook rollback INCIDENT --undrain when mended"
        )


def slurm_config(app: Application) -> SlurmConfig:
    """What the controller says of its configuration. Raises `Unavailable`."""
    return read_config(app.slurm_commands.ask("scontrol", CONFIG_ARGUMENTS))


def privileges_of(app: Application, user: str, config: SlurmConfig) -> Privileges:
    """What Slurm lets a user do, by the controller's and the accounting's word. Raises `Unavailable`."""
    known = privileges_without_asking(user, config)
    if known is not None:
        return known
    try:
        return read_privileges(app.slurm_commands.ask("sacctmgr", user_arguments(user)), user)
    except NoAccounting:
        return Privileges(user, Level.NONE)


def ourselves() -> str:
    """The name of the user that this process runs as."""
    return current_identity().name


def acting(app: Application, user: str = "") -> Iterator[Found]:
    """Whether Slurm would let a user, this one unless it is named, cancel a job and drain a node. Neither is done."""
    user = user or ourselves()
    if app.inventory.scheduler.kind == "local":
        yield Found(Mark.GOOD, "jobs are processes of this machine: whoever may signal one may cancel it")
        return
    rights = privileges_of(app, user, slurm_config(app))
    told = _by_whom(rights)
    # Modifying one whom the accounting does not have modifies nobody.
    grant = f"sacctmgr modify user {user} set adminlevel="
    if not rights.known:
        grant = f"sacctmgr add user {user} account=ACCOUNT adminlevel="
    if rights.may_cancel:
        yield Found(Mark.GOOD, f"{user} may cancel anybody's job: {told}")
    else:
        accounts = f" but those of {', '.join(rights.coordinates)}, which it coordinates" if rights.coordinates else ""
        yield Found(
            Mark.WARNING, f"{user} may not cancel other users' jobs{accounts}: {told}; as the owner, by sudo",
            f"{grant}Operator (Administrator to drain, too), or let sudo make {user} the owner",
        )
    if rights.may_drain:
        yield Found(Mark.GOOD, f"{user} may drain a node: {told}")
    elif not app.settings.policy.may_drain or app.settings.policy.mode is Policy.PLAN:
        yield Found(Mark.GOOD, f"{user} may not drain a node, and the inventory asks for none: {told}")
    else:
        yield Found(
            Mark.BAD, f"{user} may not drain a node: {told}",
            f"{grant}Administrator, or policy.may_drain: false: a person is told then",
        )


def _by_whom(rights: Privileges) -> str:
    if rights.level is Level.SUPER_USER:
        return "Slurm asks nothing of root and of its SlurmUser (scontrol show config)"
    return f"its AdminLevel is {rights.level.value} (sacctmgr show user)"


def owners(app: Application, user: str = "") -> Iterator[Found]:
    """Whether a user, this one unless it is named, can submit and read as the owners of jobs."""
    name = user or ourselves()
    if name == "root":
        yield Found(Mark.GOOD, "runs as root, acts as each job's owner")
    elif app.inventory.scheduler.kind == "local":
        yield Found(Mark.GOOD, f"runs as {name}, and so do its jobs")
    elif may := sudo_lines(user):
        yield Found(Mark.GOOD, f"runs as {name}, and by sudo as others: {'; '.join(may)} (sudo -l)")
    else:
        yield Found(
            Mark.WARNING,
            f"runs as {name}: jobs of others need a sudoers line",
            f"{name} ALL=(OWNERS) NOPASSWD: ALL, or run as root; own jobs work without",
        )


_SUDO_S = 4.0


def sudo_lines(user: str = "") -> tuple[str, ...]:
    """What sudo lets a user do as others without a password, as `sudo -l` prints it: "(%training) NOPASSWD: ALL". Of
    another than this one only root may ask."""
    asked = ("sudo", "-n", "-l", *(("-U", user) if user else ()))
    try:
        done = run(Command(asked, env={"PATH": LOGIN_PATH, "LC_ALL": "C.UTF-8"}), _SUDO_S)
    except RunbookError:
        return ()
    lines = (clean_line(line.strip()) for line in done.text().splitlines())
    return tuple(line for line in lines if line.startswith("(") and "NOPASSWD:" in line) if not done.exit_code else ()


def spool(app: Application, user: str = "") -> Iterator[Found]:
    """Whether Slurm's epilog may write there, and a user, this one unless it is named, may read and remove."""
    folder = app.inventory.spool_folder
    if app.inventory.scheduler.kind == "local" and not folder.is_dir():
        yield Found(Mark.GOOD, f"{folder}: made when `runbook serve` starts; no epilog writes for local jobs")
        return
    if not folder.is_dir():
        yield Found(
            Mark.WARNING, f"there is no {folder}: no job that fails is noticed by itself",
            f"{make_spool(folder, 'slurm', 'runbook')} (deploy/slurm/README.md)",
        )
        return
    seen = folder.stat()
    if seen.st_mode & 0o002:
        yield Found(Mark.BAD, f"anybody can write into {folder}", f"chmod o-rwx {folder} (deploy/slurm/README.md)")
    if not (may(user, seen, 0o7) if user else os.access(folder, os.R_OK | os.W_OK | os.X_OK)):
        who = user or "this user"
        yield Found(Mark.BAD, f"{folder} cannot be read and emptied by {who}", "run as the service's user, or root")
        return
    if app.inventory.scheduler.kind == "local":
        yield Found(Mark.GOOD, f"{folder} can be read and emptied")
    else:
        yield from _epilog_may_write(app, folder, seen)
    bad = folder / "bad"
    if bad.is_dir() and (kept := len(list(bad.iterdir()))):
        yield Found(Mark.WARNING, f"{kept} files in {bad} are no events", "the reason lies beside each")


def make_spool(folder: Path, writer: str, reader: str) -> str:
    """The command that makes it: Slurm's user writes, the service's group reads and removes."""
    return f"install -d -o {writer} -g {reader} -m 2770 {folder}"


def may(user: str, seen: os.stat_result, bits: int) -> bool | None:
    """Whether a user has these of read (4), write (2) and pass (1) by a file's mode; None: a user not known here."""
    try:
        entry = pwd.getpwnam(user)
        groups = os.getgrouplist(user, entry.pw_gid)
    except KeyError:
        return None
    shift = 6 if entry.pw_uid == seen.st_uid else 3 if seen.st_gid in groups else 0
    return entry.pw_uid == 0 or seen.st_mode >> shift & bits == bits


def _epilog_may_write(app: Application, folder: Path, seen: os.stat_result) -> Iterator[Found]:
    config = slurm_config(app)
    writer = config.slurm_user or "slurm"
    allowed = may(writer, seen, 0o3)
    if allowed is None:
        yield Found(Mark.WARNING, f"this machine does not know Slurm's user {writer}: whether it may write is unknown")
        return
    if not allowed:
        yield Found(
            Mark.BAD, f"Slurm's user {writer} cannot write into {folder}: no epilog leaves an event there",
            f"chown {writer} {folder}; chmod u+rwx {folder} (deploy/slurm/README.md)",
        )
        return
    epilog = config.get("EpilogSlurmctld")
    if epilog:
        yield Found(Mark.GOOD, f"{folder}: {writer} writes, the service reads; EpilogSlurmctld is {epilog}")
    else:
        yield Found(
            Mark.WARNING, f"{folder} is right, but slurm.conf has no EpilogSlurmctld: nothing writes into it",
            "`runbook setup` prints the lines for slurm.conf (deploy/slurm/README.md)",
        )


_TO_REACH = {
    Reach.HOST_KEY: "put the node's key, from a place you trust, into known_hosts or nodes.known_hosts_file",
    Reach.AUTHENTICATION: "set nodes.user and nodes.key_file, and let the node know the key's public half",
    Reach.REFUSED: "see whether sshd runs there, and whether nodes.port is right",
}


def nodes(app: Application, wanted: str | None = None) -> Iterator[Found]:
    """Whether a node is reached and says something of its GPUs."""
    if app.inventory.nodes.kind == "none":
        yield Found(Mark.WARNING, "the inventory reaches no nodes: every node check is unknown", "set nodes.kind: ssh")
        return
    names = [state.name for state in app.scheduler.nodes()]
    node = NodeName(wanted) if wanted else (names[0] if names else None)
    if node is None:
        yield Found(Mark.WARNING, "the scheduler names no node", "name one with --node")
        return
    facts = app.nodes.check(node, since_s=None, until_s=None)
    if facts.reach is not Reach.OK:
        yield Found(
            Mark.BAD,
            f"{node}: {facts.reach.value}: {facts.reach_detail}",
            _TO_REACH.get(facts.reach, "ssh there by hand with the inventory's key and known_hosts file"),
        )
        return
    if isinstance(facts.gpus, Unknown):
        yield Found(Mark.WARNING, f"{node} answers; GPUs unknown: {facts.gpus.unknown}", "a check says `unknown` there")
    else:
        kind = " (simulated)" if facts.simulated else ""
        yield Found(Mark.GOOD, f"{node} answers, {len(facts.gpus)} GPUs{kind}")
    if isinstance(facts.xids, Unknown):
        yield Found(
            Mark.WARNING,
            f"{node}: kernel log unknown: {facts.xids.unknown}",
            "let the ssh user read it (kernel.dmesg_restrict, or the adm group)",
        )
