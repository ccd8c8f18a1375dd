"""The warm process from which boxes are started: it has read the playbook and nothing else, and forks.

Started as a program of its own, so that no process with threads is ever forked. It reads two kinds of messages, both
from the service: at its start what to load, then one a box, with the box's line and a watch. For each it forks a
process that stands between: that one starts the box, says how it ended, and ends it when the watch is hung up, be it by
the service or by the service's end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runbook.cage import inside
from runbook.cage.walls import Limits, Walls, die_with_parent, enter_namespaces, raise_walls, ruleset, shut
from runbook.steps.shared.base import load_playbook

_ROOMS = (
    "runbook.steps", "runbook.logs", "runbook.diagnosis", "runbook.remedy", "runbook.template", "runbook.checkpoints",
    "runbook.node", "runbook.slurm", "runbook.kinds", "runbook.report.vocabulary", "encodings",
)
"""Loaded once for all boxes: what they import only when they need it they could not read any more."""
_UNNEEDED = frozenset({"encodings.mbcs", "encodings.oem", "encodings.cp65001"})
_MESSAGE_BYTES = 1 << 16
_STACK_BYTES = 1 << 20
_GIVES_WAY = 12
"""A box that has used this part of its CPU time (ten seconds of 120) is one of few: others have their turn first."""
_LAST = 19
_LOOK_S = 1.0


def main() -> int:
    """Standard input is the socket to the service. Ends when the service hangs up."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    asked = json.loads(control.recv(_MESSAGE_BYTES))
    _load(asked["modules"])
    box = inside.Box(load_playbook(Path(asked["playbook"])), asked["limit_bytes"])
    box.warm()
    threading.stack_size(_STACK_BYTES)
    time.tzset()
    walls = raise_walls()
    rules = ruleset(walls, [asked["playbook"], *sys.path, sys.base_prefix])
    gc.collect()
    _give_back()
    gc.freeze()
    # Those that stand between are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control.send(json.dumps({"there": walls.there, "missing": walls.missing}).encode())
    except OSError:
        return 0  # the service was stopped meanwhile
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
        if not message:
            return 0
        try:
            between = os.fork()
        except OSError as error:
            _say_not_started(descriptors[1], error)
            between = -1
        if between == 0:
            control.close()
            _between(box, walls, rules, json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _load(modules: list[str]) -> None:
    for room in _ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            if found.name not in _UNNEEDED and not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    for module in modules:
        importlib.import_module(module)


def _give_back() -> None:
    """To the system, what was needed to become ready and is free again (40 MiB): each start of a box copies the table
    of all pages that are there."""
    with contextlib.suppress(AttributeError, OSError):  # a C library that has no such call
        ctypes.CDLL(None).malloc_trim(0)


def _between(box: inside.Box, walls: Walls, rules: Any, asked: dict[str, Any], descriptors: list[int]) -> None:
    """Never returns."""
    try:
        die_with_parent()
        line, watch = descriptors
        wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            enter_namespaces(walls)
            child = os.fork()
        except OSError as error:
            _say_not_started(watch, error)
            return
        if child == 0:
            _be_the_box(box, walls, rules, asked, line)
        os.close(line)
        _watch(child, watch, wakes, asked["cpu_s"] / _GIVES_WAY)
    finally:
        os._exit(0)


def _say_not_started(watch: int, error: OSError) -> None:
    with contextlib.suppress(OSError):
        os.write(watch, json.dumps({"not_started": error.strerror}).encode())


def _watch(child: int, watch: int, wakes: int, gives_way_s: float) -> None:
    killed = gave_way = False
    while True:
        ready, _, _ = select.select([wakes] if killed else [wakes, watch], [], [], None if gave_way else _LOOK_S)
        with contextlib.suppress(BlockingIOError):
            os.read(wakes, 512)
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            told = {"status": status, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss << 10}
            with contextlib.suppress(OSError):
                os.write(watch, json.dumps(told).encode())
            return
        if watch in ready:
            os.kill(child, signal.SIGKILL)
            killed = True
        if not gave_way and _computed_s(child) >= gives_way_s:
            _give_way(child)
            gave_way = True


def _computed_s(child: int) -> float:
    try:
        fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _give_way(child: int) -> None:
    """What takes long takes what others leave over. A priority is a thread's own, and new ones have their maker's."""
    with contextlib.suppress(OSError):
        for thread in list(Path(f"/proc/{child}/task").iterdir()):
            with contextlib.suppress(OSError):  # one that has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _LAST)


def _be_the_box(box: inside.Box, walls: Walls, rules: Any, asked: dict[str, Any], line: int) -> None:
    """Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        limits = Limits(asked["memory_bytes"], asked["cpu_s"], asked["file_bytes"])
        shut(walls, rules, limits, asked["slot"])
        os.dup2(line, 3)
        os.dup2(0, 1)
        os.dup2(0, 2)
        os.closerange(4, 1 << 16)
        box.serve(socket.socket(fileno=3))
    finally:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
