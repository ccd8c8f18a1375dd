"""SSH to nodes, over fabric and paramiko: one connection, strict host keys, a deadline that holds, capped output.

Never accepts a host key that known_hosts does not have, never asks for a password, never starts a login shell.
`connect` opens the way, `openssh` reads what ssh itself would read.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.model.node import Reach

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to reach the nodes. Empty means what `ssh` itself would take: its files, the present user, port 22."""

    user: str = ""
    port: int | None = None
    key_file: str = ""
    jump_host: str = ""
    """"[user@]host[:port]", several with commas, as for `ssh -J`; each one's host key is checked like any other."""
    known_hosts_file: str = ""
    """Empty: those that ssh_config names, else ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    config_file: str = ""
    """Empty: ~/.ssh/config and /etc/ssh/ssh_config; a file named here stands alone, as for `ssh -F`."""
    use_agent: bool = True
    sudo: bool = False
    """Ask nodes as root through `sudo -n`, where the kernel log and other people's processes need it."""
    probe: bool = True
    """Send the node probe along, rather than ask nvidia-smi only."""
    connect_timeout_s: float = 5.0
    """For each of: the connection, the greeting, the key exchange, the authentication. Of all of them together, on a
    way without jump hosts, an attempt takes no more than twice this, and no attempt begins after one and a half."""
    command_timeout_s: float = 15.0
    output_limit_bytes: int = 4 << 20


class SshFailure(Exception):
    """No connection. `reach` is the class of the failure; `may_pass` says that trying again can help."""

    def __init__(self, reach: Reach, detail: str, *, may_pass: bool = False) -> None:
        super().__init__(detail)
        self.reach = reach
        self.detail = detail
        self.may_pass = may_pass


def failure_of(error: Exception, elapsed_s: float, limit_s: float) -> SshFailure:
    """The class of a failure of paramiko, of a socket or of a key file."""
    from paramiko import ssh_exception as ssh

    if isinstance(error, SshFailure):
        return error
    words = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ssh.AuthenticationException | ssh.PasswordRequiredException) and "timeout" not in words:
        return SshFailure(Reach.AUTHENTICATION, f"the node did not accept our user or key: {words}")
    if isinstance(error, ssh.NoValidConnectionsError):
        refused = any(isinstance(each, ConnectionRefusedError) for each in error.errors.values())
        return SshFailure(Reach.REFUSED, "connection refused") if refused else SshFailure(Reach.ERROR, words)
    if isinstance(error, ConnectionRefusedError):
        return SshFailure(Reach.REFUSED, "connection refused")
    if isinstance(error, socket.gaierror):
        return SshFailure(Reach.ERROR, f"the name cannot be resolved: {error.strerror}")
    if isinstance(error, FileNotFoundError | PermissionError):
        return SshFailure(Reach.AUTHENTICATION, f"a key file cannot be read: {words}")
    if isinstance(error, TimeoutError | ssh.AuthenticationException) or elapsed_s >= limit_s * 0.9:
        return SshFailure(Reach.TIMEOUT, f"no answer within {limit_s:g} s", may_pass=True)
    if isinstance(error, ssh.ChannelException):
        return SshFailure(Reach.ERROR, f"the jump host could not reach the node: {words}")
    if isinstance(error, ssh.SSHException | EOFError | ConnectionError):
        return SshFailure(Reach.ERROR, f"the connection broke: {words}", may_pass=True)
    return SshFailure(Reach.ERROR, words)


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
