"""SSH to nodes, over fabric and paramiko: one connection, strict host keys, a deadline that holds, capped output.

Never accepts a host key that known_hosts does not have, never asks for a password, never starts a login shell.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.model.node import Reach
from runbook.model.units import NodeName

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel, SSHClient

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9_])?\Z")
_RETRY_PAUSE_S = 0.2
_POLL_S = 0.02
_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to reach the nodes. Empty means what `ssh` itself would take: its files, the present user, port 22."""

    user: str = ""
    port: int | None = None
    key_file: str = ""
    jump_host: str = ""
    """"[user@]host[:port]", as for `ssh -J`; its host key is checked like any other."""
    known_hosts_file: str = ""
    """Empty: those that ssh_config names, else ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    config_file: str = ""
    """Empty: ~/.ssh/config where there is one."""
    use_agent: bool = True
    sudo: bool = False
    """Ask nodes as root through `sudo -n`, where the kernel log and other people's processes need it."""
    probe: bool = True
    """Send the node probe along, rather than ask nvidia-smi only."""
    connect_timeout_s: float = 5.0
    """For each of: the connection, the greeting, the key exchange, the authentication."""
    command_timeout_s: float = 15.0
    output_limit_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class SshAnswer:
    """What a command wrote. `cut_why` is set when the end is missing: the deadline, or more output than is kept."""

    text: str
    exit_code: int | None
    duration_s: float
    cut_why: str = ""


class SshFailure(Exception):
    """No connection. `reach` is the class of the failure; `may_pass` says that trying again can help."""

    def __init__(self, reach: Reach, detail: str, *, may_pass: bool = False) -> None:
        super().__init__(detail)
        self.reach = reach
        self.detail = detail
        self.may_pass = may_pass


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

    A connection that was reset or timed out is tried once more; refusals, keys and names are not. Raises
    `SshFailure`."""
    connection = open_connection(node, settings)
    try:
        yield SshSession(connection, settings)
    finally:
        close_all(connection)


def open_connection(node: NodeName, settings: SshSettings) -> Connection:
    """Connect with one retry for what can pass. Raises `SshFailure`."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

    attempts = Retrying(
        stop=stop_after_attempt(2),
        wait=wait_fixed(_RETRY_PAUSE_S),
        retry=retry_if_exception(lambda error: isinstance(error, SshFailure) and error.may_pass),
        reraise=True,
    )
    return attempts(_connect, node, settings)


def close_all(connection: Connection) -> None:
    """Close a connection and its jump hosts, half-open ones too (fabric's own close leaves those)."""
    for hop in _chain(connection):
        with contextlib.suppress(Exception):
            hop.client.close()


def failure_of(error: Exception, elapsed_s: float, limit_s: float) -> SshFailure:
    """The class of a failure of paramiko, of a socket or of a key file."""
    from paramiko import ssh_exception as ssh

    if isinstance(error, SshFailure):
        return error
    words = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ssh.BadHostKeyException):
        return SshFailure(Reach.HOST_KEY, "the node's host key is not the one in known_hosts; it was not accepted")
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
    if isinstance(error, ssh.SSHException) and "No authentication methods" in words:
        return SshFailure(Reach.AUTHENTICATION, "there is no key to offer: name one in the inventory or in ssh_config")
    if isinstance(error, ssh.SSHException | EOFError | ConnectionError):
        return SshFailure(Reach.ERROR, f"the connection broke: {words}", may_pass=True)
    return SshFailure(Reach.ERROR, words)


def _connect(node: NodeName, settings: SshSettings) -> Connection:
    if not _HOST.match(node):
        raise SshFailure(Reach.ERROR, "not a host name; it was not contacted")
    connection = _prepared(node, settings)
    started = time.monotonic()
    try:
        connection.open()
    except Exception as error:
        close_all(connection)
        elapsed_s = time.monotonic() - started
        raise failure_of(error, elapsed_s, settings.connect_timeout_s) from error
    return connection


def _prepared(node: NodeName, settings: SshSettings) -> Connection:
    """A connection that is not open yet, with our own rules on host keys for it and for every jump host."""
    from fabric import Config, Connection
    from paramiko import SSHConfig

    # Without a handler of its own, Python prints the library's tracebacks to the terminal.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    ssh_config = SSHConfig()
    path = Path(settings.config_file or "~/.ssh/config").expanduser()
    try:
        if settings.config_file or path.is_file():
            ssh_config = SSHConfig.from_path(str(path))
    except Exception as error:
        raise SshFailure(Reach.ERROR, f"the ssh configuration {path} cannot be read: {error}") from error
    timeout_s = settings.connect_timeout_s
    options: dict[str, Any] = {
        "timeout": timeout_s,
        "banner_timeout": timeout_s,
        "auth_timeout": timeout_s,
        "channel_timeout": timeout_s,
        "allow_agent": settings.use_agent,
        "look_for_keys": not settings.key_file,
    }
    if settings.key_file:
        options["key_filename"] = [str(Path(settings.key_file).expanduser())]
    # `lazy`: fabric would otherwise read its own configuration files, which may be Python programs.
    config = Config(lazy=True, ssh_config=ssh_config, overrides={"connect_kwargs": options})
    gateway = Connection(settings.jump_host, config=config.clone()) if settings.jump_host else None
    connection = Connection(
        node, user=settings.user or None, port=settings.port, gateway=gateway, config=config
    )
    # fabric takes ConnectTimeout from ssh_config beside our own, and refuses to have both.
    for hop in _chain(connection):
        hop.connect_timeout = None
        _be_strict(hop.client, _known_hosts(settings, ssh_config, hop.original_host))
    return connection


def _be_strict(client: SSHClient, files: tuple[Path, ...]) -> None:
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):
        """fabric's own rule is to accept every new key."""

        def missing_host_key(self, client: object, hostname: str, key: object) -> None:
            raise SshFailure(Reach.HOST_KEY, f"known_hosts has no key for {hostname}; the node's was not accepted")

    client.set_missing_host_key_policy(Refuse())
    for path in files:
        try:
            client.load_system_host_keys(str(path))
        except OSError as error:
            raise SshFailure(Reach.HOST_KEY, f"{path} cannot be read: {error.strerror}") from error


def _known_hosts(settings: SshSettings, ssh_config: Any, host: str) -> tuple[Path, ...]:
    """A file named in the settings must be there; those of ssh's own defaults may be missing."""
    if settings.known_hosts_file:
        return (Path(settings.known_hosts_file).expanduser(),)
    found = ssh_config.lookup(host)
    named = " ".join(
        found.get(key, default)
        for key, default in (
            ("userknownhostsfile", "~/.ssh/known_hosts"), ("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
        )
    )
    paths = (Path(word).expanduser() for word in named.split())
    return tuple(path for path in paths if path.is_file())


def _chain(connection: Connection) -> list[Connection]:
    """The connection and its jump hosts, the nearest to the node first."""
    from fabric import Connection as Kind

    hops: list[Connection] = []
    current: object = connection
    while isinstance(current, Kind):
        hops.append(current)
        current = current.gateway
    return hops
