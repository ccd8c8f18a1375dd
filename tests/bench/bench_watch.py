"""The watch: what following many running jobs' logs costs, and how soon a failure is told of."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from runbook.adapters.clock import SystemClock
from runbook.adapters.log_watch import LogFollowers
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.units import JobId, UserName
from runbook.service.job_watch import memory_words

Row = Callable[..., None]
_OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_SECONDS = 30


def watch(row: Row) -> None:
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


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
