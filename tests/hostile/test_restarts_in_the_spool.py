"""A daemon that is killed while it reads a hostile job and started again: it comes up, serves the others, and the
hostile job ends."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runbook.cli.wiring import application
from runbook.model.units import JobId
from tests.hostile.scene import failed_job
from tests.loopback import free_port

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def _fifo(log: Path, _script: Path) -> None:
    log.unlink()
    os.mkfifo(log)


def _endless(log: Path, _script: Path) -> None:
    with log.open("wb") as stream:
        stream.truncate(1 << 40)


def _packed(log: Path, _script: Path) -> None:
    log.write_bytes(gzip.compress(gzip.compress(bytes(256 << 20), 9), 9))


def _one_line(log: Path, _script: Path) -> None:
    log.write_bytes(b"CUDA out of memory. Tried to allocate " * (1 << 20))


def _expanding_script(log: Path, script: Path) -> None:
    log.write_text(OOM)
    script.write_text("#!/bin/sh\na=xxxxxxxxxx\n" + "a=$a$a$a$a$a$a$a$a\n" * 400 + "torchrun train.py $a\n")


def _aliases(log: Path, script: Path) -> None:
    log.write_text(OOM)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (script.parent / "train.yaml").write_text("\n".join(lines) + "\n")
    script.write_text(f"#!/bin/sh\ntorchrun train.py --config {script.parent}/train.yaml\n")


def _long_names(log: Path, script: Path) -> None:
    log.write_text(OOM)
    script.write_text(f"#!/bin/sh\ntorchrun train.py --config {script.parent}/{'火' * 80}.yaml\n")
    (script.parent / f"{'火' * 80}.yaml").write_text("micro_batch_size: 4\n")


HOSTILE = [_fifo, _endless, _packed, _one_line, _expanding_script, _aliases, _long_names]


@contextlib.contextmanager
def _serving(inventory: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as stream:
        service = subprocess.Popen(
            (sys.executable, "-m", "runbook", "serve", "--inventory", str(inventory), "--port", str(free_port())),
            stdout=stream, stderr=stream, cwd=Path(__file__).parents[2],
        )
    try:
        yield service
    finally:
        service.kill()
        service.wait()


def _until(service: subprocess.Popen[bytes], seconds: float, log: Path, look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert service.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.01)


def _reading(document: dict[str, Any]) -> bool:
    return document.get("box") == "read_error"


def _over(document: dict[str, Any]) -> bool:
    return document.get("closed_s") is not None or document.get("state") == "interrupted"


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__.strip("_"))
@pytest.mark.timeout(400)
def test_a_daemon_killed_while_it_reads_a_hostile_job_serves_the_others(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "spool").mkdir()
    inventory, log = tmp_path / "here.yaml", tmp_path / "service.log"
    inventory.write_text(
        "version: 1\nid: here\ntitle: here\ncluster: alpha\nscheduler: {kind: local}\nnodes: {kind: none}\n"
        f"policy: {{mode: plan}}\npaths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
        "cage: {memory_mib: 256, cpu_s: 30, wall_s: 60}\n"
    )
    app = application(str(inventory))
    hostile, good = (failed_job(app, tmp_path, name, OOM.strip()) for name in ("hostile", "good"))
    make(Path(app.scheduler.job(hostile).stdout_path), tmp_path / "hostile.sh")
    incidents = tmp_path / "state" / "incidents"

    def document(job: JobId) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((incidents / f"oom-alpha-{job}" / "incident.json").read_text())
            return found
        return {}

    def write(job: JobId) -> None:
        text = f"format=1\njob_id={job}\nuid={os.getuid()}\nrestart_count=0\ncluster=alpha\n"
        (tmp_path / "spool" / f"alpha-{job}-0.event").write_text(text)

    write(hostile)
    with _serving(inventory, log) as service:
        # In the middle of a box of the hostile job's, or, should it be quicker than this looks, after it.
        _until(service, 90, log, lambda: _reading(document(hostile)) or _over(document(hostile)))
        service.send_signal(signal.SIGKILL)
        service.wait()
    write(good)
    with _serving(inventory, log) as service:
        _until(service, 200, log, lambda: _over(document(good)))
        _until(service, 200, log, lambda: _over(document(hostile)))
    assert ("classify", "true_oom") in [(visit["box"], visit["outcome"]) for visit in document(good)["visits"]]
    assert document(hostile)["conclusion"], "a person is told what it came to"
