"""What the sandbox adds to the system's own files: users, sudo rules and host names, each marked."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from cluster.settings import (
    ALICE,
    BOB,
    CONTROLLER,
    CONTROLLER_ADDRESS,
    HOMES,
    HOSTS,
    HOSTS_MARK,
    NODES,
    SERVICE,
    SUDOERS,
    USER_MARK,
    USERS,
    User,
)
from cluster.system import SandboxError, make_directory, run

REPOSITORY = Path(__file__).resolve().parents[3]


def make_users() -> None:
    """Create the users that are not there; a name or number taken by someone else is an error."""
    make_directory(HOMES)
    for user in USERS:
        entry = entry_of(user)
        if entry is None:
            create_user(user)
        elif entry.pw_gecos != USER_MARK:
            raise SandboxError(
                f"the user {user.name} exists and was not made by the sandbox",
                f"rename or remove that user, or change USERS in {__file__.rpartition('/')[0]}/settings.py",
            )


def create_user(user: User) -> None:
    """Create one user with its home inside the sandbox's folder."""
    try:
        taken = pwd.getpwuid(user.uid).pw_name
    except KeyError:
        pass
    else:
        raise SandboxError(
            f"user id {user.uid} for {user.name} belongs to {taken}",
            "choose other numbers for USERS in cluster/settings.py",
        )
    # A password of "*" (none fits) instead of useradd's "!" (locked): sshd without PAM refuses locked users.
    run(("groupadd", "--gid", str(user.uid), user.name))
    run(
        (
            *("useradd", "--uid", str(user.uid), "--gid", str(user.uid), "--no-log-init", "--password", "*"),
            *("--comment", USER_MARK, "--shell", "/bin/bash", "--key", "MAIL_DIR=/dev/null"),
            *("--home-dir", str(HOMES / user.name), "--create-home", user.name),
        )
    )
    os.chmod(HOMES / user.name, 0o755 if user in (ALICE, BOB) else 0o750)
    if user in (ALICE, BOB):
        _give_examples(user)


def _give_examples(user: User) -> None:
    """A copy of the examples at home: the users cannot read everybody's checkout."""
    target = HOMES / user.name / "examples"
    run(("sh", str(REPOSITORY / "examples" / "copy-to.sh"), str(target)))
    run(("chown", "-R", f"{user.name}:{user.name}", str(target)))


def entry_of(user: User) -> pwd.struct_passwd | None:
    """The password entry of a sandbox user, None when it is not there."""
    try:
        return pwd.getpwnam(user.name)
    except KeyError:
        return None


def remove_users() -> None:
    """Remove the users that carry our mark."""
    for user in USERS:
        entry = entry_of(user)
        if entry is not None and entry.pw_gecos == USER_MARK:
            again = f"end the processes of {user.name}, then `sandbox down` again"
            run(("userdel", user.name), next_step=again)
            shutil.rmtree(HOMES / user.name, ignore_errors=True)


def allow_sudo() -> None:
    """Let the service user act as the two job owners, and as nobody else."""
    owners = f"{ALICE.name}, {BOB.name}"
    kept = "SLURM_CONF SIMULATED_GPU_DIR"
    lines = [
        "# Made by the runbook sandbox; `sandbox down` removes it.",
        *(f'Defaults>{user.name} env_keep += "{kept}"' for user in (ALICE, BOB, SERVICE)),
        f"Defaults:{SERVICE.name} !requiretty",
        f"{SERVICE.name} ALL=({owners}) NOPASSWD: ALL",
    ]
    temporary = SUDOERS.with_name(".runbook-sandbox.new")
    temporary.write_text("\n".join(lines) + "\n", encoding="ascii")
    temporary.chmod(0o440)
    try:
        run(("visudo", "-c", "-q", "-f", str(temporary)))
        temporary.replace(SUDOERS)
    finally:
        temporary.unlink(missing_ok=True)


def forbid_sudo() -> None:
    """Take the sudo rule away."""
    SUDOERS.unlink(missing_ok=True)


def add_host_names() -> None:
    """Make the names of the controller and the nodes known, in lines that carry our mark."""
    hosts = [(CONTROLLER_ADDRESS, CONTROLLER), *((node.address, node.name) for node in NODES)]
    write_hosts([f"{address} {name} {HOSTS_MARK}" for address, name in hosts])


def remove_host_names() -> None:
    """Take our lines out of the hosts file again."""
    write_hosts([])


def write_hosts(ours: list[str]) -> None:
    """Replace our lines in the hosts file; it is written in place, as it may be a bind mount."""
    before = HOSTS.read_text(encoding="utf-8")
    others = [line for line in before.splitlines() if not line.endswith(HOSTS_MARK)]
    after = "\n".join([*others, *ours]) + "\n"
    if after != before:
        HOSTS.write_text(after, encoding="utf-8")
