"""Many sshd targets on loopback: one address a node, real daemons, keys of their own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.loopback import free_port
from tests.programs import find

SSHD = find("sshd")
_ADDRESSES_A_DAEMON = 16
"""OpenSSH's sshd listens on no more."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running daemons: the addresses that answer, and the ssh configuration file that reaches them."""

    addresses: tuple[str, ...]
    config: Path
    daemons: int


def addresses(count: int) -> tuple[str, ...]:
    """127.20.0.1, …: Linux answers on all of 127.0.0.0/8 without any set-up."""
    return tuple(f"127.20.{number // 250}.{number % 250 + 1}" for number in range(count))


@contextlib.contextmanager
def fleet(count: int, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """`count` addresses with sshd behind each, 16 a daemon; MaxStartups is far above any fan-out."""
    assert SSHD, "sshd is not installed (apt-get install openssh-server)"
    for name in ("host_key", "client_key"):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)), check=True)
    shutil.copy(folder / "client_key.pub", folder / "authorized_keys")
    names = addresses(count)
    port = free_port()
    host_key = (folder / "host_key.pub").read_text().strip()
    (folder / "known_hosts").write_text("".join(f"[{name}]:{port} {host_key}\n" for name in names))
    config = folder / "ssh_config"
    config.write_text(
        f"Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/client_key\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    groups = [names[start : start + _ADDRESSES_A_DAEMON] for start in range(0, count, _ADDRESSES_A_DAEMON)]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for number, group in enumerate(groups):
            path = folder / f"sshd_config_{number}"
            path.write_text(_server_config(folder, port, group, environment or {}))
            daemons.append(subprocess.Popen((SSHD, "-D", "-f", str(path), "-E", str(folder / "sshd.log"))))
        for group in groups:
            _await(group[-1], port, folder / "sshd.log")
        yield Fleet(names, config, len(daemons))
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(10)


def _server_config(folder: Path, port: int, group: Sequence[str], environment: Mapping[str, str]) -> str:
    # An empty home: what this machine's user has in a .bashrc is not measured.
    settings = " ".join(f"{name}={value}" for name, value in {"HOME": str(folder), **environment}.items())
    return (
        "".join(f"ListenAddress {name}:{port}\n" for name in group)
        + f"HostKey {folder}/host_key\nPidFile none\nStrictModes no\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        "UseDNS no\nMaxStartups 2000\nLogLevel ERROR\n"
        f"SetEnv {settings}\n"
    )


def _await(address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as tried:
            if tried.connect_ex((address, port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"sshd on {address}:{port} did not start: {log.read_text()}")
