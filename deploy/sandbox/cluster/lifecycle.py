"""Bringing the whole cluster up, looking at it, and taking it down without a trace."""

from __future__ import annotations

import shutil

from cluster import accounting, daemons, gpus, identity, nodes, packages, slurm, ssh
from cluster.settings import ETC, GPUS, LOCK, LOGS, MARKER, NODES, ROOT, RUN, SLURM_CONF, SPOOL, SSH
from cluster.system import SandboxError, attempt, make_directory, phase


def up() -> None:
    """Bring up what is not up. On a cluster that is up already this only checks and repairs."""
    packages.install()
    nodes.require_namespaces()
    already = all_daemons_run()
    if already:
        print("  the cluster is already up: checking it", flush=True)
    with phase("folders, users, names"):
        make_root()
        identity.make_users()
        identity.allow_sudo()
        identity.add_host_names()
    preparation = accounting.prepare_mariadb()
    with phase("network and nodes"):
        nodes.copy_stand_ins()
        gpus.prepare()
        nodes.make_bridge()
        for node in NODES:
            nodes.boot(node)
    with phase("ssh"):
        ssh.prepare()
        for node in NODES:
            ssh.up(node)
    with phase("munge, mariadb"):
        accounting.start_munge()
        accounting.start_mariadb(preparation)
    with phase("accounting"):
        slurm.make_jwt_key()
        changed = slurm.write_configuration()
        accounting.start_slurmdbd()
        accounting.register()
    with phase("slurm"):
        slurm.start_slurmctld()
        slurm.start_slurmrestd()
        for node in NODES:
            slurm.start_slurmd(node)
        if changed and already:
            slurm.reconfigure()
        slurm.wait_for_nodes()
    if not already:
        with phase("trial step on every node"):
            slurm.trial_job()


def make_root() -> None:
    """Make the sandbox's folder, unless somebody else's stands there."""
    if ROOT.exists() and not MARKER.exists() and any(ROOT.iterdir()):
        raise SandboxError(f"{ROOT} is there and not the sandbox's", "move it away, then `sandbox up` again")
    for folder in (ROOT, ETC, LOGS, RUN):
        make_directory(folder)
    MARKER.touch()


def require_up() -> None:
    """Refuse a command that needs nodes when there are none."""
    if not any(daemons.pid_of(daemons.node_holder(node.name)) for node in NODES):
        raise SandboxError("the sandbox is down", "run `sandbox up` first")


def expected_daemons() -> tuple[str, ...]:
    """The names of all daemons of a healthy cluster."""
    per_node = [f"{kind}-{node.name}" for node in NODES for kind in ("node", "slurmd", "sshd")]
    return ("munged", "mariadb", "slurmdbd", "slurmctld", *per_node)


def all_daemons_run() -> bool:
    """Whether nothing is missing."""
    return all(daemons.pid_of(name) is not None for name in expected_daemons())


def heal() -> None:
    """Take back whatever the other commands, or a drain, did to a cluster that is up. Jobs go on."""
    slurm.start_slurmctld()
    for node in NODES:
        gpus.apply(node, gpus.Change(reset=True))
        ssh.up(node)
    slurm.resume_drained()


def down() -> None:
    """End every process of the sandbox and remove all that it left on the machine."""
    with phase("processes"):
        daemons.end_everything()
    with phase("network, control groups"):
        nodes.remove_network()
        nodes.remove_cgroups()
    with phase("users, names, files"):
        identity.forbid_sudo()
        identity.remove_users()
        identity.remove_host_names()
        ssh.remove_run_folder()
        if ROOT.exists() and MARKER.exists():
            shutil.rmtree(ROOT)
        shutil.rmtree(RUN, ignore_errors=True)
        LOCK.unlink(missing_ok=True)


def status() -> bool:
    """Print how everything stands; True when all is well."""
    missing = [name for name in expected_daemons() if daemons.pid_of(name) is None]
    if len(missing) == len(expected_daemons()):
        print("the sandbox is down")
        return False
    for name in ("munged", "mariadb", "slurmdbd", "slurmctld"):
        pid = daemons.pid_of(name)
        print(f"{name:<12} {'down' if pid is None else f'up, pid {pid}'}")
    states = slurm.node_states()
    for node in NODES:
        slurmd = "up" if daemons.pid_of(f"slurmd-{node.name}") else "down"
        state = states.get(node.name, "unknown")
        print(f"{node.name:<12} slurm {state}, slurmd {slurmd}, ssh {ssh.state(node)}")
    _, out, _ = attempt(("squeue", "-h", "-t", "all", "-o", "%T"), timeout_s=15)
    print(f"{'jobs':<12} {sum(word in ('RUNNING', 'PENDING') for word in out.split())} running or pending")
    return not missing and all(slurm.usable(states.get(node.name, "unknown*")) for node in NODES)


def exports() -> str:
    """Shell lines that let a shell use the cluster."""
    return "".join(f"export {name}={value}\n" for name, value in variables().items())


def variables() -> dict[str, str]:
    """What a program needs in its environment to use the cluster."""
    return {
        "SLURM_CONF": str(SLURM_CONF),
        "SIMULATED_GPU_DIR": str(GPUS),
        "RUNBOOK_SPOOL": str(SPOOL),
        "RUNBOOK_SANDBOX_SSH_CONFIG": f"{SSH}/ssh_config",
    }
