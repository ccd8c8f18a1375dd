"""One file of a user, read by root in a process that has given everything else up: no network, no files, no rights,
bounded memory and time. The process is handed the file opened, and answers one document on its standard output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import cache
from typing import BinaryIO

from pydantic import TypeAdapter

from runbook.cage.walls import Limits, raise_walls, ruleset, shut
from runbook.errors import BadInput, BoxStopped
from runbook.model.snapshots import SnapshotFindings
from runbook.snapshots import findings_of, read_snapshot

LIMITS = Limits(memory_bytes=6 << 30, cpu_s=1200, file_bytes=1 << 20)
_MOST_ANSWER_BYTES = 64 << 20
_REFUSED = 2


def read_apart(stream: BinaryIO, name: str, *, always_replay: bool, limits: Limits = LIMITS) -> SnapshotFindings:
    """What `runbook.snapshots` finds in a file that is open. Raises `BadInput`, and `BoxStopped` where reading it took
    more than it may."""
    command = [
        sys.executable, "-c", "from runbook.cage.apart import main; main()", name, str(limits.memory_bytes),
        str(limits.cpu_s), "replay" if always_replay else "",
    ]
    # Started anew, not forked: this process may have threads, and has read what is none of the file's business.
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "LANG": "C.UTF-8"}
    with subprocess.Popen(
        command, stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd="/"
    ) as child:
        assert child.stdout is not None
        late = threading.Timer(limits.cpu_s * 2, child.kill)
        late.start()
        try:
            answer = child.stdout.read(_MOST_ANSWER_BYTES + 1)
            if len(answer) > _MOST_ANSWER_BYTES:
                child.kill()
        finally:
            late.cancel()
    if child.returncode == _REFUSED:
        what, where, next_step = _adapter_of_refusal().validate_json(answer)
        raise BadInput(what, where=where, next_step=next_step)
    if child.returncode != 0 or len(answer) > _MOST_ANSWER_BYTES:
        raise BoxStopped(
            f"{name} took more memory or time than reading it may ({limits.memory_bytes >> 30} GiB, {limits.cpu_s} s)",
            where=name, next_step="read it as its owner: runbook snapshot sets no such limit then",
        )
    return _adapter().validate_json(answer)


def main() -> None:
    """In the process apart. Standard input is the file."""
    name, memory_bytes, cpu_s, always_replay = sys.argv[1:5]
    walls = raise_walls()
    rules = ruleset(walls, [*sys.path, sys.base_prefix])
    _adapter()
    shut(walls, rules, Limits(int(memory_bytes), int(cpu_s), LIMITS.file_bytes), 0)
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stream:
        try:
            found = findings_of(read_snapshot(stream), name, always_replay=bool(always_replay))
            answer, status = _adapter().dump_json(found), 0
        except BadInput as error:
            refusal = (error.what, error.where, error.next_step)
            answer, status = _adapter_of_refusal().dump_json(refusal), _REFUSED
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(status)


@cache
def _adapter() -> TypeAdapter[SnapshotFindings]:
    return TypeAdapter(SnapshotFindings)


@cache
def _adapter_of_refusal() -> TypeAdapter[tuple[str, str, str]]:
    return TypeAdapter(tuple[str, str, str])
