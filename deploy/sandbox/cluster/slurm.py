"""Slurm itself: its configuration files, slurmctld, and one slurmd for each node."""

from __future__ import annotations

import secrets
from pathlib import Path

from cluster import daemons
from cluster.accounting import alternative_auth, answers, as_controller, require_free_port
from cluster.nodes import inside
from cluster.settings import (
    CLUSTER,
    CONTROLLER,
    CONTROLLER_ADDRESS,
    CPUS_PER_NODE,
    ETC,
    FIRST_DEVICE,
    GPUS,
    GPUS_PER_NODE,
    JWT_KEY,
    LOGS,
    MEMORY_MIB_PER_NODE,
    MUNGE_SOCKET,
    NODE_EPILOG,
    NODES,
    PROBE,
    REST_SOCKET,
    RUN,
    SERVICE,
    SLURM_CONF,
    SLURM_STATE,
    SLURMCTLD_PORT,
    SLURMD_PORT,
    SLURMD_SPOOL,
    SLURMDBD_PORT,
    SLURMRESTD,
    SPOOL,
    Node,
)
from cluster.system import SandboxError, attempt, make_directory, run, wait_until, write_file

SCRIPTS = Path(__file__).resolve().parents[2] / "slurm"
EPILOGS = ("runbook-epilog", "runbook-node-epilog")
NODE_LIST = ",".join(node.name for node in NODES)


def cgroup_version() -> int:
    """2 when the unified hierarchy is the one in use, else 1."""
    return 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1


def write_configuration() -> bool:
    """Write slurm.conf and its companions, and the folders that they name; True when slurm.conf is another one."""
    before = SLURM_CONF.read_text(encoding="utf-8") if SLURM_CONF.exists() else ""
    make_directory(LOGS / "slurm", owner="slurm")
    make_directory(RUN / "slurm", owner="slurm")
    make_directory(SLURM_STATE, mode=0o700, owner="slurm")
    make_directory(SLURMD_SPOOL)
    make_directory(SPOOL, mode=0o2770, owner="slurm", group=SERVICE.name)
    write_file(SLURM_CONF, slurm_conf())
    write_file(ETC / "gres.conf", gres_conf())
    write_file(ETC / "cgroup.conf", cgroup_conf())
    write_file(ETC / "task-prolog", TASK_PROLOG, mode=0o755)
    for name in EPILOGS:
        # In one step: a node may be starting it at this moment, and drains itself where it cannot.
        write_file(ETC / name, (SCRIPTS / name).read_text(encoding="utf-8"), mode=0o755)
    # Slurm gives the epilogs no environment of ours, so the place of the spool comes from these wrappers.
    wrapper = f"#!/bin/sh\nRUNBOOK_SPOOL={SPOOL}\nexport RUNBOOK_SPOOL\nexec {ETC}/runbook-epilog\n"
    write_file(ETC / "epilog-slurmctld", wrapper, mode=0o755)
    make_directory(NODE_EPILOG)
    write_file(ETC / "epilog-node", NODE_EPILOG_WRAPPER, mode=0o755)
    return slurm_conf() != before


def slurm_conf() -> str:
    """The text of slurm.conf: nodes that claim more than this machine has, and quick scheduling."""
    addresses = "\n".join(
        f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} Port={SLURMD_PORT} "
        f"CPUs={CPUS_PER_NODE} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS_PER_NODE} ThreadsPerCore=1 "
        f"RealMemory={MEMORY_MIB_PER_NODE} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for node in NODES
    )
    return f"""\
# Written by `sandbox up`; changes here are lost.
ClusterName={CLUSTER}
SlurmctldHost={CONTROLLER}({CONTROLLER_ADDRESS})
SlurmUser=slurm
SlurmdUser=root
SlurmctldPort={SLURMCTLD_PORT}
SlurmdPort={SLURMD_PORT}
CommunicationParameters=NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={MUNGE_SOCKET},cred_expire=20
{alternative_auth()}CredType=cred/munge

StateSaveLocation={SLURM_STATE}
SlurmdSpoolDir={SLURMD_SPOOL}/%n
SlurmctldPidFile={RUN}/slurm/slurmctld.pid
SlurmdPidFile={RUN}/slurmd-%n.pid
SlurmctldLogFile={LOGS}/slurm/slurmctld.log
SlurmdLogFile={LOGS}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={CONTROLLER}
AccountingStoragePort={SLURMDBD_PORT}
AccountingStoragePass={MUNGE_SOCKET}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_script,job_env,job_comment
AccountingStorageEnforce=associations
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5

EpilogSlurmctld={ETC}/epilog-slurmctld
Epilog={ETC}/epilog-node
PrologEpilogTimeout=30
TaskProlog={ETC}/task-prolog

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ALL
PriorityType=priority/basic
ProctrackType=proctrack/linuxproc
TaskPlugin=task/cgroup
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
PropagateResourceLimits=NONE
DefMemPerCPU=256
JobRequeue=1
ReturnToService=2

MinJobAge=300
KillWait=2
MessageTimeout=30
SlurmctldTimeout=60
SlurmdTimeout=120
UnkillableStepTimeout=180
CompleteWait=0
InactiveLimit=0

{addresses}
PartitionName=gpu Nodes={NODE_LIST} Default=YES State=UP DefaultTime=01:00:00 MaxTime=7-00:00:00
"""


def gres_conf() -> str:
    """The text of gres.conf."""
    devices = f"/dev/tty[{FIRST_DEVICE}-{FIRST_DEVICE + GPUS_PER_NODE - 1}]"
    return f"# Simulated GPUs.\nAutoDetect=off\nNodeName={NODE_LIST} Name=gpu File={devices}\n"


def cgroup_conf() -> str:
    """The text of cgroup.conf for the version that this machine has: memory limits are enforced."""
    common = "ConstrainRAMSpace=yes\nConstrainCores=no\nConstrainDevices=no\n"
    if cgroup_version() == 2:
        return f"CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n{common}"
    return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n{common}"


TASK_PROLOG = f"""\
#!/bin/sh
echo "export SIMULATED_GPU_DIR={GPUS}"
echo "export SLURM_CONF={SLURM_CONF}"
"""


#: The node's epilog looks at the node only where the spool has a folder `nodes` and a probe lies in NODE_EPILOG.
NODE_EPILOG_WRAPPER = f"""\
#!/bin/sh
exec </dev/null >/dev/null 2>&1
RUNBOOK_SPOOL={SPOOL}
RUNBOOK_PROBE={NODE_EPILOG}/runbook-probe.pyz
LD_LIBRARY_PATH={NODE_EPILOG}/lib
STANDIN_NVML_SCENARIO={NODE_EPILOG}/${{SLURMD_NODENAME-}}.txt
[ -r {NODE_EPILOG}/deadline ] && read -r RUNBOOK_PROBE_DEADLINE <{NODE_EPILOG}/deadline
export RUNBOOK_SPOOL RUNBOOK_PROBE RUNBOOK_PROBE_DEADLINE LD_LIBRARY_PATH STANDIN_NVML_SCENARIO
exec {ETC}/runbook-node-epilog
"""


def start_slurmctld() -> None:
    """Start the controller and wait until it answers."""
    if daemons.pid_of("slurmctld") is None:
        require_free_port("slurmctld", CONTROLLER_ADDRESS, SLURMCTLD_PORT)
        daemons.start("slurmctld", as_controller("slurmctld", "-D"))
    daemons.wait_for(
        "slurmctld",
        lambda: answers(CONTROLLER_ADDRESS, SLURMCTLD_PORT) and controller_answers(),
        log=LOGS / "slurm" / "slurmctld.log",
    )


def make_jwt_key() -> None:
    """The key that the controller signs tokens with, made once."""
    if SLURMRESTD.exists() and not JWT_KEY.exists():
        write_file(JWT_KEY, secrets.token_hex(32), mode=0o600, owner="slurm")


def start_slurmrestd() -> None:
    """Start slurmrestd on a socket, as a user who may do nothing, where it is installed: who asks shows a token."""
    if not SLURMRESTD.exists() or daemons.pid_of("slurmrestd") is not None:
        return
    make_directory(REST_SOCKET.parent, owner=PROBE.name)
    REST_SOCKET.unlink(missing_ok=True)
    user = ("setpriv", f"--reuid={PROBE.name}", f"--regid={PROBE.name}", "--clear-groups", "--")
    # What keeps it from looking for a token of its own.
    words = (*user, "env", "SLURM_JWT=daemon", str(SLURMRESTD), "-a", "rest_auth/jwt", f"unix:{REST_SOCKET}")
    daemons.start("slurmrestd", as_controller(*words))
    daemons.wait_for("slurmrestd", REST_SOCKET.exists, log=LOGS / "slurmrestd.out")


def stop_slurmctld() -> bool:
    """Stop the controller; running jobs go on. True when it was running."""
    return daemons.stop("slurmctld", grace_s=15)


def controller_answers() -> bool:
    """Whether the controller answers a ping."""
    return attempt(("scontrol", "ping"), timeout_s=10)[0] == 0


def start_slurmd(node: Node) -> None:
    """Start the daemon of one node inside that node."""
    name = f"slurmd-{node.name}"
    if daemons.pid_of(name) is None:
        make_directory(SLURMD_SPOOL / node.name)
        daemons.start(name, inside(node, "slurmd", "-D", "-N", node.name))


def node_states() -> dict[str, str]:
    """Slurm's state of each node, as sinfo prints it; empty when the controller does not answer."""
    status, out, _ = attempt(("sinfo", "-h", "-N", "-o", "%N %T"), timeout_s=15)
    return dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line) if status == 0 else {}


def usable(state: str) -> bool:
    """Whether a node in this state has registered and answers; a drained one does."""
    word = state.rstrip("*$~#!%@^-")
    answering = ("idle", "mixed", "allocated", "completing", "draining", "drained")
    return not state.endswith("*") and word in answering


def wait_for_nodes() -> None:
    """Bring back nodes that are down, and wait until all have registered."""
    for name, state in node_states().items():
        if state.rstrip("*") in ("down", "inval"):
            attempt(("scontrol", "update", f"nodename={name}", "state=resume"))

    def all_ready() -> bool:
        states = node_states()
        return len(states) == len(NODES) and all(usable(state) for state in states.values())

    wait_until(
        all_ready,
        timeout_s=40,
        problem=f"nodes did not register: {node_states()}",
        next_step=f"read {LOGS}/slurmd-NODE.log and {LOGS}/slurm/slurmctld.log",
    )


def resume_drained() -> None:
    """Give every drained node back to Slurm."""
    for name, state in node_states().items():
        if state.startswith("drain"):
            run(("scontrol", "update", f"nodename={name}", "state=resume"))


def reconfigure() -> None:
    """Let a running controller read the configuration again."""
    status, _, err = attempt(("scontrol", "reconfigure"))
    if status != 0:
        raise SandboxError(f"scontrol reconfigure: {err.strip()}", f"read {LOGS}/slurm/slurmctld.log")


def trial_job() -> None:
    """Run one step on every node, as proof that jobs launch over the network."""
    count = str(len(NODES))
    run(
        ("srun", "-N", count, "-n", count, "--mem=64M", "--time=1", "--job-name=sandbox-trial", "true"),
        timeout_s=60,
        next_step=f"read {LOGS}/slurmd-NODE.log; a firewall may keep the nodes from reaching each other",
    )
