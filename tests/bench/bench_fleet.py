"""500 failures within a minute on a stand-in cluster of 10,000 nodes, ten of them hostile: how long until each has a
diagnosis, what memory and processor time that takes, and of what the processor's time is made. The log of one of the
hostile ones takes all the time that reading may take.

`runbook serve` is the real one, with its spool, its database, its cage and the owners' children. Slurm is a stand-in
(`stand-in-slurm`: sh, so its own time is not Slurm's), nodes are not asked, the policy is `plan`. The jobs' owners are
this machine's system accounts (daemon, games, mail, …), as each owner has to be a user here."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pwd
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.bench.log_generator import combined
from tests.bench.stand_in import write_commands, write_event, write_failed_job
from tests.loopback import free_port

Row = Callable[..., None]
REPOSITORY = Path(__file__).resolve().parents[2]
FAILURES, HOSTILE, NODES, OVER_S = 500, 10, 10_000, 60.0
_AIM_S = 300.0
_FIRST_JOB = 700_001
_GROUPS = ("memory", "cpuacct")


def fleet(row: Row) -> None:
    """RUNBOOK_BENCH_SIZE=small: 50 failures."""
    if os.geteuid() != 0:
        print("fleet: left out (jobs of several owners need root)")
        return
    failures = 50 if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else FAILURES
    folder = Path(tempfile.mkdtemp(prefix="runbook-bench-fleet-"))
    folder.chmod(0o755)
    try:
        hostile = _write(folder, failures)
        _measure(folder, failures, hostile, row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, failures: int) -> frozenset[int]:
    """Slurm's answers, the jobs' files and a spool; the jobs that are hostile."""
    commands, logs = folder / "bin", folder / "logs"
    for made in (logs, folder / "spool"):
        made.mkdir(parents=True)
    write_commands(commands, NODES)
    ordinary = []
    for number, mib in enumerate((1, 1, 2, 2, 5, 5, 10, 20, 35, 50)):
        ordinary.append(logs / f"ordinary-{number}.log")
        combined(ordinary[-1], mib << 20, ranks=64, seed=number)
        ordinary[-1].chmod(0o644)
    chance = random.Random(7)
    hostile = frozenset(_FIRST_JOB + place for place in chance.sample(range(failures), HOSTILE))
    kinds = sorted(_HOSTILE)
    for number in range(_FIRST_JOB, _FIRST_JOB + failures):
        log, script = logs / f"{number}.log", _SCRIPT
        if number in hostile:
            place = sorted(hostile).index(number)
            make = _HOSTILE[kinds[place % len(kinds)]] if place else _all_its_time
            script = make(log) or script
        else:
            os.link(ordinary[number % len(ordinary)], log)
        write_failed_job(commands, number, _owner(number), log, script)
    return hostile


def _owner(job: int) -> pwd.struct_passwd:
    accounts = _accounts()
    return accounts[job % len(accounts)]


@cache
def _accounts() -> tuple[pwd.struct_passwd, ...]:
    return tuple(one for one in pwd.getpwall() if 0 < one.pw_uid < 1000 and one.pw_name.isalnum())


_SCRIPT = """#!/bin/bash
#SBATCH --job-name=train
torchrun --nproc_per_node=8 train.py --micro-batch-size 4 --global-batch-size 256 --seq-length 4096
"""


def _fifo(log: Path) -> None:
    os.mkfifo(log, 0o644)


def _sparse(log: Path) -> None:
    with log.open("wb") as stream:
        stream.truncate(1 << 40)
    log.chmod(0o644)


def _packed(log: Path) -> None:
    log.write_bytes(gzip.compress(gzip.compress(bytes(256 << 20), 9), 9))


def _one_line(log: Path) -> None:
    log.write_bytes(b"CUDA out of memory. Tried to allocate " * (1 << 20))


def _all_its_time(log: Path) -> None:
    chance = random.Random(7)
    with log.open("wb") as stream:
        for number in range(300_000):
            stream.write(b"%016x Error: CUDA error: out of memory %d\n" % (chance.getrandbits(64), number))
    log.chmod(0o644)


def _expanding(log: Path) -> str:
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    return "#!/bin/bash\na=xxxxxxxxxx\n" + "a=$a$a$a$a$a$a$a$a\n" * 400 + "torchrun train.py $a\n"


_HOSTILE: dict[str, Callable[[Path], str | None]] = {
    "fifo": _fifo, "sparse": _sparse, "packed": _packed, "one line": _one_line, "expanding": _expanding,
}


@contextlib.contextmanager
def _groups() -> Iterator[dict[str, Path]]:
    """Control groups for what the service and all its children use; without them that is not measured."""
    made: dict[str, Path] = {}
    for kind in _GROUPS:
        folder = Path("/sys/fs/cgroup") / kind / f"runbook-bench-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            made[kind] = folder
    try:
        yield made
    finally:
        for folder in made.values():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _measure(folder: Path, failures: int, hostile: frozenset[int], row: Row) -> None:
    port = free_port()
    inventory = folder / "alpha.yaml"
    inventory.write_text(
        "version: 1\nid: alpha\ntitle: A stand-in\ncluster: alpha\n"
        f"scheduler: {{kind: slurm, adapter: commands, commands_folder: {folder}/bin}}\nnodes: {{kind: none}}\n"
        f"policy: {{mode: plan}}\npaths: {{state: {folder}/state, spool: {folder}/spool}}\n"
        f"workers: {os.environ.get('RUNBOOK_BENCH_WORKERS', '4')}\n"
    )
    with _groups() as groups, (folder / "service.log").open("wb") as log:

        def enter() -> None:
            for place in groups.values():
                (place / "cgroup.procs").write_text(str(os.getpid()))

        service = subprocess.Popen(
            (sys.executable, "-m", "runbook", "serve", "--inventory", str(inventory), "--port", str(port)),
            stdout=log, stderr=log, cwd=REPOSITORY, preexec_fn=enter,
        )
        try:
            _health(port, service)
            before_s = _used_s(service.pid, groups)
            began_s, most_bytes = time.time(), 0
            written = 0
            diagnosed_s: dict[str, float] = {}
            ended_s = began_s
            while written < failures or not _done(port, folder, failures):
                due = min(failures, int((time.time() - began_s) / OVER_S * failures) + 1)
                for number in range(_FIRST_JOB + written, _FIRST_JOB + due):
                    write_event(folder / "spool", number, _owner(number).pw_uid)
                written = due
                most_bytes = max(most_bytes, _memory_bytes(groups))
                if not diagnosed_s and _diagnosed(folder, hostile) >= failures - len(hostile):
                    diagnosed_s = _since(before_s, _used_s(service.pid, groups))
                ended_s = time.time()
                if ended_s - began_s > 3 * _AIM_S:
                    break
                time.sleep(0.5 if written < failures else 1.0)
            used_s = _since(before_s, _used_s(service.pid, groups))
        finally:
            service.terminate()
            service.wait(60)
    _tell(folder, failures, hostile, row, began_s, most_bytes)
    _tell_used(failures, "until each ordinary one has its diagnosis", diagnosed_s)
    _tell_used(failures, "until each has its report", used_s)


def _health(port: int, service: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        assert service.poll() is None and time.monotonic() < deadline, "the service did not start"
        with contextlib.suppress(OSError):
            return _asked(port)
        time.sleep(0.1)


def _asked(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _done(port: int, folder: Path, failures: int) -> bool:
    """Whether every incident has its diagnosis: nothing at work, nothing waiting, and all are there and ended."""
    with contextlib.suppress(OSError):
        health = _asked(port)
        if health["spool_depth"] or health["boxes_waiting"] or health["boxes_at_work"]:
            return False
        found = [json.loads(path.read_text()) for path in (folder / "state" / "incidents").glob("*/incident.json")]
        return len(found) >= failures and all(one["state"] not in ("running", "interrupted") for one in found)
    return False


def _diagnosed(folder: Path, hostile: frozenset[int]) -> int:
    """How many ordinary incidents have left the box of their diagnosis, or have come to their end without one."""
    text = (folder / "service.log").read_text(errors="replace")
    left = {int(job) for job in re.findall(r"INFO \S+-(\d+): (?:classify|report): ", text)}
    return len(left - hostile)


def _since(before_s: dict[str, float], now_s: dict[str, float]) -> dict[str, float]:
    return {name: value - before_s[name] for name, value in now_s.items()}


def _used_s(pid: int, groups: dict[str, Path]) -> dict[str, float]:
    """Processor seconds: of the service itself, of the programs that it started and waited for, and of everything."""
    ticks = os.sysconf("SC_CLK_TCK")
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = {"service": (int(parts[11]) + int(parts[12])) / ticks, "started": (int(parts[13]) + int(parts[14])) / ticks}
    if "cpuacct" in groups:
        used["all"] = int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
    return used


def _memory_bytes(groups: dict[str, Path]) -> int:
    """Of all its processes together, without what is only cached of files."""
    if "memory" not in groups:
        return 0
    text = (groups["memory"] / "memory.stat").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("total_rss ")))


def _tell(
    folder: Path, failures: int, hostile: frozenset[int], row: Row, began_s: float, most_bytes: int
) -> None:
    good: list[float] = []
    bad: list[float] = []
    for path in sorted((folder / "state" / "incidents").glob("*/incident.json")):
        document = json.loads(path.read_text())
        number = int(document["root_job"])
        told_s = began_s + (number - _FIRST_JOB) / failures * OVER_S
        # A hostile one may end without a diagnosis; an ordinary one that does was not read.
        told = ("classify", "report") if number in hostile else ("classify",)
        ended = [visit["ended_s"] for visit in document["visits"] if visit["box"] in told and visit["ended_s"]]
        if ended:
            (bad if number in hostile else good).append(min(ended) - told_s)
    print(f"{failures} failures over {OVER_S:.0f} s on a stand-in Slurm of {NODES:,} nodes, {len(hostile)} hostile")
    if len(good) + len(bad) < failures:
        print(f"  WITHOUT A DIAGNOSIS: {failures - len(good) - len(bad)}")
    if not good:
        return
    last = sorted(good)[int(len(good) * 0.95)]
    row("  failure to diagnosis, ordinary jobs", good, "s", f"   95 %: {last:.0f} s; aim: all within {_AIM_S:.0f} s")
    row("  failure to a person or report, hostile jobs", bad or [0.0], "s")
    print(f"  median of the ordinary {statistics.median(good):.1f} s, last {max(good):.1f} s")
    asked = Counter((folder / "bin" / "asked").read_text().split())
    commands = ", ".join(f"{count / failures:.1f} {name}" for name, count in sorted(asked.items()))
    print(f"  Slurm's commands an incident: {commands}")
    print(f"  most memory of all processes together: {most_bytes >> 20} MiB", flush=True)


def _tell_used(failures: int, until: str, used_s: dict[str, float]) -> None:
    if not used_s:
        print(f"  processor time {until}: not all have one")
        return
    each = {name: value / failures for name, value in used_s.items()}
    cage = each.get("all", 0.0) - each["service"] - each["started"]
    print(
        f"  processor time an incident {until}: {each.get('all', 0.0):.2f} s (service {each['service']:.2f}, programs "
        f"and owners' children {each['started']:.2f}, cage {cage:.2f}): {failures * each.get('all', 0.0) / 2:.0f} s on "
        "two cores",
        flush=True,
    )
