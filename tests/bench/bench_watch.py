"""The watch: what following many running jobs' logs costs, and how soon a failure is told of."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runbook.adapters.clock import SystemClock
from runbook.adapters.log_watch import LogFollowers
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.units import JobId, UserName
from runbook.service.job_watch import memory_words
from tests.service import replay

Row = Callable[..., None]
_OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_SECONDS = 30
_SANDBOX = Path("/var/lib/runbook-sandbox")
_ROUNDS = 5
_LONGEST_S = 120.0


def watch(row: Row) -> None:
    """What it costs, how soon it sees, and what it decides of jobs that are healthy and of jobs that hang."""
    _following(row)
    _on_sandbox(row)
    print("lives of jobs, replayed in time:")
    replay.main(8 if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else 1)


def _following(row: Row) -> None:
    """1,000 jobs of 64 files, in each of which one file is written to every second; RUNBOOK_BENCH_SIZE=small: 100."""
    jobs = 100 if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else 1000
    folder = Path(tempfile.mkdtemp(prefix="runbook-bench-"))
    words = memory_words(load_signatures(playbook_folder() / "signatures", load_kinds()))
    followers = LogFollowers(sorted(words), 120.0, SystemClock())
    try:
        logs = [[folder / str(job) / f"{rank}.log" for rank in range(64)] for job in range(jobs)]
        me = UserName(pwd.getpwuid(os.geteuid()).pw_name)
        for job, paths in enumerate(logs):
            paths[0].parent.mkdir()
            for path in paths:
                path.write_text("step 1 | loss 2.3\n")
            followers.follow(JobId(str(job)), me, tuple(map(str, paths)))
        print(f"the watch: {jobs} jobs of 64 files, one of each written to every second, for {_SECONDS} s")
        pids = [child.started.pid for child in followers._children.values()]
        before_s, began_s = _cpu_s(pids), time.monotonic()
        told_s: list[float] = []
        died: dict[str, float] = {}
        for second in range(_SECONDS):
            for job, paths in enumerate(logs):
                if str(job) not in died:
                    with paths[0].open("a") as stream:
                        stream.write(f"step {second} | loss 2.3\n")
            if second >= _SECONDS // 2 and second % 3 == 0:
                with logs[second][3].open("a") as stream:
                    stream.write(_OOM)
                died[str(second)] = time.monotonic()
            told_s += [time.monotonic() - died[one.job] for one in followers.look() if one.line]
            time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
        share = (_cpu_s(pids) - before_s) / (time.monotonic() - began_s)
        while len(told_s) < len(died) and time.monotonic() - began_s < _SECONDS + 60:
            told_s += [time.monotonic() - died[one.job] for one in followers.look() if one.line]
            time.sleep(0.1)
        row("a core's share", [100 * share], "%", "   aim: at most 20 %")
        row("memory", [sum(map(_resident_mib, pids))], "MiB", "   aim: at most 200 MiB")
        row("a round through all files", [followers.figures().round_s], "s")
        row("failing line to suspected", told_s, "s", f"   {len(told_s)} of {len(died)} told")
    finally:
        followers.close()
        shutil.rmtree(folder)


def _on_sandbox(row: Row) -> None:
    """One rank of a job dies of memory and the others hang, on the sandbox cluster: seconds from the failing line to
    the incident and to the relaunch, by the daemon as it is with its defaults."""
    if os.geteuid() != 0 or not _SANDBOX.exists():
        print("failing line to incident opened: left out (the sandbox cluster is not up: make cluster)")
        return
    from tests.cluster import conftest

    small = os.environ.get("RUNBOOK_BENCH_SIZE") == "small"
    for what, step_s in (("followed", 0.5), ("died young", 0.08)):
        generator = conftest.prepared("bench-watch")
        place = next(generator)
        try:
            with place.inventory.open("a", encoding="utf-8") as inventory:
                inventory.write("watch: {opt_in: runbook}\n")
            script = place.jobs / "true-oom.sbatch"
            script.write_text(script.read_text().replace("--step-seconds 0.08", f"--step-seconds {step_s}"))
            daemon = place.start_runbook("serve", "--port", "0")
            try:
                rounds = [_one_hang(place) for _ in range(1 if small else _ROUNDS)]
            finally:
                daemon.send_signal(signal.SIGTERM)
                daemon.communicate(timeout=60)
        finally:
            next(generator, None)
        aims = ("   aim: at most 5 s", "   aim: at most 15 s") if what == "followed" else ("", "")
        row(f"{what}: failing line to incident opened", [opened for opened, _ in rounds], "s", aims[0])
        row(f"{what}: failing line to relaunch submitted", [again for _, again in rounds], "s", aims[1])


def _one_hang(place: Any) -> tuple[float, float]:
    shutil.rmtree(place.jobs / "checkpoints", ignore_errors=True)
    job = place.submit("true-oom.sbatch", "--comment=runbook")
    deadline_s = time.monotonic() + _LONGEST_S
    while "OutOfMemoryError" not in place.log(job, "true-oom"):
        assert time.monotonic() < deadline_s, "the job did not fail"
        time.sleep(0.02)
    failed_s = time.time()
    opened = place.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
    while not (opened.exists() and place.incident(job)["attempts"]):
        assert time.monotonic() < deadline_s, "no relaunch"
        time.sleep(0.1)
    incident = place.incident(job)
    place.slurm("scancel", incident["attempts"][0]["job"])
    place.until(lambda: place.incident(job)["closed_s"] is not None, "it ended", _LONGEST_S)
    return incident["opened_s"] - failed_s, incident["attempts"][0]["submitted_s"] - failed_s


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
