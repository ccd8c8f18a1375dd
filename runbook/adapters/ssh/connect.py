"""Opening the way to a node: jump hosts or a proxy command, host keys that are known, keys to log in with."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import logging
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fabric import Config, Connection
from paramiko import Agent, AuthenticationException, MissingHostKeyPolicy, PKey, SSHConfig, Transport
from paramiko.auth_strategy import AuthFailure, AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import PublicBlob
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from runbook.adapters.process import Streams, ended_with_us, start, stop
from runbook.adapters.ssh import SshFailure, SshSession, SshSettings, failure_of
from runbook.adapters.ssh.openssh import (
    HostConfig,
    KnownHost,
    KnownKey,
    UnreadableConfig,
    host_config,
    known_host,
    revoked_keys,
)
from runbook.model.node import Reach
from runbook.model.units import NodeName

# Logging in with keys as ssh does: the files in their order, then the agent's. A key file is read once a process.
#
# An RSA key of 4096 bits takes tens of milliseconds to read and check, which for hundreds of nodes is most of the time.

class Keys(AuthStrategy):
    """The keys for one host. `notes` says of each file why it was not offered."""

    def __init__(self, host: HostConfig, first: Path | None, use_agent: bool) -> None:
        """`first` is the inventory's key. Raises `OSError` when it cannot be read: it was named, so it is wanted."""
        super().__init__(ssh_config=SSHConfig())
        self._user = host.user
        self._files = tuple(dict.fromkeys((*((first,) if first else ()), *host.keys)))
        self._certificates = host.certificates
        self._only_files = host.only_these_keys
        self._agent = use_agent
        self.notes: list[str] = []
        self.limit_s = 0.0
        self.not_done: tuple[str, ...] = ()
        if first is not None:
            first.stat()

    def get_sources(self) -> Iterator[AuthSource]:
        for path in self._files:
            key = self._key(path)
            if key is not None:
                yield InMemoryPrivateKey(self._user, key)
        if self._agent:
            yield from self._of_agent()

    def _of_agent(self) -> Iterator[AuthSource]:
        agent = Agent()
        try:
            # IdentitiesOnly: of the agent's keys only those whose public half lies beside a named file.
            wanted = {_public_half(path) for path in self._files} if self._only_files else None
            for key in agent.get_keys():
                if wanted is None or key.asbytes() in wanted:
                    yield InMemoryPrivateKey(self._user, key)
        finally:
            agent.close()

    def _key(self, path: Path) -> PKey | None:
        try:
            found = path.stat()
            certificates = tuple((one, one.stat().st_mtime_ns) for one in self._certificates)
            beside = path.with_name(path.name + "-cert.pub")
            changed_ns = beside.stat().st_mtime_ns if beside.is_file() else 0
            return _read(path, found.st_mtime_ns, found.st_size, changed_ns, certificates)
        except Exception as error:
            words = " ".join(str(error).split())[:100] or type(error).__name__
            self.notes.append(f"{path} cannot be used ({words})")
            return None


@functools.lru_cache(maxsize=32)
def _read(
    path: Path, _changed_ns: int, _size: int, _beside_ns: int, certificates: Sequence[tuple[Path, int]]
) -> PKey:
    """The key with its certificate: the file beside it, else the one of CertificateFile that is made for it."""
    key = PKey.from_path(path)
    if key.public_blob is None:
        for one, _ in certificates:
            blob = PublicBlob.from_file(str(one))
            if blob.key_type.startswith(key.get_name()) and _inside(key, blob.key_blob):
                key.load_certificate(str(one))
                break
    return key


def _inside(key: PKey, certificate: bytes) -> bool:
    """A certificate holds the public key's own fields, without the name of its kind."""
    return key.asbytes()[4 + len(key.get_name()):] in certificate


def _public_half(path: Path) -> bytes:
    for beside in (path.with_name(path.name + ".pub"), path):
        try:
            words = beside.read_text("ascii").split()
            return base64.b64decode(words[1], validate=True)
        except (OSError, UnicodeDecodeError, IndexError, binascii.Error, ValueError):
            continue
    return b""


def last_error(strategy_result: Any) -> Exception | None:
    """The error of the last key that was offered; None: there was no key to offer."""
    return next((one.result for one in reversed(strategy_result) if isinstance(one.result, Exception)), None)


_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9_])?\Z")
_HOP = re.compile(r"(?:(?P<user>[^@\s:]+)@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?\Z")
_MOST_HOPS = 8
_ATTEMPTS = 4
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")

# Without a handler of its own, Python prints the library's tracebacks to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@contextlib.contextmanager
def connected(node: NodeName, settings: SshSettings) -> Iterator[SshSession]:
    """A session on a node, closed whatever happens, with every jump host on the way.

    What can pass (a connection that was reset, a greeting that did not come) is tried again; refusals, keys and names
    are not. Raises `SshFailure`."""
    connection = open_connection(node, settings)
    try:
        yield SshSession(connection, settings)
    finally:
        close_all(connection)


def open_connection(node: NodeName, settings: SshSettings) -> Connection:
    """Connect, with up to three more attempts for what can pass, spread by chance so that many nodes behind one busy
    jump host do not come back together. Raises `SshFailure`."""
    attempts = Retrying(
        stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(1.5 * settings.connect_timeout_s),
        wait=wait_random_exponential(multiplier=0.1, max=1.0),
        retry=retry_if_exception(lambda error: isinstance(error, SshFailure) and error.may_pass),
        reraise=True,
    )
    return attempts(connect, node, settings)


def connect(node: NodeName, settings: SshSettings) -> Connection:
    """One attempt. Raises `SshFailure`."""
    if not _HOST.match(node):
        raise SshFailure(Reach.ERROR, "not a host name; it was not contacted")
    try:
        connection, proxy_command = _way_to(node, settings)
    except UnreadableConfig as error:
        raise SshFailure(Reach.ERROR, str(error)) from error
    hops = len(chain(connection))
    # Each stage has its own limit; this one holds for all of them and for every hop.
    watchdog = threading.Timer(2 * hops * settings.connect_timeout_s, close_all, (connection,))
    watchdog.daemon = True
    watchdog.start()
    try:
        _open(connection, proxy_command, settings.connect_timeout_s)
    except BaseException:
        close_all(connection)
        raise
    finally:
        watchdog.cancel()
    return connection


def chain(connection: Connection) -> list[Connection]:
    """The connection and its jump hosts, the nearest to the node first."""
    hops: list[Connection] = []
    current: object = connection
    while isinstance(current, Connection):
        hops.append(current)
        current = current.gateway
    return hops


def close_all(connection: Connection) -> None:
    """Close a connection and its jump hosts, half-open ones too (fabric's own close leaves those)."""
    for hop in chain(connection):
        with contextlib.suppress(Exception):
            hop.client.close()
        with contextlib.suppress(Exception):
            end_proxy(hop)


def _open(connection: Connection, proxy_command: str, limit_s: float) -> None:
    """Open the hops from here to the node. Raises `SshFailure`, which says at which hop it was."""
    hops = chain(connection)
    if proxy_command:
        _start_proxy(hops[-1], proxy_command)
    for hop in reversed(hops):
        started = time.monotonic()
        try:
            _log_in(hop)
        except Exception as error:
            failure = failure_of(error, time.monotonic() - started, limit_s)
            raise (failure if hop is connection else _at(hop, failure)) from error


def _log_in(hop: Connection) -> None:
    try:
        result = hop.open()
    except AuthFailure as error:
        raise _refused(hop, error) from error
    if result and result[-1].result:
        wanted = ", ".join(result[-1].result)
        raise SshFailure(Reach.AUTHENTICATION, f"the key alone is not enough: the server asks for {wanted} too")


def _at(hop: Connection, failure: SshFailure) -> SshFailure:
    return SshFailure(failure.reach, f"at the jump host {hop.host}: {failure.detail}", may_pass=failure.may_pass)


def _refused(hop: Connection, error: AuthFailure) -> SshFailure:
    """What to say when no key was accepted: a broken connection is told apart from a refusal."""
    strategy: Keys = hop.connect_kwargs["auth_strategy"]
    last = last_error(error.result)
    told = [f"the node did not accept our user ({hop.user}) or key: {last}", *strategy.notes]
    if last is None:
        told = ["there is no key to offer: name one in the inventory or in ssh_config", *strategy.notes]
    elif not isinstance(last, AuthenticationException) or "timeout" in str(last):
        return failure_of(last, 0.0, strategy.limit_s)
    if strategy.not_done:
        told.append(f"ssh_config also has {' and '.join(strategy.not_done)}, which this tool does not do")
    return SshFailure(Reach.AUTHENTICATION, "; ".join(told))


def _way_to(node: str, settings: SshSettings) -> tuple[Connection, str]:
    """The connection to a node with all its hops, none of them open, and the ProxyCommand that the first of them
    needs. Raises `UnreadableConfig`, `SshFailure`."""
    asked = host_config(node, settings.config_file, settings.user, settings.port)
    if settings.jump_host:
        gateway, command = _gateway(tuple(settings.jump_host.split(",")), settings, ())
    elif asked.jumps:
        gateway, command = _gateway(asked.jumps, settings, ((asked.host_name, asked.port),))
    else:
        gateway, command = None, asked.proxy_command
    return _prepared(node, asked, settings, gateway), command


def _gateway(
    jumps: tuple[str, ...], settings: SshSettings, passed: tuple[tuple[str, int], ...]
) -> tuple[Connection | None, str]:
    """The last of some jump hosts, with those before it behind it, and the first one's ProxyCommand. Only the first
    one's own ProxyJump counts, as for ssh; a rule that leads a host to itself ends there."""
    gateway: Connection | None = None
    command = ""
    for number, text in enumerate(jumps):
        match = _HOP.match(text.strip())
        if match is None:
            raise SshFailure(Reach.ERROR, f"the jump host {text!r} is not [user@]host[:port]")
        name = match["host"].strip("[]")
        asked = host_config(
            name, settings.config_file, match["user"] or "", int(match["port"]) if match["port"] else None
        )
        here = (asked.host_name, asked.port)
        if here in passed:
            return gateway, command
        if len(passed) > _MOST_HOPS:
            raise SshFailure(Reach.ERROR, f"more than {_MOST_HOPS} jump hosts, one behind the other")
        passed = (*passed, here)
        if number == 0:
            command = asked.proxy_command
            if asked.jumps:
                gateway, command = _gateway(asked.jumps, settings, passed)
        gateway = _prepared(name, asked, settings, gateway)
    return gateway, command


def _prepared(
    name: str, host: HostConfig, settings: SshSettings, gateway: Connection | None
) -> Connection:
    files = (Path(settings.known_hosts_file).expanduser(),) if settings.known_hosts_file else host.known_hosts
    try:
        known = known_host(files, host.host_name, host.port, host.alias)
        if host.revoked is not None:
            known = replace(known, revoked=known.revoked | revoked_keys(host.revoked))
    except OSError as error:
        raise SshFailure(Reach.HOST_KEY, f"{error.filename} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SshFailure(Reach.HOST_KEY, f"RevokedHostKeys: {error}") from error
    timeout_s = settings.connect_timeout_s
    try:
        first = Path(settings.key_file).expanduser() if settings.key_file else None
        keys = Keys(host, first, settings.use_agent)
    except OSError as error:
        raise SshFailure(Reach.AUTHENTICATION, f"a key file cannot be read: {error}") from error
    keys.limit_s, keys.not_done = timeout_s, host.not_done
    connection = Connection(
        host.host_name, user=host.user, port=host.port, gateway=gateway if gateway is not None else False,
        config=_fabric_config(), forward_agent=False,
        connect_kwargs={
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "auth_strategy": keys,
            "transport_factory": functools.partial(_transport, known),
        },
    )
    connection.connect_timeout = None
    connection.client.set_missing_host_key_policy(_OnlyKnown(known))
    return connection


def _fabric_config() -> Config:
    """One a connection: fabric writes to it while it is used, so that threads may not share it. `lazy`: fabric would
    otherwise read its own configuration files, which may be Python programs. The ssh configuration is read by
    `ssh_config`, and what it says is handed over whole."""
    return Config(lazy=True, ssh_config=SSHConfig())


def _start_proxy(connection: Connection, command: str) -> None:
    """Start the ProxyCommand by the shell, as ssh does, and hand its end over as the socket. (paramiko's own class
    starts no shell and spins when the command ends.)"""
    ours, theirs = socket.socketpair()
    with theirs:
        process = start(("/bin/sh", "-c", f"exec {command}"), Streams(theirs, theirs, subprocess.DEVNULL))
    connection.connect_kwargs["sock"] = ours
    # `_set`: an attribute of the connection itself; a plain assignment would go to the configuration that all share.
    connection._set(proxy_process=process, proxy_ends=contextlib.ExitStack())
    connection.proxy_ends.enter_context(ended_with_us(process))


def end_proxy(hop: Connection) -> None:
    """End the ProxyCommand of a hop and what it started."""
    process: subprocess.Popen[bytes] | None = getattr(hop, "proxy_process", None)
    if process is None:
        return
    stop(process)
    hop.proxy_ends.close()


def _transport(known: KnownHost, sock: Any, **options: Any) -> Transport:
    """Asks the server for a key of a kind that known_hosts has, as ssh does, before any other."""
    transport = Transport(sock, **options)
    wanted = [name for key in known.keys for name in (_RSA_SIGNATURES if key.kind == "ssh-rsa" else (key.kind,))]
    security = transport.get_security_options()
    offered = tuple(security.key_types)
    first = tuple(dict.fromkeys(name for name in offered if name in wanted))
    security.key_types = first + tuple(name for name in offered if name not in first)
    return transport


class _OnlyKnown(MissingHostKeyPolicy):
    """Asked for every host, as paramiko's own lists stay empty. fabric's own rule is to accept every new key."""

    def __init__(self, known: KnownHost) -> None:
        self._known = known

    def missing_host_key(self, client: object, hostname: str, key: PKey) -> None:
        known, offered = self._known, KnownKey(key.get_name(), key.asbytes())
        if offered in known.revoked:
            raise SshFailure(
                Reach.HOST_KEY,
                f"the host key of {hostname} is revoked: marked @revoked in known_hosts, or listed in RevokedHostKeys",
            )
        if offered in known.keys:
            return
        if known.keys:
            raise SshFailure(
                Reach.HOST_KEY, f"the host key of {hostname} is not the one in known_hosts; it was not accepted"
            )
        if known.authorities:
            raise SshFailure(
                Reach.HOST_KEY,
                f"known_hosts has only a certificate authority for {hostname}, and host certificates are not supported:"
                " add the host's own key",
            )
        raise SshFailure(Reach.HOST_KEY, f"known_hosts has no key for {hostname}; the node's was not accepted")
