"""One sshd for each node, the keys to reach them, and the ways in which it can be broken on purpose."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from cluster import daemons
from cluster.nodes import inside
from cluster.settings import GPUS, LOGS, NODES, PROBE, RUN, SERVICE, SLURM_CONF, SSH, STAND_INS, Node
from cluster.system import make_directory, run, wait_until, write_file

LOGIN_USERS = ("root", PROBE.name)
#: Who holds a client key, and in which folder it lies.
CLIENTS = {"root": SSH, SERVICE.name: SSH / SERVICE.name}

#: sshd insists on this folder of the system; when we had to make it, `down` removes it.
SSHD_RUN = RUN.parent / "sshd"
MADE_SSHD_RUN = SSH / "made-run-sshd"


def prepare() -> None:
    """Make host keys, client keys, known_hosts and the configuration files of servers and clients."""
    make_directory(SSH)
    make_directory(SSH / "nodes", mode=0o700)
    make_directory(SSH / "authorized_keys")
    if not SSHD_RUN.exists():
        make_directory(SSHD_RUN)
        MADE_SSHD_RUN.touch()
    for owner, folder in CLIENTS.items():
        make_directory(folder, mode=0o755)
        make_key(folder / "id_ed25519", f"{owner}@sandbox", owner)
        write_file(folder / "ssh_config", client_configuration(owner))
    for node in NODES:
        make_directory(SSH / "nodes" / node.name, mode=0o700)
        make_key(host_key(node), f"host key of {node.name}", "root")
        write_file(SSH / "nodes" / node.name / "sshd_config", server_configuration(node, host_key(node)))
    known = [f"{node.name},{node.address} {public_key(host_key(node))}" for node in NODES]
    write_file(SSH / "known_hosts", "\n".join(known) + "\n")
    keys = [public_key(folder / "id_ed25519") for folder in CLIENTS.values()]
    for user in LOGIN_USERS:
        write_file(SSH / "authorized_keys" / user, "\n".join(keys) + "\n")


def remove_run_folder() -> None:
    """Remove sshd's folder under /run if we made it and it is empty."""
    if MADE_SSHD_RUN.exists() and SSHD_RUN.is_dir() and not any(SSHD_RUN.iterdir()):
        SSHD_RUN.rmdir()


def make_key(path: Path, comment: str, owner: str) -> None:
    """Make a key pair unless it is there."""
    if not path.exists():
        run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)))
        shutil.chown(path, owner, owner)


def public_key(path: Path) -> str:
    """The public half of a key as one line."""
    return path.with_name(path.name + ".pub").read_text(encoding="ascii").strip()


def host_key(node: Node) -> Path:
    """The host key that belongs to a node."""
    return SSH / "nodes" / node.name / "ssh_host_ed25519_key"


def server_configuration(node: Node, key: Path) -> str:
    """The text of a node's sshd_config with the given host key."""
    return (
        f"Port 22\nListenAddress {node.address}\nHostKey {key}\n"
        f"PidFile {RUN}/sshd-{node.name}.pid\nAuthorizedKeysFile {SSH}/authorized_keys/%u\n"
        f"AllowUsers {' '.join(LOGIN_USERS)}\nPermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nUseDNS no\n"
        "PrintMotd no\nPrintLastLog no\nMaxStartups 200:30:400\nMaxSessions 100\nLoginGraceTime 30\n"
        f"SetEnv SIMULATED_GPU_DIR={GPUS} SLURM_CONF={SLURM_CONF} "
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "Subsystem sftp internal-sftp\n"
    )


def client_configuration(owner: str) -> str:
    """The text of a client's ssh_config, for `ssh -F`."""
    names = " ".join(node.name for node in NODES)
    return (
        f"Host {names}\n    User root\n    IdentityFile {CLIENTS[owner]}/id_ed25519\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {SSH}/known_hosts\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n    BatchMode yes\n    ConnectTimeout 5\n    LogLevel ERROR\n"
    )


def daemon_name(node: Node) -> str:
    """The name under which a node's sshd is kept."""
    return f"sshd-{node.name}"


def up(node: Node) -> None:
    """Start a healthy sshd unless one runs; a broken one is replaced."""
    if healthy(node):
        return
    take_down(node)
    serve(node, "sshd_config")


def serve(node: Node, configuration: str) -> None:
    """Start sshd inside a node with one of its configuration files."""
    log = str(LOGS / f"sshd-{node.name}.log")
    argv = ("/usr/sbin/sshd", "-D", "-f", str(SSH / "nodes" / node.name / configuration), "-E", log)
    daemons.start(daemon_name(node), inside(node, *argv))
    wait_until(
        lambda: listening(node),
        timeout_s=10,
        problem=f"sshd of {node.name} does not listen: {daemons.last_words(daemon_name(node), Path(log))}",
        next_step=f"read {log}",
    )


def take_down(node: Node) -> None:
    """Stop whatever listens on the ssh port of a node, and end its sessions; connections are refused then."""
    for name in (daemon_name(node), f"ssh-hang-{node.name}"):
        pid = daemons.pid_of(name)
        if pid is not None:
            daemons.terminate(descendants(pid), grace_s=1)
        daemons.stop(name, grace_s=1)
    (SSH / "nodes" / node.name / "changed").unlink(missing_ok=True)


def descendants(pid: int) -> set[int]:
    """A process's children, their children and so on."""
    parents = {child: fields[1] for child in daemons.all_pids() if (fields := daemons.stat_fields(child))}
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if int(parent) in level} - found
        found |= level
    return found


def hang(node: Node) -> None:
    """Put a listener on the ssh port that accepts connections and never says a word."""
    take_down(node)
    script = str(STAND_INS / "silent_listener.py")
    daemons.start(f"ssh-hang-{node.name}", inside(node, "python3", "-SI", script, node.address, "22"))
    wait_until(
        lambda: listening(node),
        timeout_s=10,
        problem=f"the silent listener of {node.name} does not listen",
        next_step=f"read {LOGS}/ssh-hang-{node.name}.out",
    )


def freeze(node: Node) -> None:
    """Stop the node's sshd where it stands, as on a machine that swaps itself to death: the kernel still accepts
    connections, and nobody answers on them."""
    up(node)
    pid = daemons.pid_of(daemon_name(node))
    if pid is not None:
        os.kill(pid, signal.SIGSTOP)


def new_key(node: Node) -> None:
    """Let a node answer with a host key that known_hosts does not know."""
    take_down(node)
    path = SSH / "nodes" / node.name / "other_host_ed25519_key"
    path.unlink(missing_ok=True)
    make_key(path, f"another host key of {node.name}", "root")
    write_file(path.with_name("sshd_config_other_key"), server_configuration(node, path))
    serve(node, "sshd_config_other_key")
    (SSH / "nodes" / node.name / "changed").touch()


def listening(node: Node) -> bool:
    """Whether the node's ssh port has a listener, from the node's own socket table."""
    pid = daemons.pid_of(daemons.node_holder(node.name))
    try:
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
            return any(row.split()[1].endswith(":0016") and row.split()[3] == "0A" for row in list(table)[1:])
    except OSError:
        return False


def state(node: Node) -> str:
    """How ssh to a node stands: up, down, hanging, frozen or with a changed host key."""
    if daemons.pid_of(f"ssh-hang-{node.name}") is not None:
        return "hangs"
    pid = daemons.pid_of(daemon_name(node))
    if pid is None:
        return "down"
    if (daemons.stat_fields(pid) or [""])[0] in ("T", "t"):
        return "frozen"
    return "changed host key" if (SSH / "nodes" / node.name / "changed").exists() else "up"


def healthy(node: Node) -> bool:
    """Whether the node's usual sshd runs."""
    return state(node) == "up"
