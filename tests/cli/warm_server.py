"""Starts `python -m runbook`, or a program whose path ends in .py, for tests in forks of one process that has imported
it all; see `warm`.

Runs as a program: `warm_server.py SOCKET`. Every connection brings a working directory, an environment, arguments and
the three standard streams, and is told the exit status. It prints a line when it listens.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading

import runbook

FIRST_USED_LATE = ("dbos", "fabric", "rich.progress", "rich.table")
"""Libraries that a command imports only where it needs them."""


def take(connection: socket.socket) -> None:
    """Becomes the command, in a process of its own; this one waits for it and tells its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    folder, environment, arguments = json.loads(words)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdin = os.fdopen(0, encoding=encoding, errors=errors)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=errors)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding=encoding, errors="backslashreplace")
    if arguments and arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.argv = ["runbook", *arguments]
        runpy.run_module("runbook", run_name="__main__", alter_sys=True)


def serve(path: str) -> None:
    for module in pkgutil.walk_packages(runbook.__path__, "runbook."):
        if module.name != "runbook.__main__" and not module.name.startswith("runbook.probe."):
            importlib.import_module(module.name)
    for name in FIRST_USED_LATE:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads must not be forked"
    gc.freeze()  # a command neither copies nor takes down what it was given
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                take(connection)
                return
            connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
