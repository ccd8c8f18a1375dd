"""RUNBOOK_ENDS=all: what it costs that every job's end is told of, with codes of 0:0, too. The daemon is the real one;
Slurm is a stand-in, whose own time is not Slurm's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.bench.bench_fleet import _asked, _groups, _health, _owner, _used_s
from tests.bench.log_generator import combined
from tests.bench.stand_in import write_commands, write_event, write_failed_job
from tests.loopback import free_port

Row = Callable[..., None]
_REPOSITORY = Path(__file__).resolve().parents[2]
_A_DAY = 50_000
_KINDS = (("COMPLETED", 200), ("TIMEOUT", 20))
_LOG_MIB = 20
_LONGEST_S = 600.0


def ends(row: Row) -> None:
    """Jobs that completed and jobs that ran into their time limit, each with a log of 20 MiB."""
    if os.geteuid() != 0:
        print("ends: left out (jobs of several owners need root)")
        return
    folder = Path(tempfile.mkdtemp(prefix="runbook-bench-ends-"))
    folder.chmod(0o755)
    try:
        for made in ("logs", "spool"):
            (folder / made).mkdir()
        write_commands(folder / "bin", 100)
        log = folder / "logs" / "whole.log"
        combined(log, _LOG_MIB << 20, ranks=8, seed=1)
        text = log.read_bytes().partition(b"Traceback")[0]
        log.write_bytes(text + text[-(1 << 20):])  # nothing of a failure in its last part
        log.chmod(0o644)
        print(f"RUNBOOK_ENDS=all: each end of {_A_DAY:,} jobs a day, logs of {log.stat().st_size >> 20} MiB")
        _measure(folder, log, row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path, log: Path, row: Row) -> None:
    port, inventory = free_port(), folder / "alpha.yaml"
    inventory.write_text(
        "version: 1\nid: alpha\ntitle: A stand-in\ncluster: alpha\n"
        f"scheduler: {{kind: slurm, adapter: commands, commands_folder: {folder}/bin}}\nnodes: {{kind: none}}\n"
        f"policy: {{mode: plan}}\npaths: {{state: {folder}/state, spool: {folder}/spool}}\n"
    )
    with _groups() as groups, (folder / "service.log").open("wb") as told:

        def enter() -> None:
            for place in groups.values():
                (place / "cgroup.procs").write_text(str(os.getpid()))

        service = subprocess.Popen(
            (sys.executable, "-m", "runbook", "serve", "--inventory", str(inventory), "--port", str(port)),
            stdout=told, stderr=told, cwd=_REPOSITORY, preexec_fn=enter,
        )
        try:
            _health(port, service)
            number = 800_000
            for state, jobs in _KINDS:
                for job in range(number, number + jobs):
                    write_failed_job(folder / "bin", job, _owner(job), log, "#!/bin/sh\ntrue\n", state, "0:0")
                (folder / "bin" / "asked").write_text("")
                before, began_s = _used_s(service.pid, groups), time.monotonic()
                for job in range(number, number + jobs):
                    write_event(folder / "spool", job, _owner(job).pw_uid, "0:0")
                while any((folder / "spool").glob("*.event")) or not _all_closed(folder):
                    assert time.monotonic() - began_s < _LONGEST_S, _asked(port)
                    time.sleep(0.5)
                after = _used_s(service.pid, groups)
                each_s = {name: (after[name] - before[name]) / jobs for name in after}
                whole_s = each_s.get("all", each_s["service"] + each_s["started"])
                commands = Counter((folder / "bin" / "asked").read_text().split())
                row(
                    f"{state}: processor time a job", [whole_s], "ms",
                    f"   {_A_DAY * whole_s / 3600:.1f} hours of a processor a day, were all such",
                )
                said = ", ".join(f"{count / jobs:.1f} {name}" for name, count in sorted(commands.items()))
                opened = len(list((folder / "state" / "incidents").glob("*")))
                print(f"  Slurm's commands a job: {said}; incidents opened: {opened}")
                number += jobs
        finally:
            service.terminate()
            service.wait(60)


def _all_closed(folder: Path) -> bool:
    found = (folder / "state" / "incidents").glob("*/incident.json")
    return all(json.loads(path.read_text())["closed_s"] is not None for path in found)
