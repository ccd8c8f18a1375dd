"""Measurements, not tests: start-up, the epilog, looking at templates, reading logs, asking nodes over SSH, 500
failures at once, and on the sandbox from a failed job to its relaunch.

    make bench
    RUNBOOK_BENCH_ONLY=logs make bench      one of start, epilog, templates, logs, nodes, service, fleet, ends, watch,
    loop
    make bench BEFORE=<commit>              another commit beside this one (`compare.py`)

Every figure is the median of several runs with the smallest and largest beside it; a bare interpreter is timed in the
same run, as these figures move with the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from tests.bench.bench_ends import ends  # noqa: E402
from tests.bench.bench_fleet import fleet  # noqa: E402 (found through the line above)
from tests.bench.bench_logs import logs  # noqa: E402
from tests.bench.bench_nodes import nodes  # noqa: E402
from tests.bench.bench_service import service  # noqa: E402
from tests.bench.bench_templates import templates  # noqa: E402
from tests.bench.bench_watch import watch  # noqa: E402

SANDBOX = Path("/var/lib/runbook-sandbox")
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
srun torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 8 --global-batch-size 128 --num-layers 24
"""
LOG = """\
0: iteration 10/ 100 | consumed samples: 1280 | elapsed time per iteration (ms): 2000.0 | lm loss: 8.1
3: Traceback (most recent call last):
3:   File "/opt/pretrain_gpt.py", line 10, in <module>
3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB of \
which 1.20 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch \
but unallocated.
"""


def timed(argv: tuple[str, ...], runs: int, **environment: str) -> list[float]:
    figures = []
    for number in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(argv, capture_output=True, check=True, env={**os.environ, **environment})
        if number:
            figures.append(time.perf_counter() - started)
    return figures


def processor(argv: tuple[str, ...], runs: int, folder: Path) -> list[float]:
    """Seconds that a command and what it starts take of a processor, in a home folder of its own."""
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    figures = []
    for number in range(runs + 1):
        began = os.times()
        subprocess.run(argv, capture_output=True, check=True, env=environment, cwd=folder)
        ended = os.times()
        if number:
            figures.append(
                ended.children_user - began.children_user + ended.children_system - began.children_system
            )
    return figures


def row(name: str, figures: list[float], unit: str = "ms", note: str = "") -> None:
    scale = 1000.0 if unit == "ms" else 1.0
    low, middle, high = (scale * value for value in (min(figures), statistics.median(figures), max(figures)))
    print(f"{name:<48} {middle:8.1f} {unit}   ({low:.1f} to {high:.1f}, {len(figures)} runs){note}", flush=True)


def start_up() -> None:
    bare = timed((sys.executable, "-c", "pass"), 9)
    row("python -c pass", bare)
    row("runbook --help", timed((sys.executable, "-m", "runbook", "--help"), 9), note="   aim: under 200 ms")
    row("runbook playbooks check", timed((sys.executable, "-m", "runbook", "playbooks", "check"), 5))
    print("processor time, user and system, the programs' bytecode as an installation has it:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.sbatch").write_text(SCRIPT, encoding="utf-8")
        Path(folder, "job.log").write_text(LOG, encoding="utf-8")
        offline = "oom --log job.log --template job.sbatch --output out"
        for words, aim in (
            ("", ""), ("--version", ""), ("diagnose job.log", "0.2 s"), (offline, "1.5 s"),
            ("template show job.sbatch", ""), ("explain 79", ""),
        ):
            argv = (sys.executable, *(("-m", "runbook", *words.split()) if words else ("-c", "pass")))
            name = f"runbook {words.partition(' --template')[0]}" if words else "python -c pass"
            row(name, processor(argv, 7, Path(folder)), note=f"   aim: {aim}" if aim else "")


def epilog() -> None:
    script = REPOSITORY / "deploy" / "slurm" / "runbook-epilog"
    with tempfile.TemporaryDirectory() as spool:
        figures = timed(
            ("sh", str(script)),
            21,
            RUNBOOK_SPOOL=spool,
            SLURM_JOB_ID="123",
            SLURM_JOB_UID="1000",
            SLURM_JOB_EXIT_CODE2="1:0",
            SLURM_JOB_DERIVED_EC="256",
            SLURM_CLUSTER_NAME="c",
            SLURM_JOB_RESTART_COUNT="0",
        )
    row("epilog script", figures, note="   aim: under 20 ms")
    row("sh -c :", timed(("sh", "-c", ":"), 21))


def loop() -> None:
    """Wedged job on the sandbox cluster: seconds from the failure's line in the log to the relaunch, by box."""
    if os.geteuid() != 0 or not SANDBOX.exists():
        print("failure to relaunch: left out (the sandbox cluster is not up: make cluster)")
        return
    from tests.cluster import conftest

    runs = 1 if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else 3
    totals: list[float] = []
    boxes: dict[str, list[float]] = {}
    for number in range(runs):
        generator = conftest.prepared(f"bench-{number}")
        place = next(generator)
        try:
            job = place.submit("true-oom.sbatch")
            place.until_dead(job, "true-oom")
            failed = time.time()
            done = place.runbook("oom", "--job", job, "--yes")
            assert done.returncode == 0, done.stderr
            incident = place.incident(job)
            totals.append(incident["attempts"][0]["submitted_s"] - failed)
            for visit in incident["visits"]:
                boxes.setdefault(visit["box"], []).append(visit["ended_s"] - visit["started_s"])
        finally:
            next(generator, None)
    row("failure seen to relaunch submitted", totals, "s", "   aim: under 10 s")
    for name, figures in boxes.items():
        row(f"  {name}", figures, "s")


def main() -> None:
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    print(f"{os.cpu_count()} cores, {model}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    print("median (smallest to largest)")
    parts = {
        "start": start_up, "epilog": epilog, "templates": lambda: templates(row), "logs": logs,
        "nodes": lambda: nodes(row), "service": lambda: service(row), "fleet": lambda: fleet(row),
        "ends": lambda: ends(row), "watch": lambda: watch(row), "loop": loop,
    }
    only = os.environ.get("RUNBOOK_BENCH_ONLY")
    if only is not None and only not in parts:
        raise SystemExit(f"RUNBOOK_BENCH_ONLY is one of {', '.join(parts)}")
    for name, part in parts.items():
        if only not in (None, name):
            continue
        try:
            part()
        except Exception as error:  # the other parts are measured all the same
            if only is not None:
                raise
            print(f"{name}: broke off: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
