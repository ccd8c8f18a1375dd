"""Nodes over SSH, measured on real sshd daemons on loopback: one node from connect to facts, and many beside `clush`.

Both ends share this machine's cores: of a loopback run most seconds are the servers' (a fork, a key exchange and a
login each), which real nodes bear themselves; their homes are empty, so that no .bashrc is measured. So the client's
own CPU and memory stand beside the seconds. `clush` (ClusterShell's, with `ssh` processes) gets the same key,
known_hosts, script on standard input and rounds, the best of several fan-outs, and both OpenSSH's default key exchange
and curve25519-sha256 alone, which is what paramiko agrees on with an sshd that has no mlkem768x25519-sha256.

    RUNBOOK_BENCH_ONLY=nodes make bench           nothing but this file's figures
    RUNBOOK_BENCH_SIZE=small make bench           48 nodes rather than 500: a minute instead of ten
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from runbook.adapters.node_access import probe_program
from runbook.node import Limits, check_script, shell_command
from tests.bench.sshd_fleet import SSHD, Fleet, fleet

REPOSITORY = Path(__file__).resolve().parents[2]
MARKER = "@@0123456789abcdef01234567"
FAN_OUT = 32
CURVE = "KexAlgorithms=curve25519-sha256"
Row = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Size:
    """How many nodes, how many rounds, and what fan-outs `clush` may choose from."""

    nodes: int
    rounds: int
    clush_fan_outs: tuple[int, ...]
    probed: int
    """Nodes of the rounds with the node probe, which costs a node a Python of its own."""


SIZES = {"full": Size(500, 3, (32, 64, 128), 48), "small": Size(48, 2, (16, 32), 16)}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a client: seconds, CPU seconds of it and its children, and most private memory at a time, bytes."""

    seconds: float
    cpu_s: float
    peak_bytes: int


@dataclass
class Contender:
    """One command, and how its runs went."""

    name: str
    argv: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(run.seconds for run in self.runs)

    def told(self, beside: Contender | None) -> str:
        low, high = min(run.seconds for run in self.runs), max(run.seconds for run in self.runs)
        cpu_s = statistics.median(run.cpu_s for run in self.runs)
        peak_mb = max(run.peak_bytes for run in self.runs) / 1e6
        ratio = f"   {self.seconds / beside.seconds:.2f} times runbook" if beside else ""
        return f"  {self.name:<44} {self.seconds:6.2f} s ({low:.2f} to {high:.2f})  client CPU {cpu_s:5.1f} s  " \
            f"memory {peak_mb:5.0f} MB{ratio}"


def nodes(row: Row) -> None:
    """Print every figure."""
    if SSHD is None:
        print("nodes: left out (sshd is not installed)")
        return
    size = SIZES["small" if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else "full"]
    environment = _node_environment()
    with (
        tempfile.TemporaryDirectory(prefix="runbook-bench-") as folder,
        fleet(size.nodes, Path(folder), environment) as targets,
    ):
        _one_node(targets, row)
        _many(targets, size, Path(folder))


def _node_environment() -> dict[str, str]:
    """Of every node: a plain PATH, and a stand-in for NVML (simulated: no GPU is behind it)."""
    from tests.nvml.standin import GCC, SCENARIOS, library_folder

    environment = {"PATH": "/usr/bin:/bin"}
    if GCC is None:
        print("the stand-in NVML needs gcc; the probe is asked without it")
    else:
        environment["LD_LIBRARY_PATH"] = str(library_folder())
        environment["STANDIN_NVML_SCENARIO"] = str(SCENARIOS / "h100_550_failed_remap.txt")
    return environment


def _one_node(targets: Fleet, row: Row) -> None:
    """The whole question: connect, send the probe, run it against the stand-in NVML, parse the answer."""
    fresh: list[float] = []
    again: list[float] = []
    for _ in range(7):
        answer = _spawned(_client(targets.config, "facts", 1, targets.addresses[:1]))
        first, second = answer.split()[:2]
        fresh.append(float(first))
        again.append(float(second))
    row("one node: connect, probe, facts (first of a process)", fresh[1:], note="   aim: under 1 s; imports included")
    row("one node: connect, probe, facts (again)", again[1:])


def _many(targets: Fleet, size: Size, folder: Path) -> None:
    versions = " · ".join(f"{name} {version(name)}" for name in ("paramiko", "fabric", "ClusterShell"))
    ssh = subprocess.run(("ssh", "-V"), capture_output=True, text=True, check=True).stderr.split(",")[0]
    print(
        f"{size.nodes} nodes: {targets.daemons} sshd daemons, 16 addresses each, MaxStartups 2000, ed25519 keys · "
        f"{versions} · {ssh} · load {os.getloadavg()[0]:.1f}"
    )
    clush = shutil.which("clush", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if clush is None:
        print("clush: left out (pip install clustershell)")
        return
    limits = Limits.within(15.0)
    check = folder / "check.sh"
    check.write_text(check_script(MARKER, "node", None, limits))
    probed = folder / "probed.sh"
    probed.write_text(check_script(MARKER, "node", None, limits, probe_program()))
    true = folder / "true.sh"
    true.write_text("true\n")
    fan_out = _best_fan_out(clush, targets, size, true)
    for title, what, script, count in (
        ("`true`", "true", true, size.nodes),
        ("node check without the probe", "check", check, size.nodes),
        ("node check with the probe", "facts", probed, size.probed),
    ):
        print(f" {title}, {count} nodes, median of {size.rounds} rounds in turn; clush with -f {fan_out}")
        names = targets.addresses[:count]
        contenders = [
            Contender(f"runbook ({FAN_OUT} threads)", _client(targets.config, what, FAN_OUT, names)),
            Contender("clush, default key exchange", _clush(clush, targets.config, fan_out, script, names)),
            Contender("clush, curve25519-sha256", _clush(clush, targets.config, fan_out, script, names, CURVE)),
        ]
        _race(contenders, size.rounds)
        for one in contenders:
            print(one.told(contenders[0] if one is not contenders[0] else None), flush=True)


def _best_fan_out(clush: str, targets: Fleet, size: Size, script: Path) -> int:
    """What suits `clush` best here, with the faster key exchange; one run each."""
    took = {
        fan_out: _measured(_clush(clush, targets.config, fan_out, script, targets.addresses, CURVE)).seconds
        for fan_out in size.clush_fan_outs
    }
    print("  clush fan-outs tried: " + ", ".join(f"-f {fan_out}: {took_s:.2f} s" for fan_out, took_s in took.items()))
    return min(took, key=lambda fan_out: took[fan_out])


def _race(contenders: Sequence[Contender], rounds: int) -> None:
    for _ in range(rounds):
        for one in contenders:
            one.runs.append(_measured(one.argv))


def _clush(
    clush: str, config: Path, fan_out: int, script: Path, names: Sequence[str], option: str = ""
) -> tuple[str, ...]:
    words = f"-F {config}" + (f" -o {option}" if option else "")
    command = (
        sys.executable, clush, "-S", "-q", "-f", str(fan_out), "-o", words, "-w", ",".join(names), shell_command(False)
    )
    return ("sh", "-c", 'script=$1; shift; exec "$@" <"$script" >/dev/null', "sh", str(script), *command)


def _client(config: Path, what: str, fan_out: int, names: Sequence[str]) -> tuple[str, ...]:
    return (
        sys.executable, "-m", "tests.bench.bench_nodes", what, "--config", str(config), "--fan-out", str(fan_out),
        *names,
    )


def _spawned(argv: tuple[str, ...]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv[:4]}: exit {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def _measured(argv: tuple[str, ...]) -> Run:
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=REPOSITORY)
    stop = threading.Event()
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process.pid, stop, peak), daemon=True)
    watcher.start()
    assert process.stderr
    complaint = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    stop.set()
    watcher.join()
    if process.returncode:
        raise RuntimeError(f"{argv[:6]}: exit {process.returncode}: {complaint[-400:]!r}")
    return Run(seconds, used.ru_utime + used.ru_stime, peak[0])


def _watch(pid: int, stop: threading.Event, peak: list[int]) -> None:
    while not stop.wait(0.2):
        peak[0] = max(peak[0], _private_bytes(pid))


def _private_bytes(pid: int) -> int:
    """Memory that a process and its descendants share with nobody (shared libraries left out)."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    todo = [pid]
    while todo:
        one = todo.pop()
        try:
            resident, shared = Path(f"/proc/{one}/statm").read_text().split()[1:3]
            total += (int(resident) - int(shared)) * page
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                todo += [int(child) for child in children.read_text().split()]
        except OSError:
            continue
    return total


def _as_client() -> None:
    """This file as the client that is measured: what `runbook` does for many nodes, and nothing else."""
    from runbook.adapters.node_access import SshNodes
    from runbook.adapters.ssh import SshSettings
    from runbook.adapters.ssh.connect import connected
    from runbook.fan_out import ask_many
    from runbook.model.node import Reach
    from runbook.model.units import NodeName

    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("true", "check", "facts"))
    parser.add_argument("--config", required=True)
    parser.add_argument("--fan-out", type=int, required=True)
    parser.add_argument("names", nargs="+")
    asked = parser.parse_args()
    settings = SshSettings(config_file=asked.config, use_agent=False, probe=asked.what == "facts", connect_timeout_s=60)
    names = tuple(NodeName(name) for name in asked.names)
    port = SshNodes(settings)

    def true(name: NodeName) -> bool:
        with connected(name, settings) as session:
            return session.run(shell_command(False), "true\n").exit_code == 0

    def check(name: NodeName) -> bool:
        facts = port.check(name, since_s=None, until_s=None)
        if facts.reach is not Reach.OK:
            print(f"{name}: {facts.reach}: {facts.reach_detail}", file=sys.stderr)
        return facts.reach is Reach.OK

    for _ in range(2 if len(names) == 1 else 1):
        started = time.perf_counter()
        answers = ask_many(true if asked.what == "true" else check, names, limit=asked.fan_out)
        print(time.perf_counter() - started)
        if not all(answers):
            raise SystemExit(f"{answers.count(False)} of {len(names)} nodes did not answer")


if __name__ == "__main__":
    _as_client()
