"""The command line of the sandbox."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from cluster import gpus, lifecycle, machine, packages, slurm, ssh
from cluster.settings import GPUS_PER_NODE, NODES, Node, node_named
from cluster.system import SandboxError, only_one, require_root

NODE_COMMANDS: dict[str, tuple[Callable[[Node], None], str]] = {
    "ssh-down": (ssh.take_down, "stop a node's sshd: connections are refused"),
    "ssh-up": (ssh.up, "give a node its usual sshd back"),
    "ssh-hang": (ssh.hang, "let a node's ssh port accept and never answer"),
    "ssh-freeze": (ssh.freeze, "stop a node's sshd by SIGSTOP: connections are accepted and stay silent"),
    "ssh-newkey": (ssh.new_key, "let a node answer with an unknown host key"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 done, 1 a problem, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    started = time.monotonic()
    try:
        if options.slurm is not None:
            require_root()
            after = words[words.index(options.command) + 1 :]
            return machine.pass_on(options.slurm, options.command, after)
        if options.command == "run":
            return subprocess.call(options.words, env={**os.environ, **lifecycle.variables()})
        if options.command == "env":
            sys.stdout.write(lifecycle.exports())
            return 0
        require_root()
        if options.command == "status":
            return 0 if lifecycle.status() else 1
        with only_one():
            carry_out(options)
    except SandboxError as problem:
        print(f"sandbox {options.command}: {problem.problem}\n  next: {problem.next_step}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `sandbox down` cleans up", file=sys.stderr)
        return 130
    if options.command in ("up", "down"):
        print(f"sandbox {options.command}: done in {time.monotonic() - started:.1f} s")
    if options.command == "up":
        print(f'  use it:   eval "$({os.path.abspath(sys.argv[0])} env)"; sinfo')
    return 0


def carry_out(options: argparse.Namespace) -> None:
    """Do what a command that changes the cluster asks for."""
    name = str(options.command)
    if name in NODE_COMMANDS:
        lifecycle.require_up()
        NODE_COMMANDS[name][0](known_node(options.node))
    elif name == "gpu":
        lifecycle.require_up()
        change_gpu(known_node(options.node), options)
    elif name == "install":
        packages.install()
    elif name == "up":
        lifecycle.up()
    elif name == "down":
        lifecycle.down()
    elif name == "heal":
        lifecycle.require_up()
        lifecycle.heal()
    else:
        lifecycle.require_up()
        if name != "start-slurmctld":
            slurm.stop_slurmctld()
        if name != "stop-slurmctld":
            slurm.start_slurmctld()


def known_node(name: str) -> Node:
    """The node that the command line names."""
    node = node_named(name)
    if node is None:
        names = ", ".join(each.name for each in NODES)
        raise SandboxError(f"there is no node {name!r}", f"use one of: {names}")
    return node


def change_gpu(node: Node, options: argparse.Namespace) -> None:
    """Print a node's GPU state, or change it."""
    change = gpus.Change(
        gpu=options.gpu,
        xid=options.xid,
        pid=options.pid,
        remap_pending=options.remap_pending,
        remap_failed=options.remap_failed,
        ecc_uncorrectable=options.ecc_uncorrectable,
        lost=options.lost,
        usable_gib=options.usable_gib,
        recovery_action=options.recovery_action,
        mig=options.mig,
        hang=options.hang,
        tenants=tuple(options.tenant),
        reset=options.reset,
    )
    if change == gpus.Change(gpu=options.gpu, pid=options.pid):
        print(gpus.state_path(node).read_text(encoding="utf-8"), end="")
    else:
        gpus.apply(node, change)


def tenant(word: str) -> tuple[int, float]:
    """PID:GIB of the command line."""
    pid, _, gib = word.partition(":")
    try:
        return int(pid), float(gib)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not PID:GIB, for example 4711:12.5") from None


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="sandbox", description="A Slurm cluster with simulated GPUs.")
    where = "on a machine of its own with the Debian that has this Slurm: " + ", ".join(machine.SUITES)
    top.add_argument("--slurm", metavar="VERSION", help=where)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("up", "bring the cluster up; on one that is up, check and repair it"),
        ("down", "take it down and remove every trace"),
        ("status", "show how it stands; exit status 0 when all is well"),
        ("heal", "take back what these commands broke: the controller, ssh and GPUs of all nodes, and drains"),
        ("env", "print shell exports to use it"),
        ("install", "only install the Debian packages"),
        ("restart-slurmctld", "restart the controller; jobs go on"),
        ("stop-slurmctld", "stop the controller"),
        ("start-slurmctld", "start the controller"),
    ):
        commands.add_parser(name, help=text)
    there = commands.add_parser("run", help="run a program with what `env` sets; with --slurm, on that machine")
    there.add_argument("words", nargs=argparse.REMAINDER, metavar="PROGRAM")
    for name, (_, text) in NODE_COMMANDS.items():
        commands.add_parser(name, help=text).add_argument("node", metavar="NODE")
    gpu = commands.add_parser("gpu", help="show or change the simulated GPUs of a node")
    gpu.add_argument("node", metavar="NODE")
    which = range(GPUS_PER_NODE)
    gpu.add_argument("--gpu", type=int, default=0, choices=which, metavar="N", help="which GPU (0)")
    gpu.add_argument("--xid", type=int, metavar="CODE", help="write an Xid line into the node's kernel log")
    gpu.add_argument("--pid", type=int, metavar="PID", help="the process that the Xid line names")
    gpu.add_argument("--remap-pending", action="store_true", help="a row waits to be remapped")
    gpu.add_argument("--remap-failed", action="store_true", help="remapping a row has failed")
    gpu.add_argument("--ecc-uncorrectable", type=int, metavar="COUNT", help="uncorrectable memory errors")
    gpu.add_argument("--recovery-action", metavar="TEXT", help="what nvidia-smi calls for: Reset, Reboot ...")
    gpu.add_argument("--lost", action="store_true", help="the driver cannot reach the GPU any more")
    gpu.add_argument("--usable-gib", type=float, metavar="GIB", help="usable memory; the rest shows as used")
    gpu.add_argument("--mig", action="store_true", help="the GPU is split by MIG")
    gpu.add_argument("--hang", action="store_true", help="nvidia-smi of the whole node never answers")
    more = "another process with memory on the GPU"
    gpu.add_argument("--tenant", type=tenant, action="append", default=[], metavar="PID:GIB", help=more)
    gpu.add_argument("--reset", action="store_true", help="first make the whole node healthy again")
    return top
