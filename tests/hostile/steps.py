"""Boxes that do in the cage what a job's files might make them do."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runbook.model.incident import Act, Failure
from runbook.model.job import Claim, Submission
from runbook.model.units import JobId, NodeName, UserName
from runbook.steps import identify
from runbook.steps.shared.base import StepContext, StepResult, with_act, with_notes


def run(context: StepContext) -> StepResult:
    """The box that the job's name asks for; for any other job the real first one."""
    name = context.ports.scheduler.job(context.incident.root_job).name.partition(".")[0]
    found: Callable[[StepContext], StepResult] = globals().get(name, identify.run)
    return found(context)


def eats_memory(context: StepContext) -> StepResult:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def spins(context: StepContext) -> StepResult:
    while True:
        pass


def gives_way(context: StepContext) -> StepResult:
    """Computes until it has the machine's last priority: without that it is ended."""
    while os.getpriority(os.PRIO_PROCESS, 0) < 19:
        pass
    return identify.run(context)


def hangs(context: StepContext) -> StepResult:
    """As reading from a file system that does not answer: no CPU is used."""
    while True:
        time.sleep(1)


def recurses(context: StepContext) -> StepResult:
    return recurses(context)


def crashes(context: StepContext) -> StepResult:
    """As a parser in C may, whose stack overflows."""
    ctypes.string_at(0)
    return hangs(context)


def writes_a_huge_file(context: StepContext) -> StepResult:
    with os.fdopen(os.memfd_create("huge"), "wb") as stream:
        while True:
            stream.write(bytes(8 << 20))


def exits(context: StepContext) -> StepResult:
    os._exit(3)


def raises(context: StepContext) -> StepResult:
    raise ZeroDivisionError("in the box")


def _line() -> socket.socket:
    return socket.socket(fileno=os.dup(3))


def sends_garbage(context: StepContext) -> StepResult:
    _line().sendall(b"\x00\x00\x00\x04\x00\x80\x04N.")
    return hangs(context)


def sends_half_a_frame(context: StepContext) -> StepResult:
    _line().sendall(b"\x00\x00\x01\x00\x00{")
    return hangs(context)


def asks_without_waiting(context: StepContext) -> StepResult:
    line = _line()
    for number in range(100_000, 104_000):
        question = {"port": "clock", "method": "sleep", "id": number, "arguments": {"seconds": 1.0}}
        body = json.dumps(question).encode()
        line.sendall(len(body).to_bytes(4, "big") + b"\x00" + body)
    return hangs(context)


def promises_too_much(context: StepContext) -> StepResult:
    _line().sendall(b"\xff\xff\xff\xff\x00")
    return hangs(context)


def sends_deep_json(context: StepContext) -> StepResult:
    body = b"[" * 1_000_000
    _line().sendall(len(body).to_bytes(4, "big") + b"\x00" + body)
    return hangs(context)


def answers_with_another_incident(context: StepContext) -> StepResult:
    return StepResult("identified", replace(context.incident, root_job=JobId("4711")))


def answers_with_another_owner(context: StepContext) -> StepResult:
    job = replace(context.ports.scheduler.job(context.incident.root_job), owner=UserName("daemon"))
    failure = Failure(job)
    return StepResult("identified", replace(context.incident, failure=failure, original=failure))


def answers_with_no_outcome_of_its_own(context: StepContext) -> StepResult:
    return StepResult("recovered", context.incident)


def claims_an_act(context: StepContext) -> StepResult:
    return StepResult("identified", with_act(context.incident, Act("drain", "gpu-1", 1.0)))


def cancels(context: StepContext) -> StepResult:
    context.ports.scheduler.cancel(context.ports.scheduler.job(context.incident.root_job))
    return StepResult("identified", context.incident)


def drains(context: StepContext) -> StepResult:
    context.ports.scheduler.drain(NodeName("gpu-1"), "runbook: because")
    return StepResult("identified", context.incident)


def submits(context: StepContext) -> StepResult:
    job = context.ports.scheduler.job(context.incident.root_job)
    claim = Claim(UserName("daemon"), 1, job.cluster, "runbook:oom-alpha-1:1:0", 1.0)
    context.ports.scheduler.submit(Submission(claim, "/", "/tmp/x.sh"), job)
    return StepResult("identified", context.incident)


def reads_as_another(context: StepContext) -> StepResult:
    context.ports.scheduler.job(context.incident.root_job)
    with context.ports.files.open("/etc/passwd", UserName("daemon")) as stream:
        return StepResult("identified", with_notes(context.incident, stream.read().decode()))


def writes_a_program_of_root(context: StepContext) -> StepResult:
    context.ports.folder.write_file(context.incident.id, "attempts/1/x", b"#!/bin/sh\n", 0o4755)
    return StepResult("identified", context.incident)


def writes_the_report(context: StepContext) -> StepResult:
    context.ports.folder.write_file(context.incident.id, "report.html", b"<script>")
    return StepResult("identified", context.incident)


def looks_around(context: StepContext) -> StepResult:
    """What is in reach, in notes."""
    found = [f"uid {os.getuid()}", f"dumpable {_dumpable()}"]
    found += [f"{what}: {_tried(attempt)}" for what, attempt in _ATTEMPTS.items()]
    return StepResult("identified", with_notes(context.incident, *found))


def _tried(attempt: Any) -> str:
    try:
        return f"done {attempt()}"
    except OSError as error:
        return f"refused {error.strerror}"


def _dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


def _udp() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        return channel.sendto(b"x", ("127.0.0.1", 30999))


_ATTEMPTS: dict[str, Any] = {
    "shadow": lambda: Path("/etc/shadow").read_bytes()[:1],
    "passwd": lambda: Path("/etc/passwd").read_bytes()[:1],
    "write": lambda: Path("/tmp/of-the-cage").write_text("x"),
    "list": lambda: os.listdir("/root"),
    "tcp": lambda: socket.create_connection(("127.0.0.1", 22), timeout=2).close(),
    "udp": _udp,
    "root": lambda: os.setuid(0),
    "run": lambda: os.posix_spawn("/usr/bin/id", ["id"], {}),
}


def waits_for_the_outside(context: StepContext) -> StepResult:
    context.ports.clock.sleep(10.0)
    return StepResult("identified", context.incident)


def reads_its_log(context: StepContext) -> StepResult:
    """The job's log as its owner, by whatever bytes its name has."""
    job = context.ports.scheduler.job(context.incident.root_job)
    with context.ports.files.open(job.stdout_path, job.owner) as stream:
        return StepResult("identified", with_notes(context.incident, f"read {len(stream.read())} bytes"))


def reads_beside(context: StepContext) -> StepResult:
    """The file whose path stands beside the job's script, as the job's owner."""
    job = context.ports.scheduler.job(context.incident.root_job)
    path = context.ports.files.read_small(f"{job.command}.path", job.owner).decode()
    return StepResult("identified", with_notes(context.incident, str(context.ports.files.read_small(path, job.owner))))
