"""`python -m runbook` without the second and a half of imports: forked from a process that has them behind it.

Every command is still a process of its own, with its own arguments, folder, environment and standard streams. What
concerns the start of the interpreter, signals, limits or a terminal is tested with `python -m runbook` itself.
"""

from __future__ import annotations

import atexit
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
_RELAY = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    request = json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]])
    socket.send_fds(server, [request.encode()], [0, 1, 2])
    status = int(server.recv(16))
sys.exit(status if status >= 0 else 128 - status)
"""


@functools.cache
def runbook() -> tuple[str, ...]:
    """The words to put in front of the arguments, or of a program of the tests and its own; the process behind them is
    started once a test run. A command that is killed ends as a shell tells it: with 128 and the signal's number."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    path = f"{folder.name}/socket"
    server = subprocess.Popen(
        (sys.executable, "-m", "tests.cli.warm_server", path), cwd=_REPOSITORY, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def stop() -> None:
        server.terminate()
        server.wait(10)
        folder.cleanup()

    atexit.register(stop)
    return (sys.executable, "-I", "-S", "-c", _RELAY, path)
