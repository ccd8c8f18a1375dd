"""Debian's real sshd on loopback, for the tests of SSH."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.adapters.ssh import SshSettings
from tests.loopback import free_port, make_key
from tests.programs import find

SSHD = find("sshd")


@dataclass(frozen=True, slots=True)
class Server:
    """A running sshd and the settings that reach it."""

    folder: Path
    port: int
    settings: SshSettings
    log: Path


@contextlib.contextmanager
def running_sshd(folder: Path, *extra: str) -> Iterator[Server]:
    """sshd as the present user on 127.0.0.1 to 127.0.0.3, with keys of its own, a PATH whose first folder the tests
    fill, and further lines of configuration."""
    assert SSHD
    port = free_port()
    host_key = make_key(folder / "host_key")
    client_key = make_key(folder / "client_key")
    (folder / "authorized_keys").write_text(client_key + "\n")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "bin").mkdir()
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\n"
        f"HostKey {folder}/host_key\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\nAllowTcpForwarding yes\n"
        f"SetEnv PATH={folder}/bin:/usr/bin:/bin LD_LIBRARY_PATH={folder}/lib"
        f" STANDIN_NVML_SCENARIO={folder}/scenario.txt\nLogLevel ERROR\n"
        + "".join(f"{line}\n" for line in extra)
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    log = folder / "sshd.log"
    process = subprocess.Popen((SSHD, "-D", "-f", str(config), "-E", str(log)))
    settings = SshSettings(
        user=getpass.getuser(), port=port, key_file=str(folder / "client_key"),
        known_hosts_file=str(folder / "known_hosts"), config_file=os.devnull, use_agent=False, connect_timeout_s=2,
        command_timeout_s=5,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError(f"sshd did not start: {log.read_text()}")
        yield Server(folder, port, settings, log)
    finally:
        process.terminate()
        process.wait(5)
