"""SSH to nodes, over fabric and paramiko: one connection, strict host keys, a deadline that holds, capped output.

Never accepts a host key that known_hosts does not have, never asks for a password, never starts a login shell.
`ssh_connect` opens the way, `ssh_config` and `known_hosts` read what ssh itself would read.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.adapters.ssh_failure import SshFailure, failure_of
from runbook.adapters.ssh_settings import SshSettings
from runbook.model.units import NodeName

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel

_ATTEMPTS = 4
_POLL_S = 0.02
_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class SshAnswer:
    """What a command wrote. `cut_why` is set when the end is missing: the deadline, or more output than is kept."""

    text: str
    exit_code: int | None
    duration_s: float
    cut_why: str = ""


class SshSession:
    """An open connection to one node. Commands run one after the other over it."""

    def __init__(self, connection: Connection, settings: SshSettings) -> None:
        self._connection = connection
        self._settings = settings

    def run(self, command: str, script: str = "", timeout_s: float | None = None) -> SshAnswer:
        """Run a command with `script` on its standard input; standard output and error come back together.

        Returns at the deadline with what there is, whatever the node does. Raises `SshFailure` when the connection
        breaks before anything was read."""
        limit_s = timeout_s if timeout_s is not None else self._settings.command_timeout_s
        started = time.monotonic()
        # paramiko waits without a limit for the server's word on a command; closing the connection ends that wait.
        watchdog = threading.Timer(limit_s + _GRACE_S, self._connection.client.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._run(command, script, started, limit_s)
        finally:
            watchdog.cancel()

    def _run(self, command: str, script: str, started: float, limit_s: float) -> SshAnswer:
        try:
            channel = self._connection.transport.open_session(timeout=min(limit_s, 10.0))
        except Exception as error:
            raise failure_of(error, time.monotonic() - started, limit_s) from error
        try:
            channel.set_combine_stderr(True)
            channel.settimeout(max(_POLL_S, limit_s))
            channel.exec_command(command)
            channel.sendall(script.encode("utf-8", "surrogateescape"))
            channel.shutdown_write()
            data, cut_why = self._read(channel, started + limit_s, limit_s)
            exit_code = channel.recv_exit_status() if channel.exit_status_ready() else None
        except Exception as error:
            raise failure_of(error, time.monotonic() - started, limit_s) from error
        finally:
            channel.close()
        text = bytes(data).decode("utf-8", "replace")
        return SshAnswer(text, exit_code, time.monotonic() - started, cut_why)

    def _read(self, channel: Channel, deadline: float, limit_s: float) -> tuple[bytearray, str]:
        data = bytearray()
        limit_bytes = self._settings.output_limit_bytes
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return data, f"no end of the answer within {limit_s:g} s"
            channel.settimeout(remaining)
            try:
                block = channel.recv(1 << 16)
            except TimeoutError:
                continue
            if not block:
                break
            data += block
            if len(data) > limit_bytes:
                return data[:limit_bytes], f"more than {limit_bytes >> 10} KiB of output; the rest was not read"
        while not channel.exit_status_ready() and time.monotonic() < deadline and not channel.closed:
            time.sleep(_POLL_S)
        return data, ""


@contextlib.contextmanager
def connected(node: NodeName, settings: SshSettings) -> Iterator[SshSession]:
    """A session on a node, closed whatever happens, with every jump host on the way.

    What can pass (a connection that was reset, a greeting that did not come) is tried again; refusals, keys and names
    are not. Raises `SshFailure`."""
    from runbook.adapters.ssh_connect import close_all

    connection = open_connection(node, settings)
    try:
        yield SshSession(connection, settings)
    finally:
        close_all(connection)


def open_connection(node: NodeName, settings: SshSettings) -> Connection:
    """Connect, with up to three more attempts for what can pass, spread by chance so that many nodes behind one busy
    jump host do not come back together. Raises `SshFailure`."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

    from runbook.adapters.ssh_connect import connect

    attempts = Retrying(
        stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(1.5 * settings.connect_timeout_s),
        wait=wait_random_exponential(multiplier=0.1, max=1.0),
        retry=retry_if_exception(lambda error: isinstance(error, SshFailure) and error.may_pass),
        reraise=True,
    )
    return attempts(connect, node, settings)
