"""The machines of the cluster: a bridge, and for each node its own network, host name and mounts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cluster import daemons
from cluster.settings import (
    BRIDGE,
    CONTROLLER_ADDRESS,
    NODES,
    PREFIX_LENGTH,
    STAND_INS,
    SUBNET_PREFIX,
    Node,
)
from cluster.system import SandboxError, attempt, run, wait_until

SOURCES = Path(__file__).resolve().parent.parent / "stand_ins"


def require_namespaces() -> None:
    """Refuse to go on where the kernel or a container forbids new namespaces or overlay mounts."""
    status, _, err = attempt(("unshare", "--net", "--uts", "--mount", "true"))
    if status != 0:
        raise SandboxError(
            f"this machine does not allow new namespaces: {err.strip()}",
            "use a real or virtual machine, or a container started with --privileged",
        )


def copy_stand_ins() -> None:
    """Copy the simulated nvidia-smi and dmesg to where every user and node can read them."""
    shutil.copytree(SOURCES, STAND_INS, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (STAND_INS, *STAND_INS.rglob("*")):
        executable = path.is_dir() or path.parent.name == "bin"
        path.chmod(0o755 if executable else 0o644)
    run(("/usr/bin/python3", "-m", "compileall", "-q", str(STAND_INS / "simulated_gpu")))


def link_exists(name: str) -> bool:
    """Whether a network link of that name is there."""
    return Path(f"/sys/class/net/{name}").exists()


def make_bridge() -> None:
    """Make the bridge that the nodes are plugged into."""
    if link_exists(BRIDGE):
        return
    _, out, _ = attempt(("ip", "-o", "-4", "addr", "show"))
    for line in out.splitlines():
        if f" {SUBNET_PREFIX}" in line:
            raise SandboxError(
                f"the addresses {SUBNET_PREFIX}0/{PREFIX_LENGTH} are in use here: {line.split()[1]}",
                "remove that address, or change SUBNET_PREFIX in cluster/settings.py",
            )
    run(
        ("ip", "-batch", "-"),
        stdin=f"link add {BRIDGE} type bridge forward_delay 0 stp_state 0\n"
        f"addr add {CONTROLLER_ADDRESS}/{PREFIX_LENGTH} dev {BRIDGE}\n"
        f"link set {BRIDGE} up\n",
        next_step="check that this machine may add network links (`ip link add x type bridge`)",
    )


def boot(node: Node) -> None:
    """Give a node its namespaces, cable, address, host name and stand-in commands, if it has none yet."""
    holder = daemons.node_holder(node.name)
    if daemons.pid_of(holder) is not None:
        return
    # What is left of a node whose namespaces are lost can be reached by nobody.
    for kind in ("slurmd", "sshd", "ssh-hang"):
        daemons.stop(f"{kind}-{node.name}", grace_s=1)
    if link_exists(node.link):
        run(("ip", "link", "delete", node.link))
    daemons.start(holder, ("unshare", "--net", "--uts", "--mount", "--", "sleep", "infinity"))
    wait_until(
        lambda: command_name(daemons.pid_of(holder)) == "sleep",
        timeout_s=5,
        problem=f"the namespaces of {node.name} did not come up: {daemons.last_words(holder)}",
        next_step="check that `unshare --net --uts --mount true` works here",
    )
    pid = daemons.pid_of(holder)
    run(
        ("ip", "-batch", "-"),
        stdin=f"link add {node.link} type veth peer name eth0 netns {pid}\n"
        f"link set {node.link} master {BRIDGE}\n"
        f"link set {node.link} up\n",
    )
    run(
        inside(node, "sh", "-ec", SET_UP, node.name, f"{node.address}/{PREFIX_LENGTH}", CONTROLLER_ADDRESS),
        next_step="the kernel needs overlay mounts (`grep overlay /proc/filesystems`, `modprobe overlay`)",
    )


# A read-only overlay puts the stand-ins into /usr/bin of this node alone, under their plain names.
SET_UP = f"""
hostname "$0"
ip link set lo up
ip addr add "$1" dev eth0
ip link set eth0 up
ip route add default via "$2"
mount -t overlay -o lowerdir={STAND_INS}/bin:/usr/bin simulated-gpu-commands /usr/bin
"""


def command_name(pid: int | None) -> str | None:
    """The name of the program that a process runs."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def inside(node: Node, *argv: str) -> tuple[str, ...]:
    """The command line that runs `argv` inside a node; the node has to be booted."""
    pid = daemons.pid_of(daemons.node_holder(node.name))
    if pid is None:
        raise SandboxError(f"the node {node.name} is not up", "run `sandbox up`")
    return ("nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--", *argv)


def remove_network() -> None:
    """Remove the cables and the bridge."""
    for name in (*(node.link for node in NODES), BRIDGE):
        if link_exists(name):
            attempt(("ip", "link", "delete", name))


def cgroup_folders() -> list[Path]:
    """The control groups that the nodes' slurmd and slurmstepd made, deepest first."""
    tops: list[Path] = []
    for node in NODES:
        tops += Path("/sys/fs/cgroup").glob(f"*/slurm_{node.name}")
        tops += Path("/sys/fs/cgroup").glob(f"system.slice/{node.name}_slurmstepd.scope")
    found = [path for top in tops for path in (top, *top.rglob("*")) if path.is_dir()]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove_cgroups() -> None:
    """Remove those control groups; they are empty once the processes have ended."""
    for path in cgroup_folders():
        wait_until(
            lambda path=path: removed(path),  # type: ignore[misc]
            timeout_s=5,
            problem=f"the control group {path} is still in use",
            next_step="look at its cgroup.procs, end those processes, then `sandbox down` again",
        )


def removed(path: Path) -> bool:
    """Try to remove an empty folder; True when it is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
